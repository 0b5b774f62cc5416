"""How threads share loops, as C: the text that stands above kernels that do.

All threads of a team come by the same loops in the same order.  A loop's iterations are cut into
pieces, and an equal share of them is set apart for each thread; who is through with its own takes
pieces from the ends of the others'.  A loop is over when its pieces are done, not when everybody
has come: nobody waits for a thread in whose place the system runs something else, and which comes
later, finds nothing to do and goes on.

Shares need not be made ready by anyone: each is one word with the number of the loop that it
belongs to, and the first to come to a new loop writes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cgen

#: Pieces a thread: more are better balanced, fewer cost less.
PIECES = 8
#: Times to look whether a loop is over before sleeping, each some hundredths of a microsecond.
SPINS = 1 << 12

#: The parameter by which a function that shares loops knows its team.
PARAMETER = "fk_team *team"

TEXT = f"""\
#include <time.h>
#if defined(_OPENMP)
#include <omp.h>
#endif
typedef struct {{ _Alignas(64) uint64_t word; }} fk_line;
/* A thread's view of its team.
   lines: how many pieces are done, of all loops; then of each thread, where its share of the
   latest loop begins and ends, with the number of that loop
   due: how many pieces there are, of all loops up to this one; loop: the number of this one */
typedef struct {{ fk_line *lines; uint64_t due; uint32_t loop; int32_t id, count; }} fk_team;
/* A loop, and the piece of it that is to be done next; from: whose share that is of. */
typedef struct {{ int64_t total, pieces, done, first, last; int32_t from; }} fk_share;
static inline fk_team fk_join(fk_line *lines)
{{
#if defined(_OPENMP)
  return (fk_team){{lines, 0, 0, omp_get_thread_num(), omp_get_num_threads()}};
#else
  return (fk_team){{lines, 0, 0, 0, 1}};
#endif
}}
static inline fk_share fk_begin(fk_team *team, int64_t total)
{{
  int64_t pieces = team->count > 1 ? {PIECES} * (int64_t)team->count : 1;
  if (pieces > total) pieces = total > 0 ? total : 0;
  team->loop++, team->due += (uint64_t)pieces;
  return (fk_share){{total, pieces, 0, 0, 0, team->id}};
}}
/* Whether one of the pieces left could be taken. */
static inline int fk_take(fk_team *team, fk_share *share)
{{
  for (int32_t k = 0; k < team->count; k++) {{
    uint64_t *word = &team->lines[1 + share->from].word;
    uint64_t old = __atomic_load_n(word, __ATOMIC_RELAXED);
    for (;;) {{
      int32_t ahead = (int32_t)((uint32_t)(old >> 32) - team->loop);
      if (ahead > 0) return 0;  /* this loop is over */
      int64_t first = old >> 16 & 0xffff, last = old & 0xffff;
      if (ahead < 0) {{
        first = share->pieces * share->from / team->count;
        last = share->pieces * (share->from + 1) / team->count;
      }}
      if (first >= last) break;
      int64_t piece = share->from == team->id ? first++ : --last;
      uint64_t left = (uint64_t)team->loop << 32 | (uint64_t)first << 16 | (uint64_t)last;
      if (__atomic_compare_exchange_n(word, &old, left, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {{
        share->first = share->total * piece / share->pieces;
        share->last = share->total * (piece + 1) / share->pieces;
        return 1;
      }}
    }}
    if (++share->from == team->count) share->from = 0;
  }}
  return 0;
}}
/* The next piece; if there is none, the end of the loop. */
static __attribute__((noinline, unused)) int fk_next(fk_team *team, fk_share *share)
{{
  if (team->count == 1) {{
    share->last = share->total;
    return share->done++ < share->pieces;
  }}
  if (fk_take(team, share)) return share->done++, 1;
  uint64_t *done = &team->lines[0].word;
  if (share->done) __atomic_fetch_add(done, (uint64_t)share->done, __ATOMIC_RELEASE);
  for (int spins = 0; __atomic_load_n(done, __ATOMIC_ACQUIRE) < team->due; spins++) {{
    if (spins >= {SPINS}) {{
      struct timespec moment = {{0, 20000}};
      nanosleep(&moment, 0);
    }}
#if defined(__x86_64__) || defined(__i386__)
    else __builtin_ia32_pause();
#endif
  }}
  return 0;
}}
"""


@dataclass(frozen=True)
class Range:
    """One of the loops to share, as C: its variable, first value, number of values, and step."""

    var: str
    lower: str
    count: str
    step: int

    def at(self, number: str) -> str:
        """The value of the variable in iteration `number`, an operand of a product."""
        offset = number if self.step == 1 else f"{number} * {self.step}"
        return offset if self.lower == "0" else f"{self.lower} + {offset}"


def shared_loops(loops: Sequence[Range], body: cgen.Generable) -> cgen.Generable:
    """A rectangular nest whose iterations the threads of `team` share."""
    head = (f"fk_share share = fk_begin(team, {_product(loops)})", "fk_next(team, &share)", "")
    if len(loops) == 1:
        (r,) = loops
        step = f"{r.var}++" if r.step == 1 else f"{r.var} += {r.step}"
        first, last = r.at("share.first"), r.at("share.last")
        inner = cgen.For(f"int64_t {r.var} = {first}", f"{r.var} < {last}", step, body)
        return cgen.For(*head, cgen.Block([inner]))
    lines = []
    for k, r in enumerate(loops):
        number = "piece" if k + 1 == len(loops) else f"piece / ({_product(loops[k + 1 :])})"
        if k:
            number = f"{number} % {r.count}"
        lines.append(cgen.Line(f"const int64_t {r.var} = {r.at(f'({number})')};"))
    each = ("int64_t piece = share.first", "piece < share.last", "piece++")
    contents = body.contents if isinstance(body, cgen.Block) else [body]
    return cgen.For(*head, cgen.Block([cgen.For(*each, cgen.Block([*lines, *contents]))]))


def _product(loops: Sequence[Range]) -> str:
    return " * ".join(r.count for r in loops)


def once(statement: cgen.Generable) -> cgen.Generable:
    """What one thread of `team` does, while the others wait for it."""
    head = ("fk_share share = fk_begin(team, 1)", "fk_next(team, &share)", "")
    return cgen.For(*head, statement)


def on_team(calls: Sequence[str]) -> list[str]:
    """Lines of an entry point: what every thread of a new team does, which knows it as `team`.

    One thread alone makes no region: that costs more than a small kernel.
    """
    return [
        "  if (threads > 1) {",
        "    fk_line lines[1 + threads];",
        "    memset(lines, 0, sizeof lines);",
        "    #pragma omp parallel num_threads(threads)",
        "    {",
        "      fk_team own = fk_join(lines), *team = &own;",
        *(f"      {call}" for call in calls),
        "    }",
        "  } else {",
        "    fk_team own = {0, 0, 0, 0, 1}, *team = &own;",
        *(f"    {call}" for call in calls),
        "  }",
    ]
