/* Capture: a recording that is kept. Its calls become one program, which is run again and again with other inputs:
 * torch.compile's graphs.
 *
 * Inputs are stores whose value is a parameter of the graph; nothing lies behind them. Numbers and the starts of views
 * are constants here, for the graph is compiled for them. A value that was on the device before becomes a parameter
 * that the graph holds on to. A random call takes the generator's state as it will be at the run, moved on by what
 * calls before it in the graph draw: so the numbers are those that the calls would have drawn one by one.
 *
 * An input is taken as it was captured: dense, the only tensor of its store, in one order of dimensions. A tensor that
 * lies in memory in another way has to be copied first, which is the adapter's part (tpu_fit). */
#include <string.h>

#include "exec/graph.h"
#include "exec/trace.h"

struct capture {
  graph_input *inputs;
  int ninputs, cap_inputs;
  dbuf *rng;
  int64_t blocks; /* drawn so far */
  val given;      /* the generator's state for now, in place of its own */
  bool refused;
  int regions;     /* of control flow that are open */
  const char *xla; /* tpu_capture_xla, or NULL */
  arena mem;       /* of what inputs point to */
};

/* ---- capturing ------------------------------------------------------------------------------------------------- */

tpu_err *tpu_capture_begin(int device) {
  TPU_TRY(ex_ready());
  if (trace_current()) return err_new(TPU_ERR_RUNTIME, "tpu: a capture cannot begin inside of a recording");
  if (device < 0 || device >= ex.ndevices)
    return err_new(TPU_ERR_RUNTIME, "tpu: device index %d is out of range: there are %d devices", device, ex.ndevices);
  trace *t;
  TPU_TRY(trace_new(device, &t));
  t->cap = mem_calloc(sizeof *t->cap);
  if (!t->cap) {
    trace_free(t);
    return err_nomem();
  }
  arena_init(&t->cap->mem);
  trace_set_current(t);
  return NULL;
}

static bool finish(trace *t) {
  capture *c = t->cap;
  bool refused = c->refused;
  trace_set_current(NULL);
  for (int i = 0; i < c->ninputs; i++) {
    tpu_store_release(c->inputs[i].s);
    dbuf_release(c->inputs[i].value);
  }
  trace_free(t);
  dbuf_release(c->rng);
  mem_free(c->inputs);
  arena_free(&c->mem);
  mem_free(c);
  return refused;
}

bool tpu_capture_drop(void) { return tpu_capturing() && finish(trace_current()); }

tpu_err *tpu_capture_for_tpu(void) {
  if (!tpu_capturing()) return err_new(TPU_ERR_RUNTIME, "tpu: no capture has begun");
  trace_current()->for_tpu = true;
  return NULL;
}

tpu_err *tpu_capture_sizes_vary(void) {
  if (!tpu_capturing()) return err_new(TPU_ERR_RUNTIME, "tpu: no capture has begun");
  ir_set_sizes_vary(trace_current()->g);
  return NULL;
}

tpu_err *tpu_capture_xla(const char *lines) {
  if (!tpu_capturing()) return err_new(TPU_ERR_RUNTIME, "tpu: no capture has begun");
  capture *c = trace_current()->cap;
  c->xla = arena_copy(&c->mem, lines, strlen(lines) + 1);
  return c->xla ? NULL : err_nomem();
}

tpu_err *capture_refuse(trace *t, const char *what) {
  t->cap->refused = true;
  return err_new(TPU_ERR_RUNTIME, "tpu: a graph that is compiled as one program cannot have an operator that %s", what);
}

tpu_err *tpu_capture_refuse(const char *what) {
  if (!tpu_capturing()) return err_new(TPU_ERR_RUNTIME, "tpu: no capture has begun");
  return capture_refuse(trace_current(), what);
}

/* A value that the run will provide. */
static tpu_err *placeholder(trace *t, tpu_dtype dtype, int ndim, const int64_t *dims, dbuf **out) {
  TPU_TRY(dbuf_pending(t->device, "an input of a graph", out));
  (*out)->trace = t;
  (*out)->value = ir_param(t->g, dtype, ndim, dims);
  tpu_err *e = ir_failed(t->g) ? ir_take_error(t->g) : trace_add_param(t, *out, (*out)->value);
  if (!e) return NULL;
  dbuf_release(*out);
  *out = NULL;
  return e;
}

