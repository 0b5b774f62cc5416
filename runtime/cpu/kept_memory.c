/* Memory for large results: what they leave when they are freed is kept for those of later calls.
 *
 * New memory comes from the system as pages that are mapped, and set to zero, one by one when they
 * are first written.  That may take as long as the kernel that writes them, and libraries in C give
 * memory back to the system whenever enough of it is free.
 *
 * Python's lock is held in all of these functions.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

enum { ALIGNMENT = 64, MOST_BLOCKS = 512 };
static const size_t PAGE = 4096, HUGE = 1 << 22, MOST_BYTES = (size_t)1 << 30;

typedef struct {
    size_t bytes;
    void *place;
} block;

static struct {
    block blocks[MOST_BLOCKS]; /* the one that was freed first is the first */
    int count;
    size_t bytes, limit;       /* of all blocks */
} kept;

static void forget(int n)
{
    kept.bytes -= kept.blocks[n].bytes;
    memmove(&kept.blocks[n], &kept.blocks[n + 1], (size_t)(--kept.count - n) * sizeof(block));
}

static void *take(void *context, size_t bytes)
{
    (void)context;
    for (int n = kept.count; n-- > 0;)
        if (kept.blocks[n].bytes == bytes) {
            void *place = kept.blocks[n].place;
            forget(n);
            return place;
        }
    char *place = aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
#ifdef MADV_HUGEPAGE
    if (place && bytes >= HUGE) {
        size_t skipped = -(uintptr_t)place % PAGE;
        madvise(place + skipped, (bytes - skipped) / PAGE * PAGE, MADV_HUGEPAGE);
    }
#endif
    return place;
}

static void *take_zeros(void *context, size_t count, size_t bytes)
{
    (void)context;
    return calloc(count, bytes);
}

static void *resize(void *context, void *place, size_t bytes)
{
    (void)context;
    return realloc(place, bytes);
}

static void give_back(void *context, void *place, size_t bytes)
{
    (void)context;
    if (!place) return;
    if (bytes > kept.limit) {
        free(place);
        return;
    }
    while (kept.count == MOST_BLOCKS || kept.bytes + bytes > kept.limit) {
        free(kept.blocks[0].place);
        forget(0);
    }
    kept.blocks[kept.count++] = (block){bytes, place};
    kept.bytes += bytes;
}

/* numpy's PyDataMem_Handler. */
static struct {
    char name[127];
    uint8_t version;
    void *context;
    void *(*malloc)(void *, size_t);
    void *(*calloc)(void *, size_t, size_t);
    void *(*realloc)(void *, void *, size_t);
    void (*free)(void *, void *, size_t);
} handler = {"farkas", 1, NULL, take, take_zeros, resize, give_back};

void *fk_kept_memory(void);
void *fk_kept_memory(void) { return &handler; }

size_t fk_kept_bytes(void);
size_t fk_kept_bytes(void) { return kept.bytes; }

/* Results of one call take so many bytes: twice as much is kept, for calls that take turns. */
void fk_keep_at_most(size_t bytes);
void fk_keep_at_most(size_t bytes)
{
    size_t less = kept.limit - kept.limit / 64;
    kept.limit = 2 * bytes > less ? 2 * bytes : less;
    if (kept.limit > MOST_BYTES) kept.limit = MOST_BYTES;
    while (kept.bytes > kept.limit) {
        free(kept.blocks[0].place);
        forget(0);
    }
}
