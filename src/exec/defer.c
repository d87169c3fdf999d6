/* Deferring: in DeferAndFuse mode a call is kept as a step, and a flush makes one program of a run of steps (a
 * segment). Values that nobody holds at the flush are inside of the program and never reach memory.
 *
 * A step is a call's entry and where its inputs come from, so no graph is built when a segment is recorded. A segment
 * that ran before is found by its key: the steps' entries, their sources, which values are live, and which inputs may
 * be donated. Its program calls one function a step; XLA puts them in line before it fuses.
 *
 * When to cut. A host read, an event or synchronize must. Between them the cuts are chosen so that code that repeats is
 * cut at the same places, for each new sequence of steps is a new program:
 * - while the steps since the last cut are the beginning of a segment that was compiled, the cut comes where one was
 *   chosen then;
 * - else after a step before which a cut was chosen once (known by the CONTEXT steps that led to it), so that a loop
 *   falls into step with itself whatever its length;
 * - else when the segment is full, at MAX_STEPS steps. When its values are small (SMALL_BYTES in all), so that the host
 *   is what takes time, it is full at FIRST_STEPS steps after the host waited for a value, for the device has nothing
 *   to do until the first program comes, and at twice as many each time after.
 *
 * What a new segment costs. One that is met for the first time, and most of whose calls have programs of their own
 * already, runs call by call; it is compiled when it comes again. So code that never repeats pays what it pays in
 * Strict mode. */
#include <string.h>

#include "base/env.h"
#include "exec/exec.h"

enum {
  MAX_STEPS = 256,
  FIRST_STEPS = 32,
  MIN_STEPS = 16, /* before a cut at a known place */
  CONTEXT = 8,
  NEW_SEGMENTS = 3,
  SMALL_BYTES = 4 << 20,
  MARKS = 1 << 14
};

typedef struct {
  call_entry *e;
  int first_source, first_value;
} step;

typedef struct {
  uint32_t serial;
  int nsteps, full; /* full: at how many steps it is cut when it is small */
  step steps[MAX_STEPS];
  int32_t *sources; /* of each step's parameters: value number, or ~input number */
  dbuf **inputs, **values;
  bool *is_value; /* of each input: a tensor's, no number: may be donated */
  const char **input_types;
  int64_t *input_bytes;
  int nsources, ninputs, nvalues, cap_sources, cap_inputs, cap_values, cap_kinds, cap_types, cap_bytes;
  int64_t bytes;
  uint64_t prefix, recent[CONTEXT];
  bool following; /* so far the beginning of a known segment */
  uint64_t *words;
  size_t nwords, cap_words;
} segment;

static segment *pending[EX_MAX_DEVICES]; /* all under ex.lock */
static uint32_t serials;

/* ---- known places ---------------------------------------------------------------------------------------------- */

/* A set of hashes, bounded: when it is half full it is forgotten, which costs compiles and no more. */
typedef struct {
  uint64_t slots[MARKS];
  int count;
} marks;
static marks prefixes, ends, contexts;
static marks scheduled; /* texts of calls that ran by themselves */

static bool marked(const marks *m, uint64_t h) {
  h |= 1;
  for (size_t i = h % MARKS; m->slots[i]; i = (i + 1) % MARKS)
    if (m->slots[i] == h) return true;
  return false;
}

static void mark(marks *m, uint64_t h) {
  h |= 1;
  if (marked(m, h)) return;
  if (m->count >= MARKS / 2) memset(m, 0, sizeof *m);
  size_t i = h % MARKS;
  while (m->slots[i]) i = (i + 1) % MARKS;
  m->slots[i] = h;
  m->count++;
}

static uint64_t context_of(const segment *s) {
  uint64_t h = 1;
  for (int i = 0; i < CONTEXT; i++) h = hash_mix(h, s->recent[(s->nsteps + i) % CONTEXT]);
  return h;
}

/* ---- recording ------------------------------------------------------------------------------------------------- */

