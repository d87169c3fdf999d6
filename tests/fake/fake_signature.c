#include "fake_signature.h"

#include <stdlib.h>
#include <string.h>

#include "tpu.h"

typedef struct {
  const char *at, *end;
} cursor;

static void skip_space(cursor *c) {
  while (c->at < c->end && strchr(" \t\r\n", *c->at)) c->at++;
}

static bool eat(cursor *c, const char *word) {
  skip_space(c);
  size_t n = strlen(word);
  if ((size_t)(c->end - c->at) < n || memcmp(c->at, word, n) != 0) return false;
  c->at += n;
  return true;
}

/* What stands between an opening bracket, already eaten, and its closing one. */
static bool bracketed(cursor *c, char open, char close, cursor *inside) {
  int depth = 1;
  bool text = false;
  inside->at = c->at;
  for (; c->at < c->end; c->at++) {
    if (*c->at == '"') text = !text;
    if (text) continue;
    if (*c->at == open) depth++;
    if (*c->at == close && --depth == 0) {
      inside->end = c->at++;
      return true;
    }
  }
  return false;
}

static bool element_type(cursor *c, int *type, size_t *bytes) {
  static const struct {
    const char *mlir;
    int pjrt;
    size_t bytes;
  } types[] = {
#define X(num, name, torch, mlir, size, pjrt, cls) {mlir, pjrt, size},
      TPU_DTYPES(X)
#undef X
  };
  size_t n = (size_t)(c->end - c->at);
  for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
    if (strlen(types[i].mlir) == n && !memcmp(types[i].mlir, c->at, n)) {
      *type = types[i].pjrt;
      *bytes = types[i].bytes;
      return true;
    }
  return false;
}

static const char *read_type(cursor *c, fake_type *t) {
  memset(t, 0, sizeof *t);
  t->alias = -1;
  cursor in;
  if (!eat(c, "tensor<") || !bracketed(c, '<', '>', &in)) return "expected a tensor type";
  size_t bytes = 0, count = 1;
  while (in.at < in.end && *in.at >= '0' && *in.at <= '9') {
    if (t->ndim == FAKE_MAX_DIMS) return "a tensor type has too many dimensions";
    char *stop;
    long long d = strtoll(in.at, &stop, 10);
    if (stop >= in.end || *stop != 'x') return "a tensor type is malformed";
    in.at = stop + 1;
    t->dims[t->ndim++] = d;
    if (__builtin_mul_overflow(count, (size_t)d, &count)) count = SIZE_MAX;
  }
  for (const char *p = in.at; p < in.end; p++)
    if (*p == ',') in.end = p; /* an encoding */
  if (!element_type(&in, &t->type, &bytes)) return "a tensor type has an unknown element type";
  if (count == SIZE_MAX || __builtin_mul_overflow(count, bytes, &t->bytes)) t->bytes = SIZE_MAX;
  for (int i = 0; i < t->ndim; i++)
    if (t->dims[i] == 0) t->bytes = 0;
  return NULL;
}

static const char *read_attributes(cursor *c, fake_type *t) {
  cursor in;
  if (!eat(c, "{")) return NULL;
  if (!bracketed(c, '{', '}', &in)) return "an attribute list does not end";
  static const char alias[] = "tf.aliasing_output = ";
  for (const char *p = in.at; p + sizeof alias <= in.end; p++)
    if (!memcmp(p, alias, sizeof alias - 1)) t->alias = atoi(p + sizeof alias - 1);
  return NULL;
}

/* "%a: tensor<..> {..}, ..." or the same without names. */
static const char *read_list(cursor in, bool named, fake_type **out, size_t *n) {
  skip_space(&in);
  for (bool more = in.at < in.end; more;) {
    if (*n == FAKE_MAX_VALUES) return "too many values in the signature";
    fake_type *grown = realloc(*out, (*n + 1) * sizeof **out);
    if (!grown) return "out of memory";
    *out = grown;
    if (named) {
      if (!eat(&in, "%")) return "expected the name of an argument";
      while (in.at < in.end && *in.at != ':') in.at++;
      if (!eat(&in, ":")) return "expected : after the name of an argument";
    }
    const char *e = read_type(&in, &(*out)[*n]);
    if (!e) e = read_attributes(&in, &(*out)[*n]);
    if (e) return e;
    ++*n;
    more = eat(&in, ",");
    skip_space(&in);
    if (!more && in.at < in.end) return "expected , or the end of the signature's list";
  }
  return NULL;
}

const char *fake_signature_read(const char *text, size_t len, fake_signature *out) {
  memset(out, 0, sizeof *out);
  static const char main_name[] = "@main(";
  cursor c = {NULL, text + len}, in;
  for (const char *p = text; p + sizeof main_name <= c.end && !c.at; p++)
    if (!memcmp(p, main_name, sizeof main_name - 1)) c.at = p + sizeof main_name - 1;
  if (!c.at) return "there is no function @main";
  if (!bracketed(&c, '(', ')', &in)) return "the argument list of @main does not end";
  const char *e = read_list(in, true, &out->args, &out->nargs);
  if (!e && eat(&c, "->")) {
    if (eat(&c, "(")) {
      e = bracketed(&c, '(', ')', &in) ? read_list(in, false, &out->results, &out->nresults)
                                       : "the results of @main do not end";
    } else if ((out->results = malloc(sizeof *out->results))) {
      out->nresults = 1;
      e = read_type(&c, out->results);
    } else {
      e = "out of memory";
    }
  }
  if (!e) {
    skip_space(&c);
    if (c.at >= c.end || (*c.at != '{' && *c.at != 'a')) e = "expected the body of @main"; /* or "attributes" */
  }
  if (e) fake_signature_free(out);
  return e;
}

void fake_signature_free(fake_signature *s) {
  free(s->args);
  free(s->results);
  memset(s, 0, sizeof *s);
}
