/* flash.c - the kernels of attention (after Dao et al., FlashAttention, 2022, and Milakov and Gimelshein, 2018).
 *
 * A point of the grid takes one block of queries and one block of keys. Scores are kept transposed, keys down and
 * queries along: maxima and sums over keys then are taken down the registers, not across their lanes, and what belongs
 * to a query (maximum, sum, logsumexp) lies as a row. Exponentials are powers of 2: the scale is multiplied by log2(e).
 *
 * Causal: of n blocks, query block i sees the key blocks 0..i. Two of them are done in turn, p and n-1-p, which see n+1
 * blocks together, so that all points of the grid [n/2, n+1] have work. In the backward pass the same of key blocks,
 * which are seen by the query blocks j..n-1.
 *
 * Backward: one kernel goes through the key blocks and, inside, the query blocks. Gradients of keys and values gather
 * in their windows; those of the queries of a head in a window as large as all of them. Where that is too large, one
 * kernel makes the gradients of keys and values, another those of queries, and each makes the scores.
 *
 * Heads as wide as the core's lanes are read and written where models have them, [b, s, h * d]: a head is a column of
 * blocks, and nothing is transposed before or after. Narrower heads are no whole blocks of that: they lie [b, h, s, d].
 */
#include "ops/flash.h"

#include <float.h>
#include <math.h>

#include "ir/mosaic.h"

enum { LANES = 128, LARGEST_BLOCK = 1024, WORTH_FROM = 512 * 512 }; /* scores of a head */
static const int64_t RESIDENT_MAX = 12 << 20; /* bytes of the window of all queries, of which the core holds two */

static int64_t block_of(int64_t size, int64_t divisor) {
  int64_t b = LARGEST_BLOCK;
  while (b >= LANES && size % (b * divisor)) b /= 2;
  return b;
}
static int64_t query_block(const flash_shape *f) { return block_of(f->s, f->causal ? 2 : 1); }
static int64_t key_block(const flash_shape *f) { return f->causal ? query_block(f) : block_of(f->t, 1); }
static int64_t group(const flash_shape *f) { return f->h / f->kh; }

/* Whether what has heads is [b, s, h * d] for the kernels, and not [b, h, s, d]. */
static bool by_token(const flash_shape *f) { return f->d % LANES == 0 && f->e % LANES == 0; }
/* The shape of n tokens of some heads, each so wide; a block is that of one head. Gives the rank. */
static int laid(const flash_shape *f, int64_t b, int64_t heads, int64_t n, int64_t width, int64_t *dims) {
  if (by_token(f)) dims[0] = b, dims[1] = n, dims[2] = heads * width;
  else dims[0] = b, dims[1] = heads, dims[2] = n, dims[3] = width;
  return by_token(f) ? 3 : 4;
}
/* [b, h, s, n] as the kernels take it, and back. */
static val to_kernel(op_ctx *c, const flash_shape *f, val x) {
  if (ir_failed(G) || !by_token(f)) return x;
  return t_reshape(c, t_transpose(c, x, 1, 2), 3, (const int64_t[]){x->dims[0], x->dims[2], x->dims[1] * x->dims[3]});
}
static val from_kernel(op_ctx *c, val x, int64_t heads) {
  if (ir_failed(G) || x->ndim == 4) return x;
  const int64_t dims[4] = {x->dims[0], x->dims[1], heads, x->dims[2] / heads};
  return t_transpose(c, t_reshape(c, x, 4, dims), 1, 2);
}

/* Divides a sharded program's attention by its batch and heads; false: something else is divided, or nothing is known.
 */
