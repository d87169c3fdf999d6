/* Reading and writing: the programs of common views have few operations; errors; every allocation may fail. */
#include "../../fuzz/view_case.h"
#include "base/mem.h"
#include "t.h"
#include "view/view.h"

#define DIMS(...) \
  (int)(sizeof((int64_t[]){__VA_ARGS__}) / 8), (const int64_t[]) { __VA_ARGS__ }
#define I64(...) \
  (const int64_t[]) { __VA_ARGS__ }

/* The operations of a printed program in order: "reshape dynamic_slice". Constants are left out. */
static void op_names(const buf *text, char *out, size_t cap) {
  out[0] = 0;
  for (const char *p = text->data; (p = strstr(p, "stablehlo.")); p++) {
    if (p > text->data && p[-1] == '#') continue; /* an attribute */
    char name[40];
    size_t n = strcspn(p + 10, "\" (:<\n");
    snprintf(name, sizeof name, "%.*s", (int)(n < 39 ? n : 39), p + 10);
    if (!strcmp(name, "constant") || !strcmp(name, "return")) continue;
    size_t len = strlen(out);
    snprintf(out + len, cap - len, "%s%s", len ? " " : "", name);
  }
}

/* Names of the operations that read (or write) the view. */
static const char *ops_of(view_base b, view_shape v, bool write) {
  static char names[2000];
  view_plan p;
  buf text;
  buf_init(&text);
  snprintf(names, sizeof names, "failed");
  if (!CHECK_OK(view_solve(&b, &v, &p))) return names;
  ir_graph *g = ir_new();
  val base = ir_param(g, b.dtype, b.ndim, b.dims), value = ir_param(g, v.dtype, v.ndim, v.sizes), starts[VIEW_MAX_DIMS];
  for (int i = 0; i < p.nstarts; i++) starts[i] = ir_param(g, p.start_dtype, 0, NULL);
  ir_output(g,
            write ? view_write(g, &p, &b, &v, view_covers(&p) ? NULL : base, value, starts)
                  : view_read(g, &p, &b, &v, base, starts),
            -1);
  if (CHECK_OK(ir_take_error(g)) && CHECK_OK(ir_print(g, &text))) op_names(&text, names, sizeof names);
  buf_free(&text);
  ir_free(g);
  return names;
}

static view_base f32(int ndim, const int64_t *dims) { return (view_base){TPU_F32, ndim, dims}; }
static view_shape as(tpu_dtype d, int ndim, const int64_t *sizes, const int64_t *strides, int64_t offset) {
  return (view_shape){d, ndim, sizes, strides, offset};
}