tpu_err *tpu_capture_input(const tpu_tensor *like, tpu_store **out) {
  *out = NULL;
  if (!tpu_capturing()) return err_new(TPU_ERR_RUNTIME, "tpu: no capture has begun");
  trace *t = trace_current();
  capture *c = t->cap;
  if (c->ninputs == c->cap_inputs) {
    int cap = c->cap_inputs ? c->cap_inputs * 2 : 16;
    graph_input *p = mem_realloc(c->inputs, (size_t)cap * sizeof *p);
    if (!p) return err_nomem();
    c->inputs = p;
    c->cap_inputs = cap;
  }
  size_t size = tpu_dtype_size((tpu_dtype)like->dtype), n = (size_t)like->ndim * sizeof(int64_t);
  if (!size) return err_dtype(like->dtype);
  int64_t numel = 1;
  for (int i = 0; i < like->ndim; i++) numel *= like->sizes[i];
  graph_input in = {.ndim = like->ndim, .dtype = like->dtype, .nbytes = (size_t)numel * size};
  int64_t *dims = arena_alloc(&c->mem, n + 1);
  in.sizes = arena_copy(&c->mem, like->sizes, n);
  in.strides = arena_copy(&c->mem, like->strides, n);
  in.dims = dims;
  if (c->mem.failed) return err_nomem();
  if (numel && !store_natural_dims(like, in.nbytes, dims)) return NULL;
  ex_lock();
  tpu_err *e = store_new_locked(in.nbytes, t->device, &in.s);
  if (!e && numel) {
    e = placeholder(t, (tpu_dtype)in.dtype, in.ndim, dims, &in.value);
    if (!e) e = store_set_locked(in.s, dbuf_retain(in.value), (tpu_dtype)in.dtype, in.ndim, dims);
  }
  ex_unlock();
  if (e) {
    tpu_store_release(in.s);
    dbuf_release(in.value);
    return e;
  }
  c->inputs[c->ninputs++] = in;
  *out = tpu_store_retain(in.s);
  return NULL;
}

tpu_err *tpu_capture_mesh(int naxes, const char *const *names, const int64_t *sizes) {
  if (!tpu_capturing()) return err_new(TPU_ERR_RUNTIME, "tpu: no capture has begun");
  ir_graph *g = trace_current()->g;
  ir_set_mesh(g, naxes, names, sizes);
  return ir_failed(g) ? ir_take_error(g) : NULL;
}

/* A place says dims of the tensor; what is placed is its memory, whose dims may stand in another order. */
static void place_in_memory(const graph_input *in, int naxes, const int64_t *dims, int64_t *out) {
  int order[VIEW_MAX_DIMS];
  const tpu_tensor t = {.sizes = in->sizes, .strides = in->strides, .ndim = in->ndim, .dtype = in->dtype};
  int n = store_memory_order(&t, order);
  for (int a = 0; a < naxes; a++) {
    out[a] = dims[a]; /* one that it does not have is refused later */
    for (int k = 0; k < n; k++)
      if (order[k] == dims[a]) out[a] = k;
  }
}

tpu_err *tpu_capture_place(int i, const int64_t *dims) {
  if (!tpu_capturing()) return err_new(TPU_ERR_RUNTIME, "tpu: no capture has begun");
  trace *t = trace_current();
  capture *c = t->cap;
  if (i < 0 || i >= c->ninputs)
    return err_new(TPU_ERR_RUNTIME, "tpu: a capture of %d inputs has no input %d", c->ninputs, i);
  graph_input *in = &c->inputs[i];
  int n = ir_mesh_axes(t->g);
  if (!in->nbytes) return NULL;
  int64_t *p = arena_alloc(&c->mem, (size_t)(n + 1) * sizeof *p);
  if (!p) return err_nomem();
  place_in_memory(in, n, dims, p);
  in->place = p;
  ir_place_param(t->g, in->value->value, p);
  return ir_failed(t->g) ? ir_take_error(t->g) : NULL;
}

tpu_err *tpu_capture_constrain(const tpu_tensor *in, const int64_t *dims, tpu_store **out) {
  *out = NULL;
  if (!tpu_capturing()) return err_new(TPU_ERR_RUNTIME, "tpu: no capture has begun");
  trace *t = trace_current();
  val *v;
  TPU_TRY(capture_values(t, in, 1, &v));
  v[0] = ir_constrain(t->g, v[0], dims);
  return capture_stores(t, v, 1, out);
}

void capture_enter(trace *t, int by) { t->cap->regions += by; }

val capture_rng(trace *t) {
  capture *c = t->cap;
  if (c->regions) { /* how often it draws only the run knows */
    c->refused = true;
    return ir_fail(t->g, TPU_ERR_RUNTIME, "tpu: random numbers inside of control flow cannot be part of one program");
  }
  if (c->given) return c->given;
  const int64_t two[1] = {2};
  if (!c->rng) {
    tpu_err *e = placeholder(t, TPU_U64, 1, two, &c->rng);
    if (e) {
      val bad = ir_fail(t->g, tpu_err_get_kind(e), "%s", tpu_err_message(e));
      tpu_err_free(e);
      return bad;
    }
  }
  if (!c->blocks) return c->rng->value;
  val drawn = ir_const_ints(t->g, TPU_U64, (const int64_t[]){0, c->blocks}, 1, two);
  return ir_binary(t->g, IR_ADD, c->rng->value, drawn);
}

void capture_drew(trace *t, int64_t blocks) {
  if (!t->cap->given) t->cap->blocks += blocks;
}

/* ---- the end of a capture -------------------------------------------------------------------------------------- */

val trace_value(trace *t, const tpu_store *s) {
  return s->buf->trace == t ? s->buf->value : trace_param(t, s->buf, (tpu_dtype)s->dtype, s->ndim, s->dims);
}

