/* _foreach_*: one program for a whole list. Each is the row of the single operator, built once for each element: a
 * context stands between that row and the call, which gives it element k of every list. */
#include <string.h>

#include "ops/along.h"
#include "ops/ctx.h" /* for that context */

enum { MAX_ARGS = 8 };

/* Where argument i of the inner row comes from: argument i of the call, element k of it if it is a list; or a constant.
 */
typedef struct {
  op_ctx *outer;
  int k;
  bool list[MAX_ARGS], given[MAX_ARGS];
  val tensors[MAX_ARGS]; /* an element that is no argument of the call: one number out of a tensor of them */
} element;

static val element_tensor(op_ctx *c, int arg, int elem) {
  element *e = c->owner;
  if (e->tensors[arg]) return e->tensors[arg];
  return e->list[arg] ? op_list_tensor(e->outer, arg, e->k)
         : elem       ? op_list_tensor(e->outer, arg, elem)
                      : op_tensor(e->outer, arg);
}

static val element_number(op_ctx *c, int arg, int elem, tpu_dtype d, bool weak) {
  element *e = c->owner;
  (void)elem;
  (void)weak;
  if (!e->given[arg]) { /* a default of the single operator, alpha = 1 */
    op_host_number n;
    op_read_number(&c->args[arg], 0, &n);
    return t_scalar(c, d, n.re);
  }
  op_ctx *o = e->outer;
  val v;
  switch (o->args[arg].tag) {
    case TPU_TENSORS: v = op_list_tensor(o, arg, e->k); break;
    case TPU_TENSOR: v = op_tensor(o, arg); break;
    case TPU_SCALARS:
    case TPU_DOUBLES: v = op_list_number(o, arg, e->k); break;
    default: v = op_number(o, arg);
  }
  val n = op_cast_number(o, v, d);
  return n ? n : op_fail(o, TPU_ERR_RUNTIME, "%s: argument %d is not a number", o->name, arg);
}

static val element_rng(op_ctx *c, int64_t words) { return op_rng(((element *)c->owner)->outer, words); }
static void element_constant(op_ctx *c, int arg) {
  element *e = c->owner;
  if (e->given[arg]) e->outer->env->constant(e->outer, arg);
}
static void element_classify(op_ctx *c, int arg) {
  element *e = c->owner;
  if (e->given[arg]) e->outer->env->classify(e->outer, arg);
}
static int element_precision(op_ctx *c) {
  return ((element *)c->owner)->outer->env->precision(((element *)c->owner)->outer);
}
static tpu_dtype element_default_dtype(op_ctx *c) { return op_default_dtype(((element *)c->owner)->outer); }

static const op_env element_env = {element_tensor,   element_number,    element_rng,          element_constant,
                                   element_classify, element_precision, element_default_dtype};

static const op_row *find_row(const char *name) {
  const op_row *r;
  for (int i = 0; (r = op_row_at(i)); i++)
    if (!strcmp(r->name, name)) return r;
  return NULL;
}

/* Element k of a Tensor[], Scalar[] or float[] argument as an argument of its own. */
static tpu_value pick(const tpu_value *v, int k) {
  switch (v->tag) {
    case TPU_TENSORS: return (tpu_value){.tag = TPU_TENSOR, .u.tensor = &v->u.tensor[k]};
    case TPU_SCALARS: return v->u.vals[k];
    case TPU_DOUBLES: return (tpu_value){.tag = TPU_DOUBLE, .u.d = v->u.doubles[k]};
    default: return *v;
  }
}

/* The row `name` for every element of the list argument `of`. ones: bit i: argument i, if absent, is the number 1.
 * spread: a tensor argument that holds one number for each element, or -1. */
