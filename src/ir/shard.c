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

/* "#sdy.sharding<@mesh, [{"data"}, {}]>"; NULL after an error. */
static const char *sharding(ir_graph *g, val v, const int64_t *place) {
  if (!node_ok(g)) return NULL;
  if (!g->naxes) {
    ir_fail(g, TPU_ERR_RUNTIME, "a program without a mesh has no places");
    return NULL;
  }
  for (int a = 0; a < g->naxes; a++) {
    if (place[a] >= -1 && place[a] < v->ndim) continue;
    ir_fail(g, TPU_ERR_INDEX, "expected a dim from 0 to %d to split over mesh axis %s, got %lld for %s", v->ndim - 1,
            g->axis_names[a], (long long)place[a], node_text(g, v));
    return NULL;
  }
  buf *b = attr_begin(g);
  buf_str(b, "#sdy.sharding<@mesh, [");
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
      return NULL;
    }
  }
  buf_str(b, "]>");
  return attr_end(g);
}

void ir_place_param(ir_graph *g, val param, const int64_t *place) {
  const char *s = sharding(g, param, place);
  if (!s) return;
  if (param->op)
    ir_fail(g, TPU_ERR_RUNTIME, "ir_place_param: expected a parameter, got a result of %s", param->op->name);
  else ((ir_arg *)(void *)param)->place = s;
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
  return node_make(g, name, arena_printf(&g->mem, "sharding = %s", s), &v, 1, v->dtype, v->ndim, v->dims);
}
