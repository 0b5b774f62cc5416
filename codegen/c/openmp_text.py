"""Threads of exported C by OpenMP: the compiler starts them, for each run.

The text divides its loops itself, as it does for teams (`codegen.c.team_text`); of OpenMP there are
a region around the calls of a run, and barriers.  Without OpenMP it is a run on one thread.
"""

from __future__ import annotations

from codegen.c.team_text import SHARES

#: The most threads of a run.
MOST_THREADS = 1024

_CODE = """\
/* A thread of a run, by its number. */
typedef struct { int64_t number, threads; } fk_thread;

@SHARES@
/* Wait until all threads of the run are here. */
static inline __attribute__((unused)) void fk_wait(const fk_thread *me)
{
  if (me->threads == 1) return;
#ifdef _OPENMP
#pragma omp barrier
#endif
}
"""

_RUN = """\
/* Run something on threads, of which there may be fewer than asked for. */
static void fk_run(int threads, void (*work)(const void *, void *), void *argument)
{
  const fk_thread alone = {0, 1};
#ifdef _OPENMP
  if (threads > 1) {
#pragma omp parallel num_threads(threads)
    {
      const fk_thread me = {omp_get_thread_num(), omp_get_num_threads()};
      work(&me, argument);
    }
    return;
  }
#endif
  (void)threads;
  work(&alone, argument);
}
"""


def openmp_code() -> str:
    """What functions that share loops call."""
    return _CODE.replace("@SHARES@", SHARES)


def openmp_functions() -> str:
    """The function that starts the threads of a run."""
    return _RUN
