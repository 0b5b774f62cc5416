"""Threads of exported C: teams that the caller starts and stops, and what their threads do.

A team is memory of the caller, so that nothing is allocated and nothing is global.  Its threads
wait for a run: for a moment by asking, then asleep.  In a run all of them make the same calls;
shared loops are cut into parts (`codegen.c.convention.TeamPrinter`), and threads wait for each
other after each.
"""

from __future__ import annotations

#: The most threads of a team.
MOST_THREADS = 64

_HEADER = """\
/* Threads for runs.  A team serves one run at a time; start it once, and stop it at the end. */
typedef struct {
  int threads, sleeping, stopping;
  unsigned run, round;
  int arrived, ready;
  void (*work)(const void *, void *);
  void *argument;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  pthread_t ids[@MOST@];
} @NAME@_team;

/* Start a team of so many threads, of which the caller is one: 1 to @MOST@.  It must not be
   running; where the number is refused, neither is it then. */
int @NAME@_start(@NAME@_team *team, int threads);
/* End its threads.  Nothing may run on it. */
void @NAME@_stop(@NAME@_team *team);
"""

#: How a thread, of a team or of OpenMP, finds its part of a loop.
SHARES = """\
/* The iterations of a loop. */
static inline __attribute__((unused))
int64_t fk_count(int64_t lower, int64_t upper, int64_t step)
{ return lower < upper ? (upper - lower + step - 1) / step : 0; }

/* The first of a thread's part of some iterations, or that of the next thread's. */
static inline __attribute__((unused))
int64_t fk_part(const fk_thread *me, int64_t count, int64_t next)
{ return count * (me->number + next) / me->threads; }
"""

_CODE = """\
/* A thread of a team, by its number. */
typedef struct { @NAME@_team *team; int64_t number, threads; } fk_thread;

@SHARES@
/* Pass some time. */
static inline __attribute__((unused)) void fk_relax(int asked)
{
  if (asked > 2000) sched_yield();
#if defined __x86_64__ || defined __i386__
  else __builtin_ia32_pause();
#endif
}

/* Wait until all threads of the team are here. */
static inline __attribute__((unused)) void fk_wait(const fk_thread *me)
{
  @NAME@_team *team = me->team;
  if (me->threads == 1) return;
  const unsigned round = __atomic_load_n(&team->round, __ATOMIC_RELAXED);
  if (__atomic_add_fetch(&team->arrived, 1, __ATOMIC_ACQ_REL) == me->threads) {
    __atomic_store_n(&team->arrived, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&team->round, round + 1, __ATOMIC_RELEASE);
    return;
  }
  for (int n = 0; __atomic_load_n(&team->round, __ATOMIC_ACQUIRE) == round; n++) fk_relax(n);
}
"""

_TEAM = """\
/* What a started thread does: every run of its team, until that is stopped. */
static void *fk_follow(void *given)
{
  @NAME@_team *team = given;
  unsigned seen = 0;
  const int number = __atomic_add_fetch(&team->ready, 1, __ATOMIC_ACQ_REL);
  for (;;) {
    for (int n = 0; n < 20000; n++) {
      if (__atomic_load_n(&team->run, __ATOMIC_ACQUIRE) != seen) break;
      fk_relax(n);
    }
    if (__atomic_load_n(&team->run, __ATOMIC_ACQUIRE) == seen) {
      pthread_mutex_lock(&team->lock);
      team->sleeping++;
      while (__atomic_load_n(&team->run, __ATOMIC_ACQUIRE) == seen)
        pthread_cond_wait(&team->changed, &team->lock);
      team->sleeping--;
      pthread_mutex_unlock(&team->lock);
    }
    seen++;
    if (team->stopping) return NULL;
    const fk_thread me = {team, number, team->threads};
    team->work(&me, team->argument);
    fk_wait(&me);
  }
}

/* Let the threads of a team see a new run, or that it stops. */
static void fk_announce(@NAME@_team *team)
{
  pthread_mutex_lock(&team->lock);
  __atomic_add_fetch(&team->run, 1, __ATOMIC_ACQ_REL);
  if (team->sleeping) pthread_cond_broadcast(&team->changed);
  pthread_mutex_unlock(&team->lock);
}

/* Run something on all threads of a team. */
static void fk_run(@NAME@_team *team, void (*work)(const void *, void *), void *argument)
{
  const fk_thread me = {team, 0, team == NULL ? 1 : team->threads};
  if (me.threads > 1) {
    team->work = work;
    team->argument = argument;
    fk_announce(team);
  }
  work(&me, argument);
  fk_wait(&me);
}

int @NAME@_start(@NAME@_team *team, int threads)
{
  if (team == NULL) return @PREFIX@_NULL;
  memset(team, 0, sizeof *team);
  if (threads < 1 || threads > @MOST@) return @PREFIX@_THREADS;
  if (pthread_mutex_init(&team->lock, NULL) != 0) return @PREFIX@_THREADS;
  if (pthread_cond_init(&team->changed, NULL) != 0) {
    pthread_mutex_destroy(&team->lock);
    return @PREFIX@_THREADS;
  }
  team->threads = threads;
  for (int n = 1; n < threads; n++) {
    if (pthread_create(&team->ids[n], NULL, fk_follow, team) == 0) continue;
    team->threads = n;
    @NAME@_stop(team);
    return @PREFIX@_THREADS;
  }
  return @PREFIX@_OK;
}

void @NAME@_stop(@NAME@_team *team)
{
  if (team == NULL || team->threads == 0) return;
  team->stopping = 1;
  fk_announce(team);
  for (int n = 1; n < team->threads; n++) pthread_join(team->ids[n], NULL);
  pthread_cond_destroy(&team->changed);
  pthread_mutex_destroy(&team->lock);
  team->threads = 0;
}
"""


def team_header(name: str) -> str:
    """The declarations of teams of a module."""
    return _filled(_HEADER, name)


def team_code(name: str) -> str:
    """What functions that share loops call."""
    return _filled(_CODE.replace("@SHARES@", SHARES), name)


def team_functions(name: str) -> str:
    """The functions that start, stop and run teams."""
    return _filled(_TEAM, name)


def _filled(text: str, name: str) -> str:
    filled = text.replace("@NAME@", name).replace("@PREFIX@", name.upper())
    return filled.replace("@MOST@", str(MOST_THREADS))
