/* shard.c - programs for many devices: a mesh, and where on it parameters, results and values in between are. Written
 * in the dialect of Shardy (openxla/shardy), from which the compiler's partitioner makes one device's program. */
#include "ir/node.h"

void ir_set_mesh(ir_graph *g, int naxes, const char *const *names, const int64_t *sizes) {
  if (!node_ok(g)) return;
  if (g->mesh || g->top.nargs || naxes < 1) {
    ir_fail(g, TPU_ERR_RUNTIME, "ir_set_mesh: expected a graph without a mesh and parameters, and a mesh with axes");
    return;
  }
  g->axis_names = arena_alloc(&g->mem, (size_t)naxes * sizeof *g->axis_names);
  g->axis_sizes = arena_copy(&g->mem, sizes, (size_t)naxes * sizeof *sizes);
  if (g->mem.failed) return;
  int64_t devices = 1;
  buf *b = attr_begin(g);
  buf_str(b, "  sdy.mesh @mesh = <[");
  for (int i = 0; i < naxes; i++) {
    size_t n = strlen(names[i]);
    g->axis_names[i] = arena_copy(&g->mem, names[i], n + 1);
    if (sizes[i] < 1 || __builtin_mul_overflow(devices, sizes[i], &devices) || devices > INT32_MAX) {
      ir_fail(g, TPU_ERR_VALUE, "axis %s of the mesh has the size %lld", names[i], (long long)sizes[i]);
      return;
    }
    if (i) buf_str(b, ", ");
    attr_quoted(b, names[i], n);
    buf_char(b, '=');
    buf_int(b, sizes[i]);
  }
  const char *axes = attr_end(g);
  g->mesh =
      arena_printf(&g->mem, "attributes {mhlo.num_partitions = %lld : i32, mhlo.num_replicas = 1 : i32} {\n%s]>\n",
                   (long long)devices, axes);
  if (g->mesh) g->naxes = naxes;
}

int ir_mesh_axes(const ir_graph *g) { return g->naxes; }

/* Why a tensor cannot be at a place. */
static val indivisible(ir_graph *g, val v, int dim, int64_t parts, const int64_t *place) {
  const char *axes = "";
  for (int a = 0; a < g->naxes; a++)
    if (place[a] == dim) axes = arena_printf(&g->mem, "%s%s%s", axes, *axes ? ", " : "", g->axis_names[a]);
  return ir_fail(g, TPU_ERR_VALUE,
                 "dim %d of %s has the size %lld, which cannot be divided into %lld equal parts (mesh axes: %s)", dim,
                 node_text(g, v), (long long)v->dims[dim], (long long)parts, axes);
}

/* Writes "<@mesh, [{"data"}, {}]>"; false after an error. b is not the graph's scratch text. */
static bool put_sharding(ir_graph *g, buf *b, val v, const int64_t *place) {
  if (!node_ok(g)) return false;
  if (!g->naxes) {
    ir_fail(g, TPU_ERR_RUNTIME, "a program without a mesh has no places");
    return false;
  }
  for (int a = 0; a < g->naxes; a++) {
    if (place[a] >= -1 && place[a] < v->ndim) continue;
    ir_fail(g, TPU_ERR_INDEX, "expected a dim from 0 to %d to split over mesh axis %s, got %lld for %s", v->ndim - 1,
            g->axis_names[a], (long long)place[a], node_text(g, v));
    return false;
  }
  buf_str(b, "<@mesh, [");
  for (int d = 0; d < v->ndim; d++) {
    int64_t parts = 1;
    bool more = false;
    buf_str(b, d ? ", {" : "{");
    for (int a = 0; a < g->naxes; a++) {
      if (place[a] != d) continue;
      if (more) buf_str(b, ", ");
      more = true;
      attr_quoted(b, g->axis_names[a], strlen(g->axis_names[a]));
      parts *= g->axis_sizes[a];
    }
    buf_char(b, '}');
    if (v->dims[d] % parts) {
      indivisible(g, v, d, parts, place);
      return false;
    }
  }
  buf_str(b, "]>");
  return true;
}

/* "#sdy.sharding<@mesh, [{"data"}, {}]>"; NULL after an error. */
static const char *sharding(ir_graph *g, val v, const int64_t *place) {
  buf *b = attr_begin(g);
  buf_str(b, "#sdy.sharding");
  return put_sharding(g, b, v, place) ? attr_end(g) : NULL;
}

/* The numbers of a place, in the graph's memory. */
static const int64_t *kept(ir_graph *g, const int64_t *place) {
  return arena_copy(&g->mem, place, (size_t)g->naxes * sizeof *place);
}

