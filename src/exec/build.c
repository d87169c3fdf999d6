/* Builds the entry of a call that was not seen before: PyTorch's metadata, the row's graph, the program. Room 3 and 4
 * of docs/architecture.md. No lock is held here; what the call's arguments look like was copied into call_state. */
#include <string.h>

#include "base/env.h"
#include "exec/trace.h"
#include "ops/accept.h"

typedef struct {
  tpu_call *c;
  call_state *cs;
  ir_graph *g;
  op_ctx ctx;
  param_spec *params;
  int nparams, cap_params;
  val *store_val; /* nstores: the parameter that holds the store's value, NULL if not asked for yet */
  int *store_param;
  val *store_new; /* nstores: the value after the writes so far */
  view_base *store_new_base;
  val *tensor_val; /* ntensors */
  int64_t rng_blocks;
  tpu_meta *metas;
  int nmetas;
  val *outs;  /* one a program output */
  trace *t;   /* the recording that the call goes into, or NULL */
  bool begun; /* the row has built something */
} builder;

static val poison(builder *b) { return ir_fail(b->g, TPU_ERR_RUNTIME, "out of memory"); }

static val add_param(builder *b, param_spec spec, tpu_dtype dtype, int ndim, const int64_t *dims) {
  if (b->nparams == b->cap_params) {
    int cap = b->cap_params ? b->cap_params * 2 : 16;
    param_spec *p = arena_alloc(ir_arena(b->g), (size_t)cap * sizeof *p);
    if (!p) return poison(b);
    if (b->nparams) memcpy(p, b->params, (size_t)b->nparams * sizeof *p);
    b->params = p;
    b->cap_params = cap;
  }
  spec.dtype = (uint8_t)dtype;
  b->params[b->nparams++] = spec;
  return ir_param(b->g, dtype, ndim, dims);
}

/* A number of a call that is recorded: its value is known now. */
static val recorded_number(builder *b, const op_host_number *n, tpu_dtype dtype) {
  if (b->t->cap) return number_constant(b->g, n, dtype);
  dbuf *d = NULL;
  ex_lock();
  tpu_err *e = number_get_locked(n, dtype, b->c->device, &d);
  ex_unlock();
  if (e) {
    val bad = ir_fail(b->g, tpu_err_get_kind(e), "%s", tpu_err_message(e));
    tpu_err_free(e);
    return bad;
  }
  val v = trace_param(b->t, d, dtype, 0, NULL);
  dbuf_release(d);
  return v;
}

/* ---- reading --------------------------------------------------------------------------------------------------- */

/* The store's value as it was before the call. */
static val store_value(builder *b, int n) {
  call_store *st = &b->cs->stores[n];
  if (!b->store_val[n] && b->t) {
    b->store_param[n] = -1;
    b->store_val[n] = trace_param(b->t, st->buf, st->base.dtype, st->base.ndim, st->base.dims);
  } else if (!b->store_val[n]) {
    b->store_param[n] = b->nparams;
    b->store_val[n] =
        add_param(b, (param_spec){.kind = PARAM_STORE, .elem = n}, st->base.dtype, st->base.ndim, st->base.dims);
  }
  return b->store_val[n];
}

static bool same_base(const view_base *x, const view_base *y) {
  return x->dtype == y->dtype && x->ndim == y->ndim && !memcmp(x->dims, y->dims, (size_t)x->ndim * sizeof *x->dims);
}

/* The base of a tensor in the form that its plan was solved for. */
static val base_value(builder *b, const call_tensor *ct) {
  call_store *st = &b->cs->stores[ct->store];
  if (!st->buf) return ir_const_i(b->g, ct->base.dtype, 0, ct->base.ndim, ct->base.dims);
  val v = store_value(b, ct->store);
  return same_base(&st->base, &ct->base) ? v : view_rebase(b->g, v, ct->base.dtype, ct->base.ndim, ct->base.dims);
}

