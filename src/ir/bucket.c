/* bucket.c - a program for one size made into one for all sizes of a bucket: ir_bucket (ir.h).
 *
 * The same program made for several sizes is compared, operation by operation. What is equal in all of them does not
 * depend on sizes; a number that differs must be a linear function of the symbols. So the graph for the largest size
 * tells for every value which of its elements count at a smaller size. The others hold anything (NaN too): an operation
 * that would mix them with those that count gets them masked first (bucket_rules.c). Whatever has no rule is refused.
 */
#include "ir/bucket.h"

#include <stdlib.h>

bool bucket_refuse(const bucket_op *o, const char *why) {
  const ir_op *op = o->ops[0];
  const char *name = strncmp(op->name, "stablehlo.", 10) ? op->name : op->name + 10;
  ir_fail(o->b->g, TPU_ERR_RUNTIME, "%s %s%s%s", name, why, op->loc ? " " : "", op->loc ? op->loc : "");
  return false;
}

void bucket_keep(bucket_op *o) {
  node_append(o->b->g, o->ops[0]);
  for (int i = 0; i < o->ops[0]->nout; i++) o->result[i] = &o->ops[0]->out[i];
}

/* ---- numbers that depend on sizes ------------------------------------------------------------------------------ */

static int64_t size_of(const bucket *b, int row, int symbol) {
  return b->spec->sizes[row * b->spec->nsymbols + symbol];
}

int64_t bucket_at(const bucket *b, const ir_linear *f, int row) {
  int64_t v = f->c;
  for (int i = 0; i < b->spec->nsymbols; i++) v += f->k[i] * size_of(b, row, i);
  return v;
}

bool bucket_fit(const bucket *b, const int64_t *values, ir_linear *out) {
  *out = (ir_linear){.c = values[0]};
  for (int s = 0; s < b->spec->nsymbols; s++) {
    for (int row = 1; row < b->nrows; row++) {
      bool alone = size_of(b, row, s) != size_of(b, 0, s);
      for (int i = 0; i < b->spec->nsymbols; i++) alone = alone && (i == s || size_of(b, row, i) == size_of(b, 0, i));
      if (!alone) continue;
      int64_t step = size_of(b, 0, s) - size_of(b, row, s), diff = values[0] - values[row];
      if (diff % step) return false;
      out->k[s] = diff / step;
      out->c -= out->k[s] * size_of(b, 0, s);
      break;
    }
  }
  for (int row = 0; row < b->nrows; row++)
    if (bucket_at(b, out, row) != values[row]) return false;
  return true;
}

val bucket_number(bucket *b, const ir_linear *f) {
  val v = NULL;
  for (int i = 0; i < b->spec->nsymbols; i++) {
    if (!f->k[i]) continue;
    val term = b->symbols[i];
    if (f->k[i] != 1) term = ir_binary(b->g, IR_MUL, term, ir_const_i(b->g, TPU_I32, f->k[i], 0, NULL));
    v = v ? ir_binary(b->g, IR_ADD, v, term) : term;
  }
  if (!v) return ir_const_i(b->g, TPU_I32, f->c, 0, NULL);
  return f->c ? ir_binary(b->g, IR_ADD, v, ir_const_i(b->g, TPU_I32, f->c, 0, NULL)) : v;
}

/* ---- attributes ------------------------------------------------------------------------------------------------ */

bool bucket_same_attrs(const bucket_op *o) {
  for (int r = 1; r < o->b->nrows; r++)
    if (strcmp(o->ops[0]->attrs, o->ops[r]->attrs) != 0) return false;
  return true;
}

