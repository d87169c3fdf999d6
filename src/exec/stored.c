/* A graph as bytes, and back: what another process needs to run it without capturing it again. The bytes hold the
 * program's text, not its executable, which the cache folder has under the text.
 *
 * One function says what the bytes are, for both directions: a field is written from where it is, or read into it. */
#include <string.h>

#include "exec/graph.h"

enum { FORMAT = 1, MOST = 1 << 24 /* of anything that is counted: more is no graph */ };

typedef struct {
  buf *out;       /* written to, or NULL: */
  const char *at; /* read from */
  size_t left;
  bool bad; /* the bytes are cut off, or no graph */
} stream;

static void raw(stream *b, void *p, size_t n) {
  if (b->out) return buf_bytes(b->out, p, n);
  b->bad = b->bad || b->left < n;
  if (b->bad) {
    memset(p, 0, n);
    return;
  }
  memcpy(p, b->at, n);
  b->at += n;
  b->left -= n;
}

#define FIELD(b, x) raw(b, &(x), sizeof(x))

/* How many of something there are. */
static void count(stream *b, int *n) {
  FIELD(b, *n);
  if (*n < 0 || *n > MOST) b->bad = true;
  if (b->bad) *n = 0;
}

static void numbers(stream *b, arena *mem, const int64_t **p, int n) {
  size_t size = (size_t)n * sizeof **p;
  if (b->out) return buf_bytes(b->out, *p, size);
  int64_t *to = n <= VIEW_MAX_DIMS ? arena_alloc(mem, size + 1) : NULL;
  b->bad = b->bad || n > VIEW_MAX_DIMS;
  if (to) raw(b, to, size);
  *p = to;
}

/* An array of n, which is made when it is read. */
static bool array(const stream *b, arena *mem, void *pp, int n, size_t size) {
  void **p = pp;
  if (!b->out) *p = arena_alloc(mem, ((size_t)n + 1) * size);
  return *p != NULL;
}

static void ndim_of(stream *b, int32_t *ndim) {
  FIELD(b, *ndim);
  if (*ndim < 0 || *ndim > VIEW_MAX_DIMS) b->bad = true;
  if (b->bad) *ndim = 0;
}

/* A number of one of n things; -1 as well if none may be meant. */
static void index_of(stream *b, int32_t *i, int n, bool none) {
  FIELD(b, *i);
  if (*i < -(int32_t)none || *i >= n) b->bad = true;
}

static void inputs(stream *b, tpu_graph *g) {
  count(b, &g->ninputs);
  if (!array(b, &g->mem, &g->inputs, g->ninputs, sizeof *g->inputs)) return;
  for (int i = 0; i < g->ninputs && !b->bad; i++) {
    graph_input *in = &g->inputs[i];
    ndim_of(b, &in->ndim);
    FIELD(b, in->dtype);
    FIELD(b, in->used);
    FIELD(b, in->written);
    FIELD(b, in->nbytes);
    numbers(b, &g->mem, &in->sizes, in->ndim);
    numbers(b, &g->mem, &in->strides, in->ndim);
    numbers(b, &g->mem, &in->dims, in->ndim);
  }
}

static void results(stream *b, tpu_graph *g) {
  count(b, &g->nstores);
  count(b, &g->nresults);
  if (!array(b, &g->mem, &g->results, g->nresults, sizeof *g->results)) return;
  for (int i = 0; i < g->nresults && !b->bad; i++) {
    tpu_graph_result *r = &g->results[i];
    index_of(b, &r->store, g->nstores, true);
    index_of(b, &r->input, g->ninputs, true);
    b->bad = b->bad || (r->store < 0) == (r->input < 0);
    FIELD(b, r->dtype);
    ndim_of(b, &r->ndim);
    FIELD(b, r->offset);
    numbers(b, &g->mem, &r->sizes, r->ndim);
    numbers(b, &g->mem, &r->strides, r->ndim);
  }
}

static void places(stream *b, tpu_graph *g) {
  count(b, &g->nplaces);
  if (!array(b, &g->mem, &g->places, g->nplaces, sizeof *g->places)) return;
  for (int i = 0; i < g->nplaces && !b->bad; i++) {
    graph_place *p = &g->places[i];
    index_of(b, &p->store, g->nstores, true);
    index_of(b, &p->input, g->ninputs, true);
    index_of(b, &p->output, g->e->nouts, true);
    b->bad = b->bad || (p->store < 0) == (p->input < 0);
    FIELD(b, p->nbytes);
  }
}