#define ROOM(array, cap, n)                                          \
  (__builtin_expect((n) <= (cap), 1) || ({                           \
     int want_ = (n) * 2 < 64 ? 64 : (n) * 2;                        \
     void *p_ = mem_realloc(array, (size_t)want_ * sizeof *(array)); \
     if (p_) {                                                       \
       array = p_;                                                   \
       cap = want_;                                                  \
     }                                                               \
     p_ != NULL;                                                     \
   }))

static bool room_for(segment *s, const call_entry *e) {
  return ROOM(s->sources, s->cap_sources, s->nsources + e->nparams) &&
         ROOM(s->inputs, s->cap_inputs, s->ninputs + e->nparams) &&
         ROOM(s->is_value, s->cap_kinds, s->ninputs + e->nparams) &&
         ROOM(s->input_types, s->cap_types, s->ninputs + e->nparams) &&
         ROOM(s->input_bytes, s->cap_bytes, s->ninputs + e->nparams) &&
         ROOM(s->values, s->cap_values, s->nvalues + e->noutputs);
}

static void begin(segment *s) {
  s->serial = ++serials;
  s->nsteps = s->nsources = s->ninputs = s->nvalues = 0;
  s->bytes = 0;
  s->full = FIRST_STEPS;
  s->prefix = 1;
  s->following = true;
}

static segment *segment_of(int device) {
  segment *s = pending[device];
  if (!s && (s = pending[device] = mem_calloc(sizeof *s))) begin(s);
  return s;
}

static void run_now(call_entry *e, int device, dbuf **take_bufs) {
  ex.stats.executions++;
  ex_made_last_locked(device, take_bufs[e->nparams + e->noutputs - 1]);
  queue_run(e, device, take_bufs);
}

static int64_t budget(void) {
  static int64_t bytes;
  if (!bytes) bytes = env_int(ENV_DEFER_BYTES);
  return bytes;
}

/* Bytes that wait: values that somebody still holds, as all of them are made at once, and inputs that nobody else holds
 * any more. */
static int64_t waiting_bytes(const segment *s) {
  int64_t n = 0;
  for (int i = 0; i < s->nsteps; i++) {
    const step *p = &s->steps[i];
    for (int k = 0; k < p->e->noutputs; k++)
      if (atomic_load_explicit(&s->values[p->first_value + k]->refs, memory_order_relaxed) > 1)
        n += p->e->bytes[p->e->nparams + k];
  }
  for (int i = 0; i < s->ninputs; i++)
    if (s->is_value[i] && !s->inputs[i]->bound) n += s->input_bytes[i];
  return n;
}

static void choose_cut(segment *s, int device) {
  bool known = s->following && marked(&prefixes, s->prefix);
  s->following = known;
  flush_reason why;
  uint64_t here = context_of(s);
  if (known && marked(&ends, s->prefix)) why = FLUSH_REPEAT;
  else if (!known && s->nsteps >= MIN_STEPS && marked(&contexts, here)) why = FLUSH_REPEAT;
  else if (s->nsteps == MAX_STEPS || (s->nsteps == s->full && s->bytes <= SMALL_BYTES)) why = FLUSH_OPS;
  else if (s->bytes > budget()) {
    if ((s->bytes = waiting_bytes(s)) <= budget() / 2) return; /* counted anew: most have died */
    why = FLUSH_BYTES;
  } else return;
  mark(&ends, s->prefix);
  mark(&contexts, here);
  int full = s->full * 2;
  defer_flush_locked(device, why);
  s->full = full < MAX_STEPS ? full : MAX_STEPS;
}

