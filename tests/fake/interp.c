#include "interp.h"

#include <stdlib.h>
#include <string.h>

#include "ir/node.h"

int64_t interp_numel(const interp_array *a) {
  int64_t n = 1;
  for (int i = 0; i < a->ndim; i++) n *= a->dims[i];
  return n;
}

void interp_free(interp_array *outs, int n) {
  for (int i = 0; i < n; i++) {
    free(outs[i].data);
    outs[i].data = NULL;
  }
}

/* ---- values of a run -----------------------------------------------------------------------------------------------
 */

typedef struct {
  val v; /* NULL: free */
  interp_array a;
  bool lent;
} slot;

typedef struct {
  ir_graph *g;
  slot *slots;
  size_t cap, used; /* cap: a power of two */
} env;

static slot *env_slot(env *e, val v) {
  if (e->used * 2 >= e->cap) {
    slot *old = e->slots;
    size_t n = e->cap;
    e->cap = n ? 2 * n : 64;
    e->slots = calloc(e->cap, sizeof(slot));
    e->used = 0;
    for (size_t i = 0; i < n; i++) {
      if (old[i].v) *env_slot(e, old[i].v) = old[i];
    }
    free(old);
  }
  size_t i = ((uintptr_t)v >> 4) * 0x9E3779B97F4A7C15u >> 20;
  for (;; i++) {
    slot *s = &e->slots[i & (e->cap - 1)];
    if (s->v == v) return s;
    if (s->v) continue;
    s->v = v;
    e->used++;
    return s;
  }
}

static size_t item(const interp_array *a) { return tpu_dtype_size(a->dtype); }

static interp_array array_for(val v) {
  interp_array a = {.dtype = (tpu_dtype)v->dtype, .ndim = v->ndim};
  if (v->ndim) memcpy(a.dims, v->dims, (size_t)v->ndim * sizeof(int64_t));
  a.data = calloc((size_t)interp_numel(&a) + 1, item(&a));
  return a;
}

/* ---- attribute text ------------------------------------------------------------------------------------------------
 */

/* The place after "name = " in the text; NULL if it is not there. */
static const char *attr_at(const char *text, const char *name) {
  size_t n = strlen(name);
  for (const char *p = strstr(text, name); p; p = strstr(p + 1, name)) {
    bool starts = p == text || strchr(" ,<{", p[-1]);
    if (starts && !strncmp(p + n, " = ", 3)) return p + n + 3;
  }
  return NULL;
}

static int64_t attr_int(const char *text, const char *name, int64_t absent) {
  const char *p = attr_at(text, name);
  return p ? strtoll(p, NULL, 10) : absent;
}

/* [1, 2] or array<i64: 1, 2> */
static int attr_list(const char *text, const char *name, int64_t *out) {
  const char *p = attr_at(text, name);
  int n = 0;
  if (!p) return 0;
  if (!strncmp(p, "array<i64", 9)) p += 9;
  for (p++; *p && *p != ']' && *p != '>';) {
    char *end;
    int64_t v = strtoll(p, &end, 10);
    if (end == p) {
      p++;
      continue;
    }
    if (n < 64) out[n++] = v;
    p = end;
  }
  return n;
}

/* ---- numbers -------------------------------------------------------------------------------------------------------
 */

typedef struct {
  int64_t i; /* integers and bool */
  double re, im;
} number;

static uint64_t load_bits(const char *p, size_t n) {
  uint64_t b = 0;
  memcpy(&b, p, n);
  return b;
}

static number load(tpu_dtype d, const char *p) {
  size_t n = tpu_dtype_size(d);
  number x = {0, 0, 0};
  if (ir_is_complex(d)) {
    x.re = bits_to_double(ir_real_dtype(d), load_bits(p, n / 2));
    x.im = bits_to_double(ir_real_dtype(d), load_bits(p + n / 2, n / 2));
  } else if (ir_is_float(d)) {
    x.re = bits_to_double(d, load_bits(p, n));
  } else {
    uint64_t b = load_bits(p, n);
    int shift = 64 - 8 * (int)n;
    x.i = ir_is_unsigned(d) || d == TPU_BOOL ? (int64_t)b : (int64_t)(b << shift) >> shift;
  }
  return x;
}