static const val *plan_starts(builder *b, const call_tensor *ct) {
  const view_plan *p = b->cs->plans[ct->plan];
  val *starts = arena_alloc(ir_arena(b->g), (size_t)(p->nstarts + 1) * sizeof *starts);
  if (!starts) return NULL;
  for (int k = 0; k < p->nstarts; k++)
    starts[k] = b->t ? recorded_number(b, &(op_host_number){.dtype = TPU_I64, .is_int = true, .i = p->starts[k]},
                                       p->start_dtype)
                     : add_param(b, (param_spec){.kind = PARAM_START, .elem = (int32_t)(ct - b->cs->tensors), .k = k},
                                 p->start_dtype, 0, NULL);
  return starts;
}

static view_shape shape_of(const tpu_tensor *t) {
  return (view_shape){(tpu_dtype)t->dtype, t->ndim, t->sizes, t->strides, t->offset};
}

static val conj_neg(builder *b, val v, int flags) {
  if (flags & TPU_TENSOR_CONJ && ir_is_complex((tpu_dtype)v->dtype))
    v = ir_binary(b->g, IR_COMPLEX, ir_unary(b->g, IR_REAL, v), ir_unary(b->g, IR_NEG, ir_unary(b->g, IR_IMAG, v)));
  return flags & TPU_TENSOR_NEG ? ir_unary(b->g, IR_NEG, v) : v;
}

static call_tensor *find_tensor(builder *b, int arg, int elem) {
  for (int i = 0; i < b->cs->ntensors; i++)
    if (b->cs->tensors[i].arg == arg && b->cs->tensors[i].elem == elem) return &b->cs->tensors[i];
  return NULL;
}

static val env_tensor(op_ctx *c, int arg, int elem) {
  builder *b = c->owner;
  call_tensor *ct = find_tensor(b, arg, elem);
  if (!ct) return ir_fail(b->g, TPU_ERR_RUNTIME, "%s: no tensor argument %d", c->name, arg);
  val *known = &b->tensor_val[ct - b->cs->tensors];
  if (*known) return *known;
  const tpu_tensor *t = ct->t;
  val v;
  if (ct->empty) {
    v = ir_const_i(b->g, (tpu_dtype)t->dtype, 0, t->ndim, t->sizes);
  } else if (ct->whole) {
    v = base_value(b, ct);
  } else {
    view_shape shape = shape_of(t);
    const val *starts = plan_starts(b, ct);
    v = starts ? view_read(b->g, b->cs->plans[ct->plan], &ct->base, &shape, base_value(b, ct), starts) : poison(b);
  }
  return *known = conj_neg(b, v, t->flags);
}

static val env_number(op_ctx *c, int arg, int elem, tpu_dtype d, bool weak) {
  (void)weak;
  builder *b = c->owner;
  op_host_number n;
  if (b->t) {
    if (!op_read_number(&b->c->args[arg], elem, &n)) return poison(b);
    tpu_err *e = number_check(b->c->op, arg, &n, d);
    if (!e) return recorded_number(b, &n, d);
    val bad = ir_fail(b->g, tpu_err_get_kind(e), "%s", tpu_err_message(e));
    tpu_err_free(e);
    return bad;
  }
  return add_param(b, (param_spec){.kind = PARAM_NUMBER, .arg = (int16_t)arg, .elem = elem}, d, 0, NULL);
}

static val recorded_rng(builder *b) {
  if (b->t->cap) return capture_rng(b->t);
  pjrt_buffer *p;
  dbuf *d = NULL;
  tpu_err *e = b->c->rng ? pjrt_buffer_from_host(ex.client, b->c->device, b->c->rng, dtype_pjrt(TPU_U64),
                                                 (const int64_t[]){2}, 1, &p)
                         : err_new(TPU_ERR_RUNTIME, "no generator was given");
  if (!e) e = dbuf_new(p, b->c->device, NULL, &d);
  if (e) {
    val bad = ir_fail(b->g, tpu_err_get_kind(e), "%s", tpu_err_message(e));
    tpu_err_free(e);
    return bad;
  }
  val v = trace_param(b->t, d, TPU_U64, 1, (const int64_t[]){2});
  dbuf_release(d);
  return v;
}

