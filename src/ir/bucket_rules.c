/* bucket_rules.c - what each StableHLO operation does with dims of which only a part counts (bucket.c). A rule gives
 * the extents of the results, and masks what the operation would mix. */
#include <stdlib.h>

#include "ir/bucket.h"

static bool refuse_unless(bool ok, const bucket_op *o, const char *why) { return ok || bucket_refuse(o, why); }

static bool any_dynamic(const ir_extent *dims, int n) {
  for (int i = 0; i < n; i++)
    if (bucket_is_dynamic(&dims[i])) return true;
  return false;
}

/* Dim d of operand i is to go together with a dim laid out as *have: it is laid out anew when it has to be. */
static bool align(bucket_op *o, int i, int d, ir_extent *have) {
  ir_extent *mine = &o->in[i][d], both;
  if (bucket_unify(have, mine, &both)) {
    *have = both;
    return true;
  }
  o->ops[0]->in[i] = bucket_relayout(o->b, o->ops[0]->in[i], d, mine, have);
  *mine = *have;
  return node_ok(o->b->g);
}

/* Dim d of operand i is indexed by number, so what counts has to stand in front of it. */
static bool to_front(bucket_op *o, int i, int d, ir_linear *count) {
  ir_extent *e = &o->in[i][d];
  if (bucket_count(e, count)) return true;
  *count = (ir_linear){.c = 1};
  for (int k = 0; k < e->natoms; k++) {
    const ir_atom *a = &e->atoms[k];
    if (!a->known || (!bucket_fixed(&a->count) && !bucket_fixed(count)))
      return bucket_refuse(o, "goes along a dim whose size is a product of sizes that change");
    ir_linear f = bucket_fixed(&a->count) ? *count : a->count;
    int64_t by = bucket_fixed(&a->count) ? a->count.c : count->c;
    count->c = f.c * by;
    for (int s = 0; s < IR_MAX_SYMBOLS; s++) count->k[s] = f.k[s] * by;
  }
  ir_extent front = bucket_prefix(o->b, o->ops[0]->in[i]->dims[d], count);
  o->ops[0]->in[i] = bucket_relayout(o->b, o->ops[0]->in[i], d, e, &front);
  *e = front;
  return node_ok(o->b->g);
}

/* Whether dim d of operand i is as large as dim e of `other`, an operand (at >= 0) or the result, in all samples: so
 * that a part of this size is all of it. */
static bool whole(const bucket_op *o, int i, int d, int at, int e) {
  for (int r = 0; r < o->b->nrows; r++) {
    const ir_op *op = o->ops[r];
    if (op->in[i]->dims[d] != (at >= 0 ? op->in[at] : &op->out[0])->dims[e]) return false;
  }
  return true;
}

static bool mask_operand(bucket_op *o, int i, const bool *which, val fill) {
  val v = bucket_mask(o->b, o->ops[0]->in[i], o->in[i], which, fill);
  if (v) o->ops[0]->in[i] = v;
  return v != NULL;
}

/* ---- element by element ---------------------------------------------------------------------------------------- */

/* Operands of rank 0 go with any shape. */
static bool elementwise(bucket_op *o) {
  ir_op *op = o->ops[0];
  for (int k = 0; k < op->nout; k++)
    for (int d = 0; d < op->out[k].ndim; d++) {
      bool first = true;
      for (int i = 0; i < op->nin; i++) {
        if (op->in[i]->ndim != op->out[k].ndim) continue;
        if (first) o->out[k][d] = o->in[i][d];
        else if (!align(o, i, d, &o->out[k][d])) return false;
        first = false;
      }
    }
  bucket_keep(o);
  return refuse_unless(bucket_same_attrs(o), o, "has a number that depends on sizes");
}

static bool bitcast(bucket_op *o) {
  ir_op *op = o->ops[0];
  int from = op->in[0]->ndim, to = op->out[0].ndim, both = from < to ? from : to;
  if (from > to && bucket_is_dynamic(&o->in[0][from - 1]))
    return bucket_refuse(o, "joins elements of a dim that changes");
  memcpy(o->out[0], o->in[0], (size_t)both * sizeof(ir_extent));
  if (to > from) o->out[0][to - 1] = bucket_fixed_extent(o->b, op->out[0].dims[to - 1]);
  bucket_keep(o);
  return true;
}

static bool barrier(bucket_op *o) {
  ir_op *op = o->ops[0];
  for (int i = 0; i < op->nin; i++) memcpy(o->out[i], o->in[i], (size_t)op->in[i]->ndim * sizeof(ir_extent));
  bucket_keep(o);
  return true;
}

/* ---- values out of nothing ------------------------------------------------------------------------------------- */

static bool iota(bucket_op *o) {
  ir_op *op = o->ops[0];
  int64_t along;
  if (bucket_attr(o, "iota_dimension", &along) != 1) return bucket_refuse(o, "changes its dim");
  for (int d = 0; d < op->out[0].ndim; d++) {
    if (!bucket_uniform(o, 0, d, &o->out[0][d])) return false;
    if (d != along) continue;
    if (!o->out[0][d].atoms[0].known) return bucket_refuse(o, "counts to a product of sizes that change");
    o->out[0][d].atoms[0].uniform = false;
  }
  bucket_keep(o);
  return true;
}

/* The number of a splat as text; 0 if it is none. */
static size_t splat_text(const char *attrs, const char **out) {
  const char *p = strstr(attrs, "dense<");
  if (!p || p[6] == '[') return 0;
  *out = p + 6;
  return strcspn(*out, ">");
}

static bool splat_number(const char *text, tpu_dtype d, double *out) {
  if (d == TPU_BOOL || ir_is_complex(d) || tpu_dtype_size(d) > 8) return false;
  if (ir_is_float(d)) *out = bits_to_double(d, strtoull(text, NULL, 16));
  else *out = (double)strtoll(text, NULL, 10);
  return ir_is_float(d) || (*out > -0x1p53 && *out < 0x1p53);
}

/* Rounded to an integer, when it is none by rounding of the dtype only. */
static bool near_integer(double v, int64_t *out) {
  if (!(v > -0x1p52 && v < 0x1p52)) return false;
  double r = v < 0 ? v - 0.5 : v + 0.5, off;
  *out = (int64_t)r;
  off = v - (double)*out;
  return (off < 0 ? -off : off) <= 1e-2 * (v < 0 ? -v : v);
}

