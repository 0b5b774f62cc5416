"""Stages: a model cut where compiling must wait for data.

A model is imported as far as its shapes are known.  The import stops at operators
whose results have shapes that depend on data (NonZero, NonMaxSuppression, a Loop …), and at those
that need the elements of a value to be compiled (Reshape needs the new shape).  The nodes before
them are a graph to compile and run; the rest is imported once the values are known.
A model of fixed shapes without such operators is one stage.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from poly.errors import ModelError
from poly.ir.dtypes import DType, dtype_of
from poly.ir.expr import Expr
from poly.ir.graph import Graph

if TYPE_CHECKING:  # networks of the cache run without onnx
    from onnx import ModelProto, NodeProto

Array = np.ndarray
#: Types that no program computes with: only opaque operators produce and consume such values.
TEXT = DType("string", "o", 0)
NO_TENSOR = DType("sequence", "o", 0)

#: Runs one body of an operator: arrays by the names of its inputs in, in order of outputs out.
Body = Callable[[Mapping[str, Array]], Sequence[Array]]
#: Arrays of the operands (None where omitted) and the operator's bodies in, outputs out.
OpaqueFunction = Callable[[Sequence[Array | None], Sequence[Body]], Sequence[Array]]


class Routines(Enum):
    """Which operators without comprehensions become routines of a graph, see `Routine`.

    NONE : numpy computes them; FAST : those that are faster than numpy; ALL : there is no numpy
    """

    NONE = "none"
    FAST = "fast"
    ALL = "all"


def type_of(value: Array) -> DType:
    """The element type of an array, `TEXT` for strings, `NO_TENSOR` for anything else."""
    if not isinstance(value, np.ndarray):
        return NO_TENSOR
    return TEXT if value.dtype == object else dtype_of(value.dtype)


@dataclass(frozen=True, eq=False)
class Given:
    """What is known about an input of an import: its type, and maybe its elements.

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
        """The type of an array, and its elements if `known`: they may decide what is compiled."""
        dtype = type_of(array)
        shape = () if dtype == NO_TENSOR else array.shape
        return Given(dtype, shape, array if known else None)


@dataclass(frozen=True, eq=False)
class Pending:
    """A node that waits to be imported, and the opset of each domain that holds for it."""

    node: NodeProto
    versions: Mapping[str, int]
    depth: int = 0  # of the bodies that it was inlined from


@dataclass(frozen=True, eq=False)
class StoredNode:
    """A `Pending` node whose data is not read yet."""

    data: bytes
    versions: Mapping[str, int]
    depth: int

    @staticmethod
    def of(pending: Pending) -> StoredNode:
        """The data of a node."""
        return StoredNode(pending.node.SerializeToString(), pending.versions, pending.depth)

    @property
    def pending(self) -> Pending:
        """The node."""
        from onnx import NodeProto

        node = NodeProto()
        node.ParseFromString(self.data)
        return Pending(node, self.versions, self.depth)


@dataclass(frozen=True, eq=False)
class OpaqueCall:
    """A call of an operator without a comprehension: numpy computes it on whole arrays.

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
        ModelError : arrays that the operator does not accept, or too little memory for its results.
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
    """The part of a model that can be compiled from known values, and the rest, which has to wait.

    Attributes
    ----------
    graph : computes what later stages and the caller need; None if there is nothing to compute
    inputs : the type and the extents (names of open ones) of each input of the import that
        was used
    sizes : for each open size, the name of its axis
    conditions : on the open sizes, under which the stage is valid
    results : for each name of the model that is defined here and needed later, its name among
        the inputs and outputs of the graph
    known : elements of values that are needed later and are already known
    opaque : operators to run after the graph, in order
    demands : names of the values whose elements the rest needs
    rest : nodes that wait for the results of `opaque` and for `demands`
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
            names = ", ".join(sorted(self.demands)) or "the shapes of their results"
            lines.append(f"then {len(self.rest)} nodes, which need {names}")
        return "\n".join(lines)