static bool divide(op_ctx *c, flash_shape *f, val q, val k, val v) {
  const int naxes = ir_mesh_axes(G);
  int64_t *place = arena_alloc(ir_arena(G), (size_t)naxes * sizeof *place);
  if (!place || !(ir_find_place(G, q, place) || ir_find_place(G, k, place) || ir_find_place(G, v, place))) return false;
  int64_t parts[2] = {1, 1};
  for (int a = 0; a < naxes; a++) {
    const int64_t n = ir_axis_size(G, a);
    if (n == 1) place[a] = -1;
    else if (place[a] != 0 && place[a] != 1) return false;
    else parts[place[a]] *= n;
  }
  if (f->b % parts[0] || f->kh % parts[1]) return false;
  f->b /= parts[0];
  f->h /= parts[1];
  f->kh /= parts[1];
  f->place = place;
  return true;
}

bool flash_fits(op_ctx *c, flash_shape *f, val q, val k, val v) {
  return ir_kernels(G) && f->b && f->h && f->s * f->t >= WORTH_FROM && query_block(f) >= LANES &&
         key_block(f) >= LANES && f->d % 8 == 0 && f->e % 8 == 0 && f->d >= 32 && f->e >= 32 && f->d <= 256 &&
         f->e <= 256 && (!f->causal || f->s == f->t) && (!ir_mesh_axes(G) || divide(c, f, q, k, v));
}

/* In a sharded program kernels run on parts: `in` becomes them, all but the first, which every device has whole. */
static void begin_parts(op_ctx *c, const flash_shape *f, val *in, int n) {
  if (!f->place) return;
  enum { MOST = 8 };
  const int64_t *places[MOST];
  int64_t *whole = arena_alloc(ir_arena(G), (size_t)ir_mesh_axes(G) * sizeof *whole);
  for (int a = 0; whole && a < ir_mesh_axes(G); a++) whole[a] = -1;
  for (int i = 0; i < n; i++) places[i] = i ? f->place : whole;
  if (whole) ir_manual_begin(G, in, n, places, in);
}
static void end_parts(op_ctx *c, const flash_shape *f, val *out, int n) {
  const int64_t *places[] = {f->place, f->place, f->place};
  if (f->place) ir_manual_end(G, out, n, places, out);
}

/* ---- the grid --------------------------------------------------------------------------------------------------- */

typedef struct {
  const flash_shape *f;
  bool keys; /* the outer blocks are those of keys: [b, kh, key blocks, query blocks, group]; else [b, h, query blocks,
                key blocks] */
} walk;

/* The blocks of queries and of keys at this point. */
static void blocks(mosaic *m, const walk *w, mval *i, mval *j) {
  const mval *at = mosaic_grid(m);
  mval outer = at[2], inner = at[3];
  *i = w->keys ? inner : outer;
  *j = w->keys ? outer : inner;
  if (!w->f->causal) return;
  int64_t n = w->f->s / query_block(w->f);
  mval last = mosaic_binary(m, MOSAIC_SUB, mosaic_int(m, n - 1), outer);
  if (w->keys) { /* block p is seen by n - p blocks, then block n-1-p by p + 1 */
    mval seen = mosaic_binary(m, MOSAIC_SUB, mosaic_int(m, n), outer), first = mosaic_compare(m, IR_LT, inner, seen);
    *j = mosaic_select(m, first, outer, last);
    mval step = mosaic_select(m, first, inner, mosaic_binary(m, MOSAIC_SUB, inner, seen));
    *i = mosaic_binary(m, MOSAIC_ADD, *j, step);
  } else { /* block p sees p + 1 blocks, then block n-1-p sees n - p */
    mval first = mosaic_compare(m, IR_LE, inner, outer), seen = mosaic_binary(m, MOSAIC_ADD, outer, mosaic_int(m, 1));
    *i = mosaic_select(m, first, outer, last);
    *j = mosaic_select(m, first, inner, mosaic_binary(m, MOSAIC_SUB, inner, seen));
  }
}

static mval query_head(mosaic *m, const walk *w) {
  const mval *at = mosaic_grid(m);
  if (!w->keys) return at[1];
  return mosaic_binary(m, MOSAIC_ADD, mosaic_binary(m, MOSAIC_MUL, at[1], mosaic_int(m, group(w->f))), at[4]);
}

