/* Programs: StableHLO text -> executable, once. */
#include <stdio.h>
#include <string.h>

#include "base/env.h"
#include "base/log.h"
#include "exec/exec.h"

uint64_t program_hash_mask = UINT64_MAX;

static hash128 name_of(const buf *text) {
  hash128 h = hash128_of(text->data, text->len);
  return (hash128){h.hi & program_hash_mask, h.lo & program_hash_mask};
}

/* Whether a hit of the 128-bit hash is trusted, or the text is kept and compared. */
static bool compares_text(void) {
#ifdef NDEBUG
  return env_int(ENV_CHECK_PROGRAMS);
#else
  return true;
#endif
}

void program_release(program *p) {
  if (!p || atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) != 1) return;
  pjrt_exec_free(ex.client, p->exec);
  buf_free(&p->text);
  mem_free(p);
}

int64_t program_traffic(program *p) {
  int64_t n = atomic_load(&p->traffic);
  if (!n) {
    n = pjrt_exec_traffic(ex.client, p->exec);
    atomic_store(&p->traffic, n);
  }
  return n;
}

static program *find_locked(hash128 name, const buf *text) { /* under ex.program_lock */
  static bool told;
  for (tnode *t = table_slot(&ex.programs, name.lo); t; t = t->next) {
    program *p = (program *)t;
    if (t->hash != name.lo || p->name.hi != name.hi || p->name.lo != name.lo) continue;
    if (p->text.len && (p->text.len != text->len || memcmp(p->text.data, text->data, text->len) != 0)) {
      if (!told)
        log_line(
            LOG_WARN,
            "two different programs have the same 128-bit hash; please report it, with both texts (TORCH_TPU_DUMP)");
      told = true;
      continue;
    }
    t->used = true;
    atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed);
    return p;
  }
  return NULL;
}

/* How many mappings of memory the process has. */
static int64_t mappings(void) {
  FILE *f = fopen("/proc/self/maps", "r");
  char block[8192];
  int64_t n = 0;
  if (!f) return 0;
  for (size_t k; (k = fread(block, 1, sizeof block, f));)
    for (const char *c = block; (c = memchr(c, '\n', k - (size_t)(c - block))); c++) n++;
  fclose(f);
  return n;
}

static int64_t most_mappings(void) { /* 0: no limit is known */
  long long n = 0;
  FILE *f = fopen("/proc/sys/vm/max_map_count", "r");
  if (f && fscanf(f, "%lld", &n) != 1) n = 0;
  if (f) fclose(f);
  return n;
}

/* How many programs may be held: as many as the user said, and fewer when mappings of memory run short. Each of XLA's
 * CPU programs takes some (3 for an addition, 50 for a special function), and a process that has used up its share
 * (vm.max_map_count, 65530 by default) crashes inside the plugin. Looking costs milliseconds, so it is done now and
 * then. Under ex.lock and ex.program_lock. */
static size_t program_limit(void) {
  static int64_t most = -1, next = 256;
  size_t limit = (size_t)env_int(ENV_PROGRAM_CACHE);
  if (!ex.is_cpu || ex.programs_made < next) return limit;
  if (most < 0) most = most_mappings();
  int64_t have = most ? mappings() : 0;
  next = ex.programs_made + (have < most / 4 ? 256 : 64);
  if (have <= most * 6 / 10) return limit;
  log_line(LOG_INFO, "%lld of %lld mappings of memory are used: a quarter of the %zu programs in memory is dropped",
           (long long)have, (long long)most, ex.programs.count);
  size_t fewer = ex.programs.count - ex.programs.count / 4;
  return fewer < limit ? fewer : limit;
}

/* A use of a key is a use of its program. */
static void mark_used(const table *keys) {
  for (tnode *t = keys->oldest; t; t = t->newer) {
    program *p = atomic_load(&((call_entry *)t)->prog);
    if (p && t->used) p->node.used = true;
    t->used = false;
  }
}

static void take_evicted(table *keys, tnode **entries) {
  for (tnode *t = keys->oldest, *newer; t; t = newer) {
    newer = t->newer;
    program *p = atomic_load(&((call_entry *)t)->prog);
    if (!p || !p->evicted) continue;
    table_remove(keys, t);
    t->next = *entries;
    *entries = t;
  }
}

