/* Scaled dot product attention as one program: no product of queries and keys outlives it, and gradients make it again.
 *
 * Queries [B, H, S, D], keys [B, K, T, D], values [B, K, T, E]; K divides H: query head h reads key head h / (H / K).
 * Results and gradients come as [B, S, H, E]: the order in which models go on, and in which no copy is needed. */
#include <math.h>

#include "ops/along.h"
#include "ops/flash.h"

typedef struct {
  val q, k, v; /* q: [B, K, H / K * S, D] */
  val q4;      /* [B, H, S, D] */
  int64_t b, h, kh, s, t;
  tpu_dtype d, m; /* of the operands; to compute in */
} heads;

static bool read_heads(op_ctx *c, int first, heads *h) {
  val q = T(first), k = T(first + 1), v = T(first + 2);
  if (ir_failed(G)) return false;
  if (q->ndim != 4 || k->ndim != 4 || v->ndim != 4 || !k->dims[1] || q->dims[1] % k->dims[1] ||
      k->dims[1] != v->dims[1] || k->dims[2] != v->dims[2] || q->dims[3] != k->dims[3]) {
    op_fail(
        c, TPU_ERR_RUNTIME,
        "scaled_dot_product_attention: expected query [B, H, S, D], key [B, K, T, D] and value [B, K, T, E] with H a "
        "multiple of K");
    return false;
  }
  tpu_dtype d = (tpu_dtype)q->dtype;
  *h = (heads){.q4 = q,
               .k = t_cast(c, k, d),
               .v = t_cast(c, v, d),
               .b = q->dims[0],
               .h = q->dims[1],
               .kh = k->dims[1],
               .s = q->dims[2],
               .t = k->dims[2],
               .d = d,
               .m = t_opmath(d)};
  h->q = t_reshape(c, q, 4, (const int64_t[]){h->b, h->kh, h->h / h->kh * h->s, q->dims[3]});
  return true;
}

/* A product over dims `ka` of a and `kb` of b, both with batch dims 0 and 1. */
static val product(op_ctx *c, val a, val b, int ka, int kb, tpu_dtype out) {
  if (ir_failed(G)) return a;
  static const int batch[2] = {0, 1};
  return ir_dot(G, a, b, 2, batch, batch, 1, &ka, &kb, out, op_precision(c, (tpu_dtype)a->dtype));
}

/* [B, H, S, n] as the query's heads lie, and back. */
static val grouped(op_ctx *c, val x, const heads *h) {
  return ir_failed(G) ? x : t_reshape(c, x, 4, (const int64_t[]){h->b, h->kh, h->h / h->kh * h->s, x->dims[3]});
}
static val per_head(op_ctx *c, val x, const heads *h) {
  return ir_failed(G) ? x : t_reshape(c, x, 4, (const int64_t[]){h->b, h->h, h->s, x->dims[3]});
}

/* [B, H, n, E], as [B, n, H, E] where bit `bit` of the argument says that the result lies so in memory. */
static val in_memory(op_ctx *c, val x, int arg, int bit) { return INT(arg) >> bit & 1 ? t_transpose(c, x, 1, 2) : x; }

static val scale_of(op_ctx *c, int arg, const heads *h) {
  if (HAS(arg)) return t_cast(c, S(arg), h->m);
  return t_scalar(c, h->m, 1 / sqrt((double)h->q->dims[3]));
}

/* scale * q k^T + bias, what causality hides at -inf: [B, H, S, T]. */
static val scores(op_ctx *c, const heads *h, int bias_arg, int causal_arg, val scale) {
  val s = per_head(c, t_mul(c, product(c, h->q, h->k, 3, 3, h->m), scale), h);
  val none = t_scalar(c, h->m, -INFINITY);
  if (HAS(bias_arg)) {
    val bias = T(bias_arg);
    bool mask = !ir_failed(G) && bias->dtype == TPU_BOOL;
    bias = ir_failed(G) ? s : t_broadcast_to(c, mask ? bias : t_cast(c, bias, h->m), 4, s->dims);
    s = mask ? t_where(c, bias, s, none) : t_add(c, s, bias);
  }
  if (INT_OR(causal_arg, 0) && !ir_failed(G)) {
    /* of the scores' own shape: an [S, T] mask is broadcast, and a TPU's compiler writes it out for each head */
    val row = t_iota(c, TPU_I32, 4, s->dims, 2), column = t_iota(c, TPU_I32, 4, s->dims, 3);
    s = t_where(c, t_cmp(c, IR_LE, column, row), s, none);
  }
  return s;
}