tpu_err *tpu_capture_rng_state(tpu_store **out) {
  *out = NULL;
  if (!tpu_capturing()) return err_new(TPU_ERR_RUNTIME, "tpu: no capture has begun");
  trace *t = trace_current();
  val v = capture_rng(t);
  dbuf *d;
  TPU_TRY(dbuf_pending(t->device, "the generator's state", &d));
  d->trace = t;
  d->value = v;
  tpu_err *e = ir_failed(t->g) ? ir_take_error(t->g) : trace_add_made(t, d);
  ex_lock();
  if (!e) e = store_new_locked(16, t->device, out);
  if (!e) e = store_set_locked(*out, dbuf_retain(d), TPU_U64, 1, (const int64_t[]){2});
  ex_unlock();
  dbuf_release(d);
  if (!e) return NULL;
  tpu_store_release(*out);
  *out = NULL;
  return e;
}

tpu_err *tpu_capture_use_rng(const tpu_tensor *state) {
  if (!tpu_capturing()) return err_new(TPU_ERR_RUNTIME, "tpu: no capture has begun");
  trace *t = trace_current();
  t->cap->given = NULL;
  if (!state) return NULL;
  const tpu_store *s = state->store;
  if (!s || !s->buf || s->dtype != TPU_U64 || s->ndim != 1 || s->dims[0] != 2)
    return err_new(TPU_ERR_RUNTIME, "tpu: a generator's state is a tensor of two uint64 on the device");
  t->cap->given = trace_value(t, s);
  return NULL;
}

static int input_of(const capture *c, const tpu_store *s) {
  for (int i = 0; i < c->ninputs; i++)
    if (c->inputs[i].s == s) return i;
  return -1;
}

/* The store's value as an output of the program, and where it goes. */
static void add_place(trace *t, tpu_graph *g, const tpu_store *s, int store, int in) {
  call_entry *e = g->e;
  graph_place *p = &g->places[g->nplaces++];
  *p = (graph_place){store, in, -1, s->nbytes};
  if (!s->buf) return;
  int alias = -1;
  const graph_input *i = in >= 0 ? &g->inputs[in] : NULL;
  if (i && s->dtype == i->dtype && s->ndim == i->ndim && !memcmp(s->dims, i->dims, (size_t)s->ndim * sizeof *s->dims))
    for (int k = 0; k < t->nparams; k++)
      if (t->params[k] == t->cap->inputs[in].value) alias = k;
  ir_output(t->g, trace_value(t, s), alias);
  if (alias >= 0 && i->place) ir_place_output(t->g, e->noutputs, i->place);
  p->output = e->noutputs++;
  out_spec *o = &e->outs[e->nouts++];
  *o = (out_spec){.output = p->output, .base_dtype = s->dtype, .base_ndim = s->ndim};
  o->base_dims = arena_copy(&e->mem, s->dims, (size_t)s->ndim * sizeof *s->dims);
  if (alias >= 0) e->params[alias].donated = true;
}

static tpu_err *describe(trace *t, tpu_graph *g, const tpu_tensor *outputs, int n) {
  capture *c = t->cap;
  g->ninputs = c->ninputs;
  g->nresults = n;
  g->inputs = arena_alloc(&g->mem, (size_t)(c->ninputs + IR_MAX_SYMBOLS) * sizeof *g->inputs);
  g->results = arena_alloc(&g->mem, (size_t)(n + 1) * sizeof *g->results);
  g->places = arena_alloc(&g->mem, (size_t)(c->ninputs + n + 1) * sizeof *g->places);
  tpu_store **stores = arena_alloc(&g->mem, (size_t)(n + 1) * sizeof *stores);
  call_entry *e = g->e;
  e->outs = arena_alloc(&e->mem, (size_t)(c->ninputs + n + 1) * sizeof *e->outs);
  int cap_params = t->nparams + n + c->ninputs + IR_MAX_SYMBOLS; /* outputs may add constants */
  e->params = arena_alloc(&e->mem, (size_t)cap_params * sizeof *e->params);
  if (g->mem.failed || e->mem.failed) return err_nomem();
  for (int i = 0; i < c->ninputs; i++) {
    graph_input *in = &g->inputs[i];
    *in = c->inputs[i];
    size_t bytes = (size_t)in->ndim * sizeof(int64_t);
    in->sizes = arena_copy(&g->mem, in->sizes, bytes);
    in->strides = arena_copy(&g->mem, in->strides, bytes);
    in->dims = arena_copy(&g->mem, in->dims, bytes);
    in->s = NULL;
    in->value = NULL;
    if (g->mem.failed) return err_nomem();
  }
  for (int i = 0; i < n; i++) {
    const tpu_tensor *o = &outputs[i];
    tpu_graph_result *r = &g->results[i];
    size_t bytes = (size_t)o->ndim * sizeof(int64_t);
    *r = (tpu_graph_result){.store = -1, .input = input_of(c, o->store)};
    r->dtype = o->dtype;
    r->ndim = o->ndim;
    r->offset = o->offset;
    r->sizes = arena_copy(&g->mem, o->sizes, bytes);
    r->strides = arena_copy(&g->mem, o->strides, bytes);
    if (r->input >= 0) {
      g->inputs[r->input].used = true;
      continue;
    }
    for (int k = 0; k < g->nstores && r->store < 0; k++)
      if (stores[k] == o->store) r->store = k;
    if (r->store >= 0) continue;
    r->store = g->nstores;
    stores[g->nstores++] = o->store;
    add_place(t, g, o->store, r->store, -1);
  }
  for (int i = 0; i < c->ninputs; i++) {
    const tpu_store *s = c->inputs[i].s;
    if (s->buf == c->inputs[i].value) continue;
    if (!s->buf || s->nbytes != c->inputs[i].nbytes)
      return capture_refuse(t, "changes the size of the storage of one of its inputs");
    g->inputs[i].written = true;
    add_place(t, g, s, -1, i);
  }
  return g->mem.failed || e->mem.failed ? err_nomem() : NULL;
}