/* Takes a sixteenth out, and what is too much. */
void program_trim_locked(tnode **programs, tnode **entries) {
  *programs = *entries = NULL;
  pthread_mutex_lock(&ex.program_lock);
  size_t limit = program_limit();
  if (ex.programs.count <= limit) {
    pthread_mutex_unlock(&ex.program_lock);
    return;
  }
  mark_used(&ex.keys);
  mark_used(&ex.segments);
  ex.programs.limit = limit - limit / 16;
  for (tnode *t; (t = table_evict(&ex.programs));) {
    ((program *)t)->evicted = true;
    t->next = *programs;
    *programs = t;
  }
  ex.programs.limit = limit;
  take_evicted(&ex.keys, entries);
  take_evicted(&ex.segments, entries);
  pthread_mutex_unlock(&ex.program_lock);
}

void program_dropped(tnode *programs, tnode *entries) {
  for (tnode *t; (t = entries);) {
    entries = t->next;
    entry_release((call_entry *)t);
  }
  for (tnode *t; (t = programs);) {
    programs = t->next;
    program_release((program *)t);
  }
}

/* The folder of TORCH_TPU_DUMP gets FILE.what. */
static void dump(const char *bytes, size_t n, hash128 name, const char *op_name, const char *what) {
  const char *dir = env_str(ENV_DUMP);
  char hex[33], path[4096], op[64];
  hash128_hex(name, hex);
  size_t k = 0;
  for (const char *s = op_name; *s && k < sizeof op - 1; s++) op[k++] = strchr(":/, ", *s) ? '_' : *s;
  op[k] = 0;
  if (snprintf(path, sizeof path, "%s/%s.%s.%s", dir, op, hex, what) >= (int)sizeof path) return;
  FILE *f = fopen(path, "w");
  if (!f || fwrite(bytes, 1, n, f) != n) log_line(LOG_WARN, "TORCH_TPU_DUMP: cannot write %s", path);
  if (f) fclose(f);
}

static void dump_optimized(pjrt_exec *x, hash128 name, const char *op_name) {
  char *bytes, format[32], what[40];
  size_t n;
  tpu_err *e = pjrt_exec_optimized(ex.client, x, &bytes, &n, format);
  if (e) {
    log_line(LOG_INFO, "TORCH_TPU_DUMP: the plugin does not show the optimized program of %s: %s", op_name,
             tpu_err_message(e));
    tpu_err_free(e);
    return;
  }
  bool text = !strcmp(format, "mlir") || !strcmp(format, "hlo_text");
  snprintf(what, sizeof what, "%s.%s", text ? "optimized" : format[0] ? format : "optimized", text ? "txt" : "pb");
  dump(bytes, n, name, op_name, what);
  mem_free(bytes);
}

static void count_built(int64_t ns) {
  pthread_mutex_lock(&ex.program_lock);
  ex.stats.build_ns += ns;
  pthread_mutex_unlock(&ex.program_lock);
}

program *program_known(const buf *text) {
  pthread_mutex_lock(&ex.program_lock);
  program *p = find_locked(name_of(text), text);
  pthread_mutex_unlock(&ex.program_lock);
  return p;
}

tpu_err *program_get(ir_graph *g, const char *xla, const char *op_name, program **out) {
  *out = NULL;
  buf text;
  buf_init(&text);
  int64_t begin = clock_ns();
  tpu_err *e = ir_print(g, &text);
  if (xla) buf_str(&text, xla);
  if (!e && text.failed) e = err_nomem();
  count_built(clock_ns() - begin);
  if (!e) e = program_of_text(&text, op_name, out);
  buf_free(&text);
  return e;
}

/* torch.tpu.set_compile_policy. */
static tpu_err *allowed(const char *op_name) {
  int policy = atomic_load(&ex.compile_policy);
  if (policy == 1) log_line(LOG_WARN, "tpu: %s is compiled (torch.tpu.set_compile_policy(\"warn\"))", op_name);
  if (policy < 2) return NULL;
  return err_new(
      TPU_ERR_RUNTIME,
      "%s: a program would have to be compiled, and torch.tpu.set_compile_policy(\"error\") forbids it: warm "
      "up with these shapes and dtypes before, or allow it",
      op_name);
}

