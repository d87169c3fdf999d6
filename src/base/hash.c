#include "base/hash.h"

#include <string.h>

static inline uint64_t load64(const unsigned char *p) {
  uint64_t v;
  memcpy(&v, p, 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  v = __builtin_bswap64(v);
#endif
  return v;
}

static inline uint32_t load32(const unsigned char *p) {
  uint32_t v;
  memcpy(&v, p, 4);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  v = __builtin_bswap32(v);
#endif
  return v;
}

static inline uint64_t rotl(uint64_t v, int n) { return v << n | v >> (64 - n); }

/* ---- 64 bits: 16 bytes a step through one full-width multiply whose halves are folded -------------------------- */

/* Odd numbers without structure: the fraction bits of the square roots of 2, 3 and 5. */
#define ROOT2 UINT64_C(0x6a09e667f3bcc909)
#define ROOT3 UINT64_C(0xbb67ae8584caa73b)
#define ROOT5 UINT64_C(0x3c6ef372fe94f82b)

__extension__ typedef unsigned __int128 u128;

static inline uint64_t fold(uint64_t a, uint64_t b) {
  u128 m = (u128)a * b;
  return (uint64_t)m ^ (uint64_t)(m >> 64);
}

uint64_t hash64(const void *p, size_t n, uint64_t seed) {
  const unsigned char *at = p;
  uint64_t h = seed ^ ROOT2, a = 0, b = 0;
  size_t left = n;
  if (left > 32) { /* two chains, so that their multiplies overlap */
    uint64_t g = seed + ROOT5;
    do {
      h = fold(load64(at) ^ ROOT3, load64(at + 8) ^ h) + rotl(h, 23);
      g = fold(load64(at + 16) ^ ROOT2, load64(at + 24) ^ g) + rotl(g, 23);
      at += 32;
      left -= 32;
    } while (left > 32);
    h ^= rotl(g, 32);
  }
  while (left > 16) {
    h = fold(load64(at) ^ ROOT3, load64(at + 8) ^ h) + rotl(h, 23);
    at += 16;
    left -= 16;
  }
  if (left >= 8) { /* two loads that may overlap */
    a = load64(at);
    b = load64(at + left - 8);
  } else if (left >= 4) {
    a = load32(at);
    b = load32(at + left - 4);
  } else if (left) {
    a = (uint64_t)at[0] << 16 | (uint64_t)at[left / 2] << 8 | at[left - 1];
  }
  h = fold(a ^ ROOT3, b ^ h);
  return fold(h ^ ROOT5, n ^ ROOT3) ^ h;
}

/* ---- 128 bits: MurmurHash3_x64_128, seed 0 ---------------------------------------------------------------------- */

static inline uint64_t avalanche(uint64_t v) {
  v ^= v >> 33;
  v *= UINT64_C(0xff51afd7ed558ccd);
  v ^= v >> 33;
  v *= UINT64_C(0xc4ceb9fe1a85ec53);
  return v ^ v >> 33;
}

#define MUL1 UINT64_C(0x87c37b91114253d5)
#define MUL2 UINT64_C(0x4cf5ad432745937f)

static inline uint64_t scramble1(uint64_t k) { return rotl(k * MUL1, 31) * MUL2; }
static inline uint64_t scramble2(uint64_t k) { return rotl(k * MUL2, 33) * MUL1; }

hash128 hash128_of(const void *p, size_t n) {
  const unsigned char *at = p;
  uint64_t x = 0, y = 0;
  for (size_t i = 0; i < n / 16; i++, at += 16) {
    x = (rotl(x ^ scramble1(load64(at)), 27) + y) * 5 + 0x52dce729;
    y = (rotl(y ^ scramble2(load64(at + 8)), 31) + x) * 5 + 0x38495ab5;
  }
  unsigned char tail[16] = {0};
  if (n % 16) memcpy(tail, at, n % 16);
  x ^= scramble1(load64(tail));
  y ^= scramble2(load64(tail + 8));
  x ^= n;
  y ^= n;
  x += y;
  y += x;
  x = avalanche(x);
  y = avalanche(y);
  x += y;
  y += x;
  return (hash128){x, y};
}

void hash128_hex(hash128 h, char out[33]) {
  static const char digits[] = "0123456789abcdef";
  for (int i = 0; i < 16; i++) {
    out[i] = digits[h.hi >> (60 - 4 * i) & 15];
    out[16 + i] = digits[h.lo >> (60 - 4 * i) & 15];
  }
  out[32] = 0;
}