static void store(tpu_dtype d, char *p, number x) {
  size_t n = tpu_dtype_size(d);
  uint64_t b;
  if (ir_is_complex(d)) {
    b = bits_of_double(ir_real_dtype(d), x.re);
    memcpy(p, &b, n / 2);
    b = bits_of_double(ir_real_dtype(d), x.im);
    memcpy(p + n / 2, &b, n / 2);
    return;
  }
  b = ir_is_float(d) ? bits_of_double(d, x.re) : (uint64_t)x.i;
  if (d == TPU_BOOL) b = b != 0;
  memcpy(p, &b, n);
}

static number convert(tpu_dtype from, tpu_dtype to, number x) {
  bool from_real = ir_is_float(from) || ir_is_complex(from), to_real = ir_is_float(to) || ir_is_complex(to);
  if (from_real && !to_real) x.i = to == TPU_BOOL ? x.re != 0 || x.im != 0 : bits_double_to_int(to, x.re);
  if (!from_real && to_real) x.re = from == TPU_U64 ? (double)(uint64_t)x.i : (double)x.i;
  if (!ir_is_complex(from)) x.im = 0;
  return x;
}

/* ---- constants -----------------------------------------------------------------------------------------------------
 */

static uint64_t parse_bits(const char **p, tpu_dtype d) {
  char *end;
  uint64_t v;
  if (!strncmp(*p, "true", 4)) v = 1, end = (char *)(uintptr_t)*p + 4;
  else if (!strncmp(*p, "false", 5)) v = 0, end = (char *)(uintptr_t)*p + 5;
  else if (!strncmp(*p, "0x", 2) || d == TPU_U64) v = strtoull(*p, &end, 0);
  else v = (uint64_t)strtoll(*p, &end, 10);
  *p = end;
  return v;
}

static void constant(const char *attrs, interp_array *out) {
  const char *p = attr_at(attrs, "value");
  size_t n = item(out), half = ir_is_complex(out->dtype) ? n / 2 : n;
  int64_t count = interp_numel(out), k = 0;
  if (!p) return;
  for (p += strlen("dense<"); *p && *p != '>' && k < count;) {
    if (strchr("[], ()", *p)) {
      p++;
      continue;
    }
    for (size_t h = 0; h < n; h += half) {
      while (strchr("[], ()", *p)) p++;
      uint64_t b = parse_bits(&p, out->dtype);
      memcpy((char *)out->data + (size_t)k * n + h, &b, half);
    }
    k++;
  }
  for (; k > 0 && k < count; k++) memcpy((char *)out->data + (size_t)k * n, out->data, n); /* a splat */
}

/* ---- moving elements -----------------------------------------------------------------------------------------------
 */

/* The next index, row-major; false after the last one. */
static bool next(const interp_array *a, int64_t *idx) {
  for (int i = a->ndim - 1; i >= 0; i--) {
    if (++idx[i] < a->dims[i]) return true;
    idx[i] = 0;
  }
  return false;
}

static int64_t place(const interp_array *a, const int64_t *idx) {
  int64_t at = 0;
  for (int i = 0; i < a->ndim; i++) {
    if (idx[i] < 0 || idx[i] >= a->dims[i]) return -1;
    at = at * a->dims[i] + idx[i];
  }
  return at;
}

static char *element(const interp_array *a, const int64_t *idx) {
  int64_t at = place(a, idx);
  return at < 0 ? NULL : (char *)a->data + (size_t)at * item(a);
}

static int64_t clamp(int64_t x, int64_t lo, int64_t hi) { return x < lo ? lo : x > hi ? hi : x; }

static bool in_list(int64_t x, const int64_t *list, int n) {
  for (int i = 0; i < n; i++) {
    if (list[i] == x) return true;
  }
  return false;
}

static tpu_err *run_block(env *outer, const ir_block *b, const interp_array *args, interp_array *outs);

