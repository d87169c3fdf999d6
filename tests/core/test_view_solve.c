/* Plans: which views share a form, what a form costs, what is refused. That plans are right is for fuzz_view. */
#include "t.h"
#include "view/plan.h"

#define DIMS(...) \
  (int)(sizeof((int64_t[]){__VA_ARGS__}) / 8), (const int64_t[]) { __VA_ARGS__ }
#define I64(...) \
  (const int64_t[]) { __VA_ARGS__ }

static view_base f32(int ndim, const int64_t *dims) { return (view_base){TPU_F32, ndim, dims}; }
static view_shape as(tpu_dtype d, int ndim, const int64_t *sizes, const int64_t *strides, int64_t offset) {
  return (view_shape){d, ndim, sizes, strides, offset};
}

static view_plan plan_of(view_base b, view_shape v) {
  view_plan p;
  p.nwords = p.nstarts = 0;
  CHECK_OK(view_solve(&b, &v, &p));
  return p;
}

static bool same_form(const view_plan *p, const view_plan *q) {
  return p->nwords == q->nwords && p->nstarts == q->nstarts && p->start_dtype == q->start_dtype &&
         !memcmp(p->words, q->words, (size_t)p->nwords * sizeof *p->words);
}

/* The view at offset `a` and at offset `b`: one form? */
static bool twins(view_base base, view_shape v, int64_t a, int64_t b) {
  v.offset = a;
  view_plan p = plan_of(base, v);
  v.offset = b;
  view_plan q = plan_of(base, v);
  return same_form(&p, &q);
}

static bool any_take(const view_plan *p) {
  const int64_t *w = p->words + 1;
  for (int i = 0; i < p->words[0] >> PLAN_FACTOR_SHIFT; i++) {
    int64_t head = *w++;
    if (head & 1) return true;
    for (int k = 0; k < (int)(head >> 1 & 127); k++) w += 1 + (*w & 1);
  }
  return false;
}

TEST(whole) {
  view_base b = f32(DIMS(3, 1, 4));
  view_shape v = as(TPU_F32, 3, I64(3, 1, 4), I64(4, 99, 1), 0); /* the stride of a size 1 says nothing */
  CHECK(view_is_whole(&b, &v));
  view_plan p = plan_of(b, v);
  CHECK_INT(p.nwords, 1);
  CHECK_INT(p.nstarts, 0);
  CHECK(view_covers(&p));
  v = as(TPU_I32, 3, I64(3, 1, 4), I64(4, 4, 1), 0);
  CHECK(!view_is_whole(&b, &v));
  v = as(TPU_F32, 3, I64(3, 1, 4), I64(4, 4, 1), 1);
  CHECK(!view_is_whole(&b, &v));
  v = as(TPU_F32, 3, I64(3, 1, 4), I64(1, 3, 3), 0);
  CHECK(!view_is_whole(&b, &v));
  v = as(TPU_F32, 2, I64(3, 4), I64(4, 1), 0);
  CHECK(!view_is_whole(&b, &v));
  b = f32(DIMS(0, 4));
  v = as(TPU_F32, 2, I64(0, 4), I64(7, 7), 0);
  CHECK(view_is_whole(&b, &v));
  b = f32(0, NULL);
  v = as(TPU_F32, 0, NULL, NULL, 0);
  CHECK(view_is_whole(&b, &v));
}