static void program_of(stream *b, tpu_graph *g) {
  call_entry *e = g->e;
  FIELD(b, e->rng_blocks);
  FIELD(b, e->ndonated);
  count(b, &e->nparams);
  if (!array(b, &e->mem, &e->params, e->nparams, sizeof *e->params)) return;
  for (int i = 0; i < e->nparams && !b->bad; i++) {
    param_spec *p = &e->params[i];
    FIELD(b, p->kind);
    FIELD(b, p->donated);
    FIELD(b, p->elem);
    b->bad = b->bad || (p->kind != PARAM_RNG && (p->kind != PARAM_STORE || p->elem < 0 || p->elem >= g->ninputs));
  }
  count(b, &e->nouts);
  e->noutputs = e->nouts;
  if (!array(b, &e->mem, &e->outs, e->nouts, sizeof *e->outs)) return;
  for (int i = 0; i < e->nouts && !b->bad; i++) {
    out_spec *o = &e->outs[i];
    int32_t ndim = o->base_ndim;
    index_of(b, &o->output, e->nouts, false);
    FIELD(b, o->base_dtype);
    ndim_of(b, &ndim);
    o->base_ndim = (int16_t)ndim;
    numbers(b, &e->mem, &o->base_dims, ndim);
  }
}

static void texts(stream *b, tpu_graph *g) {
  call_entry *e = g->e;
  size_t name = b->out ? strlen(e->name) : 0, text = e->text.len;
  FIELD(b, name);
  FIELD(b, text);
  if (b->out) {
    buf_bytes(b->out, e->name, name);
    buf_bytes(b->out, e->text.data, text);
    return;
  }
  if (b->bad || name > b->left || text != b->left - name) {
    b->bad = true;
    return;
  }
  char *to = arena_alloc(&e->mem, name + 1);
  if (to) memcpy(to, b->at, name);
  e->name = to;
  buf_bytes(&e->text, b->at + name, text);
}

static void graph(stream *b, tpu_graph *g) {
  int format = FORMAT;
  FIELD(b, format);
  if (format != FORMAT) b->bad = true;
  if (b->bad) return;
  FIELD(b, g->device);
  inputs(b, g);
  results(b, g);
  program_of(b, g);
  places(b, g);
  texts(b, g);
}

tpu_err *tpu_graph_store(const tpu_graph *g, char **out, size_t *n) {
  *out = NULL;
  *n = 0;
  if (g->nconstants || g->layouts || g->sample || g->e->noutputs != g->e->nouts || (g->e->noutputs && !g->e->text.len))
    return err_new(TPU_ERR_RUNTIME,
                   "tpu: only a graph of known sizes that holds no tensors, and was not compiled yet, "
                   "can be kept for another process");
  buf text;
  buf_init(&text);
  stream b = {.out = &text};
  graph(&b, (tpu_graph *)g);
  if (text.failed) {
    buf_free(&text);
    return err_nomem();
  }
  *out = text.data;
  *n = text.len;
  return NULL;
}

void tpu_bytes_free(char *bytes) { mem_free(bytes); }

tpu_err *tpu_graph_stored(const char *from, size_t n, const char *op, tpu_graph **out) {
  *out = NULL;
  TPU_TRY(ex_ready());
  tpu_graph *g = mem_calloc(sizeof *g);
  if (!g) return err_nomem();
  arena_init(&g->mem);
  g->op = op;
  stream b = {.at = from, .left = n};
  tpu_err *e = entry_new(&g->e);
  if (!e) {
    graph(&b, g);
    if (g->mem.failed || g->e->mem.failed || g->e->text.failed) e = err_nomem();
    else if (b.bad) e = err_new(TPU_ERR_VALUE, "tpu: these bytes are no graph that this version kept");
    else if (g->device < 0 || g->device >= ex.ndevices)
      e = err_new(TPU_ERR_RUNTIME, "tpu: a kept graph is for the device %d: there are %d devices", g->device,
                  ex.ndevices);
  }
  if (e) tpu_graph_release(g);
  else *out = g;
  return e;
}

tpu_err *tpu_graph_compile(tpu_graph *g) {
  call_entry *e = g->e;
  program *p;
  if (!e->noutputs || atomic_load(&e->prog)) return NULL;
  TPU_TRY(program_of_text(&e->text, e->name, &p));
  buf_free(&e->text);
  graph_set_program(g, p);
  return NULL;
}