int bucket_attr_linear(const bucket_op *o, const char *name, ir_linear *out) {
  const bucket *b = o->b;
  int64_t (*all)[2 * IR_MAX_RANK] = arena_alloc(&b->g->mem, (size_t)b->nrows * sizeof *all);
  int64_t *one = arena_alloc(&b->g->mem, (size_t)b->nrows * sizeof *one);
  if (!all || !one) return -1;
  int n = 0;
  for (int r = 0; r < b->nrows; r++) {
    int m = attr_numbers(o->ops[r]->attrs, name, all[r]);
    if (r && m != n) return -1;
    n = m;
  }
  for (int i = 0; i < n; i++) {
    for (int r = 0; r < b->nrows; r++) one[r] = all[r][i];
    if (!bucket_fit(b, one, &out[i])) return -1;
  }
  return n;
}

int bucket_attr(const bucket_op *o, const char *name, int64_t *out) {
  ir_linear f[2 * IR_MAX_RANK];
  int n = bucket_attr_linear(o, name, f);
  for (int i = 0; i < n; i++) {
    if (!bucket_fixed(&f[i])) return -1;
    out[i] = f[i].c;
  }
  return n;
}

/* ---- extents --------------------------------------------------------------------------------------------------- */

static ir_extent one_atom(bucket *b, int64_t size, const ir_linear *count, bool uniform) {
  ir_atom *a = arena_alloc(&b->g->mem, sizeof *a);
  if (!a) return (ir_extent){0};
  *a = (ir_atom){.size = size, .count = *count, .uniform = uniform, .known = true};
  a->dynamic = !bucket_fixed(count);
  return (ir_extent){1, a};
}

ir_extent bucket_fixed_extent(bucket *b, int64_t size) { return one_atom(b, size, &(ir_linear){.c = size}, false); }
ir_extent bucket_prefix(bucket *b, int64_t size, const ir_linear *count) { return one_atom(b, size, count, false); }

bool bucket_uniform(bucket_op *o, int r, int d, ir_extent *out) {
  bucket *b = o->b;
  int64_t *sizes = arena_alloc(&b->g->mem, (size_t)b->nrows * sizeof *sizes);
  if (!sizes) return false;
  for (int row = 0; row < b->nrows; row++) sizes[row] = o->ops[row]->out[r].dims[d];
  ir_linear f;
  bool known = bucket_fit(b, sizes, &f);
  *out = one_atom(b, sizes[0], known ? &f : &(ir_linear){.c = sizes[0]}, true);
  if (!out->natoms) return false;
  out->atoms[0].known = known;
  if (!known) out->atoms[0].dynamic = true;
  return true;
}

bool bucket_is_dynamic(const ir_extent *e) {
  for (int i = 0; i < e->natoms; i++)
    if (e->atoms[i].dynamic) return true;
  return false;
}

static bool all_uniform(const ir_extent *e) {
  for (int i = 0; i < e->natoms; i++)
    if (!e->atoms[i].uniform) return false;
  return true;
}

static ir_linear scaled(const ir_linear *f, int64_t by) {
  ir_linear out = {.c = f->c * by};
  for (int i = 0; i < IR_MAX_SYMBOLS; i++) out.k[i] = f->k[i] * by;
  return out;
}

bool bucket_count(const ir_extent *e, ir_linear *out) {
  int64_t inner = 1;
  for (int i = e->natoms - 1; i > 0; i--) {
    if (e->atoms[i].dynamic) return false;
    inner *= e->atoms[i].size;
  }
  if (!e->natoms || !e->atoms[0].known) return false; /* none: out of memory */
  *out = scaled(&e->atoms[0].count, inner);
  return true;
}

bool bucket_unify(const ir_extent *x, const ir_extent *y, ir_extent *out) {
  *out = *x;
  if (!bucket_is_dynamic(x) && !bucket_is_dynamic(y)) return true;
  if (all_uniform(y)) return true;
  *out = *y;
  if (all_uniform(x)) return true;
  *out = *x;
  ir_linear f, h;
  if (bucket_count(x, &f) && bucket_count(y, &h)) return !memcmp(&f, &h, sizeof f);
  if (x->natoms != y->natoms) return false;
  for (int i = 0; i < x->natoms; i++) {
    const ir_atom *p = &x->atoms[i], *q = &y->atoms[i];
    if (p->size != q->size || !p->known || !q->known || memcmp(&p->count, &q->count, sizeof p->count) != 0)
      return false;
  }
  return true;
}