/* The clamped starts of a gather or the raw ones of a scatter, for the batch index `batch` (n numbers). */
static void index_vector(const interp_array *indices, const int64_t *batch, int64_t vector_dim, const int64_t *map,
                         int nmap, const int64_t *operand_batching, const int64_t *indices_batching, int nbatching,
                         int64_t *start) {
  int64_t at[64];
  for (int k = 0; k < nmap; k++) {
    for (int i = 0, o = 0; i < indices->ndim; i++) at[i] = i == vector_dim ? k : batch[o++];
    start[map[k]] = load(indices->dtype, element(indices, at)).i;
  }
  for (int k = 0; k < nbatching; k++)
    start[operand_batching[k]] = batch[indices_batching[k] - (indices_batching[k] > vector_dim)];
}

static tpu_err *gather(const char *attrs, const interp_array *x, const interp_array *indices, interp_array *out) {
  int64_t offset[64], collapsed[64], obatch[64], ibatch[64], map[64], sizes[64], idx[64] = {0};
  int noffset = attr_list(attrs, "offset_dims", offset),
      ncollapsed = attr_list(attrs, "collapsed_slice_dims", collapsed);
  int nbatching = attr_list(attrs, "operand_batching_dims", obatch), nmap = attr_list(attrs, "start_index_map", map);
  attr_list(attrs, "start_indices_batching_dims", ibatch);
  if (attr_list(attrs, "slice_sizes", sizes) != x->ndim)
    return err_new(TPU_ERR_RUNTIME, "gather: bad slice_sizes: %s", attrs);
  int64_t vector_dim = attr_int(attrs, "index_vector_dim", 0);
  if (interp_numel(out) == 0) return NULL;
  do {
    int64_t batch[64], at[64], start[64] = {0};
    for (int i = 0, o = 0; i < out->ndim; i++) {
      if (!in_list(i, offset, noffset)) batch[o++] = idx[i];
    }
    index_vector(indices, batch, vector_dim, map, nmap, obatch, ibatch, nbatching, start);
    for (int i = 0, o = 0; i < x->ndim; i++) {
      at[i] = clamp(start[i], 0, x->dims[i] - sizes[i]);
      if (at[i] != start[i])
        return err_new(TPU_ERR_RUNTIME, "gather: index %lld is out of bounds", (long long)start[i]);
      if (!in_list(i, collapsed, ncollapsed) && !in_list(i, obatch, nbatching)) at[i] += idx[offset[o++]];
    }
    const char *from = element(x, at);
    if (!from) return err_new(TPU_ERR_RUNTIME, "gather: reads out of bounds");
    memcpy(element(out, idx), from, item(x));
  } while (next(out, idx));
  return NULL;
}

static tpu_err *scatter(env *e, const ir_op *op, const interp_array *x, const interp_array *indices,
                        const interp_array *updates, interp_array *out) {
  const char *attrs = op->attrs;
  int64_t window[64], inserted[64], obatch[64], ibatch[64], map[64], idx[64] = {0};
  int nwindow = attr_list(attrs, "update_window_dims", window),
      ninserted = attr_list(attrs, "inserted_window_dims", inserted);
  int nbatching = attr_list(attrs, "input_batching_dims", obatch),
      nmap = attr_list(attrs, "scatter_dims_to_operand_dims", map);
  attr_list(attrs, "scatter_indices_batching_dims", ibatch);
  int64_t vector_dim = attr_int(attrs, "index_vector_dim", 0);
  const ir_block *body = op->regions[0];
  bool replaces = body->nresults == 1 && body->results[0] == body->args[1];
  memcpy(out->data, x->data, (size_t)interp_numel(x) * item(x));
  if (interp_numel(updates) == 0) return NULL;
  do {
    int64_t batch[64], at[64], start[64] = {0};
    for (int i = 0, o = 0; i < updates->ndim; i++) {
      if (!in_list(i, window, nwindow)) batch[o++] = idx[i];
    }
    index_vector(indices, batch, vector_dim, map, nmap, obatch, ibatch, nbatching, start);
    for (int i = 0, o = 0; i < x->ndim; i++) {
      at[i] = start[i];
      if (!in_list(i, inserted, ninserted) && !in_list(i, obatch, nbatching)) at[i] += idx[window[o++]];
    }
    char *to = element(out, at);
    if (!to) return err_new(TPU_ERR_RUNTIME, "scatter: writes out of bounds");
    const char *from = element(updates, idx);
    if (replaces) {
      memcpy(to, from, item(x));
      continue;
    }
    interp_array args[2] = {{.dtype = x->dtype, .data = to}, {.dtype = x->dtype, .data = (void *)(uintptr_t)from}}, r;
    TPU_TRY(run_block(e, body, args, &r));
    memcpy(to, r.data, item(x));
    free(r.data);
  } while (next(updates, idx));
  return NULL;
}

