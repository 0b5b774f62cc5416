"""The interface of operators: the node that an operator gets, and the results that it returns.

An operator is a pure function from a `Node` to results, which in order define the node's
outputs:

`Compute`    a program applied to values (and to arrays, which become constants)
`Reshaped`   the same elements under another shape
`Same`       the value itself
`Known`      an array that is known now
`Opaque`     a numpy function on whole arrays, in place of a comprehension; defines all outputs
`Expanded`   other nodes in place of this one; defines all outputs
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto

from frontends.onnx.core.identifiers import printable
from frontends.onnx.core.stages import Given, OpaqueFunction
from frontends.onnx.core.symbolic_dims import Dim, Extent, concrete
from poly.errors import ModelError
from poly.ir.dtypes import DType
from poly.ir.graph import Graph
from poly.ir.program import Program


@dataclass(frozen=True, eq=False)
class Value:
    """A value of the graph while it is being built; `array` if it is known now."""

    name: str
    dtype: DType
    # Of int and, where sizes are open, of `frontends.onnx.core.symbolic_dims.Dim`.
    shape: tuple[Any, ...]
    array: np.ndarray | None = None  # of objects where it holds open sizes

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> Any:
        count: Any = 1
        for extent in self.shape:
            count *= extent
        return count


@dataclass(frozen=True, eq=False)
class Compute:
    """The outputs of `program`, called on `inputs` in the program's own order."""

    program: Program
    inputs: tuple[Operand, ...]


@dataclass(frozen=True, eq=False)
class Reshaped:
    """`value` under another shape with equally many elements."""

    value: Value
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Before:
    """An output of a program that the node calls before another one, under another shape."""

    made: Compute
    output: int
    shape: tuple[int, ...]


#: What a program is called on.
Operand = Value | np.ndarray | Reshaped | Before


@dataclass(frozen=True)
class Same:
    """`value`, unchanged."""

    value: Value


@dataclass(frozen=True, eq=False)
class Known:
    """An array that is known at compile time; `dtype` where its elements are open sizes."""

    array: np.ndarray
    dtype: DType | None = None


@dataclass(frozen=True, eq=False)
class InC:
    """How C computes the outputs of a node: see `poly.ir.graph.Routine`.

    shapes : of the outputs; operands : how many of the node's it takes, None for all; tables :
    constants that are its last ones; failure : what is wrong with operands for which it fails
    is_slow : numpy is faster, and computes them where there is one
    """

    kind: str
    shapes: tuple[Sequence[Extent], ...]
    arguments: tuple[Extent | float | tuple[Extent, ...], ...] = ()
    mode: str = ""
    scratch: tuple[int, tuple[Extent, ...]] | None = None
    operands: int | None = None
    tables: tuple[np.ndarray, ...] = ()
    failure: str = ""
    is_slow: bool = False


@dataclass(frozen=True, eq=False)
class Opaque:
    """All outputs of a node, computed by numpy while the model runs, or by a routine in C.

    `types` are those of the outputs, whose shapes are known once they are computed.  `bodies` are
    subgraphs as models, which `run` may call.  `decides` is an operand whose elements must be known
    for a form in C.
    """

    inputs: tuple[Value | None, ...]
    run: OpaqueFunction
    types: tuple[DType, ...]
    bodies: tuple[ModelProto, ...] = ()
    in_c: InC | None = None
    decides: Value | None = None


@dataclass(frozen=True, eq=False)
class Expanded:
    """Nodes that define the outputs of the node, in an order in which they can run.

    `versions` are their opsets, None for those of the node.
    """

    nodes: tuple[NodeProto, ...]
    versions: Mapping[str, int] | None = None


Result = Compute | Reshaped | Same | Known | Opaque | Expanded


class Unsupported(Exception):  # noqa: N818 - a signal to the importer, which reports all at once
    """A valid node that cannot be compiled yet; never leaves this package."""


class NotKnownError(Unsupported):
    """The node needs the elements of `value` at compile time, which are not known yet."""

    def __init__(self, message: str, value: Value) -> None:
        super().__init__(message)
        self.value = value


@dataclass(frozen=True, eq=False)
class Scope:
    """The context of a node, which operators with subgraphs need beyond their operands.

    proto : the node in the model; prefix : no other name of the model starts with it;
    folder : of the model, for external data; lookup : the value of a name; graph_of : the graph of
    a body for given inputs, with the open sizes of this import
    """

    proto: NodeProto
    model: ModelProto
    versions: Mapping[str, int]
    prefix: str
    folder: Path | None
    lookup: Callable[[str], Value]
    graph_of: Callable[[ModelProto, Mapping[str, Given]], Graph]