void ir_place_param(ir_graph *g, val param, const int64_t *place) {
  const char *s = sharding(g, param, place);
  if (!s) return;
  if (param->op) {
    ir_fail(g, TPU_ERR_RUNTIME, "ir_place_param: expected a parameter, got a result of %s", param->op->name);
    return;
  }
  ir_arg *a = (ir_arg *)(void *)param;
  a->place = s;
  a->at = kept(g, place);
}

void ir_place_output(ir_graph *g, int i, const int64_t *place) {
  if (i < 0 || i >= g->noutputs) {
    ir_fail(g, TPU_ERR_RUNTIME, "ir_place_output: expected one of %d results, got %d", g->noutputs, i);
    return;
  }
  const char *s = sharding(g, g->outputs[i].v, place);
  if (s) g->outputs[i].place = s;
}

val ir_constrain(ir_graph *g, val v, const int64_t *place) {
  const char *name = "sdy.sharding_constraint";
  USABLE_OR_POISON(name, &v, 1);
  const char *s = sharding(g, v, place);
  if (!s) return node_poison(g);
  val r = node_make(g, name, arena_printf(&g->mem, "sharding = %s", s), &v, 1, v->dtype, v->ndim, v->dims);
  if (r->op) r->op->at = kept(g, place);
  return r;
}

/* ---- where a value is likely to be ------------------------------------------------------------------------------ */

enum { FOLLOW_MAX = 4096 }; /* operations on the way */

typedef struct {
  int64_t *place;
  int ndim, steps;
} follow;

/* Dim `d` of a reshape's result, in terms of its operand: the dim at whose front it stands; -1: none. */
static int before_reshape(val in, val out, int d) {
  int64_t want = 1, have = 1;
  for (int i = 0; i < d; i++) want *= out->dims[i];
  for (int j = 0; j < in->ndim; j++) {
    if (have == want && in->dims[j] > 1) return j;
    have *= in->dims[j];
  }
  return -1;
}

/* Dim `d` of the result of a transpose, as a dim of the operand. */
static int before_transpose(const ir_op *op, int d) {
  int64_t perm[2 * IR_MAX_RANK];
  return attr_numbers(op->attrs, "permutation", perm) > d ? (int)perm[d] : -1;
}

static bool follow_up(ir_graph *g, val v, const int *track, follow *f);

/* A product's operands: what the left one does not divide, the right one may. */
static bool follow_product(ir_graph *g, val v, const int *track, follow *f) {
  static const char *const batching[2] = {"lhs_batching_dimensions", "rhs_batching_dimensions"};
  static const char *const contracting[2] = {"lhs_contracting_dimensions", "rhs_contracting_dimensions"};
  bool found = false;
  int before = 0; /* dims of the result that are the left operand's own, after the batching ones */
  for (int side = 0; side < 2; side++) {
    int64_t batch[2 * IR_MAX_RANK], sum[2 * IR_MAX_RANK];
    const int nb = attr_numbers(v->op->attrs, batching[side], batch),
              ns = attr_numbers(v->op->attrs, contracting[side], sum);
    int from[2 * IR_MAX_RANK], n = 0, next[IR_MAX_RANK]; /* from[d]: the operand's dim that is dim d of the result */
    for (int d = 0; d < v->ndim; d++) from[d] = -1;
    for (; n < nb; n++) from[n] = (int)batch[n];
    n += before;
    const val in = v->op->in[side];
    for (int d = 0; d < in->ndim; d++) {
      bool own = true;
      for (int i = 0; i < nb; i++) own = own && batch[i] != d;
      for (int i = 0; i < ns; i++) own = own && sum[i] != d;
      if (own && n < v->ndim) from[n++] = d;
    }
    before = n - nb;
    for (int k = 0; k < f->ndim; k++) next[k] = track[k] >= 0 ? from[track[k]] : -1;
    found |= follow_up(g, in, next, f);
  }
  return found;
}

/* Goes from a value to what it is made of until it meets a place. track[k]: the dim of v at whose front dim k of the
 * first value is. */
static bool follow_up(ir_graph *g, val v, const int *track, follow *f) {
  const int64_t *at = v->op ? v->op->at : ((const ir_arg *)(const void *)v)->at;
  if (at) {
    for (int a = 0; a < g->naxes; a++)
      for (int k = 0; k < f->ndim && f->place[a] < 0; k++)
        if (track[k] >= 0 && at[a] == track[k]) f->place[a] = k;
    return true;
  }
  if (!v->op || f->steps++ >= FOLLOW_MAX) return false;
  const char *name = v->op->name;
  if (!strcmp(name, "stablehlo.dot_general")) return follow_product(g, v, track, f);
  int next[IR_MAX_RANK];
  for (int i = 0; i < v->op->nin; i++) {
    val in = v->op->in[i];
    bool follows = true;
    for (int k = 0; k < f->ndim && follows; k++) {
      int d = track[k];
      if (d < 0) next[k] = -1;
      else if (!strcmp(name, "stablehlo.reshape")) next[k] = before_reshape(in, v, d);
      else if (!strcmp(name, "stablehlo.transpose")) next[k] = before_transpose(v->op, d);
      else if (in->ndim == v->ndim && !v->op->nregions) next[k] = d;
      else follows = false; /* not an operation that leaves dims where they are */
      if (follows && next[k] >= 0 && in->dims[next[k]] != v->dims[d] && in->ndim == v->ndim &&
          strcmp(name, "stablehlo.reshape") != 0 && strcmp(name, "stablehlo.transpose") != 0)
        next[k] = -1; /* a part of it */
    }
    if (follows && follow_up(g, in, next, f)) return true;
  }
  return false;
}