/* What each parameter of the pruned graph is. */
static tpu_err *parameters(trace *t, tpu_graph *g) {
  capture *c = t->cap;
  call_entry *e = g->e;
  int *kept = arena_alloc(&g->mem, (size_t)(t->nparams + IR_MAX_SYMBOLS) * sizeof *kept);
  g->constants = arena_alloc(&g->mem, (size_t)(t->nparams + 1) * sizeof *g->constants);
  if (!kept || !g->constants) return err_nomem();
  e->nparams = ir_prune_params(t->g, kept);
  for (int i = 0; i < e->nparams; i++) {
    param_spec *p = &e->params[i]; /* kept[i] >= i */
    if (kept[i] >= t->nparams) {   /* a symbol of a bucket */
      *p = (param_spec){.kind = PARAM_STORE, .elem = c->ninputs + kept[i] - t->nparams};
      continue;
    }
    dbuf *d = t->params[kept[i]];
    *p = (param_spec){.kind = PARAM_CONSTANT, .donated = e->params[kept[i]].donated, .elem = g->nconstants};
    e->ndonated += p->donated;
    if (d == c->rng) {
      p->kind = PARAM_RNG;
    } else if (d->trace != t) {
      g->constants[g->nconstants++] = dbuf_retain(d);
    } else {
      p->kind = PARAM_STORE;
      for (p->elem = 0; c->inputs[p->elem].value != d;) p->elem++;
      g->inputs[p->elem].used = true;
    }
  }
  e->rng_blocks = (uint64_t)c->blocks;
  return NULL;
}

/* ---- buckets --------------------------------------------------------------------------------------------------- */

enum { ATOM_NUMBERS = 2 + IR_MAX_SYMBOLS }; /* of an atom in a layout: size, c, k */

static int64_t *write_layout(arena *mem, const ir_extent *dims, int ndim) {
  int64_t n = ndim;
  for (int d = 0; d < ndim; d++) n += dims[d].natoms * ATOM_NUMBERS;
  int64_t *out = arena_alloc(mem, (size_t)(n + 1) * sizeof *out), *p = out;
  if (!out) return NULL;
  *p++ = n;
  for (int d = 0; d < ndim; d++) {
    *p++ = dims[d].natoms;
    for (int i = 0; i < dims[d].natoms; i++, p += ATOM_NUMBERS) {
      const ir_atom *a = &dims[d].atoms[i];
      p[0] = a->size;
      p[1] = a->count.c;
      memcpy(p + 2, a->count.k, sizeof a->count.k);
    }
  }
  return out;
}

static ir_extent *read_layout(arena *mem, const int64_t *p, int ndim) {
  ir_extent *dims = arena_alloc(mem, (size_t)(ndim + 1) * sizeof *dims);
  for (int d = 0; dims && d < ndim; d++) {
    dims[d].natoms = (int)*p++;
    dims[d].atoms = arena_alloc(mem, (size_t)(dims[d].natoms + 1) * sizeof *dims[d].atoms);
    for (int i = 0; dims[d].atoms && i < dims[d].natoms; i++, p += ATOM_NUMBERS) {
      ir_atom *a = &dims[d].atoms[i];
      a->size = p[0];
      a->count.c = p[1];
      memcpy(a->count.k, p + 2, sizeof a->count.k);
      a->known = true;
      for (int k = 0; k < IR_MAX_SYMBOLS; k++) a->dynamic = a->dynamic || a->count.k[k];
    }
  }
  return mem->failed ? NULL : dims;
}

/* An input or result that is flat from now on. */
static bool flatten(arena *mem, int64_t n, int32_t *ndim, const int64_t **sizes, const int64_t **strides) {
  static const int64_t one[1] = {1};
  *ndim = 1;
  *strides = one;
  return (*sizes = arena_copy(mem, &n, sizeof n)) != NULL;
}

static tpu_err *flat_inputs(trace *t, tpu_graph *g, const int *of_param) {
  for (int k = 0; k < t->nparams; k++) {
    val v = ir_param_value(t->g, k);
    if (of_param[k] < 0) continue;
    graph_input *in = &g->inputs[of_param[k]];
    if (v->ndim == in->ndim && !memcmp(v->dims, in->dims, (size_t)v->ndim * sizeof *v->dims)) continue;
    if (!flatten(&g->mem, v->dims[0], &in->ndim, &in->sizes, &in->strides)) return err_nomem();
    in->dims = in->sizes;
  }
  return NULL;
}