@dataclass(frozen=True, eq=False)
class Node:
    """One node of a model: its operator, operands and attributes.

    `outputs` says for each output whether the model names it; an omitted input is None.
    """

    operator: str
    name: str
    opset: int
    inputs: tuple[Value | None, ...]
    outputs: tuple[bool, ...]
    attributes: Mapping[str, object] = field(default_factory=dict)
    scope: Scope | None = None
    domain: str = ""

    @property
    def origin(self) -> str:
        """For messages: ``Conv 'conv1' (opset 11)``."""
        return f"{self.operator} '{printable(self.name)}' (opset {self.opset})"

    def fail(self, message: str) -> ModelError:
        """An error that names this node, to be raised.

        The message names the extents that it is about: what is refused in the same words for
        several choices of open sizes is refused when the model is loaded.
        """
        return ModelError(f"{self.origin}: {message}")

    # --- operands ---

    def optional(self, position: int) -> Value | None:
        """Input number `position`, None if it is omitted."""
        return self.inputs[position] if position < len(self.inputs) else None

    def required(self, position: int) -> Value:
        """Input number `position`.

        Raises
        ------
        ModelError : if it is omitted.
        """
        value = self.optional(position)
        if value is None:
            raise self.fail(f"input number {position + 1} is missing")
        return value

    @property
    def operands(self) -> tuple[Value, ...]:
        """All inputs, none of which may be omitted."""
        return tuple(self.required(p) for p in range(len(self.inputs)))

    def known(self, position: int, what: str) -> np.ndarray | None:
        """The array of an input that must be known at compile time; None if it is omitted.

        Raises
        ------
        NotKnownError : if it is computed while the model runs.
        """
        array = self._known(position, what)
        value = self.optional(position)
        return None if array is None or value is None else concrete(array, value.dtype.numpy)

    def _known(self, position: int, what: str) -> np.ndarray | None:
        value = self.optional(position)
        if value is None:
            return None
        if value.array is None:
            raise NotKnownError(
                f"{what} must be known at compile time, not computed from an input", value
            )
        return value.array

    def known_ints(self, position: int, what: str) -> tuple[Any, ...] | None:
        """The integers of an input of rank at most 1 that must be known at compile time.

        Open sizes stay what they are.
        """
        array = self._known(position, what)
        if array is None:
            return None
        if array.ndim > 1 or array.dtype.kind not in "iuO" or array.size > 1 << 16:
            raise self.fail(f"{what} must be a short vector of integers")
        return tuple(v if isinstance(v, Dim) else int(v) for v in array.reshape(-1))

    def known_number(self, position: int, what: str) -> Any:
        """The only element of an input that must be known at compile time, None if it is not one.

        An open size stays what it is.
        """
        array = self._known(position, what)
        if array is None or array.size != 1:
            return None
        element = array.reshape(-1)[0]
        return element if isinstance(element, Dim) else element.item()

    def has_output(self, position: int) -> bool:
        """Whether the model uses output number `position`."""
        return position < len(self.outputs) and self.outputs[position]

    @property
    def surroundings(self) -> Scope:
        """The context of the node in its model."""
        assert self.scope is not None, "every node that is imported has a scope"
        return self.scope

    # --- attributes ---

    def subgraph(self, name: str) -> GraphProto:
        """A subgraph, which is required."""
        value = self._attribute(name, GraphProto, None)
        if not isinstance(value, GraphProto):
            raise self.fail(f"attribute {name} is missing")
        return value

    def _attribute(self, name: str, kind: type, default: object) -> object:
        value = self.attributes.get(name, default)
        if value is not default and not isinstance(value, kind):
            raise self.fail(f"attribute {name} has the wrong type")
        return value

    def integer(self, name: str, default: int) -> int:
        value = self._attribute(name, int, default)
        assert isinstance(value, int)
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """A switch; numbers other than 0 and 1 are refused, because ONNX gives them no meaning."""
        value = self.integer(name, int(default))
        if value not in (0, 1):
            raise self.fail(f"attribute {name} is {value}, not 0 or 1")
        return value == 1

    def number(self, name: str, default: float) -> float:
        value = self._attribute(name, float, default)
        assert isinstance(value, float)
        return value

    def word(self, name: str, default: str) -> str:
        value = self._attribute(name, str, default)
        assert isinstance(value, str)
        return value

    def ints(self, name: str) -> tuple[int, ...] | None:
        """A list of integers, None if the attribute is absent."""
        value = self._attribute(name, tuple, None)
        if value is None:
            return None
        assert isinstance(value, tuple)
        if not all(isinstance(v, int) for v in value):
            raise self.fail(f"attribute {name} has the wrong type")
        return value

    def axis(self, axis: int, rank: int) -> int:
        """A possibly negative axis as 0 … rank-1.

        Raises
        ------
        ModelError : if it is out of range.
        """
        if not -rank <= axis < rank:
            raise self.fail(f"axis {axis} is out of range for rank {rank}")
        return axis % rank if rank else 0

    def axes(self, axes: Sequence[int], rank: int) -> tuple[int, ...]:
        """Axes as sorted distinct numbers 0 … rank-1.

        Raises
        ------
        ModelError : if one is out of range or given twice.
        """
        result = sorted(self.axis(a, rank) for a in axes)
        if len(set(result)) != len(result):
            raise self.fail(f"an axis is given twice: {list(axes)}")
        return tuple(result)


Operator = Callable[[Node], Sequence[Result]]

_OPERATORS: dict[tuple[str, str], list[tuple[int, Operator]]] = {}


def operator(*names: str, since: int = 1, domain: str = "") -> Callable[[Operator], Operator]:
    """Register the function for operators of a domain from an opset on."""

    def register(function: Operator) -> Operator:
        for name in names:
            versions = _OPERATORS.setdefault((domain, name), [])
            versions.append((since, function))
            versions.sort(key=lambda v: v[0])
        return function

    return register


def find_operator(name: str, opset: int, domain: str = "") -> Operator | None:
    """The function for an operator at an opset; None if there is none."""
    found = None
    for since, function in _OPERATORS.get((domain, name), ()):
        if since <= opset:
            found = function
    return found


def foreign_operators() -> tuple[Operator, ...]:
    """The functions that other packages than this one have registered."""
    own = __name__.partition(".")[0]
    functions = {f for versions in tuple(_OPERATORS.values()) for _, f in versions}
    return tuple(f for f in functions if f.__module__.partition(".")[0] != own)


def supported_operators(domain: str = "") -> tuple[str, ...]:
    """Names of the operators of a domain that can be compiled, sorted."""
    return tuple(sorted(name for own, name in _OPERATORS if own == domain))