/* Splits a into the outer `size` elements and the rest; false if the border between what counts and what does not lies
 * inside. */
static bool split(ir_atom *a, int64_t size, ir_atom *outer) {
  int64_t rest = a->size / size;
  *outer = *a;
  outer->size = size;
  *a = (ir_atom){.size = rest, .count = {.c = rest}, .uniform = outer->uniform, .known = true};
  if (!outer->dynamic) {
    outer->count.c = size;
    return true;
  }
  bool ok = outer->known && outer->count.c % rest == 0;
  outer->count.c /= rest;
  for (int i = 0; i < IR_MAX_SYMBOLS; i++) {
    ok = ok && outer->count.k[i] % rest == 0;
    outer->count.k[i] /= rest;
  }
  return ok;
}

static void put_atom(ir_extent *e, const ir_atom *a) {
  ir_atom *last = e->natoms ? &e->atoms[e->natoms - 1] : NULL;
  if (last && !last->dynamic && !a->dynamic) {
    last->size *= a->size;
    last->count.c = last->size;
    last->uniform = last->uniform && a->uniform;
    return;
  }
  e->atoms[e->natoms++] = *a;
}

bool ir_regroup(arena *mem, const ir_extent *in, int nin, const int64_t *dims, int ndim, ir_extent *out) {
  int most = 0, at = 0;
  for (int d = 0; d < nin; d++) most += in[d].natoms;
  ir_extent all = {0, arena_alloc(mem, (size_t)(most + 1) * sizeof(ir_atom))};
  if (!all.atoms) return false;
  for (int d = 0; d < nin; d++)
    for (int i = 0; i < in[d].natoms; i++)
      if (in[d].atoms[i].size != 1) put_atom(&all, &in[d].atoms[i]);
  for (int d = 0; d < ndim; d++) {
    int64_t need = dims[d];
    ir_extent *e = &out[d];
    *e = (ir_extent){0, arena_alloc(mem, (size_t)(all.natoms - at + 2) * sizeof(ir_atom))};
    if (!e->atoms) return false;
    if (need == 1) put_atom(e, &(ir_atom){.size = 1, .count = {.c = 1}, .known = true});
    while (need > 1) {
      if (at == all.natoms) return false;
      ir_atom *a = &all.atoms[at], outer;
      if (need % a->size == 0) {
        need /= a->size;
        put_atom(e, a);
        at++;
      } else if (a->size % need == 0 && split(a, need, &outer)) {
        need = 1;
        put_atom(e, &outer);
      } else {
        return false;
      }
    }
  }
  return true;
}

/* Which places of a dim of n elements count: bool[n]. */
static val counts(bucket *b, const ir_extent *e, int64_t n) {
  ir_graph *g = b->g;
  val all = NULL, at = ir_iota(g, TPU_I32, 1, &n, 0);
  int64_t inner = 1;
  for (int i = e->natoms - 1; i >= 0; i--) {
    const ir_atom *a = &e->atoms[i];
    if (a->dynamic) {
      if (!a->known) {
        ir_fail(g, TPU_ERR_RUNTIME, "a size is a product of sizes that change");
        return NULL;
      }
      val place = at;
      if (inner > 1) place = ir_binary(g, IR_DIV, place, ir_const_i(g, TPU_I32, inner, 1, &n));
      if (i) place = ir_binary(g, IR_REM, place, ir_const_i(g, TPU_I32, a->size, 1, &n));
      val ok = ir_compare(g, IR_LT, place, ir_splat(g, bucket_number(b, &a->count), 1, &n));
      all = all ? ir_binary(g, IR_AND, all, ok) : ok;
    }
    inner *= a->size;
  }
  return all;
}

