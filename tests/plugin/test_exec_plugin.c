/* The executor on a real plugin: values, views, donation, what compiles and what does not. argv[1]: the plugin. */
#include "core/exec_t.h"

static tpu_op *add, *add_;

TEST(start) {
  setenv("TORCH_TPU_PJRT_PLUGIN", t_arg(1), 1);
  if (!CHECK_OK(tpu_init())) return;
  CHECK(tpu_device_count() == 1);
  add = xt_op("aten::add", "Tensor", NULL, 3, xt_add_types, false);
  add_ = xt_op("aten::add_", "Tensor", "aten::add.Tensor", 3, xt_add_types, true);
  CHECK(add && add_);
}

static const int64_t s34[] = {3, 4};

static void iota(float *x, int n, float start) {
  for (int i = 0; i < n; i++) x[i] = start + (float)i;
}

TEST(values_and_numbers_are_operands) {
  float ha[12], hb[12], h[12];
  iota(ha, 12, 0), iota(hb, 12, 100);
  xt a, b, r;
  CHECK_OK(xt_from(&a, TPU_F32, 2, s34, ha));
  CHECK_OK(xt_from(&b, TPU_F32, 2, s34, hb));
  int64_t before = xt_compiles();
  for (int k = 0; k < 5; k++) {
    if (!CHECK_OK(xt_add(add, &a, &b, 0.5 * k, &r))) return;
    CHECK_OK(xt_read(&r, h));
    for (int i = 0; i < 12; i++) CHECK(h[i] == ha[i] + 0.5f * (float)k * hb[i]);
    xt_free(&r);
  }
  CHECK_INT(xt_compiles() - before, 2); /* alpha = 1 has a program of its own, without the product */
  xt_free(&a), xt_free(&b);
}

TEST(views_share_a_program_wherever_they_start) {
  float ha[12], hr[4], h[4];
  iota(ha, 12, 0), iota(hr, 4, 10);
  xt a, row, r;
  CHECK_OK(xt_from(&a, TPU_F32, 2, s34, ha));
  CHECK_OK(xt_from(&row, TPU_F32, 1, s34 + 1, hr));
  int64_t before = 0;
  for (int i = 0; i < 3; i++) { /* a[i] + row */
    xt v = {.store = a.store, .sizes = {4}, .strides = {1}, .offset = 4 * i, .ndim = 1, .dtype = TPU_F32};
    if (!CHECK_OK(xt_add(add, &v, &row, 1, &r))) return;
    CHECK_OK(xt_read(&r, h));
    for (int k = 0; k < 4; k++) CHECK(h[k] == (float)(4 * i + k) + hr[k]);
    xt_free(&r);
    if (i == 0) before = xt_compiles();
  }
  CHECK_INT(xt_compiles(), before);
  for (int i = 0; i < 3; i++) { /* a[i] += row, then column 1 of a */
    xt v = {.store = a.store, .sizes = {4}, .strides = {1}, .offset = 4 * i, .ndim = 1, .dtype = TPU_F32};
    if (!CHECK_OK(xt_add(add_, &v, &row, 1, NULL))) return;
    if (i == 0) before = xt_compiles();
  }
  CHECK_INT(xt_compiles(), before);
  xt column = {.store = a.store, .sizes = {3}, .strides = {4}, .offset = 1, .ndim = 1, .dtype = TPU_F32};
  CHECK_OK(xt_read(&column, h));
  for (int i = 0; i < 3; i++) CHECK(h[i] == (float)(4 * i + 1) + 11);
  xt_free(&a), xt_free(&row);
}

