/* Graphs that were not captured here: a program as StableHLO, or as what the plugin once made of it, given with what it
 * takes and gives. */
#include <string.h>

#include "exec/graph.h"

/* The bytes of a dense tensor. */
static tpu_err *bytes_of(const tpu_tensor *t, const char *what, int which, size_t *out) {
  size_t n = tpu_dtype_size((tpu_dtype)t->dtype);
  if (!n) return err_dtype(t->dtype);
  for (int i = 0; i < t->ndim; i++)
    if (t->sizes[i] < 0 || __builtin_mul_overflow(n, (size_t)t->sizes[i], &n))
      return err_new(TPU_ERR_VALUE, "tpu: %s %d of a given program has more elements than memory can hold", what,
                     which);
  *out = n;
  return NULL;
}

static tpu_err *empty(const char *what, int which) {
  return err_new(TPU_ERR_VALUE, "tpu: %s %d of a given program has no elements: take it out of the program", what,
                 which);
}

static const int64_t *strides_of(arena *a, const tpu_tensor *t) {
  int64_t *out = arena_alloc(a, (size_t)t->ndim * sizeof *out + 1), n = 1;
  for (int i = t->ndim; out && i-- > 0; n *= t->sizes[i]) out[i] = n;
  return out;
}

static tpu_err *take_inputs(tpu_graph *g, const tpu_given *given) {
  g->ninputs = given->ninputs;
  g->inputs = arena_alloc(&g->mem, (size_t)(given->ninputs + 1) * sizeof *g->inputs);
  if (!g->inputs) return err_nomem();
  for (int i = 0; i < given->ninputs; i++) {
    const tpu_tensor *t = &given->inputs[i];
    graph_input *in = &g->inputs[i];
    in->ndim = t->ndim;
    in->dtype = t->dtype;
    TPU_TRY(bytes_of(t, "input", i, &in->nbytes));
    size_t bytes = (size_t)t->ndim * sizeof *t->sizes;
    in->sizes = in->dims = arena_copy(&g->mem, t->sizes, bytes);
    if (!t->strides || !in->nbytes) {
      in->strides = strides_of(&g->mem, t);
      continue;
    }
    int64_t *dims = arena_alloc(&g->mem, bytes + 1);
    in->strides = arena_copy(&g->mem, t->strides, bytes);
    if (g->mem.failed) return err_nomem();
    if (t->offset || !store_natural_dims(t, in->nbytes, dims))
      return err_new(TPU_ERR_VALUE, "tpu: input %d of a given program is not dense", i);
    in->dims = dims;
  }
  return NULL;
}

static tpu_err *take_parameters(tpu_graph *g, const tpu_given *given) {
  call_entry *e = g->e;
  e->nparams = given->nparameters;
  e->rng_blocks = (uint64_t)given->blocks;
  e->params = arena_alloc(&e->mem, (size_t)(given->nparameters + 1) * sizeof *e->params);
  if (!e->params) return err_nomem();
  for (int i = 0; i < given->nparameters; i++) {
    int k = given->parameters[i];
    if (k < -1 || k >= given->ninputs || (k < 0 && given->blocks <= 0))
      return err_new(TPU_ERR_VALUE, "tpu: parameter %d of a given program: there is no input %d", i, k);
    if (k >= 0 && !g->inputs[k].nbytes) return empty("parameter", i);
    /* the text may say that an output takes its place: then it is kept from that while somebody holds it */
    e->params[i] = (param_spec){.kind = k < 0 ? PARAM_RNG : PARAM_STORE, .elem = k, .donated = true};
    if (k >= 0) g->inputs[k].used = true;
  }
  e->ndonated = e->nparams;
  return NULL;
}

/* Whether a view lies inside of so many bytes. */
static bool inside(const tpu_graph_result *r, size_t nbytes) {
  int64_t last = r->offset, step;
  size_t size = tpu_dtype_size((tpu_dtype)r->dtype);
  if (!size || r->offset < 0) return false;
  for (int d = 0; d < r->ndim; d++) {
    if (r->sizes[d] < 0 || r->strides[d] < 0) return false;
    if (!r->sizes[d]) return true;
    if (__builtin_mul_overflow(r->sizes[d] - 1, r->strides[d], &step) || __builtin_add_overflow(last, step, &last))
      return false;
  }
  return (uint64_t)last < nbytes / size;
}

static tpu_err *take_results(tpu_graph *g, const tpu_given *given) {
  for (int i = 0; i < given->nresults; i++) {
    const tpu_graph_result *from = &given->results[i];
    tpu_graph_result *r = &g->results[g->nresults++];
    size_t bytes = (size_t)from->ndim * sizeof *from->sizes, nbytes = 0;
    *r = *from;
    r->sizes = arena_copy(&g->mem, from->sizes, bytes);
    r->strides = arena_copy(&g->mem, from->strides, bytes);
    if (g->mem.failed) return err_nomem();
    bool known = r->input >= 0 && r->input < g->ninputs && r->store == -1;
    if (known) {
      nbytes = g->inputs[r->input].nbytes;
      g->inputs[r->input].used = true;
    }
    for (int k = 0; k < g->nplaces && r->input == -1 && !known; k++) {
      known = r->store >= 0 && g->places[k].store == r->store;
      nbytes = g->places[k].nbytes;
    }
    if (!known) return err_new(TPU_ERR_VALUE, "tpu: result %d of a given program is a view of nothing", i);
    if (!inside(r, nbytes))
      return err_new(TPU_ERR_VALUE, "tpu: result %d of a given program does not lie in its storage of %zu bytes", i,
                     nbytes);
  }
  return NULL;
}