static val env_rng(op_ctx *c, int64_t words) {
  builder *b = c->owner;
  int64_t before = b->rng_blocks;
  b->rng_blocks += words < 0 ? 0 : (words + 3) / 4;
  val *state_at = &b->store_val[b->cs->nstores], state = *state_at; /* one state a call */
  if (!state)
    state = *state_at =
        b->t ? recorded_rng(b) : add_param(b, (param_spec){.kind = PARAM_RNG}, TPU_U64, 1, (const int64_t[]){2});
  if (!before) return state;
  val shift = ir_const_ints(b->g, TPU_U64, (const int64_t[]){0, before}, 1, (const int64_t[]){2});
  return ir_binary(b->g, IR_ADD, state, shift);
}

static void env_constant(op_ctx *c, int arg) {
  builder *b = c->owner;
  if (arg >= 0 && arg < 64) atomic_fetch_or(&((tpu_op *)b->c->op)->constants, (uint64_t)1 << arg);
}
static void env_classify(op_ctx *c, int arg) {
  builder *b = c->owner;
  if (arg >= 0 && arg < 64) atomic_fetch_or(&((tpu_op *)b->c->op)->classes, (uint64_t)1 << arg);
}
static int env_precision(op_ctx *c) {
  (void)c;
  return atomic_load_explicit(&ex.precision, memory_order_relaxed);
}
static tpu_dtype env_default_dtype(op_ctx *c) {
  (void)c;
  return (tpu_dtype)atomic_load_explicit(&ex.default_dtype, memory_order_relaxed);
}
static const op_env env = {env_tensor,   env_number,    env_rng,          env_constant,
                           env_classify, env_precision, env_default_dtype};

/* ---- writing --------------------------------------------------------------------------------------------------- */

static const char *dims_text(ir_graph *g, int ndim, const int64_t *dims) {
  const char *s = "[";
  for (int i = 0; i < ndim; i++) s = arena_printf(ir_arena(g), "%s%s%lld", s, i ? ", " : "", (long long)dims[i]);
  return arena_printf(ir_arena(g), "%s]", s);
}

static bool check_dims(builder *b, val v, int ndim, const int64_t *sizes, const char *what) {
  if (v->ndim == ndim && !memcmp(v->dims, sizes, (size_t)ndim * sizeof *sizes)) return true;
  ir_fail(b->g, TPU_ERR_RUNTIME, "%s: the result has sizes %s, but %s has sizes %s", b->c->op->name,
          dims_text(b->g, v->ndim, v->dims), what, dims_text(b->g, ndim, sizes));
  return false;
}

static void write_tensor(builder *b, int arg, int elem, val v) {
  call_tensor *ct = find_tensor(b, arg, elem);
  if (!ct || ct->store < 0) {
    ir_fail(b->g, TPU_ERR_RUNTIME, "%s: result is to be written to argument %d, which is no tpu tensor", b->c->op->name,
            arg);
    return;
  }
  const tpu_tensor *t = ct->t;
  if (!check_dims(b, v, t->ndim, t->sizes, "the tensor that it is written to") || ct->empty) return;
  v = conj_neg(b, ir_convert(b->g, v, (tpu_dtype)t->dtype), t->flags);
  view_base *now = &b->store_new_base[ct->store];
  val *value = &b->store_new[ct->store];
  if (ct->whole) {
    *value = v;
  } else {
    view_shape shape = shape_of(t);
    const view_plan *p = b->cs->plans[ct->plan];
    const val *starts = plan_starts(b, ct);
    if (!starts) return;
    val base;
    if (!*value) base = base_value(b, ct);
    else if (same_base(now, &ct->base)) base = *value;
    else base = view_rebase(b->g, *value, ct->base.dtype, ct->base.ndim, ct->base.dims);
    *value = view_write(b->g, p, &ct->base, &shape, base, v, starts);
  }
  *now = ct->base;
}