static int64_t power(int64_t base, int exponent) {
  int64_t v = 1;
  while (exponent--) v *= base;
  return v;
}

/* n as a scalar of the program: a linear function of the symbols, or an integer times powers of them (up to the third).
 */
static val size_number(bucket_op *o, const int64_t *n) {
  bucket *b = o->b;
  ir_linear f;
  if (bucket_fit(b, n, &f)) return bucket_number(b, &f);
  int ns = b->spec->nsymbols, exponent[IR_MAX_SYMBOLS] = {0};
  const int64_t *sizes = b->spec->sizes;
  for (int s = 0; s < ns; s++)
    for (int r = 1; r < b->nrows; r++) {
      bool alone = sizes[r * ns + s] != sizes[s];
      for (int k = 0; k < ns; k++) alone = alone && (k == s || sizes[r * ns + k] == sizes[k]);
      if (!alone) continue;
      while (exponent[s] < 3 && n[0] * power(sizes[r * ns + s], exponent[s]) != n[r] * power(sizes[s], exponent[s]))
        exponent[s]++;
      break;
    }
  int64_t by = 0;
  for (int r = 0; r < b->nrows; r++) {
    int64_t product = 1;
    for (int s = 0; s < ns; s++) product *= power(sizes[r * ns + s], exponent[s]);
    if (!product || n[r] % product || (r && n[r] / product != by)) return NULL;
    by = n[r] / product;
  }
  val v = ir_const_i(b->g, TPU_I32, by, 0, NULL);
  for (int s = 0; s < ns; s++)
    for (int k = 0; k < exponent[s]; k++) v = ir_binary(b->g, IR_MUL, v, b->symbols[s]);
  return v;
}

/* A scalar that is a number of elements n, or 1 / n (means), or (n + 1) / n (variances without bias). */
static val size_constant(bucket_op *o) {
  bucket *b = o->b;
  tpu_dtype d = o->ops[0]->out[0].dtype;
  double *v = arena_alloc(&b->g->mem, (size_t)b->nrows * sizeof *v);
  int64_t *n = arena_alloc(&b->g->mem, (size_t)b->nrows * sizeof *n);
  if (!v || !n) return NULL;
  for (int r = 0; r < b->nrows; r++) {
    const char *text;
    if (!splat_text(o->ops[r]->attrs, &text) || !splat_number(text, d, &v[r])) return NULL;
  }
  for (int inverse = 0; inverse < 3; inverse++) { /* n, 1 / n, 1 + 1 / n */
    bool ok = true;
    for (int r = 0; ok && r < b->nrows; r++) {
      ok = near_integer(inverse ? 1 / (v[r] - (inverse - 1)) : v[r], &n[r]);
      if (!ok) break;
      double exact = inverse ? (double)(n[r] * (inverse - 1) + 1) / (double)n[r] : (double)n[r];
      ok = ir_is_float(d) ? bits_of_double(d, exact) == bits_of_double(d, v[r]) : exact == v[r];
    }
    val number = ok ? size_number(o, n) : NULL;
    if (!number) continue;
    bool wide = tpu_dtype_size(d) < 4; /* numbers that the dtype rounds are divided before they are rounded */
    number = ir_convert(b->g, number, inverse && wide ? TPU_F32 : d);
    val one = ir_const_f(b->g, number->dtype, 1, 0, NULL);
    if (inverse) number = ir_binary(b->g, IR_DIV, inverse == 2 ? ir_binary(b->g, IR_ADD, number, one) : one, number);
    return ir_convert(b->g, number, d);
  }
  return NULL;
}

static bool constant(bucket_op *o) {
  ir_op *op = o->ops[0];
  const char *first, *other;
  size_t n = splat_text(op->attrs, &first);
  if (!n) return bucket_refuse(o, "holds a table that depends on sizes");
  bool same = true;
  for (int r = 1; r < o->b->nrows; r++)
    same = same && splat_text(o->ops[r]->attrs, &other) == n && !strncmp(first, other, n);
  for (int d = 0; d < op->out[0].ndim; d++)
    if (!bucket_uniform(o, 0, d, &o->out[0][d])) return false;
  bucket_keep(o);
  if (same) return true;
  val v = size_constant(o);
  if (!v) return bucket_refuse(o, "is a number that depends on sizes in a way that is not understood");
  o->result[0] = ir_splat(o->b->g, v, op->out[0].ndim, op->out[0].dims);
  return true;
}

/* ---- moving elements ------------------------------------------------------------------------------------------- */

static bool broadcast(bucket_op *o) {
  ir_op *op = o->ops[0];
  int64_t map[2 * IR_MAX_RANK];
  if (bucket_attr(o, "broadcast_dimensions", map) != op->in[0]->ndim) return bucket_refuse(o, "changes its dims");
  for (int d = 0; d < op->out[0].ndim; d++)
    if (!bucket_uniform(o, 0, d, &o->out[0][d])) return false;
  for (int i = 0; i < op->in[0]->ndim; i++)
    if (op->in[0]->dims[i] != 1 || op->out[0].dims[map[i]] == 1) o->out[0][map[i]] = o->in[0][i];
  bucket_keep(o);
  return true;
}

static bool transpose(bucket_op *o) {
  ir_op *op = o->ops[0];
  int64_t perm[2 * IR_MAX_RANK];
  if (bucket_attr(o, "permutation", perm) != op->in[0]->ndim) return bucket_refuse(o, "changes its dims");
  for (int d = 0; d < op->in[0]->ndim; d++) o->out[0][d] = o->in[0][perm[d]];
  bucket_keep(o);
  return true;
}

static bool reshape(bucket_op *o) {
  ir_op *op = o->ops[0];
  val x = op->in[0], y = &op->out[0];
  bool uniform = true;
  for (int d = 0; d < x->ndim; d++)
    for (int i = 0; i < o->in[0][d].natoms; i++)
      uniform = uniform && (o->in[0][d].atoms[i].uniform || o->in[0][d].atoms[i].size == 1);
  bucket_keep(o);
  if (!uniform)
    return refuse_unless(ir_regroup(&o->b->g->mem, o->in[0], x->ndim, y->dims, y->ndim, o->out[0]), o,
                         "splits a dim that changes");
  for (int d = 0; d < y->ndim; d++)
    if (!bucket_uniform(o, 0, d, &o->out[0][d])) return false;
  return true;
}

