/* fuzz_view.c - views against a plain strided copy.
 *
 * fuzz_view [cases] [first seed]: solves each case (view_case.h), builds programs that read and write the view, runs
 * them with the interpreter and compares every byte. Prints the first failing case and exits 1. */
#include "view_case.h"

#include "../tests/fake/interp.h"
#include "view/plan.h"

enum { WHOLE, EMPTY, DIMS, ROWS, TAKE, TIERS };
static const char *const tier_names[TIERS] = {"whole", "empty", "slices of dimensions", "rows", "gather"};
static long tiers[TIERS], reads, writes, rebases, covering, overlapping, joint, twins, twins_equal, longest;

static int tier_of(const view_plan *p) {
  int kind = (int)(p->words[0] & 15), tier = DIMS;
  if (kind != PLAN_FACTORS) return kind == PLAN_WHOLE ? WHOLE : EMPTY;
  const int64_t *w = p->words + 1;
  for (int i = 0; i < p->words[0] >> PLAN_FACTOR_SHIFT; i++) {
    int64_t head = *w++, n = 0, m = 1;
    for (int k = 0; k < (int)(head >> 1 & 127); k++) {
      int64_t n2 = *w >> 8, m2 = 1;
      if (*w++ & 1) m2 = *w++;
      if (k && m2 != n * m && tier < ROWS) tier = ROWS;
      n = n2, m = m2;
    }
    if (head & 1) tier = TAKE;
  }
  return tier;
}

static interp_array array_of(tpu_dtype dtype, int nd, const int64_t *dims, void *data) {
  interp_array a = {.dtype = dtype, .ndim = nd, .data = data};
  for (int i = 0; i < nd; i++) a.dims[i] = dims[i];
  return a;
}

static const char *why;
static char why_text[600];

static bool fail(const char *text, tpu_err *e) {
  snprintf(why_text, sizeof why_text, "%s%s%s", text, e ? ": " : "", e ? tpu_err_message(e) : "");
  tpu_err_free(e);
  why = why_text;
  return false;
}

/* Runs g on the params and compares its one output with `want`. */
static bool run_and_compare(const char *what, ir_graph *g, const interp_array *params, int nparams, tpu_dtype dtype,
                            int nd, const int64_t *dims, const char *want) {
  tpu_err *e = ir_take_error(g);
  interp_array out = {.data = NULL};
  if (!e) e = interp_run(g, params, nparams, &out);
  bool ok = e ? fail(what, e) : true;
  if (ok && (out.dtype != dtype || out.ndim != nd || (nd && memcmp(out.dims, dims, (size_t)nd * sizeof *dims))))
    ok = fail("the result has another type", NULL);
  if (ok && memcmp(out.data, want, (size_t)count_of(nd, dims) * tpu_dtype_size(dtype))) ok = fail(what, NULL);
  interp_free(&out, 1);
  return ok;
}

/* Makes the start parameters after `n` others. */
static int start_params(ir_graph *g, const view_plan *p, interp_array *params, int n, int32_t *narrow, val *starts) {
  for (int i = 0; i < p->nstarts; i++) {
    narrow[i] = (int32_t)p->starts[i];
    void *at = p->start_dtype == TPU_I32 ? (void *)&narrow[i] : (void *)(uintptr_t)&p->starts[i];
    params[n] = array_of(p->start_dtype, 0, NULL, at);
    starts[i] = ir_param(g, p->start_dtype, 0, NULL);
    n++;
  }
  return n;
}

static bool check_rebase(const shape *base, const char *storage, int64_t bytes) {
  tpu_dtype d = any_dtype();
  int64_t dims[64];
  int nd;
  random_dims(dims, &nd, 500);
  if (chance(30) && base->ndim) {
    nd = base->ndim;
    memcpy(dims, base->sizes, (size_t)nd * sizeof *dims);
    dims[0] = upto(2 * dims[0]);
  }
  int64_t n = count_of(nd, dims) * (int64_t)tpu_dtype_size(d);
  char *want = calloc((size_t)n + 1, 1);
  memcpy(want, storage, (size_t)(n < bytes ? n : bytes));
  for (int64_t i = 0; i < n; i++) {
    if (d == TPU_BOOL) want[i] = want[i] != 0;
  }
  ir_graph *g = ir_new();
  interp_array param = array_of(base->dtype, base->ndim, base->sizes, (void *)(uintptr_t)storage);
  val r = view_rebase(g, ir_param(g, base->dtype, base->ndim, base->sizes), d, nd, dims);
  ir_output(g, r, -1);
  bool ok = run_and_compare("view_rebase", g, &param, 1, d, nd, dims, want);
  if (!ok) {
    shape s = {.dtype = d, .ndim = nd};
    memcpy(s.sizes, dims, sizeof dims);
    dense_strides(&s);
    print_shape("rebase", &s);
  }
  ir_free(g);
  free(want);
  rebases++;
  return ok;
}

