/* fuzz_ir.c - random calls of the builders, right and wrong ones.
 *
 * fuzz_ir [cases] [first seed] [plugin]: a graph that was accepted prints, and prints the same when it is built again;
 * a refused one says why. With a plugin each accepted graph must compile too: what we accept is StableHLO. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "ir/ir.h"
#include "pjrt/pjrt.h"

enum { POOL = 40, STEPS = 12, KINDS = 27 };

static uint64_t state;
static long accepted, refused, uses[KINDS], ok_uses[KINDS];

static uint32_t rnd(uint32_t n) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(state >> 33) % n;
}

static const tpu_dtype dtypes[] = {TPU_F32, TPU_I32, TPU_BOOL, TPU_BF16, TPU_I64,
                                   TPU_F64, TPU_C64, TPU_U8,   TPU_F16,  TPU_F8E5M2};

static tpu_dtype any_dtype(void) {
  return rnd(3) ? TPU_F32 : rnd(60) ? dtypes[rnd(sizeof dtypes / sizeof *dtypes)] : (tpu_dtype)rnd(70);
}

static int64_t any_size(void) { return rnd(40) ? rnd(4) : rnd(2) ? -(int64_t)rnd(3) : (int64_t)1 << rnd(63); }

static int any_dims(int64_t *d) {
  int n = rnd(100) ? (int)rnd(4) : (int)rnd(70) - 2;
  for (int i = 0; i < n; i++) d[i] = rnd(4) ? 1 + rnd(3) : any_size();
  return n;
}

/* The values that the case has so far. Dims of outer regions hold; inner ones go when the region ends. */
static val pool[POOL];
static int npool;

static val any(void) { return pool[rnd((uint32_t)npool)]; }

static val like(val x) { /* a value of the same type, if there is one */
  for (int i = 0; i < 8; i++) {
    val y = any();
    if (y->dtype == x->dtype && ir_same_dims(x, y)) return y;
  }
  return rnd(20) ? x : any();
}

static void keep(val v) {
  if (npool < POOL) pool[npool++] = v;
  else pool[rnd(POOL)] = v;
}

static void any_list(int64_t *v, int n, int64_t low, uint32_t range) {
  for (int i = 0; i < n; i++) v[i] = rnd(50) ? low + rnd(range) : any_size();
}

static int some_dims(val x, int *dims) { /* rising dims of x, mostly */
  int n = 0;
  for (int i = 0; i < x->ndim; i++)
    if (rnd(2)) dims[n++] = i;
  if (!rnd(30)) dims[n++] = (int)rnd(5) - 1;
  return n;
}

static val scalar_like(ir_graph *g, val x) {
  return ir_const_i(g, rnd(40) ? x->dtype : any_dtype(), (int64_t)rnd(9) - 4, 0, NULL);
}

static bool takes[IR_OP_COUNT][TPU_DTYPE_LIMIT];

static void find_what_ops_take(void) {
  for (int op = 0; op < IR_OP_COUNT; op++)
    for (size_t k = 0; k < sizeof dtypes / sizeof *dtypes; k++) {
      ir_graph *g = ir_new();
      val x = ir_const_i(g, dtypes[k], 1, 0, NULL);
      if (op < IR_ADD) ir_unary(g, (ir_opcode)op, x);
      else ir_binary(g, (ir_opcode)op, x, x);
      takes[op][dtypes[k]] = !ir_failed(g);
      ir_free(g);
    }
}

/* One in [first, last) that takes x; rarely any number. */
static ir_opcode any_op(int first, int last, val x) {
  if (!rnd(100)) return (ir_opcode)rnd(IR_OP_COUNT + 3);
  int op = first;
  for (int i = 0; i < 20; i++) {
    op = first + (int)rnd((uint32_t)(last - first));
    if (x->dtype < TPU_DTYPE_LIMIT && takes[op][x->dtype]) break;
  }
  return (ir_opcode)op;
}

static void step(ir_graph *g, int depth);

