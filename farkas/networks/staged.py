"""`StagedModel`: a network whose shapes are found when it runs.

Inputs with dynamic dimensions, operators whose results have shapes that depend on data, and
operators that need elements before they can be compiled (the shape that a Reshape asks for) all
make a model wait.  It is compiled when arrays come, stage by stage (`frontends.onnx.core.stages`),
and what was compiled is kept for the next arrays of the same shapes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from farkas.networks.base import Network, Origin
from frontends.onnx import Given, OpaqueCall, OpenPort, Pending, Source, Stage, import_stage
from poly.errors import ArgumentError, CapacityError, UndecidedError
from poly.ir.expr import Const, Expr, Size, evaluate_int
from poly.ir.graph import Graph
from poly.ir.program import Tensor
from poly.ir.size_values import by_name
from runtime.common.arguments import (
    Span,
    check_input,
    check_names,
    check_output,
    check_spans,
    is_plain,
    span_of,
)
from runtime.common.compile_report import CompileReport
from runtime.network.profile import Timing, check_repeat

if TYPE_CHECKING:
    from farkas.views.page import View
    from runtime.network.cpu_model import Model
    from runtime.network.cpu_open_model import OpenModel
    from runtime.network.gpu_model import GpuModel

    #: What runs a stage.
    Runnable = Model | OpenModel | GpuModel

Array = np.ndarray
#: For each axis of a value, the name of its size, None where that is fixed.
Open = tuple[str | None, ...]

#: Compiled variants that are kept for each place at which an import starts.
KEPT = 64
#: Bytes of an array up to which its elements are looked up, and not compared.
SMALL = 1 << 10


@dataclass(eq=False)
class _Start:
    """A place in the model at which an import starts, and what was compiled from there.

    pending : the nodes that are left, None for all; reads : the values that may be used, with
    names for those axes whose sizes may differ (None: any of them); fixed : elements of values
    that are always the same here; demanded : names of values whose elements have to be known
    """

    pending: tuple[Pending, ...] | None
    reads: Mapping[str, Open | None]
    fixed: Mapping[str, Array]
    demanded: set[str] = field(default_factory=set)
    variants: list[_Variant] = field(default_factory=list)
    recent: dict[tuple[object, ...], _Variant] = field(default_factory=dict)

    def find(self, values: Mapping[str, Array]) -> _Variant | None:
        """A variant that is valid for these values."""
        key = self._key(values)
        found = None if key is None else self.recent.get(key)
        if found is not None:
            return found
        for position, variant in enumerate(self.variants):
            if variant.fits(values):
                self.variants.insert(0, self.variants.pop(position))
                if len(self.recent) >= KEPT:
                    self.recent.clear()
                if key is not None:
                    self.recent[key] = variant
                return variant
        return None

    def _key(self, values: Mapping[str, Array]) -> tuple[object, ...] | None:
        """What decides which variant is valid (types are fixed), None if that is a lot."""
        shapes = [np.shape(values[n]) for n in self.reads]
        if not self.demanded:
            return tuple(shapes)
        known = [values[n] for n in self.demanded]
        if any(a.dtype.hasobject or a.nbytes > SMALL for a in known):
            return None
        return (*shapes, *(a.tobytes() for a in known))

    def given(self, values: Mapping[str, Array]) -> dict[str, Given]:
        """The values as an import takes them."""
        given = {}
        for name, axes in self.reads.items():
            array = values[name]
            found = Given.of(array, name in self.demanded)
            if found.array is None:
                every = tuple(f"{name}.{a}" for a in range(len(found.shape)))
                found = replace(found, open=every if axes is None else axes)
            given[name] = found
        return given | {n: Given.of(a, known=True) for n, a in self.fixed.items()}


@dataclass(eq=False)
class _Variant:
    """One compiled stage, and where the next one starts.

    known : elements for which alone the stage is valid
    """

    stage: Stage
    known: Mapping[str, Array]
    model: Runnable | None
    next: _Start | None
    bodies: tuple[tuple[StagedModel, ...], ...]

    def fits(self, values: Mapping[str, Array]) -> bool:
        """Whether the stage is valid for values."""
        sizes: dict[str, int] = {}
        for name, (dtype, shape) in self.stage.inputs.items():
            found = Given.of(values[name])
            if found.dtype != dtype or len(found.shape) != len(shape):
                return False
            for extent, size in zip(shape, found.shape, strict=True):
                if isinstance(extent, int):
                    if extent != size:
                        return False
                elif sizes.setdefault(extent, size) != size:
                    return False
        if not all(evaluate_int(c, sizes) for c in self.stage.conditions):
            return False
        return all(
            a.shape == values[n].shape and a.tobytes() == values[n].tobytes()
            for n, a in self.known.items()
        )


class StagedModel(Network):
    """A function of named arrays, compiled for the shapes that come.

    Attributes: `inputs` and `outputs` (their types as far as the model tells), `threads`.
    Calls from several threads take turns.
    """

    def __init__(
        self,
        origin: Origin,
        source: Source,
        ports: Sequence[OpenPort],
        first: Stage | None = None,
    ) -> None:
        self.origin, self._source = origin, source
        self.inputs: tuple[OpenPort, ...] = tuple(ports)
        self.outputs = source.output_ports
        self.threads = origin.target.runner.threads
        self._start = _Start(None, {p.name: p.axes for p in ports}, {})
        self._types = {p.name: p.dtype.numpy for p in ports}
        #: The shapes of inputs that were found to fit.
        self._sound: set[tuple[tuple[int, ...], ...]] = set()
        self._lock = threading.RLock()
        self._reports: list[CompileReport] = []
        if first is not None:
            values = {p.name: _stand_in(p) for p in ports}
            if not first.demands & values.keys():
                self._add(self._start, values, first)

    def __repr__(self) -> str:
        return f"<StagedModel of {len(self._source.nodes)} nodes>"

    @property
    def report(self) -> CompileReport:
        """What compiling took and made so far, all variants together."""
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
        )

    @property
    def conditions(self) -> tuple[str, ...]:
        """For each stage that was compiled, what has to hold of sizes for it to be used again."""
        return tuple(
            ", ".join(map(str, v.stage.conditions)) or "fixed sizes" for v in self._variants()
        )

    @property
    def opaque_operators(self) -> tuple[str, ...]:
        """The operators that ran as numpy so far, each once."""
        return tuple(
            dict.fromkeys(call.operator for v in self._variants() for call in v.stage.opaque)
        )

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """The graph of each stage that was compiled so far."""
        return tuple(v.model.graph for v in self._variants() if v.model is not None)

    def explain(self, run: bool = True) -> View:
        """What was fused and what was not, for the stages compiled so far, without times.

        Bytes and times depend on sizes: ``model.specialize(batch=1).explain()`` has them.
        """
        from farkas.views.explain import explain_graphs

        return explain_graphs(self.graphs, self.origin.target.pipeline.lanes)

    def _variants(self) -> list[_Variant]:
        """Everything that was compiled, from the first stage on."""
        found: list[_Variant] = []
        starts: list[_Start | None] = [self._start]
        while starts:
            start = starts.pop()
            if start is not None:
                found += start.variants
                starts += [v.next for v in start.variants]
        return found

    def run(
        self,
        inputs: Mapping[str, Any],
        threads: int | None = None,
        *,
        out: Mapping[str, Array] | None = None,
    ) -> dict[str, Array]:
        """Run the model: arrays by input name in, arrays by output name out.

        Shapes that are new are compiled first.

        Raises
        ------
        ArgumentError : an input is missing, unknown, or does not fit what the model says; an array
            of `out` is not what the output needs, or shares memory with another one.
        ModelError : the model cannot be run on arrays of these shapes.
        UnsupportedModelError : nodes that cannot be compiled for these shapes.
        """
        self.origin.target.runner.check_threads(threads)
        out = by_name("outputs", out)
        check_names("output", out, [p.name for p in self.outputs])
        values = self._checked(by_name("inputs", inputs))
        given = dict(values)
        if out:
            check_spans((), spans_of(values), spans_of(out))
        start: _Start | None = self._start
        with self._lock:
            while start is not None:
                values |= start.fixed
                variant = self._variant(start, values)
                self._run_stage(variant, values, threads)
                start = variant.next
        if variant.stage.is_whole:
            results = {p.name: values[p.name] for p in self.outputs}
        else:
            results = {}
            for port in self.outputs:
                array = values[port.name]
                # Nobody else may hold what is given away.
                shared = any(array is other for other in (*given.values(), *results.values()))
                is_own = not shared and getattr(array, "base", None) is None
                results[port.name] = array if is_own else array.copy()
        return results if not out else _handed_out(results, out)

    def profile(self, inputs: Mapping[str, Any], repeat: int = 5) -> tuple[Timing, ...]:
        """Median seconds of each compiled call, stage after stage, with one thread.

        Opaque operators are run, and not measured.
        """
        check_repeat(repeat)
        values = self._checked(by_name("inputs", inputs))
        start: _Start | None = self._start
        found: list[Timing] = []
        with self._lock:
            while start is not None:
                values |= start.fixed
                variant = self._variant(start, values)
                if variant.model is not None:
                    given = {n: values[n] for n in variant.model.input_names}
                    found += variant.model.profile(given, repeat)
                self._run_stage(variant, values, self.origin.target.runner.one_thread)
                start = variant.next
        return tuple(found)

    def _run_stage(self, variant: _Variant, values: dict[str, Array], threads: int | None) -> None:
        stage = variant.stage
        if variant.model is not None:
            wanted = {n: values[n] for n in variant.model.input_names}
            results = variant.model.run(wanted, threads)
            if stage.is_whole:
                values |= results
                return
            values |= {n: results[s] for n, s in stage.results.items() if s in results}
        values |= {n: values[s] for n, s in stage.results.items() if s in values and n != s}
        values |= stage.known
        for call, bodies in zip(stage.opaque, variant.bodies, strict=True):
            _call(call, bodies, values, threads)

    # --- compiling ---

    def _variant(self, start: _Start, values: Mapping[str, Array]) -> _Variant:
        """The compiled stage for these values."""
        while True:
            found = start.find(values)
            if found is not None:
                return found
            begin = time.perf_counter()
            stage = import_stage(self._source, start.given(values), start.pending)
            self._took("import", begin)
            more = stage.demands & start.reads.keys() - start.demanded
            if not more:
                return self._add(start, values, stage)
            start.demanded |= more  # elements that are there already

    def _add(self, start: _Start, values: Mapping[str, Array], stage: Stage) -> _Variant:
        """Compile a stage, and keep it."""
        model = None
        if stage.graph is not None:
            try:
                model = self._compiled(stage.graph)
            except (UndecidedError, CapacityError):
                if not stage.graph.sizes:
                    raise
                # isl gave up on the open sizes; fixed ones are easier.
                given = {n: g.closed() for n, g in start.given(values).items()}
                stage = import_stage(self._source, given, start.pending)
                assert stage.graph is not None
                model = self._compiled(stage.graph)
            self._reports.append(model.report)
        bodies = tuple(tuple(self._body(proto) for proto in call.bodies) for call in stage.opaque)
        known = {n: values[n].copy() for n in start.demanded}
        made = _Variant(stage, known, model, _following(start, stage), bodies)
        start.variants.insert(0, made)
        if len(start.variants) > KEPT:
            start.recent.clear()
            del start.variants[KEPT:]
        return made

    def _compiled(self, graph: Graph) -> Runnable:
        model: Runnable = self.origin.target.runner.compile(graph, self.origin.progress)
        return model

    def _body(self, proto: Any) -> StagedModel:
        origin = replace(self.origin, model=proto, shapes={}, progress=None, outputs=())
        source = origin.open()
        return StagedModel(origin, source, source.input_ports({}))

    def _took(self, stage: str, begin: float) -> None:
        took = time.perf_counter() - begin
        self._reports.append(CompileReport(((stage, took),), 0, 0, 0, 0, 0, True))

    # --- arguments ---

    def _checked(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """The inputs as arrays that fit what the model says."""
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
        """The inputs if they are plain arrays whose shapes were found to fit before, else None."""
        values: dict[str, Any] = {n: inputs.get(n) for n in self._types}
        if len(inputs) != len(values):
            return None
        shapes = []
        for array, dtype in zip(values.values(), self._types.values(), strict=True):
            if not is_plain(array, dtype):
                return None
            shapes.append(array.shape)
        return values if tuple(shapes) in self._sound else None


def _following(start: _Start, stage: Stage) -> _Start | None:
    """Where the import goes on after a stage, None if it was the last one."""
    if stage.is_last:
        return None
    axes: dict[str, Open | None] = dict(start.reads)
    graph = stage.graph
    shapes = {graph.label(n): graph.values[n].shape for n in graph.outputs} if graph else {}
    for name, source in stage.results.items():
        if source in shapes:
            axes[name] = tuple(
                None if isinstance(e, Const) else _origin(stage, e) or f"{name}.{a}"
                for a, e in enumerate(shapes[source])
            )
        else:
            axes[name] = axes.get(source)
    axes |= {n: None for call in stage.opaque for n in call.outputs if n}
    known = {**start.fixed, **stage.known}
    reads = {n: a for n, a in sorted(axes.items()) if n in stage.needs and n not in known}
    fixed = {n: a for n, a in known.items() if n in stage.needs}
    return _Start(stage.rest, reads, fixed, set(stage.demands) & reads.keys())


def _origin(stage: Stage, extent: Expr) -> str | None:
    """The name of the open axis of which an extent is the size."""
    return stage.sizes.get(extent.name) if isinstance(extent, Size) else None


def _stand_in(port: OpenPort) -> Array:
    """An array of the shape of a port, all of whose dimensions are fixed, without memory."""
    assert port.shape is not None
    shape = tuple(e for e in port.shape if isinstance(e, int))
    return np.broadcast_to(np.zeros((), port.dtype.numpy), shape)


def _call(
    call: OpaqueCall,
    bodies: Sequence[StagedModel],
    values: dict[str, Array],
    threads: int | None,
) -> None:
    """Run an opaque operator on values, and add what it gives."""
    arrays = [values[n] if n else None for n in call.inputs]

    def runner(body: StagedModel) -> Any:
        return lambda given: list(body.run(given, threads).values())

    results = call(arrays, [runner(b) for b in bodies])
    for name, array in zip(call.outputs, results, strict=False):
        if name:
            tensor = isinstance(array, (np.ndarray, np.generic))
            values[name] = np.ascontiguousarray(array).reshape(array.shape) if tensor else array


def spans_of(arrays: Mapping[str, Any]) -> dict[str, Span]:
    """What arrays take of the host's memory, but for those that are copied or refused anyway."""
    plain = {n: a for n, a in arrays.items() if isinstance(a, np.ndarray)}
    return {n: span_of(a) for n, a in plain.items() if a.flags.c_contiguous}


def output_tensor(name: str, made: Any) -> Tensor:
    """What an array for a result has to be.  Raises `ArgumentError` if the result is no array."""
    dtype = Given.of(made).dtype
    if dtype.kind == "o":
        raise ArgumentError(f"{name} is a {dtype} and needs no array")
    return Tensor(name, dtype, tuple(map(Const, made.shape)))


def _handed_out(results: dict[str, Array], out: Mapping[str, Array]) -> dict[str, Array]:
    """The results, in the arrays that were given for them; all of these fit, or none is written."""
    places = {
        n: check_output(output_tensor(n, results[n]), array, results[n].shape)
        for n, array in out.items()
    }
    for name, place in places.items():
        place[...] = results[name]
    return results | dict(out)


def with_import(model: Runnable, seconds: float) -> None:
    """Add the time that the import of a model took to its report."""
    model.report = replace(model.report, stages=(("import", seconds), *model.report.stages))