/* Whether kernels serve the call; their arguments. */
static bool by_kernels(op_ctx *c, const heads *h, int bias_arg, int causal_arg, flash_shape *f) {
  *f = (flash_shape){h->b, h->h, h->kh, h->s, h->t, h->k->dims[3], h->v->dims[3], INT_OR(causal_arg, 0) != 0, NULL};
  return h->d == TPU_BF16 && !HAS(bias_arg) && op_for_tpu(c) && flash_fits(c, f, h->q4, h->k, h->v);
}

/* (query, key, value, attn_bias, is_causal, scale, heads_inside) -> (output [B, H, S, E], or [B, S, H, E] with
 * heads_inside; logsumexp [B, H, S]) */
OP(attention, "tpu::attention") {
  heads h;
  flash_shape f;
  if (!read_heads(c, 0, &h)) return;
  if (by_kernels(c, &h, 3, 4, &f)) {
    val y, lse;
    flash_forward(c, &f, h.q4, h.k, h.v, scale_of(c, 5, &h), &y, &lse);
    RETN(0, in_memory(c, y, 6, 0));
    RETN(1, lse);
    return;
  }
  val s = scores(c, &h, 3, 4, scale_of(c, 5, &h)), zero = t_scalar(c, h.m, 0), none = t_scalar(c, h.m, -INFINITY);
  if (ir_failed(G)) return;
  int last = 3;
  /* not t_amax: where there is a NaN the row becomes NaN by its sum */
  val top = t_unsqueeze(c, ir_reduce(G, IR_MAX, s, none, 1, &last), 3);
  top = t_where(c, t_cmp(c, IR_EQ, top, none), zero, top); /* a row that sees nothing gives 0, as _safe_softmax */
  val e = ir_unary(G, IR_EXP, t_sub(c, s, top)), sum = t_sum(c, e, &last, 1, true);
  val y = per_head(c, product(c, t_cast(c, grouped(c, e, &h), h.d), h.v, 3, 2, h.m), &h);
  y = t_div(c, y, t_where(c, t_cmp(c, IR_EQ, sum, zero), t_scalar(c, h.m, 1), sum));
  RETN(0, in_memory(c, t_cast(c, y, h.d), 6, 0));
  RETN(1, t_squeeze(c, t_add(c, top, ir_unary(G, IR_LOG, sum)), 3));
}

/* (grad_out [B, H, S, E], query, key, value, attn_bias, output [B, H, S, E], logsumexp, is_causal, scale, heads_inside)
 * -> gradients of query, key and value, each with dims 1 and 2 exchanged where its bit of heads_inside is set */
OP(attention_backward, "tpu::attention_backward") {
  heads h;
  flash_shape f;
  if (!read_heads(c, 1, &h)) return;
  val g = t_cast(c, T(0), h.m), out = t_cast(c, T(5), h.m), scale = scale_of(c, 8, &h);
  val delta = t_sum(c, t_mul(c, g, out), (int[]){3}, 1, true);
  if (by_kernels(c, &h, 4, 7, &f)) {
    val r[3], rows = t_squeeze(c, delta, 3);
    flash_backward(c, &f, t_cast(c, g, h.d), h.q4, h.k, h.v, T(6), rows, scale, &r[0], &r[1], &r[2]);
    for (int i = 0; i < 3; i++) RETN(i, in_memory(c, t_cast(c, r[i], h.d), 9, i));
    return;
  }
  val lse = t_unsqueeze(c, t_cast(c, T(6), h.m), 3), s = scores(c, &h, 4, 7, scale), zero = t_scalar(c, h.m, 0);
  if (ir_failed(G)) return;
  val blind = t_cmp(c, IR_EQ, lse, t_scalar(c, h.m, -INFINITY));
  val p = t_where(c, blind, zero, ir_unary(G, IR_EXP, t_sub(c, s, lse)));
  val gd = t_cast(c, grouped(c, g, &h), h.d);
  val dp = per_head(c, product(c, gd, h.v, 3, 3, h.m), &h);
  val ds = t_cast(c, grouped(c, t_mul(c, t_mul(c, p, t_sub(c, dp, delta)), scale), &h), h.d);
  val pd = t_cast(c, grouped(c, p, &h), h.d);
  RETN(0, in_memory(c, t_cast(c, per_head(c, product(c, ds, h.k, 3, 2, h.m), &h), h.d), 9, 0));
  RETN(1, in_memory(c, t_cast(c, product(c, ds, h.q, 2, 2, h.m), h.d), 9, 1));
  RETN(2, in_memory(c, t_cast(c, product(c, pd, gd, 2, 2, h.m), h.d), 9, 2));
}
