/* Operators: a schema of PyTorch joined with the row that serves it. */
#include <string.h>

#include "exec/exec.h"

static const op_row *row_named(const char *name, size_t len) {
  const op_row *r;
  for (int i = 0; (r = op_row_at(i)); i++)
    if (strlen(r->name) == len && !memcmp(r->name, name, len)) return r;
  return NULL;
}

static char *full_name(const tpu_schema *s) {
  size_t n = strlen(s->name), o = strlen(s->overload);
  char *name = mem_alloc(n + o + 2);
  if (!name) return NULL;
  memcpy(name, s->name, n);
  name[n] = 0;
  if (o) {
    name[n] = '.';
    memcpy(name + n + 1, s->overload, o + 1);
  }
  return name;
}

static bool is_number_type(const char *t) {
  return !strncmp(t, "Scalar", 6) || !strncmp(t, "float", 5) || !strncmp(t, "number", 6);
}

/* Of a second operand (x + 300, pow, foreach) PyTorch makes a tensor; any other Scalar it converts, with a check. */
static bool is_strict_number(const tpu_schema_arg *a) {
  return (!strcmp(a->type, "Scalar") || !strcmp(a->type, "Scalar?") || !strcmp(a->type, "number")) &&
         strcmp(a->name, "other") != 0 && strcmp(a->name, "scalar") != 0 && strcmp(a->name, "exponent") != 0;
}

tpu_err *tpu_op_find(const tpu_schema *schema, const char *functional, tpu_op **out) {
  *out = NULL;
  char *name = full_name(schema);
  if (!name) return err_nomem();
  const char *twin = functional ? functional : name;
  size_t base = strcspn(twin, ".");
  const op_row *row = row_named(name, strlen(name));
  if (!row) row = row_named(twin, strlen(twin));
  if (!row) row = row_named(twin, base);
  if (!row && !functional) row = row_named(schema->name, strlen(schema->name));
  if (!row) {
    mem_free(name);
    return NULL;
  }
  tpu_op *op = mem_calloc(sizeof *op);
  int na = schema->nargs, nr = schema->nrets;
  bool ok = op != NULL;
  if (ok) {
    op->ret_alias = mem_alloc((size_t)nr * sizeof *op->ret_alias);
    op->ret_list = mem_calloc((size_t)nr);
    op->written = mem_calloc((size_t)na);
    op->number = mem_calloc((size_t)na);
    ok = op->ret_alias && op->ret_list && op->written && op->number;
  }
  if (!ok) {
    if (op) {
      mem_free(op->ret_alias);
      mem_free(op->ret_list);
      mem_free(op->written);
      mem_free(op->number);
    }
    mem_free(op);
    mem_free(name);
    return err_nomem();
  }
  op->row = row;
  op->name = name;
  op->nargs = na;
  op->nrets = nr;
  for (int i = 0; i < nr; i++) {
    op->ret_alias[i] = schema->rets[i].alias;
    op->ret_list[i] = !strcmp(schema->rets[i].type, "Tensor[]");
  }
  for (int i = 0; i < na; i++) {
    op->written[i] = schema->args[i].written;
    op->number[i] = is_number_type(schema->args[i].type);
    if (i < 64 && is_strict_number(&schema->args[i])) op->strict_numbers |= (uint64_t)1 << i;
  }
  *out = op;
  return NULL;
}

int op_target(const tpu_op *op, int ret) {
  if (op->nrets) return ret < op->nrets ? op->ret_alias[ret] : -1;
  for (int i = 0; i < op->nargs; i++)
    if (op->written[i] && ret-- == 0) return i;
  return -1;
}