/* A new tensor: its value in the order of memory, as its store will keep it. */
static val to_memory_order(builder *b, val v, out_spec *o) {
  arena *a = ir_arena(b->g);
  tpu_tensor as = {.sizes = o->sizes, .strides = o->strides, .ndim = o->ndim, .dtype = o->dtype};
  int64_t n = ir_numel(v);
  size_t size = tpu_dtype_size((tpu_dtype)o->dtype);
  int64_t *dims = arena_alloc(a, (size_t)(o->ndim + 1) * sizeof *dims);
  int *perm = arena_alloc(a, (size_t)(o->ndim + 1) * sizeof *perm);
  if (!dims || !perm) return poison(b);
  o->nbytes = (size_t)n * size;
  if (store_natural_dims(&as, o->nbytes, dims)) {
    /* which tensor dim each memory dim is: the order that store_natural_dims found, by stride, ties in place */
    bool *taken = arena_alloc(a, (size_t)o->ndim + 1);
    if (!taken) return poison(b);
    int64_t stride = n;
    for (int j = 0; j < o->ndim; j++) {
      stride = dims[j] ? stride / dims[j] : stride;
      perm[j] = -1;
      for (int i = 0; i < o->ndim && perm[j] < 0; i++)
        if (!taken[i] && o->sizes[i] == dims[j] && (dims[j] == 1 || o->strides[i] == stride)) perm[j] = i;
      if (perm[j] < 0)
        return ir_fail(b->g, TPU_ERR_RUNTIME, "%s: no order of dimensions for its result", b->c->op->name);
      taken[perm[j]] = true;
    }
    o->base_dims = dims;
    o->base_ndim = o->ndim;
    return ir_transpose(b->g, v, perm);
  }
  /* strides with gaps: a flat store, written through the view */
  view_shape shape = {(tpu_dtype)o->dtype, o->ndim, o->sizes, o->strides, 0};
  dims[0] = view_needs((tpu_dtype)o->dtype, &shape);
  o->nbytes = (size_t)dims[0] * size;
  o->base_dims = dims;
  o->base_ndim = 1;
  view_base base = {(tpu_dtype)o->dtype, 1, dims};
  view_plan *p = arena_alloc(a, sizeof *p);
  if (!p) return poison(b);
  tpu_err *e = view_solve(&base, &shape, p);
  if (e) {
    val bad = ir_fail(b->g, TPU_ERR_RUNTIME, "%s", tpu_err_message(e));
    tpu_err_free(e);
    return bad;
  }
  val *starts = arena_alloc(a, (size_t)(p->nstarts + 1) * sizeof *starts);
  if (!starts) return poison(b);
  for (int k = 0; k < p->nstarts; k++) starts[k] = ir_const_i(b->g, p->start_dtype, p->starts[k], 0, NULL);
  return view_write(b->g, p, &base, &shape, ir_const_i(b->g, base.dtype, 0, 1, dims), v, starts);
}

/* Where the metadata of a result is: PyTorch gives it result by result, the elements of a list one by one. */
static int meta_index(const builder *b, int ret, int elem) {
  int k = elem;
  for (int before = 0; before < ret; before++) {
    if (!b->c->op->ret_list[before]) {
      k++;
      continue;
    }
    int n = 0;
    for (const op_result *r = b->ctx.results; r; r = r->next)
      if (!r->write && r->index == before && r->elem >= n) n = r->elem + 1;
    k += n;
  }
  return k;
}

