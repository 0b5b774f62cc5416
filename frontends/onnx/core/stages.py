"""Stages: a model cut where compiling must wait for data.

A model is imported as far as its shapes are known.  What stands in the way is either an operator
whose result has a shape that depends on data (NonZero, NonMaxSuppression, a Loop …), or one that
needs the elements of a value before it can be compiled (the shape that a Reshape asks for).
Then the import stops there: what came before is a graph to compile and run, and the rest is
imported when its values are there.  A model of fixed shapes without such operators is one stage.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from onnx import ModelProto, NodeProto

from poly.errors import ModelError
from poly.ir.dtypes import DType, dtype_of
from poly.ir.expr import Expr
from poly.ir.graph import Graph

Array = np.ndarray
#: Types with which no program computes: only opaque operators make and take what has them.
TEXT = DType("string", "o", 0)
NO_TENSOR = DType("sequence", "o", 0)

#: Runs one body of an operator: arrays by the names of its inputs in, in order of outputs out.
Body = Callable[[Mapping[str, Array]], Sequence[Array]]
#: Arrays of the operands (None where omitted) and the operator's bodies in, outputs out.
OpaqueFunction = Callable[[Sequence[Array | None], Sequence[Body]], Sequence[Array]]


def type_of(value: Array) -> DType:
    """The element type of an array, or what it is instead."""
    if not isinstance(value, np.ndarray):
        return NO_TENSOR
    return TEXT if value.dtype == object else dtype_of(value.dtype)


@dataclass(frozen=True, eq=False)
class Given:
    """What is known of a value from which an import starts: its type, and maybe its elements.

    `open` names the sizes of the axes that may differ from call to call, None for the others.
    """

    dtype: DType
    shape: tuple[int, ...]
    array: Array | None = None
    open: tuple[str | None, ...] | None = None

    def closed(self, names: Collection[str] | None = None) -> Given:
        """The same with these open sizes (or all of them) fixed."""
        if self.open is None:
            return self
        axes = tuple(None if names is None or n in names else n for n in self.open)
        return replace(self, open=axes)

    @staticmethod
    def of(array: Array, known: bool = False) -> Given:
        """What an array tells: its type, and its elements if they may decide what is compiled."""
        dtype = type_of(array)
        shape = () if dtype == NO_TENSOR else array.shape
        return Given(dtype, shape, array if known else None)


@dataclass(frozen=True, eq=False)
class Pending:
    """A node that waits to be imported, and the opset of each domain that holds for it."""

    node: NodeProto
    versions: Mapping[str, int]
    depth: int = 0  # of bodies that it was written out from


@dataclass(frozen=True, eq=False)
class OpaqueCall:
    """A use of an operator that is no comprehension: numpy computes it on whole arrays.

    `inputs` and `outputs` are names of the model, "" where omitted; `bodies` are the models of
    its subgraphs.
    """

    operator: str
    origin: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    run: OpaqueFunction
    bodies: tuple[ModelProto, ...] = ()

    def __call__(
        self, arrays: Sequence[Array | None], bodies: Sequence[Body] = ()
    ) -> Sequence[Array]:
        """The outputs for arrays of the operands.

        Raises
        ------
        ModelError : arrays that the operator cannot take, or for whose results there is no memory.
        """
        try:
            with np.errstate(all="ignore"):
                return self.run(arrays, bodies)
        except (ValueError, IndexError, TypeError, ZeroDivisionError, OverflowError) as error:
            raise ModelError(f"{self.origin}: {error}") from error
        except MemoryError as error:
            raise ModelError(f"{self.origin}: there is not enough memory: {error}") from error

    def __str__(self) -> str:
        return f"{', '.join(self.outputs)} = {self.operator}({', '.join(self.inputs)})  # opaque"


@dataclass(frozen=True, eq=False)
class Stage:
    """What can be compiled from the values known so far, and what has to wait.

    Attributes
    ----------
    graph : computes what later stages and the caller need; None if there is nothing to compute
    inputs : of each value from which the import started and which it used, the type and the
        extents, by name where they are open
    sizes : where the name of an open size comes from
    conditions : what has to hold of the open sizes for all this to be valid
    results : for each name of the model that is needed later and was defined here, the name under
        which the graph takes or gives it
    known : elements of the values that are needed later and are known already
    opaque : operators to run after the graph, in order
    demands : names of the values whose elements the rest cannot do without
    rest : nodes that wait for what `opaque` gives and `demands` asks for
    needs : all names that `rest` and the model's outputs read
    is_whole : the graph is the model, with its inputs and outputs in order
    """

    graph: Graph | None
    results: Mapping[str, str]
    known: Mapping[str, Array]
    opaque: tuple[OpaqueCall, ...] = ()
    demands: frozenset[str] = frozenset()
    rest: tuple[Pending, ...] = ()
    needs: frozenset[str] = frozenset()
    is_whole: bool = False
    inputs: Mapping[str, tuple[DType, tuple[int | str, ...]]] = field(default_factory=dict)
    sizes: Mapping[str, str] = field(default_factory=dict)
    conditions: tuple[Expr, ...] = ()

    @property
    def is_last(self) -> bool:
        """Whether nothing waits for this stage."""
        return not self.rest

    def __str__(self) -> str:
        lines = [str(self.graph)] if self.graph is not None else []
        if self.conditions:
            lines.append(f"valid where {', '.join(map(str, self.conditions))}")
        lines += [str(call) for call in self.opaque]
        if self.rest:
            names = ", ".join(sorted(self.demands)) or "the shapes of what they gave"
            lines.append(f"then {len(self.rest)} nodes, which need {names}")
        return "\n".join(lines)
