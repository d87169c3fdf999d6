/* Graphs that were not captured here: a program as StableHLO, given with what it takes and gives. */
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
    in->sizes = in->dims = arena_copy(&g->mem, t->sizes, (size_t)t->ndim * sizeof *t->sizes);
    in->strides = strides_of(&g->mem, t);
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

static tpu_err *take_outputs(tpu_graph *g, const tpu_given *given) {
  call_entry *e = g->e;
  int n = given->noutputs;
  e->outs = arena_alloc(&e->mem, (size_t)(n + 1) * sizeof *e->outs);
  g->places = arena_alloc(&g->mem, (size_t)(n + 1) * sizeof *g->places);
  g->results = arena_alloc(&g->mem, (size_t)(n + 1) * sizeof *g->results);
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
    g->results[g->nresults++] = (tpu_graph_result){.store = g->nstores++,
                                                   .input = -1,
                                                   .dtype = t->dtype,
                                                   .ndim = t->ndim,
                                                   .sizes = dims,
                                                   .strides = strides_of(&g->mem, t)};
  }
  e->noutputs = n;
  return NULL;
}

static tpu_err *build(tpu_graph *g, const tpu_given *given, const char *name) {
  if (!given->noutputs) return err_new(TPU_ERR_VALUE, "tpu: a given program has no outputs");
  TPU_TRY(entry_new(&g->e));
  TPU_TRY(take_inputs(g, given));
  TPU_TRY(take_parameters(g, given));
  TPU_TRY(take_outputs(g, given));
  g->e->name = arena_copy(&g->e->mem, name, strlen(name) + 1);
  if (g->mem.failed || g->e->mem.failed) return err_nomem();
  buf text;
  buf_init(&text);
  buf_bytes(&text, given->text, given->len);
  program *p = NULL;
  tpu_err *e = text.failed ? err_nomem() : program_of_text(&text, name, &p);
  buf_free(&text);
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
