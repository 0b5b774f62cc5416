"""Random programs with the automatic schedule for GPUs: right on every layer of checks.

    python -m tests.gpu.random_programs 0 100 --layer opencl --layer thread

The programs are those of `tests.differential.sweep`, as exact ones and otherwise.  They run in a
process of their own, so that one that crashes is named.  The layers:

``opencl``     the OpenCL text on the device that there is, PoCL's CPU at least
``forward``    the CUDA text on the CPU; ``backward``: the last thread goes first
``address``    the same under AddressSanitizer and the sanitizer of undefined behaviour
``thread``     the same under ThreadSanitizer
``oclgrind``   the OpenCL text in oclgrind
``machine``    the CUDA text to machine code, of which nothing is spilled
``card``       the CUDA text on a CUDA device; only if it is named

A sweep over all takes hours.  With ``--known FILE``, what was equal is written down, and kernels
that are as they were are not judged again.  The file says nothing of what runs them: remove it when
that has changed.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import re
import sys
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np

from codegen.gpu.emit import GpuSource
from codegen.pipeline import GPU
from frontends.language.parse_program import parse_program
from poly.errors import LanguageError
from poly.ir.program import Program
from poly.machine.gpu import ANY
from runtime.common.arguments import undetermined
from runtime.common.cache import Cache
from runtime.cuda.compile import compile_cubin
from runtime.find_device import find_device
from runtime.gpu.device import Device
from runtime.gpu.emulator import CpuDevice
from runtime.gpu.gpu_program import GpuProgram
from runtime.gpu.opencl import OpenClDevice
from runtime.reference.evaluate import run
from tests.differential.generate import random_text
from tests.differential.harness import SPECIAL, choose_sizes, difference, make_inputs
from tests.differential.magnitude import has_functions, is_smooth, tolerances
from tests.differential.sweep import profile_of
from tests.gpu.oclgrind import OclgrindDevice
from tests.gpu.sanitized import ChildDevice

#: Sizes of each program, and of those that run in a process of their own; seconds for a program;
#: programs that are compiled at once, and how often so for a process.
RUNS, FEWER_RUNS, LIMIT, AT_ONCE, SHARED = 3, 1, 1000, 10, 5
#: Functions of a device may be so much farther off than those of the reference.
FARTHER = 8
#: Layers that run something, and what of a device they need.
DIALECTS = {
    "opencl": "opencl",
    "forward": "cuda",
    "backward": "cuda",
    "address": "cuda",
    "thread": "cuda",
    "oclgrind": "opencl",
    "machine": "cuda",
    "card": "cuda",
}
NEEDS_CARD = "card"
ARCHITECTURES = ("sm_80", "sm_90")
#: Quotients of two 64-bit numbers are calls in machine code, around which ptxas may save one; and
#: CUDA's functions of angles have an array for large ones.
_CALLED = re.compile(r"fk_(div|floordiv|mod|fmod)_[iu]64\(|\b(sin|cos|tan|fmod)f?\(")


@dataclass(frozen=True)
class _Case:
    """What a layer is to look at: a program with a schedule, as `source`.

    kernels : what the layer sees of it
    """

    seed: int
    program: Program
    layer: str
    exact: bool
    schedule: str
    source: GpuSource
    kernels: tuple[str, ...]

    @property
    def key(self) -> str:
        """What stands for the case in a file of known ones."""
        what = (self.seed, self.exact, self.kernels, self.source.flags)
        return hashlib.sha256(repr(what).encode()).hexdigest()


def judge(seeds: Sequence[int], layers: Sequence[str], known: Path | None = None) -> list[str]:
    """Of each program a word for how it went, or what is wrong with it, in more words.

    What several programs have in one language is compiled at once, where a device runs it here.
    Cases in the file `known` are left out; those that are equal are added.
    """
    before = set(known.read_text().split()) if known and known.exists() else set()
    texts = {seed: random_text(seed, profile_of(seed)) for seed in seeds}
    said: dict[int, str] = {}
    at_once: dict[tuple[str, bool], list[_Case]] = defaultdict(list)
    for seed, text in texts.items():
        try:
            program = parse_program(text, {})
        except LanguageError:
            said[seed] = "refused"
            continue
        for case in _cases(seed, program, layers):
            if case.key not in before:
                at_once[case.layer, case.exact].append(case)
    with TemporaryDirectory() as folder:
        for (layer, _), cases in at_once.items():
            device = _device(layer, Path(folder))
            module = None
            if device is not None and not isinstance(device, (ChildDevice, OclgrindDevice)):
                module = device.build(*(c.source for c in cases))
            for c in cases:
                what = _fault(c, device, module) if c.seed not in said else ""
                if what:
                    mode = "exact" if c.exact else "default"
                    head = f"seed {c.seed}, {layer}, {mode} mode, {what}"
                    said[c.seed] = f"{head}\n{texts[c.seed]}\n{c.schedule}"
    if known:
        judged = (c.key for cases in at_once.values() for c in cases if c.seed not in said)
        with known.open("a") as file:
            file.write("".join(f"{key}\n" for key in judged))
    return [said.get(seed, "equal") for seed in seeds]


def _cases(seed: int, program: Program, layers: Sequence[str]) -> Iterator[_Case]:
    known: set[tuple[str, ...]] = set()
    for exact in (True, False):
        made = {}
        for dialect in dict.fromkeys(DIALECTS[layer] for layer in layers):
            made[dialect] = GPU[dialect].automatic(program, ANY, exact)
        for layer in layers:
            schedule, source = made[DIALECTS[layer]].schedule, made[DIALECTS[layer]].source
            kernels = _kernels(layer, source)
            if kernels not in known:  # from exact mode, which allows less
                known.add(kernels)
                yield _Case(seed, program, layer, exact, str(schedule), source, kernels)


def _kernels(layer: str, source: GpuSource) -> tuple[str, ...]:
    """What a layer looks at, without names and comments."""
    names = {k.symbol: f"kernel_{n}" for n, k in enumerate(source.kernels)}
    code = re.sub(r"/\*.*?\*/|//[^\n]*", "", source.text, flags=re.DOTALL)
    code = re.sub(r"\w+", lambda word: names.get(word[0], word[0]), code)
    flags = source.flags if layer == "machine" else ()
    return (layer, code, str(source.host), str([(k.grid, k.block) for k in source.kernels]), *flags)


def _fault(c: _Case, device: Device | None, module: Any) -> str:
    """What a layer finds wrong with a program, if anything."""
    if device is None:
        return _spills(c.source)
    call = GpuProgram(c.source, device, module)
    child = device if isinstance(device, (ChildDevice, OclgrindDevice)) else None
    sizes_of_runs: list[dict[str, int]] = [{}]
    if c.program.sizes:
        count = RUNS if child is None else FEWER_RUNS
        sizes_of_runs = choose_sizes(c.program, np.random.default_rng(c.seed), count)
    for n, sizes in enumerate(sizes_of_runs):
        what = _difference(c.program, call, sizes, 4 * c.seed + n, c.exact)
        if child is not None and child.reports:
            what = "; ".join(child.reports[:3])
            child.reports.clear()
        if what:
            return f"sizes {sizes}: {what}"
    return ""


def _device(layer: str, folder: Path) -> Device | None:
    """What runs a layer, None if nothing does."""
    if layer == "machine":
        return None
    if layer in ("address", "thread"):
        return ChildDevice(folder, layer)
    if layer == "oclgrind":
        return OclgrindDevice(folder)
    if layer in ("forward", "backward"):
        device = CpuDevice(folder / "kernels", backwards=layer == "backward")
        device.strict = True
        return device
    if layer == NEEDS_CARD:
        return find_device("cuda", Cache(folder))
    return _opencl()


@cache
def _opencl() -> Device:
    """Without a cache: PoCL compiles once more what is kept, for all sizes of a block."""
    return OpenClDevice("")


def _spills(source: GpuSource) -> str:
    """Kernels that keep something in local memory, or share more than is said."""
    if not source.kernels:
        return ""
    said = {k.symbol: k.shared_bytes for k in source.kernels}
    for arch in ARCHITECTURES:
        for symbol, r in compile_cubin(source.text, arch, flags=source.flags).kernels.items():
            local = r.spill_store_bytes or r.spill_load_bytes or r.stack_bytes
            if (local and not _CALLED.search(source.text)) or r.shared_bytes > said[symbol]:
                return f"{symbol} for {arch}: {r}"
    return ""


def _difference(program: Program, call, sizes, seed: int, exact: bool) -> str:  # type: ignore[no-untyped-def]
    """What differs from the reference; nothing if no bound is known."""
    inputs = make_inputs(program, sizes, seed)
    named = {n: sizes[n] for n in undetermined(program)}
    found = call(**{n: a.copy() for n, a in inputs.items()}, **named)
    bitwise = exact and not has_functions(program)
    if not bitwise and (seed % 4 == SPECIAL or not is_smooth(program)):
        return ""
    expected = run(program, inputs, sizes)
    results = found if isinstance(found, tuple) else (found,)
    allowed = None if bitwise else tolerances(program, inputs, sizes)
    for t, got in zip(program.outputs, results, strict=True):
        near = None if allowed is None else allowed[t.name] * FARTHER
        what = difference(t.name, got, expected.values[t.name], expected.written[t.name], near)
        if what:
            return what
    return ""


def judgements(
    seeds: range, layers: Sequence[str], known: Path | None = None
) -> Iterator[tuple[int, str]]:
    """What `judge` says of each seed, or how the process ended that ran it."""
    child = _Child(layers, known)
    try:
        for n, first in enumerate(seeds[::AT_ONCE], 1):
            some = seeds[first - seeds.start :][:AT_ONCE]
            said = child.ask(some)
            if any(word not in ("equal", "refused") for word in said):
                # What a wrong program leaves behind is no other one's.
                said = []
                for seed in some:
                    child = child.renewed()
                    said += child.ask([seed])
                child = child.renewed()
            elif n % SHARED == 0:
                child = child.renewed()
            yield from zip(some, said, strict=True)
    finally:
        child.end()


class _Child:
    """A process that judges programs, one after the other: drivers take long to begin."""

    def __init__(self, layers: Sequence[str], known: Path | None) -> None:
        self.layers, self.known = layers, known
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_answer, args=(theirs, layers, known), daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, seeds: Sequence[int]) -> list[str]:
        limit = LIMIT * len(seeds)
        try:
            self.pipe.send(seeds)
            if not self.pipe.poll(limit):
                return [f"seed {seed}: no answer in {limit} s" for seed in seeds]
            said: list[str] = self.pipe.recv()
            return said
        except (EOFError, ConnectionError):
            self.process.join()
            return [f"seed {s}: the process ended with {self.process.exitcode}" for s in seeds]

    def renewed(self) -> _Child:
        self.end()
        return _Child(self.layers, self.known)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _answer(pipe, layers: Sequence[str], known: Path | None) -> None:  # type: ignore[no-untyped-def]
    while True:
        seeds = pipe.recv()
        try:
            said = judge(seeds, layers, known)
        except Exception:
            said = [f"seed {seed}: {traceback.format_exc()[-2000:]}" for seed in seeds]
        pipe.send(said)


@click.command()
@click.argument("start", type=int)
@click.argument("end", type=int)
@click.option("--layer", "layers", type=click.Choice(list(DIALECTS)), multiple=True)
@click.option("--known", type=click.Path(dir_okay=False, path_type=Path))
def main(start: int, end: int, layers: tuple[str, ...], known: Path | None) -> None:
    """Programs START to END, all layers but ``card`` if none is named."""
    counts: Counter[str] = Counter()
    layers = layers or tuple(layer for layer in DIALECTS if layer != NEEDS_CARD)
    for _, said in judgements(range(start, end), layers, known):
        word = said if said in ("equal", "refused") else "wrong"
        counts[word] += 1
        if word == "wrong":
            print(said, flush=True)
    print(", ".join(f"{n} {word}" for word, n in sorted(counts.items())))
    sys.exit(1 if counts["wrong"] else 0)


if __name__ == "__main__":
    main()