static tpu_err *pad(const char *attrs, const interp_array *x, const interp_array *with, interp_array *out) {
  int64_t low[64] = {0}, inner[64] = {0}, idx[64] = {0}, at[64];
  attr_list(attrs, "edge_padding_low", low);
  attr_list(attrs, "interior_padding", inner);
  size_t n = item(x);
  for (int64_t i = 0; i < interp_numel(out); i++) memcpy((char *)out->data + (size_t)i * n, with->data, n);
  if (interp_numel(x) == 0) return NULL;
  do {
    for (int i = 0; i < x->ndim; i++) at[i] = low[i] + idx[i] * (inner[i] + 1);
    char *to = element(out, at);
    if (to) memcpy(to, element(x, idx), n); /* negative padding cuts */
  } while (next(x, idx));
  return NULL;
}

/* Starts as operands; the specification clamps them, a correct program of ours never needs it. */
static tpu_err *dynamic_starts(const char *name, const interp_array *x, const int64_t *sizes,
                               interp_array *const *starts, int64_t *out) {
  for (int i = 0; i < x->ndim; i++) {
    out[i] = load(starts[i]->dtype, starts[i]->data).i;
    if (out[i] < 0 || out[i] + sizes[i] > x->dims[i])
      return err_new(TPU_ERR_RUNTIME, "%s: start %lld of dim %d would be clamped", name, (long long)out[i], i);
  }
  return NULL;
}

/* Operations whose result element at idx is an operand's element: sets *from and `at`. False: not such a one. */
static bool moves(const char *name, const char *attrs, interp_array *const *in, const interp_array *out,
                  const int64_t *idx, const int64_t *extra, int nextra, const interp_array **from, int64_t *at) {
  (void)attrs;
  *from = in[0];
  if (!strcmp(name, "broadcast_in_dim")) {
    for (int i = 0; i < in[0]->ndim; i++) at[i] = in[0]->dims[i] == 1 ? 0 : idx[extra[i]];
  } else if (!strcmp(name, "transpose")) {
    for (int i = 0; i < out->ndim; i++) at[extra[i]] = idx[i];
  } else if (!strcmp(name, "reverse")) {
    for (int i = 0; i < out->ndim; i++) at[i] = in_list(i, extra, nextra) ? out->dims[i] - 1 - idx[i] : idx[i];
  } else if (!strcmp(name, "slice")) { /* extra: starts, then steps */
    for (int i = 0; i < out->ndim; i++) at[i] = extra[i] + idx[i] * extra[out->ndim + i];
  } else if (!strcmp(name, "dynamic_slice")) {
    for (int i = 0; i < out->ndim; i++) at[i] = extra[i] + idx[i];
  } else if (!strcmp(name, "dynamic_update_slice")) {
    bool inside = true;
    for (int i = 0; i < out->ndim; i++) {
      at[i] = idx[i] - extra[i];
      inside = inside && at[i] >= 0 && at[i] < in[1]->dims[i];
    }
    *from = in[inside];
    if (!inside) memcpy(at, idx, (size_t)out->ndim * sizeof *at);
  } else if (!strcmp(name, "concatenate")) {
    memcpy(at, idx, (size_t)out->ndim * sizeof *at);
    int k = 0;
    while (at[extra[0]] >= in[k]->dims[extra[0]]) at[extra[0]] -= in[k++]->dims[extra[0]];
    *from = in[k];
  } else {
    return false;
  }
  return true;
}