TEST(starts_are_not_part_of_the_form) {
  view_base b = f32(DIMS(10, 6, 8));
  CHECK(twins(b, as(TPU_F32, 2, I64(6, 8), I64(8, 1), 0), 0, 9 * 48));        /* x[i] */
  CHECK(twins(b, as(TPU_F32, 3, I64(3, 6, 8), I64(48, 8, 1), 0), 0, 7 * 48)); /* x[i:i+3] */
  CHECK(twins(b, as(TPU_F32, 3, I64(10, 2, 8), I64(48, 8, 1), 0), 0, 4 * 8)); /* x[:, i:i+2] */
  CHECK(twins(b, as(TPU_F32, 3, I64(10, 6, 4), I64(48, 8, 2), 0), 0, 1));     /* x[..., i::2] */
  CHECK(twins(b, as(TPU_F32, 1, I64(8), I64(1), 0), 0, 479 - 7));             /* x[i, j] */
  CHECK(twins(b, as(TPU_F32, 1, I64(10), I64(48), 0), 0, 47));                /* x[:, i, j] */
  CHECK(twins(b, as(TPU_F32, 0, NULL, NULL, 0), 0, 479));                     /* x[i, j, k] */
  CHECK(twins(b, as(TPU_F32, 2, I64(8, 6), I64(1, 8), 0), 0, 9 * 48));        /* x[i].t() */
  CHECK(twins(b, as(TPU_F32, 3, I64(10, 4, 3), I64(48, 8, 8), 0), 0, 7));     /* x[:, :, i].unfold(1, 3, 1) */
  CHECK(twins(f32(DIMS(64)), as(TPU_F32, 1, I64(8), I64(1), 0), 8, 48));      /* x.view(8, 8)[i] */
  CHECK(twins(f32(DIMS(64)), as(TPU_F32, 2, I64(8, 3), I64(8, 1), 0), 0, 5)); /* x.view(8, 8)[:, i:i+3] */
  CHECK(
      twins(f32(DIMS(4, 6, 96)), as(TPU_F32, 4, I64(4, 6, 4, 8), I64(576, 96, 8, 1), 0), 0, 64)); /* q, k, v as heads */
}

TEST(starts) {
  view_plan p = plan_of(f32(DIMS(10, 6, 8)), as(TPU_F32, 1, I64(3), I64(8), 4 * 48 + 2 * 8 + 5)); /* x[4, 2:5, 5] */
  if (!CHECK_INT(p.nstarts, 3)) return;
  CHECK_INT(p.starts[0], 5); /* innermost first */
  CHECK_INT(p.starts[1], 2);
  CHECK_INT(p.starts[2], 4);
  CHECK_INT(p.start_dtype, TPU_I32);
  p = plan_of(f32(DIMS(10, 6)),
              as(TPU_F32, 2, I64(10, 3), I64(6, 2), 0)); /* the step fills the dim but for its last element */
  CHECK_INT(p.nstarts, 1);
  p = plan_of(f32(DIMS(10, 5)), as(TPU_F32, 2, I64(10, 3), I64(5, 2), 0)); /* no room to move */
  CHECK_INT(p.nstarts, 0);
}

TEST(large_bases_have_64_bit_starts) {
  view_plan p = plan_of(f32(DIMS(70000, 70000)), as(TPU_F32, 1, I64(70000), I64(1), 70000LL * 69999));
  CHECK_INT(p.start_dtype, TPU_I64);
  if (CHECK_INT(p.nstarts, 1)) CHECK_INT(p.starts[0], 69999);
  p = plan_of(f32(DIMS(70000, 70000)), as(TPU_F32, 1, I64(70000), I64(70001), 0)); /* diagonal */
  CHECK_INT(p.start_dtype, TPU_I64);
  CHECK(!any_take(&p));
}

TEST(covers) {
  view_base b = f32(DIMS(4, 6));
  view_plan p = plan_of(b, as(TPU_F32, 2, I64(6, 4), I64(1, 6), 0));
  CHECK(view_covers(&p)); /* transpose */
  p = plan_of(b, as(TPU_F32, 4, I64(2, 1, 2, 6), I64(12, 5, 6, 1), 0));
  CHECK(view_covers(&p)); /* reshape */
  p = plan_of(b, as(TPU_F32, 1, I64(24), I64(1), 0));
  CHECK(view_covers(&p));
  p = plan_of(b, as(TPU_I16, 2, I64(4, 12), I64(12, 1), 0));
  CHECK(view_covers(&p));
  p = plan_of(b, as(TPU_F32, 2, I64(4, 5), I64(6, 1), 0));
  CHECK(!view_covers(&p));
  p = plan_of(b, as(TPU_F32, 3, I64(2, 4, 6), I64(0, 6, 1), 0));
  CHECK(!view_covers(&p)); /* twice */
  p = plan_of((view_base){TPU_U8, DIMS(7)}, as(TPU_I16, 1, I64(3), I64(1), 0));
  CHECK(!view_covers(&p)); /* a byte is left */
}

