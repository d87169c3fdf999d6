#include "ops/ctx.h"

#include <stdio.h>
#include <string.h>

void op_ctx_init(op_ctx *c, ir_graph *g, const char *name, const tpu_value *args, int nargs, const op_env *env,
                 void *owner) {
  memset(c, 0, sizeof *c);
  c->g = g;
  c->name = name;
  c->args = args;
  c->nargs = nargs;
  c->env = env;
  c->owner = owner;
  c->results_end = &c->results;
}

extern const op_row *const __start_tpu_rows[];
extern const op_row *const __stop_tpu_rows[];

const op_row *op_row_at(int i) { return i >= 0 && i < __stop_tpu_rows - __start_tpu_rows ? __start_tpu_rows[i] : NULL; }

const char *tpu_row_name(int i) {
  const op_row *r = op_row_at(i);
  return r ? r->name : NULL;
}

/* ---- numbers on the host --------------------------------------------------------------------------------------- */

static double half_to_double(uint16_t h) {
  int exponent = (h >> 10) & 31, mantissa = h & 1023;
  double sign = h >> 15 ? -1 : 1;
  if (exponent == 31) return mantissa ? __builtin_nan("") : sign * __builtin_inf();
  if (exponent == 0) return sign * mantissa * 0x1p-24;
  return sign * (1 + mantissa * 0x1p-10) *
         (exponent >= 15 ? (double)(1u << (exponent - 15)) : 1.0 / (double)(1u << (15 - exponent)));
}

static bool read_host(const tpu_tensor *t, op_host_number *out) {
  const void *p = t->host;
  out->dtype = (tpu_dtype)t->dtype;
  out->weak = t->flags & TPU_TENSOR_WRAPPED;
  out->is_int = true;
#define READ_INT(type)       \
  {                          \
    type v;                  \
    memcpy(&v, p, sizeof v); \
    out->i = (int64_t)v;     \
    out->re = (double)v;     \
    break;                   \
  }
  switch (out->dtype) {
    case TPU_BOOL:
    case TPU_U8: READ_INT(uint8_t)
    case TPU_I8: READ_INT(int8_t)
    case TPU_I16: READ_INT(int16_t)
    case TPU_U16: READ_INT(uint16_t)
    case TPU_I32: READ_INT(int32_t)
    case TPU_U32: READ_INT(uint32_t)
    case TPU_I64: READ_INT(int64_t)
    case TPU_U64: READ_INT(uint64_t)
    default: out->is_int = false;
  }
#undef READ_INT
  if (out->is_int) return true;
  float f[2] = {0, 0};
  uint16_t h;
  switch (out->dtype) {
    case TPU_F64: memcpy(&out->re, p, 8); break;
    case TPU_F32:
      memcpy(f, p, 4);
      out->re = f[0];
      break;
    case TPU_C64:
      memcpy(f, p, 8);
      out->re = f[0];
      out->im = f[1];
      break;
    case TPU_C128:
      memcpy(&out->re, p, 8);
      memcpy(&out->im, (const char *)p + 8, 8);
      break;
    case TPU_F16:
      memcpy(&h, p, 2);
      out->re = half_to_double(h);
      break;
    case TPU_BF16: {
      memcpy(&h, p, 2);
      uint32_t bits = (uint32_t)h << 16;
      memcpy(f, &bits, 4);
      out->re = f[0];
      break;
    }
    default: return false;
  }
  if (t->flags & TPU_TENSOR_CONJ) out->im = -out->im;
  if (t->flags & TPU_TENSOR_NEG) {
    out->re = -out->re;
    out->im = -out->im;
  }
  out->i = 0;
  return true;
}

bool op_read_number(const tpu_value *v, int elem, op_host_number *out) {
  memset(out, 0, sizeof *out);
  if (v->tag == TPU_SCALARS) return elem < (int)v->n && op_read_number(&v->u.vals[elem], 0, out);
  if (v->tag == TPU_TENSOR) return v->u.tensor->host && read_host(v->u.tensor, out);
  if (v->tag == TPU_TENSORS) return v->u.tensor[elem].host && read_host(&v->u.tensor[elem], out);
  out->weak = true;
  switch (v->tag) {
    case TPU_BOOLEAN:
      out->dtype = TPU_BOOL;
      out->is_int = true;
      out->i = v->u.i != 0;
      out->re = (double)out->i;
      return true;
    case TPU_INT:
      out->dtype = TPU_I64;
      out->is_int = true;
      out->i = v->u.i;
      out->re = (double)out->i;
      return true;
    case TPU_UINT:
      out->dtype = TPU_U64;
      out->is_int = true;
      out->i = v->u.i;
      out->re = (double)(uint64_t)out->i;
      return true;
    case TPU_INTS:
      out->dtype = TPU_I64;
      out->is_int = true;
      out->i = v->u.ints[elem];
      out->re = (double)out->i;
      return true;
    case TPU_DOUBLES:
      out->re = v->u.doubles[elem];
      out->dtype = TPU_F64;
      return true;
    case TPU_DOUBLE:
      out->re = v->u.d;
      out->dtype = TPU_F64;
      return true;
    case TPU_COMPLEX:
      out->re = v->u.d;
      out->im = v->imag;
      out->dtype = TPU_C128;
      return true;
    default: return false;
  }
}