static tpu_err *move(const ir_op *op, const char *name, interp_array *const *in, interp_array *out, bool *known) {
  const char *attrs = op->attrs;
  int64_t extra[128] = {0}, idx[64] = {0}, at[64];
  int n = 0;
  const interp_array *from;
  if (!strcmp(name, "broadcast_in_dim")) n = attr_list(attrs, "broadcast_dimensions", extra);
  else if (!strcmp(name, "transpose")) n = attr_list(attrs, "permutation", extra);
  else if (!strcmp(name, "reverse")) n = attr_list(attrs, "dimensions", extra);
  else if (!strcmp(name, "concatenate")) extra[0] = attr_int(attrs, "dimension", 0);
  else if (!strcmp(name, "slice")) {
    n = attr_list(attrs, "start_indices", extra);
    attr_list(attrs, "strides", extra + n);
  } else if (!strcmp(name, "dynamic_slice")) {
    TPU_TRY(dynamic_starts(name, in[0], out->dims, in + 1, extra));
  } else if (!strcmp(name, "dynamic_update_slice")) {
    TPU_TRY(dynamic_starts(name, in[0], in[1]->dims, in + 2, extra));
  }
  *known = moves(name, attrs, in, out, idx, extra, n, &from, at);
  if (!*known || interp_numel(out) == 0) return NULL;
  do {
    moves(name, attrs, in, out, idx, extra, n, &from, at);
    const char *p = element(from, at);
    if (!p) return err_new(TPU_ERR_RUNTIME, "%s: reads out of bounds", name);
    memcpy(element(out, idx), p, item(out));
  } while (next(out, idx));
  return NULL;
}

/* ---- element by element --------------------------------------------------------------------------------------------
 */

static bool binary(const char *name, tpu_dtype d, number a, number b, number *out) {
  bool real = ir_is_float(d) || ir_is_complex(d);
  *out = (number){0, 0, 0};
  if (!strcmp(name, "add")) {
    if (d == TPU_BOOL) out->i = a.i | b.i;
    else out->i = (int64_t)((uint64_t)a.i + (uint64_t)b.i), out->re = a.re + b.re, out->im = a.im + b.im;
  } else if (!strcmp(name, "subtract")) {
    out->i = (int64_t)((uint64_t)a.i - (uint64_t)b.i), out->re = a.re - b.re, out->im = a.im - b.im;
  } else if (!strcmp(name, "multiply")) {
    if (d == TPU_BOOL) out->i = a.i & b.i;
    else if (!real) out->i = (int64_t)((uint64_t)a.i * (uint64_t)b.i);
    else out->re = a.re * b.re - a.im * b.im, out->im = a.re * b.im + a.im * b.re;
  } else if (!strcmp(name, "and")) {
    out->i = a.i & b.i;
  } else if (!strcmp(name, "or")) {
    out->i = a.i | b.i;
  } else if (!strcmp(name, "xor")) {
    out->i = a.i ^ b.i;
  } else if (!strcmp(name, "maximum") || !strcmp(name, "minimum")) {
    bool more = d == TPU_U64 ? (uint64_t)a.i > (uint64_t)b.i : real ? a.re > b.re : a.i > b.i;
    bool nan = real && (a.re != a.re);
    *out = nan || more == !strcmp(name, "maximum") ? a : b;
    if (real && b.re != b.re) *out = b;
  } else {
    return false;
  }
  return true;
}