/* Results in stores whose values are flat now. */
static tpu_err *flat_results(trace *t, tpu_graph *g, const ir_bucket_spec *spec) {
  int64_t dims[VIEW_MAX_DIMS];
  for (int i = 0; i < g->nplaces; i++) {
    const graph_place *p = &g->places[i];
    if (p->output < 0 || !spec->outputs[p->output]) continue;
    out_spec *o = &g->e->outs[p->output];
    int ndim = o->base_ndim;
    bool flat = spec->pack[p->output];
    if (flat) {
      int64_t n = 1;
      for (int d = 0; d < ndim; d++) n *= o->base_dims[d];
      o->base_ndim = 1;
      o->base_dims = arena_copy(&g->e->mem, &n, sizeof n);
      if (!o->base_dims) return err_nomem();
    }
    for (int r = 0; r < g->nresults; r++) {
      tpu_graph_result *to = &g->results[r];
      if (to->store != p->store) continue;
      const tpu_tensor like = {
          .sizes = to->sizes, .strides = to->strides, .offset = to->offset, .ndim = to->ndim, .dtype = to->dtype};
      ir_extent *extents = arena_alloc(&g->mem, (size_t)(to->ndim + 1) * sizeof *extents);
      if (!extents) return err_nomem();
      if (to->ndim > VIEW_MAX_DIMS || to->offset || to->dtype != o->base_dtype ||
          !store_natural_dims(&like, p->nbytes, dims) ||
          !ir_regroup(&g->mem, spec->outputs[p->output], ndim, dims, to->ndim, extents))
        return capture_refuse(t, "gives a part of a value whose size changes");
      g->layouts[r] = write_layout(&g->mem, extents, to->ndim);
      if (!g->layouts[r]) return err_nomem();
      if (flat && !flatten(&g->mem, o->base_dims[0], &to->ndim, &to->sizes, &to->strides)) return err_nomem();
    }
  }
  return NULL;
}

static tpu_err *make_bucket(trace *t, tpu_graph *g, const tpu_bucket *b) {
  capture *c = t->cap;
  int n = t->nparams, m = g->e->noutputs;
  ir_graph **samples = arena_alloc(&g->mem, (size_t)(b->nsamples + 1) * sizeof *samples);
  int *of_param = arena_alloc(&g->mem, (size_t)(n + 1) * sizeof *of_param);
  ir_extent **params = arena_alloc(&g->mem, (size_t)(n + 1) * sizeof *params);
  ir_extent **outputs = arena_alloc(&g->mem, (size_t)(m + 1) * sizeof *outputs);
  bool *pack = arena_alloc(&g->mem, (size_t)(m + 1)), *written = arena_alloc(&g->mem, (size_t)(m + 1));
  g->layouts = arena_alloc(&g->mem, (size_t)(g->nresults + 1) * sizeof *g->layouts);
  if (g->mem.failed) return err_nomem();
  if (b->nsymbols > IR_MAX_SYMBOLS) return capture_refuse(t, "has more than four sizes that change");
  for (int r = 0; r < g->nresults; r++)
    if (g->results[r].input >= 0) return capture_refuse(t, "gives back an input, in a bucket");
  for (int i = 0; i < b->nsamples; i++) {
    const tpu_graph *s = b->samples[i];
    samples[i] = s->sample;
    if (!s->sample || s->blocks != c->blocks)
      return capture_refuse(t, "draws a number of random numbers that depends on sizes");
  }
  for (int k = 0; k < n; k++) {
    of_param[k] = -1;
    for (int i = 0; i < c->ninputs; i++)
      if (c->inputs[i].value == t->params[k]) of_param[k] = i;
    const int64_t *layout = of_param[k] >= 0 && b->layouts ? b->layouts[of_param[k]] : NULL;
    if (layout && !(params[k] = read_layout(&g->mem, layout, c->inputs[of_param[k]].ndim))) return err_nomem();
  }
  for (int i = 0; i < g->nplaces; i++) {
    const graph_place *p = &g->places[i];
    if (p->output < 0) continue;
    written[p->output] = p->input >= 0;
    bool all = true;
    for (int r = 0; r < g->nresults; r++)
      if (p->store >= 0 && g->results[r].store == p->store) {
        pack[p->output] = pack[p->output] || b->flat[r];
        all = all && b->flat[r];
      }
    if (pack[p->output] && !all) return capture_refuse(t, "gives a value whose size changes in two ways");
  }
  ir_bucket_spec spec = {.nsymbols = b->nsymbols,
                         .nsamples = b->nsamples,
                         .samples = samples,
                         .sizes = b->values,
                         .params = params,
                         .pack = pack,
                         .written = written,
                         .outputs = outputs};
  TPU_TRY(ir_bucket(t->g, &spec));
  TPU_TRY(flat_inputs(t, g, of_param));
  TPU_TRY(flat_results(t, g, &spec));
  for (int i = 0; i < b->nsymbols; i++) {
    static const int64_t none[1];
    g->inputs[g->ninputs++] = (graph_input){
        .dtype = TPU_I64, .used = true, .nbytes = sizeof(int64_t), .sizes = none, .strides = none, .dims = none};
  }
  return NULL;
}