void defer_call_locked(call_entry *e, int device, dbuf **take_bufs) {
  segment *s = segment_of(device);
  if (!s || !room_for(s, e)) { /* no memory to wait with */
    defer_flush_locked(device, FLUSH_BYTES);
    run_now(e, device, take_bufs);
    return;
  }
  s->steps[s->nsteps++] = (step){e, s->nsources, s->nvalues};
  atomic_fetch_add_explicit(&e->refs, 1, memory_order_relaxed);
  for (int i = 0; i < e->nparams; i++) {
    dbuf *d = take_bufs[i];
    int number = atomic_load_explicit(&d->deferred, memory_order_relaxed);
    bool is_value = e->params[i].kind == PARAM_STORE;
    if (number || (is_value && d->input_of == s->serial)) {
      s->sources[s->nsources++] = number ? number - 1 : ~d->input;
      dbuf_release(d);
      continue;
    }
    if (is_value) {
      d->input_of = s->serial;
      d->input = s->ninputs;
    }
    s->is_value[s->ninputs] = is_value;
    s->input_types[s->ninputs] = e->types[i];
    s->input_bytes[s->ninputs] = e->bytes[i];
    s->bytes += e->bytes[i];
    s->inputs[s->ninputs] = d;
    s->sources[s->nsources++] = ~s->ninputs++;
  }
  for (int i = 0; i < e->noutputs; i++) {
    dbuf *d = take_bufs[e->nparams + i];
    s->bytes += e->bytes[e->nparams + i];
    s->values[s->nvalues++] = d;
    atomic_store_explicit(&d->deferred, s->nvalues, memory_order_release);
  }
  s->prefix = hash_mix(s->prefix, e->serial);
  s->recent[s->nsteps % CONTEXT] = e->serial;
  ex.stats.deferred++;
  choose_cut(s, device);
}

/* ---- the program of a segment ---------------------------------------------------------------------------------- */

static const char *value_type(const segment *s, int value) {
  int i = s->nsteps - 1;
  while (s->steps[i].first_value > value) i--;
  const call_entry *e = s->steps[i].e;
  return e->types[e->nparams + value - s->steps[i].first_value];
}

/* Appends the function of a step: the text of its program with another head, and without the donations in it. */
static void put_function(buf *b, const buf *text, int number) {
  static const char head[] = "func.func public @main(", alias[] = " {tf.aliasing_output = ";
  const char *at = strstr(text->data, head), *end = text->data + text->len - 2; /* "}\n" closes the module */
  if (!at) {
    b->failed = true;
    return;
  }
  const char *line = at + sizeof head - 1, *body = strchr(line, '\n');
  buf_printf(b, "  func.func private @f%d(", number);
  for (const char *a; (a = strstr(line, alias)) && a < body;) {
    buf_bytes(b, line, (size_t)(a - line));
    line = strchr(a, '}') + 1;
  }
  buf_bytes(b, line, (size_t)(end - line));
}

static void put_value(const segment *s, buf *b, int source, const int *step_of) {
  if (source < 0) {
    buf_printf(b, "%%arg%d", ~source);
    return;
  }
  const step *p = &s->steps[step_of[source]];
  buf_printf(b, "%%%d", step_of[source]);
  if (p->e->noutputs > 1) buf_printf(b, "#%d", source - p->first_value);
}

