"""`Draft`: a graph that grows node by node, each tried with ONNX Runtime as it is added.

A graph is drawn together with the arrays that it will run on, several for each value: one of each
trial, whose sizes and elements differ.  A node is kept if ONNX Runtime runs it on all of them, and
gives values that are finite and small.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import AttributeProto, NodeProto, TensorProto, helper, numpy_helper

from tests.mutation.workers import session_options

#: Values that are larger, or have more elements, are not kept; some graphs are large.
LARGEST, ELEMENTS, ELEMENTS_OF_LARGE = 1e4, 400, 20_000
#: Fixed extents of inputs, also of those: around what vectors and tiles hold.
EXTENTS, EXTENTS_OF_LARGE = (1, 2, 3, 4), (1, 3, 8, 15, 16, 17, 33, 48, 64, 65)

FLOATS = ("float32", "float32", "float32", "float64", "float16")
INTEGERS = ("int64", "int64", "int32", "int8", "uint8")
TYPES = (*FLOATS, *INTEGERS, "bool")

#: How names are written, of a stem and a number: as exporters do.
STYLES = ("{0}_{1}", "{0}_{1}", "/net/{0}.{1}", "{1}", "{0}:{1}", "{0}/{1}", "v {1}")

#: The extents of open dimensions by their names, in each trial.
Sizes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class Value:
    """A value of the graph: its name, and an array of each trial."""

    name: str
    arrays: tuple[np.ndarray, ...]

    @property
    def type(self) -> str:
        return self.arrays[0].dtype.name

    @property
    def rank(self) -> int:
        return self.arrays[0].ndim

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The extents, None where they differ."""
        shapes = zip(*(a.shape for a in self.arrays), strict=True)
        return tuple(extents[0] if len(set(extents)) == 1 else None for extents in shapes)

    @property
    def is_float(self) -> bool:
        return self.arrays[0].dtype.kind == "f"

    @property
    def is_integer(self) -> bool:
        return self.arrays[0].dtype.kind in "iu"

    @property
    def is_fixed(self) -> bool:
        return None not in self.shape

    def all(self, holds: Callable[[np.ndarray], Any]) -> bool:
        """Whether something holds in every trial."""
        return all(bool(holds(a)) for a in self.arrays)