static bool reverse(bucket_op *o) {
  ir_op *op = o->ops[0];
  ir_graph *g = o->b->g;
  int64_t rev[2 * IR_MAX_RANK];
  int n = bucket_attr(o, "dimensions", rev), ndim = op->in[0]->ndim;
  if (n < 0) return bucket_refuse(o, "changes its dims");
  memcpy(o->out[0], o->in[0], (size_t)ndim * sizeof(ir_extent));
  bucket_keep(o);
  for (int i = 0; i < n; i++) { /* what counts now stands at the end: it is moved to the front */
    int d = (int)rev[i];
    ir_linear count;
    if (!bucket_is_dynamic(&o->in[0][d])) continue;
    if (!bucket_count(&o->in[0][d], &count)) return bucket_refuse(o, "runs along a dim that is a product");
    int64_t stored = op->in[0]->dims[d], zeros[IR_MAX_RANK] = {0}, high[IR_MAX_RANK] = {0};
    high[d] = stored;
    val zero = ir_const_i(g, TPU_I32, 0, 0, NULL), starts[IR_MAX_RANK];
    for (int k = 0; k < ndim; k++) starts[k] = zero;
    starts[d] = ir_binary(g, IR_SUB, ir_const_i(g, TPU_I32, stored, 0, NULL), bucket_number(o->b, &count));
    val wide = ir_pad(g, o->result[0], ir_const_i(g, op->in[0]->dtype, 0, 0, NULL), zeros, high, NULL);
    o->result[0] = ir_dynamic_slice(g, wide, starts, op->in[0]->dims);
  }
  return true;
}

static bool slice(bucket_op *o) {
  ir_op *op = o->ops[0];
  bucket *b = o->b;
  val x = op->in[0];
  ir_linear start[2 * IR_MAX_RANK], limit[2 * IR_MAX_RANK];
  int64_t step[2 * IR_MAX_RANK], from[IR_MAX_RANK], to[IR_MAX_RANK];
  int n = x->ndim;
  if (bucket_attr_linear(o, "start_indices", start) != n || bucket_attr_linear(o, "limit_indices", limit) != n ||
      bucket_attr(o, "strides", step) != n)
    return bucket_refuse(o, "has numbers that depend on sizes in a way that is not understood");
  val starts[IR_MAX_RANK];
  bool moves = false;
  for (int d = 0; d < n; d++) {
    ir_linear size = limit[d], count;
    size.c -= start[d].c;
    for (int i = 0; i < IR_MAX_SYMBOLS; i++) size.k[i] -= start[d].k[i];
    int64_t stored = op->out[0].dims[d];
    from[d] = 0;
    to[d] = x->dims[d];
    starts[d] = ir_const_i(b->g, TPU_I32, 0, 0, NULL);
    bool dynamic = bucket_is_dynamic(&o->in[0][d]), fixed = bucket_fixed(&start[d]);
    if (fixed && start[d].c == 0 && step[d] == 1 && whole(o, 0, d, -1, d)) { /* all of it */
      o->out[0][d] = o->in[0][d];
      continue;
    }
    if (!dynamic && fixed && bucket_fixed(&limit[d])) { /* of a dim that does not change */
      o->out[0][d] = bucket_fixed_extent(b, stored);
      from[d] = start[d].c;
      to[d] = limit[d].c;
      continue;
    }
    if (step[d] != 1) return bucket_refuse(o, "steps through a dim that changes");
    if (dynamic && !to_front(o, 0, d, &count)) return false;
    x = op->in[0];
    o->out[0][d] = bucket_prefix(b, stored, &size);
    if (fixed) {
      from[d] = start[d].c;
      to[d] = from[d] + stored;
      continue;
    }
    /* It starts where the sizes say. What is read must not reach over the end, for then XLA would move the start. */
    if (!bucket_fixed(&size)) return bucket_refuse(o, "starts and ends where sizes say");
    starts[d] = bucket_number(b, &start[d]);
    to[d] = x->dims[d];
    moves = true;
  }
  val v = ir_slice(b->g, x, from, to, step);
  o->result[0] = moves ? ir_dynamic_slice(b->g, v, starts, op->out[0].dims) : v;
  return true;
}

static bool is_constant(val v, int64_t *out) {
  const char *text;
  if (!v->op || strcmp(v->op->name, "stablehlo.constant") != 0 || !splat_text(v->op->attrs, &text)) return false;
  *out = strtoll(text, NULL, 10);
  return true;
}

static bool dynamic_slice(bucket_op *o) {
  ir_op *op = o->ops[0];
  for (int d = 0; d < op->in[0]->ndim; d++) {
    ir_linear count;
    if (!whole(o, 0, d, -1, d) && !to_front(o, 0, d, &count)) return false;
    o->out[0][d] = o->in[0][d];
    if (whole(o, 0, d, -1, d)) continue;
    int64_t *sizes = arena_alloc(&o->b->g->mem, (size_t)o->b->nrows * sizeof *sizes);
    int64_t start;
    if (!sizes) return false;
    for (int r = 0; r < o->b->nrows; r++) sizes[r] = o->ops[r]->out[0].dims[d];
    if (!bucket_fit(o->b, sizes, &count)) return bucket_refuse(o, "gives a size that is not understood");
    /* XLA moves a start so that the part fits: for parts of all sizes it must fit where it is */
    if (!bucket_fixed(&count) && !(is_constant(op->in[1 + d], &start) && start + sizes[0] <= op->in[0]->dims[d]))
      return bucket_refuse(o, "takes a part whose size changes");
    o->out[0][d] = bucket_prefix(o->b, sizes[0], &count);
  }
  bucket_keep(o);
  return true;
}

