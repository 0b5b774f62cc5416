"""What is recorded: suite K, the light models, random programs, and programs for GPUs.

Everything is made for one fixed machine, so that the records do not depend on the host, and no
compiler runs: a case takes what its schedules and texts take.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from onnx import ModelProto

from benchmarks.kernel import Kernel
from benchmarks.kernels import suite_k
from codegen.gpu.emit import generate_gpu
from codegen.pipeline import CPU, CUDA, GPU
from farkas.kernels.source_text import parse, read_text
from frontends.language.parse_program import parse_program
from frontends.onnx import import_model
from frontends.onnx.model.light_models import light_models, load_light
from poly.errors import LanguageError
from poly.ir.graph import Graph
from poly.ir.program import Program
from poly.machine.gpu import ANY, NAMED
from poly.schedule.schedule import Schedule
from runtime.common.cache import Cache
from runtime.cpu.shared_library import LIBRARY
from runtime.cpu.toolchain import Toolchain
from runtime.network.build_cpu import build_graph
from runtime.network.clock import Clock
from runtime.network.generate_kernels import kernel_workers
from runtime.reference.evaluate import evaluate
from tests.differential.generate import random_text
from tests.differential.sweep import profile_of
from tests.goldens.record import Record
from tests.gpu.programs import CASES
from tests.machines import AVX512

#: Random programs that are recorded, and how many of them are one test.
PROGRAMS, TOGETHER = 300, 50

#: Programs that tensor cores take, for an A100 and an H100.
TENSOR_CORES = {
    "product": """def f(float16 A[M,K], float16 B[K,N]) -> (float32 C[M,N]) {
        C[i,j] +=! A[i,k] * B[k,j] }""",
    "bias": """def f(float16 A[64,64], float16 B[64,128], float16 b[128]) -> (Y) {
        C[i,j] +=! A[i,k] * B[k,j]
        Y[i,j] = max(C[i,j] + b[j], 0) }""",
    "convolution": """def f(bfloat16 X[1,16,30,30], bfloat16 W[32,16,3,3])
    -> (float32 Y[1,32,28,28]) {
        Y[n,k,p,q] +=! X[n,c,p+r,q+s] * W[k,c,r,s] }""",
}

Make = Callable[[], Mapping[str, Record]]


def groups() -> dict[str, Make]:
    """The groups of cases by name; each has a file of records, and is made by itself."""
    found: dict[str, Make] = {}
    for family in dict.fromkeys(k.family for k in suite_k()):
        found[f"kernels_{family}"] = partial(_kernels, family)
    for name in light_models():
        found[f"light_{name}"] = partial(_light, name)
    for first in range(0, PROGRAMS, TOGETHER):
        found[f"programs_{first}"] = partial(_programs, range(first, first + TOGETHER))
    found["gpu"] = _gpu
    return found


# --- kernels and networks ------------------------------------------------------------------


def _kernels(family: str) -> dict[str, Record]:
    return {k.name: _kernel(k) for k in suite_k() if k.family == family}


def _kernel(kernel: Kernel) -> Record:
    """A kernel of suite K, as the benchmark compiles it."""
    if not kernel.native:
        return _network(kernel.model(kernel.draw()))
    assert kernel.text is not None
    text = read_text(kernel.text.text)
    dtypes = None if text.kind == "definition" else "float32"
    return _program(parse(text.text, dtypes, sizes=kernel.text.sizes), exact=False)


def _light(name: str) -> dict[str, Record]:
    path, _, _ = load_light(name)
    return {name: _network(path)}


def _network(source: Path | ModelProto) -> Record:
    graph = CPU.optimise(import_model(source), AVX512, evaluate)
    return _built(graph)


class _Texts:
    """Stands for `runtime.cpu.compile_c.Compilation`: keeps the texts and compiles none."""

    def __init__(self, toolchain: Toolchain, flags: object, out: Path) -> None:
        self.sources: dict[str, str] = {}
        self._out = out

    def __enter__(self) -> _Texts:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def add(self, name: str, text: str) -> None:
        self.sources[name] = text

    def finish(self) -> str:
        self._out.write_bytes(b"")
        return ""


def _built(graph: Graph) -> Record:
    """The schedules and texts of a graph."""
    toolchain = Toolchain("cc", "gcc", (), "", (), "")
    with (
        TemporaryDirectory() as folder,
        patch("runtime.network.build_cpu.Compilation", _Texts),
        patch("runtime.network.kernel_units.LINES_OF_UNIT", 0),  # a file for each kernel
    ):
        built = build_graph(
            graph, AVX512, toolchain, Cache(folder), _quiet, Clock(), kernel_workers(0)
        )
        names = [n for n in built.entry.files if n not in (LIBRARY, "meta.json")]
        texts = {n: built.entry.read(n).decode() for n in names}
        schedules = json.loads(built.entry.read("meta.json"))["schedules"]
    return Record({n: (text, schedules.get(Path(n).stem, "")) for n, text in texts.items()})


def _quiet(stage: str, done: int, total: int, what: str) -> None:
    pass


# --- programs ------------------------------------------------------------------------------


def _programs(seeds: range) -> dict[str, Record]:
    """Random programs of the differential tests, as exact ones and otherwise."""
    return {f"{seed}": _random(seed) for seed in seeds}


def _random(seed: int) -> Record:
    try:
        program = parse_program(random_text(seed, profile_of(seed)), {})
    except LanguageError as error:
        return Record({"refused": (str(error), "")})
    return _program(program, exact=True) | _program(program, exact=False)


def _program(program: Program, exact: bool) -> Record:
    found = CPU.automatic(program, AVX512, exact)
    name = "exact.c" if exact else "default.c"
    return Record({name: (found.source.text, str(found.schedule))})


# --- GPUs ----------------------------------------------------------------------------------


def _gpu() -> dict[str, Record]:
    return {name: Record(dict(texts)) for name, texts in _gpu_texts()}


def _gpu_texts() -> Iterator[tuple[str, list[tuple[str, tuple[str, str]]]]]:
    """The programs of the tests under their schedules and under the automatic ones."""
    for name, case in CASES.items():
        schedule = Schedule.of(parse_program(case.text, {})).replay(case.script)
        yield (
            name,
            [
                (dialect, (generate_gpu(schedule, dialect).text, ""))
                for dialect in ("cuda", "opencl")
            ],
        )
    for text in dict.fromkeys(c.text for c in CASES.values()):
        program = parse_program(text, {})
        yield f"{program.name}, automatic", list(_automatic_on_gpu(program))
    for name, text in TENSOR_CORES.items():
        program = parse_program(text, {})
        made = []
        for arch, machine in NAMED.items():
            found = CUDA.automatic(program, machine)
            made.append((f"cuda for {arch}", (found.source.text, str(found.schedule))))
        yield f"tensor cores, {name}", made


def _automatic_on_gpu(program: Program) -> Iterator[tuple[str, tuple[str, str]]]:
    for dialect, pipeline in GPU.items():
        found = pipeline.automatic(program, ANY)
        yield dialect, (found.source.text, str(found.schedule))
