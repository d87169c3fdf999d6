/* Fourier transforms. StableHLO transforms the last dims, three at most; others are moved there and back. */
#include <math.h>

#include "ops/along.h"

/* perm that moves the dims d[0..n) of a value of rank `ndim` last, in that order. */
static void move_last(int ndim, const int *d, int n, int *perm) {
  int k = 0;
  for (int i = 0; i < ndim; i++) {
    bool moved = false;
    for (int j = 0; j < n; j++) moved |= d[j] == i;
    if (!moved) perm[k++] = i;
  }
  for (int j = 0; j < n; j++) perm[k++] = d[j];
}

/* `kind` over dims d[0..n), n <= 3. last: the length of the last one in the real domain. */
static val transform(op_ctx *c, val x, ir_fft_kind kind, const int *d, int n, int64_t last) {
  int perm[T_MAX_DIMS], back[T_MAX_DIMS];
  int64_t lengths[3];
  if (ir_failed(G)) return x;
  move_last(x->ndim, d, n, perm);
  for (int i = 0; i < x->ndim; i++) back[perm[i]] = i;
  for (int j = 0; j < n; j++) lengths[j] = x->dims[d[j]];
  lengths[n - 1] = last;
  return t_permute(c, ir_fft(G, t_permute(c, x, perm), kind, n, lengths), back);
}

/* Unscaled complex transform over n dims, three at a time. */
static val complex_transform(op_ctx *c, val x, const int *d, int n, bool forward) {
  double count = 1;
  for (int i = 0; i < n; i += 3) {
    int m = n - i < 3 ? n - i : 3;
    for (int j = 0; j < m; j++) count *= (double)t_size(x, d[i + j]);
    x = transform(c, x, forward ? IR_FFT : IR_IFFT, d + i, m, t_size(x, d[i + m - 1]));
  }
  return forward || n == 0 ? x : t_mul(c, x, t_like(c, x, count)); /* the inverse divides */
}

/* PyTorch's normalization: 0 none, 1 by the root of n, 2 by n. */
static val normalized(op_ctx *c, val x, int64_t normalization, double n) {
  if (normalization == 0 || ir_failed(G)) return x;
  return t_mul(c, x, t_like(c, x, normalization == 1 ? 1 / sqrt(n) : 1 / n));
}

/* The dims of argument 1 in their order, wrapped; and how many elements they hold in x. */
static int read_dims(op_ctx *c, val x, int *d, double *count) {
  int n;
  const int64_t *dims = op_ints(c, 1, &n);
  *count = 1;
  if (n > T_MAX_DIMS) n = 0;
  for (int i = 0; i < n; i++) {
    d[i] = t_dim(c, dims[i], x->ndim);
    *count *= (double)t_size(x, d[i]);
  }
  return n;
}

/* (self, dim, normalization, forward) */
OP(fft_c2c, "aten::_fft_c2c") {
  val x = T(0);
  int d[T_MAX_DIMS];
  double count;
  int n = read_dims(c, x, d, &count);
  if (ir_failed(G)) return;
  RET(ir_numel(x) ? normalized(c, complex_transform(c, x, d, n, INT(3)), INT(2), count) : x);
}

/* (self, dim, normalization, onesided) */
OP(fft_r2c, "aten::_fft_r2c") {
  val x = T(0);
  int d[T_MAX_DIMS];
  double count;
  int n = read_dims(c, x, d, &count);
  if (ir_failed(G) || n == 0) return;
  tpu_dtype z = x->dtype == TPU_F64 ? TPU_C128 : TPU_C64;
  int64_t dims[T_MAX_DIMS], last = t_size(x, d[n - 1]);
  for (int i = 0; i < x->ndim; i++) dims[i] = i == d[n - 1] && INT(3) ? last / 2 + 1 : x->dims[i];
  val y;
  if (ir_numel(x) == 0) y = t_zeros(c, z, x->ndim, dims);
  else if (INT(3))
    y = complex_transform(c, transform(c, t_cast(c, x, ir_real_dtype(z)), IR_RFFT, d + n - 1, 1, last), d, n - 1, true);
  else y = complex_transform(c, t_cast(c, x, z), d, n, true);
  RET(normalized(c, y, INT(2), count));
}

/* (self, dim, normalization, last_dim_size): an inverse transform to real numbers. */
OP(fft_c2r, "aten::_fft_c2r") {
  val x = T(0);
  int d[T_MAX_DIMS];
  double count;
  int n = read_dims(c, x, d, &count);
  if (ir_failed(G) || n == 0) return;
  int64_t last = INT(3), want = last / 2 + 1, have = t_size(x, d[n - 1]);
  int at = d[n - 1];
  count = count / (have ? (double)have : 1) * (double)last;
  int64_t dims[T_MAX_DIMS];
  for (int i = 0; i < x->ndim; i++) dims[i] = i == at ? last : x->dims[i];
  if (ir_numel(x) == 0) {
    RET(t_zeros(c, ir_real_dtype((tpu_dtype)x->dtype), x->ndim, dims));
    return;
  }
  if (have > want) x = t_narrow(c, x, at, 0, want, 1);
  if (have < want) {
    int64_t low[T_MAX_DIMS] = {0}, high[T_MAX_DIMS] = {0}, inside[T_MAX_DIMS] = {0};
    high[at] = want - have;
    x = ir_pad(G, x, t_scalar(c, (tpu_dtype)x->dtype, 0), low, high, inside);
  }
  val y = transform(c, complex_transform(c, x, d, n - 1, false), IR_IRFFT, &at, 1, last);
  if (ir_failed(G)) return;
  RET(normalized(c, t_mul(c, y, t_like(c, y, (double)last)), INT(2), count));
}
