/* bucket.h - the inside of ir_bucket, for bucket.c (comparing, layouts) and bucket_rules.c (what each operation does).
 */
#ifndef TPU_IR_BUCKET_H
#define TPU_IR_BUCKET_H
#include "ir/node.h"

typedef struct {
  val now;         /* what stands for the value in the program for the bucket */
  ir_extent *dims; /* one for each dim; NULL: no dim depends on a symbol */
} bucket_info;

typedef struct {
  ir_graph *g;
  ir_bucket_spec *spec;
  int nrows;        /* graphs: g, then the samples */
  bucket_info *of;  /* by val->id */
  int32_t nof, cap; /* ids in use */
  val symbols[IR_MAX_SYMBOLS];
} bucket;

/* One operation, in g and in the samples, while it is looked at. */
typedef struct {
  bucket *b;
  ir_op **ops;     /* of g, then of the samples; operands of ops[0] are those that stand for the old ones */
  ir_extent **in;  /* of each operand, one extent for each dim */
  ir_extent **out; /* of each result: to be filled */
  val *result;     /* what stands for each result */
} bucket_op;

/* A rule fills `out`, and `result` or calls bucket_keep. False: an error is in the graph. */
typedef bool bucket_rule(bucket_op *o);
bucket_rule *bucket_find_rule(const char *name);

/* Says why the operation cannot be padded; false. */
bool bucket_refuse(const bucket_op *o, const char *why);
/* The operation itself, with its new operands. */
void bucket_keep(bucket_op *o);

/* The linear function that takes these values at the samples (values[row]); false if there is none. */
bool bucket_fit(const bucket *b, const int64_t *values, ir_linear *out);
int64_t bucket_at(const bucket *b, const ir_linear *f, int row);
/* f as an int32 scalar of the program. */
val bucket_number(bucket *b, const ir_linear *f);

/* Attributes of numbers, NAME = [1, 2] or NAME = array<i64: 1, 2>: how many, as they are in g; -1 if they are not the
 * same in all samples. */
int bucket_attr(const bucket_op *o, const char *name, int64_t *out);
/* The same for numbers that depend on symbols; -1 if one is not linear. */
int bucket_attr_linear(const bucket_op *o, const char *name, ir_linear *out);
bool bucket_same_attrs(const bucket_op *o);
static inline bool bucket_fixed(const ir_linear *f) {
  for (int i = 0; i < IR_MAX_SYMBOLS; i++)
    if (f->k[i]) return false;
  return true;
}

ir_extent bucket_fixed_extent(bucket *b, int64_t size);
ir_extent bucket_prefix(bucket *b, int64_t size, const ir_linear *count);
/* A dim in which all elements are the same, of the size that dim d of result r has in the samples. */
bool bucket_uniform(bucket_op *o, int r, int d, ir_extent *out);
bool bucket_is_dynamic(const ir_extent *e);
/* The one linear count of the dim, when what counts stands in front; false: it does not. */
bool bucket_count(const ir_extent *e, ir_linear *out);
/* What two dims of one size have in common; false: they are laid out in different ways. */
bool bucket_unify(const ir_extent *x, const ir_extent *y, ir_extent *out);
/* x with dim d laid out as `to`. */
val bucket_relayout(bucket *b, val x, int d, const ir_extent *from, const ir_extent *to);
/* x with `fill`, a scalar, where it does not count in the dims marked in `which`. NULL after an error. */
val bucket_mask(bucket *b, val x, const ir_extent *dims, const bool *which, val fill);
#endif
