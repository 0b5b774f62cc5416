"""Random programs on a device, with the automatic schedule for GPUs, against the reference.

    python -m tests.gpu.random_programs 0 100

Each runs in a process of its own, so that one that crashes is named.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from collections import Counter
from collections.abc import Iterator

import numpy as np

from farkas.targets import target_of
from frontends.language import parse_program
from poly.errors import LanguageError
from poly.program import Program
from runtime.arguments import undetermined
from runtime.reference import run
from tests.differential.generate import random_text
from tests.differential.harness import SPECIAL, choose_sizes, difference, make_inputs
from tests.differential.magnitude import has_functions, is_smooth, tolerances
from tests.differential.sweep import profile_of

#: Sizes of each program, and seconds that it may take.
RUNS, LIMIT = 3, 120
#: Functions of a device may be so much farther off than those of the reference.
FARTHER = 8


def judge(seed: int, device: str) -> str:
    """A word for how a program went, or what is wrong with it, in more words."""
    text = random_text(seed, profile_of(seed))
    try:
        program = parse_program(text, {})
    except LanguageError:
        return "refused"
    target = target_of(None, None, None, device)
    rng = np.random.default_rng(seed)
    for exact in (True, False):
        schedule, source = target.automatic(program, exact)
        call = target.load(source)
        sizes_of_runs = choose_sizes(program, rng, RUNS) if program.sizes else [{}]
        for n, sizes in enumerate(sizes_of_runs):
            what = _difference(program, call, sizes, 4 * seed + n, exact)
            if what:
                mode = "exact" if exact else "default"
                return f"seed {seed}, {mode} mode, sizes {sizes}: {what}\n{text}\n{schedule}"
    return "equal"


def _difference(program: Program, call, sizes, seed: int, exact: bool) -> str:  # type: ignore[no-untyped-def]
    """What differs from the reference; nothing if no bound is known."""
    bitwise = exact and not has_functions(program)
    if not bitwise and (seed % 4 == SPECIAL or not is_smooth(program)):
        return ""
    inputs = make_inputs(program, sizes, seed)
    expected = run(program, inputs, sizes)
    named = {n: sizes[n] for n in undetermined(program)}
    found = call(**{n: a.copy() for n, a in inputs.items()}, **named)
    results = found if isinstance(found, tuple) else (found,)
    allowed = None if bitwise else tolerances(program, inputs, sizes)
    for t, got in zip(program.outputs, results, strict=True):
        near = None if allowed is None else allowed[t.name] * FARTHER
        what = difference(t.name, got, expected.values[t.name], expected.written[t.name], near)
        if what:
            return what
    return ""


def judgements(seeds: range, device: str) -> Iterator[tuple[int, str]]:
    """What `judge` says of each seed, or how its process ended."""
    context = multiprocessing.get_context("fork")
    for seed in seeds:
        ours, theirs = context.Pipe(duplex=False)
        child = context.Process(target=_send, args=(theirs, seed, device))
        child.start()
        theirs.close()
        try:
            said = ours.recv() if ours.poll(LIMIT) else f"seed {seed}: no answer in {LIMIT} s"
        except EOFError:
            child.join()
            said = f"seed {seed}: the process ended with {child.exitcode}"
        child.kill()
        child.join()
        yield seed, said


def _send(pipe, seed: int, device: str) -> None:  # type: ignore[no-untyped-def]
    try:
        pipe.send(judge(seed, device))
    except BaseException:
        pipe.send(f"seed {seed}: {traceback.format_exc()[-2000:]}")
    os._exit(0)


def main() -> int:
    start, end = map(int, sys.argv[1:3])
    device = sys.argv[3] if len(sys.argv) > 3 else "opencl"
    counts: Counter[str] = Counter()
    for _, said in judgements(range(start, end), device):
        word = said if said in ("equal", "refused") else "wrong"
        counts[word] += 1
        if word == "wrong":
            print(said, flush=True)
    print(", ".join(f"{n} {word}" for word, n in sorted(counts.items())))
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