val bucket_mask(bucket *b, val x, const ir_extent *dims, const bool *which, val fill) {
  ir_graph *g = b->g;
  val all = NULL;
  for (int d = 0; d < x->ndim; d++) {
    if (!which[d] || !bucket_is_dynamic(&dims[d])) continue;
    val ok = counts(b, &dims[d], x->dims[d]);
    if (!ok) return NULL;
    ok = ir_broadcast(g, ok, x->ndim, x->dims, &d);
    all = all ? ir_binary(g, IR_AND, all, ok) : ok;
  }
  if (all) x = ir_select(g, all, x, ir_splat(g, fill, x->ndim, x->dims));
  return node_ok(g) ? x : NULL;
}

/* ---- flat values: what counts stands in front, as a dense tensor of the true size -------------------------------- */

/* The atoms of all dims up to the last dynamic one; *inner: elements behind it. */
static int outer_atoms(const ir_extent *dims, int ndim, const ir_atom **out, int64_t *inner) {
  int n = 0, last = 0;
  *inner = 1;
  for (int d = 0; d < ndim; d++)
    for (int i = 0; i < dims[d].natoms && n < 2 * IR_MAX_RANK; i++) {
      out[n++] = &dims[d].atoms[i];
      if (dims[d].atoms[i].dynamic) last = n;
    }
  for (int i = last; i < n; i++) *inner *= out[i]->size;
  return last;
}

/* What stands in dim d of x at the places that `at` gives, int32 numbers. */
static val take_along(ir_graph *g, val x, int d, val at) {
  int offset[IR_MAX_RANK], n = 0, along[1] = {d};
  int64_t slice[IR_MAX_RANK], column[2] = {at->dims[0], 1};
  for (int i = 0; i < x->ndim; i++) {
    slice[i] = i == d ? 1 : x->dims[i];
    if (i != d) offset[n++] = i;
  }
  const ir_gather_dims dims = {.noffset = n,
                               .offset_dims = offset,
                               .ncollapsed = 1,
                               .collapsed_dims = along,
                               .nstart = 1,
                               .start_index_map = along,
                               .index_vector_dim = 1};
  return ir_gather(g, x, ir_reshape(g, at, 2, column), &dims, slice, false);
}

typedef enum { STORED, REAL } measure;

static val atom_size(bucket *b, const ir_atom *a, measure m) {
  return m == REAL ? bucket_number(b, &a->count) : ir_const_i(b->g, TPU_I32, a->size, 0, NULL);
}

/* Numbers of places, an int32 each: taken apart by the sizes of one measure, and put together by those of the other. */
static val renumber(bucket *b, val at, const ir_atom *const *atoms, int n, measure from, measure to) {
  ir_graph *g = b->g;
  val out = NULL, stride = ir_const_i(g, TPU_I32, 1, 0, NULL);
  for (int i = n - 1; i >= 0; i--) {
    val size = ir_splat(g, atom_size(b, atoms[i], from), 1, at->dims), digit = i ? ir_binary(g, IR_REM, at, size) : at;
    val term = ir_binary(g, IR_MUL, digit, ir_splat(g, stride, 1, at->dims));
    out = out ? ir_binary(g, IR_ADD, out, term) : term;
    at = ir_binary(g, IR_DIV, at, size);
    stride = ir_binary(g, IR_MUL, stride, atom_size(b, atoms[i], to));
  }
  return out;
}

