/* Runs the text of CUDA kernels on a CPU, to check it without a GPU.
 *
 * Each thread of a block is a fiber, a stack of its own on one thread of the CPU, which runs until
 * it waits or ends; then the next one goes on.  Blocks run one after the other.  A barrier that
 * some threads of a block do not reach is an error.  With AddressSanitizer, accesses outside of
 * arrays are found; with ThreadSanitizer, accesses that no barrier separates: it is told that
 * switching orders nothing, and that a barrier does.  Not found are races between blocks.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

/* What only switches between threads is not watched. */
#define FK_PLAIN __attribute__((no_sanitize("thread")))

#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(threads)

struct fk_place {
  unsigned x, y, z;
};
static fk_place threadIdx, blockIdx, blockDim, gridDim;

/* --- switching between stacks ------------------------------------------------------------- */

struct fk_fiber {
  void *top; /* what the stack pointer is while the fiber does not run */
  char *stack;
  fk_place place;
  bool done;
  unsigned waits;
#if defined(__SANITIZE_THREAD__)
  void *tsan;
#endif
#if !defined(__x86_64__)
  ucontext_t context;
#endif
};

enum { FK_STACK = 256 << 10 };
static fk_fiber fk_host;
static fk_fiber *fk_now;
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

FK_PLAIN static void fk_go(fk_fiber *to) {
  fk_fiber *from = fk_now;
  fk_now = to;
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(to->tsan, __tsan_switch_to_fiber_no_sync);
#endif
#if defined(__SANITIZE_ADDRESS__)
  void *fake = nullptr;
  static const void *host_stack;
  static size_t host_size;
  const void *stack = to == &fk_host ? host_stack : to->stack;
  __sanitizer_start_switch_fiber(from->done ? nullptr : &fake, stack,
                                 to == &fk_host ? host_size : (size_t)FK_STACK);
#endif
#if defined(__x86_64__)
  fk_switch(&from->top, to->top);
#else
  swapcontext(&from->context, &to->context);
#endif
#if defined(__SANITIZE_ADDRESS__)
  const void *left = nullptr;
  size_t size = 0;
  __sanitizer_finish_switch_fiber(fake, &left, &size);
  if (from != &fk_host && !host_stack) host_stack = left, host_size = size;
#endif
}

FK_PLAIN static void fk_fiber_main() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
  fk_body(fk_argument);
  fk_now->done = true;
  fk_go(&fk_host);
  abort(); /* nobody goes on with a thread that has ended */
}

FK_PLAIN static void fk_start(fk_fiber *f) {
  f->done = false;
  f->waits = 0;
#if defined(__SANITIZE_THREAD__)
  f->tsan = __tsan_create_fiber(0);
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

/* --- barriers ------------------------------------------------------------------------------- */

/* Two that take turns: with one, a thread that is early could be ordered behind one that is late. */
static char fk_barriers[2];

FK_PLAIN static void __syncthreads() {
  char *barrier = &fk_barriers[fk_now->waits++ & 1];
#if defined(__SANITIZE_THREAD__)
  __tsan_release(barrier);
#endif
  fk_go(&fk_host);
  threadIdx = fk_now->place;
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(barrier);
#endif
  (void)barrier;
}

/* --- launches ------------------------------------------------------------------------------- */

/* Runs `body` once for each thread; 0, or 1 if threads of a block wait at different barriers.
 * `backwards`: the last thread of a block goes first, and the last block. */
FK_PLAIN static int fk_launch(void (*body)(void *), void *argument, const int64_t *grid,
                     const int64_t *block, int backwards) {
  const int64_t threads = block[0] * block[1] * block[2];
  const int64_t blocks = grid[0] * grid[1] * grid[2];
  const size_t bytes = (size_t)threads * FK_STACK;
  char *stacks = (char *)mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stacks == (char *)MAP_FAILED) return 2;
  fk_fiber *fibers = (fk_fiber *)calloc((size_t)threads, sizeof(fk_fiber));
  int wrong = 0;
  fk_body = body;
  fk_argument = argument;
  fk_now = &fk_host;
#if defined(__SANITIZE_THREAD__)
  fk_host.tsan = __tsan_get_current_fiber();
#endif
  blockDim = {(unsigned)block[0], (unsigned)block[1], (unsigned)block[2]};
  gridDim = {(unsigned)grid[0], (unsigned)grid[1], (unsigned)grid[2]};
  for (int64_t b = 0; b < blocks && !wrong; b++) {
    const int64_t n = backwards ? blocks - 1 - b : b;
    blockIdx = {(unsigned)(n % grid[0]), (unsigned)(n / grid[0] % grid[1]),
                (unsigned)(n / grid[0] / grid[1])};
    for (int64_t t = 0; t < threads; t++) {
      fk_fiber *f = &fibers[t];
      f->stack = stacks + t * FK_STACK;
      f->place = {(unsigned)(t % block[0]), (unsigned)(t / block[0] % block[1]),
                  (unsigned)(t / block[0] / block[1])};
      fk_start(f);
    }
    for (bool running = true; running && !wrong;) {
      int64_t waiting = 0, ended = 0;
      for (int64_t k = 0; k < threads; k++) {
        fk_fiber *f = &fibers[backwards ? threads - 1 - k : k];
        if (!f->done) {
          threadIdx = f->place;
          fk_go(f);
        }
        (f->done ? ended : waiting)++;
      }
      running = waiting > 0;
      wrong = waiting > 0 && ended > 0; /* some wait for others that never come */
      for (int64_t k = 1; k < threads && running; k++) wrong |= fibers[k].waits != fibers[0].waits;
    }
#if defined(__SANITIZE_THREAD__)
    for (int64_t t = 0; t < threads; t++) __tsan_destroy_fiber(fibers[t].tsan);
#endif
  }
  free(fibers);
  munmap(stacks, bytes);
  return wrong;
}
