"""Compiled stages of a network, and the arrays for which each of them is valid."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from frontends.onnx import Given, Pending, Stage, StoredNode
from poly.ir.expr import Const, Expr, Size, evaluate_int
from poly.ir.port import Port

if TYPE_CHECKING:
    from farkas.networks.executable import Executable
    from runtime.network.compiled_graph import CompiledGraph

Array = np.ndarray
#: For each axis of a value, the name of its size, None where that is fixed.
Open = tuple[str | None, ...]

#: The key under which the model of a variant is stored.
Stored = Callable[["Variant"], str | None]

#: The most compiled variants for each point at which an import starts.
KEPT = 64
#: The most bytes of an array whose elements are looked up instead of compared.
SMALL = 1 << 10


@dataclass(eq=False)
class Start:
    """A point in the model at which an import starts, and what was compiled from there.

    pending : the remaining nodes, None for all; reads : the values that may be used, with names for
    those axes whose sizes may differ (None: any of them); fixed : elements of values that are
    always the same here; demanded : names of values whose elements have to be known
    """

    pending: tuple[Pending | StoredNode, ...] | None
    reads: Mapping[str, Open | None]
    fixed: Mapping[str, Array]
    demanded: set[str] = field(default_factory=set)
    variants: list[Variant] = field(default_factory=list)
    recent: dict[tuple[object, ...], Variant] = field(default_factory=dict)

    @property
    def nodes(self) -> tuple[Pending, ...] | None:
        """The remaining nodes, None for all."""
        if self.pending is None:
            return None
        found = tuple(p.pending if isinstance(p, StoredNode) else p for p in self.pending)
        self.pending = found
        return found

    def walk(self) -> Iterator[Variant]:
        """Everything compiled from here on, stage after stage; a run may add to it meanwhile."""
        for variant in tuple(self.variants):
            yield variant
            if variant.next is not None:
                yield from variant.next.walk()

    def kept(self) -> Iterator[Variant]:
        """What `bare` may keep of all that: stages before operators that run as numpy."""
        for variant in self.variants:
            if not variant.stage.opaque:
                yield variant
                if variant.next is not None:
                    yield from variant.next.kept()

    def bare(self, stored: Stored | None = None) -> Start:
        """A copy to store, with what is stored of its variants; without arrays that are weights.

        Operators that run as numpy are functions, so that stages which have some are left out.

        stored : the key of a variant's model, None if there is none; by default that in the cache
        """
        key = stored or (lambda variant: variant.stored)
        pending = self.pending
        if pending is not None:
            pending = tuple(p if isinstance(p, StoredNode) else StoredNode.of(p) for p in pending)
        kept = [v for v in self.variants if not v.stage.opaque]
        return replace(
            self,
            pending=pending,
            variants=[v.bare(key) for v in kept if not v.computes or key(v) is not None],
            recent={},
        )

    def drop(self, variant: Variant) -> None:
        """Forget a variant."""
        self.variants.remove(variant)
        self.recent.clear()

    def find(self, values: Mapping[str, Array]) -> Variant | None:
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
        """The key that determines which variant is valid (types are fixed), None if it is large."""
        shapes = [np.shape(values[n]) for n in self.reads]
        if not self.demanded:
            return tuple(shapes)
        known = [values[n] for n in self.demanded]
        if any(a.dtype.hasobject or a.nbytes > SMALL for a in known):
            return None
        return (*shapes, *(a.tobytes() for a in known))

    def given(self, values: Mapping[str, Array]) -> dict[str, Given]:
        """The values in the form that an import takes."""
        given = {}
        for name, axes in self.reads.items():
            array, known = values[name], name in self.demanded
            # What is compiled owns its constants: the caller may use an array again.
            found = Given.of(array.copy() if known else array, known)
            if found.array is None:
                every = tuple(f"{name}.{a}" for a in range(len(found.shape)))
                found = replace(found, open=every if axes is None else axes)
            given[name] = found
        return given | {n: Given.of(a, known=True) for n, a in self.fixed.items()}


@dataclass(eq=False)
class Variant:
    """One compiled stage, and where the next one starts.

    known : the elements for which the stage is valid
    model : None if there is nothing to compute, or if it has not been loaded
    stored : the key of the model in the cache, None if it is not there
    """

    stage: Stage
    known: Mapping[str, Array]
    model: CompiledGraph | None
    next: Start | None
    bodies: tuple[tuple[Executable, ...], ...] = ()
    stored: str | None = None

    @property
    def is_loaded(self) -> bool:
        """Whether it can run; else its model is in the cache."""
        return self.model is not None or self.stored is None

    @property
    def is_stored(self) -> bool:
        """Whether the stage can be recalled from the cache."""
        return not self.stage.opaque and (self.model is None or self.stored is not None)

    @property
    def computes(self) -> bool:
        """Whether it has a model, loaded or not."""
        return self.model is not None or self.stored is not None

    def bare(self, stored: Stored) -> Variant:
        """A copy to store; `next` has the rest of the stage.  stored : see `Start.bare`"""
        following = None if self.next is None else self.next.bare(stored)
        stage = replace(self.stage, graph=None, rest=())
        return Variant(stage, self.known, None, following, stored=stored(self))

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


@dataclass(frozen=True, eq=False)
class StagesRecord:
    """The stages of a network that were compiled.

    start : see `Start.bare`; inputs, outputs : of the network
    """

    start: Start
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


def following(start: Start, stage: Stage) -> Start | None:
    """Where the import continues after a stage, None if it was the last one."""
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
    return Start(stage.rest, reads, fixed, set(stage.demands) & reads.keys())


def _origin(stage: Stage, extent: Expr) -> str | None:
    """The name of the open axis whose size is an extent."""
    return stage.sizes.get(extent.name) if isinstance(extent, Size) else None