static tpu_err *take_outputs(tpu_graph *g, const tpu_given *given) {
  call_entry *e = g->e;
  int n = given->noutputs, most = n > given->nresults ? n : given->nresults;
  e->outs = arena_alloc(&e->mem, (size_t)(n + 1) * sizeof *e->outs);
  g->places = arena_alloc(&g->mem, (size_t)(n + given->nempty + 1) * sizeof *g->places);
  g->results = arena_alloc(&g->mem, (size_t)(most + 1) * sizeof *g->results);
  if (!e->outs || !g->places || !g->results) return err_nomem();
  for (int i = 0; i < n; i++) {
    const tpu_tensor *t = &given->outputs[i];
    size_t nbytes;
    TPU_TRY(bytes_of(t, "output", i, &nbytes));
    if (!nbytes) return empty("output", i);
    const int64_t *dims = arena_copy(&e->mem, t->sizes, (size_t)t->ndim * sizeof *t->sizes);
    e->outs[e->nouts++] =
        (out_spec){.output = i, .base_dtype = t->dtype, .base_ndim = (int16_t)t->ndim, .base_dims = dims};
    int to = given->places[i];
    graph_input *in = to >= 0 && to < g->ninputs ? &g->inputs[to] : NULL;
    if (to < -1 || (to >= 0 && !in) ||
        (in && (in->written || in->dtype != t->dtype || in->ndim != t->ndim ||
                (t->ndim && memcmp(in->sizes, t->sizes, (size_t)t->ndim * sizeof *t->sizes) != 0))))
      return err_new(TPU_ERR_VALUE, "tpu: output %d of a given program cannot be written to input %d", i, to);
    g->places[g->nplaces++] = (graph_place){.store = in ? -1 : g->nstores, .input = to, .output = i, .nbytes = nbytes};
    if (in) {
      in->written = true;
      continue;
    }
    g->nstores++;
    if (given->results) continue;
    g->results[g->nresults++] = (tpu_graph_result){.store = g->nstores - 1,
                                                   .input = -1,
                                                   .dtype = t->dtype,
                                                   .ndim = t->ndim,
                                                   .sizes = dims,
                                                   .strides = strides_of(&g->mem, t)};
  }
  e->noutputs = n;
  for (int i = 0; i < given->nempty; i++)
    g->places[g->nplaces++] =
        (graph_place){.store = g->nstores++, .input = -1, .output = -1, .nbytes = given->empty[i]};
  return given->results ? take_results(g, given) : NULL;
}

static tpu_err *build(tpu_graph *g, const tpu_given *given, const char *name) {
  if (!given->noutputs) return err_new(TPU_ERR_VALUE, "tpu: a given program has no outputs");
  TPU_TRY(entry_new(&g->e));
  TPU_TRY(take_inputs(g, given));
  TPU_TRY(take_parameters(g, given));
  TPU_TRY(take_outputs(g, given));
  g->e->name = arena_copy(&g->e->mem, name, strlen(name) + 1);
  if (g->mem.failed || g->e->mem.failed) return err_nomem();
  program *p = NULL;
  tpu_err *e;
  if (given->executable) {
    e = program_of_executable(given->text, given->len, name, &p);
  } else {
    buf text;
    buf_init(&text);
    buf_bytes(&text, given->text, given->len);
    e = text.failed ? err_nomem() : program_of_text(&text, name, &p);
    buf_free(&text);
  }
  size_t n = 0;
  if (!e) e = pjrt_exec_num_outputs(ex.client, p->exec, &n);
  if (!e && n != (size_t)given->noutputs)
    e = err_new(TPU_ERR_VALUE, "tpu: a given program has %zu outputs, expected %d", n, given->noutputs);
  if (e) program_release(p);
  else graph_set_program(g, p);
  return e;
}

tpu_err *tpu_graph_given(const tpu_given *given, const char *op, const char *name, tpu_graph **out) {
  *out = NULL;
  TPU_TRY(ex_ready());
  if (given->device < 0 || given->device >= ex.ndevices)
    return err_new(TPU_ERR_RUNTIME, "tpu: device index %d is out of range: there are %d devices", given->device,
                   ex.ndevices);
  tpu_graph *g = mem_calloc(sizeof *g);
  if (!g) return err_nomem();
  arena_init(&g->mem);
  g->device = given->device;
  g->op = op;
  tpu_err *e = build(g, given, name);
  if (e) tpu_graph_release(g);
  else *out = g;
  return e;
}