static bool compare(const char *attrs, tpu_dtype d, number a, number b) {
  const char *p = strstr(attrs, "<comparison_direction ");
  p = p ? p + strlen("<comparison_direction ") : "";
  bool real = ir_is_float(d) || ir_is_complex(d), u = d == TPU_U64;
  bool eq = real ? a.re == b.re && a.im == b.im : a.i == b.i;
  bool lt = real ? a.re < b.re : u ? (uint64_t)a.i < (uint64_t)b.i : a.i < b.i;
  bool gt = real ? a.re > b.re : u ? (uint64_t)a.i > (uint64_t)b.i : a.i > b.i;
  if (!strncmp(p, "EQ", 2)) return eq;
  if (!strncmp(p, "NE", 2)) return !eq;
  if (!strncmp(p, "LT", 2)) return lt;
  if (!strncmp(p, "LE", 2)) return lt || eq;
  if (!strncmp(p, "GT", 2)) return gt;
  return gt || eq;
}

static tpu_err *elementwise(const ir_op *op, const char *name, interp_array *const *in, interp_array *out) {
  size_t n = item(out);
  int64_t count = interp_numel(out);
  for (int64_t i = 0; i < count; i++) {
    char *to = (char *)out->data + (size_t)i * n;
    number x[3] = {{0, 0, 0}}, r = {0, 0, 0};
    const char *p[3] = {NULL};
    for (int k = 0; k < op->nin && k < 3; k++) {
      p[k] = (const char *)in[k]->data + (in[k]->ndim || !out->ndim ? (size_t)i * item(in[k]) : 0);
      x[k] = load(in[k]->dtype, p[k]);
    }
    tpu_dtype d = op->nin ? in[0]->dtype : out->dtype;
    if (!strcmp(name, "select")) {
      memcpy(to, x[0].i ? p[1] : p[2], n);
      continue;
    }
    if (!strcmp(name, "convert")) {
      r = convert(d, out->dtype, x[0]);
    } else if (!strcmp(name, "real")) {
      memcpy(to, p[0], n);
      continue;
    } else if (!strcmp(name, "imag")) {
      if (ir_is_complex(d)) memcpy(to, p[0] + n, n);
      continue;
    } else if (!strcmp(name, "complex")) {
      memcpy(to, p[0], n / 2);
      memcpy(to + n / 2, p[1], n / 2);
      continue;
    } else if (!strcmp(name, "compare")) {
      r.i = compare(op->attrs, d, x[0], x[1]);
    } else if (!strcmp(name, "not")) {
      r.i = d == TPU_BOOL ? !x[0].i : ~x[0].i;
    } else if (!strcmp(name, "negate")) {
      r = (number){(int64_t)(0 - (uint64_t)x[0].i), -x[0].re, -x[0].im};
    } else if (op->nin != 2 || !binary(name, d, x[0], x[1], &r)) {
      return err_new(TPU_ERR_NOT_IMPLEMENTED, "the interpreter does not know %s", op->name);
    }
    store(out->dtype, to, r);
  }
  return NULL;
}

/* ---- the program
 * ----------------------------------------------------------------------------------------------------- */

static tpu_err *run_op(env *e, const ir_op *op) {
  interp_array ins[66], *in[66];
  if (op->nin > 66 || op->nout != 1)
    return err_new(TPU_ERR_NOT_IMPLEMENTED, "the interpreter does not know %s", op->name);
  for (int i = 0; i < op->nin; i++) {
    ins[i] = env_slot(e, op->in[i])->a;
    in[i] = &ins[i];
    if (!ins[i].data) return err_new(TPU_ERR_RUNTIME, "operand %d of %s has no value", i, op->name);
  }
  const char *dot = strchr(op->name, '.'), *name = dot ? dot + 1 : op->name;
  interp_array out = array_for(&op->out[0]);
  env_slot(e, &op->out[0])->a = out;
  if (!strcmp(name, "constant")) {
    constant(op->attrs, &out);
  } else if (!strcmp(name, "reshape") || !strcmp(name, "bitcast_convert")) {
    memcpy(out.data, ins[0].data, (size_t)interp_numel(&out) * item(&out));
  } else if (!strcmp(name, "iota")) {
    int64_t idx[64] = {0}, dim = attr_int(op->attrs, "iota_dimension", 0);
    if (interp_numel(&out) == 0) return NULL;
    do store(out.dtype, element(&out, idx), (number){idx[dim], (double)idx[dim], 0});
    while (next(&out, idx));
  } else if (!strcmp(name, "pad")) {
    return pad(op->attrs, &ins[0], &ins[1], &out);
  } else if (!strcmp(name, "gather")) {
    return gather(op->attrs, &ins[0], &ins[1], &out);
  } else if (!strcmp(name, "scatter")) {
    return scatter(e, op, &ins[0], &ins[1], &ins[2], &out);
  } else {
    bool known;
    TPU_TRY(move(op, name, in, &out, &known));
    if (!known) return elementwise(op, name, in, &out);
  }
  return NULL;
}

