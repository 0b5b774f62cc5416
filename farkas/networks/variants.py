"""Compiled stages of a network, and the arrays for which each of them is valid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from frontends.onnx import Given, Pending, Stage
from poly.ir.expr import Const, Expr, Size, evaluate_int

if TYPE_CHECKING:
    from farkas.networks.executable import Executable
    from runtime.network.compiled_graph import CompiledGraph

Array = np.ndarray
#: For each axis of a value, the name of its size, None where that is fixed.
Open = tuple[str | None, ...]

#: The most compiled variants for each point at which an import starts.
KEPT = 64
#: The most bytes of an array whose elements are looked up instead of compared.
SMALL = 1 << 10


@dataclass(eq=False)
class Start:
    """A point in the model at which an import starts, and what was compiled from there.

    pending : the remaining nodes, None for all; reads : the values that may be used, with
    names for those axes whose sizes may differ (None: any of them); fixed : elements of values
    that are always the same here; demanded : names of values whose elements have to be known
    """

    pending: tuple[Pending, ...] | None
    reads: Mapping[str, Open | None]
    fixed: Mapping[str, Array]
    demanded: set[str] = field(default_factory=set)
    variants: list[Variant] = field(default_factory=list)
    recent: dict[tuple[object, ...], Variant] = field(default_factory=dict)

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
            array = values[name]
            found = Given.of(array, name in self.demanded)
            if found.array is None:
                every = tuple(f"{name}.{a}" for a in range(len(found.shape)))
                found = replace(found, open=every if axes is None else axes)
            given[name] = found
        return given | {n: Given.of(a, known=True) for n, a in self.fixed.items()}


@dataclass(eq=False)
class Variant:
    """One compiled stage, and where the next one starts.

    known : the elements for which the stage is valid
    """

    stage: Stage
    known: Mapping[str, Array]
    model: CompiledGraph | None
    next: Start | None
    bodies: tuple[tuple[Executable, ...], ...]

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
