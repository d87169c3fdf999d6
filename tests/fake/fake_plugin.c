/* A PJRT plugin that runs nothing; see fake.h. Slots that are not written here answer UNIMPLEMENTED. */
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake.h"
#include "fake_signature.h"
#include "pjrt/abi.h"
#include "tpu.h"

#define EXPORT __attribute__((visibility("default")))

enum { SLOTS = 138, MAX_DEVICES = 64 };

/* ---- what is counted ------------------------------------------------------------------------------------------- */

#define COUNTED(X) X(client) X(buffer) X(event) X(exec) X(executable) X(serialized) X(topology) X(error)
#define COUNTERS(X) X(calls) X(compile) X(execute) X(from_host) X(to_host) X(copy) X(load)

static struct {
#define X(name) _Atomic int64_t name;
  COUNTED(X)
} alive;

static struct {
  COUNTERS(X)
#undef X
} counts;

static struct {
  _Atomic int64_t fail_nth, fail_count, fail_execution, execution_count, device_memory, used;
  _Atomic int fail_code, delay_ms;
  _Atomic bool held;
  char platform[32], table[32], kind[32];
} set;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

/* ---- objects --------------------------------------------------------------------------------------------------- */

struct PJRT_Error {
  int code;
  char message[256];
};

struct PJRT_DeviceDescription {
  const char *kind;
  int id;
  int64_t coords[2];
  PJRT_NamedValue attributes[3];
};

struct PJRT_Device {
  int id;
  PJRT_DeviceDescription description;
};

struct PJRT_Client {
  char platform[32];
  size_t ndevices;
  PJRT_Device devices[MAX_DEVICES];
  PJRT_Device *list[MAX_DEVICES];
};

struct PJRT_TopologyDescription {
  PJRT_DeviceDescription devices[4], *list[4];
};

typedef struct waiter {
  struct waiter *next;
  void (*fn)(PJRT_Error *, void *);
  void *arg;
} waiter;

/* What a run has come to; shared by its buffers and events. Guarded by `lock`. */
typedef struct state {
  int refs;
  bool ready;
  int code; /* 0: fine */
  char message[128];
  waiter *waiters;
  struct state *next_held;
} state;

static state *held_states;

struct PJRT_Event {
  state *s;
};

struct PJRT_Buffer {
  state *s;
  fake_type t;
  PJRT_Device *device;
  bool deleted;
  char *data;
};

typedef struct program {
  _Atomic int refs;
  fake_signature sig;
  size_t len;
  char text[];
} program;

struct PJRT_LoadedExecutable {
  program *p;
};

struct PJRT_Executable {
  program *p;
  PJRT_NamedValue cost[3];
};

struct PJRT_SerializedExecutable {
  size_t len;
  char bytes[];
};

static __attribute__((format(printf, 2, 3))) PJRT_Error *error_new(int code, const char *fmt, ...) {
  PJRT_Error *e = calloc(1, sizeof *e);
  if (!e) abort();
  e->code = code;
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(e->message, sizeof e->message, fmt, ap);
  va_end(ap);
  alive.error++;
  return e;
}

static state *state_new(void) {
  state *s = calloc(1, sizeof *s);
  if (!s) abort();
  s->refs = 1;
  return s;
}

static state *state_retain(state *s) {
  pthread_mutex_lock(&lock);
  s->refs++;
  pthread_mutex_unlock(&lock);
  return s;
}

static void state_release(state *s) {
  pthread_mutex_lock(&lock);
  bool last = --s->refs == 0;
  pthread_mutex_unlock(&lock);
  if (last) free(s);
}

static PJRT_Error *state_error(const state *s) { return s->code ? error_new(s->code, "%s", s->message) : NULL; }

static void state_finish(state *s) {
  pthread_mutex_lock(&lock);
  s->ready = true;
  waiter *w = s->waiters;
  s->waiters = NULL;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  for (waiter *next; w; w = next) {
    next = w->next;
    w->fn(state_error(s), w->arg);
    free(w);
  }
}

static PJRT_Error *state_wait(state *s) {
  pthread_mutex_lock(&lock);
  while (!s->ready) pthread_cond_wait(&changed, &lock);
  pthread_mutex_unlock(&lock);
  return state_error(s);
}

static void *finish_later(void *arg) {
  usleep((useconds_t)set.delay_ms * 1000);
  state_finish(arg);
  state_release(arg);
  return NULL;
}