TEST(overlaps) {
  view_base b = f32(DIMS(24));
  view_plan p = plan_of(b, as(TPU_F32, 2, I64(3, 24), I64(0, 1), 0));
  CHECK(p.overlaps); /* expand */
  p = plan_of(b, as(TPU_F32, 2, I64(1, 24), I64(0, 1), 0));
  CHECK(!p.overlaps); /* expand to 1 */
  p = plan_of(b, as(TPU_F32, 2, I64(22, 3), I64(1, 1), 0));
  CHECK(p.overlaps && any_take(&p)); /* unfold by 1 */
  p = plan_of(b, as(TPU_F32, 2, I64(8, 3), I64(3, 1), 0));
  CHECK(!p.overlaps && !any_take(&p)); /* unfold by its size */
  p = plan_of(b, as(TPU_F32, 2, I64(2, 2), I64(3, 2), 0));
  CHECK(!p.overlaps); /* 0, 2, 3, 5 */
  p = plan_of(b, as(TPU_F32, 2, I64(3, 4), I64(3, 2), 0));
  CHECK(p.overlaps); /* 6 twice */
}

TEST(common_views_need_no_gather) {
  static const struct {
    int nb;
    int64_t dims[5];
    int nv;
    int64_t sizes[5], strides[5], offset;
  } c[] = {
      {2, {8, 8}, 1, {8}, {9}, 0},                              /* diagonal */
      {3, {3, 5, 5}, 2, {3, 4}, {25, 6}, 1},                    /* batched, above the main one */
      {1, {64}, 2, {8, 4}, {8, 1}, 2},                          /* columns of a flat base */
      {1, {61}, 2, {7, 4}, {8, 1}, 3},                          /* the same, no multiple */
      {2, {8, 8}, 1, {20}, {1}, 5},                             /* a window over rows */
      {2, {8, 8}, 1, {16}, {1}, 16},                            /* two rows, flat */
      {5, {2, 3, 3, 2, 4}, 4, {2, 2, 3, 4}, {72, 4, 24, 1}, 8}, /* q of qkv, heads first */
      {3, {4, 6, 8}, 2, {4, 3}, {48, 16}, 3},                   /* select and step */
  };
  for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
    view_plan p = plan_of(f32(c[i].nb, c[i].dims), as(TPU_F32, c[i].nv, c[i].sizes, c[i].strides, c[i].offset));
    if (!CHECK(!any_take(&p) && !p.overlaps)) printf("  view %zu\n", i);
    CHECK(p.nwords <= 16);
  }
}

/* A window that crosses a row has another form: it is cut from the flat base. */
TEST(windows_that_wrap) {
  view_base b = f32(DIMS(8, 8));
  view_shape v = as(TPU_F32, 1, I64(4), I64(1), 0);
  CHECK(twins(b, v, 8, 20));
  CHECK(!twins(b, v, 8, 6));
  CHECK(twins(b, v, 6, 29));
}

TEST(empty_and_tiny) {
  view_plan p = plan_of(f32(DIMS(4, 6)), as(TPU_F32, 2, I64(0, 6), I64(6, 1), 24));
  CHECK_INT(p.nwords, 1);
  CHECK_INT(p.nstarts, 0);
  CHECK(!view_covers(&p) && !p.overlaps);
  p = plan_of(f32(DIMS(0)), as(TPU_I64, 3, I64(2, 0, 3), I64(0, 0, 0), 1000)); /* past the end, but reads nothing */
  CHECK_INT(p.nwords, 1);
  p = plan_of(f32(0, NULL), as(TPU_F32, 3, I64(1, 1, 1), I64(5, 5, 5), 0));
  CHECK(view_covers(&p));
  p = plan_of(f32(DIMS(1, 1)), as(TPU_F32, 1, I64(5), I64(0), 0));
  CHECK(p.overlaps && p.nstarts == 0);
}

