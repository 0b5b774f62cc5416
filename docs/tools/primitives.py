"""The page of primitives: each with its loops before and after, as the compiler makes them.

    python -m docs.tools.primitives      writes docs/primitives.md

What a primitive does is in the docstring of its method of `Schedule`.  A test compares the page
with what would be written now.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from pathlib import Path

from codegen.loops.from_schedule import build_kernel, build_loops
from codegen.loops.simplify_in_context import simplify_in_context
from codegen.loops.traverse import show_loops
from farkas.kernels.source_text import parse
from poly.lower.launches import launches
from poly.schedule.loop_kinds import only_on_gpu
from poly.schedule.primitives import PRIMITIVES
from poly.schedule.schedule import Schedule

PAGE = Path(__file__).parents[1] / "primitives.md"

MATMUL = """\
def matmul(float32 A[64,64], float32 B[64,64]) -> (C) {
    mm: C[i,j] +=! A[i,k] * B[k,j]
}"""
UPDATE = """\
def update(float32 A[64,64], float32 B[64,64], float32 C[64,64]) -> (C) {
    mm: C[i,j] += A[i,k] * B[k,j]
}"""
SCALE = "def scale(float32 X[64,64]) -> (Y) { S: Y[i,j] = 2 * X[i,j] }"
OPEN = "def scale(float32 X[N]) -> (Y) { S: Y[i] = 2 * X[i] }"
TWO = """\
def two(float32 X[64]) -> (Y) {
    S: T[i] = 2 * X[i]
    U: Y[i] = T[i] + 1
}"""
NEXT = """\
def next(float32 X[64]) -> (Y) {
    S: T[i] = 2 * X[i]
    U: Y[i] = T[i] + T[i+1]
}"""
HEAT = """\
def heat(float32 A[T,N]) -> (A) {
    step: A[t+1,i] = A[t,i-1] + A[t,i] + A[t,i+1] where t in 0:T-1, i in 1:N-1
}"""
ROWS = "def rows(float32 X[64,1024]) -> (Y) { sum: Y[i] +=! X[i,k] }"
HALVES = """\
def halves(float16 A[64,64], float16 B[64,64], float32 C[64,64]) -> (C) {
    mm: C[i,j] += float32(A[i,k]) * float32(B[k,j])
}"""


@dataclass(frozen=True)
class Example:
    """A program, the steps that come first, the one that is shown, and those needed to see it."""

    program: str
    step: str
    before: str = ""
    after: str = ""


#: One for each primitive.
SHOWN = {
    "tile": Example(SCALE, "tile S: i, j by 16, 32"),
    "split": Example(OPEN, "split S: i by 16"),
    "interchange": Example(SCALE, "interchange S: i, j"),
    "reorder": Example(UPDATE, "reorder mm: k, i, j"),
    "fuse": Example(TWO, "fuse S, U: i"),
    "distribute": Example(TWO, "distribute S: i", "fuse S, U: i"),
    "sink": Example(MATMUL, "sink mm: k", "fuse mm_init, mm: i, j", "reorder mm: k, i, j"),
    "skew": Example(HEAT, "skew step: i, t by 1"),
    "shift": Example(NEXT, "shift U: i by 1", "", "fuse S, U: i"),
    "reverse": Example(SCALE, "reverse S: i"),
    "parallelize": Example(SCALE, "parallelize S: i"),
    "vectorize": Example(SCALE, "vectorize S: j by 16"),
    "unroll": Example(SCALE, "unroll S: j by 4"),
    "isolate": Example(OPEN, "isolate S: i_o", "split S: i by 16\nunroll S: i_i"),
    "promote": Example(UPDATE, "promote mm: j_o as B, local", "tile mm: j, k by 16, 16"),
    "map_blocks": Example(SCALE, "map_blocks S: i_o, j_o", "tile S: i, j by 8, 32"),
    "map_threads": Example(
        SCALE, "map_threads S: i_i, j_i", "tile S: i, j by 8, 32\nmap_blocks S: i_o, j_o"
    ),
    "reduce_threads": Example(
        ROWS, "reduce_threads sum: k_i",
        "map_blocks sum_init: i\nmap_blocks sum: i\nsplit sum: k by 32",
    ),
    "tensorize": Example(
        HALVES, "tensorize mm: i_i, j_i, k_i as wmma_f16",
        "tile mm: i, j, k by 16, 16, 16\nmap_blocks mm: i_o, j_o",
        "promote mm: j_o as C, fragment",
    ),
    "reschedule": Example(NEXT, "reschedule"),
}  # fmt: skip


def loops(schedule: Schedule) -> str:
    """The loops of a schedule; of one for a GPU, those of each kernel."""
    if not only_on_gpu(schedule.tree):
        return show_loops(simplify_in_context(build_loops(schedule).body, schedule.program))
    _, found = launches(schedule.tree, schedule.scop)
    texts = [show_loops(build_kernel(schedule, launch).body) for launch in found]
    return "\n".join(map(without_single_threads, texts))


def without_single_threads(text: str) -> str:
    """The loops of a kernel, but for those over one thread."""
    lines, dropped = [], 0
    for line in text.splitlines():
        if re.match(r" *for thread_. in 0:1  \[thread\]$", line):
            dropped += 2
        else:
            # Loops over threads stand outside of all others but those over blocks.
            lines.append(line[dropped:] if line.startswith(" " * dropped) else line)
    return "\n".join(lines)


def docstring(name: str) -> str:
    """What a primitive does, in Markdown."""
    text = inspect.getdoc(getattr(Schedule, name)) or ""
    text = text.replace("Raises\n------\nScheduleError : if", "A `ScheduleError` if")
    # Lines such as "scope: …" explain a parameter: a paragraph each.
    return re.sub(r"\n(?=`?\w+`?: )", "\n\n", text.replace("``", "`"))


def section(name: str) -> str:
    """A primitive: what it does, a program, and its loops before and after."""
    example = SHOWN[name]
    first = Schedule.of(parse(example.program))
    before = first.replay(example.before)
    after = before.replay(f"{example.step}\n{example.after}")
    steps = [f"{s}  # before" for s in example.before.splitlines()]
    steps += [example.step, *(f"{s}  # then" for s in example.after.splitlines())]
    parts = [
        f"## {name}", f"`{PRIMITIVES[name].example}`", docstring(name),
        f"```farkas\n{example.program}\n```", "```script\n" + "\n".join(steps) + "\n```",
        f"before:\n\n```text loops\n{loops(before)}\n```",
        f"after:\n\n```text loops\n{loops(after)}\n```",
    ]  # fmt: skip
    return "\n\n".join(parts)


HEAD = """\
# Primitives

The steps that a [schedule](schedules.md) is made of. Each is a method of `fk.Schedule` and a line
of a script, and each is checked: one that would break a dependence is
[refused](schedules.md#refusals).

The loops on this page are the output of the compiler. `S(i, j)` is one instance of statement `S`; a
loop runs from its lower bound up to, and not including, its upper one; its kind stands in brackets.
Steps marked `# before` lead to the loops before, and those marked `# then` show what the step is
good for.

<!-- made by docs/tools/primitives.py from docstrings and the compiler's output; a test compares -->
"""


def page() -> str:
    """docs/primitives.md as it should be."""
    return "\n\n".join([HEAD.rstrip(), *map(section, PRIMITIVES)]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
