/* hash.h - hashing: 64 bits for tables in memory (fast), 128 bits for names of programs (stable across runs, hosts and
 * versions; collisions are not expected). */
#ifndef TPU_BASE_HASH_H
#define TPU_BASE_HASH_H
#include <stddef.h>
#include <stdint.h>

typedef struct {
  uint64_t hi, lo;
} hash128;

/* Any bytes, little cost for short ones. Not stable across versions of ours. */
uint64_t hash64(const void *p, size_t n, uint64_t seed);
/* Stable: MurmurHash3_x64_128 (public domain algorithm, written from its description). */
hash128 hash128_of(const void *p, size_t n);
/* 32 hex digits and NUL */
void hash128_hex(hash128 h, char out[33]);
#endif
