#include "base/hash.h"

#include "t.h"

static const char *hex(const char *text) {
  static char out[33];
  hash128_hex(hash128_of(text, strlen(text)), out);
  return out;
}

/* Published values of MurmurHash3_x64_128, seed 0. */
TEST(hash128_is_murmur3) {
  CHECK_STR(hex(""), "00000000000000000000000000000000");
  CHECK_STR(hex("hello"), "cbd8a7b341bd9b025b1e906a48ae1d19");
  CHECK_STR(hex("The quick brown fox jumps over the lazy dog"), "e34bbc7bbc071b6c7a433ca9c49a9347");
}

TEST(hash64_depends_on_every_bit) {
  enum { N = 100 };
  unsigned char text[N + 1] = {0};
  for (int n = 1; n <= N; n++) {
    uint64_t base = hash64(text, (size_t)n, 0);
    for (int bit = 0; bit < 8 * n; bit++) {
      text[bit / 8] ^= (unsigned char)(1 << bit % 8);
      if (hash64(text, (size_t)n, 0) == base) CHECK(!"a bit changes the hash");
      text[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    if (n > 1) CHECK(base != hash64(text, (size_t)n - 1, 0)); /* zeros count */
    CHECK(base != hash64(text, (size_t)n, 1));
  }
}

static int compare(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return x < y ? -1 : x > y;
}

/* Small integers are what keys are made of: no 64-bit collision, and the low bits spread. */
TEST(hash64_of_small_integers) {
  enum { N = 200000, BUCKETS = 1024 };
  uint64_t *h = malloc(N * sizeof *h);
  static int buckets[BUCKETS];
  for (int64_t i = 0; i < N; i++) {
    int64_t key[5] = {7, i % 100, i / 100, 0, -1};
    h[i] = hash64(key, sizeof key, 0);
    buckets[h[i] % BUCKETS]++;
  }
  qsort(h, N, sizeof *h, compare);
  int same = 0, most = 0;
  for (int i = 1; i < N; i++) same += h[i] == h[i - 1];
  for (int i = 0; i < BUCKETS; i++) most = buckets[i] > most ? buckets[i] : most;
  CHECK_INT(same, 0);
  CHECK(most < 300); /* 195 on average, standard deviation 14 */
  free(h);
}

TEST(hash64_does_not_depend_on_alignment) {
  char room[128];
  const char text[] = "a text of more than forty bytes, which is moved about a little";
  uint64_t want = hash64(text, sizeof text, 5);
  for (int i = 0; i < 16; i++) {
    memcpy(room + i, text, sizeof text);
    CHECK(hash64(room + i, sizeof text, 5) == want);
  }
}

T_MAIN()
