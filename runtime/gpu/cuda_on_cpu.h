/* Runs the text of CUDA kernels on a CPU, to check it without a GPU.
 *
 * Each thread of a block is a fiber, a stack of its own on one thread of the CPU, which runs until
 * it waits or ends; then the next one goes on.  Blocks run one after the other, each with arrays of
 * its own for what it shares, filled with bytes 0xFF: no number, or -1.  Threads that wait at
 * different barriers, or for threads that have ended, are an error.
 *
 * With AddressSanitizer, accesses outside of arrays are found.  With ThreadSanitizer, accesses that
 * nothing separates are found, in a block and between blocks: it is told that switching orders
 * nothing, that a barrier orders the threads of a block, and that the end of a launch orders all.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#define FK_RELEASE(what) __tsan_release(what)
#define FK_ACQUIRE(what) __tsan_acquire(what)
#else
#define FK_RELEASE(what) (void)(what)
#define FK_ACQUIRE(what) (void)(what)
#endif

/* What only switches between threads is not watched. */
#define FK_PLAIN __attribute__((noinline, no_sanitize("thread"), no_sanitize("address")))

/* What kernels do by instructions of a GPU. */
static inline float fk_f16_load(unsigned short x)
{ _Float16 h; memcpy(&h, &x, 2); return (float)h; }
static inline unsigned short fk_f16_store(float f)
{ const _Float16 h = (_Float16)f; unsigned short x; memcpy(&x, &h, 2); return x; }
static inline unsigned short fk_f16_store_f64(double d)
{ const _Float16 h = (_Float16)d; unsigned short x; memcpy(&x, &h, 2); return x; }
static inline void fk_copy_async_4(void *to, const void *from) { memcpy(to, from, 4); }
static inline void fk_copy_async_8(void *to, const void *from) { memcpy(to, from, 8); }
struct alignas(16) fk_16_bytes { int at[4]; };
static inline void fk_copy_16(void *to, const void *from)
{
  if (((uintptr_t)from & 15) == 0) *(fk_16_bytes *)to = *(const fk_16_bytes *)from;
  else for (int n = 0; n < 8; n++) ((short *)to)[n] = ((const short *)from)[n];
}
static inline void fk_copy_async_16(void *to, const void *from) { fk_copy_16(to, from); }
static inline void fk_copy_4x4(void *to, const void *from)
{
  if (((uintptr_t)from & 15) == 0) *(fk_16_bytes *)to = *(const fk_16_bytes *)from;
  else for (int n = 0; n < 4; n++) ((int *)to)[n] = ((const int *)from)[n];
}
static inline void fk_copy_async_4x4(void *to, const void *from) { fk_copy_4x4(to, from); }
static inline void fk_wait_for_copies() {}
static inline float fk_bf16_load(unsigned short x)
{ const unsigned u = (unsigned)x << 16; float f; memcpy(&f, &u, 4); return f; }
static inline unsigned short fk_bf16_store(float f)
{
  unsigned u;
  memcpy(&u, &f, 4);
  return (unsigned short)(f != f ? (u >> 16) | 64 : (u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

/* `__shared__` is not here: runtime/gpu/emulator.py writes references to `fk_shared` instead. */
#define __global__
#define __align__(bytes) alignas(bytes)
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __ldg(place) (*(place))

struct fk_place {
  unsigned x, y, z;
};
static fk_place threadIdx, blockIdx, blockDim, gridDim;
static const int warpSize = 32;

/* --- vectors -------------------------------------------------------------------------------- */

#define FK_VECTORS(type, name)                                                                     \
  struct alignas(2 * sizeof(type)) name##2 { type x, y; };                                         \
  struct alignas(16) name##4 { type x, y, z, w; };                                                 \
  static inline name##2 make_##name##2(type x, type y) { return {x, y}; }                          \
  static inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
FK_VECTORS(float, float)
FK_VECTORS(double, double)
FK_VECTORS(int, int)

/* --- switching between stacks ------------------------------------------------------------- */

enum { FK_RUNS, FK_AT_BARRIER, FK_IN_WARP, FK_DONE };

struct fk_fiber {
  void *top; /* what the stack pointer is while the fiber does not run */
  char *stack;
  fk_place place;
  int state, line;          /* line: where it waits */
  unsigned waits;           /* for the block, so far */
  unsigned lane, warp_waits;
  unsigned mask, turns;     /* lanes that it waits for, and which of two turns each has */
  uint64_t given, got;      /* what it shows to other lanes, and what it gets from lane `from` */
  int from;
#if defined(__SANITIZE_THREAD__)
  void *tsan;
#endif
#if !defined(__x86_64__)
  ucontext_t context;
#endif
};

/* What a block shares, and by what its threads are ordered: all of them, and each with those of its
 * warp.  Two of each take turns: with one, a thread that is early could be ordered behind one that
 * is late. */
struct fk_block {
  char order[2][8];
  char (*lanes)[2][8];
  char *shared[1]; /* as many as there are arrays */
};

enum { FK_STACK = 256 << 10 };
static fk_fiber fk_host;
static fk_fiber *fk_now, *fk_fibers;
static fk_block *fk_here;
static char **fk_shared;
static char fk_end[8];
static void (*fk_body)(void *);
static void *fk_argument;

#if defined(__x86_64__)
/* Keeps what a call has to keep, and goes on where the other one stopped. */
extern "C" void fk_switch(void **from, void *to);
__asm__(
    ".text\n.globl fk_switch\n.type fk_switch, @function\nfk_switch:\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp, (%rdi)\n  movq %rsi, %rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n  ret\n"
    ".size fk_switch, .-fk_switch\n");
#endif

#if defined(__SANITIZE_ADDRESS__)
static const void *fk_host_stack;
static size_t fk_host_size;
#endif

FK_PLAIN static void fk_go(fk_fiber *to) {
  fk_fiber *from = fk_now;
  fk_now = to;
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(to->tsan, __tsan_switch_to_fiber_no_sync);
#endif
#if defined(__SANITIZE_ADDRESS__)
  void *fake = nullptr;
  __sanitizer_start_switch_fiber(from->state == FK_DONE ? nullptr : &fake,
                                 to == &fk_host ? fk_host_stack : to->stack,
                                 to == &fk_host ? fk_host_size : (size_t)FK_STACK);
#endif
#if defined(__x86_64__)
  fk_switch(&from->top, to->top);
#else
  swapcontext(&from->context, &to->context);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

FK_PLAIN static void fk_fiber_main() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &fk_host_stack, &fk_host_size);
#endif
  fk_body(fk_argument);
  FK_RELEASE(fk_end);
  fk_now->state = FK_DONE;
  fk_go(&fk_host);
  abort(); /* nobody goes on with a thread that has ended */
}

FK_PLAIN static void fk_start(fk_fiber *f) {
  f->state = FK_RUNS;
  f->waits = f->warp_waits = 0;
#if defined(__SANITIZE_THREAD__)
  f->tsan = __tsan_create_fiber(0);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(f->stack, FK_STACK); /* of the thread that had it before */
#endif
#if defined(__x86_64__)
  void **top = (void **)(f->stack + FK_STACK);
  *--top = nullptr; /* keeps the stack aligned as behind a call */
  *--top = (void *)fk_fiber_main;
  for (int k = 0; k < 6; k++) *--top = nullptr;
  f->top = top;
#else
  getcontext(&f->context);
  f->context.uc_stack.ss_sp = f->stack;
  f->context.uc_stack.ss_size = FK_STACK;
  f->context.uc_link = nullptr;
  makecontext(&f->context, fk_fiber_main, 0);
#endif
}

/* --- waiting -------------------------------------------------------------------------------- */

FK_PLAIN static void fk_syncthreads(int line) {
  char *order = fk_here->order[fk_now->waits++ & 1];
  FK_RELEASE(order);
  fk_now->state = FK_AT_BARRIER;
  fk_now->line = line;
  fk_go(&fk_host);
  FK_ACQUIRE(order);
}
#define __syncthreads() fk_syncthreads(__LINE__)

/* Waits for lanes of the warp, which give each other values; orders nothing. */
FK_PLAIN static void fk_meet(unsigned mask, int line) {
  fk_now->state = FK_IN_WARP;
  fk_now->mask = mask;
  fk_now->line = line;
  fk_go(&fk_host);
}

FK_PLAIN static void fk_syncwarp(unsigned mask, int line) {
  char(*lanes)[2][8] = fk_here->lanes + (fk_now - fk_fibers) - fk_now->lane;
  FK_RELEASE(lanes[fk_now->lane][++fk_now->warp_waits & 1]);
  fk_meet(mask, line);
  for (int k = 0; k < warpSize; k++)
    if (mask >> k & 1) FK_ACQUIRE(lanes[k][fk_now->turns >> k & 1]);
}
static inline unsigned fk_mask() { return 0xffffffffu; }
static inline unsigned fk_mask(unsigned mask) { return mask; }
#define __syncwarp(...) fk_syncwarp(fk_mask(__VA_ARGS__), __LINE__)

/* The value that another lane gives; bytes 0xFF from one that gives none. */
template <typename T>
FK_PLAIN static T fk_shuffle(unsigned mask, T value, int from, int line) {
  static_assert(sizeof(T) <= 8, "lanes exchange at most eight bytes");
  memcpy(&fk_now->given, &value, sizeof value);
  fk_now->from = from;
  fk_meet(mask, line);
  memcpy(&value, &fk_now->got, sizeof value);
  return value;
}
/* Lanes of a width-th part of a warp; one outside of the part is the thread's own. */
static inline int fk_lane(int from, int width) {
  const int own = (int)fk_now->lane, first = own / width * width;
  return from < first || from >= first + width ? own : from;
}
static inline int fk_own() { return (int)fk_now->lane; }
static inline int fk_width() { return warpSize; }
static inline int fk_width(int width) { return width; }
#define __shfl_sync(mask, value, from, ...)                                                        \
  fk_shuffle(mask, value,                                                                          \
             fk_own() / fk_width(__VA_ARGS__) * fk_width(__VA_ARGS__) +                            \
                 (from) % fk_width(__VA_ARGS__),                                                   \
             __LINE__)
#define __shfl_up_sync(mask, value, by, ...)                                                       \
  fk_shuffle(mask, value, fk_lane(fk_own() - (int)(by), fk_width(__VA_ARGS__)), __LINE__)
#define __shfl_down_sync(mask, value, by, ...)                                                     \
  fk_shuffle(mask, value, fk_lane(fk_own() + (int)(by), fk_width(__VA_ARGS__)), __LINE__)
#define __shfl_xor_sync(mask, value, by, ...)                                                      \
  fk_shuffle(mask, value, fk_lane(fk_own() ^ (int)(by), fk_width(__VA_ARGS__)), __LINE__)

/* Not beside any other access, as ThreadSanitizer sees it, but beside another of these. */
template <typename T>
static T atomicAdd(T *place, T value) {
  T before, after;
  __atomic_load(place, &before, __ATOMIC_RELAXED);
  do after = before + value;
  while (!__atomic_compare_exchange(place, &before, &after, false, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED));
  return before;
}

/* --- launches ------------------------------------------------------------------------------- */

FK_PLAIN static fk_block *fk_new_block(int64_t threads, const size_t *bytes, int arrays) {
  fk_block *b = (fk_block *)calloc(1, sizeof(fk_block) + (size_t)arrays * sizeof(char *));
  b->lanes = (char(*)[2][8])calloc((size_t)threads, sizeof *b->lanes);
  for (int n = 0; n < arrays; n++) {
    b->shared[n] = (char *)malloc(bytes[n]);
    memset(b->shared[n], 0xFF, bytes[n]);
  }
  return b;
}

FK_PLAIN static void fk_free_block(fk_block *b, int arrays) {
  for (int n = 0; n < arrays; n++) free(b->shared[n]);
  free(b->lanes);
  free(b);
}

/* Whether a lane of a warp of `count` threads and all that it waits for wait for each other. */
FK_PLAIN static bool fk_met(const fk_fiber *warp, int64_t count, int64_t lane) {
  const fk_fiber &own = warp[lane];
  bool met = own.state == FK_IN_WARP && own.mask >> lane & 1;
  for (int64_t k = 0; k < count && met; k++)
    if (own.mask >> k & 1)
      met = warp[k].state == FK_IN_WARP && warp[k].line == own.line && warp[k].mask == own.mask;
  return met;
}

/* Lets go on who has nothing to wait for any more; false if nobody has. */
FK_PLAIN static bool fk_release(int64_t threads) {
  bool all = true, some = false;
  for (int64_t t = 0; t < threads; t++)
    all = all && fk_fibers[t].state == FK_AT_BARRIER && fk_fibers[t].line == fk_fibers[0].line &&
          fk_fibers[t].waits == fk_fibers[0].waits;
  for (int64_t t = 0; t < threads && all; t++) fk_fibers[t].state = FK_RUNS;
  for (int64_t first = 0; first < threads && !all; first += warpSize) {
    fk_fiber *warp = fk_fibers + first;
    const int64_t count = threads - first < warpSize ? threads - first : warpSize;
    for (int64_t t = 0; t < count; t++) {
      if (!fk_met(warp, count, t)) continue;
      const unsigned mask = warp[t].mask;
      unsigned turns = 0;
      for (int64_t k = 0; k < count; k++) turns |= (warp[k].warp_waits & 1) << k;
      for (int64_t k = 0; k < count; k++) {
        const int64_t from = warp[k].from;
        if (!(mask >> k & 1)) continue;
        warp[k].turns = turns;
        warp[k].got = from < count && mask >> from & 1 ? warp[from].given : ~(uint64_t)0;
        warp[k].state = FK_RUNS;
      }
      some = true;
    }
  }
  return all || some;
}

/* Runs the threads of a block; false if some wait for what never comes. */
FK_PLAIN static bool fk_run_block(int64_t threads, int backwards) {
  for (;;) {
    int64_t ended = 0;
    for (int64_t k = 0; k < threads; k++) {
      fk_fiber *f = &fk_fibers[backwards ? threads - 1 - k : k];
      if (f->state == FK_RUNS) {
        threadIdx = f->place;
        fk_go(f);
      }
      ended += f->state == FK_DONE;
    }
    if (ended == threads) return true;
    if (!fk_release(threads)) return false;
  }
}

/* Runs `body` once for each thread; 0, or 1 if threads of a block wait at different barriers, or 2
 * without memory.  `bytes`: of the arrays that a block shares.  `backwards`: the last thread of a
 * block goes first, and the last block. */
FK_PLAIN static int fk_launch(void (*body)(void *), void *argument, const int64_t *grid,
                              const int64_t *block, const size_t *bytes, int arrays,
                              int backwards) {
  const int64_t threads = block[0] * block[1] * block[2];
  const int64_t blocks = grid[0] * grid[1] * grid[2];
  const size_t room = (size_t)threads * FK_STACK;
  fk_fibers = (fk_fiber *)calloc((size_t)threads, sizeof(fk_fiber));
  fk_block **made = (fk_block **)calloc((size_t)blocks, sizeof(fk_block *));
  char *stacks = nullptr;
  int wrong = 0;
  fk_body = body;
  fk_argument = argument;
  fk_now = &fk_host;
#if defined(__SANITIZE_THREAD__)
  fk_host.tsan = __tsan_get_current_fiber();
  const bool fresh = true; /* what two blocks have at one place would look shared */
#else
  const bool fresh = false;
#endif
  blockDim = {(unsigned)block[0], (unsigned)block[1], (unsigned)block[2]};
  gridDim = {(unsigned)grid[0], (unsigned)grid[1], (unsigned)grid[2]};
  for (int64_t b = 0; b < blocks && !wrong; b++) {
    const int64_t n = backwards ? blocks - 1 - b : b;
    blockIdx = {(unsigned)(n % grid[0]), (unsigned)(n / grid[0] % grid[1]),
                (unsigned)(n / grid[0] / grid[1])};
    if (!stacks) {
      void *got = mmap(nullptr, room, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (got == MAP_FAILED) return 2;
      stacks = (char *)got;
    }
    made[b] = fk_here = fk_new_block(threads, bytes, arrays);
    fk_shared = fk_here->shared;
    for (int64_t t = 0; t < threads; t++) {
      fk_fiber *f = &fk_fibers[t];
      f->stack = stacks + t * FK_STACK;
      f->place = {(unsigned)(t % block[0]), (unsigned)(t / block[0] % block[1]),
                  (unsigned)(t / block[0] / block[1])};
      f->lane = (unsigned)(t % warpSize);
      fk_start(f);
    }
    wrong = !fk_run_block(threads, backwards);
#if defined(__SANITIZE_THREAD__)
    for (int64_t t = 0; t < threads; t++) __tsan_destroy_fiber(fk_fibers[t].tsan);
#endif
    if (fresh) {
      munmap(stacks, room);
      stacks = nullptr;
    } else {
      fk_free_block(made[b], arrays);
    }
  }
  FK_ACQUIRE(fk_end);
  for (int64_t b = 0; b < blocks && fresh && !wrong; b++) fk_free_block(made[b], arrays);
  if (stacks) munmap(stacks, room);
  free(made);
  free(fk_fibers);
  return wrong;
}
