/*
 * A team of threads that counts work, and not threads.
 *
 * This is as much of an OpenMP runtime as gcc's and clang's code for generated kernels calls:
 * `parallel`, `for schedule(runtime)` and `single`.  Kernels are linked with --wrap, so that these
 * calls come here and nobody else's do.
 *
 * The loops and singles of a region are its items, numbered in the order in which every thread
 * comes to them.  An item is over when all pieces of its work are completed, whoever did them.  So
 * nobody waits for a thread that has not come yet: it finds the items over, and goes on to the one
 * that is being worked on.  A piece goes to the thread that would have it with a static schedule,
 * unless that one is late.
 *
 * Code between items is run by every thread that comes, at any time: it must not read what items
 * write, but for what is written once in a region, by the item just before it (whether a routine has
 * failed, see `network_unit`).  There is no barrier but the one at the end of an item.
 */
#define _GNU_SOURCE
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

_Static_assert(sizeof(long) == 8, "iterations are counted in long");

#define ENTRY(name) __wrap_##name

enum {
  MOST = 1024,          /* threads of a team */
  PIECES = 8,           /* of a thread's share of a loop */
  ITEM = 16,            /* bits below the number of an item, in words that have one */
  OPEN = 1 << 15,       /* of the gate: the region may be entered */
  SPINS = 4000,         /* while others complete what they have begun: 100 us or so, then sleep */
  IDLE_SPINS = 2000,    /* between regions; then a worker yields */
  IDLE_US = 1000,       /* so long, and then sleeps */
  YIELD_US = 50,        /* sleeps at once if yielding took so long: others need the processor */
};

typedef struct {
  _Alignas(64) _Atomic uint64_t word;
} Line;

static struct {
  /* The number of the region, how many threads it is for, OPEN, how many workers are inside. */
  Line gate;
  /* The item that is being worked on, and how many pieces of it are completed. */
  Line progress;
  /* What is left of a thread's share: the item, the first piece, the end of the pieces.  A share
     that still has the number of an item before has not been touched. */
  Line shares[MOST];
  _Alignas(64) atomic_uint asleep[MOST];  /* workers that wait for someone to wake them */
  _Alignas(64) atomic_uint parked;        /* threads that sleep until the tick changes */
  atomic_uint tick;
  _Alignas(64) atomic_bool busy;          /* a region is under way */
  atomic_uint workers;                    /* that have been made */
  unsigned processors;
  void (*work)(void *);                   /* the region, and the number of its first item */
  void *data;
  uint64_t first;
} team;

/* What a thread knows of the region that it is in; alone if its size is 1. */
typedef struct {
  unsigned me, size;
  uint64_t item;                /* the one that this thread is at */
  unsigned pieces, completed;   /* that the item has, 0 between items; that this thread did */
  unsigned looking;             /* for work at the share of the thread so many after this one */
  bool whole;                   /* alone: all iterations are still to be done */
  long start, step;
  unsigned long count;          /* of iterations */
  unsigned long each, more;     /* in a share; so many shares have one more */
} Member;

static __thread Member self __attribute__((tls_model("initial-exec"))) = {.size = 1};