/* An update of a size that changes: only what counts of it may be written. */
static bool dynamic_update_slice(bucket_op *o) {
  ir_op *op = o->ops[0];
  ir_graph *g = o->b->g;
  bool which[IR_MAX_RANK] = {false}, part = false;
  int64_t zeros[IR_MAX_RANK] = {0}, high[IR_MAX_RANK] = {0};
  for (int d = 0; d < op->in[0]->ndim; d++) {
    ir_linear count;
    bool all = whole(o, 0, d, 1, d);
    if (!all && !(to_front(o, 0, d, &count) && to_front(o, 1, d, &count))) return false;
    o->out[0][d] = o->in[0][d];
    if (all) {
      if (!align(o, 1, d, &o->out[0][d])) return false;
    } else if (bucket_is_dynamic(&o->in[1][d])) {
      which[d] = part = true;
      high[d] = op->in[1]->dims[d];
    }
  }
  val x = op->in[0], update = op->in[1];
  if (!part) {
    bucket_keep(o);
    return true;
  }
  val wide = ir_pad(g, x, ir_const_i(g, x->dtype, 0, 0, NULL), zeros, high, NULL);
  val now = ir_dynamic_slice(g, wide, op->in + 2, update->dims), none = ir_const_i(g, TPU_BOOL, 0, 0, NULL);
  val yes = ir_const_i(g, TPU_BOOL, 1, update->ndim, update->dims);
  val counts = bucket_mask(o->b, yes, o->in[1], which, none);
  if (!counts) return false;
  wide = ir_dynamic_update_slice(g, wide, ir_select(g, counts, update, now), op->in + 2);
  o->result[0] = ir_slice(g, wide, zeros, x->dims, NULL);
  return true;
}

static bool pad(bucket_op *o) {
  ir_op *op = o->ops[0];
  ir_graph *g = o->b->g;
  ir_linear low[2 * IR_MAX_RANK];
  int64_t interior[2 * IR_MAX_RANK];
  int n = op->in[0]->ndim;
  int64_t *sizes = arena_alloc(&g->mem, (size_t)o->b->nrows * sizeof *sizes);
  if (!sizes) return false;
  if (bucket_attr_linear(o, "edge_padding_low", low) != n || bucket_attr(o, "interior_padding", interior) != n)
    return bucket_refuse(o, "has numbers that depend on sizes in a way that is not understood");
  bool which[IR_MAX_RANK] = {false}, moves = false;
  val starts[IR_MAX_RANK];
  for (int d = 0; d < n; d++) {
    ir_linear count;
    bool dynamic = bucket_is_dynamic(&o->in[0][d]), same = op->out[0].dims[d] == op->in[0]->dims[d];
    starts[d] = ir_const_i(g, TPU_I32, 0, 0, NULL);
    o->out[0][d] = o->in[0][d];
    for (int r = 0; r < o->b->nrows; r++) {
      sizes[r] = o->ops[r]->out[0].dims[d];
      same = same && o->ops[r]->in[0]->dims[d] + sizes[0] == op->in[0]->dims[d] + sizes[r];
    }
    if (same && bucket_fixed(&low[d]) && !low[d].c && !interior[d]) continue;
    if (dynamic && interior[d]) return bucket_refuse(o, "spreads a dim that changes");
    if (dynamic && !to_front(o, 0, d, &count)) return false;
    if (!bucket_fit(o->b, sizes, &count)) return bucket_refuse(o, "gives a size that is not understood");
    o->out[0][d] = bucket_prefix(o->b, sizes[0], &count);
    which[d] = dynamic;
    if (bucket_fixed(&low[d])) continue;
    if (dynamic || interior[d]) return bucket_refuse(o, "starts where sizes say");
    starts[d] = bucket_number(o->b, &low[d]);
    moves = true;
  }
  if (!mask_operand(o, 0, which, op->in[1])) return false;
  if (!moves) {
    bucket_keep(o);
    return true;
  }
  for (int d = 0; d < n; d++)
    if (interior[d] || (low[d].c && bucket_fixed(&low[d])) || op->in[0]->dims[d] > op->out[0].dims[d])
      return bucket_refuse(o, "starts where sizes say, and pads another dim");
  o->result[0] = ir_dynamic_update_slice(g, ir_splat(g, op->in[1], n, op->out[0].dims), op->in[0], starts);
  return true;
}

static bool concatenate(bucket_op *o) {
  ir_op *op = o->ops[0];
  ir_graph *g = o->b->g;
  int64_t along, *sizes = arena_alloc(&g->mem, (size_t)o->b->nrows * sizeof *sizes);
  if (!sizes || bucket_attr(o, "dimension", &along) != 1) return bucket_refuse(o, "changes its dim");
  bool moves = false;
  ir_linear count, *counts = arena_alloc(&g->mem, (size_t)op->nin * sizeof *counts);
  if (!counts) return false;
  for (int d = 0; d < op->out[0].ndim; d++) {
    if (d == along) {
      for (int r = 0; r < o->b->nrows; r++) sizes[r] = o->ops[r]->out[0].dims[d];
      if (!bucket_fit(o->b, sizes, &count)) return bucket_refuse(o, "gives a size that is not understood");
      o->out[0][d] = bucket_prefix(o->b, sizes[0], &count);
      continue;
    }
    o->out[0][d] = o->in[0][d];
    for (int i = 1; i < op->nin; i++)
      if (!align(o, i, d, &o->out[0][d])) return false;
  }
  for (int i = 0; i < op->nin; i++) {
    if (!to_front(o, i, (int)along, &counts[i])) return false;
    moves = moves || (i + 1 < op->nin && !bucket_fixed(&counts[i]));
  }
  if (!moves) {
    bucket_keep(o);
    return true;
  }
  /* Each is written behind what counts of those before it, over what does not count of them. */
  val starts[IR_MAX_RANK], all = ir_const_i(g, op->out[0].dtype, 0, op->out[0].ndim, op->out[0].dims);
  for (int d = 0; d < op->out[0].ndim; d++) starts[d] = ir_const_i(g, TPU_I32, 0, 0, NULL);
  ir_linear at = {0};
  for (int i = 0; i < op->nin; i++) {
    starts[along] = bucket_number(o->b, &at);
    all = ir_dynamic_update_slice(g, all, op->in[i], starts);
    at.c += counts[i].c;
    for (int k = 0; k < IR_MAX_SYMBOLS; k++) at.k[k] += counts[i].k[k];
  }
  o->result[0] = all;
  return true;
}