static program *find(hash128 name, const buf *text) {
  pthread_mutex_lock(&ex.program_lock);
  program *p = find_locked(name, text);
  if (p) ex.stats.program_hits++;
  pthread_mutex_unlock(&ex.program_lock);
  return p;
}

/* A program in the table, with a reference for the caller. text: what to compare, or NULL. */
static tpu_err *keep(pjrt_exec *take_x, hash128 name, hash128 entry, const buf *text, watched *w, program **out) {
  program *p = mem_calloc(sizeof *p);
  if (!p) {
    pjrt_exec_free(ex.client, take_x);
    return err_nomem();
  }
  buf_init(&p->text);
  if (text && compares_text()) buf_bytes(&p->text, text->data, text->len);
  if (p->text.failed) {
    buf_free(&p->text);
    pjrt_exec_free(ex.client, take_x);
    mem_free(p);
    return err_nomem();
  }
  p->name = name;
  p->entry = entry;
  p->node.hash = name.lo;
  p->exec = take_x;
  p->watched = w;
  atomic_init(&p->refs, 2); /* the table's and the caller's */
  p->node.used = true;
  pthread_mutex_lock(&ex.program_lock);
  tpu_err *e = table_add(&ex.programs, &p->node);
  ex.programs_made++;
  pthread_mutex_unlock(&ex.program_lock);
  if (e) {
    atomic_store(&p->refs, 1);
    program_release(p);
    return e;
  }
  *out = p;
  return NULL;
}

tpu_err *program_of_executable(const char *bytes, size_t n, const char *op_name, program **out) {
  const hash128 parts[2] = {hash128_of(bytes, n), {n, 0}}; /* no text has this name */
  buf none;
  buf_init(&none);
  hash128 name = hash128_of(parts, sizeof parts);
  *out = find(name, &none);
  if (*out) return NULL;
  pjrt_exec *x;
  int64_t start = clock_ns();
  TPU_TRY(pjrt_exec_load(ex.client, bytes, n, &x));
  explain_add(TPU_EXPLAIN_LOAD, 0, 0, start, op_name);
  return keep(x, name, (hash128){0, 0}, NULL, NULL, out);
}

tpu_err *program_refused(tpu_err *e, const char *text) {
  if (!e || tpu_err_get_kind(e) != TPU_ERR_RUNTIME || !strstr(text, "\"tpu_custom_call\"")) return e;
  return err_wrap(
      e,
      "the program holds a kernel, which a compiler older or newer than the one of libtpu 0.0.52 may not take; "
      "TORCH_TPU_KERNELS=0 makes programs without kernels");
}

tpu_err *program_of_text(const buf *text, const char *op_name, program **out) {
  hash128 name = name_of(text);
  *out = find(name, text);
  if (*out) return NULL;
  bool dumps = env_str(ENV_DUMP)[0] != 0;
  if (dumps) dump(text->data, text->len, name, op_name, "mlir");
  cache_ticket ticket;
  int64_t looked = clock_ns();
  pjrt_exec *x = cache_find(text, op_name, &ticket);
  bool found = x != NULL;
  int64_t start = clock_ns();
  tpu_err *e = found ? NULL : allowed(op_name);
  if (!e && !found) e = program_refused(pjrt_compile(ex.client, text->data, text->len, NULL, 0, &x), text->data);
  int64_t took = clock_ns() - start;
  if (!e) explain_add(found ? TPU_EXPLAIN_LOAD : TPU_EXPLAIN_COMPILE, 0, 0, found ? looked : start, op_name);
  hash128 entry = ticket.key.len ? hash128_of(ticket.key.data, ticket.key.len) : (hash128){0, 0};
  cache_done(&ticket, found || e ? NULL : x);
  if (e) {
    if (log_on(LOG_DEBUG)) log_line(LOG_DEBUG, "%s: program that was refused:\n%s", op_name, text->data);
    return e;
  }
  if (dumps) dump_optimized(x, name, op_name);
  if (!found && log_on(LOG_INFO)) log_line(LOG_INFO, "compiled %s in %.1f ms", op_name, (double)took * 1e-6);
  if (!found) {
    pthread_mutex_lock(&ex.program_lock);
    ex.stats.compiles++;
    ex.stats.compile_ns += took;
    pthread_mutex_unlock(&ex.program_lock);
  }
  return keep(x, name, entry, text, watch_program(text, name, op_name, !queue_is_here()), out);
}