static bool check_case(const shape *base, const shape *v) {
  view_base b = {base->dtype, base->ndim, base->sizes};
  view_shape s = {v->dtype, v->ndim, v->sizes, v->strides, v->offset};
  view_plan p;
  tpu_err *e = view_solve(&b, &s, &p);
  if (e) return fail("view_solve", e);
  int64_t n = count_of(v->ndim, v->sizes), size = (int64_t)tpu_dtype_size(v->dtype);
  int64_t total = count_of(base->ndim, base->sizes), bytes = total * (int64_t)tpu_dtype_size(base->dtype);
  int tier = tier_of(&p);
  tiers[tier]++;
  if (p.nwords > longest) longest = p.nwords;
  if (p.nwords > 200 || p.nstarts > VIEW_MAX_DIMS) return fail("the form is too long", NULL);
  if (view_needs(base->dtype, &s) > total) return fail("view_needs is more than the base has", NULL);

  bool twice = truly_overlaps(v, bytes / size), covers = !twice && n * size == bytes;
  if (p.overlaps && !twice) return fail("`overlaps` is wrong", NULL);
  if (view_covers(&p) && !covers) return fail("`covers` is wrong", NULL);
  if (covers && n && tier != TAKE && !view_covers(&p)) return fail("`covers` is missing", NULL);
  if (twice && !p.overlaps && v->ndim < 3) return fail("`overlaps` is missing", NULL);
  overlapping += p.overlaps;
  covering += view_covers(&p);
  joint += twice && !p.overlaps;

  /* another start: the same form, but for windows that cross rows */
  int64_t reach = v->offset;
  for (int i = 0; i < v->ndim; i++) reach += (v->sizes[i] - 1) * v->strides[i];
  if (n && tier != WHOLE && reach < bytes / size) {
    view_shape t = s;
    t.offset = upto(bytes / size - 1 - (reach - v->offset));
    view_plan q;
    e = view_solve(&b, &t, &q);
    if (e) return fail("view_solve at another offset", e);
    twins++;
    twins_equal += p.nwords == q.nwords && !memcmp(p.words, q.words, (size_t)p.nwords * sizeof *p.words);
  }

  char *storage = malloc((size_t)bytes + 1), *want = malloc((size_t)(bytes > n * size ? bytes : n * size) + 1);
  char *value = malloc((size_t)(n * size) + 1);
  int32_t narrow[VIEW_MAX_DIMS];
  val starts[VIEW_MAX_DIMS];
  interp_array params[VIEW_MAX_DIMS + 2];
  fill(storage, bytes, base->dtype);
  /* The form must be enough: strides and offset are lies from here on. */
  int64_t lies[64];
  for (int i = 0; i < 64; i++) lies[i] = -77;
  s.strides = lies;
  s.offset = -77;

  ir_graph *g = ir_new();
  params[0] = array_of(base->dtype, base->ndim, base->sizes, storage);
  val x = ir_param(g, base->dtype, base->ndim, base->sizes);
  int np = start_params(g, &p, params, 1, narrow, starts);
  ir_output(g, view_read(g, &p, &b, &s, x, starts), -1);
  strided_copy(v, storage, want, false, false);
  bool ok = run_and_compare("view_read", g, params, np, v->dtype, v->ndim, v->sizes, want);
  ir_free(g);
  reads++;

  if (ok && !twice) {
    fill(value, n * size, v->dtype);
    memcpy(want, storage, (size_t)bytes);
    strided_copy(v, want, value, true, base->dtype == TPU_BOOL);
    g = ir_new();
    np = 0;
    params[np++] = array_of(v->dtype, v->ndim, v->sizes, value);
    val y = ir_param(g, v->dtype, v->ndim, v->sizes);
    x = NULL;
    if (!view_covers(&p)) {
      params[np++] = array_of(base->dtype, base->ndim, base->sizes, storage);
      x = ir_param(g, base->dtype, base->ndim, base->sizes);
    }
    np = start_params(g, &p, params, np, narrow, starts);
    ir_output(g, view_write(g, &p, &b, &s, x, y, starts), -1);
    ok = run_and_compare("view_write", g, params, np, base->dtype, base->ndim, base->sizes, want);
    ir_free(g);
    writes++;
  }
  if (ok && chance(10)) ok = check_rebase(base, storage, bytes);
  free(storage);
  free(want);
  free(value);
  return ok;
}

int main(int argc, char **argv) {
  long cases = argc > 1 ? atol(argv[1]) : 20000, first = argc > 2 ? atol(argv[2]) : 1;
  for (long i = 0; i < cases; i++) {
    shape base, v;
    seeded_case((uint64_t)(first + i), &base, &v);
    if (check_case(&base, &v)) continue;
    printf("seed %ld: %s\n", first + i, why);
    print_shape("base", &base);
    print_shape("view", &v);
    return 1;
  }
  printf(
      "%ld cases: %ld reads, %ld writes, %ld rebases; %ld cover, %ld overlap, %ld overlap only jointly; longest form "
      "%ld words\n",
      cases, reads, writes, rebases, covering, overlapping, joint, longest);
  printf("another start, same form: %.1f%%\n", twins ? 100.0 * (double)twins_equal / (double)twins : 0);
  for (int i = 0; i < TIERS; i++) printf("  %-22s %5.1f%%\n", tier_names[i], 100.0 * (double)tiers[i] / (double)cases);
  return 0;
}