TEST(refused) {
  view_plan p;
  view_base b = f32(DIMS(4, 6));
  view_shape v = as(TPU_F32, 2, I64(4, 6), I64(6, 1), 1);
  CHECK_ERR(view_solve(&b, &v, &p), TPU_ERR_RUNTIME,
            "reaches element 24 of its storage, which holds 24 elements of float32");
  v = as(TPU_F64, 1, I64(13), I64(1), 0);
  CHECK_ERR(view_solve(&b, &v, &p), TPU_ERR_RUNTIME, "holds 12 elements of float64 (kept as float32)");
  v = as(TPU_F32, 1, I64(3), I64(INT64_MAX / 2), 0);
  CHECK_ERR(view_solve(&b, &v, &p), TPU_ERR_RUNTIME, "reaches element");
  v = as(TPU_F32, 1, I64(3), I64(-1), 5);
  CHECK_ERR(view_solve(&b, &v, &p), TPU_ERR_RUNTIME, "size 3 and stride -1");
  v = as(TPU_F32, 1, I64(-3), I64(1), 5);
  CHECK_ERR(view_solve(&b, &v, &p), TPU_ERR_RUNTIME, "size -3");
  v = as(TPU_F32, 1, I64(2), I64(1), -1);
  CHECK_ERR(view_solve(&b, &v, &p), TPU_ERR_RUNTIME, "offset is -1");
  v = as((tpu_dtype)8, 1, I64(2), I64(1), 0);
  CHECK_ERR(view_solve(&b, &v, &p), TPU_ERR_RUNTIME, "dtype number 8");
  int64_t ones[65];
  for (int i = 0; i < 65; i++) ones[i] = 1;
  v = as(TPU_F32, 65, ones, ones, 0);
  CHECK_ERR(view_solve(&b, &v, &p), TPU_ERR_RUNTIME, "up to 64 dims are supported, got one of 65");
  b = f32(DIMS(1LL << 40, 1LL << 40));
  v = as(TPU_F32, 1, I64(2), I64(1), 0);
  CHECK_ERR(view_solve(&b, &v, &p), TPU_ERR_RUNTIME, "too large");
}

TEST(many_dimensions) {
  int64_t sizes[64], strides[64];
  for (int i = 0; i < 64; i++) sizes[i] = i < 20 ? 2 : 1, strides[i] = i < 20 ? 1 << (19 - i) : 1;
  view_plan p = plan_of(f32(DIMS(1 << 20)), as(TPU_F32, 64, sizes, strides, 0));
  CHECK(view_covers(&p));
  for (int i = 0; i < 64; i++) sizes[i] = 2, strides[i] = 1; /* windows of windows */
  p = plan_of(f32(DIMS(100)), as(TPU_F32, 64, sizes, strides, 0));
  CHECK(p.overlaps);
  CHECK(p.nwords < VIEW_WORDS);
}

TEST(needs) {
  view_shape v = as(TPU_F32, 2, I64(3, 4), I64(10, 1), 5);
  CHECK_INT(view_needs(TPU_F32, &v), 29);
  CHECK_INT(view_needs(TPU_U8, &v), 116);
  CHECK_INT(view_needs(TPU_C64, &v), 15);
  v = as(TPU_F32, 2, I64(3, 0), I64(10, 1), 5);
  CHECK_INT(view_needs(TPU_F32, &v), 0);
  v = as(TPU_F32, 0, NULL, NULL, 7);
  CHECK_INT(view_needs(TPU_F32, &v), 8);
  v = as(TPU_F32, 1, I64(3), I64(INT64_MAX / 2), 7);
  CHECK_INT(view_needs(TPU_F32, &v), INT64_MAX);
}

T_MAIN()