val bucket_relayout(bucket *b, val x, int d, const ir_extent *from, const ir_extent *to) {
  ir_graph *g = b->g;
  const ir_atom *atoms[2][IR_MAX_RANK];
  const ir_extent *sides[2] = {to, from};
  for (int k = 0; k < 2; k++)
    for (int i = 0; i < sides[k]->natoms; i++) {
      if (i == IR_MAX_RANK || !sides[k]->atoms[i].known)
        return ir_fail(g, TPU_ERR_RUNTIME, "a size is a product of sizes that change");
      atoms[k][i] = &sides[k]->atoms[i];
    }
  val at = ir_iota(g, TPU_I32, 1, &x->dims[d], 0);
  at = renumber(b, at, atoms[0], to->natoms, STORED, REAL);
  at = renumber(b, at, atoms[1], from->natoms, REAL, STORED);
  return take_along(g, x, d, at);
}

/* pack: padded -> flat; else flat -> padded. */
static val repack(bucket *b, val x, const ir_extent *dims, int ndim, const int64_t *sizes, bool pack) {
  ir_graph *g = b->g;
  const ir_atom *atoms[2 * IR_MAX_RANK];
  int64_t inner, rows = 1, all = 1;
  int n = outer_atoms(dims, ndim, atoms, &inner);
  for (int i = 0; i < n; i++) rows *= atoms[i]->size;
  all = rows * inner;
  if (rows >= INT32_MAX) {
    ir_fail(g, TPU_ERR_RUNTIME, "a padded value has more than 2^31 rows");
    return NULL;
  }
  bool front = true; /* nothing but the outermost atom is dynamic: it is in front already */
  for (int64_t i = 0, before = 1; i < n; before *= atoms[i++]->size) {
    front = front && (!atoms[i]->dynamic || before == 1);
    if (atoms[i]->known) continue;
    ir_fail(g, TPU_ERR_RUNTIME, "a size is a product of sizes that change");
    return NULL;
  }
  if (!front) {
    val at = ir_iota(g, TPU_I32, 1, &rows, 0);
    at = renumber(b, at, atoms, n, pack ? REAL : STORED, pack ? STORED : REAL);
    x = take_along(g, ir_reshape(g, x, 2, (const int64_t[]){rows, inner}), 0, at);
  }
  return pack ? ir_reshape(g, x, 1, &all) : ir_reshape(g, x, ndim, sizes);
}

/* ---- comparing ------------------------------------------------------------------------------------------------- */

static bool add_value(bucket *b, val *vs) {
  if (b->nof == b->cap) {
    int32_t cap = b->cap ? 2 * b->cap : 256;
    bucket_info *p = arena_alloc(&b->g->mem, (size_t)cap * sizeof *p);
    if (!p) return false;
    if (b->nof) memcpy(p, b->of, (size_t)b->nof * sizeof *p);
    b->of = p;
    b->cap = cap;
  }
  for (int r = 0; r < b->nrows; r++) vs[r]->id = b->nof;
  b->of[b->nof++] = (bucket_info){vs[0], NULL};
  return true;
}

static bool same_dims(const bucket *b, val *vs) {
  for (int r = 1; r < b->nrows; r++)
    if (!ir_same_dims(vs[0], vs[r])) return false;
  return true;
}

static bool differ(bucket *b, const char *what) {
  ir_fail(b->g, TPU_ERR_RUNTIME, "the program is another one for other sizes (%s)", what);
  return false;
}

static ir_op *live(ir_op *op, uint32_t epoch) {
  while (op && op->live != epoch) op = op->next;
  return op;
}

static bool same_operands(bucket *b, ir_op **ops) {
  for (int r = 1; r < b->nrows; r++) {
    bool same = !strcmp(ops[0]->name, ops[r]->name) && ops[0]->nin == ops[r]->nin && ops[0]->nout == ops[r]->nout &&
                ops[0]->nregions == ops[r]->nregions;
    for (int i = 0; same && i < ops[0]->nin; i++) same = ops[0]->in[i]->id == ops[r]->in[i]->id;
    if (!same) return differ(b, ops[0]->name);
  }
  return true;
}