static void region_steps(ir_graph *g, int depth) {
  for (int i = (int)rnd(3); i >= 0; i--) step(g, depth + 1);
}

static void control(ir_graph *g, int depth) {
  val x = any(), y = any(), r[2];
  int before = npool;
  if (rnd(2)) {
    ir_if_begin(g, rnd(30) ? ir_const_i(g, TPU_BOOL, rnd(2), 0, NULL) : any());
    region_steps(g, depth);
    r[0] = like(x);
    npool = before < npool ? before : npool;
    ir_if_else(g, r, 1);
    region_steps(g, depth);
    r[0] = like(rnd(20) ? r[0] : y);
    ir_if_end(g, r, 1, r);
  } else {
    r[0] = x;
    val c[1];
    ir_while_begin(g, r, 1, c);
    keep(c[0]);
    region_steps(g, depth);
    val cond = ir_const_i(g, rnd(30) ? TPU_BOOL : any_dtype(), 0, 0, NULL);
    npool = before < npool ? before : npool;
    ir_while_body(g, cond, c);
    keep(c[0]);
    region_steps(g, depth);
    r[0] = like(c[0]);
    ir_while_end(g, r, r);
  }
  npool = before < npool ? before : npool;
  keep(r[0]);
}

static val window(ir_graph *g, val x) {
  int64_t size[64], stride[64], bd[64], wd[64], low[64], high[64];
  any_list(size, x->ndim, 1, 3), any_list(stride, x->ndim, 1, 2), any_list(bd, x->ndim, 1, 2);
  any_list(wd, x->ndim, 1, 2), any_list(low, x->ndim, -1, 3), any_list(high, x->ndim, -1, 3);
  ir_window w = {size, rnd(2) ? stride : NULL, rnd(2) ? bd : NULL, rnd(2) ? wd : NULL, rnd(2) ? low : NULL, high};
  return ir_reduce_window(g, rnd(2) ? IR_ADD : IR_MAX, x, scalar_like(g, x), &w);
}

static val convolution(ir_graph *g) {
  int64_t xd[4] = {1 + rnd(2), 1 + rnd(4), rnd(5), 1 + rnd(4)}, groups = xd[1] % 2 == 0 && rnd(2) ? 2 : 1;
  int64_t wd[4] = {groups * (1 + rnd(2)), rnd(30) ? xd[1] / groups : 1, 1 + rnd(3), 1 + rnd(2)}, two[4][2];
  for (int i = 0; i < 4; i++) any_list(two[i], 2, i < 2 ? -1 : 1, i < 2 ? 3 : 2);
  int64_t stride[2];
  any_list(stride, 2, 1, 2);
  static const int s[2] = {2, 3};
  const ir_conv_dims d = {0, 1, s, 1, 0, s, 0, 1, s};
  bool rev[2] = {rnd(2), rnd(2)};
  tpu_dtype t = rnd(3) ? TPU_F32 : TPU_BF16;
  return ir_conv(g, ir_const_f(g, t, 1, 4, xd), ir_const_f(g, t, 1, 4, wd), &d, stride, two[0], two[1], two[2], two[3],
                 rev, groups, 1, TPU_F32, (int)rnd(3));
}

static val product(ir_graph *g, val x) {
  int dims[64], n = some_dims(x, dims), nb = n ? (int)rnd((uint32_t)n + 1) : 0;
  val y = like(x);
  return ir_dot(g, x, y, nb, dims, dims, n - nb, dims + nb, dims + nb, (tpu_dtype)x->dtype, (int)rnd(3));
}

