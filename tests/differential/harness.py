"""Compiling many generated programs at once, running them in a child process, and judging them.

Kernels of one batch share a library: starting the C compiler costs more than most of them.  They
run in a forked child, so that one that crashes is found and named instead of ending the test.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import re
import signal
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import numpy as np

from codegen.c.kernel_source import KernelSource
from codegen.c.kernel_unit import generate
from codegen.c.prelude import prelude_for
from codegen.c.thread_memory import NAME as THREAD_MEMORY
from poly.errors import ArgumentError, ToolchainError
from poly.ir.expr import evaluate_int
from poly.ir.program import Program
from poly.schedule.schedule import Schedule
from runtime.common.arguments import bind, shape_of, undetermined
from runtime.common.cache import Cache, Entry
from runtime.cpu.compile_c import compile_shared
from runtime.cpu.fast_call import quick_calls
from runtime.cpu.loaded_kernel import LoadedKernel
from runtime.cpu.openmp_pool import with_team
from runtime.cpu.toolchain import Toolchain
from runtime.reference.evaluate import Evaluation, run
from runtime.reference.interpret import instances
from tests.differential.magnitude import has_functions, is_smooth, tolerances

#: Extents that are tried: none, one, and around the widths of vectors and tiles.
INTERESTING = (0, 1, 2, 3, 4, 5, 7, 8, 9, 13, 15, 16, 17, 31, 32, 33, 48, 64, 65, 100)
#: The most iteration points, and elements of all tensors, of one run.
POINTS, ELEMENTS = 100_000, 400_000
GUARD = 256  # bytes of a canary on both sides of every output
#: How many styles of inputs there are, by the rest of a seed; the last has infinities, NaN and
#: denormal numbers.
STYLES = 4
SPECIAL = STYLES - 1
AUTO_INIT = ("-ftrivial-auto-var-init=pattern",)
#: Seconds that one run of a kernel, or the generation of one, may take.
LIMIT = 60


@dataclass(frozen=True)
class Variant:
    """One way to compile a program.

    label : a word for messages and for the symbol
    judge : ``equal``: the result equals the reference bit for bit; ``close``: within what
        another order of summation may do; ``any``: it only has to run
    """

    label: str
    schedule: Schedule
    source: KernelSource
    judge: str = "equal"


@dataclass(frozen=True)
class Case:
    """A program with its variants, and the sizes and seeds to run it with."""

    seed: int
    text: str
    program: Program
    variants: tuple[Variant, ...]
    runs: tuple[tuple[Mapping[str, int], int], ...]


@dataclass(frozen=True)
class Failure:
    """A result that differs, a crash, or a complaint of the C compiler."""

    seed: int
    text: str
    script: str
    exact: bool
    sizes: Mapping[str, int]
    data_seed: int
    what: str
    kind: str = "result"

    def __str__(self) -> str:
        at = ", ".join(f"{k}={v}" for k, v in self.sizes.items())
        return (
            f"seed {self.seed}, {'exact' if self.exact else 'default'} mode, sizes {at or 'none'}, "
            f"data seed {self.data_seed}: {self.what}\n{self.text}\n"
            f"schedule:\n{self.script or '(as written)'}"
        )


@dataclass
class Tally:
    """Counts over a sweep."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{n:>8} {what}" for what, n in sorted(self.counts.items())]
        lines += [f"slow: {s}" for s in self.slow[:20]]
        return "\n".join(lines)


# --- sizes and data --------------------------------------------------------------------------


def choose_sizes(program: Program, rng: np.random.Generator, count: int) -> list[dict[str, int]]:
    """Different sizes that the program accepts and that keep it small."""
    if not program.sizes:
        return [{}] if fits(program, {}) else []
    found: list[dict[str, int]] = []
    for attempt in range(40 * count):
        top = len(INTERESTING) - (attempt * len(INTERESTING)) // (60 * count)
        sizes = {s: int(rng.choice(INTERESTING[:top])) for s in program.sizes}
        if sizes not in found and fits(program, sizes):
            found.append(sizes)
            if len(found) == count:
                break
    return found


def few_instances(
    program: Program, rng: np.random.Generator, values: range, most: int
) -> dict[str, int] | None:
    """Sizes among `values` at which the program has at most so many instances, if found."""
    for _ in range(30):
        sizes = {name: int(rng.integers(values.start, values.stop)) for name in program.sizes}
        if fits(program, sizes) and len(instances(program, sizes)) <= most:
            return sizes
    return None