static void rest(void)
{
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static uint64_t now_us(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* One step of waiting for a word to change, the `k`-th; whoever changes it calls `changed`. */
static void wait_for(_Atomic uint64_t *word, uint64_t seen, unsigned k)
{
  if (k < SPINS && self.size <= team.processors) {
    rest();
    return;
  }
  atomic_fetch_add(&team.parked, 1);
  unsigned tick = atomic_load(&team.tick);
  if (atomic_load(word) == seen)
    syscall(SYS_futex, &team.tick, FUTEX_WAIT_PRIVATE, tick, NULL, NULL, 0);
  atomic_fetch_sub(&team.parked, 1);
}

static void changed(void)
{
  if (!atomic_load(&team.parked)) return;
  atomic_fetch_add(&team.tick, 1);
  syscall(SYS_futex, &team.tick, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Wait until the items before this one are over. */
static void await(uint64_t item)
{
  _Atomic uint64_t *word = &team.progress.word;
  uint64_t seen;
  for (unsigned k = 0; (seen = atomic_load(word)) >> ITEM < item; k++) wait_for(word, seen, k);
}

/* The end of an item, for this thread; `stay`: until it is over. */
static void finish(bool stay)
{
  if (!self.pieces) return;
  if (self.completed) {
    uint64_t after = atomic_fetch_add(&team.progress.word, self.completed) + self.completed;
    if ((after & ((1 << ITEM) - 1)) == self.pieces) {
      atomic_store(&team.progress.word, (self.item + 1) << ITEM);
      changed();
    }
  }
  self.pieces = 0;
  self.item++;
  if (stay) await(self.item);
}

/* The beginning of an item of `count` iterations; without any, it is none. */
static void begin(unsigned long count)
{
  finish(false);
  await(self.item);
  self.each = count / self.size;
  self.more = count % self.size;
  self.pieces = self.each < PIECES ? (unsigned)count : self.size * PIECES;
  self.completed = self.looking = 0;
}

/* Take a piece of the item: from the front of the own share, then from the end of others'. */
static bool claim(unsigned long *from, unsigned long *to)
{
  for (; self.looking < self.size; self.looking++) {
    unsigned owner = self.me + self.looking;
    if (owner >= self.size) owner -= self.size;
    unsigned long extent = self.each + (owner < self.more);
    unsigned pieces = extent < PIECES ? (unsigned)extent : PIECES;
    _Atomic uint64_t *share = &team.shares[owner].word;
    uint64_t old = atomic_load_explicit(share, memory_order_relaxed);
    for (;;) {
      uint64_t item = old >> ITEM;
      if (item > self.item) return false;
      unsigned front = item < self.item ? 0 : old >> 8 & 255;
      unsigned end = item < self.item ? pieces : old & 255;
      if (front >= end) break;
      unsigned piece = self.looking ? --end : front++;
      uint64_t left = self.item << ITEM | front << 8 | end;
      if (!atomic_compare_exchange_weak_explicit(share, &old, left, memory_order_relaxed,
                                                 memory_order_relaxed))
        continue;
      unsigned long before = self.each * owner + (owner < self.more ? owner : self.more);
      *from = before + extent * piece / pieces;
      *to = before + extent * (piece + 1) / pieces;
      self.completed++;
      return true;
    }
  }
  return false;
}

/* --- the calls in gcc's code -------------------------------------------------------------- */

/* A loop; without iterations, or with a negative number of them, it is none. */
static void start_loop(long start, long step, long count)
{
  if (count < 0) count = 0;
  self.start = start;
  self.step = step;
  self.count = (unsigned long)count;
  self.whole = count > 0;
  if (self.size > 1) begin(self.count);
}

bool ENTRY(GOMP_loop_runtime_next)(long *from, long *to);
bool ENTRY(GOMP_loop_runtime_next)(long *from, long *to)
{
  unsigned long a = 0, b = self.count;
  if (self.size > 1 ? !claim(&a, &b) : !self.whole) return false;
  self.whole = false;
  *from = self.start + (long)a * self.step;
  *to = self.start + (long)b * self.step;
  return true;
}

bool ENTRY(GOMP_loop_runtime_start)(long start, long end, long step, long *from, long *to);
bool ENTRY(GOMP_loop_runtime_start)(long start, long end, long step, long *from, long *to)
{
  long count = step > 0 ? (end - start + step - 1) / step : (end - start + step + 1) / step;
  start_loop(start, step, count);
  return count > 0 && ENTRY(GOMP_loop_runtime_next)(from, to);
}

bool ENTRY(GOMP_loop_maybe_nonmonotonic_runtime_start)(long, long, long, long *, long *)
    __attribute__((alias("__wrap_GOMP_loop_runtime_start")));
bool ENTRY(GOMP_loop_maybe_nonmonotonic_runtime_next)(long *, long *)
    __attribute__((alias("__wrap_GOMP_loop_runtime_next")));

void ENTRY(GOMP_barrier)(void);
void ENTRY(GOMP_barrier)(void)
{
  finish(true);
}

void ENTRY(GOMP_loop_end)(void) __attribute__((alias("__wrap_GOMP_barrier")));

void ENTRY(GOMP_loop_end_nowait)(void);
void ENTRY(GOMP_loop_end_nowait)(void)
{
  finish(false);
}

bool ENTRY(GOMP_single_start)(void);
bool ENTRY(GOMP_single_start)(void)
{
  unsigned long from, to;
  if (self.size < 2) return true;
  begin(1);
  return claim(&from, &to);
}

/* --- workers ------------------------------------------------------------------------------ */

static void wake(unsigned who)
{
  if (atomic_load(&team.asleep[who]) && atomic_exchange(&team.asleep[who], 0))
    syscall(SYS_futex, &team.asleep[who], FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* A thread that has come wakes two more, if these are asleep. */
static void wake_more(unsigned me, unsigned size)
{
  for (unsigned who = 2 * me + 1; who <= 2 * me + 2 && who < size; who++) wake(who);
}

/* Go into the region that is open, if there is one that this worker has not been in. */
static bool enter(unsigned me, uint32_t *last)
{
  uint64_t gate = atomic_load(&team.gate.word);
  while ((gate & OPEN) && gate >> 32 != *last && me < (gate >> 16 & 0xffff))
    if (atomic_compare_exchange_weak(&team.gate.word, &gate, gate + 1)) {
      *last = (uint32_t)(gate >> 32);
      self = (Member){.me = me, .size = gate >> 16 & 0xffff, .item = team.first};
      return true;
    }
  return false;
}

/* Wait for a region, and go into it. */
static void idle(unsigned me, uint32_t *last)
{
  for (int k = 0; k < IDLE_SPINS && team.workers < team.processors; k++) {
    if (enter(me, last)) return;
    rest();
  }
  uint64_t start = now_us(), before = start;
  for (;;) {
    if (enter(me, last)) return;
    sched_yield();
    uint64_t now = now_us();
    if (now - before > YIELD_US || now - start > IDLE_US) break;
    before = now;
  }
  for (;;) {
    atomic_store(&team.asleep[me], 1);
    if (enter(me, last)) break;
    while (atomic_load(&team.asleep[me]))
      syscall(SYS_futex, &team.asleep[me], FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0);
    if (enter(me, last)) return;
  }
  atomic_store(&team.asleep[me], 0);
}

static void *worker(void *number)
{
  unsigned me = (unsigned)(uintptr_t)number;
  uint32_t last = 0;
  for (;;) {
    idle(me, &last);
    wake_more(me, self.size);
    team.work(team.data);
    finish(false);
    atomic_fetch_sub(&team.gate.word, 1);
    changed();
  }
  return NULL;
}

/* The number of threads that there are for a region of `size`, with new ones if need be. */
static unsigned hire(unsigned size)
{
  sigset_t all, before;
  if (team.workers + 1 >= size) return size;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  while (team.workers + 1 < size) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, worker, (void *)(uintptr_t)(team.workers + 1))) break;
    pthread_detach(thread);
    team.workers++;
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return team.workers + 1;
}

/* A child process has none of the threads. */
static void reset(void)
{
  unsigned processors = team.processors;
  memset(&team, 0, sizeof team);
  team.processors = processors;
  atomic_store(&team.progress.word, 1 << ITEM);
}

__attribute__((constructor)) static void prepare(void)
{
  cpu_set_t set;
  reset();
  team.processors = sched_getaffinity(0, sizeof set, &set) ? 1 : (unsigned)CPU_COUNT(&set);
  pthread_atfork(NULL, NULL, reset);
}

void ENTRY(GOMP_parallel)(void (*work)(void *), void *data, unsigned size, unsigned flags);
void ENTRY(GOMP_parallel)(void (*work)(void *), void *data, unsigned size, unsigned flags)
{
  Member outside = self;
  (void)flags;
  if (size > MOST) size = MOST;
  bool mine = size > 1 && outside.size < 2 && !atomic_exchange(&team.busy, true);
  if (mine) size = hire(size);
  if (!mine || size < 2) {
    self = (Member){.size = 1};
    work(data);
    self = outside;
    if (mine) atomic_store(&team.busy, false);
    return;
  }
  team.work = work;
  team.data = data;
  team.first = atomic_load(&team.progress.word) >> ITEM;
  self = (Member){.size = size, .item = team.first};
  uint64_t region = (atomic_load(&team.gate.word) >> 32) + 1;
  atomic_store(&team.gate.word, region << 32 | (uint64_t)size << 16 | OPEN);
  wake_more(0, size);
  work(data);
  finish(false);
  await(self.item);
  atomic_fetch_and(&team.gate.word, ~(uint64_t)OPEN);
  uint64_t seen;
  for (unsigned k = 0; (seen = atomic_load(&team.gate.word)) & (OPEN - 1); k++)
    wait_for(&team.gate.word, seen, k);
  self = outside;
  atomic_store(&team.busy, false);
}

/* --- the calls in clang's code -------------------------------------------------------------- */

/* A region that clang has made a function of, with the addresses of what it uses. */
typedef struct {
  void (*work)(int32_t *, int32_t *, ...);
  int count;
  void *a[4];
} Region;

static __thread unsigned wanted;  /* threads of the next region */

static void outlined(void *data)
{
  Region *r = data;
  int32_t me = (int32_t)self.me, bound = me;
  typedef int32_t *Number;
  /* These functions are declared without the dots. */
  switch (r->count) {
  case 0: ((void (*)(Number, Number))r->work)(&me, &bound); return;
  case 1: ((void (*)(Number, Number, void *))r->work)(&me, &bound, r->a[0]); return;
  case 2:
    ((void (*)(Number, Number, void *, void *))r->work)(&me, &bound, r->a[0], r->a[1]);
    return;
  case 3:
    ((void (*)(Number, Number, void *, void *, void *))r->work)
      (&me, &bound, r->a[0], r->a[1], r->a[2]);
    return;
  default:
    ((void (*)(Number, Number, void *, void *, void *, void *))r->work)
      (&me, &bound, r->a[0], r->a[1], r->a[2], r->a[3]);
  }
}

int32_t ENTRY(__kmpc_global_thread_num)(void *where);
int32_t ENTRY(__kmpc_global_thread_num)(void *where)
{
  (void)where;
  return (int32_t)self.me;
}

void ENTRY(__kmpc_push_num_threads)(void *where, int32_t me, int32_t count);
void ENTRY(__kmpc_push_num_threads)(void *where, int32_t me, int32_t count)
{
  (void)where, (void)me;
  wanted = count > 0 ? (unsigned)count : 1;
}

void ENTRY(__kmpc_fork_call)(void *where, int32_t count, void (*work)(int32_t *, int32_t *, ...),
                             ...);
void ENTRY(__kmpc_fork_call)(void *where, int32_t count, void (*work)(int32_t *, int32_t *, ...),
                             ...)
{
  Region region = {.work = work, .count = count};
  unsigned size = wanted ? wanted : team.processors;
  va_list given;
  (void)where;
  if (count > (int)(sizeof region.a / sizeof *region.a)) abort();  /* kernels have two at most */
  va_start(given, work);
  for (int k = 0; k < count; k++) region.a[k] = va_arg(given, void *);
  va_end(given);
  wanted = 0;
  ENTRY(GOMP_parallel)(outlined, &region, size, 0);
}

void ENTRY(__kmpc_barrier)(void *where, int32_t me);
void ENTRY(__kmpc_barrier)(void *where, int32_t me)
{
  (void)where, (void)me;
  finish(true);
}

int32_t ENTRY(__kmpc_single)(void *where, int32_t me);
int32_t ENTRY(__kmpc_single)(void *where, int32_t me)
{
  (void)where, (void)me;
  return ENTRY(GOMP_single_start)();
}

void ENTRY(__kmpc_end_single)(void *where, int32_t me);
void ENTRY(__kmpc_end_single)(void *where, int32_t me)
{
  (void)where, (void)me;
}

/* A loop, up to and including `end`.  What it begins is asked for by `__kmpc_dispatch_next_8`. */
void ENTRY(__kmpc_dispatch_init_8)(void *where, int32_t me, int32_t schedule, int64_t start,
                                   int64_t end, int64_t step, int64_t chunk);
void ENTRY(__kmpc_dispatch_init_8)(void *where, int32_t me, int32_t schedule, int64_t start,
                                   int64_t end, int64_t step, int64_t chunk)
{
  (void)where, (void)me, (void)schedule, (void)chunk;
  start_loop(start, step, (end - start + step) / step);
}

int32_t ENTRY(__kmpc_dispatch_next_8)(void *where, int32_t me, int32_t *is_last, int64_t *from,
                                      int64_t *to, int64_t *step);
int32_t ENTRY(__kmpc_dispatch_next_8)(void *where, int32_t me, int32_t *is_last, int64_t *from,
                                      int64_t *to, int64_t *step)
{
  long after;
  (void)where, (void)me, (void)is_last;
  if (!ENTRY(GOMP_loop_runtime_next)(from, &after)) return 0;
  *to = after - self.step;
  *step = self.step;
  return 1;
}

void ENTRY(__kmpc_dispatch_deinit)(void *where, int32_t me);
void ENTRY(__kmpc_dispatch_deinit)(void *where, int32_t me)
{
  (void)where, (void)me;
}

/* Loops that clang counts without a sign; there are fewer iterations than 2^63. */
void ENTRY(__kmpc_dispatch_init_8u)(void *, int32_t, int32_t, int64_t, int64_t, int64_t, int64_t)
    __attribute__((alias("__wrap___kmpc_dispatch_init_8")));
int32_t ENTRY(__kmpc_dispatch_next_8u)(void *, int32_t, int32_t *, int64_t *, int64_t *, int64_t *)
    __attribute__((alias("__wrap___kmpc_dispatch_next_8")));
