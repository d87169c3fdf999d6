/* Watching programs: each is kept once, with its text, and how often it ran. */
#include <stdlib.h>

#include "exec_t.h"
#include "pjrt/pjrt.h"

typedef struct {
  int n;
  int64_t runs;
  bool good;
} seen;

static void look(void *ctx, const tpu_watched *w) {
  seen *s = ctx;
  s->n++;
  s->runs += w->runs;
  s->good = w->len == strlen(w->text) && strstr(w->text, "module @tpu") && strstr(w->op, "add");
}

static seen watched(int from) {
  seen s = {0};
  tpu_watch_each(from, look, &s);
  return s;
}

TEST(programs_are_kept_once_and_counted) {
  setenv("TORCH_TPU_PJRT_PLUGIN", t_arg(1), 1);
  setenv("TORCH_TPU_TOPOLOGY", "fake:2x2", 1);
  if (!CHECK_OK(tpu_init())) return;
  CHECK_INT(watched(0).n, 0);
  tpu_op *add = xt_op("aten::add", "Tensor", NULL, 3, xt_add_types, false);
  const float host[4] = {1, 2, 3, 4};
  for (int size = 2; size <= 4; size += 2) {
    xt a, b, out;
    if (!CHECK_OK(xt_from(&a, TPU_F32, 1, (const int64_t[]){size}, host))) return;
    if (!CHECK_OK(xt_from(&b, TPU_F32, 1, (const int64_t[]){size}, host))) return;
    for (int i = 0; i < 3; i++) {
      if (!CHECK_OK(xt_add(add, &a, &b, 1, &out))) return;
      xt_free(&out);
    }
    xt_free(&a);
    xt_free(&b);
  }
  CHECK_OK(tpu_synchronize(-1));
  seen all = watched(0);
  CHECK_INT(all.n, 2);
  CHECK_INT(all.runs, 6);
  CHECK(all.good);
  CHECK_INT(watched(1).n, 1);
  CHECK_INT(watched(2).n, 0);
}

T_MAIN()
