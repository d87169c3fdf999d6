/* view_case.h - random views for tests: one seed is one case, always the same. A case is a base and a view made by a
 * random chain of what PyTorch programs do: select, narrow, step, transpose, expand, unfold, diagonal, unflatten,
 * flatten, view as another dtype, as_strided. And the plain strided copy to compare with. */
#ifndef TPU_FUZZ_VIEW_CASE_H
#define TPU_FUZZ_VIEW_CASE_H
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ir/ir.h"

static uint64_t rng_state;

static inline uint64_t rnd(void) {
  uint64_t z = rng_state += 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}
static inline int64_t upto(int64_t n) { return n <= 0 ? 0 : (int64_t)(rnd() % (uint64_t)(n + 1)); } /* 0 .. n */
static inline bool chance(int percent) { return upto(99) < percent; }

static const tpu_dtype dtypes[] = {TPU_F32, TPU_U8,  TPU_BOOL, TPU_I64,      TPU_C64,       TPU_BF16, TPU_C128,
                                   TPU_I8,  TPU_F64, TPU_U16,  TPU_F8E4M3FN, TPU_F8E8M0FNU, TPU_I32};
static inline tpu_dtype any_dtype(void) { return dtypes[upto(sizeof dtypes / sizeof *dtypes - 1)]; }

typedef struct {
  tpu_dtype dtype;
  int ndim;
  int64_t sizes[64], strides[64], offset;
} shape;

static inline void dense_strides(shape *v) {
  int64_t s = 1;
  for (int i = v->ndim - 1; i >= 0; i--) {
    v->strides[i] = s;
    s *= v->sizes[i] ? v->sizes[i] : 1;
  }
}

static inline int64_t count_of(int nd, const int64_t *d) {
  int64_t n = 1;
  for (int i = 0; i < nd; i++) n *= d[i];
  return n;
}

static inline void drop_dim(shape *v, int d) {
  for (int i = d; i + 1 < v->ndim; i++) v->sizes[i] = v->sizes[i + 1], v->strides[i] = v->strides[i + 1];
  v->ndim--;
}
static inline void insert_dim(shape *v, int d, int64_t size, int64_t stride) {
  for (int i = v->ndim; i > d; i--) v->sizes[i] = v->sizes[i - 1], v->strides[i] = v->strides[i - 1];
  v->sizes[d] = size;
  v->strides[d] = stride;
  v->ndim++;
}

static inline void mutate(shape *v) {
  int nd = v->ndim, d = (int)upto(nd - 1);
  int64_t n = nd ? v->sizes[d] : 0;
  switch (upto(9)) {
    case 0: /* select */
      if (nd && n) v->offset += upto(n - 1) * v->strides[d], drop_dim(v, d);
      break;
    case 1: /* narrow, now and then to nothing */
      if (nd && n) {
        int64_t start = upto(n - 1), len = chance(3) ? 0 : 1 + upto(n - 1 - start);
        v->offset += start * v->strides[d];
        v->sizes[d] = len;
      }
      break;
    case 2: /* step */
      if (nd && n) {
        int64_t step = 1 + upto(chance(20) ? 40 : 3), start = upto(n - 1 < step ? n - 1 : step);
        v->offset += start * v->strides[d];
        v->sizes[d] = (n - start + step - 1) / step;
        v->strides[d] *= step;
      }
      break;
    case 3: { /* transpose */
      int e = (int)upto(nd - 1);
      if (nd) {
        int64_t a = v->sizes[d], b = v->strides[d];
        v->sizes[d] = v->sizes[e], v->strides[d] = v->strides[e];
        v->sizes[e] = a, v->strides[e] = b;
      }
      break;
    }
    case 4: /* expand */
      if (nd < 7 && chance(30)) insert_dim(v, (int)upto(nd), 1 + upto(2), 0);
      else if (nd < 7) insert_dim(v, (int)upto(nd), 1, upto(9));
      break;
    case 5: /* unfold */
      if (nd && n && nd < 7 && chance(60)) {
        int64_t size = 1 + upto(n - 1 < 4 ? n - 1 : 4), step = 1 + upto(3), stride = v->strides[d];
        v->sizes[d] = (n - size) / step + 1;
        v->strides[d] = stride * step;
        insert_dim(v, v->ndim, size, stride);
      }
      break;
    case 6: { /* diagonal */
      int e = (int)upto(nd - 1);
      if (nd > 1 && d != e && n && v->sizes[e]) {
        int64_t m = n < v->sizes[e] ? n : v->sizes[e], stride = v->strides[d] + v->strides[e];
        if (chance(50)) { /* above the main one */
          int64_t off = upto(v->sizes[e] - 1);
          v->offset += off * v->strides[e];
          m = n < v->sizes[e] - off ? n : v->sizes[e] - off;
        }
        drop_dim(v, d > e ? d : e);
        drop_dim(v, d > e ? e : d);
        insert_dim(v, v->ndim, m, stride);
      }
      break;
    }
    case 7: /* unflatten */
      if (nd && n > 1 && nd < 7) {
        int64_t k = 1 + upto(n - 1);
        if (n % k == 0) {
          int64_t s = v->strides[d];
          v->sizes[d] = n / k;
          v->strides[d] = s * k;
          insert_dim(v, d + 1, k, s);
        }
      }
      break;
    case 8: /* flatten neighbours */
      if (nd > 1 && d + 1 < nd && v->strides[d] == v->sizes[d + 1] * v->strides[d + 1]) {
        v->sizes[d + 1] *= v->sizes[d];
        drop_dim(v, d);
      }
      break;
    default: break;
  }
}