/* alias: of each input the output that may take its place, or -1. */
static void put_program(const segment *s, buf *b, const int *live, int nlive, const int *alias, const int *step_of) {
  int function[MAX_STEPS];
  buf_str(b, "module @tpu {\n  func.func public @main(");
  for (int i = 0; i < s->ninputs; i++) {
    buf_printf(b, "%s%%arg%d: %s", i ? ", " : "", i, s->input_types[i]);
    if (alias[i] >= 0) buf_printf(b, " {tf.aliasing_output = %d : i32}", alias[i]);
  }
  buf_str(b, ") -> (");
  for (int i = 0; i < nlive; i++) buf_printf(b, "%s%s", i ? ", " : "", value_type(s, live[i]));
  buf_str(b, ") {\n");
  int nfunctions = 0;
  for (int i = 0; i < s->nsteps; i++) {
    const call_entry *e = s->steps[i].e;
    function[i] = nfunctions;
    for (int k = 0; k < i && function[i] == nfunctions; k++) {
      const buf *x = &s->steps[k].e->text;
      if (x->len == e->text.len && !memcmp(x->data, e->text.data, x->len)) function[i] = function[k];
    }
    nfunctions += function[i] == nfunctions;
    buf_printf(b, "    %%%d", i);
    if (e->noutputs > 1) buf_printf(b, ":%d", e->noutputs);
    buf_printf(b, " = func.call @f%d(", function[i]);
    for (int k = 0; k < e->nparams; k++) {
      if (k) buf_str(b, ", ");
      put_value(s, b, s->sources[s->steps[i].first_source + k], step_of);
    }
    buf_str(b, ") : (");
    for (int k = 0; k < e->nparams; k++) buf_printf(b, "%s%s", k ? ", " : "", e->types[k]);
    buf_str(b, ") -> (");
    for (int k = 0; k < e->noutputs; k++) buf_printf(b, "%s%s", k ? ", " : "", e->types[e->nparams + k]);
    buf_str(b, ")\n");
  }
  buf_str(b, "    return ");
  for (int i = 0; i < nlive; i++) {
    if (i) buf_str(b, ", ");
    put_value(s, b, live[i], step_of);
  }
  for (int i = 0; i < nlive; i++) buf_printf(b, "%s%s", i ? ", " : " : ", value_type(s, live[i]));
  buf_str(b, "\n  }\n");
  for (int i = 0, put = 0; i < s->nsteps; i++)
    if (function[i] == put) put_function(b, &s->steps[i].e->text, put), put++;
  buf_str(b, "}\n");
}

/* The operators of a segment in order, "aten::mul, 2 x aten::add". */
static const char *names(const segment *s, arena *a) {
  buf b;
  buf_init(&b);
  for (int i = 0, run; i < s->nsteps; i += run) {
    const char *op = s->values[s->steps[i].first_value]->op;
    for (run = 1; i + run < s->nsteps && s->values[s->steps[i + run].first_value]->op == op;) run++;
    if (i) buf_str(&b, ", ");
    if (run > 1) buf_printf(&b, "%d x ", run);
    buf_str(&b, op);
  }
  const char *text = b.failed ? "" : arena_copy(a, b.data, b.len + 1);
  buf_free(&b);
  return text;
}

/* The entry of a segment that is to be compiled. */
static tpu_err *compose(const segment *s, const int *live, int nlive, const bool *sole, call_entry *e) {
  arena a; /* scratch */
  arena_init(&a);
  int *alias = arena_alloc(&a, ((size_t)s->ninputs + 1) * sizeof *alias);
  int *step_of = arena_alloc(&a, ((size_t)s->nvalues + 1) * sizeof *step_of);
  e->params = arena_alloc(&e->mem, ((size_t)s->ninputs + 1) * sizeof *e->params);
  if (!alias || !step_of || !e->params) {
    arena_free(&a);
    return err_nomem();
  }
  for (int i = 0; i < s->nsteps; i++)
    for (int k = 0; k < s->steps[i].e->noutputs; k++) step_of[s->steps[i].first_value + k] = i;
  for (int i = 0; i < s->ninputs; i++) {
    e->params[i] = (param_spec){.kind = PARAM_STORE};
    alias[i] = -1;
  }
  e->nparams = s->ninputs;
  e->noutputs = nlive;
  e->calls = s->nsteps;
  e->name = names(s, &e->mem);
  for (int k = 0; k < nlive; k++) { /* an input that nobody else holds gives its memory to an output like it */
    const char *type = value_type(s, live[k]);
    for (int i = 0; i < s->ninputs; i++) {
      if (!sole[i] || alias[i] >= 0 || strcmp(s->input_types[i], type) != 0) continue;
      alias[i] = k;
      e->params[i].donated = true;
      e->ndonated++;
      break;
    }
  }
  put_program(s, &e->text, live, nlive, alias, step_of);
  arena_free(&a);
  return e->text.failed || e->mem.failed ? err_nomem() : NULL;
}