/* Makes a run's state ready: now, after a delay, or when the test says so. */
static void state_start(state *s) {
  pthread_t t;
  pthread_attr_t detached;
  if (set.held) {
    pthread_mutex_lock(&lock);
    s->refs++;
    s->next_held = held_states;
    held_states = s;
    pthread_mutex_unlock(&lock);
    return;
  }
  if (!set.delay_ms) {
    state_finish(s);
    return;
  }
  state_retain(s);
  pthread_attr_init(&detached);
  pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
  if (pthread_create(&t, &detached, finish_later, s) != 0) finish_later(s);
  pthread_attr_destroy(&detached);
}

static PJRT_Event *event_new(state *s) {
  PJRT_Event *e = calloc(1, sizeof *e);
  if (!e) abort();
  e->s = state_retain(s);
  alive.event++;
  return e;
}

/* NULL when the device is full. */
static PJRT_Buffer *buffer_new(const fake_type *t, PJRT_Device *device, state *s) {
  if (t->bytes == SIZE_MAX || (int64_t)t->bytes > set.device_memory - set.used) return NULL;
  PJRT_Buffer *b = calloc(1, sizeof *b);
  char *data = b ? calloc(1, t->bytes ? t->bytes : 1) : NULL;
  if (!data) {
    free(b);
    return NULL;
  }
  *b = (PJRT_Buffer){.s = state_retain(s), .t = *t, .device = device, .data = data};
  set.used += (int64_t)t->bytes;
  alive.buffer++;
  return b;
}

static void buffer_delete(PJRT_Buffer *b) {
  if (b->deleted) return;
  b->deleted = true;
  set.used -= (int64_t)b->t.bytes;
  free(b->data);
  b->data = NULL;
}

static void buffer_drop(PJRT_Buffer *b) {
  buffer_delete(b);
  state_release(b->s);
  free(b);
  alive.buffer--;
}

static PJRT_Error *out_of_memory(size_t bytes) {
  return error_new(PJRT_CODE_RESOURCE_EXHAUSTED, "fake: out of device memory allocating %zu bytes", bytes);
}

static PJRT_Error *program_new(const char *text, size_t len, program **out) {
  program *p = calloc(1, sizeof *p + len + 1);
  if (!p) abort();
  memcpy(p->text, text, len);
  p->len = len;
  p->refs = 1;
  const char *why = fake_signature_read(p->text, len, &p->sig);
  if (why) {
    free(p);
    return error_new(PJRT_CODE_INVALID_ARGUMENT, "fake: the program cannot be read: %s", why);
  }
  *out = p;
  return NULL;
}

static void program_release(program *p) {
  if (--p->refs) return;
  fake_signature_free(&p->sig);
  free(p);
}

/* ---- the calls --------------------------------------------------------------------------------------------------- */

static PJRT_Error *bad_size(const char *call, size_t have, size_t want) {
  return error_new(PJRT_CODE_INVALID_ARGUMENT, "fake: %s_Args has struct_size %zu, expected at least %zu", call, have,
                   want);
}

/* Counts the call; gives the error that a test asked for. */
static PJRT_Error *enter(const char *call) {
  counts.calls++;
  int64_t nth = set.fail_nth;
  if (!nth || ++set.fail_count != nth) return NULL;
  return error_new(PJRT_CODE_INTERNAL, "fake: %s failed because a test asked for it", call);
}