static void at_scalar(mosaic *m, const mval *grid, const void *ctx, mval *out) {
  (void)grid, (void)ctx;
  out[0] = out[1] = mosaic_int(m, 0);
}
/* A block of a head's tokens, in what is laid out by `laid`. */
static void at_block(mosaic *m, const walk *w, mval b, mval head, mval block, mval *out) {
  out[0] = b;
  if (by_token(w->f)) out[1] = block, out[2] = head;
  else out[1] = head, out[2] = block, out[3] = mosaic_int(m, 0);
}
static void at_queries(mosaic *m, const mval *grid, const void *ctx, mval *out) {
  mval i, j, head = query_head(m, ctx);
  blocks(m, ctx, &i, &j);
  at_block(m, ctx, grid[0], head, i, out);
}
static void at_keys(mosaic *m, const mval *grid, const void *ctx, mval *out) {
  const walk *w = ctx;
  mval i, j, head = w->keys ? grid[1] : mosaic_binary(m, MOSAIC_DIV, grid[1], mosaic_int(m, group(w->f)));
  blocks(m, w, &i, &j);
  at_block(m, w, grid[0], head, j, out);
}
static void at_row(mosaic *m, const mval *grid, const void *ctx, mval *out) { /* [b, h, 1, s] */
  mval j;
  out[0] = grid[0];
  out[1] = query_head(m, ctx);
  out[2] = mosaic_int(m, 0);
  blocks(m, ctx, &out[3], &j);
}
static void at_group(mosaic *m, const mval *grid, const void *ctx,
                     mval *out) { /* [b, h, s, n], all queries of a key head */
  (void)ctx;
  out[0] = grid[0];
  out[1] = grid[1];
  out[2] = out[3] = mosaic_int(m, 0);
}

/* A window of n tokens of a head. */
static mval window(mosaic *m, const walk *w, tpu_dtype d, int64_t n, int64_t width, mosaic_at at) {
  int64_t dims[4];
  const int rank = laid(w->f, 1, 1, n, width, dims);
  return mosaic_window(m, MOSAIC_VMEM, d, rank, dims, at, w);
}

static mosaic *begin(op_ctx *c, const char *name, const walk *w) {
  const flash_shape *f = w->f;
  int64_t nq = f->s / query_block(f), nk = f->t / key_block(f);
  int64_t outer = f->causal ? nq / 2 : w->keys ? nk : nq, inner = f->causal ? nq + 1 : w->keys ? nq : nk;
  return mosaic_begin(G, name, w->keys ? 5 : 4, (const int64_t[]){f->b, w->keys ? f->kh : f->h, outer, inner, group(f)},
                      w->keys ? 2 : 3);
}

/* ---- pieces of the kernels --------------------------------------------------------------------------------------- */

typedef struct {
  mosaic *m;
  const flash_shape *f;
  int64_t qb, kb;
  mval i, j, zero;      /* blocks; the index 0 */
  mval at[MOSAIC_RANK]; /* zeros */
} kernel;

static kernel start(mosaic *m, const walk *w) {
  kernel k = {.m = m, .f = w->f, .qb = query_block(w->f), .kb = key_block(w->f)};
  blocks(m, w, &k.i, &k.j);
  k.zero = mosaic_index(m, 0);
  for (int i = 0; i < MOSAIC_RANK; i++) k.at[i] = k.zero;
  return k;
}

/* Dims [1, ..., n, width] of a block in memory. */
static const int64_t *block_dims(mval ref, int64_t n, int64_t width, int64_t *dims) {
  for (int i = 0; i < ref.ndim; i++) dims[i] = 1;
  dims[ref.ndim - 2] = n;
  dims[ref.ndim - 1] = width;
  return dims;
}

