/* Which device stands where on a mesh. */
#include "exec/exec.h"
#include "t.h"

/* A torus of x * y chips with `cores` devices each. */
static pjrt_place torus[64];
static int build_torus(int x, int y, int cores) {
  int n = 0;
  for (int j = 0; j < y; j++)
    for (int i = 0; i < x; i++)
      for (int k = 0; k < cores; k++, n++) torus[n] = (pjrt_place){n, 3, {i, j, k}};
  return n;
}

TEST(meshes_follow_the_links) {
  int ids[64], n = build_torus(4, 2, 2);
  static const int cores[] = {0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15};
  CHECK_OK(mesh_assign(torus, n, 2, (const int64_t[]){8, 2}, ids)); /* pairs: the devices of a chip */
  CHECK(!memcmp(ids, cores, sizeof cores));
  static const int lines[] = {0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15};
  CHECK_OK(mesh_assign(torus, n, 2, (const int64_t[]){4, 4}, ids)); /* fours: a whole direction */
  CHECK(!memcmp(ids, lines, sizeof lines));
  n = build_torus(6, 2, 1);
  static const int parts[] = {0, 1, 2, 6, 7, 8, 3, 4, 5, 9, 10, 11}, all[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  CHECK_OK(mesh_assign(torus, n, 2, (const int64_t[]){4, 3}, ids)); /* threes: half of a direction */
  CHECK(!memcmp(ids, parts, sizeof parts));
  CHECK_ERR(mesh_assign(torus, n, 2, (const int64_t[]){4, 2}, ids), TPU_ERR_VALUE,
            "the mesh has 8 devices, but the topology has 12");
  CHECK_ERR(mesh_assign(torus, n, 2, (const int64_t[]){-4, -3}, ids), TPU_ERR_VALUE, "has the size -4");
  torus[3].coords[0] = 1; /* two devices in one place: nothing is known */
  CHECK_OK(mesh_assign(torus, n, 1, (const int64_t[]){12}, ids));
  CHECK(!memcmp(ids, all, sizeof all));
}

T_MAIN()