/* ---- arguments ------------------------------------------------------------------------------------------------- */

ir_graph *op_graph(op_ctx *c) { return c->g; }
int op_nargs(op_ctx *c) { return c->nargs; }

static const tpu_value none = {0};
static const tpu_value *arg(op_ctx *c, int i) { return i >= 0 && i < c->nargs ? &c->args[i] : &none; }

tpu_tag op_tag(op_ctx *c, int i) {
  const tpu_value *v = arg(c, i);
  if (v->tag == TPU_TENSOR && v->u.tensor->flags & TPU_TENSOR_UNDEFINED) return TPU_NONE;
  return (tpu_tag)v->tag;
}

val op_fail(op_ctx *c, tpu_err_kind kind, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  const char *text = NULL;
  char small[512];
  vsnprintf(small, sizeof small, fmt, ap);
  text = small;
  va_end(ap);
  return ir_fail(c->g, kind, "%s", text);
}

static val number(op_ctx *c, int i, int k, tpu_dtype d, bool weak) {
  for (op_number_use *u = c->numbers; u; u = u->next)
    if (u->arg == i && u->elem == k && u->dtype == d && u->v->weak == weak) return u->v;
  val v = c->env->number(c, i, k, d, weak);
  op_number_use *u = arena_alloc(ir_arena(c->g), sizeof *u);
  if (!u) return v;
  if (!ir_failed(c->g)) v->weak = weak;
  *u = (op_number_use){c->numbers, v, i, k, d};
  c->numbers = u;
  return v;
}

static val any_number(op_ctx *c, int i, int k) {
  op_host_number n;
  if (!op_read_number(arg(c, i), k, &n))
    return op_fail(c, TPU_ERR_RUNTIME, "%s: argument %d is not a number", c->name, i);
  return number(c, i, k, n.dtype, n.weak);
}

static val tensor_of(op_ctx *c, int i, int k, const tpu_tensor *t) {
  if (t->flags & TPU_TENSOR_UNDEFINED) return op_fail(c, TPU_ERR_RUNTIME, "%s: argument %d is undefined", c->name, i);
  if (t->store) return c->env->tensor(c, i, k);
  if (t->ndim == 0) return any_number(c, i, k);
  return op_fail(
      c, TPU_ERR_RUNTIME,
      "Expected all tensors to be on the same device, but found at least two devices, tpu and cpu! (%s, argument %d)",
      c->name, i);
}

val op_tensor(op_ctx *c, int i) {
  const tpu_value *v = arg(c, i);
  if (v->tag != TPU_TENSOR) return op_fail(c, TPU_ERR_RUNTIME, "%s: argument %d is not a tensor", c->name, i);
  return tensor_of(c, i, 0, v->u.tensor);
}

int op_list_len(op_ctx *c, int i) {
  const tpu_value *v = arg(c, i);
  switch (v->tag) {
    case TPU_INTS:
    case TPU_DOUBLES:
    case TPU_TENSORS:
    case TPU_SCALARS: return (int)v->n;
    default: return 0;
  }
}

val op_list_tensor(op_ctx *c, int i, int k) {
  const tpu_value *v = arg(c, i);
  if (v->tag != TPU_TENSORS || k < 0 || k >= (int)v->n)
    return op_fail(c, TPU_ERR_RUNTIME, "%s: argument %d has no tensor number %d", c->name, i, k);
  return tensor_of(c, i, k, &v->u.tensor[k]);
}

bool op_list_defined(op_ctx *c, int i, int k) {
  const tpu_value *v = arg(c, i);
  return v->tag == TPU_TENSORS && k >= 0 && k < (int)v->n && !(v->u.tensor[k].flags & TPU_TENSOR_UNDEFINED);
}

val op_number(op_ctx *c, int i) { return any_number(c, i, 0); }

val op_list_number(op_ctx *c, int i, int k) {
  if (k < 0 || k >= op_list_len(c, i))
    return op_fail(c, TPU_ERR_RUNTIME, "%s: argument %d has no number %d", c->name, i, k);
  return any_number(c, i, k);
}

val op_cast_number(op_ctx *c, val x, tpu_dtype d) {
  for (op_number_use *u = c->numbers; u; u = u->next)
    if (u->v == x) return u->dtype == d ? x : number(c, u->arg, u->elem, d, x->weak);
  return NULL;
}