/* Values of the same place in all graphs. */
static bool add_place(bucket *b, val *vs, ir_op **ops, int out) {
  for (int r = 0; r < b->nrows; r++) vs[r] = &ops[r]->out[out];
  for (int r = 1; r < b->nrows; r++)
    if (vs[r]->dtype != vs[0]->dtype || vs[r]->ndim != vs[0]->ndim) return differ(b, ops[0]->name);
  return add_value(b, vs);
}

/* Inside of regions nothing may depend on sizes. */
static bool same_block(bucket *b, ir_block **blocks) {
  size_t bytes = (size_t)b->nrows * sizeof(void *);
  val *vs = arena_alloc(&b->g->mem, bytes);
  ir_op **ops = arena_alloc(&b->g->mem, bytes);
  ir_block **inner = arena_alloc(&b->g->mem, bytes);
  if (!vs || !ops || !inner) return false;
  for (int i = 0; i < blocks[0]->nargs; i++) {
    for (int r = 0; r < b->nrows; r++) vs[r] = blocks[r]->args[i];
    if (!same_dims(b, vs)) return differ(b, "sizes inside of control flow");
    if (!add_value(b, vs)) return false;
  }
  for (int r = 0; r < b->nrows; r++) ops[r] = live(blocks[r]->first, b->spec->epochs[r]);
  for (;;) {
    for (int r = 1; r < b->nrows; r++)
      if (!ops[r] != !ops[0]) return differ(b, "a region");
    if (!ops[0]) break;
    if (!same_operands(b, ops)) return false;
    for (int i = 0; i < ops[0]->nin; i++) {
      const bucket_info *v = &b->of[ops[0]->in[i]->id];
      if (v->dims) return differ(b, "sizes inside of control flow");
      ops[0]->in[i] = v->now;
    }
    for (int r = 1; r < b->nrows; r++)
      if (strcmp(ops[0]->attrs, ops[r]->attrs) != 0) return differ(b, "a number inside of control flow");
    for (int k = 0; k < ops[0]->nregions; k++) {
      for (int r = 0; r < b->nrows; r++) inner[r] = ops[r]->regions[k];
      if (!same_block(b, inner)) return false;
    }
    for (int i = 0; i < ops[0]->nout; i++) {
      if (!add_place(b, vs, ops, i)) return false;
      if (!same_dims(b, vs)) return differ(b, "sizes inside of control flow");
    }
    for (int r = 0; r < b->nrows; r++) ops[r] = live(ops[r]->next, b->spec->epochs[r]);
  }
  for (int i = 0; i < blocks[0]->nresults; i++) {
    const bucket_info *v = &b->of[blocks[0]->results[i]->id];
    if (v->dims) return differ(b, "sizes inside of control flow");
    blocks[0]->results[i] = v->now;
  }
  return true;
}

/* The dims that a value has by its extents, in all samples. */
static bool check_extents(bucket *b, val *vs, const ir_extent *dims, const char *name) {
  for (int r = 0; r < b->nrows; r++)
    for (int d = 0; d < vs[0]->ndim; d++) {
      int64_t n = 1, stored = 1;
      bool known = true;
      for (int i = 0; i < dims[d].natoms; i++) {
        n *= bucket_at(b, &dims[d].atoms[i].count, r);
        stored *= dims[d].atoms[i].size;
        known = known && dims[d].atoms[i].known;
      }
      if ((known && n != vs[r]->dims[d]) || stored != vs[0]->dims[d]) return differ(b, name);
    }
  return true;
}