static void new_tensor(builder *b, call_entry *e, int ret, int elem, val v) {
  const tpu_op *op = b->c->op;
  int k = meta_index(b, ret, elem);
  const tpu_meta *m = k < b->nmetas && b->metas[k].defined ? &b->metas[k] : NULL;
  out_spec *o = &e->outs[e->nouts];
  *o = (out_spec){.kind = OUT_NEW, .ret = (int16_t)ret, .elem = elem, .output = -1, .ndim = v->ndim};
  o->dtype = m ? m->dtype : v->dtype;
  if (m && !check_dims(b, v, m->ndim, m->sizes, "PyTorch's own shape function")) return;
  size_t n = (size_t)v->ndim * sizeof(int64_t);
  int64_t *sizes = arena_copy(&e->mem, v->dims, n), *strides = arena_alloc(&e->mem, n + 1);
  if ((v->ndim && !sizes) || !strides) {
    poison(b);
    return;
  }
  int64_t dense = 1;
  for (int i = v->ndim - 1; i >= 0; i--) {
    strides[i] = dense;
    dense *= sizes[i] > 1 ? sizes[i] : 1;
  }
  if (m) memcpy(strides, m->strides, n);
  if (b->ctx.channels_last && (v->ndim == 4 || v->ndim == 5)) {
    int64_t step = strides[1] = sizes[1] > 0 ? 1 : 0;
    step *= sizes[1];
    for (int i = v->ndim - 1; i >= 0; i--) {
      if (i == 1) continue;
      strides[i] = step;
      step *= sizes[i];
    }
  }
  o->sizes = sizes;
  o->strides = strides;
  o->base_dtype = o->dtype;
  if (ir_numel(v) == 0) {
    o->kind = OUT_EMPTY;
    e->nouts++;
    return;
  }
  bool elsewhere = b->t && trace_for_tpu(b->t); /* the memory of the device here says nothing */
  int64_t limit = elsewhere ? 0 : ex.memory[b->c->device].limit, size = (int64_t)tpu_dtype_size((tpu_dtype)o->dtype);
  if (limit && ir_numel(v) > limit / size) { /* now: a compiler may not survive such a program */
    ir_fail(
        b->g, TPU_ERR_OOM,
        "%s: out of memory: the result of sizes %s would take %lld elements of %lld bytes, and tpu:%d holds %lld bytes",
        op->name, dims_text(b->g, v->ndim, v->dims), (long long)ir_numel(v), (long long)size, b->c->device,
        (long long)limit);
    return;
  }
  v = to_memory_order(b, ir_convert(b->g, v, (tpu_dtype)o->dtype), o);
  o->base_dims = arena_copy(&e->mem, o->base_dims, (size_t)o->base_ndim * sizeof(int64_t));
  b->outs[e->noutputs] = v;
  o->output = e->noutputs++;
  e->nouts++;
}

static tpu_err *collect(builder *b, call_entry *e) {
  const tpu_op *op = b->c->op;
  int n = b->cs->nstores;
  for (op_result *r = b->ctx.results; r; r = r->next) n++;
  e->outs = arena_alloc(&e->mem, (size_t)(n + 1) * sizeof *e->outs);
  b->outs = arena_alloc(ir_arena(b->g), (size_t)(n + 1) * sizeof *b->outs);
  if (!e->outs || !b->outs) return err_nomem();
  /* new results in order of their number, then what was written */
  for (int ret = 0; ret < op->nrets; ret++) {
    if (op->ret_alias[ret] >= 0) continue;
    for (int elem = 0, found = 1; found; elem++) {
      found = 0;
      for (op_result *r = b->ctx.results; r && !found; r = r->next)
        if (!r->write && r->index == ret && r->elem == elem) {
          new_tensor(b, e, ret, elem, r->v);
          found = 1;
        }
    }
  }
  for (op_result *r = b->ctx.results; r; r = r->next) {
    int target = r->write ? r->index : op_target(op, r->index);
    if (target >= 0) write_tensor(b, target, r->elem, r->v);
  }
  for (int s = 0; s < b->cs->nstores; s++) {
    val v = b->store_new[s];
    if (!v) continue;
    const view_base *base = &b->store_new_base[s];
    call_store *st = &b->cs->stores[s];
    out_spec *o = &e->outs[e->nouts++];
    *o = (out_spec){.kind = OUT_STORE,
                    .elem = s,
                    .output = e->noutputs++,
                    .base_dtype = (uint8_t)base->dtype,
                    .base_ndim = (int16_t)base->ndim};
    o->base_dims = arena_copy(&e->mem, base->dims, (size_t)base->ndim * sizeof(int64_t));
    b->outs[o->output] = v;
    if (!b->t && st->buf && b->store_val[s] && same_base(&st->base, base)) b->params[b->store_param[s]].donated = true;
  }
  return NULL;
}