static inline void random_dims(int64_t *dims, int *nd, int64_t limit) {
  *nd = (int)upto(chance(10) ? 6 : 4);
  int64_t n = 1;
  for (int i = 0; i < *nd; i++) {
    dims[i] = chance(15) ? 1 : 1 + upto(chance(10) ? 40 : 7);
    if (n * dims[i] > limit) dims[i] = 1;
    n *= dims[i];
  }
  if (*nd && chance(1)) dims[upto(*nd - 1)] = 0;
}

/* Dims of the same count: neighbours joined, dims split. */
static inline void reshaped(shape *v) {
  dense_strides(v);
  for (int i = (int)upto(3); i > 0; i--) {
    int d = (int)upto(v->ndim - 1);
    if (chance(50) && d + 1 < v->ndim) {
      v->sizes[d] *= v->sizes[d + 1];
      drop_dim(v, d + 1);
    } else if (v->ndim && v->ndim < 6 && v->sizes[d] > 1) {
      int64_t k = 1 + upto(v->sizes[d] - 1);
      if (v->sizes[d] % k == 0) {
        v->sizes[d] /= k;
        insert_dim(v, d + 1, k, 0);
      }
    }
    dense_strides(v);
  }
}

static inline void make_case(shape *base, shape *v) {
  base->dtype = any_dtype();
  random_dims(base->sizes, &base->ndim, 400);
  dense_strides(base);
  *v = *base;
  v->offset = 0;
  int64_t n = count_of(base->ndim, base->sizes), bytes = n * (int64_t)tpu_dtype_size(base->dtype);
  if (chance(25)) { /* as another dtype */
    v->dtype = any_dtype();
    int64_t size = (int64_t)tpu_dtype_size(v->dtype), old = (int64_t)tpu_dtype_size(base->dtype), nd = v->ndim;
    if (nd && v->sizes[nd - 1] * old % size == 0) {
      v->sizes[nd - 1] = v->sizes[nd - 1] * old / size;
    } else {
      v->ndim = 1;
      v->sizes[0] = bytes / size;
    }
    dense_strides(v);
    n = bytes / size;
  }
  if (chance(12) && n) { /* as_strided */
    v->ndim = (int)upto(4);
    v->offset = chance(50) ? 0 : upto(n - 1);
    int64_t room = n - 1 - v->offset;
    for (int i = 0; i < v->ndim; i++) {
      v->strides[i] = upto(chance(30) ? room : 8);
      int64_t most = v->strides[i] ? room / v->strides[i] : 5;
      v->sizes[i] = 1 + upto(most < 7 ? most : 7);
      room -= (v->sizes[i] - 1) * v->strides[i];
    }
    return;
  }
  if (chance(30)) reshaped(v);
  for (int i = (int)upto(9); i > 0; i--) mutate(v);
  while (count_of(v->ndim, v->sizes) > 3000) drop_dim(v, 0);
}

/* The case of a seed. */
static inline void seeded_case(uint64_t seed, shape *base, shape *v) {
  rng_state = seed * 0xD1342543DE82EF95u;
  make_case(base, v);
}

/* ---- the plain copy ------------------------------------------------------------------------------------------------
 */

/* Calls for every element, row-major: value[i] <-> storage. */
static inline void strided_copy(const shape *v, char *storage, char *value, bool write, bool base_is_bool) {
  int64_t idx[64] = {0}, n = count_of(v->ndim, v->sizes);
  size_t size = tpu_dtype_size(v->dtype);
  for (int64_t k = 0; k < n; k++) {
    int64_t at = v->offset;
    for (int i = 0; i < v->ndim; i++) at += idx[i] * v->strides[i];
    char *s = storage + (size_t)at * size, *t = value + (size_t)k * size;
    if (write) memcpy(s, t, size);
    else memcpy(t, s, size);
    for (size_t b = 0; b < size; b++) {
      if (write && base_is_bool) s[b] = s[b] != 0;
      if (!write && v->dtype == TPU_BOOL) t[b] = t[b] != 0;
    }
    for (int i = v->ndim - 1; i >= 0; i--) {
      if (++idx[i] < v->sizes[i]) break;
      idx[i] = 0;
    }
  }
}

static inline bool truly_overlaps(const shape *v, int64_t total) {
  int64_t idx[64] = {0}, n = count_of(v->ndim, v->sizes);
  bool twice = false;
  char *seen = calloc((size_t)total + 1, 1);
  for (int64_t k = 0; k < n; k++) {
    int64_t at = v->offset;
    for (int i = 0; i < v->ndim; i++) at += idx[i] * v->strides[i];
    twice |= seen[at] != 0;
    seen[at] = 1;
    for (int i = v->ndim - 1; i >= 0; i--) {
      if (++idx[i] < v->sizes[i]) break;
      idx[i] = 0;
    }
  }
  free(seen);
  return twice;
}

static inline void print_shape(const char *what, const shape *s) {
  printf("  %s %s sizes (", what, tpu_dtype_name(s->dtype));
  for (int i = 0; i < s->ndim; i++) printf("%s%lld", i ? ", " : "", (long long)s->sizes[i]);
  printf(") strides (");
  for (int i = 0; i < s->ndim; i++) printf("%s%lld", i ? ", " : "", (long long)s->strides[i]);
  printf(") offset %lld\n", (long long)s->offset);
}

static inline void fill(char *p, int64_t n, tpu_dtype d) {
  for (int64_t i = 0; i < n; i++) p[i] = (char)(d == TPU_BOOL ? rnd() & 1 : rnd());
}
#endif
