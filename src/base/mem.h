/* mem.h - every host allocation of the core goes through here, so that tests can make the Nth one fail. */
#ifndef TPU_BASE_MEM_H
#define TPU_BASE_MEM_H
#include <stddef.h>
#include <stdint.h>

#include "tpu.h"

/* NULL when memory is out (or when a test asked for it). n may be 0: then a valid pointer comes back. */
void *mem_alloc(size_t n);
void *mem_calloc(size_t n);
void *mem_realloc(void *p, size_t n);
void mem_free(void *p);

/* Fault injection, for tests: makes allocation number `nth` from now (1 = next) fail, once, or for good when `sticky`.
 * nth 0 switches it off. mem_fault_count() is how many allocations were made since then. Counts on all threads. */
TPU_API void mem_fault_at(int64_t nth, bool sticky);
TPU_API int64_t mem_fault_count(void);
/* Blocks now live; 0 when nothing leaks. */
TPU_API int64_t mem_live(void);
#endif