/* ---- reductions ------------------------------------------------------------------------------------------------ */

/* n inputs of one shape: what their extents have in common, in extents of the first. */
static bool unify_inputs(bucket_op *o, int n) {
  for (int d = 0; d < o->ops[0]->in[0]->ndim; d++) {
    for (int i = 1; i < n; i++)
      if (!align(o, i, d, &o->in[0][d])) return false;
    for (int i = 1; i < n; i++) o->in[i][d] = o->in[0][d];
  }
  return true;
}

static bool reduce(bucket_op *o) {
  ir_op *op = o->ops[0];
  int64_t dims[2 * IR_MAX_RANK];
  bool gone[IR_MAX_RANK] = {false};
  int n = bucket_attr(o, "dimensions", dims);
  if (n < 0) return bucket_refuse(o, "changes its dims");
  if (!unify_inputs(o, op->nout)) return false;
  for (int i = 0; i < n; i++) gone[dims[i]] = true;
  for (int i = 0; i < op->nout; i++) {
    if (!mask_operand(o, i, gone, op->in[op->nout + i])) return false;
    for (int d = 0, k = 0; d < op->in[0]->ndim; d++)
      if (!gone[d]) o->out[i][k++] = o->in[i][d];
  }
  bucket_keep(o);
  return true;
}

/* Attributes of a window in dim d; the default when there is none. */
static ir_linear window_attr(const ir_linear *list, int n, int d, int64_t missing) {
  return n ? list[d] : (ir_linear){.c = missing};
}

static bool reduce_window(bucket_op *o) {
  ir_op *op = o->ops[0];
  bucket *b = o->b;
  ir_linear size[2 * IR_MAX_RANK], stride[2 * IR_MAX_RANK], base[2 * IR_MAX_RANK], dil[2 * IR_MAX_RANK],
      pads[2 * IR_MAX_RANK];
  int ndim = op->in[0]->ndim, nbase = bucket_attr_linear(o, "base_dilations", base);
  int ndil = bucket_attr_linear(o, "window_dilations", dil);
  bool which[IR_MAX_RANK] = {false};
  if (bucket_attr_linear(o, "window_dimensions", size) != ndim || nbase < 0 || ndil < 0 ||
      bucket_attr_linear(o, "window_strides", stride) != ndim || bucket_attr_linear(o, "padding", pads) != 2 * ndim)
    return bucket_refuse(o, "has numbers that depend on sizes in a way that is not understood");
  if (!unify_inputs(o, op->nout)) return false;
  for (int d = 0; d < ndim; d++) {
    int64_t *sizes = arena_alloc(&b->g->mem, (size_t)b->nrows * sizeof *sizes);
    ir_linear low = pads[2 * d], count, w = size[d];
    ir_linear one = window_attr(base, nbase, d, 1), two = window_attr(dil, ndil, d, 1);
    if (!sizes) return false;
    bool dynamic = bucket_is_dynamic(&o->in[0][d]);
    bool plain = bucket_fixed(&w) && w.c == 1 && bucket_fixed(&stride[d]) && stride[d].c == 1 && bucket_fixed(&low) &&
                 low.c == 0 && op->out[0].dims[d] == op->in[0]->dims[d];
    if (plain) {
      for (int i = 0; i < op->nout; i++) o->out[i][d] = o->in[0][d];
      continue;
    }
    bool fixed = !dynamic && bucket_fixed(&w) && bucket_fixed(&low) && bucket_fixed(&pads[2 * d + 1]);
    if (!fixed && (!dynamic || !bucket_count(&o->in[0][d], &count) || !bucket_fixed(&stride[d]) || stride[d].c != 1 ||
                   !bucket_fixed(&one) || one.c != 1 || !bucket_fixed(&two) || two.c != 1))
      return bucket_refuse(o, "goes along a dim that changes");
    bool starts = true, ends = true; /* it begins before all elements; ends behind all */
    ir_linear reach = w;
    reach.c -= low.c;
    for (int i = 0; i < IR_MAX_SYMBOLS; i++) reach.k[i] -= low.k[i];
    for (int r = 0; r < b->nrows; r++) {
      sizes[r] = o->ops[r]->out[0].dims[d];
      starts = starts && bucket_at(b, &low, r) >= sizes[r] - 1;
      ends = ends && bucket_at(b, &reach, r) >= o->ops[r]->in[0]->dims[d];
    }
    if (!fixed && !((bucket_fixed(&low) || starts) && (bucket_fixed(&reach) || ends)))
      return bucket_refuse(o, "has windows that depend on sizes");
    if (!bucket_fit(b, sizes, &count)) return bucket_refuse(o, "gives a size that is not understood");
    which[d] = dynamic;
    for (int i = 0; i < op->nout; i++) o->out[i][d] = bucket_prefix(b, sizes[0], &count);
  }
  for (int i = 0; i < op->nout; i++)
    if (!mask_operand(o, i, which, op->in[op->nout + i])) return false;
  bucket_keep(o);
  return true;
}

/* ---- products -------------------------------------------------------------------------------------------------- */

static bool dot(bucket_op *o) {
  ir_op *op = o->ops[0];
  ir_graph *g = o->b->g;
  int64_t batch[2][2 * IR_MAX_RANK], sum[2][2 * IR_MAX_RANK];
  int nbatch = bucket_attr(o, "lhs_batching_dimensions", batch[0]);
  int nsum = bucket_attr(o, "lhs_contracting_dimensions", sum[0]);
  if (nbatch < 0 || nsum < 0 || bucket_attr(o, "rhs_batching_dimensions", batch[1]) != nbatch ||
      bucket_attr(o, "rhs_contracting_dimensions", sum[1]) != nsum || !bucket_same_attrs(o))
    return bucket_refuse(o, "changes its dims");
  bool used[2][IR_MAX_RANK] = {{false}}, summed[2][IR_MAX_RANK] = {{false}};
  int n = 0;
  for (int i = 0; i < nbatch; i++) {
    o->out[0][n] = o->in[0][batch[0][i]];
    if (!align(o, 1, (int)batch[1][i], &o->out[0][n++])) return false;
    for (int s = 0; s < 2; s++) used[s][batch[s][i]] = true;
  }
  for (int i = 0; i < nsum; i++) {
    ir_extent e = o->in[0][sum[0][i]];
    if (!align(o, 1, (int)sum[1][i], &e)) return false;
    for (int s = 0; s < 2; s++) {
      used[s][sum[s][i]] = summed[s][sum[s][i]] = true;
      o->in[s][sum[s][i]] = e;
    }
  }
  for (int s = 0; s < 2; s++) {
    for (int d = 0; d < op->in[s]->ndim; d++)
      if (!used[s][d]) o->out[0][n++] = o->in[s][d];
    if (!mask_operand(o, s, summed[s], ir_const_i(g, op->in[s]->dtype, 0, 0, NULL))) return false;
  }
  bucket_keep(o);
  return true;
}