/* The graph's results; an output that replaces a store's value may reuse the buffer of the old one. */
static void graph_outputs(builder *b, const call_entry *e) {
  for (int i = 0; i < e->nouts; i++) {
    const out_spec *o = &e->outs[i];
    if (o->output < 0) continue;
    int p = o->kind == OUT_STORE && b->store_val[o->elem] ? b->store_param[o->elem] : -1;
    ir_output(b->g, b->outs[o->output], p >= 0 && b->params[p].donated ? p : -1);
  }
}

/* ---- the whole ------------------------------------------------------------------------------------------------- */

static tpu_err *builder_init(builder *b, tpu_call *c, call_state *cs, trace *t) {
  memset(b, 0, sizeof *b);
  b->c = c;
  b->cs = cs;
  b->t = t;
  b->g = t ? trace_graph(t) : ir_new();
  if (!b->g) return err_nomem();
  const bool for_tpu = t && trace_for_tpu(t);
  if (ex.cpu_rows && !for_tpu) ir_set_cpu(b->g);
  if ((for_tpu || ex.kernels) && env_int(ENV_KERNELS)) ir_set_kernels(b->g);
  arena *a = ir_arena(b->g);
  size_t ns = (size_t)cs->nstores + 1, nt = (size_t)cs->ntensors + 1;
  b->store_val = arena_alloc(a, ns * sizeof(val)); /* one more: the generator's state */
  b->store_new = arena_alloc(a, ns * sizeof(val));
  b->store_param = arena_alloc(a, ns * sizeof(int));
  b->store_new_base = arena_alloc(a, ns * sizeof(view_base));
  b->tensor_val = arena_alloc(a, nt * sizeof(val));
  return a->failed ? err_nomem() : NULL;
}

static tpu_err *metas(builder *b) {
  tpu_call *c = b->c;
  if (!c->meta) return NULL;
  int cap = 4 + c->op->nrets;
  for (int i = 0; i < c->nargs; i++)
    if (c->args[i].tag == TPU_TENSORS || c->args[i].tag == TPU_INTS) cap += (int)c->args[i].n;
  b->metas = mem_alloc((size_t)cap * sizeof *b->metas);
  if (!b->metas) return err_nomem();
  bool known = false;
  int n = 0;
  TPU_TRY(c->meta(c, b->metas, cap, &n, &known));
  b->nmetas = known ? n : 0;
  b->ctx.metas = b->metas;
  b->ctx.nmetas = b->nmetas;
  return NULL;
}

/* What a program of several calls needs to know of this one. */
static tpu_err *keep_text(builder *b, call_entry *e) {
  static _Atomic uint64_t serials;
  e->serial = atomic_fetch_add_explicit(&serials, 1, memory_order_relaxed) + 1;
  e->types = arena_alloc(&e->mem, (size_t)(e->nparams + e->noutputs) * sizeof *e->types);
  e->bytes = arena_alloc(&e->mem, (size_t)(e->nparams + e->noutputs) * sizeof *e->bytes);
  if (!e->types || !e->bytes) return err_nomem();
  for (int i = 0; i < e->nparams + e->noutputs; i++) {
    val v = i < e->nparams ? ir_param_value(b->g, i) : ir_output_value(b->g, i - e->nparams);
    if (!(e->types[i] = ir_type_text(&e->mem, v))) return err_nomem();
    e->bytes[i] = ir_numel(v) * (int64_t)tpu_dtype_size((tpu_dtype)v->dtype);
  }
  TPU_TRY(ir_print(b->g, &e->text));
  e->text_hash = hash128_of(e->text.data, e->text.len).lo;
  program *p = program_known(&e->text);
  e->known = p != NULL;
  atomic_store(&e->prog, p);
  return NULL;
}