static bool one_op(bucket *b, ir_op **ops, val *vs) {
  ir_op *op = ops[0];
  if (!same_operands(b, ops)) return false;
  bucket_op o = {.b = b, .ops = ops};
  arena *mem = &b->g->mem;
  o.in = arena_alloc(mem, (size_t)(op->nin + 1) * sizeof *o.in);
  o.out = arena_alloc(mem, (size_t)(op->nout + 1) * sizeof *o.out);
  o.result = arena_alloc(mem, (size_t)(op->nout + 1) * sizeof *o.result);
  ir_block **inner = arena_alloc(mem, (size_t)b->nrows * sizeof *inner);
  if (!o.in || !o.out || !o.result || !inner) return false;
  bool plain = bucket_same_attrs(&o);
  for (int i = 0; i < op->nin; i++) plain = plain && !b->of[op->in[i]->id].dims;
  for (int i = 0; i < op->nout; i++)
    for (int r = 1; r < b->nrows; r++) plain = plain && ir_same_dims(&op->out[i], &ops[r]->out[i]);
  for (int i = 0; i < op->nin; i++) {
    val v = op->in[i];
    const bucket_info *f = &b->of[v->id];
    if (!plain && f->dims) {
      o.in[i] = f->dims;
    } else if (!plain) {
      o.in[i] = arena_alloc(mem, (size_t)(v->ndim + 1) * sizeof(ir_extent));
      for (int d = 0; o.in[i] && d < v->ndim; d++) o.in[i][d] = bucket_fixed_extent(b, v->dims[d]);
    }
    op->in[i] = f->now;
  }
  for (int k = 0; k < op->nregions; k++) {
    for (int r = 0; r < b->nrows; r++) inner[r] = ops[r]->regions[k];
    if (!same_block(b, inner)) return false;
  }
  bucket_rule *rule = NULL;
  if (!plain && !(rule = bucket_find_rule(op->name))) return bucket_refuse(&o, "has no rule for sizes that change");
  for (int i = 0; i < op->nout; i++) {
    o.out[i] = arena_alloc(mem, (size_t)(op->out[i].ndim + 1) * sizeof(ir_extent));
    if (!o.out[i]) return false;
  }
  if (plain) bucket_keep(&o);
  else if (!rule(&o) || !node_ok(b->g)) return false;
  for (int i = 0; i < op->nout; i++) {
    if (!add_place(b, vs, ops, i)) return false;
    bucket_info *f = &b->of[b->nof - 1];
    f->now = o.result[i];
    bool dynamic = false;
    for (int d = 0; !plain && d < vs[0]->ndim; d++) dynamic = dynamic || bucket_is_dynamic(&o.out[i][d]);
    if (!dynamic && !same_dims(b, vs)) return differ(b, op->name);
    if (!dynamic) continue;
    if (!check_extents(b, vs, o.out[i], op->name)) return false;
    f->dims = o.out[i];
  }
  return true;
}

/* ---- parameters and outputs ------------------------------------------------------------------------------------ */

static bool parameters(bucket *b, val *vs) {
  ir_graph *g = b->g;
  int n = g->top.nargs;
  for (int i = 0; i < n; i++) {
    for (int r = 0; r < b->nrows; r++) {
      const ir_graph *s = r ? b->spec->samples[r - 1] : g;
      if (s->top.nargs != n) return differ(b, "parameters");
      vs[r] = s->top.args[i];
      if (vs[r]->ndim != vs[0]->ndim || vs[r]->dtype != vs[0]->dtype) return differ(b, "parameters");
    }
    if (!add_value(b, vs)) return false;
    if (same_dims(b, vs)) continue;
    bucket_info *f = &b->of[b->nof - 1];
    val p = vs[0];
    ir_extent *dims = b->spec->params[i];
    if (dims) { /* it comes padded */
      f->dims = dims;
      if (!check_extents(b, vs, dims, "a padded input")) return false;
      continue;
    }
    dims = arena_alloc(&g->mem, (size_t)p->ndim * sizeof *dims);
    int64_t *sizes = arena_alloc(&g->mem, (size_t)b->nrows * sizeof *sizes), *flat = arena_alloc(&g->mem, sizeof *flat);
    if (!dims || !sizes || !flat) return false;
    for (int d = 0; d < p->ndim; d++) {
      ir_linear count;
      for (int r = 0; r < b->nrows; r++) sizes[r] = vs[r]->dims[d];
      if (!bucket_fit(b, sizes, &count)) return differ(b, "the size of an input");
      dims[d] = bucket_prefix(b, p->dims[d], &count);
    }
    f->dims = dims;
    *flat = ir_numel(p);
    int ndim = p->ndim;
    const int64_t *stored = p->dims;
    p->ndim = 1;
    p->dims = flat;
    val now = repack(b, p, dims, ndim, stored, false);
    if (!now) return false;
    b->of[p->id].now = now;
  }
  return node_ok(g);
}

