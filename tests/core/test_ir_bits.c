/* Numbers to element bits: every value of the small formats, and rounding against the compiler's own conversions. */
#include <math.h>

#include "ir/node.h"
#include "t.h"

static const tpu_dtype small[] = {TPU_F16,        TPU_BF16,       TPU_F8E5M2,   TPU_F8E4M3FN,
                                  TPU_F8E5M2FNUZ, TPU_F8E4M3FNUZ, TPU_F8E8M0FNU};

TEST(every_small_value_survives) {
  for (size_t k = 0; k < sizeof small / sizeof *small; k++) {
    tpu_dtype d = small[k];
    uint64_t n = (uint64_t)1 << (8 * tpu_dtype_size(d));
    int bad = 0;
    for (uint64_t b = 0; b < n; b++) {
      double v = bits_to_double(d, b);
      uint64_t back = bits_of_double(d, v);
      if (isnan(v) ? !isnan(bits_to_double(d, back)) : back != b) bad++;
    }
    if (!CHECK_INT(bad, 0)) printf("  %s\n", tpu_dtype_name(d));
  }
}

/* Between two neighbours: the nearer one; in the middle the even one. */
TEST(rounding_is_to_nearest_even) {
  for (size_t k = 0; k + 1 < sizeof small / sizeof *small; k++) { /* not F8E8M0FNU */
    tpu_dtype d = small[k];
    uint64_t half_range = (uint64_t)1 << (8 * tpu_dtype_size(d) - 1);
    int bad = 0, tried = 0;
    for (uint64_t b = 0; b + 1 < half_range; b++) {
      double lo = bits_to_double(d, b), hi = bits_to_double(d, b + 1);
      if (!isfinite(lo) || !isfinite(hi)) continue;
      double mid = (lo + hi) / 2, in_low = nextafter(mid, lo), in_high = nextafter(mid, hi);
      uint64_t even = b & 1 ? b + 1 : b;
      bad += bits_of_double(d, mid) != even;
      bad += bits_of_double(d, in_low) != b;
      bad += bits_of_double(d, in_high) != b + 1;
      uint64_t minus = bits_of_double(d, -mid), zero = d == TPU_F8E5M2FNUZ || d == TPU_F8E4M3FNUZ ? 0 : half_range;
      bad += minus != (even ? even | half_range : zero);
      tried++;
    }
    if (!CHECK_INT(bad, 0) || !CHECK(tried > 100)) printf("  %s\n", tpu_dtype_name(d));
  }
}

TEST(half_and_single_agree_with_the_compiler) {
  uint64_t seed = 1;
  int bad = 0;
  for (int i = 0; i < 200000; i++) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    double v;
    uint64_t bits = seed;
    if (i & 1)
      bits = (bits & ~((uint64_t)0x7ff << 52)) | (uint64_t)(1023 - 30 + (int)(seed >> 40) % 60) << 52; /* near halves */
    memcpy(&v, &bits, sizeof v);
    if (isnan(v)) continue;
    _Float16 h = (_Float16)v;
    float f = (float)v;
    uint16_t hb;
    uint32_t fb;
    memcpy(&hb, &h, 2);
    memcpy(&fb, &f, 4);
    bad += bits_of_double(TPU_F16, v) != hb;
    bad += bits_of_double(TPU_F32, v) != fb;
  }
  CHECK_INT(bad, 0);
}

TEST(ends_of_the_ranges) {
  CHECK_INT(bits_of_double(TPU_F16, 65519.99), 0x7bff);
  CHECK_INT(bits_of_double(TPU_F16, 65520), 0x7c00);
  CHECK_INT(bits_of_double(TPU_BF16, -INFINITY), 0xff80);
  CHECK_INT(bits_of_double(TPU_BF16, 1e300), 0x7f80);
  CHECK_INT(bits_of_double(TPU_F32, 1e-46), 0);
  CHECK_INT(bits_of_double(TPU_F32, -1e-46), 0x80000000);
  CHECK_INT(bits_of_double(TPU_F32, 5e-324), 0);
  CHECK_INT(bits_of_double(TPU_F8E4M3FN, 464), 0x7e);   /* a tie: stays */
  CHECK_INT(bits_of_double(TPU_F8E4M3FN, 464.1), 0x7f); /* no infinity: NaN */
  CHECK_INT(bits_of_double(TPU_F8E4M3FN, -INFINITY), 0xff);
  CHECK_INT(bits_of_double(TPU_F8E4M3FNUZ, 1e9), 0x80);
  CHECK_INT(bits_of_double(TPU_F8E4M3FNUZ, -0.0), 0);
  CHECK_INT(bits_of_double(TPU_F8E5M2, 1e9), 0x7c);
  /* As PyTorch: the sign is dropped, ties go up. */
  CHECK_INT(bits_of_double(TPU_F8E8M0FNU, 0), 0);
  CHECK_INT(bits_of_double(TPU_F8E8M0FNU, -1), 127);
  CHECK_INT(bits_of_double(TPU_F8E8M0FNU, 1.5), 128);
  CHECK_INT(bits_of_double(TPU_F8E8M0FNU, 1.4), 127);
  CHECK_INT(bits_of_double(TPU_F8E8M0FNU, ldexp(1.5, 127)), 255);
  CHECK_INT(bits_of_double(TPU_F8E8M0FNU, NAN), 255);
}

TEST(integers_round_once) {
  /* Twice rounded (to double, then to float) this would go down to the even neighbour. */
  int64_t v = ((int64_t)1 << 62) + ((int64_t)1 << 38) + 1;
  float once = (float)v;
  uint32_t bits;
  memcpy(&bits, &once, 4);
  CHECK_INT(bits_of_double(TPU_F32, bits_int_odd(v)), bits);
  CHECK(bits_of_double(TPU_F32, (double)v) != bits);
  uint64_t seed = 7;
  int bad = 0;
  for (int i = 0; i < 100000; i++) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    int64_t x = (int64_t)seed >> (i % 60);
    float f = (float)x;
    memcpy(&bits, &f, 4);
    bad += bits_of_double(TPU_F32, bits_int_odd(x)) != bits;
  }
  CHECK_INT(bad, 0);
  CHECK(bits_int_odd(INT64_MIN) == -ldexp(1, 63));
}

TEST(floats_to_integers) {
  CHECK_INT(bits_double_to_int(TPU_I32, -3.9), -3);
  CHECK_INT(bits_double_to_int(TPU_I8, 1000), 127);
  CHECK_INT(bits_double_to_int(TPU_I8, -1000), -128);
  CHECK_INT(bits_double_to_int(TPU_U8, 255.9), 255);
  CHECK_INT(bits_double_to_int(TPU_U8, -1), 0);
  CHECK_INT(bits_double_to_int(TPU_I64, 1e300), INT64_MAX);
  CHECK_INT(bits_double_to_int(TPU_I64, -1e300), INT64_MIN);
  CHECK((uint64_t)bits_double_to_int(TPU_U64, 1e300) == UINT64_MAX);
  CHECK((uint64_t)bits_double_to_int(TPU_U64, 18446744073709549568.0) == 18446744073709549568u);
  CHECK_INT(bits_double_to_int(TPU_I32, NAN), 0);
}

T_MAIN()