/* ---- flushing -------------------------------------------------------------------------------------------------- */

static bool put(segment *s, uint64_t w) {
  if (s->nwords == s->cap_words) {
    size_t want = s->cap_words ? s->cap_words * 2 : 1024;
    uint64_t *p = mem_realloc(s->words, want * sizeof *p);
    if (!p) return false;
    s->words = p;
    s->cap_words = want;
  }
  s->words[s->nwords++] = w;
  return true;
}

static bool make_key(segment *s, const int *live, int nlive, const bool *sole, uint64_t *hash) {
  s->nwords = 0;
  bool ok = put(s, (uint64_t)s->nsteps | (uint64_t)nlive << 32);
  for (int i = 0; i < s->nsteps && ok; i++) ok = put(s, s->steps[i].e->serial);
  for (int i = 0; i < s->nsources && ok; i += 2)
    ok = put(s, (uint32_t)s->sources[i] | (i + 1 < s->nsources ? (uint64_t)(uint32_t)s->sources[i + 1] << 32 : 0));
  for (int i = 0; i < nlive && ok; i++) ok = put(s, (uint64_t)live[i]);
  for (int i = 0; i < s->ninputs && ok; i++)
    if (sole[i]) ok = put(s, (uint64_t)i | (uint64_t)1 << 32);
  *hash = words_hash(s->words, s->nwords);
  return ok;
}

static tpu_err *add(const segment *s, uint64_t hash, call_entry **out) {
  TPU_TRY(entry_new(out));
  call_entry *e = *out;
  e->words = arena_copy(&e->mem, s->words, s->nwords * sizeof *s->words);
  e->nwords = s->nwords;
  e->node.hash = hash;
  tpu_err *err = e->words ? table_add(&ex.segments, &e->node) : err_nomem();
  if (err) {
    entry_release(e);
    *out = NULL;
    return err;
  }
  ex.segments.limit = (size_t)env_int(ENV_PROGRAM_CACHE);
  tnode *old = table_evict(&ex.segments);
  if (old == &e->node) *out = NULL;
  if (old) entry_release((call_entry *)old);
  return NULL;
}

/* Whether a new segment is to be compiled as a whole at once: when much of it would have to be compiled anyway. What
 * the queue's thread has finished by now must not matter, or the last bits of results would differ from run to run: so
 * the question is what it was given. A call is new in so many segments and no more, or code that mixes the same calls
 * differently each time would have all of its segments compiled. */
static bool mostly_new(const segment *s) {
  int unknown = 0;
  for (int i = 0; i < s->nsteps; i++) {
    call_entry *e = s->steps[i].e;
    if (e->counted == s->serial || e->known || marked(&scheduled, e->text_hash)) continue;
    e->counted = s->serial;
    e->known = ++e->segments == NEW_SEGMENTS;
    unknown++;
  }
  return unknown * 4 >= s->nsteps;
}

/* Runs the steps one by one. */
static void run_steps(segment *s, int device) {
  dbuf *few[64];
  for (int i = 0; i < s->nsteps; i++) {
    const step *p = &s->steps[i];
    call_entry *e = p->e;
    int n = e->nparams + e->noutputs;
    dbuf **bufs = n <= 64 ? few : mem_alloc((size_t)n * sizeof *bufs);
    if (!bufs) {
      for (int k = 0; k < e->noutputs; k++) dbuf_fill(s->values[p->first_value + k], NULL, err_nomem());
      continue;
    }
    for (int k = 0; k < e->nparams; k++) {
      int source = s->sources[p->first_source + k];
      bufs[k] = dbuf_retain(source < 0 ? s->inputs[~source] : s->values[source]);
    }
    for (int k = 0; k < e->noutputs; k++) bufs[e->nparams + k] = dbuf_retain(s->values[p->first_value + k]);
    e->known = true;
    mark(&scheduled, e->text_hash);
    run_now(e, device, bufs);
    if (bufs != few) mem_free(bufs);
  }
}