typedef struct {
  const ir_op **ops;
  size_t n, cap;
} op_list;

static void list_add(op_list *l, const ir_op *op) {
  if (l->n == l->cap) {
    l->cap = l->cap ? 2 * l->cap : 64;
    l->ops = realloc(l->ops, l->cap * sizeof *l->ops);
  }
  l->ops[l->n++] = op;
}

/* Runs what `results` need of block b. */
static tpu_err *run_live(env *e, const ir_block *b, const val *results, int n) {
  op_list live = {0};
  env mark = {0};
  for (int i = 0; i < n; i++) env_slot(&mark, results[i])->lent = true;
  for (const ir_op *op = b->last; op; op = op->prev) {
    bool needed = false;
    for (int i = 0; i < op->nout; i++) needed |= env_slot(&mark, &op->out[i])->lent;
    if (!needed) continue;
    list_add(&live, op);
    for (int i = 0; i < op->nin; i++) env_slot(&mark, op->in[i])->lent = true;
  }
  tpu_err *err = NULL;
  while (live.n && !err) err = run_op(e, live.ops[--live.n]);
  free(live.ops);
  free(mark.slots);
  return err;
}

static interp_array copy_of(const interp_array *a) {
  interp_array c = *a;
  size_t n = (size_t)interp_numel(a) * item(a);
  c.data = malloc(n + 1);
  memcpy(c.data, a->data, n);
  return c;
}

static void env_free(env *e) {
  for (size_t i = 0; i < e->cap; i++) {
    if (e->slots[i].v && !e->slots[i].lent) free(e->slots[i].a.data);
  }
  free(e->slots);
}

static tpu_err *run_args(ir_graph *g, const ir_block *b, const interp_array *args, const val *results, int n,
                         interp_array *outs) {
  env e = {.g = g};
  for (int i = 0; i < b->nargs; i++) {
    slot *s = env_slot(&e, b->args[i]);
    s->a = args[i];
    s->lent = true;
  }
  tpu_err *err = run_live(&e, b, results, n);
  for (int i = 0; i < n; i++) outs[i].data = NULL;
  for (int i = 0; i < n && !err; i++) {
    const interp_array *a = &env_slot(&e, results[i])->a;
    if (!a->data) err = err_new(TPU_ERR_RUNTIME, "result %d has no value", i);
    else outs[i] = copy_of(a);
  }
  env_free(&e);
  return err;
}

static tpu_err *run_block(env *outer, const ir_block *b, const interp_array *args, interp_array *outs) {
  return run_args(outer->g, b, args, b->results, b->nresults, outs);
}

tpu_err *interp_run(ir_graph *g, const interp_array *params, int nparams, interp_array *outs) {
  if (nparams != g->top.nargs)
    return err_new(TPU_ERR_RUNTIME, "the program takes %d parameters, got %d", g->top.nargs, nparams);
  for (int i = 0; i < nparams; i++) {
    val p = g->top.args[i];
    bool same = params[i].dtype == (tpu_dtype)p->dtype && params[i].ndim == p->ndim;
    for (int k = 0; same && k < p->ndim; k++) same = params[i].dims[k] == p->dims[k];
    if (!same) return err_new(TPU_ERR_RUNTIME, "parameter %d has another type", i);
  }
  int n = ir_output_count(g);
  val *results = malloc(((size_t)n + 1) * sizeof *results);
  for (int i = 0; i < n; i++) results[i] = ir_output_value(g, i);
  tpu_err *err = run_args(g, &g->top, params, results, n, outs);
  free(results);
  return err;
}