/* Which dim each letter or spatial number names: [b, f, 0, 1] gives 0, 1, then the spatial ones in order. */
static const char *conv_list(const char *p, const char *letters, int *where) {
  while (*p != '[') p++;
  int d = 0;
  for (p++; *p && *p != ']'; p++) {
    if (*p == ',' || *p == ' ') continue;
    if (*p == letters[0]) where[0] = d++;
    else if (*p == letters[1]) where[1] = d++;
    else {
      char *end;
      where[2 + strtol(p, &end, 10)] = d++;
      p = end - 1;
    }
  }
  return p;
}

static bool convolution(bucket_op *o) {
  ir_op *op = o->ops[0];
  bucket *b = o->b;
  ir_graph *g = b->g;
  int x[IR_MAX_RANK], w[IR_MAX_RANK], y[IR_MAX_RANK], rank = op->in[0]->ndim;
  const char *p = strstr(op->attrs, "stablehlo.conv<");
  if (!p) return bucket_refuse(o, "has no dimension numbers");
  conv_list(conv_list(conv_list(p, "bf", x), "oi", w), "bf", y);
  int64_t bg = 0, fg = 0, ones[2 * IR_MAX_RANK], xdil[2 * IR_MAX_RANK], wdil[2 * IR_MAX_RANK];
  ir_linear pads[2 * IR_MAX_RANK];
  if (bucket_attr(o, "batch_group_count", &bg) != 1 || bucket_attr(o, "feature_group_count", &fg) != 1 ||
      bucket_attr(o, "window_strides", ones) != rank - 2 || bucket_attr(o, "lhs_dilation", xdil) != rank - 2 ||
      bucket_attr(o, "rhs_dilation", wdil) != rank - 2 || bucket_attr_linear(o, "padding", pads) != 2 * (rank - 2))
    return bucket_refuse(o, "has numbers that depend on sizes in a way that is not understood");
  bool dyn_sum = bucket_is_dynamic(&o->in[0][x[1]]) || bucket_is_dynamic(&o->in[1][w[1]]);
  if ((bucket_is_dynamic(&o->in[0][x[0]]) && bg != 1) || (bucket_is_dynamic(&o->in[1][w[0]]) && fg * bg != 1) ||
      (dyn_sum && fg != 1))
    return bucket_refuse(o, "has groups along a dim that changes");
  ir_extent e;
  if (dyn_sum) {
    e = o->in[0][x[1]];
    if (!align(o, 1, w[1], &e)) return false;
    o->in[0][x[1]] = o->in[1][w[1]] = e;
  }
  o->out[0][y[0]] = bg == 1 ? o->in[0][x[0]] : bucket_fixed_extent(b, op->out[0].dims[y[0]]);
  o->out[0][y[1]] = o->in[1][w[0]];
  bool x_mask[IR_MAX_RANK] = {false}, w_mask[IR_MAX_RANK] = {false};
  x_mask[x[1]] = w_mask[w[1]] = true;
  for (int i = 0; i < rank - 2; i++) {
    bool dynamic = bucket_is_dynamic(&o->in[0][x[2 + i]]) || bucket_is_dynamic(&o->in[1][w[2 + i]]);
    int64_t *sizes = arena_alloc(&g->mem, (size_t)b->nrows * sizeof *sizes);
    ir_linear count;
    if (!sizes) return false;
    for (int r = 0; r < b->nrows; r++) sizes[r] = o->ops[r]->out[0].dims[y[2 + i]];
    if (!bucket_fit(b, sizes, &count)) return bucket_refuse(o, "gives a size that is not understood");
    o->out[0][y[2 + i]] = bucket_prefix(b, sizes[0], &count);
    if (!dynamic && bucket_fixed(&count)) continue;
    /* Places that do not count are zeros, like those of the padding at the end. */
    if (!dynamic || ones[i] != 1 || xdil[i] != 1 || !bucket_fixed(&pads[2 * i]) ||
        !bucket_count(&o->in[0][x[2 + i]], &count) || !bucket_count(&o->in[1][w[2 + i]], &count))
      return bucket_refuse(o, "goes along a dim that changes");
    x_mask[x[2 + i]] = w_mask[w[2 + i]] = true;
  }
  if (!mask_operand(o, 0, x_mask, ir_const_i(g, op->in[0]->dtype, 0, 0, NULL)) ||
      !mask_operand(o, 1, w_mask, ir_const_i(g, op->in[1]->dtype, 0, 0, NULL)))
    return false;
  bucket_keep(o);
  return true;
}

/* ---- indexing -------------------------------------------------------------------------------------------------- */

typedef struct {
  int n;
  int64_t dims[2 * IR_MAX_RANK];
} dim_list;

static dim_list dims_of(const bucket_op *o, const char *name) {
  dim_list l;
  l.n = bucket_attr(o, name, l.dims);
  return l;
}

static bool in_list(const dim_list *l, int d) {
  for (int i = 0; i < l->n; i++)
    if (l->dims[i] == d) return true;
  return false;
}

