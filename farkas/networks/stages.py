"""`Stages`: a network whose shapes are determined when it runs.

Inputs with dynamic dimensions, operators whose result shapes depend on data, and operators that
need elements before they can be compiled (such as the target shape of a Reshape) all delay a
network's compilation.  It is compiled when arrays arrive, stage by stage, and the result is kept
for later arrays of the same shapes.  Stages are made in `frontends.onnx.core.stages`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from farkas.networks.executable import Executable, Parts, check_prepared
from farkas.networks.network import Origin
from farkas.networks.network_cache import VariantStore
from farkas.networks.variants import KEPT, StagesRecord, Start, Variant, following
from frontends.onnx import Given, OpaqueCall, Stage
from poly.errors import ArgumentError, CapacityError, UndecidedError
from poly.ir.expr import Const
from poly.ir.graph import Graph
from poly.ir.port import Port
from poly.ir.program import Tensor
from poly.ir.size_values import by_name
from runtime.common.arguments import check_input, check_names, check_spans, is_plain
from runtime.common.compile_report import CompileReport
from runtime.network.cpu_model import CpuModel
from runtime.network.profile import Timing

if TYPE_CHECKING:
    from farkas.targets.base import Runner
    from frontends.onnx import Source
    from runtime.network.compiled_graph import CompiledGraph

Array = np.ndarray
_LOG = logging.getLogger("farkas")


class Stages(Executable):
    """A network, compiled for the shapes that arrive.

    Concurrent calls from several threads take turns.
    """

    def __init__(
        self,
        origin: Origin,
        start: Start,
        inputs: tuple[Port, ...],
        outputs: tuple[Port, ...],
        *,
        source: Source | None = None,
        keeper: VariantStore | None = None,
    ) -> None:
        """
        start : where the network begins, with what is already compiled; source : the model, read
        when it is needed if None; keeper : stores what is compiled
        """
        self._origin, self._start, self._opened, self._keeper = origin, start, source, keeper
        self.inputs, self.outputs = inputs, outputs
        self.threads = self._runner.threads
        self._types = {p.name: p.dtype.numpy for p in inputs}
        #: Shapes of inputs that were checked.
        self._sound: set[tuple[tuple[int, ...], ...]] = set()
        #: The graph that was the whole network in the latest run.
        self._latest: CompiledGraph | None = None
        self._lock = threading.RLock()
        self._reports: list[CompileReport] = []

    @classmethod
    def of(
        cls,
        origin: Origin,
        source: Source,
        *,
        keeper: VariantStore | None = None,
        first: Stage | None = None,
    ) -> Stages:
        """A network of which nothing is compiled; its first stage is, if all sizes are fixed."""
        ports = source.input_ports(origin.shapes)
        start = Start(None, {p.name: p.axes for p in ports}, {})
        made = cls(origin, start, ports, source.output_ports, source=source, keeper=keeper)
        if first is not None:
            assert all(p.shape is not None for p in ports), "all dimensions are fixed"
            values = {p.name: _stand_in(p.dtype.numpy, p.shape) for p in ports}
            if not first.demands & values.keys():
                made._add(start, values, first)
        return made

    def __repr__(self) -> str:
        return f"<Stages: {len([*self._start.walk()])} compiled>"

    @property
    def _runner(self) -> Runner:
        return self._origin.target.runner

    @property
    def report(self) -> CompileReport:
        """What compiling has taken and produced so far, all variants together."""
        stages: dict[str, float] = {}
        for report in self._reports:
            for name, seconds in report.stages:
                stages[name] = stages.get(name, 0.0) + seconds
        parts = self._reports
        return CompileReport(
            tuple(stages.items()),
            sum(r.kernels for r in parts),
            sum(r.calls for r in parts),
            sum(r.arena_bytes for r in parts),
            sum(r.arena_bound for r in parts),
            sum(r.constant_bytes for r in parts),
            all(r.from_cache for r in parts),
            tuple((_conditions(v), _seconds(v)) for v in self._start.walk() if v.is_loaded),
        )

    @property
    def conditions(self) -> tuple[str, ...]:
        """For each compiled stage, the conditions on sizes under which it is used again."""
        return tuple(map(_conditions, self._start.walk()))

    @property
    def opaque_operators(self) -> tuple[str, ...]:
        """The operators run as numpy so far, each once."""
        return tuple(
            dict.fromkeys(call.operator for v in self._start.walk() for call in v.stage.opaque)
        )

    @property
    def compiled(self) -> tuple[CompiledGraph, ...]:
        with self._lock:
            loaded = [v for v in self._start.walk() if self._load(v)]
        return tuple(v.model for v in loaded if v.model is not None)

    def parts(self) -> Parts:
        with self._lock:
            loaded = {v: v.model for v in self._start.walk() if self._load(v)}
            kept = [v for v in self._start.kept() if loaded.get(v) is not None]
            names = {v: f"{n}" for n, v in enumerate(kept)}
            record = StagesRecord(self._start.bare(names.get), self.inputs, self.outputs)
            bodies = [b for v in loaded for own in v.bodies for b in own]
        models = {names[v]: m for v in kept if (m := loaded[v]) is not None}
        again = [m for v, m in loaded.items() if v not in names and m is not None]
        for own in (body.parts() for body in bodies):
            again += [*own.models.values(), *own.others]
        return Parts(record, models, tuple(again), self.opened_again)

    # --- running --------------------------------------------------------------------------------

    def run(
        self,
        inputs: Mapping[str, Any],
        threads: int | None = None,
        *,
        out: Mapping[str, Any] | None = None,
        stream: Any = None,
    ) -> dict[str, Any]:
        runner = self._runner
        runner.check_call(threads, stream)
        inputs, out = by_name("inputs", inputs), by_name("outputs", out)
        given = {n: a for n, a in out.items() if a is not None}
        check_names("output", given, [p.name for p in self.outputs])
        there = runner.held(inputs)
        # Arrays on a device are used without a copy if one stage is the whole network and already
        # compiled for their shapes; else they are copied to the host, like values between stages.
        ready = self._ready(inputs) if there else None
        if ready is not None:
            return ready.run(inputs, threads, out=given, stream=stream)
        values = self._checked(runner.on_host(inputs, stream))
        if given:
            check_spans((), runner.spans(inputs, stream), runner.spans(given, stream))
        with self._lock:
            first = self._variant(self._start, values)
            if first.stage.is_whole and first.model is not None:
                wanted = {n: values[n] for n in first.model.input_names}
                results = first.model.run(wanted, threads, out=given, stream=stream)
                # What it has run once is valid for it, unless elements of inputs decide.
                self._latest = None if self._start.demanded else first.model
            else:
                results = self._through(first, values, threads)
                tensors = {n: _output_tensor(n, results[n]) for n in given}
                results |= runner.fill(given, results, tensors, stream)
        if inputs and len(there) == len(inputs):
            results |= runner.sent({n: a for n, a in results.items() if n not in given}, stream)
        return results

    def run_again(
        self, inputs: Mapping[str, Any], threads: Any = None, out: Mapping[str, Any] | None = None
    ) -> dict[str, Any] | None:
        latest = self._latest
        return None if latest is None else latest.run_again(inputs, threads, out)

    def _ready(self, inputs: Mapping[str, Any]) -> CompiledGraph | None:
        """The compiled graph for arrays of these shapes, if it is the whole network."""
        if self._start.demanded or inputs.keys() != self._types.keys():
            return None
        values = {}
        for name, value in inputs.items():
            found = self._runner.describe(name, value)
            if found is None:
                return None
            values[name] = _stand_in(*found)
        with self._lock:
            variant = self._start.find(values)
        return variant.model if variant is not None and variant.stage.is_whole else None

    def _through(
        self, first: Variant, values: dict[str, Array], threads: int | None
    ) -> dict[str, Array]:
        """The outputs, stage after stage, from the inputs."""
        variant, fixed = first, self._start.fixed
        taken = {id(array) for array in (*values.values(), *fixed.values())}
        values |= fixed
        self._run_stage(variant, values, threads)
        while variant.next is not None:
            start = variant.next
            taken |= {id(a) for a in (*start.fixed.values(), *variant.stage.known.values())}
            values |= start.fixed
            variant = self._variant(start, values)
            self._run_stage(variant, values, threads)
        taken |= {id(array) for array in variant.stage.known.values()}
        results: dict[str, Array] = {}
        for port in self.outputs:
            array = values[port.name]
            # A returned array must not be referenced elsewhere, here or by the caller.
            is_own = id(array) not in taken and getattr(array, "base", None) is None
            results[port.name] = array if is_own else array.copy()
            taken.add(id(array))
        return results

    def prepare(self, shapes: Mapping[str, Sequence[int] | int]) -> None:
        found = check_prepared(self.inputs, shapes)
        values = {n: _stand_in(self._types[n], shape) for n, shape in found.items()}
        with self._lock:
            if not self._start.demanded:
                self._next(self._start, values)

    def profile(self, inputs: Mapping[str, Any], repeat: int = 5) -> tuple[Timing, ...]:
        values = self._checked(self._runner.on_host(by_name("inputs", inputs)))
        start: Start | None = self._start
        found: list[Timing] = []
        with self._lock:
            while start is not None:
                values |= start.fixed
                variant = self._variant(start, values)
                if variant.model is not None:
                    given = {n: values[n] for n in variant.model.input_names}
                    found += variant.model.profile(given, repeat)
                self._run_stage(variant, values, self._runner.one_thread)
                start = variant.next
        return tuple(found)

    def _run_stage(self, variant: Variant, values: dict[str, Array], threads: int | None) -> None:
        stage = variant.stage
        if variant.model is not None:
            wanted = {n: values[n] for n in variant.model.input_names}
            results = variant.model.run(wanted, threads)
            values |= {n: results[s] for n, s in stage.results.items() if s in results}
        values |= {n: values[s] for n, s in stage.results.items() if s in values and n != s}
        values |= stage.known
        for call, bodies in zip(stage.opaque, variant.bodies, strict=True):
            _call(call, bodies, values, threads)

    # --- compiling ------------------------------------------------------------------------------

    @property
    def _source(self) -> Source:
        """The model, opened when something must be compiled of it."""
        if self._opened is None:
            assert self._keeper is not None
            self._opened = self._keeper.open()
        return self._opened

    def opened_again(self) -> Source:
        """The model, read again.  Raises `ModelError` if its files have changed."""
        return self._origin.open() if self._keeper is None else self._keeper.open()

    def _variant(self, start: Start, values: Mapping[str, Array]) -> Variant:
        """The compiled stage for these values."""
        while True:
            found = self._next(start, values)
            if found is not None:
                return found

    def _next(self, start: Start, values: Mapping[str, Array]) -> Variant | None:
        """The compiled stage for these values; None if elements of more of them, which are now
        among those that `start` demands, decide which one it is."""
        for found in iter(lambda: start.find(values), None):
            if self._load(found):
                return found
            start.drop(found)
        begin = time.perf_counter()
        stage = self._imported(start, start.given(values))
        self._took("import", begin)
        more = stage.demands & start.reads.keys() - start.demanded
        if more:
            start.demanded |= more  # elements that are already known
            return None
        self._announce(start, values)
        return self._add(start, values, stage)

    def _announce(self, start: Start, values: Mapping[str, Array]) -> None:
        """Say that something must be compiled for values, and why."""
        shapes = ", ".join(f"{n}{[*np.shape(values[n])]}" for n in start.reads)
        there = "; ".join(map(_conditions, start.variants))
        _LOG.info("compiling for %s; compiled before: %s", shapes, there or "nothing")
        if self._origin.progress is not None:
            self._origin.progress("import", 1, 1, f"for {shapes}")

    def _load(self, variant: Variant) -> bool:
        """Load a variant from the cache if needed; False if it is not there any more."""
        if variant.is_loaded:
            return True
        assert self._keeper is not None and variant.stored is not None
        variant.model = self._keeper.load(variant.stored)
        if variant.model is not None:
            self._reports.append(variant.model.report)
        return variant.model is not None

    def _imported(self, start: Start, given: Mapping[str, Given]) -> Stage:
        # Networks of the cache run without the importer.
        from frontends.onnx import import_stage

        return import_stage(self._source, given, start.nodes, self._runner.routines)

    def _add(self, start: Start, values: Mapping[str, Array], stage: Stage) -> Variant:
        """Compile a stage, and keep it.

        Raises
        ------
        ModelError : files beside the model, which are read for each stage, have changed.
        """
        self._origin.check_files()
        model = None
        if stage.graph is not None:
            try:
                model = self._compiled(stage.graph)
            except (UndecidedError, CapacityError):
                if not stage.graph.sizes:
                    raise
                # isl exceeded its budget on the open sizes; fixed ones are easier.
                given = {n: g.closed() for n, g in start.given(values).items()}
                stage = self._imported(start, given)
                assert stage.graph is not None
                model = self._compiled(stage.graph)
            self._reports.append(model.report)
        bodies = tuple(tuple(self._body(proto) for proto in call.bodies) for call in stage.opaque)
        known = {n: values[n].copy() for n in start.demanded}
        after = following(start, stage)
        # Nothing needs the graph again; its constants are the model's, which are aligned.
        made = Variant(replace(stage, graph=None), known, model, after, bodies)
        start.variants.insert(0, made)
        if len(start.variants) > KEPT:
            start.recent.clear()
            del start.variants[KEPT:]
        self._store(made)
        return made

    def _store(self, made: Variant) -> None:
        """Put a new variant, and the network as it is now, into the cache."""
        if self._keeper is None:
            return
        if isinstance(made.model, CpuModel):
            made.stored = self._keeper.store(made.model)
        if made.is_stored:
            self._keeper.record(StagesRecord(self._start.bare(), self.inputs, self.outputs))

    def _compiled(self, graph: Graph) -> CompiledGraph:
        return self._runner.compile(graph, self._origin.progress)

    def _body(self, proto: Any) -> Stages:
        origin = replace(self._origin, model=proto, shapes={}, progress=None, outputs=(), passed=())
        return Stages.of(origin, origin.open())

    def _took(self, stage: str, begin: float) -> None:
        took = time.perf_counter() - begin
        self._reports.append(CompileReport(((stage, took),), 0, 0, 0, 0, 0, True))

    # --- arguments ------------------------------------------------------------------------------

    def _checked(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """The inputs as arrays that match the model's declarations."""
        known = self._as_before(inputs)
        if known is not None:
            return known
        check_names("input", inputs, [p.name for p in self.inputs])
        values: dict[str, Array] = {}
        sizes: dict[str, int] = {}
        for port in self.inputs:
            if port.name not in inputs:
                raise ArgumentError(f"input {port} is missing")
            rank = np.ndim(inputs[port.name])
            shape = tuple(Const(0) for _ in range(rank))
            array = check_input(Tensor(port.name, port.dtype, shape), inputs[port.name])
            port.check(array.shape, sizes)
            values[port.name] = array
        if len(self._sound) >= KEPT:
            self._sound.clear()
        self._sound.add(tuple(a.shape for a in values.values()))
        return values

    def _as_before(self, inputs: Mapping[str, Any]) -> dict[str, Array] | None:
        """The inputs if they are plain arrays whose shapes were checked before, else None."""
        values: dict[str, Any] = {n: inputs.get(n) for n in self._types}
        if len(inputs) != len(values):
            return None
        shapes = []
        for array, dtype in zip(values.values(), self._types.values(), strict=True):
            if not is_plain(array, dtype):
                return None
            shapes.append(array.shape)
        return values if tuple(shapes) in self._sound else None


