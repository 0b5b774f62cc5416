"""The C program that runs instructions on operands in guarded memory.

For each case and placement it puts the operands between pages that cannot be accessed, runs the
instruction, and writes all of them back.  It ends with a line that says what happened if a signal
or a sanitizer stops it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from codegen.c.instruction_text import c_type, call_text, definitions
from codegen.c.prelude import prelude_for
from codegen.c.type_names import C_TYPES
from poly.ir.intrinsics import VectorIntrinsic

#: Where operands lie, in the order in which they are tried.
PLACEMENTS = (
    "at the end of readable memory",
    "at the beginning of readable memory",
    "aligned to its elements only",
    "in local arrays",
)
#: The first word of the line that says in which operand's guard an access was.
BEYOND = "beyond"

_RUN = r"""
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define FK_PAGE 4096

typedef struct { size_t bytes, element; int written; const char *name; } fk_operand;
typedef struct { char *base; size_t room; } fk_region;
typedef struct { void (*call)(void *const *), (*local)(void *const *);
                 int count; const fk_operand *operands; } fk_entry;

static fk_region fk_regions[64];
static const fk_entry *fk_running;

const char *__asan_default_options(void);
const char *__asan_default_options(void)
{ return "detect_leaks=0:allow_user_segv_handler=1:handle_segv=0:handle_sigbus=0:handle_sigill=0:"
         "handle_sigfpe=0"; }

static void fk_say(const char *text)
{ if (write(2, text, strlen(text)) < 0) _exit(3); }

static void fk_trapped(int number, siginfo_t *info, void *context)
{
  (void)context;
  char *at = (char *)info->si_addr;
  if (number == SIGSEGV || number == SIGBUS)
    for (int t = 0; t < fk_running->count; t++) {
      fk_region r = fk_regions[t];
      if (at >= r.base - FK_PAGE && at < r.base + r.room + FK_PAGE) {
        fk_say("\nbeyond ");
        fk_say(fk_running->operands[t].name);
        fk_say(at < r.base ? " before\n" : at < r.base + r.room ? " inside\n" : " after\n");
      }
    }
  signal(number, SIG_DFL);
  raise(number);
}

static char *fk_place(const fk_operand *o, fk_region r, int placement)
{
  if (placement == 0) return r.base + r.room - o->bytes;
  if (placement == 1) return r.base;
  return r.base + 64 + o->element;
}

static void fk_run(const fk_entry *entry, FILE *given, int result, long cases)
{
  size_t all = 0, most = 0;
  for (int t = 0; t < entry->count; t++) all += entry->operands[t].bytes;
  char *in = malloc(all), *out = malloc(all + 1);
  if (!in || !out) _exit(4);
  for (int t = 0; t < entry->count; t++) {
    size_t room = (entry->operands[t].bytes + 72 + FK_PAGE - 1) / FK_PAGE * FK_PAGE;
    char *made = mmap(NULL, room + 2 * FK_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED || mprotect(made + FK_PAGE, room, PROT_READ | PROT_WRITE)) _exit(4);
    fk_regions[t] = (fk_region){made + FK_PAGE, room};
    if (room > most) most = room;
  }
  char *blank = malloc(most);
  if (!blank) _exit(4);
  memset(blank, 0xa5, most);
  for (long n = 0; n < cases; n++) {
    if (fread(in, 1, all, given) != all) _exit(4);
    for (int placement = 0; placement < 4; placement++) {
      void *at[64];
      size_t done = 0;
      for (int t = 0; t < entry->count; t++) {
        const fk_operand *o = entry->operands + t;
        memset(fk_regions[t].base, 0xa5, fk_regions[t].room);
        at[t] = fk_place(o, fk_regions[t], placement % 3);
        memcpy(at[t], in + done, o->bytes);
        done += o->bytes;
      }
      (placement == 3 ? entry->local : entry->call)(at);
      out[all] = 0;
      done = 0;
      for (int t = 0; t < entry->count; t++) {
        const fk_operand *o = entry->operands + t;
        memcpy(out + done, at[t], o->bytes);
        memset(at[t], 0xa5, o->bytes);
        if (memcmp(fk_regions[t].base, blank, fk_regions[t].room)) out[all] = (char)(t + 1);
        done += o->bytes;
      }
      if (write(result, out, all + 1) != (ssize_t)(all + 1)) _exit(4);
    }
  }
  free(blank);
  free(in);
  free(out);
}

int main(int count, char **words)
{
  if (count != 5) return 4;
  struct sigaction action = {0};
  action.sa_sigaction = fk_trapped;
  action.sa_flags = SA_SIGINFO;
  for (int n = 0; n < 4; n++) sigaction((int[]){SIGSEGV, SIGBUS, SIGILL, SIGFPE}[n], &action, NULL);
  fk_running = fk_entries + atoi(words[1]);
  FILE *given = fopen(words[3], "rb");
  int result = open(words[4], O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (!given || result < 0) return 4;
  fk_run(fk_running, given, result, atol(words[2]));
  return 0;
}
"""


def program_text(intrinsics: Sequence[VectorIntrinsic]) -> str:
    """A C program; its arguments are the number of an instruction, the number of cases, a file that
    has them, and one for the results.
    """
    before = definitions(intrinsics)
    calls: list[str] = []
    for n, i in enumerate(intrinsics):
        calls += _calls(i, n)
    rows = ", ".join(
        f"{{fk_call_{n}, fk_local_{n}, {len(i.meaning.tensors)}, fk_operands_{n}}}"
        for n, i in enumerate(intrinsics)
    )
    table = f"static const fk_entry fk_entries[] = {{{rows}}};"
    head, _, tail = _RUN.partition("static fk_region")
    code = "\n".join([*before, *calls])
    return "\n".join([prelude_for(code), head, code, table, f"static fk_region{tail}"])


def _calls(intrinsic: VectorIntrinsic, number: int) -> list[str]:
    """The functions that run an instruction on operands in memory, and on local arrays."""
    tensors = intrinsic.meaning.tensors
    passed = {t: f"({c_type(intrinsic, t)} *)operands[{n}]" for n, t in enumerate(tensors)}
    own = {t: f"&fk_own_{t}[0]" for t in tensors}
    counts = {t: prod(intrinsic.shape(t)) for t in tensors}
    elements = {t: C_TYPES[intrinsic.meaning.dtypes[t].name] for t in tensors}
    local: list[str] = []
    for n, t in enumerate(tensors):
        local += [
            f"  {elements[t]} fk_own_{t}[{counts[t]}];",
            f"  for (int n = 0; n < {counts[t]}; n++)",
            f"    fk_own_{t}[n] = (({elements[t]} *)operands[{n}])[n];",
        ]
    local.append(f"  {call_text(intrinsic, own)}")
    for n, t in enumerate(tensors):
        local += [
            f"  for (int n = 0; n < {counts[t]}; n++)",
            f"    (({elements[t]} *)operands[{n}])[n] = fk_own_{t}[n];",
        ]
    rows = ", ".join(
        f'{{{counts[t] * d.bytes}, {d.bytes}, {int(t == intrinsic.target)}, "{t}"}}'
        for t, d in ((t, intrinsic.meaning.dtypes[t]) for t in tensors)
    )
    head = "static __attribute__((noinline)) void"
    return [
        f"{head} fk_call_{number}(void *const *operands)",
        "{", f"  {call_text(intrinsic, passed)}", "}",
        f"{head} fk_local_{number}(void *const *operands)", "{", *local, "}",
        f"static const fk_operand fk_operands_{number}[] = {{{rows}}};",
    ]  # fmt: skip