static tpu_err *run_fused(segment *s, int device, call_entry *e, const int *live, int nlive) {
  dbuf **bufs = mem_alloc(((size_t)s->ninputs + (size_t)nlive) * sizeof *bufs);
  if (!bufs) return err_nomem();
  for (int i = 0; i < s->ninputs; i++) bufs[i] = dbuf_retain(s->inputs[i]);
  for (int i = 0; i < nlive; i++) bufs[s->ninputs + i] = dbuf_retain(s->values[live[i]]);
  ex.stats.fused += s->nsteps;
  for (int i = 0; i < s->ninputs; i++)
    dbuf_release(s->inputs[i]); /* before it runs: what is held twice is not donated */
  s->ninputs = 0;
  run_now(e, device, bufs);
  mem_free(bufs);
  return NULL;
}

static tpu_err *flush(segment *s, int device, int *live, bool *sole) {
  int nlive = 0;
  for (int i = 0; i < s->nvalues; i++)
    if (atomic_load(&s->values[i]->refs) > 1) live[nlive++] = i;
  if (!nlive) return NULL;
  for (int i = 0; i < s->ninputs; i++)
    sole[i] = s->is_value[i] && !s->inputs[i]->bound; /* not by refs: the queue may have one yet */
  if (s->nsteps == 1) {
    run_steps(s, device);
    return NULL;
  }
  uint64_t hash;
  if (!make_key(s, live, nlive, sole, &hash)) return err_nomem();
  call_entry *e = entry_find_locked(&ex.segments, s->words, s->nwords, hash);
  bool again = e != NULL;
  if (!e) TPU_TRY(add(s, hash, &e));
  if (e && !e->text.len && (again || mostly_new(s))) TPU_TRY(compose(s, live, nlive, sole, e));
  if (e && e->text.len) {
    uint64_t h = 1;
    for (int i = 0; i < s->nsteps; i++) mark(&prefixes, h = hash_mix(h, s->steps[i].e->serial));
    return run_fused(s, device, e, live, nlive);
  }
  run_steps(s, device);
  return NULL;
}

void defer_flush_locked(int device, flush_reason why) {
  if (device < 0) {
    for (int i = 0; i < ex.ndevices; i++) defer_flush_locked(i, why);
    return;
  }
  segment *s = device < EX_MAX_DEVICES ? pending[device] : NULL;
  if (!s || !s->nsteps) return;
  ex.stats.flushes[why]++;
  explain_add(TPU_EXPLAIN_FLUSH, (int)why, s->nsteps, 0, "");
  for (int i = 0; i < s->nvalues; i++) atomic_store_explicit(&s->values[i]->deferred, 0, memory_order_release);
  int *live = mem_alloc((size_t)s->nvalues * sizeof *live + (size_t)s->ninputs + 1);
  tpu_err *err = live ? flush(s, device, live, (bool *)(live + s->nvalues)) : err_nomem();
  if (err) /* no memory for the key or the text */
    run_steps(s, device);
  tpu_err_free(err);
  mem_free(live);
  for (int i = 0; i < s->ninputs; i++) dbuf_release(s->inputs[i]);
  for (int i = 0; i < s->nvalues; i++) dbuf_release(s->values[i]);
  for (int i = 0; i < s->nsteps; i++) entry_release(s->steps[i].e);
  begin(s);
}

void defer_forget_locked(void) {
  for (int i = 0; i < EX_MAX_DEVICES; i++) {
    segment *s = pending[i];
    if (!s) continue;
    mem_free(s->sources);
    mem_free(s->inputs);
    mem_free(s->is_value);
    mem_free(s->input_types);
    mem_free(s->input_bytes);
    mem_free(s->values);
    mem_free(s->words);
    mem_free(s);
    pending[i] = NULL;
  }
}

void defer_flush(int device, flush_reason why) {
  ex_lock();
  defer_flush_locked(device, why);
  ex_unlock();
}