static void map(op_ctx *c, const char *name, int of, unsigned ones, int spread) {
  const op_row *row = find_row(name);
  if (!row) {
    op_fail(c, TPU_ERR_NOT_IMPLEMENTED, "%s needs a row for %s, and there is none", c->name, name);
    return;
  }
  int n = op_list_len(c, of);
  for (int k = 0; k < n && !ir_failed(G); k++) {
    tpu_value args[MAX_ARGS] = {{0}};
    element e = {.outer = c, .k = k};
    for (int i = 0; i < MAX_ARGS; i++) {
      if (i >= c->nargs || c->args[i].tag == TPU_NONE) {
        if (ones >> i & 1) args[i] = (tpu_value){.tag = TPU_INT, .u.i = 1};
        continue;
      }
      const tpu_value *a = &c->args[i];
      e.given[i] = true;
      e.list[i] = a->tag == TPU_TENSORS || a->tag == TPU_SCALARS || a->tag == TPU_DOUBLES;
      if (e.list[i] && k >= (int)a->n) {
        op_fail(c, TPU_ERR_RUNTIME, "Tensor lists must have the same number of tensors, got %d and %d", n, (int)a->n);
        return;
      }
      args[i] = pick(a, k);
      if (i == spread && a->tag == TPU_TENSOR) {
        val s = op_tensor(c, i);
        e.tensors[i] = s->ndim == 1 ? t_squeeze(c, t_narrow(c, s, 0, k, 1, 1), 0) : s;
      }
    }
    op_ctx inner;
    op_ctx_init(&inner, G, name, args, MAX_ARGS, &element_env, &e);
    if (c->nmetas > k) {
      inner.metas = &c->metas[k];
      inner.nmetas = 1;
    }
    row->build(&inner);
    if (inner.results) op_ret_list(c, 0, k, inner.results->v);
  }
}

#define FOREACH(op) \
  OP(foreach_##op, "aten::_foreach_" #op) { map(c, "aten::" #op, 0, 0, -1); }

FOREACH(abs)
FOREACH(acos)
FOREACH(asin)
FOREACH(atan)
FOREACH(ceil)
FOREACH(clamp_max)
FOREACH(clamp_min)
FOREACH(clone)
FOREACH(copy)
FOREACH(cos)
FOREACH(cosh)
FOREACH(div)
FOREACH(erf)
FOREACH(erfc)
FOREACH(exp)
FOREACH(expm1)
FOREACH(floor)
FOREACH(frac)
FOREACH(lerp)
FOREACH(lgamma)
FOREACH(log)
FOREACH(log10)
FOREACH(log1p)
FOREACH(log2)
FOREACH(max)
FOREACH(maximum)
FOREACH(minimum)
FOREACH(mm)
FOREACH(mul)
FOREACH(neg)
FOREACH(pow)
FOREACH(reciprocal)
FOREACH(round)
FOREACH(rsqrt)
FOREACH(sigmoid)
FOREACH(sign)
FOREACH(sin)
FOREACH(sinh)
FOREACH(sqrt)
FOREACH(tan)
FOREACH(tanh)
FOREACH(trunc)
FOREACH(zero)

/* (self, other, alpha) */
OP(foreach_add, "aten::_foreach_add") { map(c, "aten::add", 0, 4, -1); }
OP(foreach_sub, "aten::_foreach_sub") { map(c, "aten::sub", 0, 4, -1); }
/* (self, tensor1, tensor2, value); in the .Tensor overload `value` holds one number for each element. */
OP(foreach_addcmul, "aten::_foreach_addcmul") { map(c, "aten::addcmul", 0, 8, 3); }
OP(foreach_addcdiv, "aten::_foreach_addcdiv") { map(c, "aten::addcdiv", 0, 8, 3); }

OP(foreach_pow_scalar, "aten::_foreach_pow.Scalar") { map(c, "aten::pow.Tensor_Scalar", 0, 0, -1); }
OP(foreach_pow_scalars, "aten::_foreach_pow.ScalarList") { map(c, "aten::pow.Tensor_Scalar", 0, 0, -1); }
OP(foreach_pow_base, "aten::_foreach_pow.ScalarAndTensor") { map(c, "aten::pow", 1, 0, -1); }

/* (self, ord, dtype) */
OP(foreach_norm, "aten::_foreach_norm") { map(c, "aten::norm.ScalarOpt_dtype", 0, 0, -1); }

OP(foreach_powsum, "aten::_foreach_powsum") {
  double p = op_const_or(c, 1, 2);
  for (int k = 0; k < op_list_len(c, 0); k++) {
    val x = TL(0, k);
    if (HAS(2)) x = t_cast(c, x, (tpu_dtype)INT(2));
    x = t_abs(c, t_float(c, x));
    val y = p == 1 ? x : p == 2 ? t_mul(c, x, x) : t_pow(c, x, t_like(c, x, p));
    op_ret_list(c, 0, k, t_sum(c, y, NULL, 0, false));
  }
}