def fits(program: Program, sizes: Mapping[str, int]) -> bool:
    """Whether the sizes are allowed and the program small at them."""
    try:
        shapes = {t.name: shape_of(t, sizes) for t in program.inputs}
        binding = bind(program, shapes, sizes)
    except ArgumentError:
        return False
    if sum(int(np.prod(s)) for s in binding.shapes.values()) > ELEMENTS:
        return False
    for s in program.statements:
        points = 1
        for r in s.ranges:
            points *= max(0, evaluate_int(r.hi, sizes) - evaluate_int(r.lo, sizes))
        sequential = any(r.tensor == s.target.tensor for r in s.reads)
        if points > (POINTS // 100 if sequential else POINTS):
            return False
    return True


def make_inputs(
    program: Program, sizes: Mapping[str, int], seed: int
) -> dict[str, np.ndarray[Any, Any]]:
    """Inputs: floats between -1 and 1, or small whole ones, or with special values."""
    rng = np.random.default_rng(seed)
    style = seed % STYLES
    result = {}
    for t in program.inputs:
        shape, dtype = shape_of(t, sizes), t.dtype
        if dtype.kind == "b":
            result[t.name] = rng.integers(0, 2, shape).astype(bool)
        elif dtype.is_float:
            values = np.asarray(rng.uniform(-1, 1, shape))
            if style in (1, 2):
                values = rng.integers(-4, 5, shape).astype(np.float64)
            if style == SPECIAL:
                special = rng.choice([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e30, 1e-42], shape)
                values = np.where(rng.random(shape) < 0.1, special, values * 10)
            with np.errstate(all="ignore"):
                result[t.name] = values.astype(dtype.numpy)
        else:
            info = np.iinfo(dtype.numpy)
            small = rng.integers(0 if dtype.kind == "u" else -8, 9, shape).astype(dtype.numpy)
            wide = rng.integers(info.min, info.max, shape, dtype.numpy, endpoint=True)
            result[t.name] = np.asarray(
                np.where(rng.random(shape) < (0.1 if style else 0.5), wide, small)
            )
    return result


# --- building --------------------------------------------------------------------------------


def split_source(source: KernelSource) -> tuple[str, str]:
    """The comment at the head of a kernel, and its functions without the prelude."""
    name = re.escape(f"{source.symbol}_body")
    # The first of the functions that a long one calls, if there are any.
    first = re.search(rf"^static (__attribute__.*\n)?void {name}(_1)?\(", source.text, re.MULTILINE)
    assert first is not None
    start = first.start()
    memory = re.search(rf"^static _Thread_local .*{THREAD_MEMORY}.*\n", source.text, re.MULTILINE)
    code = (memory[0] if memory else "") + source.text[start:]
    # Each kernel of a batch has its own.
    code = code.replace(THREAD_MEMORY, f"{THREAD_MEMORY}_{source.symbol}")
    return source.text[: source.text.index("*/") + 2], code


def build(
    sources: Sequence[KernelSource], toolchain: Toolchain, folder: Path, level: str = "-O1"
) -> tuple[Path, dict[str, str]]:
    """One library for all sources (of one set of flags); returns it and complaints by symbol.

    Kernels that the compiler refuses are left out.
    """
    # What is read before it is written shall not be right by chance.
    pattern = () if toolchain.kind == "gcc" and toolchain.version < (12,) else AUTO_INIT
    flags = (*sources[0].flags, level, *pattern)
    out = folder / f"batch{time.monotonic_ns()}.so"
    code = "\n\n".join("\n".join(split_source(s)) for s in sources)
    complaints: dict[str, str] = {}
    try:
        warnings = compile_shared(
            toolchain, {"kernel.c": f"{prelude_for(code)}\n{code}"}, flags, out
        )
    except ToolchainError as error:
        warnings = str(error)
    if not warnings:
        return out, {}
    good = []
    for s in sources:  # who was it?
        try:
            found = compile_shared(toolchain, {"kernel.c": s.text}, flags, folder / "one.so")
            good.append(s)
        except ToolchainError as error:
            found = str(error)
        if found:
            complaints[s.symbol] = found
    assert complaints, f"the batch was refused, but no kernel alone: {warnings}"
    if good and not out.exists():
        again, _ = build(good, toolchain, folder, level)
        return again, complaints
    return out, complaints


def load(library: ctypes.CDLL, source: KernelSource, toolchain: Toolchain) -> LoadedKernel:
    function, plans = library[source.symbol], list[bytes]()
    function.argtypes = (ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)
    function.restype = None
    quick = quick_calls(plans, toolchain, Cache())
    return LoadedKernel(source, toolchain, cast(Entry, None), 1, function, quick, plans)


# --- running and judging -----------------------------------------------------------------------


def run_case(case: Case, kernels: Mapping[str, LoadedKernel]) -> Iterator[tuple[Variant, Failure]]:
    """Run every variant at every size, on one and two threads."""
    reported: set[str] = set()
    for sizes, seed in case.runs:
        inputs = make_inputs(case.program, sizes, seed)
        expected = run(case.program, inputs, sizes)
        allowed: dict[str, np.ndarray[Any, Any]] | None = None
        for v in case.variants:
            kernel = kernels.get(v.source.symbol)
            if kernel is None:
                continue
            if v.judge == "close" and seed % STYLES == SPECIAL:
                continue
            if v.judge == "close" and allowed is None:
                allowed = tolerances(case.program, inputs, sizes)
            judged = allowed if v.judge == "close" else None
            for threads in (1, 2):
                what = run_once(kernel, inputs, sizes, threads, expected, judged)
                if v.judge == "any" and "expected" in what:
                    what = ""
                if what and v.source.symbol not in reported:
                    reported.add(v.source.symbol)
                    yield v, Failure(
                        case.seed, case.text, str(v.schedule), v.schedule.exact, sizes, seed,
                        f"{v.label}, {threads} thread(s): {what}",
                    )  # fmt: skip
                    break


def run_once(
    kernel: LoadedKernel,
    inputs: Mapping[str, np.ndarray[Any, Any]],
    sizes: Mapping[str, int],
    threads: int,
    expected: Evaluation,
    allowed: Mapping[str, np.ndarray[Any, Any]] | None,
) -> str:
    """What is wrong with one call, "" if nothing."""
    program = kernel.program
    named = {n: sizes[n] for n in undetermined(program) if n in sizes}
    given = {n: a.copy() for n, a in inputs.items()}
    outs, frames = {}, {}
    for t in program.outputs:
        shape = shape_of(t, sizes)
        count = int(np.prod(shape)) * t.dtype.bytes
        frame = np.full(count + 2 * GUARD, 0xA5, np.uint8)
        frames[t.name] = frame
        outs[t.name] = frame[GUARD : GUARD + count].view(t.dtype.numpy).reshape(shape)
    # Workspace is not cleared; NaN there shows elements that are read before they are written.
    need = 64 + sum(
        64 + t.dtype.bytes * int(np.prod(shape_of(t, sizes))) for t in kernel.source.workspace
    )
    kernel._spare[:] = [(need, np.full(need, 0xFF, np.uint8))]
    got = kernel(*(given[t.name] for t in program.inputs), out=outs, threads=threads, **named)
    results = got if isinstance(got, tuple) else (got,)
    for name, frame in frames.items():
        if (frame[:GUARD] != 0xA5).any() or (frame[len(frame) - GUARD :] != 0xA5).any():
            return f"{name} was written outside of its array"
    for name, array in given.items():
        if array.tobytes() != inputs[name].tobytes():
            return f"the input {name} was changed"
    for t, array in zip(program.outputs, results, strict=True):
        want, written = expected.values[t.name], expected.written[t.name]
        if t.name in program.updated:
            written = np.ones_like(written)
        problem = difference(t.name, array, want, written, allowed and allowed[t.name])
        if problem:
            return problem
    return ""


def difference(
    name: str,
    got: np.ndarray[Any, Any],
    want: np.ndarray[Any, Any],
    written: np.ndarray[Any, Any],
    allowed: np.ndarray[Any, Any] | None,
) -> str:
    """The first element that differs by more than is allowed, in words."""
    same = (got == want) | ((got != got) & (want != want)) | ~written
    if allowed is not None and not same.all():
        with np.errstate(all="ignore"):
            gap = np.abs(got.astype(np.float64) - want.astype(np.float64))
            same |= (gap <= allowed) | ~np.isfinite(allowed)
    if same.all():
        return ""
    at = tuple(int(i) for i in np.argwhere(~same)[0])
    return (
        f"{name}{list(at)} is {got[at]!r}, expected {want[at]!r}; "
        f"{int((~same).sum())} of {same.size} differ"
    )


def run_in_child(work: Callable[[Connection], None]) -> Iterator[Any]:
    """What `work` sends from a forked child; then how it ended, if badly, as an int."""
    ours, theirs = (context := multiprocessing.get_context("fork")).Pipe(duplex=False)
    child = context.Process(target=_child, args=(work, theirs))
    child.start()
    theirs.close()
    try:
        while True:
            try:
                yield ours.recv()
            except EOFError:
                break
    finally:
        child.join(5)
        if child.is_alive():
            child.kill()
            child.join()
    if child.exitcode:
        yield child.exitcode


def _child(work: Callable[[Connection], None], pipe: Connection) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    os.environ["OMP_WAIT_POLICY"] = "passive"  # read when the first kernel is loaded
    # libgomp's threads do not survive a fork.
    threading.Thread(target=work, args=(pipe,)).start()  # and the process ends with it


def run_batch(
    cases: Sequence[Case], toolchain: Toolchain, tally: Tally, level: str = "-O1"
) -> None:
    """Compile and run some cases; failures and counts go to the tally."""
    with tempfile.TemporaryDirectory(prefix="farkas-batch-") as name:
        libraries: list[tuple[Path, list[KernelSource]]] = []
        for flags in sorted({v.source.flags for c in cases for v in c.variants}):
            chosen = (v.source for c in cases for v in c.variants if v.source.flags == flags)
            sources = {source.symbol: source for source in chosen}
            made, ours = [*sources.values()], with_team(toolchain, Cache())
            path, complaints = build(made, ours, Path(name), level)
            libraries.append((path, made))
            for c in cases:
                for v in c.variants:
                    if v.source.symbol in complaints:
                        tally.failures.append(Failure(
                            c.seed, c.text, str(v.schedule), v.schedule.exact, {}, 0,
                            complaints[v.source.symbol], "compiler",
                        ))  # fmt: skip
        _run_cases(cases, libraries, toolchain, tally)


def _run_cases(
    cases: Sequence[Case],
    libraries: list[tuple[Path, list[KernelSource]]],
    toolchain: Toolchain,
    tally: Tally,
) -> None:
    def work(pipe: Connection) -> None:
        kernels: dict[str, LoadedKernel] = {}
        for path, sources in libraries:
            library = ctypes.CDLL(str(path))
            for s in sources:
                if hasattr(library, s.symbol):
                    kernels[s.symbol] = load(library, s, toolchain)
        for position, case in enumerate(cases):
            pipe.send(("start", position))
            signal.alarm(LIMIT)
            try:
                for _, failure in run_case(case, kernels):
                    pipe.send(("failure", failure))
            except Exception:
                pipe.send(("failure", Failure(
                    case.seed, case.text, "", True, {}, 0, traceback.format_exc(), "exception",
                )))  # fmt: skip
            signal.alarm(0)
        pipe.send(("end", len(cases)))

    position, ended = 0, False
    for message in run_in_child(work):
        if isinstance(message, int):
            if not ended:
                case = cases[position]
                _crashed(case, libraries, toolchain, tally, message)
                if position + 1 < len(cases):
                    _run_cases(cases[position + 1 :], libraries, toolchain, tally)
            return
        what, value = message
        if what == "start":
            position = value
        elif what == "end":
            ended = True
        else:
            tally.failures.append(value)
    assert ended, f"the child stopped at case {position}"


def _crashed(
    case: Case,
    libraries: list[tuple[Path, list[KernelSource]]],
    toolchain: Toolchain,
    tally: Tally,
    code: int,
) -> None:
    """Find the variant that ended the child."""
    if len(case.variants) > 1:
        for v in case.variants:
            _run_cases([replace(case, variants=(v,))], libraries, toolchain, tally)
        return
    if len(case.runs) > 1:
        for r in case.runs:
            _run_cases([replace(case, runs=(r,))], libraries, toolchain, tally)
        return
    v, (sizes, seed) = case.variants[0], case.runs[0]
    how = "took too long" if code == -signal.SIGALRM else f"ended the process with {code}"
    tally.failures.append(Failure(
        case.seed, case.text, str(v.schedule), v.schedule.exact, sizes, seed,
        f"{v.label}: {how}", "crash",
    ))  # fmt: skip


# --- one program at a time -----------------------------------------------------------------


def make_variant(
    schedule: Schedule,
    label: str,
    number: int,
    judge: str = "equal",
    contract: bool = True,
    written: Program | None = None,
) -> Variant:
    """Generate the C of a schedule under a symbol of its own; `written` as in `generate`."""
    mode = "e" if schedule.exact else "d"
    source = generate(schedule, f"k{number}_{label}_{mode}", written)
    if not contract:
        source = replace(source, flags=("-ffp-contract=off",))
    return Variant(label, schedule, source, judge)


def default_variant(
    schedule: Schedule, label: str, number: int, *, written: Program | None = None
) -> Variant:
    """A schedule in default mode, judged as strictly as its program allows.

    Where an error bound does not apply, fused multiply-adds are forbidden; then everything is
    equal to the bit unless a reduction of floats was reordered.
    """
    program = schedule.program
    if not any(t.dtype.is_float for t in program.tensors.values()):
        return make_variant(schedule, label, number, written=written)
    if is_smooth(program):
        return make_variant(schedule, label, number, "close", written=written)
    sums = any(
        s.op in ("+=", "*=") and program.tensors[s.target.tensor].dtype.is_float
        for s in program.statements
    )
    judge = "any" if (sums and schedule.steps) or has_functions(program) else "equal"
    return make_variant(schedule, label, number, judge, contract=False, written=written)