const int64_t *tpu_graph_layout(const tpu_graph *g, int result, int *n) {
  const int64_t *p = g->layouts && result >= 0 && result < g->nresults ? g->layouts[result] : NULL;
  *n = p ? (int)p[0] : 0;
  return p ? p + 1 : NULL;
}

/* What a capture ends as. */
typedef enum { END_PROGRAM, END_TEXT, END_SAMPLE } ending;

static tpu_err *build(trace *t, tpu_graph *g, const tpu_tensor *outputs, int n, const char *name, ending as,
                      const tpu_bucket *bucket) {
  if (t->err) return err_copy(t->err);
  TPU_TRY(entry_new(&g->e));
  ex_lock();
  tpu_err *err = describe(t, g, outputs, n);
  ex_unlock();
  if (err) return err;
  if (ir_failed(t->g)) return ir_take_error(t->g);
  if (as == END_SAMPLE) {
    ir_graph *rest = ir_new();
    if (!rest) return err_nomem();
    g->sample = t->g;
    g->blocks = t->cap->blocks;
    t->g = rest;
    return NULL;
  }
  if (bucket) TPU_TRY(make_bucket(t, g, bucket));
  TPU_TRY(parameters(t, g));
  g->e->name = arena_copy(&g->e->mem, name, strlen(name) + 1);
  if (!g->e->name) return err_nomem();
  if (!g->e->noutputs) return NULL;
  if (as == END_TEXT) {
    TPU_TRY(ir_print(t->g, &g->e->text));
    if (t->cap->xla) buf_str(&g->e->text, t->cap->xla);
    return g->e->text.failed ? err_nomem() : NULL;
  }
  program *p;
  TPU_TRY(program_get(t->g, t->cap->xla, name, &p));
  graph_set_program(g, p);
  return NULL;
}

void graph_set_program(tpu_graph *g, program *take_p) {
  atomic_store(&g->e->prog, take_p);
  tnode *programs, *entries;
  ex_lock();
  program_trim_locked(&programs, &entries);
  ex_unlock();
  program_dropped(programs, entries);
}

static tpu_err *end(const tpu_tensor *outputs, int noutputs, const char *op, const char *name, ending as,
                    const tpu_bucket *bucket, tpu_graph **out) {
  *out = NULL;
  if (!tpu_capturing()) return err_new(TPU_ERR_RUNTIME, "tpu: no capture has begun");
  trace *t = trace_current();
  tpu_graph *g = mem_calloc(sizeof *g);
  if (!g) return err_nomem();
  arena_init(&g->mem);
  g->device = t->device;
  g->op = op;
  tpu_err *e = build(t, g, outputs, noutputs, name, as, bucket);
  if (e) {
    tpu_graph_release(g);
    return e; /* the capture goes on: its owner drops it, and learns whether it was refused */
  }
  finish(t);
  *out = g;
  return NULL;
}

tpu_err *tpu_capture_end(const tpu_tensor *outputs, int noutputs, const char *op, const char *name, tpu_graph **out) {
  return end(outputs, noutputs, op, name, END_PROGRAM, NULL, out);
}

tpu_err *tpu_capture_end_text(const tpu_tensor *outputs, int noutputs, const char *op, const char *name,
                              tpu_graph **out) {
  return end(outputs, noutputs, op, name, END_TEXT, NULL, out);
}

tpu_err *tpu_capture_end_sample(const tpu_tensor *outputs, int noutputs, tpu_graph **out) {
  return end(outputs, noutputs, "sample", "sample", END_SAMPLE, NULL, out);
}

tpu_err *tpu_capture_end_bucket(const tpu_tensor *outputs, int noutputs, const char *op, const char *name,
                                const tpu_bucket *bucket, tpu_graph **out) {
  return end(outputs, noutputs, op, name, END_PROGRAM, bucket, out);
}

void tpu_graph_release(tpu_graph *g) {
  if (!g) return;
  for (int i = 0; i < g->nconstants; i++) dbuf_release(g->constants[i]);
  entry_release(g->e);
  ir_free(g->sample);
  arena_free(&g->mem);
  mem_free(g);
}

/* ---- what a graph is ------------------------------------------------------------------------------------------- */

void tpu_graph_describe(const tpu_graph *g, tpu_graph_info *out) {
  *out = (tpu_graph_info){g->device, g->ninputs, g->nstores, g->nresults, g->e->rng_blocks > 0};
}

const tpu_graph_result *tpu_graph_get_result(const tpu_graph *g, int i) {
  return i >= 0 && i < g->nresults ? &g->results[i] : NULL;
}

const char *tpu_graph_text(const tpu_graph *g) { return g->e->text.len ? g->e->text.data : ""; }

void tpu_graph_hash(const tpu_graph *g, char out[33]) {
  program *p = atomic_load(&g->e->prog);
  out[0] = 0;
  if (p) hash128_hex(p->name, out);
}