int64_t op_int_or(op_ctx *c, int i, int64_t absent) {
  const tpu_value *v = arg(c, i);
  switch (v->tag) {
    case TPU_INT:
    case TPU_BOOLEAN: return v->u.i;
    case TPU_NONE: return absent;
    case TPU_INTS: return v->n == 1 ? v->u.ints[0] : absent;
    default: op_fail(c, TPU_ERR_RUNTIME, "%s: argument %d is not an int", c->name, i); return absent;
  }
}

int64_t op_int(op_ctx *c, int i) {
  if (arg(c, i)->tag == TPU_NONE) op_fail(c, TPU_ERR_RUNTIME, "%s: argument %d is missing", c->name, i);
  return op_int_or(c, i, 0);
}

const int64_t *op_ints(op_ctx *c, int i, int *n) {
  const tpu_value *v = arg(c, i);
  *n = 0;
  if (v->tag == TPU_INTS) *n = (int)v->n;
  else if (v->tag == TPU_INT) {
    *n = 1;
    return &v->u.i;
  }
  return v->tag == TPU_INTS ? v->u.ints : NULL;
}

const char *op_str(op_ctx *c, int i) {
  const tpu_value *v = arg(c, i);
  return v->tag == TPU_STR ? arena_copy(ir_arena(c->g), v->u.s, v->n + 1) : "";
}

double op_const_or(op_ctx *c, int i, double absent) {
  if (arg(c, i)->tag == TPU_NONE) return absent;
  op_host_number n;
  if (!op_read_number(arg(c, i), 0, &n)) {
    op_fail(c, TPU_ERR_RUNTIME, "%s: argument %d is not a number", c->name, i);
    return absent;
  }
  c->env->constant(c, i);
  return n.re;
}

int op_class_of(const op_host_number *n) {
  if (n->im != 0) return -1;
  return n->re == 0 ? 0 : n->re == 1 ? 1 : -1;
}

int op_number_class(op_ctx *c, int i) {
  op_host_number n;
  if (!op_read_number(arg(c, i), 0, &n)) return -1;
  c->env->classify(c, i);
  return op_class_of(&n);
}

val t_scale(op_ctx *c, val x, int i) {
  if (op_number_class(c, i) == 1 && x->dtype != TPU_BOOL) return x;
  return t_mul(c, x, S(i));
}

double op_const(op_ctx *c, int i) {
  if (arg(c, i)->tag == TPU_NONE) op_fail(c, TPU_ERR_RUNTIME, "%s: argument %d is missing", c->name, i);
  return op_const_or(c, i, 0);
}

bool op_const_is_int(op_ctx *c, int i) {
  op_host_number n;
  return op_read_number(arg(c, i), 0, &n) && n.is_int;
}

val op_rng(op_ctx *c, int64_t words) { return c->env->rng(c, words); }
tpu_dtype op_default_dtype(op_ctx *c) { return c->env->default_dtype(c); }
bool op_for_tpu(op_ctx *c) { return !ir_is_cpu(c->g) && !ir_sizes_vary(c->g); }
int op_precision(op_ctx *c, tpu_dtype d) { return d == TPU_F32 ? c->env->precision(c) : 0; }

/* ---- results --------------------------------------------------------------------------------------------------- */

static void result(op_ctx *c, int index, int elem, bool write, val v) {
  op_result *r = arena_alloc(ir_arena(c->g), sizeof *r);
  if (!r) return;
  *r = (op_result){NULL, index, elem, write, v};
  *c->results_end = r;
  c->results_end = &r->next;
}

void op_ret(op_ctx *c, int ret, val v) { result(c, ret, 0, false, v); }
void op_ret_list(op_ctx *c, int ret, int elem, val v) { result(c, ret, elem, false, v); }
void op_write(op_ctx *c, int i, int elem, val v) { result(c, i, elem, true, v); }

const tpu_meta *op_meta(op_ctx *c, int ret) { return ret >= 0 && ret < c->nmetas ? &c->metas[ret] : NULL; }

/* c10::is_channels_last_strides_2d and _3d: sizes of one are ambiguous, and count as PyTorch counts them. */
static bool channels_last(const tpu_tensor *t) {
  if (t->ndim != 4 && t->ndim != 5) return false;
  static const int order4[] = {1, 3, 2, 0}, order5[] = {1, 4, 3, 2, 0};
  const int *order = t->ndim == 4 ? order4 : order5;
  int64_t least = 0;
  if (t->strides[1] == 0) return false;
  for (int i = 0; i < t->ndim; i++) {
    int d = order[i];
    if (t->sizes[d] == 0 || t->strides[d] < least || (d == 0 && least == t->strides[1])) return false;
    least = t->strides[d] * (t->sizes[d] > 1 ? t->sizes[d] : 1);
  }
  return true;
}

void op_keep_channels_last(op_ctx *c, int a, int b) {
  const int args[] = {a, b};
  for (int i = 0; i < 2; i++)
    if (args[i] < c->nargs && c->args[args[i]].tag == TPU_TENSOR && channels_last(c->args[args[i]].u.tensor))
      c->channels_last = true;
}
