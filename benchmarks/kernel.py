"""`Kernel`: one computation, as an ONNX graph, as a comprehension and as plain numpy.

Every peer gets the ONNX graph, so that all compute the same; Farkas gets the comprehension where it
is the natural way to write the computation (`native`), and `benchmarks.symbolic` compiles it with
and without sizes.  Their results are compared with numpy's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = Mapping[str, Array]
Shape = tuple[int, ...]

#: The type of all arrays.
ELEMENT = 4

OPSET, IR_VERSION = 17, 8


def aligned(array: Array, to: int = 64) -> Array:
    """A copy that begins at a multiple of `to` bytes.

    numpy aligns to 16, so that wide vectors would straddle cache lines, for some contenders and
    not for others, depending on chance and their own copies.
    """
    block = np.empty(array.nbytes + to, np.uint8)
    start = -block.ctypes.data % to
    copy = block[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


@dataclass(frozen=True)
class Text:
    """A computation as a comprehension, with names for its sizes.

    Attributes
    ----------
    text : the comprehension, in which every extent is a size (except kernels of convolutions)
    sizes : value of every size
    shapes : shape of each array in the order of the kernel's arguments; a view of the kernel's
        array of the same name, which may be grouped differently
    """

    text: str
    sizes: Mapping[str, int]
    shapes: Mapping[str, Shape]


@dataclass(frozen=True)
class Kernel(ABC):
    """One computation on float32 arrays.

    Attributes
    ----------
    name, family : as shown in the tables
    native : Farkas compiles the comprehension for its sizes; otherwise the ONNX graph, in which
        weights are constants
    tolerance : the greatest difference between results, relative to the greatest magnitude
    """

    name: str
    family: str

    native = False
    tolerance = 1e-3

    @property
    def result_type(self) -> Any:
        """The numpy type of the result."""
        return np.dtype(np.float32)

    @property
    def wide(self) -> Kernel | None:
        """The kernel on float32 of which this is one on a narrower type."""
        return None

    def widened(self, arrays: Arrays) -> dict[str, Array]:
        """The same numbers in float32, for the wide kernel."""
        return dict(arrays)

    def forms(self, arrays: Arrays) -> dict[str, ModelProto]:
        """Other ONNX models of the same, which some libraries compute faster, by name."""
        return {}

    @property
    @abstractmethod
    def flops(self) -> int:
        """Floating-point operations; a multiply-add counts as two, taps on padding included."""

    @property
    @abstractmethod
    def inputs(self) -> dict[str, Shape]:
        """Shapes of the arguments of every call, by name."""

    @property
    def weights(self) -> dict[str, Shape]:
        """Shapes of the constants, which may be packed beforehand, by name."""
        return {}

    @property
    @abstractmethod
    def output(self) -> Shape:
        """Shape of the result, which is called ``Y``."""

    @abstractmethod
    def nodes(self) -> list[NodeProto]:
        """The ONNX nodes, from the inputs and weights to ``Y``."""

    @abstractmethod
    def reference(self, arrays: Arrays) -> Array:
        """The result by numpy alone, from inputs and weights."""

    @property
    def constants(self) -> Arrays:
        """Constants that the nodes need besides the weights, such as axes."""
        return {}

    @property
    def text(self) -> Text | None:
        """The computation as a comprehension."""
        return None

    @property
    def bytes(self) -> int:
        """Bytes of all inputs, weights and the output, each touched once."""
        shapes = [*self.inputs.values(), *self.weights.values(), self.output]
        return ELEMENT * sum(map(prod, shapes))

    def draw(self, seed: int = 0) -> dict[str, Array]:
        """Random inputs and weights; weights keep the result near 1."""
        rng = np.random.default_rng(seed)
        found = {n: rng.standard_normal(s, np.float32) for n, s in self.inputs.items()}
        for name, shape in self.weights.items():
            array = rng.standard_normal(shape, np.float32)
            spread = 1.0 if len(shape) < 2 else (prod(self.output) / max(self.flops, 1)) ** 0.5
            found[name] = array * np.float32(spread)
        return {n: aligned(a) for n, a in found.items()}

    def model(self, arrays: Arrays) -> ModelProto:
        """The ONNX model with these weights."""
        weights = {n: arrays[n] for n in self.weights}
        return one_model(
            self.name, self.nodes(), self.inputs, {"Y": self.output}, {**weights, **self.constants}
        )


def one_model(
    name: str,
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Shape],
    outputs: Mapping[str, Shape],
    weights: Arrays,
) -> ModelProto:
    """A checked ONNX model of float32 inputs and outputs."""

    def infos(shapes: Mapping[str, Shape]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]

    stored = [numpy_helper.from_array(a, n) for n, a in weights.items()]
    graph = helper.make_graph(list(nodes), name, infos(inputs), infos(outputs), stored)
    imports = [helper.make_opsetid("", OPSET)]
    return helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)


@dataclass(frozen=True)
class Product(Kernel):
    """A sum of products in numpy's einsum notation; all operands are inputs of every call.

    >>> Product("mm512", "matmul", "ij,jk->ik", {"i": 512, "j": 512, "k": 512})
    """

    spec: str
    extents: Mapping[str, int]

    native = True

    @property
    def _operands(self) -> list[str]:
        return self.spec.partition("->")[0].split(",")

    @property
    def _names(self) -> list[str]:
        return [chr(ord("A") + n) for n in range(len(self._operands))]

    def _shape(self, letters: str) -> Shape:
        return tuple(self.extents[x] for x in letters)

    @property
    def inputs(self) -> dict[str, Shape]:
        return {n: self._shape(o) for n, o in zip(self._names, self._operands, strict=True)}

    @property
    def output(self) -> Shape:
        return self._shape(self.spec.partition("->")[2])

    @property
    def flops(self) -> int:
        """Operations of the cheapest order of pairwise products."""
        result = self.spec.partition("->")[2]
        return _cheapest(tuple(map(frozenset, self._operands)), frozenset(result), self.extents)

    def nodes(self) -> list[NodeProto]:
        if self.spec in ("ij,jk->ik", "bij,bjk->bik"):
            return [helper.make_node("MatMul", self._names, ["Y"])]
        return [helper.make_node("Einsum", self._names, ["Y"], equation=self.spec)]

    def reference(self, arrays: Arrays) -> Array:
        operands = [arrays[n] for n in self._names]
        if self.nodes()[0].op_type == "MatMul":
            return np.asarray(operands[0] @ operands[1])
        return np.asarray(np.einsum(self.spec, *operands, optimize="optimal"))

    @property
    def text(self) -> Text:
        operands = self._operands
        result = self.spec.partition("->")[2]
        used = dict.fromkeys("".join(operands))
        pairs = list(zip(self._names, operands, strict=True))
        inputs = ", ".join(f"float32 {n}[{','.join(f'N{x}' for x in o)}]" for n, o in pairs)
        factors = " * ".join(f"{n}[{','.join(o)}]" for n, o in pairs)
        operator = "+=!" if set(used) != set(result) else "="
        line = f"Y[{','.join(result)}] {operator} {factors}"
        sizes = {f"N{x}": self.extents[x] for x in used}
        return Text(f"def product({inputs}) -> (Y) {{ {line} }}", sizes, self.inputs)


def _cheapest(
    operands: tuple[frozenset[str], ...], result: frozenset[str], extents: Mapping[str, int]
) -> int:
    """Operations of the best order of pairwise products, by trying all; two per point of each."""
    if len(operands) == 1:
        summed = operands[0] - result
        return prod(extents[x] for x in operands[0]) if summed else 0
    best = None
    for i in range(len(operands)):
        for j in range(i + 1, len(operands)):
            rest = [o for n, o in enumerate(operands) if n not in (i, j)]
            kept = result.union(*rest)
            both = operands[i] | operands[j]
            cost = 2 * prod(extents[x] for x in both)
            if rest:
                cost += _cheapest((*rest, both & kept), result, extents)
            best = cost if best is None else min(best, cost)
    assert best is not None
    return best


@dataclass(frozen=True)
class Composite(Kernel):
    """A computation of a few ONNX nodes, given explicitly.

    Attributes
    ----------
    count : floating-point operations
    ins, fixed, out : shapes of inputs, weights and the output
    make : the nodes
    numpy : the result from arrays by name
    comprehension : the text, its sizes and the shapes of its arrays
    extra : constants such as axes
    own : whether Farkas compiles the comprehension
    """

    count: int
    ins: Mapping[str, Shape]
    fixed: Mapping[str, Shape]
    out: Shape
    make: Callable[[], list[NodeProto]]
    numpy: Callable[[Arrays], Array]
    comprehension: Text | None = None
    extra: Mapping[str, Array] | None = None
    own: bool = False

    @property
    def native(self) -> bool:  # type: ignore[override]
        return self.own

    @property
    def flops(self) -> int:
        return self.count

    @property
    def inputs(self) -> dict[str, Shape]:
        return dict(self.ins)

    @property
    def weights(self) -> dict[str, Shape]:
        return dict(self.fixed)

    @property
    def output(self) -> Shape:
        return self.out

    @property
    def constants(self) -> Arrays:
        return dict(self.extra or {})

    def nodes(self) -> list[NodeProto]:
        return self.make()

    def reference(self, arrays: Arrays) -> Array:
        return self.numpy(arrays)

    @property
    def text(self) -> Text | None:
        return self.comprehension