TEST(in_place_updates_every_view_of_the_storage_and_not_old_results) {
  float ha[12], h[12];
  iota(ha, 12, 0);
  xt a, sum;
  CHECK_OK(xt_from(&a, TPU_F32, 2, s34, ha));
  CHECK_OK(xt_add(add, &a, &a, 1, &sum)); /* 2a, must not change when a does */
  xt t = a;
  t.sizes[0] = 4, t.sizes[1] = 3, t.strides[0] = 1, t.strides[1] = 4;
  for (int k = 0; k < 3; k++)
    if (!CHECK_OK(xt_add(add_, &t, &t, 1, NULL))) return; /* a *= 2, three times, through its transpose */
  CHECK_OK(xt_read(&a, h));
  for (int i = 0; i < 12; i++) CHECK(h[i] == 8 * ha[i]);
  CHECK_OK(xt_read(&sum, h));
  for (int i = 0; i < 12; i++) CHECK(h[i] == 2 * ha[i]);
  xt_free(&a), xt_free(&sum);
}

TEST(storages_without_a_value_read_as_zeros_and_can_be_resized) {
  xt a, one;
  float h[12], ones[12];
  for (int i = 0; i < 12; i++) ones[i] = 1;
  CHECK_OK(xt_empty(&a, TPU_F32, 2, s34, 0));
  CHECK_OK(xt_from(&one, TPU_F32, 2, s34, ones));
  CHECK_OK(xt_read(&a, h));
  CHECK(h[0] == 0 && h[11] == 0);
  CHECK_OK(xt_add(add_, &a, &one, 3, NULL));
  CHECK_OK(tpu_store_resize(a.store, 24 * sizeof(float)));
  xt tail = {.store = a.store, .sizes = {16}, .strides = {1}, .offset = 8, .ndim = 1, .dtype = TPU_F32};
  float ht[16];
  CHECK_OK(xt_read(&tail, ht));
  for (int i = 0; i < 16; i++) CHECK(ht[i] == (i < 4 ? 3 : 0));
  CHECK_OK(xt_add(add_, &tail, &tail, 1, NULL));
  CHECK_OK(xt_read(&tail, ht));
  for (int i = 0; i < 16; i++) CHECK(ht[i] == (i < 4 ? 6 : 0));
  CHECK_OK(xt_read(&a, h));
  CHECK(h[7] == 3 && h[8] == 6);
  xt_free(&a), xt_free(&one);
}

TEST(raw_bytes) {
  xt a;
  uint8_t bytes[16];
  float x[4] = {1, 2, 3, 4}, y;
  CHECK_OK(xt_from(&a, TPU_F32, 1, (int64_t[]){4}, x));
  CHECK_OK(tpu_store_read_bytes(a.store, 0, bytes, 16));
  CHECK(!memcmp(bytes, x, 16));
  y = 7;
  CHECK_OK(tpu_store_write_bytes(a.store, 8, &y, 4));
  CHECK_OK(tpu_store_read_bytes(a.store, 4, bytes, 8));
  CHECK(!memcmp(bytes, (float[]){2, 7}, 8));
  CHECK_ERR(tpu_store_read_bytes(a.store, 12, bytes, 8), TPU_ERR_RUNTIME, "outside");
  xt_free(&a);
}

TEST(errors_leave_the_process_usable) {
  xt a, b, r;
  float h[12] = {0};
  CHECK_OK(xt_from(&a, TPU_F32, 2, s34, h));
  CHECK_OK(xt_from(&b, TPU_F32, 1, (int64_t[]){5}, h));
  CHECK_ERR(xt_add(add, &a, &b, 1, &r), TPU_ERR_RUNTIME, "must match the size");
  CHECK_ERR(xt_empty(&r, TPU_F32, 1, (int64_t[]){(int64_t)1 << 40}, 0), TPU_ERR_OOM, "out of memory");
  CHECK_OK(xt_add(add, &a, &a, 1, &r));
  CHECK_OK(tpu_synchronize(-1));
  xt_free(&a), xt_free(&b), xt_free(&r);
}

TEST(nothing_stays) {
  tpu_memory_stats m;
  tpu_get_memory_stats(0, &m);
  CHECK_INT(m.allocated, 0);
  CHECK_INT(m.stores, 0);
  CHECK(m.allocated_peak > 0);
}

T_MAIN()