static val indexing(ir_graph *g, val x) {
  int64_t id[2] = {1 + rnd(3), 1}, sizes[64];
  val i = ir_const_i(g, rnd(2) ? TPU_I32 : TPU_I64, (int64_t)rnd(3), 2, id);
  int along = x->ndim ? (int)rnd((uint32_t)x->ndim) : 0, offset[64];
  for (int k = 0; k < x->ndim; k++) sizes[k] = k == along ? 1 : x->dims[k];
  int n = x->ndim - 1;
  for (int k = 0; k < n; k++) offset[k] = k + 1;
  if (n < 0) n = 0;
  ir_gather_dims d = {.noffset = n,
                      .offset_dims = offset,
                      .ncollapsed = 1,
                      .collapsed_dims = &along,
                      .nstart = 1,
                      .start_index_map = &along,
                      .index_vector_dim = rnd(30) ? 1 : (int)rnd(4) - 1};
  val rows = ir_gather(g, x, i, &d, sizes, rnd(2));
  ir_scatter_dims s = {.nwindow = n,
                       .update_window_dims = offset,
                       .ninserted = 1,
                       .inserted_window_dims = &along,
                       .nscatter = 1,
                       .scatter_dims_to_operand = &along,
                       .index_vector_dim = d.index_vector_dim};
  return rnd(2) ? rows : ir_scatter(g, x, i, rows, &s, rnd(2) ? -1 : IR_ADD, rnd(2), false);
}

static val ordered(ir_graph *g, val x) {
  val xs[2] = {x, like(x)}, a[4], r[2];
  ir_sort_begin(g, xs, 2, x->ndim ? (int)rnd((uint32_t)x->ndim) : 0, rnd(2), a);
  ir_sort_end(g, rnd(30) ? ir_compare(g, IR_LT, a[0], a[1]) : a[0], r);
  return r[rnd(2)];
}

static val padded(ir_graph *g, val x) {
  int64_t low[64], high[64], gaps[64];
  any_list(low, x->ndim, -1, 3), any_list(high, x->ndim, -1, 3), any_list(gaps, x->ndim, 0, 2);
  return ir_pad(g, x, scalar_like(g, x), low, high, rnd(2) ? gaps : NULL);
}

static val sliced(ir_graph *g, val x) {
  int64_t start[64], limit[64], by[64];
  val starts[64];
  for (int i = 0; i < x->ndim; i++) {
    int64_t d = x->dims[i];
    start[i] = d > 0 && d < 100 ? rnd((uint32_t)d) : 0;
    limit[i] = rnd(30) ? d : any_size();
    by[i] = rnd(40) ? 1 + rnd(2) : any_size();
    starts[i] = ir_const_i(g, TPU_I32, start[i], 0, NULL);
    if (limit[i] >= start[i] && rnd(20)) limit[i] -= rnd(2) && limit[i] > start[i];
  }
  if (rnd(2)) return ir_slice(g, x, start, limit, rnd(2) ? by : NULL);
  val part = ir_dynamic_slice(g, x, starts, rnd(2) ? limit : x->dims);
  return rnd(2) ? part : ir_dynamic_update_slice(g, x, part, starts);
}

static val reduced(ir_graph *g, val x) {
  int dims[64], n = some_dims(x, dims);
  static const ir_opcode bodies[] = {IR_ADD, IR_MUL, IR_MAX, IR_MIN, IR_AND, IR_OR, IR_XOR};
  ir_opcode body = bodies[rnd(7)];
  if (x->dtype < TPU_DTYPE_LIMIT && !takes[body][x->dtype] && rnd(40)) body = IR_ADD;
  return ir_reduce(g, body, x, scalar_like(g, x), n, dims);
}

static val moved(ir_graph *g, val x) {
  int perm[64], n = x->ndim;
  for (int i = 0; i < n; i++) perm[i] = i;
  for (int i = n - 1; i > 0; i--) {
    int k = (int)rnd((uint32_t)i + 1), t = perm[i];
    perm[i] = perm[k], perm[k] = t;
  }
  if (n && !rnd(30)) perm[0] = (int)rnd(6) - 1;
  if (rnd(2)) return ir_transpose(g, x, perm);
  return ir_reverse(g, x, n ? (int)rnd((uint32_t)n) : 0, perm);
}