@dataclass
class Draft:
    """A graph, or with `outer` the body of an operator in it, which captures what is there."""

    rng: random.Random
    opset: int
    sizes: Sizes
    trials: int
    outer: Draft | None = None
    is_large: bool = False
    values: list[Value] = field(default_factory=list)
    nodes: list[NodeProto] = field(default_factory=list)
    initializers: list[TensorProto] = field(default_factory=list)
    inputs: list[tuple[Value, list[int | str | None]]] = field(default_factory=list)
    given: set[str] = field(default_factory=set)  # initializers that are also inputs
    minor: set[str] = field(default_factory=set)  # operands with elements that someone chose
    count: int = 0
    style: str = ""

    def __post_init__(self) -> None:
        self.style = self.rng.choice(STYLES) if self.outer is None else self.outer.style

    @property
    def depth(self) -> int:
        return 0 if self.outer is None else self.outer.depth + 1

    @property
    def root(self) -> Draft:
        return self if self.outer is None else self.outer.root

    @property
    def elements(self) -> int:
        """The most of a value."""
        return ELEMENTS_OF_LARGE if self.is_large else ELEMENTS

    def body(self) -> Draft:
        """An empty graph that sees the values of this one."""
        return Draft(self.rng, self.opset, self.sizes, self.trials, self, self.is_large)

    def fresh(self, stem: str) -> str:
        """A name that nothing has yet."""
        self.root.count += 1
        return self.style.format(stem, self.root.count)

    def seen(self) -> list[Value]:
        """All values that a node may read."""
        return ([] if self.outer is None else self.outer.seen()) + self.values

    def pick(self, suits: Callable[[Value], bool] = lambda v: True) -> Value | None:
        """A value that suits, one of the latest more often than not."""
        found = [v for v in self.seen() if suits(v)]
        if not found:
            return None
        if self.rng.random() < 0.75:  # what came in as an operand would crowd out the others
            found = [v for v in found if v.name not in self.root.minor] or found
        late = self.rng.random() < 0.5
        return self.rng.choice(found[-3:] if late else found)

    # --- values that are there from the beginning ------------------------------------------------

    def random_array(self, dtype: str, shape: Sequence[int]) -> np.ndarray:
        """Small numbers that sums and products keep exact."""
        made = np.random.default_rng(self.rng.randrange(1 << 30))
        if dtype == "bool":
            return np.asarray(made.random(shape) < 0.5)
        low = 0 if dtype[0] == "u" else -3
        whole = made.integers(low, 4, shape)
        scale = self.rng.choice((1, 2, 4)) if dtype[0] == "f" else 1
        return np.asarray(whole / scale, dtype)

    def random_input(self) -> Value:
        """An input of fixed, named and nameless extents."""
        dtype = self.rng.choice(TYPES)
        rank = self.rng.choice((0, 1, 1, 2, 2, 2, 3, 3, 4, 4))
        shown: list[int | str | None] = []
        left = self.elements
        for _ in range(rank):
            fixed = not self.sizes or self.rng.random() < 0.5
            extents = EXTENTS_OF_LARGE if self.is_large else EXTENTS
            extent = self.rng.choice(extents) if fixed else self.rng.choice([*self.sizes])
            largest = max(self.sizes[extent]) if isinstance(extent, str) else extent
            if largest > left:
                extent = largest = 1
            left //= max(1, largest)
            shown.append(extent)
        shapes = [
            [self.sizes[e][t] if isinstance(e, str) else e for e in shown]
            for t in range(self.trials)
        ]
        arrays = [self.random_array(dtype, s) for s in shapes]
        if self.sizes and self.rng.random() < 0.3:
            shown = [None if self.rng.random() < 0.4 else e for e in shown]
        return self.input(arrays, shown)

    def input(
        self, arrays: Sequence[np.ndarray], shown: Sequence[int | str | None] | None = None
    ) -> Value:
        """An input of the whole graph with these arrays."""
        root = self.root
        value = Value(self.fresh("input"), tuple(arrays))
        root.inputs.append((value, list(value.shape if shown is None else shown)))
        root.values.append(value)
        return value

    def operand(self, *arrays: np.ndarray) -> Value:
        """A value of given arrays (one: the same in all trials) in a role drawn at random."""
        value = self._operand(*arrays)
        self.root.minor.add(value.name)
        return value

    def _operand(self, *arrays: np.ndarray) -> Value:
        if len(arrays) > 1 and any(
            a.shape != arrays[0].shape or bool((a != arrays[0]).any()) for a in arrays
        ):
            return self.input(arrays)
        array = arrays[0]
        roles = ("initializer", "initializer", "constant", "view", "given", "input", "computed")
        role = self.rng.choice(roles)
        if role in ("input", "computed"):
            value = self.input([array] * self.trials)
            return value if role == "input" else self._computed(value)
        if role == "constant":
            proto = numpy_helper.from_array(array, "value")
            found = self.add("Constant", [], value=proto)
            if found is not None:
                return found[0]
        holder = self.root if self.rng.random() < 0.5 else self
        value = Value(self.fresh("stored"), (array,) * self.trials)
        holder.initializers.append(numpy_helper.from_array(array, value.name))
        holder.values.append(value)
        if role == "given" and holder.outer is None:
            self.root.given.add(value.name)
        if role == "view":
            found = self.add("Identity", [value])
            return value if found is None else found[0]
        return value

    def _computed(self, value: Value) -> Value:
        """The same elements, by an operator: one that is compiled, or one that depends on data."""
        if value.rank and self.rng.random() < 0.4:
            keep = self.input([np.ones(len(a), bool) for a in value.arrays])
            found = self.add("Compress", [value, keep], axis=0)
        elif value.type == "bool":
            found = self.add("Or", [value, value])
        else:
            found = self.add("Max", [value, value])
        return value if found is None else found[0]

    def numbers(self, *values: int, dtype: str = "int64") -> Value:
        """A vector of integers in some role."""
        return self.operand(np.array(values, dtype))

    # --- nodes ----------------------------------------------------------------------------------

    def add(
        self,
        operator: str,
        inputs: Sequence[Value | None],
        outputs: int = 1,
        captured: Sequence[Value] = (),
        **attributes: Any,
    ) -> list[Value] | None:
        """Add a node if it runs in every trial; its outputs.

        captured : what its subgraphs read besides
        """
        name = self.fresh(operator)
        node = helper.make_node(
            operator,
            ["" if v is None else v.name for v in inputs],
            [f"{name}_output_{n}" for n in range(outputs)],
            name=name,
            **{n: a for n, a in attributes.items() if a != []},
        )
        reads = {v.name: v for v in (*inputs, *captured) if v is not None}
        found = self._tried(node, list(reads.values()))
        if found is None:
            return None
        self.nodes.append(node)
        self.values += found
        return found

    def _tried(self, node: NodeProto, reads: Sequence[Value]) -> list[Value] | None:
        """The outputs of a node in every trial, None if it cannot be kept."""
        graph = helper.make_graph(
            [node],
            "tried",
            [helper.make_tensor_value_info(v.name, element_type(v), None) for v in reads],
            [onnx.ValueInfoProto(name=n) for n in node.output],
        )
        try:
            session = onnxruntime.InferenceSession(
                model_of(graph, self.opset).SerializeToString(), session_options()
            )
            results = [
                session.run(list(node.output), {v.name: v.arrays[t] for v in reads})
                for t in range(self.trials)
            ]
        except Exception:  # what ONNX Runtime refuses is not judged
            return None
        for arrays in zip(*results, strict=True):
            if not all(isinstance(a, np.ndarray) and is_tame(a, self.elements) for a in arrays):
                return None
            if len({a.ndim for a in arrays}) > 1:
                return None
        columns = zip(*results, strict=True)
        return [Value(n, tuple(c)) for n, c in zip(node.output, columns, strict=True)]

    def captures(self, nodes: Sequence[NodeProto]) -> list[Value]:
        """The values of this graph that the nodes of a body read."""
        names = {n for node in nodes for n in reads_of(node)}
        return [v for v in self.seen() if v.name in names]


def is_tame(array: np.ndarray, elements: int = ELEMENTS) -> bool:
    """Whether an array is small in every respect."""
    if array.size > elements or array.dtype.kind not in "fiub":
        return False
    return bool((np.abs(array.astype(np.float64)) <= LARGEST).all())


def reads_of(node: NodeProto) -> set[str]:
    """The names that a node reads, those in its subgraphs included."""
    names = {n for n in node.input if n}
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            names |= {o.name for o in attribute.g.output}
            for inner in attribute.g.node:
                names |= reads_of(inner)
    return names


def element_type(value: Value) -> int:
    return helper.np_dtype_to_tensor_dtype(value.arrays[0].dtype)


def model_of(graph: onnx.GraphProto, opset: int) -> onnx.ModelProto:
    """A model of one graph."""
    versions = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=versions, ir_version=8 if opset < 19 else 10)