/* A block as a matrix [n, width], and one taken from scratch memory. */
static mval matrix(kernel *k, mval ref, int64_t n, int64_t width) {
  int64_t dims[MOSAIC_RANK];
  mval x = mosaic_load(k->m, ref, k->at, ref.ndim, block_dims(ref, n, width, dims));
  return mosaic_reshape(k->m, x, 2, (const int64_t[]){n, width});
}
static mval kept(kernel *k, mval ref) { return mosaic_load(k->m, ref, k->at, 2, ref.dims); }

/* Sets the block of n rows at `at`. */
static void fill(kernel *k, mval ref, const mval *at, int64_t n, double v) {
  int64_t dims[MOSAIC_RANK];
  block_dims(ref, n, ref.dims[ref.ndim - 1], dims);
  mosaic_store(k->m, mosaic_broadcast(k->m, mosaic_float(k->m, v), ref.ndim, dims), ref, at);
}
/* Writes a matrix as a block; adds one to a block of float32. */
static void write(kernel *k, mval ref, const mval *at, mval x) {
  int64_t dims[MOSAIC_RANK];
  mosaic_store(k->m, mosaic_reshape(k->m, x, ref.ndim, block_dims(ref, x.dims[0], x.dims[1], dims)), ref, at);
}
static void add_to(kernel *k, mval ref, const mval *at, mval x) {
  int64_t dims[MOSAIC_RANK];
  block_dims(ref, x.dims[0], x.dims[1], dims);
  mval old = mosaic_load(k->m, ref, at, ref.ndim, dims);
  mosaic_store(k->m, mosaic_binary(k->m, MOSAIC_ADD, old, mosaic_reshape(k->m, x, ref.ndim, dims)), ref, at);
}

/* Scores times log2(e), [keys, queries]; what causality hides at -inf. */
static mval scores_of(kernel *k, mval scale, mval q, mval key) {
  mosaic *m = k->m;
  mval s = mosaic_matmul(m, key, 1, q, 1);
  s = mosaic_binary(m, MOSAIC_MUL, s, mosaic_broadcast(m, mosaic_load(m, scale, k->at, 0, NULL), 2, s.dims));
  if (!k->f->causal) return s;
  mval below = mosaic_binary(m, MOSAIC_SUB, mosaic_iota(m, 2, s.dims, 0), mosaic_iota(m, 2, s.dims, 1));
  mval ahead = mosaic_binary(m, MOSAIC_MUL, mosaic_binary(m, MOSAIC_SUB, k->i, k->j), mosaic_int(m, k->qb));
  mval seen = mosaic_compare(m, IR_LE, below, mosaic_broadcast(m, ahead, 2, s.dims));
  return mosaic_select(m, seen, s, mosaic_broadcast(m, mosaic_float(m, -INFINITY), 2, s.dims));
}

/* exp2(s - row) */
static mval weights(kernel *k, mval s, mval row) {
  return mosaic_exp2(k->m, mosaic_binary(k->m, MOSAIC_SUB, s, mosaic_broadcast(k->m, row, 2, s.dims)));
}

/* Core memory that a kernel may use: windows twice, scratch memory, and what the compiler was seen to need besides (not
 * two values as large as a block of scores), with room to spare. What it leaves is used for what runs before and after.
 */
