/* Which device of a topology stands at which position of a mesh. The axes of a mesh are laid along the links of the
 * topology: each onto directions of the torus (and the devices of a chip) as a whole where sizes allow it, the
 * innermost axis, over which most is sent, first; where they do not, onto parts of directions. */
#include <string.h>

#include "exec/exec.h"

typedef struct {
  int direction, n;
  int64_t stride;
} factor;

typedef struct {
  int ndims;
  int64_t dims[PJRT_MAX_COORDS], left[PJRT_MAX_COORDS], stride[PJRT_MAX_COORDS];
  factor factors[64]; /* of all axes, innermost first: more than 1 each, and all together an int */
  int nfactors;
} layout;

static void take(layout *l, int direction, int64_t n) {
  l->factors[l->nfactors++] = (factor){direction, (int)n, l->stride[direction]};
  l->stride[direction] *= n;
  l->left[direction] /= n;
}

/* The fewest whole directions that are `size` together, and of as many the last: the devices of a chip before the
 * torus. 0: there are none. */
static unsigned whole(const layout *l, int64_t size) {
  unsigned best = 0;
  for (unsigned set = 1; set < 1U << l->ndims; set++) {
    int64_t n = 1;
    for (int d = 0; d < l->ndims; d++)
      if (set >> d & 1) n *= l->left[d] > 1 ? l->left[d] : 0;
    if (n == size && (!best || __builtin_popcount(set) <= __builtin_popcount(best))) best = set;
  }
  return best;
}

static int64_t gcd(int64_t a, int64_t b) { return b ? gcd(b, a % b) : a; }

static void lay(layout *l, int64_t size) {
  unsigned set = size > 1 ? whole(l, size) : 0;
  for (int d = l->ndims - 1; d >= 0; d--) { /* the devices of a chip are the innermost */
    int64_t n = set ? (set >> d & 1 ? l->left[d] : 1) : gcd(size, l->left[d]);
    if (n == 1) continue;
    take(l, d, n);
    size /= n;
  }
}

static void lay_all(layout *l, int naxes, const int64_t *sizes) {
  for (int d = 0; d < l->ndims; d++) {
    l->left[d] = l->dims[d];
    l->stride[d] = 1;
  }
  for (int a = naxes - 1; a >= 0; a--) lay(l, sizes[a]);
}

static int64_t cell(const layout *l, const int64_t *coords) {
  int64_t at = 0;
  for (int d = 0; d < l->ndims; d++) at = at * l->dims[d] + coords[d];
  return at;
}

static int64_t position(const layout *l, int64_t i) { /* of mesh position i, row-major: the cell of its device */
  int64_t coords[PJRT_MAX_COORDS] = {0};
  for (int f = 0; f < l->nfactors; f++) {
    coords[l->factors[f].direction] += i % l->factors[f].n * l->factors[f].stride;
    i /= l->factors[f].n;
  }
  return cell(l, coords);
}

/* The extents of the topology; false when its devices do not fill a grid, or nothing is known of their places. */
static bool extents(const pjrt_place *places, int n, layout *l) {
  int64_t cells = 1;
  l->ndims = places[0].ncoords;
  for (int d = 0; d < l->ndims; d++) {
    for (int i = 0; i < n; i++) {
      if (places[i].ncoords != l->ndims || places[i].coords[d] < 0) return false;
      if (places[i].coords[d] >= l->dims[d]) l->dims[d] = places[i].coords[d] + 1;
    }
    cells *= l->dims[d];
  }
  return l->ndims && cells == n;
}

/* The id of the device in each cell; false when two are in one. */
static bool fill(const layout *l, const pjrt_place *places, int n, int *ids) {
  for (int i = 0; i < n; i++) ids[i] = -1;
  for (int i = 0; i < n; i++) ids[cell(l, places[i].coords)] = places[i].id;
  for (int i = 0; i < n; i++)
    if (ids[i] < 0) return false;
  return true;
}

tpu_err *mesh_assign(const pjrt_place *places, int n, int naxes, const int64_t *sizes, int *out) {
  layout l = {0};
  int64_t devices = 1;
  for (int a = 0; a < naxes; a++)
    if (sizes[a] < 1 || __builtin_mul_overflow(devices, sizes[a], &devices))
      return err_new(TPU_ERR_VALUE, "an axis of the mesh has the size %lld", (long long)sizes[a]);
  if (devices != n)
    return err_new(TPU_ERR_VALUE, "the mesh has %lld devices, but the topology has %d", (long long)devices, n);
  int *ids = mem_alloc((size_t)n * sizeof *ids);
  if (!ids) return err_nomem();
  bool known = extents(places, n, &l) && fill(&l, places, n, ids);
  if (known) lay_all(&l, naxes, sizes);
  for (int i = 0; i < n; i++) out[i] = known ? ids[position(&l, i)] : places[i].id;
  mem_free(ids);
  return NULL;
}
