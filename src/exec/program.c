/* Programs: StableHLO text -> executable, once. */
#include <stdio.h>
#include <string.h>

#include "base/env.h"
#include "base/log.h"
#include "exec/exec.h"

void program_release(program *p) {
  if (!p || atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) != 1) return;
  pjrt_exec_free(ex.client, p->exec);
  mem_free(p);
}

static program *find_locked(hash128 name) {
  for (tnode *t = table_slot(&ex.programs, name.lo); t; t = t->next) {
    program *p = (program *)t;
    if (t->hash == name.lo && p->name.hi == name.hi && p->name.lo == name.lo) {
      t->used = true;
      atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed);
      return p;
    }
  }
  return NULL;
}

static void dump(const buf *text, hash128 name, const char *op_name) {
  const char *dir = env_str(ENV_DUMP);
  if (!dir[0]) return;
  char hex[33], path[4096], op[64];
  hash128_hex(name, hex);
  size_t k = 0;
  for (const char *s = op_name; *s && k < sizeof op - 1; s++) op[k++] = *s == ':' || *s == '/' ? '_' : *s;
  op[k] = 0;
  if (snprintf(path, sizeof path, "%s/%s.%s.mlir", dir, op, hex) >= (int)sizeof path) return;
  FILE *f = fopen(path, "w");
  if (!f || fwrite(text->data, 1, text->len, f) != text->len)
    log_line(LOG_WARN, "TORCH_TPU_DUMP: cannot write %s", path);
  if (f) fclose(f);
}

tpu_err *program_get(ir_graph *g, const char *op_name, program **out) {
  *out = NULL;
  buf text;
  buf_init(&text);
  int64_t begin = clock_ns();
  tpu_err *e = ir_print(g, &text);
  int64_t printed = clock_ns() - begin;
  if (e) goto done;
  hash128 name = hash128_of(text.data, text.len);
  ex_lock();
  ex.stats.build_ns += printed;
  *out = find_locked(name);
  if (*out) ex.stats.program_hits++;
  ex_unlock();
  if (*out) goto done;
  dump(&text, name, op_name);
  cache_ticket ticket;
  pjrt_exec *x = cache_find(&text, op_name, &ticket);
  bool found = x != NULL;
  int64_t start = clock_ns();
  if (!found) e = pjrt_compile(ex.client, text.data, text.len, NULL, 0, &x);
  int64_t took = clock_ns() - start;
  cache_done(&ticket, found || e ? NULL : x);
  if (e) {
    if (log_on(LOG_DEBUG)) log_line(LOG_DEBUG, "%s: program that was refused:\n%s", op_name, text.data);
    goto done;
  }
  if (!found && log_on(LOG_INFO)) log_line(LOG_INFO, "compiled %s in %.1f ms", op_name, (double)took * 1e-6);
  program *p = mem_calloc(sizeof *p);
  if (!p) {
    pjrt_exec_free(ex.client, x);
    e = err_nomem();
    goto done;
  }
  p->name = name;
  p->node.hash = name.lo;
  p->exec = x;
  atomic_init(&p->refs, 2); /* the table's and the caller's */
  p->noutputs = (size_t)ir_output_count(g);
  ex_lock();
  if (!found) {
    ex.stats.compiles++;
    ex.stats.compile_ns += took;
  }
  ex.programs.limit = (size_t)env_int(ENV_PROGRAM_CACHE);
  e = table_add(&ex.programs, &p->node);
  tnode *old = e ? NULL : table_evict(&ex.programs);
  ex_unlock();
  if (e) atomic_store(&p->refs, 1);
  if (old) program_release((program *)old);
  if (e) program_release(p);
  else *out = p;
done:
  buf_free(&text);
  return e;
}