static int64_t core_memory(const flash_shape *f, int64_t resident) {
  int64_t qb = query_block(f), kb = key_block(f), width = f->d + f->e;
  return 2 * (2 * qb * width * 2 + 2 * kb * width * 4 + resident) + 3 * qb * kb * 4 + (2 << 20);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

typedef struct {
  mval scale, q, k, v, out, lse, top, sum, acc;
} forward_refs;

static void forward_body(kernel *k, const forward_refs *r) {
  mosaic *m = k->m;
  const int64_t e = k->f->e, qb = k->qb, kb = k->kb;
  mosaic_if(m, mosaic_compare(m, IR_EQ, k->j, mosaic_int(m, 0)));
  fill(k, r->top, k->at, 1, -FLT_MAX); /* finite: scores of -inf have the weight 0 */
  fill(k, r->sum, k->at, 1, 0);
  fill(k, r->acc, k->at, e, 0);
  mosaic_endif(m);
  mval s = scores_of(k, r->scale, matrix(k, r->q, qb, k->f->d), matrix(k, r->k, kb, k->f->d));
  mval old = kept(k, r->top), top = mosaic_binary(m, MOSAIC_MAX, old, mosaic_reduce(m, MOSAIC_MAX, s, -INFINITY));
  mval p = weights(k, s, top), shrink = mosaic_exp2(m, mosaic_binary(m, MOSAIC_SUB, old, top));
  mval sum = mosaic_binary(m, MOSAIC_MUL, kept(k, r->sum), shrink);
  mosaic_store(m, mosaic_binary(m, MOSAIC_ADD, sum, mosaic_reduce(m, MOSAIC_ADD, p, 0)), r->sum, k->at);
  mosaic_store(m, top, r->top, k->at);
  mval more = mosaic_matmul(m, matrix(k, r->v, kb, e), 0, mosaic_bf16(m, p), 0);
  mval acc = mosaic_binary(m, MOSAIC_MUL, kept(k, r->acc), mosaic_broadcast(m, shrink, 2, more.dims));
  mosaic_store(m, mosaic_binary(m, MOSAIC_ADD, acc, more), r->acc, k->at);
  mosaic_if(m, mosaic_compare(m, IR_EQ, k->j, k->f->causal ? k->i : mosaic_int(m, k->f->t / kb - 1)));
  mval total = kept(k, r->sum), whole = kept(k, r->acc);
  mval y = mosaic_binary(m, MOSAIC_DIV, whole, mosaic_broadcast(m, total, 2, whole.dims));
  write(k, r->out, k->at, mosaic_bf16(m, mosaic_transpose(m, y)));
  mval lse = mosaic_binary(m, MOSAIC_ADD, kept(k, r->top), mosaic_log2(m, total));
  lse = mosaic_binary(m, MOSAIC_MUL, lse, mosaic_broadcast(m, mosaic_float(m, 1 / M_LOG2E), 2, lse.dims));
  write(k, r->lse, k->at, lse);
  mosaic_endif(m);
}

/* The scale by which exponents of 2 are made, as a kernel takes it. */
static val scale_in_twos(op_ctx *c, val scale) {
  return t_reshape(c, t_mul(c, scale, t_scalar(c, TPU_F32, M_LOG2E)), 2, (const int64_t[]){1, 1});
}

void flash_forward(op_ctx *c, const flash_shape *f, val q, val k, val v, val scale, val *out, val *lse) {
  const int64_t qb = query_block(f), kb = key_block(f);
  val in[4] = {scale_in_twos(c, scale), q, k, v}, made[2];
  *out = *lse = q;
  begin_parts(c, f, in, 4);
  for (int i = 1; i < 4; i++) in[i] = to_kernel(c, f, in[i]);
  walk w = {f, false};
  mosaic *m = begin(c, "attention", &w);
  if (!m) return;
  forward_refs r;
  r.scale = mosaic_window(m, MOSAIC_SMEM, TPU_F32, 2, (const int64_t[]){1, 1}, at_scalar, &w);
  r.q = window(m, &w, TPU_BF16, qb, f->d, at_queries);
  r.k = window(m, &w, TPU_BF16, kb, f->d, at_keys);
  r.v = window(m, &w, TPU_BF16, kb, f->e, at_keys);
  r.out = window(m, &w, TPU_BF16, qb, f->e, at_queries);
  r.lse = mosaic_window(m, MOSAIC_VMEM, TPU_F32, 4, (const int64_t[]){1, 1, 1, qb}, at_row, &w);
  r.top = mosaic_scratch(m, TPU_F32, 2, (const int64_t[]){1, qb});
  r.sum = mosaic_scratch(m, TPU_F32, 2, (const int64_t[]){1, qb});
  r.acc = mosaic_scratch(m, TPU_F32, 2, (const int64_t[]){f->e, qb});
  kernel body = start(m, &w);
  forward_body(&body, &r);
  const double pairs = (double)f->b * (double)f->h * (double)f->s * (double)(f->causal ? f->s + qb : 2 * f->t) / 2;
  const mosaic_cost cost = {2 * pairs * (double)(f->d + f->e), pairs, core_memory(f, 0)};
  int64_t od[4], ld[4] = {f->b, f->h, 1, f->s};
  const int on = laid(f, f->b, f->h, f->s, f->e, od);
  mosaic_end(m, &cost, in, 4, 2, (const tpu_dtype[]){TPU_BF16, TPU_F32}, (const int[]){on, 4},
             (const int64_t *const[]){od, ld}, made);
  made[0] = from_kernel(c, made[0], f->h);
  end_parts(c, f, made, 2);
  if (ir_failed(G)) return;
  *out = made[0];
  *lse = t_squeeze(c, made[1], 2);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

typedef struct {
  mval scale, q, k, v, g, lse, delta, dq, dk, dv;
  bool resident; /* dq holds all queries of a key head */
} backward_refs;

static void backward_body(kernel *k, const backward_refs *r, bool queries, bool keys) {
  mosaic *m = k->m;
  const mval *point = mosaic_grid(m);
  const int64_t d = k->f->d, e = k->f->e, qb = k->qb, kb = k->kb;
  mval at[MOSAIC_RANK] = {k->zero, k->zero, k->zero, k->zero};
  if (r->resident) {
    at[1] = mosaic_to_index(m, point[4]);
    at[2] = mosaic_to_index(m, mosaic_binary(m, MOSAIC_MUL, k->i, mosaic_int(m, qb)));
  }
  if (queries) { /* key block 0 is the first that a query block meets */
    mosaic_if(m, mosaic_compare(m, IR_EQ, k->j, mosaic_int(m, 0)));
    fill(k, r->dq, at, qb, 0);
    mosaic_endif(m);
  }
  if (keys) {
    mval first = mosaic_compare(m, IR_EQ, k->i, k->f->causal ? k->j : mosaic_int(m, 0));
    mosaic_if(m, mosaic_binary(m, MOSAIC_AND, first, mosaic_compare(m, IR_EQ, point[4], mosaic_int(m, 0))));
    fill(k, r->dk, k->at, kb, 0);
    fill(k, r->dv, k->at, kb, 0);
    mosaic_endif(m);
  }
  mval q = matrix(k, r->q, qb, d), key = matrix(k, r->k, kb, d), v = matrix(k, r->v, kb, e), g = matrix(k, r->g, qb, e);
  mval p = weights(k, scores_of(k, r->scale, q, key), matrix(k, r->lse, 1, qb));
  if (keys) add_to(k, r->dv, k->at, mosaic_matmul(m, mosaic_bf16(m, p), 1, g, 0));
  mval dp = mosaic_matmul(m, v, 1, g, 1);
  dp = mosaic_binary(m, MOSAIC_SUB, dp, mosaic_broadcast(m, matrix(k, r->delta, 1, qb), 2, dp.dims));
  mval ds = mosaic_bf16(m, mosaic_binary(m, MOSAIC_MUL, p, dp));
  if (keys) add_to(k, r->dk, k->at, mosaic_matmul(m, ds, 1, q, 0));
  if (queries) add_to(k, r->dq, at, mosaic_matmul(m, ds, 0, key, 0));
}

/* The kernel that makes gradients of queries, of keys and values, or of all; without the scale. */
static void backward_kernel(op_ctx *c, const flash_shape *f, const val *in, bool queries, bool keys, val *out) {
  const int64_t qb = query_block(f), kb = key_block(f), n = group(f);
  walk w = {f, keys};
  mosaic *m =
      begin(c, keys ? queries ? "attention_backward" : "attention_backward_keys" : "attention_backward_queries", &w);
  for (int i = 0; i < queries + 2 * keys; i++) out[i] = in[0];
  if (!m) return;
  const int64_t rd[4] = {1, 1, 1, qb}, all[4] = {1, n, f->s, f->d};
  backward_refs r = {.resident = queries && keys};
  r.scale = mosaic_window(m, MOSAIC_SMEM, TPU_F32, 2, (const int64_t[]){1, 1}, at_scalar, &w);
  r.q = window(m, &w, TPU_BF16, qb, f->d, at_queries);
  r.k = window(m, &w, TPU_BF16, kb, f->d, at_keys);
  r.v = window(m, &w, TPU_BF16, kb, f->e, at_keys);
  r.g = window(m, &w, TPU_BF16, qb, f->e, at_queries);
  r.lse = mosaic_window(m, MOSAIC_VMEM, TPU_F32, 4, rd, at_row, &w);
  r.delta = mosaic_window(m, MOSAIC_VMEM, TPU_F32, 4, rd, at_row, &w);
  if (r.resident) r.dq = mosaic_window(m, MOSAIC_VMEM, TPU_F32, 4, all, at_group, &w);
  else if (queries) r.dq = window(m, &w, TPU_F32, qb, f->d, at_queries);
  if (keys) {
    r.dk = window(m, &w, TPU_F32, kb, f->d, at_keys);
    r.dv = window(m, &w, TPU_F32, kb, f->e, at_keys);
  }
  kernel body = start(m, &w);
  backward_body(&body, &r, queries, keys);
  const double pairs = (double)f->b * (double)f->h * (double)f->s * (double)(f->causal ? f->s + qb : 2 * f->t) / 2;
  const double widths = (double)(f->d + f->e + (keys ? f->d + f->e : 0) + (queries ? f->d : 0));
  const mosaic_cost cost = {2 * pairs * widths, pairs, core_memory(f, r.resident ? n * f->s * f->d * 4 : 0)};
  int64_t dq[4] = {f->b, f->h, f->s, f->d}, dk[4], dv[4];
  const int64_t *dims[3] = {dq, dk, dv};
  const int ranks[3] = {r.resident ? 4 : laid(f, f->b, f->h, f->s, f->d, dq), laid(f, f->b, f->kh, f->t, f->d, dk),
                        laid(f, f->b, f->kh, f->t, f->e, dv)};
  mosaic_end(m, &cost, in, 7, queries + 2 * keys, (const tpu_dtype[]){TPU_F32, TPU_F32, TPU_F32}, ranks + !queries,
             dims + !queries, out);
  const int64_t heads[3] = {f->h, f->kh, f->kh};
  for (int i = 0; i < queries + 2 * keys; i++) out[i] = from_kernel(c, out[i], heads[i + !queries]);
}

void flash_backward(op_ctx *c, const flash_shape *f, val g, val q, val k, val v, val lse, val delta, val scale, val *dq,
                    val *dk, val *dv) {
  val twos = t_mul(c, lse, t_scalar(c, TPU_F32, M_LOG2E)), out[3];
  val in[7] = {scale_in_twos(c, scale), q, k, v, g, t_unsqueeze(c, twos, 2), t_unsqueeze(c, delta, 2)};
  *dq = *dk = *dv = q;
  begin_parts(c, f, in, 7);
  for (int i = 1; i < 5; i++) in[i] = to_kernel(c, f, in[i]);
  if (group(f) * f->s * f->d * 4 <= RESIDENT_MAX) backward_kernel(c, f, in, true, true, out);
  else {
    backward_kernel(c, f, in, true, false, out);
    backward_kernel(c, f, in, false, true, out + 1);
  }
  end_parts(c, f, out, 3);
  *dq = t_mul(c, out[0], scale);
  *dk = t_mul(c, out[1], scale);
  *dv = out[2];
}