static bool gather(bucket_op *o) {
  ir_op *op = o->ops[0];
  dim_list offset = dims_of(o, "offset_dims"), collapsed = dims_of(o, "collapsed_slice_dims");
  dim_list batching = dims_of(o, "operand_batching_dims"), of_index = dims_of(o, "start_indices_batching_dims");
  dim_list vector = dims_of(o, "index_vector_dim");
  ir_linear sizes[2 * IR_MAX_RANK];
  val x = op->in[0], at = op->in[1];
  if (offset.n < 0 || collapsed.n < 0 || batching.n < 0 || of_index.n != batching.n || vector.n != 1 ||
      bucket_attr_linear(o, "slice_sizes", sizes) != x->ndim)
    return bucket_refuse(o, "has numbers that depend on sizes in a way that is not understood");
  for (int d = 0; d < x->ndim; d++) { /* a part is taken by its number */
    ir_linear count;
    bool all = in_list(&batching, d) || !bucket_is_dynamic(&o->in[0][d]);
    for (int r = 0; !all && r < o->b->nrows && bucket_at(o->b, &sizes[d], r) == o->ops[r]->in[0]->dims[d]; r++)
      all = r + 1 == o->b->nrows;
    if (!all && !to_front(o, 0, d, &count)) return false;
  }
  for (int i = 0; i < batching.n; i++) {
    if (!align(o, 0, (int)batching.dims[i], &o->in[1][of_index.dims[i]])) return false;
  }
  int k = 0, s = 0;
  for (int d = 0; d < op->out[0].ndim; d++) {
    if (!in_list(&offset, d)) {
      if (s == vector.dims[0]) s++;
      o->out[0][d] = o->in[1][s++];
      continue;
    }
    while (in_list(&collapsed, k) || in_list(&batching, k)) k++;
    int64_t n = op->out[0].dims[d];
    if (whole(o, 0, k, -1, d)) o->out[0][d] = o->in[0][k];
    else if (bucket_fixed(&sizes[k])) o->out[0][d] = bucket_fixed_extent(o->b, n);
    else return bucket_refuse(o, "takes a part whose size changes");
    k++;
  }
  if (vector.dims[0] < at->ndim && bucket_is_dynamic(&o->in[1][vector.dims[0]]))
    return bucket_refuse(o, "has index vectors whose length changes");
  bucket_keep(o);
  return true;
}

/* Updates that do not count get an index out of range: StableHLO leaves them out. */
static bool scatter(bucket_op *o) {
  ir_op *op = o->ops[0];
  ir_graph *g = o->b->g;
  dim_list window = dims_of(o, "update_window_dims"), inserted = dims_of(o, "inserted_window_dims");
  dim_list batching = dims_of(o, "input_batching_dims"), of_index = dims_of(o, "scatter_indices_batching_dims");
  dim_list vector = dims_of(o, "index_vector_dim");
  val x = op->in[0], at = op->in[1], updates = op->in[2];
  if (window.n < 0 || inserted.n < 0 || batching.n < 0 || of_index.n != batching.n || vector.n != 1 ||
      !bucket_same_attrs(o))
    return bucket_refuse(o, "has numbers that depend on sizes in a way that is not understood");
  dim_list scattered = dims_of(o, "scatter_dims_to_operand_dims");
  for (int i = 0; i < scattered.n; i++) { /* written by number */
    ir_linear count;
    if (!to_front(o, 0, (int)scattered.dims[i], &count)) return false;
  }
  memcpy(o->out[0], o->in[0], (size_t)x->ndim * sizeof(ir_extent));
  for (int i = 0; i < batching.n; i++) {
    if (!align(o, 1, (int)of_index.dims[i], &o->out[0][batching.dims[i]])) return false;
  }
  int k = 0, s = 0;
  bool which[IR_MAX_RANK] = {false}, marked = false;
  for (int d = 0; d < updates->ndim; d++) {
    if (!in_list(&window, d)) {
      if (s == vector.dims[0]) s++;
      if (!align(o, 2, d, &o->in[1][s])) return false;
      /* in a batching dim the places that do not count are written, and do not count in the result either */
      which[s] = bucket_is_dynamic(&o->in[1][s]) && !in_list(&of_index, s);
      marked = marked || which[s];
      s++;
      continue;
    }
    while (in_list(&inserted, k) || in_list(&batching, k)) k++;
    if (whole(o, 0, k, 2, d)) {
      if (!align(o, 2, d, &o->out[0][k])) return false;
    } else if (bucket_is_dynamic(&o->in[2][d])) {
      return bucket_refuse(o, "writes a part whose size changes");
    }
    k++;
  }
  if (marked) {
    val out = ir_is_unsigned(at->dtype) ? ir_const_max(g, at->dtype, 0, NULL) : ir_const_i(g, at->dtype, -1, 0, NULL);
    if (!mask_operand(o, 1, which, out)) return false;
    const char *dims = strstr(op->attrs, "scatter_dimension_numbers");
    if (!dims) return bucket_refuse(o, "has no dimension numbers");
    op->attrs = arena_printf(&g->mem, "indices_are_sorted = false, unique_indices = false, %s", dims);
  }
  bucket_keep(o);
  return true;
}

/* Along a dim that changes, what does not count goes to the end: a first key says so. */
static bool sort(bucket_op *o) {
  ir_op *op = o->ops[0];
  ir_graph *g = o->b->g;
  int64_t along;
  int n = op->nin;
  if (bucket_attr(o, "dimension", &along) != 1 || !unify_inputs(o, n)) return bucket_refuse(o, "changes its dim");
  for (int i = 0; i < n; i++) memcpy(o->out[i], o->in[i], (size_t)op->in[i]->ndim * sizeof(ir_extent));
  if (!bucket_is_dynamic(&o->in[0][along])) {
    bucket_keep(o);
    return true;
  }
  ir_linear count;
  if (!bucket_count(&o->in[0][along], &count)) {
    for (int i = 0; i < n; i++) {
      if (!to_front(o, i, (int)along, &count)) return false;
      o->out[i][along] = o->in[i][along];
    }
  }
  bool which[IR_MAX_RANK] = {false};
  which[along] = true;
  const int64_t *dims = op->in[0]->dims;
  int ndim = op->in[0]->ndim;
  val behind =
      bucket_mask(o->b, ir_const_i(g, TPU_I32, 0, ndim, dims), o->in[0], which, ir_const_i(g, TPU_I32, 1, 0, NULL));
  val *in = arena_alloc(&g->mem, (size_t)(n + 1) * sizeof *in);
  val *args = arena_alloc(&g->mem, (size_t)(2 * n + 2) * sizeof *args);
  if (!behind || !in || !args) return false;
  in[0] = behind;
  memcpy(in + 1, op->in, (size_t)n * sizeof *in);
  ir_op *wide = node_op(g, op->name, op->attrs, in, n + 1, n + 1, 1);
  if (!wide) return false;
  for (int i = 0; i <= n; i++) node_type(g, wide, i, in[i]->dtype, ndim, in[i]->dims);
  if (!node_open(g, wide, "sort")) return false;
  node_region(g, 2 * n + 2);
  ir_block *body = wide->regions[0], *old = op->regions[0];
  if (!body) return false;
  for (int i = 0; i < 2; i++) args[i] = node_region_arg(g, i, TPU_I32, 0, node_poison(g)->dims);
  for (int i = 0; i < 2 * n; i++) { /* the old comparator with its arguments moves into the new region */
    body->args[i + 2] = old->args[i];
    ((ir_arg *)(void *)old->args[i])->block = body;
  }
  body->first = old->first;
  body->last = old->last;
  for (ir_op *inner = body->first; inner; inner = inner->next) inner->block = body;
  val less = ir_compare(g, IR_LT, args[0], args[1]), equal = ir_compare(g, IR_EQ, args[0], args[1]);
  less = ir_binary(g, IR_OR, less, ir_binary(g, IR_AND, equal, old->results[0]));
  if (!node_ok(g) || !node_region_end(g, &less, 1)) return false;
  node_close(g);
  for (int i = 0; i < n; i++) o->result[i] = &wide->out[i + 1];
  return true;
}