static val reshaped(ir_graph *g, val x) {
  int64_t d[66] = {0};
  int n = x->ndim, map[64];
  if (!rnd(20)) n = any_dims(d);
  else if (rnd(2)) n = 1, d[0] = ir_numel(x);
  else {
    if (n) memcpy(d + 1, x->dims, (size_t)n * sizeof *d);
    d[0] = 1, n++;
  }
  val y = ir_reshape(g, x, n, d);
  int m = y->ndim;
  for (int i = 0; i < m; i++) map[i] = i + 1, d[i + 1] = y->dims[i];
  d[0] = rnd(3);
  if (m && !rnd(20)) map[0] = (int)rnd(4) - 1;
  return rnd(2) || m >= 64 ? y : ir_broadcast(g, y, m + 1, d, map);
}

static val transformed(ir_graph *g, val x) {
  int64_t len[3] = {x->ndim ? x->dims[x->ndim - 1] : 1};
  ir_fft_kind k = (ir_fft_kind)rnd(4);
  if (k == IR_IRFFT) len[0] = 2 * (len[0] - 1) + (int64_t)rnd(2);
  if (rnd(20)) x = ir_convert(g, x, k == IR_RFFT ? TPU_F32 : TPU_C64);
  return ir_fft(g, x, k, rnd(30) ? 1 : (int)rnd(5), len);
}

static void step(ir_graph *g, int depth) {
  if (ir_failed(g)) return;
  int kind = (int)rnd(KINDS);
  int64_t d[70];
  int n = 0;
  val x = any(), r = x, two[2];
  uses[kind]++;
  /* Mostly operands that fit. */
  bool wants_rank = kind == 9 || (kind >= 22 && kind <= 24), wants_float = kind == 17;
  if (wants_rank && !x->ndim && rnd(20)) x = ir_reshape(g, x, 1, (const int64_t[]){1});
  if (wants_float && rnd(20)) x = ir_convert(g, x, TPU_F32);
  switch (kind) {
    case 0:
      n = any_dims(d);
      r = ir_const_f(g, any_dtype(), 0.5 * rnd(9) - 2, n, d);
      break;
    case 1:
      n = any_dims(d);
      r = ir_const_i(g, any_dtype(), (int64_t)rnd(1000) - 500, n, d);
      break;
    case 2:
      n = any_dims(d);
      if (!n && rnd(20)) d[n++] = 3;
      r = ir_iota(g, any_dtype(), n, d, n > 0 ? (int)rnd((uint32_t)n) : 0);
      break;
    case 3: r = ir_convert(g, x, any_dtype()); break;
    case 4: r = ir_bitcast(g, x, any_dtype()); break;
    case 5: r = reshaped(g, x); break;
    case 6: r = moved(g, x); break;
    case 7: r = sliced(g, x); break;
    case 8: r = padded(g, x); break;
    case 9: r = ir_concat(g, (val[]){x, like(x)}, 1 + (int)rnd(2), x->ndim ? (int)rnd((uint32_t)x->ndim) : 0); break;
    case 10:
    case 11: r = ir_unary(g, any_op(0, IR_ADD, x), x); break;
    case 12:
    case 13: r = ir_binary(g, any_op(IR_ADD, IR_OP_COUNT, x), x, like(x)); break;
    case 14: r = ir_compare(g, (ir_cmp)rnd(rnd(40) ? 6 : 8), x, like(x)); break;
    case 15: {
      ir_cmp c = IR_NE;
      r = ir_select(g, rnd(30) ? ir_compare(g, c, x, x) : any(), x, like(x));
      break;
    }
    case 16: r = ir_clamp(g, scalar_like(g, x), x, scalar_like(g, x)); break;
    case 17: r = ir_reduce_precision(g, x, (int)rnd(9), (int)rnd(24)); break;
    case 18: r = reduced(g, x); break;
    case 19: r = window(g, x); break;
    case 20: r = product(g, x); break;
    case 21: r = convolution(g); break;
    case 22: r = indexing(g, x); break;
    case 23: r = ordered(g, x); break;
    case 24: r = transformed(g, x); break;
    case 25:
      ir_barrier(g, (val[]){x, like(x)}, 2, two);
      r = two[rnd(2)];
      break;
    case 26:
      if (depth < 3) control(g, depth);
      return;
  }
  if (!ir_failed(g)) ok_uses[kind]++;
  keep(r);
}

