"""`Network`: what compiled ONNX models can do because they know where they come from.

What reads models and compares values is loaded when it is needed.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

import runtime.network.cpu_model
from farkas.targets.base import Target
from poly.errors import ArgumentError
from poly.ir.size_values import by_name
from runtime.common.compile_report import Progress

if TYPE_CHECKING:
    from farkas.networks.compare import Comparison
    from farkas.views.page import View
    from frontends.onnx import OpenPort, Source
    from poly.ir.graph import Graph
    from runtime.network.profile import Timing

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Origin:
    """What a model was compiled from: enough to compile it again in another way.

    compile : what compiles an origin; model : a path, bytes or a message; a file is read again, so
    that no weights are kept; shapes : the sizes that were given; outputs : names of values that are
    given beside the outputs
    """

    compile: Callable[[Origin], Network]
    model: Any
    target: Target
    shapes: Mapping[str, Sequence[int] | int]
    progress: Progress | None = None
    outputs: tuple[str, ...] = ()

    def open(self) -> Source:
        """The model, read again."""
        from frontends.onnx import open_model

        return open_model(self.model).giving(self.outputs)

    def specialized(self, sizes: Mapping[str, int]) -> Origin:
        """The same with named dimensions fixed.

        Raises
        ------
        ArgumentError : a name that is unknown or fixed already, or a size that is none.
        """
        source = self.open()
        known, free = (_names(source.input_ports(s)) for s in ({}, self.shapes))
        for name, size in sizes.items():
            if name not in free:
                reason = "is fixed already" if name in known else "is no dimension of the inputs"
                raise ArgumentError(f"'{name}' {reason}; {_listed(free)}")
            try:
                is_size = not isinstance(size, bool) and operator.index(size) > 0
            except TypeError:
                is_size = False
            if not is_size:
                raise ArgumentError(f"'{name}' must be a positive integer, not {size!r}")
        fixed = {n: operator.index(s) for n, s in sizes.items()}
        return replace(self, shapes={**self.shapes, **fixed})


class Network(ABC):
    """A compiled ONNX model; the base of `Model` and `StagedModel`.

    A copy is the model itself; what is unpickled is compiled again, or found in the cache.

    Attributes: `inputs` and `outputs`, with their types as far as these are known; `report`.
    """

    origin: Origin
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (replace(self.origin, progress=None),)

    @abstractmethod
    def run(
        self,
        inputs: Mapping[str, Any],
        threads: int | None = None,
        *,
        out: Mapping[str, Array] | None = None,
    ) -> dict[str, Array]:
        """Arrays by input name in, arrays by output name out."""

    @abstractmethod
    def profile(self, inputs: Mapping[str, Any], repeat: int = 5) -> tuple[Timing, ...]:
        """Median seconds of each compiled call, one after the other."""

    @property
    @abstractmethod
    def graphs(self) -> tuple[Graph, ...]:
        """What was compiled: kernels and values, a graph for each stage."""

    @abstractmethod
    def explain(self, run: bool = True) -> View:
        """What was fused and what that saves, what was not and why, and the time of each kernel.

        run : time the kernels, with one thread and made-up inputs
        """

    def _repr_html_(self) -> str:
        from farkas.views import show

        return show(self)._repr_html_()

    def specialize(self, **sizes: int) -> Network:
        """The model compiled for sizes of named dynamic dimensions; this one stays as it is.

        >>> one = model.specialize(batch=1)

        With no dynamic dimension left, it is a `Model`, compiled as a whole.  Names that are no
        identifiers: ``specialize(**{"batch size": 4})``.

        Raises
        ------
        ArgumentError : a name that is unknown or fixed already, or a size that is no positive int.
        ModelError, UnsupportedModelError : the model cannot be compiled for these sizes.
        """
        return self.origin.compile(self.origin.specialized(sizes))

    def compare(
        self,
        reference: Any,
        inputs: Mapping[str, Any],
        *,
        rtol: float | None = None,
        atol: float = 1e-5,
    ) -> Comparison:
        """Which value of the model is the first, in the order of its nodes, that diverges.

        >>> print(model.compare("onnxruntime", inputs))

        The outputs are compared first, as the model computes them.  If one diverges, or the
        reference names values between the nodes, the model is compiled once more to give these as
        well; if all of them agree then, merging calls is to blame, and the value is found that must
        be stored for the outputs to agree.

        Parameters
        ----------
        reference : ``"onnxruntime"``, which is asked for every value; a mapping from names of
            values to arrays; a function of the inputs by name that gives such a mapping, or the
            outputs in a list; or a session with ``run`` and ``get_outputs``
        rtol, atol : floats agree if no element is farther off than `atol` plus `rtol` times the
            largest magnitude in its tensor (0.001, more for types of few bits), integers if none
            is farther off than `atol`

        Raises
        ------
        ArgumentError : another kind of reference, or one that names what is not in the model.
        ModelError : ONNX Runtime cannot run the model.
        """

        from farkas.networks.compare import Tolerance, compare

        inputs = self.origin.target.runner.on_host(by_name("inputs", inputs))

        def values(names: tuple[str, ...]) -> Mapping[str, Array]:
            outputs = (*self.origin.outputs, *names)
            network = self.origin.compile(replace(self.origin, outputs=outputs)) if names else self
            return network.run(inputs)

        tolerance = Tolerance(rtol, atol)
        return compare(self.origin.open(), values, reference, inputs, tolerance)


class Model(runtime.network.cpu_model.Model, Network):
    """A network of fixed shapes, compiled as a whole; see `runtime.network.cpu_model.Model`."""

    @property
    def graphs(self) -> tuple[Graph, ...]:
        return (self.graph,)

    def explain(self, run: bool = True) -> View:
        from farkas.views.explain import explain_model

        return explain_model(self, run)


def _restored(origin: Origin) -> Network:
    return origin.compile(origin)


def _names(ports: Sequence[OpenPort]) -> dict[str, None]:
    """The names of dynamic dimensions, in order."""
    return {e: None for port in ports for e in port.shape or () if isinstance(e, str)}


def _listed(names: Mapping[str, None]) -> str:
    if not names:
        return "no named dimension is dynamic"
    return "the dynamic dimensions are " + ", ".join(f"'{n}'" for n in names)