/* What does not count is the lowest, and stands behind what counts: of equals the first is taken. */
static bool top_k(bucket_op *o) {
  ir_op *op = o->ops[0];
  int last = op->in[0]->ndim - 1;
  bool which[IR_MAX_RANK] = {false};
  which[last] = true;
  ir_linear count;
  if (!bucket_same_attrs(o)) return bucket_refuse(o, "takes a number that changes");
  if (!to_front(o, 0, last, &count)) return false;
  if (!mask_operand(o, 0, which, ir_const_min(o->b->g, op->in[0]->dtype, 0, NULL))) return false;
  for (int i = 0; i < 2; i++) {
    memcpy(o->out[i], o->in[0], (size_t)last * sizeof(ir_extent));
    o->out[i][last] = bucket_fixed_extent(o->b, op->out[i].dims[last]);
  }
  bucket_keep(o);
  return true;
}

/* ---- operations on whole matrices or lines: other dims are a batch ------------------------------------------------
 */

static bool batched(bucket_op *o, int inner) {
  ir_op *op = o->ops[0];
  for (int i = 0; i < op->nin; i++) {
    int n = op->in[i]->ndim;
    if (any_dynamic(o->in[i] + (n > inner ? n - inner : 0), n < inner ? n : inner))
      return bucket_refuse(o, "works along a dim that changes");
  }
  int batch = op->out[0].ndim - inner;
  for (int d = 0; d < op->out[0].ndim; d++) {
    o->out[0][d] = d < batch ? o->in[0][d] : bucket_fixed_extent(o->b, op->out[0].dims[d]);
    for (int i = 1; d < batch && i < op->nin; i++)
      if (!align(o, i, d, &o->out[0][d])) return false;
  }
  bucket_keep(o);
  return true;
}

static bool matrices(bucket_op *o) { return batched(o, 2); }

static bool fft(bucket_op *o) {
  int64_t lengths[2 * IR_MAX_RANK];
  int n = bucket_attr(o, "fft_length", lengths);
  return n < 0 ? bucket_refuse(o, "has a length that changes") : batched(o, n);
}

static bool select_and_scatter(bucket_op *o) {
  ir_op *op = o->ops[0];
  int64_t size[2 * IR_MAX_RANK];
  if (bucket_attr(o, "window_dimensions", size) != op->in[0]->ndim) return bucket_refuse(o, "has windows that change");
  for (int d = 0; d < op->in[0]->ndim; d++) {
    o->out[0][d] = o->in[0][d];
    if (!bucket_is_dynamic(&o->in[0][d]) && !bucket_is_dynamic(&o->in[1][d])) continue;
    if (size[d] != 1 || op->in[0]->dims[d] != op->in[1]->dims[d])
      return bucket_refuse(o, "goes along a dim that changes");
    if (!align(o, 1, d, &o->out[0][d])) return false;
  }
  bucket_keep(o);
  return true;
}

/* ---- the table ------------------------------------------------------------------------------------------------- */

bucket_rule *bucket_find_rule(const char *name) {
  static const struct {
    const char *name;
    bucket_rule *rule;
  } rules[] = {
#define X(id, mlir, arity) {mlir, elementwise},
#include "ir/ops.def"
#undef X
      {"stablehlo.compare", elementwise},
      {"stablehlo.select", elementwise},
      {"stablehlo.clamp", elementwise},
      {"stablehlo.convert", elementwise},
      {"stablehlo.reduce_precision", elementwise},
      {"stablehlo.bitcast_convert", bitcast},
      {"stablehlo.optimization_barrier", barrier},
      {"stablehlo.iota", iota},
      {"stablehlo.constant", constant},
      {"stablehlo.broadcast_in_dim", broadcast},
      {"stablehlo.transpose", transpose},
      {"stablehlo.reshape", reshape},
      {"stablehlo.reverse", reverse},
      {"stablehlo.slice", slice},
      {"stablehlo.dynamic_slice", dynamic_slice},
      {"stablehlo.dynamic_update_slice", dynamic_update_slice},
      {"stablehlo.pad", pad},
      {"stablehlo.concatenate", concatenate},
      {"stablehlo.reduce", reduce},
      {"stablehlo.reduce_window", reduce_window},
      {"stablehlo.dot_general", dot},
      {"stablehlo.convolution", convolution},
      {"stablehlo.gather", gather},
      {"stablehlo.scatter", scatter},
      {"stablehlo.sort", sort},
      {"chlo.top_k", top_k},
      {"stablehlo.cholesky", matrices},
      {"stablehlo.triangular_solve", matrices},
      {"stablehlo.fft", fft},
      {"stablehlo.select_and_scatter", select_and_scatter},
  };
  for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
    if (!strcmp(rules[i].name, name)) return rules[i].rule;
  return NULL;
}