TEST(programs_are_short) {
  view_base b = f32(DIMS(10, 6, 8));
  view_shape v = as(TPU_F32, 3, I64(10, 6, 8), I64(48, 8, 1), 0);
  CHECK_STR(ops_of(b, v, false), ""); /* x */
  CHECK_STR(ops_of(b, v, true), "");
  v = as(TPU_F32, 2, I64(6, 8), I64(8, 1), 48); /* x[i] */
  CHECK_STR(ops_of(b, v, false), "dynamic_slice reshape");
  CHECK_STR(ops_of(b, v, true), "reshape dynamic_update_slice");
  v = as(TPU_F32, 3, I64(8, 6, 10), I64(1, 8, 48), 0); /* x.permute(2, 1, 0) */
  CHECK_STR(ops_of(b, v, false), "transpose");
  CHECK_STR(ops_of(b, v, true), "transpose");
  v = as(TPU_F32, 1, I64(480), I64(1), 0); /* x.view(-1) */
  CHECK_STR(ops_of(b, v, false), "reshape");
  CHECK_STR(ops_of(b, v, true), "reshape");
  v = as(TPU_F32, 3, I64(10, 6, 4), I64(48, 8, 2), 1); /* x[..., 1::2] */
  CHECK_STR(ops_of(b, v, false), "dynamic_slice slice");
  v = as(TPU_F32, 4, I64(3, 10, 6, 8), I64(0, 48, 8, 1), 0); /* x.expand(3, ...) */
  CHECK_STR(ops_of(b, v, false), "broadcast_in_dim");
  v = as(TPU_F32, 2, I64(10, 3), I64(48, 8), 9); /* x[:, 1:4, 1] */
  CHECK_STR(ops_of(b, v, false), "dynamic_slice reshape");
  CHECK_STR(ops_of(b, v, true), "reshape dynamic_update_slice");
  v = as(TPU_I32, 3, I64(10, 6, 8), I64(48, 8, 1), 0); /* x.view(int32) */
  CHECK_STR(ops_of(b, v, false), "bitcast_convert");
  CHECK_STR(ops_of(b, v, true), "bitcast_convert");
  b = f32(DIMS(4, 6, 96)); /* q of a fused projection, as heads, heads first */
  v = as(TPU_F32, 4, I64(4, 4, 6, 8), I64(576, 8, 96, 1), 32);
  CHECK_STR(ops_of(b, v, false), "dynamic_slice reshape transpose");
  CHECK_STR(ops_of(b, v, true), "transpose reshape dynamic_update_slice");
  b = f32(DIMS(5, 20)); /* x.unfold(1, 3, 1) */
  v = as(TPU_F32, 3, I64(5, 18, 3), I64(20, 1, 1), 0);
  CHECK_STR(ops_of(b, v, false), "iota iota add gather");
}

TEST(overlapping_views_are_not_written) {
  int64_t dims = 24;
  view_base b = f32(1, &dims);
  view_shape v = as(TPU_F32, 2, I64(3, 24), I64(0, 1), 0);
  view_plan p;
  if (!CHECK_OK(view_solve(&b, &v, &p))) return;
  ir_graph *g = ir_new();
  view_write(g, &p, &b, &v, ir_param(g, TPU_F32, 1, &dims), ir_param(g, TPU_F32, 2, v.sizes), NULL);
  CHECK_ERR(ir_take_error(g), TPU_ERR_RUNTIME, "share memory");
  ir_free(g);
}

/* One case; fails with the allocation that was asked to fail, or gives a program. */
static tpu_err *build(uint64_t seed) {
  shape base, s;
  seeded_case(seed, &base, &s);
  view_base b = {base.dtype, base.ndim, base.sizes};
  view_shape v = {s.dtype, s.ndim, s.sizes, s.strides, s.offset};
  view_plan p;
  TPU_TRY(view_solve(&b, &v, &p));
  ir_graph *g = ir_new();
  if (!g) return err_nomem();
  val x = ir_param(g, b.dtype, b.ndim, b.dims), y = ir_param(g, v.dtype, v.ndim, v.sizes), starts[VIEW_MAX_DIMS];
  for (int i = 0; i < p.nstarts; i++) starts[i] = ir_param(g, p.start_dtype, 0, NULL);
  ir_output(g, view_read(g, &p, &b, &v, x, starts), -1);
  if (!p.overlaps) ir_output(g, view_write(g, &p, &b, &v, x, y, starts), -1);
  ir_output(g, view_rebase(g, x, TPU_C64, 2, I64(3, 5)), -1);
  tpu_err *e = ir_take_error(g);
  ir_free(g);
  return e;
}

TEST(every_allocation_may_fail) {
  int64_t live = mem_live();
  for (uint64_t seed = 1; seed <= 300; seed++) {
    for (int64_t nth = 1;; nth++) {
      mem_fault_at(nth, seed & 1);
      tpu_err *e = build(seed);
      int64_t made = mem_fault_count();
      mem_fault_at(0, false);
      if (made < nth) {
        CHECK_OK(e);
        break;
      }
      if (!CHECK(e) || !CHECK_INT(tpu_err_get_kind(e), TPU_ERR_OOM)) return;
      tpu_err_free(e);
    }
    if (!CHECK_INT(mem_live(), live)) return;
  }
}

T_MAIN()