bool ir_find_place(ir_graph *g, val v, int64_t *place) {
  int track[IR_MAX_RANK];
  follow f = {place, v->ndim, 0};
  for (int a = 0; a < g->naxes; a++) place[a] = -1;
  for (int k = 0; k < v->ndim; k++) track[k] = k;
  return node_ok(g) && g->naxes && follow_up(g, v, track, &f);
}

int64_t ir_axis_size(const ir_graph *g, int axis) { return g->axis_sizes[axis]; }

/* ---- programs of one device inside ------------------------------------------------------------------------------- */

/* The dims of v, or of as many parts as it is divided into, one part of it. */
static const int64_t *divided(ir_graph *g, val v, const int64_t *place, bool whole) {
  int64_t *dims = arena_copy(&g->mem, v->dims, (size_t)v->ndim * sizeof *dims);
  for (int a = 0; dims && a < g->naxes; a++)
    if (place[a] >= 0) dims[place[a]] = whole ? dims[place[a]] * g->axis_sizes[a] : dims[place[a]] / g->axis_sizes[a];
  return dims;
}

static void put_places(ir_graph *g, buf *b, const char *name, const val *vs, int n, const int64_t *const *places) {
  buf_printf(b, "%s = #sdy.sharding_per_value<[", name);
  for (int i = 0; i < n; i++) {
    if (i) buf_str(b, ", ");
    if (!put_sharding(g, b, vs[i], places[i])) return;
  }
  buf_str(b, "]>");
}

void ir_manual_begin(ir_graph *g, const val *in, int n, const int64_t *const *places, val *args) {
  const char *name = "sdy.manual_computation";
  node_nest(g, "manual", 0);
  buf *b = attr_begin(g);
  if (node_usable(g, name, in, n)) put_places(g, b, "in_shardings", in, n, places);
  ir_op *op = node_ok(g) ? node_op(g, name, attr_end(g), in, n, 0, 1) : NULL;
  if (op && node_open(g, op, "manual")) {
    node_region(g, n);
    for (int i = 0; i < n; i++) {
      const int64_t *dims = divided(g, in[i], places[i], false);
      args[i] = dims ? node_region_arg(g, i, in[i]->dtype, in[i]->ndim, dims) : node_poison(g);
    }
  }
  if (!node_ok(g)) node_poison_all(g, args, n);
}

void ir_manual_end(ir_graph *g, const val *results, int n, const int64_t *const *places, val *out) {
  node_unnest(g, "manual");
  ir_op *op = node_opened(g, "manual", 0);
  if (op && node_region_end(g, results, n)) {
    ir_op *full = node_op(g, op->name, "", op->in, op->nin, n, 1);
    for (int i = 0; full && i < n; i++) {
      const int64_t *dims = divided(g, results[i], places[i], true);
      if (dims) node_type(g, full, i, results[i]->dtype, results[i]->ndim, dims);
    }
    if (full && node_ok(g)) {
      val whole[16];
      for (int i = 0; i < n && i < 16; i++) whole[i] = &full->out[i];
      buf *b = attr_begin(g);
      buf_printf(b, "%s, manual_axes = #sdy<manual_axes{", op->attrs);
      for (int a = 0; a < g->naxes; a++) {
        if (a) buf_str(b, ", ");
        attr_quoted(b, g->axis_names[a], strlen(g->axis_names[a]));
      }
      buf_str(b, "}>, ");
      put_places(g, b, "out_shardings", whole, n, places);
      if (node_ok(g)) full->attrs = attr_end(g);
      full->regions[0] = op->regions[0];
      bool alike = true;
      for (int i = 1; i < n; i++) alike = alike && places[i] == places[0];
      if (alike && n) full->at = kept(g, places[0]);
      g->open->op = full;
      node_close(g);
      if (node_ok(g)) {
        for (int i = 0; i < n; i++) out[i] = whole[i];
        return;
      }
    }
  }
  node_poison_all(g, out, n);
}