static tpu_err *finish(builder *b, call_entry *e, bool defer) {
  int before = ir_param_count(b->g);
  int *kept = arena_alloc(ir_arena(b->g), (size_t)(before + 1) * sizeof *kept);
  if (!kept) return err_nomem();
  graph_outputs(b, e);
  if (ir_failed(b->g)) return ir_take_error(b->g);
  int n = ir_prune_params(b->g, kept);
  e->params = arena_alloc(&e->mem, (size_t)(n + 1) * sizeof *e->params);
  if (!e->params) return err_nomem();
  for (int i = 0; i < n; i++) {
    e->params[i] = b->params[kept[i]];
    e->ndonated += e->params[i].donated;
  }
  e->nparams = n;
  e->rng_blocks = (uint64_t)b->rng_blocks;
  if (e->noutputs && defer) {
    TPU_TRY(keep_text(b, e));
  } else if (e->noutputs) {
    program *p;
    TPU_TRY(program_get(b->g, NULL, b->c->op->name, &p));
    atomic_store(&e->prog, p);
  }
  return e->mem.failed ? err_nomem() : NULL;
}

static tpu_err *build_row(builder *b, call_entry *e) {
  tpu_call *c = b->c;
  op_ctx_init(&b->ctx, b->g, c->op->name, c->args, c->nargs, &env, b);
  int read = c->nargs; /* the dtype of an `out` says nothing about what the row computes in */
  while (read > 1 && c->op->written[read - 1]) read--;
  TPU_TRY(accept_check(c->op->name, c->op->row->name, c->args, read));
  TPU_TRY(metas(b));
  int64_t begin = clock_ns();
  b->begun = true;
  c->op->row->build(&b->ctx);
  if (ir_failed(b->g)) return ir_take_error(b->g);
  TPU_TRY(collect(b, e));
  pthread_mutex_lock(&ex.program_lock);
  ex.stats.build_ns += clock_ns() - begin;
  pthread_mutex_unlock(&ex.program_lock);
  return ir_failed(b->g) ? ir_take_error(b->g) : NULL;
}

tpu_err *entry_record(tpu_call *c, call_state *cs, trace *t, call_entry *e, val **outs) {
  builder b;
  tpu_err *err = builder_init(&b, c, cs, t);
  if (!err) err = build_row(&b, e);
  mem_free(b.metas);
  e->rng_blocks = (uint64_t)b.rng_blocks;
  if (!err && t->cap) capture_drew(t, b.rng_blocks);
  else if (!err && c->rng) c->rng[1] += e->rng_blocks;
  /* in a capture, what was refused before it was built has left nothing behind, and may be asked in another way */
  if (err && !t->err && (b.begun || !t->cap)) t->err = err_copy(err);
  *outs = b.outs;
  return err;
}

tpu_err *entry_new(call_entry **out) {
  call_entry *e = *out = mem_calloc(sizeof *e);
  if (!e) return err_nomem();
  arena_init(&e->mem);
  buf_init(&e->text);
  atomic_init(&e->refs, 1);
  return NULL;
}

tpu_err *entry_build(tpu_call *c, call_state *cs, bool defer, call_entry **out) {
  *out = NULL;
  builder b;
  call_entry *e = NULL;
  tpu_err *err = builder_init(&b, c, cs, NULL);
  if (!err) err = entry_new(&e);
  if (!err) err = build_row(&b, e);
  if (!err) err = finish(&b, e, defer);
  mem_free(b.metas);
  if (b.g) ir_free(b.g);
  if (err) entry_release(e);
  else *out = e;
  return err;
}

tpu_err *entry_program(call_entry *e, const char *op_name, program **out) {
  *out = atomic_load_explicit(&e->prog, memory_order_acquire);
  if (*out) return NULL;
  TPU_TRY(program_of_text(&e->text, op_name, out));
  program *none = NULL;
  if (atomic_compare_exchange_strong(&e->prog, &none, *out)) return NULL;
  program_release(*out); /* another thread was faster */
  *out = none;
  return NULL;
}