#define CALL(name) static PJRT_Error *name(name##_Args *a)
#define CHECK_SIZE(name) \
  if (a->struct_size < name##_SIZE) return bad_size(#name, a->struct_size, name##_SIZE)
#define ENTER(name)                    \
  CHECK_SIZE(name);                    \
  do {                                 \
    PJRT_Error *enter_ = enter(#name); \
    if (enter_) return enter_;         \
  } while (0)

static void PJRT_Error_Destroy(PJRT_Error_Destroy_Args *a) {
  if (!a->error) return;
  free(a->error);
  alive.error--;
}

static void PJRT_Error_Message(PJRT_Error_Message_Args *a) {
  a->message = a->error->message;
  a->message_size = strlen(a->error->message);
}

CALL(PJRT_Error_GetCode) {
  CHECK_SIZE(PJRT_Error_GetCode);
  a->code = (uint32_t)a->error->code;
  return NULL;
}

CALL(PJRT_Plugin_Initialize) {
  ENTER(PJRT_Plugin_Initialize);
  return NULL;
}

CALL(PJRT_Plugin_Attributes) {
  ENTER(PJRT_Plugin_Attributes);
  static const int64_t version[3] = {1, 2, 3};
  static const PJRT_NamedValue values[] = {{.struct_size = sizeof values[0],
                                            .name = "stablehlo_current_version_not",
                                            .name_size = 29,
                                            .type = PJRT_VALUE_INT64,
                                            .u.int64_value = 1,
                                            .value_size = 1},
                                           {.struct_size = sizeof values[0],
                                            .name = "stablehlo_current_versionXX",
                                            .name_size = 25, /* no NUL after it */
                                            .type = PJRT_VALUE_INT64_LIST,
                                            .u.int64_array_value = version,
                                            .value_size = 3}};
  a->attributes = values;
  a->num_attributes = 2;
  return NULL;
}

CALL(PJRT_Event_Destroy) {
  CHECK_SIZE(PJRT_Event_Destroy);
  state_release(a->event->s);
  free(a->event);
  alive.event--;
  return NULL;
}

CALL(PJRT_Event_IsReady) {
  ENTER(PJRT_Event_IsReady);
  pthread_mutex_lock(&lock);
  a->is_ready = a->event->s->ready;
  pthread_mutex_unlock(&lock);
  return NULL;
}

CALL(PJRT_Event_Await) {
  ENTER(PJRT_Event_Await);
  return state_wait(a->event->s);
}

CALL(PJRT_Event_OnReady) {
  ENTER(PJRT_Event_OnReady);
  state *s = a->event->s;
  pthread_mutex_lock(&lock);
  bool ready = s->ready;
  if (!ready) {
    waiter *w = malloc(sizeof *w);
    if (!w) abort();
    *w = (waiter){s->waiters, a->callback, a->user_arg};
    s->waiters = w;
  }
  pthread_mutex_unlock(&lock);
  if (ready) a->callback(state_error(s), a->user_arg);
  return NULL;
}

CALL(PJRT_Client_Create) {
  ENTER(PJRT_Client_Create);
  const char *env = getenv("FAKE_PJRT_DEVICES");
  size_t n = env && atoi(env) > 0 ? (size_t)atoi(env) : 1;
  for (size_t i = 0; i < a->num_options; i++) {
    const PJRT_NamedValue *v = &a->create_options[i];
    if (v->name_size == 16 && !memcmp(v->name, "cpu_device_count", 16) && v->type == PJRT_VALUE_INT64)
      n = (size_t)v->u.int64_value;
    else if (!(v->name_size == 12 && !memcmp(v->name, "asynchronous", 12) && v->type == PJRT_VALUE_BOOL))
      return error_new(PJRT_CODE_INVALID_ARGUMENT, "fake: unknown create option %.*s of type %d", (int)v->name_size,
                       v->name, (int)v->type);
  }
  if (n > MAX_DEVICES) return error_new(PJRT_CODE_INVALID_ARGUMENT, "fake: at most %d devices", MAX_DEVICES);
  PJRT_Client *c = calloc(1, sizeof *c);
  if (!c) abort();
  memcpy(c->platform, set.platform, sizeof c->platform);
  c->ndevices = n;
  for (size_t i = 0; i < n; i++) {
    c->devices[i] = (PJRT_Device){(int)i, {.kind = set.kind}};
    c->list[i] = &c->devices[i];
  }
  alive.client++;
  a->client = c;
  return NULL;
}

CALL(PJRT_Client_Destroy) {
  CHECK_SIZE(PJRT_Client_Destroy);
  free(a->client);
  alive.client--;
  return NULL;
}

CALL(PJRT_Client_PlatformName) {
  ENTER(PJRT_Client_PlatformName);
  a->platform_name = a->client->platform;
  a->platform_name_size = strlen(a->client->platform);
  return NULL;
}

CALL(PJRT_Client_PlatformVersion) {
  ENTER(PJRT_Client_PlatformVersion);
  a->platform_version = "fake 1";
  a->platform_version_size = 6;
  return NULL;
}

CALL(PJRT_Client_AddressableDevices) {
  ENTER(PJRT_Client_AddressableDevices);
  a->addressable_devices = a->client->list;
  a->num_addressable_devices = a->client->ndevices;
  return NULL;
}

CALL(PJRT_Device_GetDescription) {
  ENTER(PJRT_Device_GetDescription);
  a->device_description = &a->device->description;
  return NULL;
}

CALL(PJRT_DeviceDescription_Kind) {
  ENTER(PJRT_DeviceDescription_Kind);
  a->device_kind = a->device_description->kind;
  a->device_kind_size = strlen(a->device_kind);
  return NULL;
}

CALL(PJRT_DeviceDescription_Id) {
  ENTER(PJRT_DeviceDescription_Id);
  a->id = a->device_description->id;
  return NULL;
}

CALL(PJRT_DeviceDescription_Attributes) {
  ENTER(PJRT_DeviceDescription_Attributes);
  a->attributes = a->device_description->attributes;
  a->num_attributes = 3;
  return NULL;
}

CALL(PJRT_Device_MemoryStats) {
  ENTER(PJRT_Device_MemoryStats);
  a->bytes_in_use = set.used;
  a->bytes_limit = set.device_memory;
  a->bytes_limit_is_set = true;
  return NULL;
}

/* Topologies: "fake:2x2" has 4 devices; other names are refused. */
CALL(PJRT_TopologyDescription_Create) {
  ENTER(PJRT_TopologyDescription_Create);
  static const char known[] = "fake:2x2";
  if (a->topology_name_size != sizeof known - 1 || memcmp(a->topology_name, known, sizeof known - 1) != 0)
    return error_new(PJRT_CODE_INVALID_ARGUMENT, "fake: unknown topology %.*s", (int)a->topology_name_size,
                     a->topology_name);
  a->topology = calloc(1, sizeof *a->topology);
  if (!a->topology) abort();
  for (int i = 0; i < 4; i++) {
    PJRT_DeviceDescription *d = a->topology->list[i] = &a->topology->devices[i];
    *d = (PJRT_DeviceDescription){.kind = "fake chip", .id = 10 + i, .coords = {i & 1, i >> 1}};
    d->attributes[0] = (PJRT_NamedValue){.name = "coords",
                                         .name_size = 6,
                                         .type = PJRT_VALUE_INT64_LIST,
                                         .u.int64_array_value = d->coords,
                                         .value_size = 2};
    d->attributes[1] = (PJRT_NamedValue){
        .name = "core_on_chip", .name_size = 12, .type = PJRT_VALUE_INT64, .u.int64_value = 0, .value_size = 1};
    d->attributes[2] = (PJRT_NamedValue){
        .name = "coords of a ship", .name_size = 16, .type = PJRT_VALUE_BOOL, .u.bool_value = true, .value_size = 1};
  }
  alive.topology++;
  return NULL;
}

CALL(PJRT_TopologyDescription_Destroy) {
  CHECK_SIZE(PJRT_TopologyDescription_Destroy);
  free(a->topology);
  alive.topology--;
  return NULL;
}

CALL(PJRT_TopologyDescription_PlatformName) {
  ENTER(PJRT_TopologyDescription_PlatformName);
  a->platform_name = set.platform;
  a->platform_name_size = strlen(set.platform);
  return NULL;
}

CALL(PJRT_TopologyDescription_PlatformVersion) {
  ENTER(PJRT_TopologyDescription_PlatformVersion);
  a->platform_version = "fake 1";
  a->platform_version_size = 6;
  return NULL;
}

CALL(PJRT_TopologyDescription_GetDeviceDescriptions) {
  ENTER(PJRT_TopologyDescription_GetDeviceDescriptions);
  a->descriptions = a->topology->list;
  a->num_descriptions = 4;
  return NULL;
}

static PJRT_Error *compile(const PJRT_Program *p, size_t options, program **out) {
  counts.compile++;
  if (p->struct_size < PJRT_END_OF(PJRT_Program, format_size)) return bad_size("PJRT_Program", p->struct_size, 48);
  if (p->format_size != 4 || memcmp(p->format, "mlir", 4) != 0)
    return error_new(PJRT_CODE_INVALID_ARGUMENT, "fake: the program format is not mlir");
  if (!options) return error_new(PJRT_CODE_INVALID_ARGUMENT, "fake: no compile options");
  return program_new(p->code, p->code_size, out);
}

CALL(PJRT_Client_Compile) {
  ENTER(PJRT_Client_Compile);
  program *made;
  PJRT_Error *e = compile(a->program, a->compile_options_size, &made);
  if (e) return e;
  a->executable = calloc(1, sizeof *a->executable);
  if (!a->executable) abort();
  a->executable->p = made;
  alive.exec++;
  return NULL;
}

CALL(PJRT_Compile) {
  ENTER(PJRT_Compile);
  program *made;
  PJRT_Error *e = compile(a->program, a->compile_options_size, &made);
  if (e) return e;
  a->executable = calloc(1, sizeof *a->executable);
  if (!a->executable) abort();
  a->executable->p = made;
  alive.executable++;
  return NULL;
}

CALL(PJRT_Executable_OptimizedProgram) {
  ENTER(PJRT_Executable_OptimizedProgram);
  const program *p = a->executable->p;
  if (a->program->code) memcpy((char *)(uintptr_t)a->program->code, p->text, p->len);
  a->program->code_size = p->len;
  a->program->format = "mlir";
  a->program->format_size = 4;
  return NULL;
}

CALL(PJRT_LoadedExecutable_Destroy) {
  CHECK_SIZE(PJRT_LoadedExecutable_Destroy);
  program_release(a->executable->p);
  free(a->executable);
  alive.exec--;
  return NULL;
}

CALL(PJRT_LoadedExecutable_GetExecutable) {
  ENTER(PJRT_LoadedExecutable_GetExecutable);
  a->executable = calloc(1, sizeof *a->executable);
  if (!a->executable) abort();
  a->executable->p = a->loaded_executable->p;
  a->executable->p->refs++;
  alive.executable++;
  return NULL;
}

CALL(PJRT_Executable_Destroy) {
  CHECK_SIZE(PJRT_Executable_Destroy);
  program_release(a->executable->p);
  free(a->executable);
  alive.executable--;
  return NULL;
}

CALL(PJRT_Executable_NumOutputs) {
  ENTER(PJRT_Executable_NumOutputs);
  a->num_outputs = a->executable->p->sig.nresults;
  return NULL;
}

CALL(PJRT_Executable_GetCompiledMemoryStats) {
  ENTER(PJRT_Executable_GetCompiledMemoryStats);
  const fake_signature *sig = &a->executable->p->sig;
  for (size_t i = 0; i < sig->nargs; i++) a->argument_size_in_bytes += (int64_t)sig->args[i].bytes;
  for (size_t i = 0; i < sig->nresults; i++) a->output_size_in_bytes += (int64_t)sig->results[i].bytes;
  a->temp_size_in_bytes = 64;
  a->peak_memory_in_bytes = a->argument_size_in_bytes + a->output_size_in_bytes + 64;
  return NULL;
}

/* A run reads its arguments and writes its results. */
CALL(PJRT_Executable_GetCostAnalysis) {
  ENTER(PJRT_Executable_GetCostAnalysis);
  const fake_signature *s = &a->executable->p->sig;
  PJRT_NamedValue *v = a->executable->cost;
  v[0] =
      (PJRT_NamedValue){.struct_size = sizeof *v, .name = "flopsXX", .name_size = 5, .type = 3}; /* no NUL after it */
  v[0].u.float_value = 12;
  v[2] = (PJRT_NamedValue){.struct_size = sizeof *v, .name = "text", .name_size = 4, .type = PJRT_VALUE_STRING};
  v[2].u.string_value = "no figure";
  v[1] = (PJRT_NamedValue){.struct_size = sizeof *v, .name = "bytes accessed{}", .name_size = 14, .type = 3};
  for (size_t i = 0; i < s->nargs; i++) v[1].u.float_value += (float)s->args[i].bytes;
  for (size_t i = 0; i < s->nresults; i++) v[1].u.float_value += (float)s->results[i].bytes;
  a->num_properties = 3;
  a->properties = v;
  return NULL;
}

static const char magic[8] = "fakepjrt";

static void serialized_delete(PJRT_SerializedExecutable *s) {
  free(s);
  alive.serialized--;
}

CALL(PJRT_Executable_Serialize) {
  ENTER(PJRT_Executable_Serialize);
  const program *p = a->executable->p;
  PJRT_SerializedExecutable *s = malloc(sizeof *s + sizeof magic + p->len);
  if (!s) abort();
  s->len = sizeof magic + p->len;
  memcpy(s->bytes, magic, sizeof magic);
  memcpy(s->bytes + sizeof magic, p->text, p->len);
  alive.serialized++;
  a->serialized_bytes = s->bytes;
  a->serialized_bytes_size = s->len;
  a->serialized_executable = s;
  a->serialized_executable_deleter = serialized_delete;
  return NULL;
}

CALL(PJRT_Executable_DeserializeAndLoad) {
  ENTER(PJRT_Executable_DeserializeAndLoad);
  counts.load++;
  if (a->serialized_executable_size < sizeof magic || memcmp(a->serialized_executable, magic, sizeof magic) != 0)
    return error_new(PJRT_CODE_INVALID_ARGUMENT, "fake: these bytes are no serialized executable");
  program *made;
  PJRT_Error *e =
      program_new(a->serialized_executable + sizeof magic, a->serialized_executable_size - sizeof magic, &made);
  if (e) return e;
  a->loaded_executable = calloc(1, sizeof *a->loaded_executable);
  if (!a->loaded_executable) abort();
  a->loaded_executable->p = made;
  alive.exec++;
  return NULL;
}

static bool same_type(const fake_type *x, const fake_type *y) {
  return x->type == y->type && x->ndim == y->ndim && !memcmp(x->dims, y->dims, (size_t)x->ndim * sizeof x->dims[0]);
}

static PJRT_Error *check_args(const PJRT_LoadedExecutable_Execute_Args *a, const fake_signature *sig) {
  if (a->num_devices != 1 || !a->execute_device)
    return error_new(PJRT_CODE_INVALID_ARGUMENT, "fake: expected one device, and execute_device for it");
  if (a->num_args != sig->nargs)
    return error_new(PJRT_CODE_INVALID_ARGUMENT, "fake: %zu arguments given, expected %zu", a->num_args, sig->nargs);
  for (size_t i = 0; i < sig->nargs; i++) {
    const PJRT_Buffer *b = a->argument_lists[0][i];
    if (b->deleted) return error_new(PJRT_CODE_INVALID_ARGUMENT, "fake: argument %zu has been deleted or donated", i);
    if (b->device != a->execute_device)
      return error_new(PJRT_CODE_INVALID_ARGUMENT, "fake: argument %zu is on device %d, the run is on device %d", i,
                       b->device->id, a->execute_device->id);
    if (!same_type(&b->t, &sig->args[i]))
      return error_new(PJRT_CODE_INVALID_ARGUMENT, "fake: argument %zu has another type than the program says", i);
  }
  return NULL;
}

static bool donates(const PJRT_LoadedExecutable_Execute_Args *a, size_t arg) {
  if (a->executable->p->sig.args[arg].alias < 0) return false;
  const PJRT_ExecuteOptions *o = a->options;
  for (size_t i = 0; i < o->num_non_donatable_input_indices; i++)
    if (o->non_donatable_input_indices[i] == (int64_t)arg) return false;
  return true;
}

/* The first argument that failed, waited for: the fake finds out at once what a real plugin finds out later. */
static void take_argument_error(const PJRT_LoadedExecutable_Execute_Args *a, state *s) {
  for (size_t i = 0; i < a->num_args && !s->code; i++) {
    const state *from = a->argument_lists[0][i]->s;
    s->code = from->code;
    memcpy(s->message, from->message, sizeof s->message);
  }
}

CALL(PJRT_LoadedExecutable_Execute) {
  ENTER(PJRT_LoadedExecutable_Execute);
  counts.execute++;
  const fake_signature *sig = &a->executable->p->sig;
  size_t want = PJRT_END_OF(PJRT_ExecuteOptions, num_hlo_output_callbacks);
  if (a->options->struct_size < want) return bad_size("PJRT_ExecuteOptions", a->options->struct_size, want);
  PJRT_Error *e = check_args(a, sig);
  if (e) return e;
  state *s = state_new();
  take_argument_error(a, s);
  int64_t nth = set.fail_execution;
  if (nth && ++set.execution_count == nth && !s->code) {
    s->code = set.fail_code;
    snprintf(s->message, sizeof s->message, "fake: the run failed because a test asked for it");
  }
  for (size_t i = 0; i < a->num_args; i++)
    if (donates(a, i)) buffer_delete(a->argument_lists[0][i]);
  for (size_t i = 0; i < sig->nresults && !e; i++) {
    PJRT_Buffer *b = buffer_new(&sig->results[i], a->execute_device, s);
    a->output_lists[0][i] = b;
    if (b) continue;
    e = out_of_memory(sig->results[i].bytes);
    for (size_t k = 0; k < i; k++) buffer_drop(a->output_lists[0][k]);
  }
  if (!e) {
    if (a->device_complete_events) a->device_complete_events[0] = event_new(s);
    state_start(s);
  }
  state_release(s);
  return e;
}

static PJRT_Error *type_of_host(const PJRT_Client_BufferFromHostBuffer_Args *a, fake_type *t) {
  memset(t, 0, sizeof *t);
  if (a->num_dims > FAKE_MAX_DIMS) return error_new(PJRT_CODE_INVALID_ARGUMENT, "fake: too many dimensions");
  size_t bytes = 0;
  switch ((int)a->type) {
#define X(num, name, torch, mlir, size, pjrt, cls) \
  case pjrt: bytes = size; break;
    TPU_DTYPES(X)
#undef X
    default: return error_new(PJRT_CODE_UNIMPLEMENTED, "fake: element type %u", a->type);
  }
  t->type = (int)a->type;
  t->ndim = (int)a->num_dims;
  for (int i = 0; i < t->ndim; i++) {
    t->dims[i] = a->dims[i];
    if (bytes == SIZE_MAX || __builtin_mul_overflow(bytes, (size_t)a->dims[i], &bytes)) bytes = SIZE_MAX;
  }
  t->bytes = bytes;
  return NULL;
}

CALL(PJRT_Client_BufferFromHostBuffer) {
  ENTER(PJRT_Client_BufferFromHostBuffer);
  counts.from_host++;
  if (a->byte_strides || a->host_buffer_semantics != PJRT_HOST_IMMUTABLE_ONLY_DURING_CALL || !a->device || a->memory)
    return error_new(PJRT_CODE_UNIMPLEMENTED, "fake: only dense data that is copied during the call, to a device");
  fake_type t;
  PJRT_Error *e = type_of_host(a, &t);
  if (e) return e;
  state *s = state_new();
  PJRT_Buffer *b = buffer_new(&t, a->device, s);
  if (b) {
    memcpy(b->data, a->data, t.bytes);
    a->buffer = b;
    a->done_with_host_buffer = event_new(s);
    state_finish(s);
  }
  state_release(s);
  return b ? NULL : out_of_memory(t.bytes);
}

CALL(PJRT_Buffer_Destroy) {
  CHECK_SIZE(PJRT_Buffer_Destroy);
  buffer_drop(a->buffer);
  return NULL;
}

static PJRT_Error *gone(const PJRT_Buffer *b) {
  return b->deleted ? error_new(PJRT_CODE_INVALID_ARGUMENT, "fake: the buffer has been deleted or donated") : NULL;
}

CALL(PJRT_Buffer_Dimensions) {
  ENTER(PJRT_Buffer_Dimensions);
  a->dims = a->buffer->t.dims;
  a->num_dims = (size_t)a->buffer->t.ndim;
  return NULL;
}

CALL(PJRT_Buffer_OnDeviceSizeInBytes) {
  ENTER(PJRT_Buffer_OnDeviceSizeInBytes);
  PJRT_Error *e = gone(a->buffer);
  if (!e) a->on_device_size_in_bytes = a->buffer->t.bytes;
  return e;
}

static bool is_row_major(const PJRT_Buffer_MemoryLayout *l, int ndim) {
  if (!l || l->struct_size < PJRT_END_OF(PJRT_Buffer_MemoryLayout, type) || l->type != PJRT_LAYOUT_TILED) return false;
  const PJRT_Buffer_MemoryLayout_Tiled *t = &l->u.tiled;
  if (t->struct_size < PJRT_END_OF(PJRT_Buffer_MemoryLayout_Tiled, num_tiles) || t->num_tiles) return false;
  if (t->minor_to_major_size != (size_t)ndim) return false;
  for (int i = 0; i < ndim; i++)
    if (t->minor_to_major[i] != ndim - 1 - i) return false;
  return true;
}

CALL(PJRT_Buffer_ToHostBuffer) {
  ENTER(PJRT_Buffer_ToHostBuffer);
  counts.to_host++;
  PJRT_Error *e = gone(a->src);
  if (e) return e;
  /* Like a device whose own layout is another one: the caller must say what it wants. */
  if (!is_row_major(a->host_layout, a->src->t.ndim))
    return error_new(PJRT_CODE_INVALID_ARGUMENT, "fake: expected an explicit row-major host layout");
  if (!a->dst || a->dst_size != a->src->t.bytes)
    return error_new(PJRT_CODE_INVALID_ARGUMENT, "fake: dst has %zu bytes, expected %zu", a->dst_size, a->src->t.bytes);
  if (!a->src->s->code) memcpy(a->dst, a->src->data, a->dst_size);
  a->event = event_new(a->src->s);
  return NULL;
}

CALL(PJRT_Buffer_CopyToDevice) {
  ENTER(PJRT_Buffer_CopyToDevice);
  counts.copy++;
  PJRT_Error *e = gone(a->buffer);
  if (e) return e;
  PJRT_Buffer *b = buffer_new(&a->buffer->t, a->dst_device, a->buffer->s);
  if (!b) return out_of_memory(a->buffer->t.bytes);
  memcpy(b->data, a->buffer->data, b->t.bytes);
  a->dst_buffer = b;
  return NULL;
}

CALL(PJRT_Buffer_ReadyEvent) {
  ENTER(PJRT_Buffer_ReadyEvent);
  PJRT_Error *e = gone(a->buffer);
  if (!e) a->event = event_new(a->buffer->s);
  return e;
}

CALL(PJRT_Buffer_OpaqueDeviceMemoryDataPointer) {
  ENTER(PJRT_Buffer_OpaqueDeviceMemoryDataPointer);
  PJRT_Error *e = gone(a->buffer);
  if (!e) a->device_memory_ptr = a->buffer->data;
  return e;
}

static PJRT_Error *unimplemented(void *args) {
  (void)args;
  return error_new(PJRT_CODE_UNIMPLEMENTED, "fake: this call is not implemented");
}

/* ---- the table -------------------------------------------------------------------------------------------------- */

static union {
  PJRT_Api api;
  char room[sizeof(PJRT_Api) + SLOTS * sizeof(void (*)(void))];
} table;

static void fill_table(void) {
  const char *kind = set.table;
  PJRT_Api *t = &table.api;
  t->struct_size = sizeof table;
  t->version = (PJRT_Api_Version){.struct_size = sizeof t->version, .major_version = 0, .minor_version = 110};
  for (int i = 0; i < SLOTS; i++) t->slots[i] = (void (*)(void))unimplemented;
  t->slots[PJRT_SLOT_Error_Destroy] = (void (*)(void))PJRT_Error_Destroy;
  t->slots[PJRT_SLOT_Error_Message] = (void (*)(void))PJRT_Error_Message;
#define X(slot, name, last, need) t->slots[slot] = (void (*)(void))name;
  PJRT_CALLS(X)
#undef X
  if (!strcmp(kind, "tiny")) t->struct_size = 8;
  if (!strcmp(kind, "short")) t->struct_size = sizeof *t + 50 * sizeof t->slots[0];
  if (!strcmp(kind, "major")) t->version = (PJRT_Api_Version){.major_version = 7, .minor_version = 1};
  if (!strncmp(kind, "missing:", 8)) t->slots[atoi(kind + 8) % SLOTS] = NULL;
  if (!strncmp(kind, "stub:", 5)) t->slots[atoi(kind + 5) % SLOTS] = (void (*)(void))unimplemented;
}

EXPORT const PJRT_Api *GetPjrtApi(void);
const PJRT_Api *GetPjrtApi(void) {
  fill_table();
  return strcmp(set.table, "null") ? &table.api : NULL;
}

/* ---- steering --------------------------------------------------------------------------------------------------- */

#define X(result, name, args) EXPORT result fake_##name args;
FAKE_CONTROL(X)
#undef X

int64_t fake_live(const char *what) {
  int64_t all = 0;
#define X(name)                                \
  if (!strcmp(what, #name)) return alive.name; \
  all += alive.name;
  COUNTED(X)
#undef X
  return strcmp(what, "all") ? -1 : all;
}

int64_t fake_count(const char *what) {
#define X(name) \
  if (!strcmp(what, #name)) return counts.name;
  COUNTERS(X)
#undef X
  return -1;
}

void fake_fail_call(int64_t nth) {
  set.fail_count = 0;
  set.fail_nth = nth;
}

int64_t fake_fail_count(void) { return set.fail_count; }

void fake_fail_execution(int64_t nth, int code) {
  set.execution_count = 0;
  set.fail_code = code;
  set.fail_execution = nth;
}

void fake_hold(void) { set.held = true; }

void fake_release(void) {
  set.held = false;
  pthread_mutex_lock(&lock);
  state *s = held_states;
  held_states = NULL;
  pthread_mutex_unlock(&lock);
  for (state *next; s; s = next) {
    next = s->next_held;
    state_finish(s);
    state_release(s);
  }
}

void fake_delay(int ms) { set.delay_ms = ms; }

static void copy_name(char to[32], const char *from) {
  memset(to, 0, 32);
  strncpy(to, from, 31);
}

void fake_platform(const char *name) { copy_name(set.platform, name); }

void fake_device_memory(int64_t bytes) { set.device_memory = bytes; }

void fake_table(const char *kind) { copy_name(set.table, kind); }

static int64_t env_number(const char *name, int64_t otherwise) {
  const char *v = getenv(name);
  return v && *v ? strtoll(v, NULL, 10) : otherwise;
}

static const char *env_text(const char *name, const char *otherwise) {
  const char *v = getenv(name);
  return v && *v ? v : otherwise;
}

void fake_reset(void) {
  fake_fail_call(env_number("FAKE_PJRT_FAIL_CALL", 0));
  fake_fail_execution(env_number("FAKE_PJRT_FAIL_EXECUTION", 0), PJRT_CODE_INTERNAL);
  fake_delay((int)env_number("FAKE_PJRT_DELAY_MS", 0));
  fake_device_memory(env_number("FAKE_PJRT_DEVICE_MEMORY", INT64_C(1) << 34));
  fake_platform(env_text("FAKE_PJRT_PLATFORM", "fake"));
  fake_table(env_text("FAKE_PJRT_TABLE", "good"));
  copy_name(set.kind, env_text("FAKE_PJRT_KIND", "fake device"));
  fake_release();
}

__attribute__((constructor)) static void start(void) { fake_reset(); }