void tpu_graph_entry(const tpu_graph *g, char out[33]) {
  program *p = atomic_load(&g->e->prog);
  out[0] = 0;
  if (p && (p->entry.hi || p->entry.lo)) hash128_hex(p->entry, out);
}

int64_t tpu_graph_blocks(const tpu_graph *g) { return (int64_t)g->e->rng_blocks; }

int tpu_graph_parameter(const tpu_graph *g, int i) {
  if (i < 0 || i >= g->e->nparams) return -3;
  const param_spec *p = &g->e->params[i];
  return p->kind == PARAM_STORE ? p->elem : p->kind == PARAM_RNG ? -1 : -2;
}

int tpu_graph_output(const tpu_graph *g, int i) {
  if (i < 0 || i >= g->e->noutputs) return -3;
  for (int k = 0; k < g->nplaces; k++)
    if (g->places[k].output == i) return g->places[k].input;
  return -3;
}

bool tpu_graph_get_output(const tpu_graph *g, int i, tpu_tensor *out) {
  *out = (tpu_tensor){0};
  for (int k = 0; k < g->e->nouts; k++) {
    const out_spec *o = &g->e->outs[k];
    if (o->output != i) continue;
    *out = (tpu_tensor){.sizes = o->base_dims, .ndim = o->base_ndim, .dtype = o->base_dtype};
    return true;
  }
  return false;
}

bool tpu_graph_get_store(const tpu_graph *g, int k, size_t *nbytes, int *output) {
  for (int i = 0; i < g->nplaces; i++) {
    const graph_place *p = &g->places[i];
    if (p->store != k) continue;
    *nbytes = p->nbytes;
    *output = p->output;
    return true;
  }
  return false;
}

bool tpu_graph_donated(const tpu_graph *g, int i) { return i >= 0 && i < g->e->nparams && g->e->params[i].donated; }

void tpu_graph_get_input(const tpu_graph *g, int i, tpu_tensor *out) {
  const graph_input *in = &g->inputs[i];
  *out = (tpu_tensor){
      .sizes = in->sizes, .strides = in->strides, .ndim = in->ndim, .dtype = in->dtype, .device = (int16_t)g->device};
}

/* ---- running --------------------------------------------------------------------------------------------------- */

static tpu_err *mismatch(int which, const graph_input *in, const tpu_tensor *t) {
  buf b;
  buf_init(&b);
  for (int k = 0; k < 2; k++) {
    int ndim = k ? t->ndim : in->ndim;
    buf_printf(&b, "%s%s[", k ? ", got " : "", tpu_dtype_name((tpu_dtype)(k ? t->dtype : in->dtype)));
    for (int i = 0; i < ndim; i++) buf_printf(&b, "%s%lld", i ? ", " : "", (long long)(k ? t->sizes[i] : in->sizes[i]));
    buf_char(&b, ']');
  }
  tpu_err *e = b.failed ? err_nomem()
                        : err_new(TPU_ERR_RUNTIME, "tpu: input %d of a compiled graph: expected %s", which, b.data);
  buf_free(&b);
  return e;
}

/* Whether the input lies in memory as it was captured. Under ex.lock. */
static bool fits(const graph_input *in, const tpu_tensor *t) {
  const tpu_store *s = t->store;
  if (!in->nbytes || !(in->used || in->written)) return true;
  if (t->offset || t->flags || s->nbytes != in->nbytes) return false;
  for (int k = 0; k < in->ndim; k++)
    if (t->strides[k] != in->strides[k] && t->sizes[k] != 1) return false;
  if (!in->used) return true;
  return s->buf && s->dtype == in->dtype && s->ndim == in->ndim &&
         !memcmp(s->dims, in->dims, (size_t)s->ndim * sizeof *s->dims);
}

static tpu_err *check_locked(const tpu_graph *g, const tpu_tensor *inputs, tpu_fit *fit, int *which, dbuf **foreign) {
  for (int i = 0; i < g->ninputs; i++) {
    const graph_input *in = &g->inputs[i];
    const tpu_tensor *t = &inputs[i];
    *which = i;
    if (t->dtype != in->dtype || t->ndim != in->ndim ||
        memcmp(t->sizes, in->sizes, (size_t)in->ndim * sizeof *in->sizes) != 0)
      return mismatch(i, in, t);
    if (!t->store) { /* a number on the CPU */
      if (t->ndim || in->written) return err_new(TPU_ERR_RUNTIME, "tpu: input %d of a graph is on the CPU", i);
      continue;
    }
    if (t->device != g->device)
      return err_new(TPU_ERR_RUNTIME, "tpu: a graph compiled for tpu:%d got an input on tpu:%d", g->device, t->device);
    if (!fits(in, t)) {
      *fit = in->written ? TPU_FIT_WRITTEN : TPU_FIT_COPY;
      return NULL;
    }
    dbuf *d = t->store->buf;
    if (d && d->trace) {
      *foreign = dbuf_retain(d);
      return NULL;
    }
  }
  return NULL;
}