static bool outputs(bucket *b) {
  ir_graph *g = b->g;
  for (int r = 1; r < b->nrows; r++)
    if (b->spec->samples[r - 1]->noutputs != g->noutputs) return differ(b, "outputs");
  for (int i = 0; i < g->noutputs; i++) {
    ir_result *o = &g->outputs[i];
    val old = o->v;
    for (int r = 1; r < b->nrows; r++)
      if (b->spec->samples[r - 1]->outputs[i].v->id != old->id) return differ(b, "outputs");
    const bucket_info *f = &b->of[old->id];
    b->spec->outputs[i] = f->dims;
    o->v = f->now;
    if (!f->dims) continue;
    if (b->spec->written[i]) return differ(b, "an input that is written has a size that changes");
    o->alias = -1;
    if (b->spec->pack[i]) o->v = repack(b, f->now, f->dims, f->now->ndim, f->now->dims, true);
    if (!o->v) return false;
  }
  return node_ok(g);
}

tpu_err *ir_bucket(ir_graph *g, ir_bucket_spec *spec) {
  bucket b = {.g = g, .spec = spec, .nrows = spec->nsamples + 1};
  size_t bytes = (size_t)b.nrows * sizeof(void *);
  val *vs = arena_alloc(&g->mem, bytes);
  ir_op **ops = arena_alloc(&g->mem, bytes);
  spec->epochs = arena_alloc(&g->mem, (size_t)b.nrows * sizeof *spec->epochs);
  if (!vs || !ops || !spec->epochs) return err_nomem();
  if (spec->nsymbols > IR_MAX_SYMBOLS) {
    ir_fail(g, TPU_ERR_RUNTIME, "more than %d sizes change", IR_MAX_SYMBOLS);
    return ir_take_error(g);
  }
  for (int r = 0; r < b.nrows; r++) {
    ir_graph *s = r ? spec->samples[r - 1] : g;
    node_mark_live(s);
    spec->epochs[r] = s->epoch;
    ops[r] = live(s->top.first, s->epoch);
  }
  g->top.first = g->top.last = NULL; /* operations are appended again, new ones between them */
  val given[IR_MAX_SYMBOLS];
  int n = g->top.nargs;
  for (int i = 0; i < spec->nsymbols; i++) given[i] = ir_param(g, TPU_I64, 0, NULL);
  if (!node_ok(g)) return ir_take_error(g);
  g->top.nargs = n; /* compared without them */
  for (int i = 0; i < spec->nsymbols; i++) b.symbols[i] = ir_convert(g, given[i], TPU_I32);
  bool ok = parameters(&b, vs);
  while (ok) {
    for (int r = 1; r < b.nrows; r++)
      if (!ops[r] != !ops[0]) ok = differ(&b, "its length");
    if (!ok || !ops[0]) break;
    ir_op *next = ops[0]->next;
    g->loc = ops[0]->loc;
    ok = one_op(&b, ops, vs);
    if (!ok) break;
    ops[0] = live(next, spec->epochs[0]);
    for (int r = 1; r < b.nrows; r++) ops[r] = live(ops[r]->next, spec->epochs[r]);
  }
  if (ok) outputs(&b);
  g->top.nargs = n + spec->nsymbols;
  return ir_failed(g) ? ir_take_error(g) : NULL;
}