static ir_graph *build(uint64_t seed) {
  state = seed * 0x9E3779B97F4A7C15u + 1;
  ir_graph *g = ir_new();
  if (!g) return NULL;
  npool = 0;
  for (int i = 0; i < 3; i++) {
    int64_t d[3] = {2, 3, 1};
    keep(ir_param(g, rnd(2) ? TPU_F32 : dtypes[rnd(5)], (int)rnd(4), d));
  }
  for (int i = 0; i < STEPS; i++) step(g, 0);
  for (int i = 0; i < 3; i++) ir_output(g, any(), -1);
  if (npool && !rnd(50)) ir_output(g, pool[0], 0);
  return g;
}

static int fail(uint64_t seed, const char *why, const char *text) {
  printf("seed %llu: %s\n%s\n", (unsigned long long)seed, why, text ? text : "");
  return 1;
}

static int one(uint64_t seed, pjrt_client *client) {
  buf b[2];
  int bad = 0;
  tpu_err *first = NULL;
  for (int i = 0; i < 2; i++) {
    buf_init(&b[i]);
    ir_graph *g = build(seed);
    if (!g) return fail(seed, "out of memory", NULL);
    bool failed = ir_failed(g);
    tpu_err *e = ir_print(g, &b[i]);
    if (failed != (e != NULL)) bad = fail(seed, "ir_failed and ir_print disagree", b[i].data);
    if (e && (!*tpu_err_message(e) || tpu_err_get_kind(e) == TPU_ERR_OOM))
      bad = fail(seed, "an error that says nothing", NULL);
    if (i && first && (!e || strcmp(tpu_err_message(e), tpu_err_message(first)) != 0))
      bad = fail(seed, "another error", NULL);
    if (!i) first = e;
    else tpu_err_free(e);
    ir_free(g);
  }
  if (first) refused++;
  else accepted++;
  if (!first && strcmp(b[0].data, b[1].data) != 0) bad = fail(seed, "built twice, two texts", b[0].data);
  if (!first && !bad && client) {
    pjrt_exec *x = NULL;
    tpu_err *e = pjrt_compile(client, b[0].data, b[0].len, NULL, 0, &x);
    if (e) bad = fail(seed, tpu_err_message(e), b[0].data);
    tpu_err_free(e);
    pjrt_exec_free(client, x);
  }
  tpu_err_free(first);
  buf_free(&b[0]), buf_free(&b[1]);
  return bad;
}

int main(int argc, char **argv) {
  long cases = argc > 1 ? atol(argv[1]) : 20000, first = argc > 2 ? atol(argv[2]) : 1, bad = 0;
  pjrt_client *client = NULL;
  if (argc > 3) {
    pjrt_api *api = NULL;
    tpu_err *e = pjrt_load(argv[3], &api);
    if (!e) e = pjrt_client_new(api, NULL, 0, &client);
    if (e) return fail(0, tpu_err_message(e), NULL);
  }
  find_what_ops_take();
  int64_t live = mem_live();
  for (long i = first; i < first + cases && bad < 5; i++) bad += one((uint64_t)i, client);
  if (mem_live() != live) bad = fail(0, "memory leaks", NULL);
  for (int k = 0; k < KINDS - 1; k++)
    if (cases >= 5000 && ok_uses[k] < uses[k] / 10)
      printf("kind %d is nearly always refused: %ld of %ld\n", k, ok_uses[k], uses[k]), bad++;
  printf("%ld accepted, %ld refused, %ld bad\n", accepted, refused, bad);
  return bad || !accepted || (cases >= 1000 && !refused);
}