def _conditions(variant: Variant) -> str:
    """The conditions on sizes under which a variant is used again."""
    return ", ".join(map(str, variant.stage.conditions)) or "fixed sizes"


def _seconds(variant: Variant) -> float:
    """What compiling or loading a variant took."""
    return sum(s for _, s in variant.model.report.stages) if variant.model is not None else 0.0


def _stand_in(dtype: np.dtype[Any], shape: Any) -> Array:
    """An array of which only type and shape are used, and which takes no memory."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def _call(
    call: OpaqueCall,
    bodies: Sequence[Executable],
    values: dict[str, Array],
    threads: int | None,
) -> None:
    """Run an opaque operator on values, and add its results."""
    arrays = [values[n] if n else None for n in call.inputs]

    def runner(body: Executable) -> Any:
        def run(given: Mapping[str, Array]) -> list[Array]:
            results = body.run_again(given, threads)
            return [*(body.run(given, threads) if results is None else results).values()]

        return run

    results = call(arrays, [runner(b) for b in bodies])
    for name, array in zip(call.outputs, results, strict=False):
        if name:
            tensor = isinstance(array, (np.ndarray, np.generic))
            values[name] = np.ascontiguousarray(array).reshape(array.shape) if tensor else array


def _output_tensor(name: str, made: Any) -> Tensor:
    """The declaration of an array for a result.  Raises `ArgumentError` if it is not an array."""
    dtype = Given.of(made).dtype
    if dtype.kind == "o":
        raise ArgumentError(f"{name} is a {dtype} and needs no array")
    return Tensor(name, dtype, tuple(map(Const, made.shape)))
