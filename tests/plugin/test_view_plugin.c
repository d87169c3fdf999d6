/* Random views (fuzz/view_case.h), read and written on a real PJRT plugin (first argument), against the plain strided
 * copy. The second argument is how many cases, the third the first seed. */
#include "../../fuzz/view_case.h"
#include "../core/t.h"
#include "base/mem.h"
#include "pjrt/pjrt.h"
#include "view/view.h"

static pjrt_client *the_client;

static bool open_client(void) {
  pjrt_api *api;
  if (!the_client && CHECK(t_arg(1)) && CHECK_OK(pjrt_load(t_arg(1), &api)))
    CHECK_OK(pjrt_client_new(api, (const pjrt_option[]){{"cpu_device_count", 1}}, 1, &the_client));
  return the_client != NULL;
}

static int pjrt_type(tpu_dtype d) {
  switch ((int)d) {
#define X(num, name, torch, mlir, bytes, pjrt, cls) \
  case num: return pjrt;
    TPU_DTYPES(X)
#undef X
    default: return 0;
  }
}

typedef struct {
  tpu_dtype dtype;
  int ndim;
  const int64_t *dims;
  void *data;
} host;

/* Compiles g and runs it; results into outs' data. */
static tpu_err *run(ir_graph *g, const host *in, int nin, const host *outs, int nouts) {
  pjrt_exec *e = NULL;
  pjrt_buffer *args[VIEW_MAX_DIMS + 2] = {NULL}, *res[2] = {NULL};
  buf b;
  buf_init(&b);
  tpu_err *err = ir_print(g, &b);
  if (!err) err = pjrt_compile(the_client, b.data, b.len, NULL, 0, &e);
  for (int i = 0; i < nin && !err; i++)
    err = pjrt_buffer_from_host(the_client, 0, in[i].data, pjrt_type(in[i].dtype), in[i].dims, in[i].ndim, &args[i]);
  if (!err) err = pjrt_execute(the_client, e, 0, args, (size_t)nin, NULL, 0, res, NULL);
  for (int i = 0; i < nouts && !err; i++) {
    size_t n = (size_t)count_of(outs[i].ndim, outs[i].dims) * tpu_dtype_size(outs[i].dtype);
    if (n) err = pjrt_buffer_to_host(the_client, res[i], outs[i].data, n);
  }
  if (err) printf("%.*s\n", (int)b.len, b.data);
  for (int i = 0; i < nin; i++) pjrt_buffer_free(the_client, args[i]);
  for (int i = 0; i < 2; i++) pjrt_buffer_free(the_client, res[i]);
  pjrt_exec_free(the_client, e);
  buf_free(&b);
  return err;
}

static bool same_bytes(const char *what, const void *have, const void *want, int64_t n) {
  if (!memcmp(have, want, (size_t)n)) return true;
  int64_t i = 0;
  while (((const char *)have)[i] == ((const char *)want)[i]) i++;
  printf("%s: byte %lld of %lld is %02x, expected %02x\n", what, (long long)i, (long long)n, ((const uint8_t *)have)[i],
         ((const uint8_t *)want)[i]);
  return CHECK(!"the plugin's bytes are the plain copy's");
}

/* Bytes that make no NaN and no denormal number in any dtype: some plugins move bfloat16 through float32, which quiets
 * NaNs (their payload changes; they stay NaN). */
static void fill_tame(char *p, int64_t n, tpu_dtype d) {
  fill(p, n, d);
  for (int64_t i = 0; d != TPU_BOOL && i < n; i++) p[i] = (char)((p[i] & 0x3F) | 1);
}

static bool check_case(uint64_t seed) {
  shape base, v;
  seeded_case(seed, &base, &v);
  view_base b = {base.dtype, base.ndim, base.sizes};
  view_shape s = {v.dtype, v.ndim, v.sizes, v.strides, v.offset};
  view_plan p;
  if (!CHECK_OK(view_solve(&b, &s, &p))) return false;
  int64_t n = count_of(v.ndim, v.sizes) * (int64_t)tpu_dtype_size(v.dtype);
  int64_t bytes = count_of(base.ndim, base.sizes) * (int64_t)tpu_dtype_size(base.dtype);
  bool writes = !truly_overlaps(&v, bytes / (int64_t)tpu_dtype_size(v.dtype));
  char *storage = calloc((size_t)bytes + 1, 1), *value = calloc((size_t)n + 1, 1);
  char *want_read = calloc((size_t)n + 1, 1), *want_write = calloc((size_t)bytes + 1, 1);
  char *got_read = calloc((size_t)n + 1, 1), *got_write = calloc((size_t)bytes + 1, 1);
  fill_tame(storage, bytes, base.dtype);
  fill_tame(value, n, v.dtype);
  memcpy(want_write, storage, (size_t)bytes);
  strided_copy(&v, storage, want_read, false, false);
  if (writes) strided_copy(&v, want_write, value, true, base.dtype == TPU_BOOL);

  ir_graph *g = ir_new();
  host in[VIEW_MAX_DIMS + 2] = {{base.dtype, base.ndim, base.sizes, storage}, {v.dtype, v.ndim, v.sizes, value}};
  val x = ir_param(g, base.dtype, base.ndim, base.sizes), y = ir_param(g, v.dtype, v.ndim, v.sizes);
  val starts[VIEW_MAX_DIMS];
  int32_t narrow[VIEW_MAX_DIMS];
  for (int i = 0; i < p.nstarts; i++) {
    narrow[i] = (int32_t)p.starts[i];
    starts[i] = ir_param(g, p.start_dtype, 0, NULL);
    in[2 + i] = (host){p.start_dtype, 0, NULL, p.start_dtype == TPU_I32 ? (void *)&narrow[i] : (void *)&p.starts[i]};
  }
  ir_output(g, view_read(g, &p, &b, &s, x, starts), -1);
  if (writes) ir_output(g, view_write(g, &p, &b, &s, x, y, starts), -1);
  tpu_err *e = ir_take_error(g);
  host outs[2] = {{v.dtype, v.ndim, v.sizes, got_read}, {base.dtype, base.ndim, base.sizes, got_write}};
  if (!e) e = run(g, in, 2 + p.nstarts, outs, 1 + writes);
  bool ok = CHECK_OK(e) && same_bytes("read", got_read, want_read, n) &&
            (!writes || same_bytes("write", got_write, want_write, bytes));
  if (!ok) {
    printf("seed %llu\n", (unsigned long long)seed);
    print_shape("base", &base);
    print_shape("view", &v);
  }
  ir_free(g);
  free(storage), free(value), free(want_read), free(want_write), free(got_read), free(got_write);
  return ok;
}

TEST(random_views) {
  if (!open_client()) return;
  int cases = t_arg(2) ? atoi(t_arg(2)) : 120, first = t_arg(3) ? atoi(t_arg(3)) : 5000, bad = 0;
  for (int i = 0; i < cases && bad < 5; i++) bad += !check_case((uint64_t)(first + i));
}

T_MAIN()
