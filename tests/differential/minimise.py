"""A failure as a smaller program with a shorter script that fails in the same way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from farkas.targets.compile_program import schedule_for
from farkas.targets.find_target import text_target
from frontends.language.parse_program import parse_program
from poly.errors import FarkasError
from poly.ir.expr import Cast, Const, Expr, Op, Read, reads_of
from poly.ir.program import Program, Statement
from runtime.cpu.toolchain import Toolchain
from tests.differential.harness import (
    Case,
    Failure,
    Tally,
    choose_sizes,
    default_variant,
    make_variant,
    run_batch,
)
from tests.differential.magnitude import has_functions


def holds(failure: Failure, toolchain: Toolchain) -> bool:
    """Whether a failure is still there when it is tried alone."""
    program = parse_program(failure.text, {})
    schedule = schedule_for(program, failure.script, failure.exact, text_target())
    make = make_variant if failure.exact and not has_functions(program) else default_variant
    variant = make(schedule, "alone", 0, written=program)
    runs: list[tuple[Mapping[str, int], int]]
    if set(failure.sizes) == set(program.sizes) and failure.kind != "compiler":
        runs = [(failure.sizes, failure.data_seed)]
    else:
        rng = np.random.default_rng(failure.data_seed)
        runs = [(s, failure.data_seed) for s in choose_sizes(program, rng, 3)]
    case = Case(failure.seed, failure.text, program, (variant,), tuple(runs))
    tally = Tally()
    for level in ("-O1", "-O2"):
        if not tally.failures:
            run_batch([case], toolchain, tally, level)
    return bool(tally.failures)


def minimise(failure: Failure, toolchain: Toolchain, attempts: int = 150) -> Failure:
    """A smaller program and script that still fail, by leaving parts out."""
    tried = 0

    def still(candidate: Failure) -> bool:
        nonlocal tried
        tried += 1
        if tried > attempts:
            return False
        try:
            return holds(candidate, toolchain)
        except FarkasError:
            return False

    try:
        if not holds(failure, toolchain):
            return failure
    except FarkasError:
        return failure
    best, progress = failure, True
    while progress and tried <= attempts:
        progress = False
        for candidate in _smaller(best):
            if still(candidate):
                best, progress = candidate, True
                break
    return best


def _smaller(failure: Failure) -> Iterator[Failure]:
    steps = failure.script.splitlines()
    for n in reversed(range(len(steps))):
        yield replace(failure, script="\n".join(steps[:n] + steps[n + 1 :]))
    try:
        program = parse_program(failure.text, {})
    except FarkasError:
        return
    for smaller in smaller_programs(program):
        if len(smaller) < len(failure.text):
            yield replace(failure, text=smaller)
    for name, value in failure.sizes.items():
        for less in sorted({0, 1, value // 2, value - 1}):
            if 0 <= less < value:
                yield replace(failure, sizes={**failure.sizes, name: less})


def smaller_programs(program: Program) -> Iterator[str]:
    """Programs with a statement, a guard, or part of an expression left out, as text."""
    for n in range(len(program.statements)):
        kept = program.statements[:n] + program.statements[n + 1 :]
        named = [replace(s, name=f"S{k}") for k, s in enumerate(kept)]
        yield from _as_text(program, named)
    for n, s in enumerate(program.statements):
        for g in range(len(s.guards)):
            yield from _with(program, n, replace(s, guards=s.guards[:g] + s.guards[g + 1 :]))
        for part in _smaller_values(s.value):
            yield from _with(program, n, replace(s, value=part))


def _with(program: Program, n: int, statement: Statement) -> Iterator[str]:
    changed = list(program.statements)
    changed[n] = statement
    yield from _as_text(program, changed)


def _as_text(program: Program, statements: Sequence[Statement]) -> Iterator[str]:
    used = {r.tensor for s in statements for r in (s.target, *s.reads)}
    written = {s.target.tensor for s in statements}
    outputs = tuple(t for t in program.outputs if t.name in written)
    temps = tuple(t for t in program.temps if t.name in written)
    if not outputs and temps:  # the last temporary becomes the output
        outputs, temps = temps[-1:], temps[:-1]
    if outputs:
        yield str(replace(
            program, outputs=outputs, temps=temps, statements=tuple(statements),
            inputs=tuple(t for t in program.inputs if t.name in used),
        ))  # fmt: skip


def _smaller_values(e: Expr) -> Iterator[Expr]:
    if isinstance(e, Op):
        yield from e.args
        for n, a in enumerate(e.args):
            for part in _smaller_values(a):
                yield Op(e.fn, (*e.args[:n], part, *e.args[n + 1 :]))
    elif isinstance(e, Cast):
        yield e.arg
        for part in _smaller_values(e.arg):
            yield Cast(e.dtype, part)
    elif isinstance(e, Read):
        for n, a in enumerate(e.indices):
            if reads_of(a) or isinstance(a, Op):
                yield Read(e.tensor, (*e.indices[:n], Const(0), *e.indices[n + 1 :]))