/* bufs: the program's inputs, then its pending outputs; *n: how many there are, also on failure. */
static tpu_err *gather_locked(const tpu_graph *g, const tpu_tensor *inputs, uint64_t *rng, dbuf **bufs, int *n) {
  const call_entry *e = g->e;
  for (int i = 0; i < e->nparams; i++) {
    const param_spec *p = &e->params[i];
    dbuf *d = NULL;
    if (p->kind == PARAM_RNG) {
      TPU_TRY(call_rng(g->device, rng, e->rng_blocks, &d));
    } else if (p->kind == PARAM_CONSTANT) {
      d = dbuf_retain(g->constants[p->elem]);
    } else if (inputs[p->elem].store) {
      d = dbuf_retain(inputs[p->elem].store->buf);
    } else {
      op_host_number number;
      const tpu_value v = {.tag = TPU_TENSOR, .u.tensor = &inputs[p->elem]};
      if (!op_read_number(&v, 0, &number)) return err_new(TPU_ERR_RUNTIME, "input %d of a graph is no number", p->elem);
      TPU_TRY(number_get_locked(&number, (tpu_dtype)inputs[p->elem].dtype, g->device, &d));
    }
    bufs[(*n)++] = d;
  }
  for (int i = 0; i < e->noutputs; i++) {
    TPU_TRY(dbuf_pending(g->device, g->op, &bufs[*n]));
    ++*n;
  }
  return NULL;
}

static tpu_err *bind_locked(const tpu_graph *g, const tpu_tensor *inputs, dbuf **outs, tpu_store **made) {
  const call_entry *e = g->e;
  for (int i = 0; i < g->nplaces; i++) /* what can fail for want of memory comes first */
    if (g->places[i].store >= 0) TPU_TRY(store_new_locked(g->places[i].nbytes, g->device, &made[g->places[i].store]));
  for (int i = 0; i < g->nplaces; i++) {
    const graph_place *p = &g->places[i];
    if (p->output < 0) continue;
    const out_spec *o = &e->outs[p->output];
    tpu_store *s = p->store >= 0 ? made[p->store] : inputs[p->input].store;
    TPU_TRY(store_set_locked(s, dbuf_retain(outs[p->output]), (tpu_dtype)o->base_dtype, o->base_ndim, o->base_dims));
  }
  return NULL;
}

static tpu_err *run_locked(tpu_graph *g, const tpu_tensor *inputs, uint64_t *rng, tpu_store **made) {
  call_entry *e = g->e;
  dbuf *few[64], **bufs = few, **waits = NULL;
  int n = 0, room = e->nparams + e->noutputs;
  tpu_err *err = NULL;
  ex.stats.calls++;
  defer_flush_locked(g->device, FLUSH_MODE);
  if (room > 64 && !(bufs = mem_alloc((size_t)room * sizeof *bufs))) err = err_nomem();
  if (!err && e->noutputs && atomic_load_explicit(&ex.mode, memory_order_relaxed) == TPU_DEBUG &&
      !(waits = mem_calloc((size_t)e->noutputs * sizeof *waits)))
    err = err_nomem();
  if (!err && e->noutputs) err = gather_locked(g, inputs, rng, bufs, &n);
  if (!err) err = bind_locked(g, inputs, bufs + e->nparams, made);
  for (int i = 0; !err && waits && i < e->noutputs; i++) waits[i] = dbuf_retain(bufs[e->nparams + i]);
  if (!err && e->noutputs) {
    ex.stats.executions++;
    ex_made_last_locked(g->device, bufs[n - 1]);
    queue_run(e, g->device, bufs);
  }
  ex_unlock();
  for (int i = 0; err && i < n; i++) {
    if (i >= e->nparams) dbuf_fill(bufs[i], NULL, err_new(TPU_ERR_RUNTIME, "the graph failed before it ran"));
    dbuf_release(bufs[i]);
  }
  if (!err && waits) err = call_debug_wait(e, waits);
  mem_free(waits);
  if (bufs != few) mem_free(bufs);
  return err;
}

tpu_err *tpu_graph_run(tpu_graph *g, const tpu_tensor *inputs, int n, uint64_t *rng, tpu_store **made, tpu_fit *fit,
                       int *which) {
  *fit = TPU_FIT_YES;
  for (int i = 0; i < g->nstores; i++) made[i] = NULL;
  TPU_TRY(ex_ready());
  if (n != g->ninputs)
    return err_new(TPU_ERR_RUNTIME, "tpu: a compiled graph takes %d inputs, but got %d", g->ninputs, n);
  trace *t = trace_current();
  if (t) TPU_TRY(t->cap ? capture_refuse(t, "runs another compiled graph") : trace_flush(t));
  for (;;) {
    dbuf *foreign = NULL;
    ex_lock();
    tpu_err *e = check_locked(g, inputs, fit, which, &foreign);
    if (!e && !foreign && *fit == TPU_FIT_YES) {
      e = run_locked(g, inputs, rng, made);
      for (int i = 0; e && i < g->nstores; i++) {
        tpu_store_release(made[i]);
        made[i] = NULL;
      }
      return e ? err_wrap(e, "%s", g->op) : NULL;
    }
    ex_unlock();
    if (e || !foreign) return e;
    call_wait_foreign(foreign);
  }
}
