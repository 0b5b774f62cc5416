"""Kernels of suite K in int8, bfloat16 and float16.

In int8, products and convolutions take uint8 by int8 and give int32; copies, maxima and sums
keep int8.  Softmax, normalisation, attention and products of more than two factors have no such
form.  In 16 bits, all operands and results have the type, and sums are float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from benchmarks.convolution import Convolution
from benchmarks.kernel import Array, Arrays, Kernel, Product, Shape, Text, aligned
from benchmarks.kernels import suite_k
from benchmarks.narrow.texts import retyped
from benchmarks.sixteen_bits import NUMPY, halved_model

ELEMENTS = ("int8", "bfloat16", "float16")

_OPSET, _IR_VERSION = 21, 10
#: The greatest difference relative to the greatest magnitude; integers are exact.
_TOLERANCE = {"int8": 1e-6, "bfloat16": 3e-2, "float16": 1e-2}
_BIAS = 1000
_INT32 = "int32"
_node = helper.make_node


@dataclass(frozen=True)
class Narrow(Kernel):
    """A kernel of float32, the source, in another type."""

    source: Kernel
    element: str

    @property
    def native(self) -> bool:  # type: ignore[override]
        return self.source.native

    @property
    def wide(self) -> Kernel:
        return self.source

    @property
    def tolerance(self) -> float:  # type: ignore[override]
        return _TOLERANCE[self.element]

    @property
    def flops(self) -> int:
        return self.source.flops

    @property
    def inputs(self) -> dict[str, Shape]:
        return self.source.inputs

    @property
    def weights(self) -> dict[str, Shape]:
        return self.source.weights

    @property
    def output(self) -> Shape:
        return self.source.output

    @property
    def constants(self) -> Arrays:
        return self.source.constants

    @property
    def types(self) -> dict[str, str]:
        """The types of inputs and weights."""
        shapes = {**self.inputs, **self.weights}
        if self.element != "int8":
            return dict.fromkeys(shapes, self.element)
        if not _is_sum(self.source):
            return dict.fromkeys(shapes, "int8")
        first, *rest = shapes
        found = {first: "uint8", **dict.fromkeys(rest, "int8")}
        if isinstance(self.source, Convolution):
            found["B"] = _INT32
        elif "C" in found:
            found["C"] = "float32"  # a bias after scaling
        return found

    @property
    def result_type(self) -> Any:
        return numpy_type(self._result)

    @property
    def _result(self) -> str:
        if self.element != "int8":
            return self.element
        if _operators(self.source) == ("GlobalAveragePool",) or "C" in self.inputs:
            return "float32"
        return _INT32 if _is_sum(self.source) else "int8"

    @property
    def bytes(self) -> int:
        shapes = {**self.inputs, **self.weights}
        moved = sum(prod(s) * numpy_type(self.types[n]).itemsize for n, s in shapes.items())
        return int(moved + prod(self.output) * self.result_type.itemsize)

    @property
    def text(self) -> Text | None:
        text = self.source.text
        if text is None:
            return None
        operators = _operators(self.source)
        if self.element != "int8":
            return retyped(text, self.types, self.element)
        if operators == ("Add", "Relu"):
            whole = text.text.replace("max(A[n,c,h,w] + B[n,c,h,w], 0)", _SATURATED)
            whole = whole.replace("float32 ", "int8 ")
            return Text(whole, text.sizes, text.shapes)
        if operators == ("GlobalAveragePool",):
            whole = text.text.replace("float32 ", "int8 ").replace("X[n,c,h,w]", _MEAN)
            return Text(whole, text.sizes, text.shapes)
        scaled = Text(
            text.text.replace("T[n,i,j] *", "float32(T[n,i,j]) *"), text.sizes, text.shapes
        )
        return retyped(scaled, self.types, "")

    def nodes(self) -> list[NodeProto]:
        return _integer_nodes(self.source) if self.element == "int8" else self.source.nodes()

    def draw(self, seed: int = 0) -> dict[str, Array]:
        """Random operands; integers of elementwise kernels are such that no sum saturates."""
        if self.element != "int8":
            kind = NUMPY[self.element]
            return {n: aligned(a.astype(kind)) for n, a in self.source.draw(seed).items()}
        rng = np.random.default_rng(seed)
        ranges = {"uint8": (0, 255), "int8": (-127, 127), _INT32: (-_BIAS, _BIAS)}
        if not _is_sum(self.source):
            ranges["int8"] = (-63, 63)
        found: dict[str, Array] = {}
        for name, shape in {**self.inputs, **self.weights}.items():
            kind = self.types[name]
            if kind == "float32":
                found[name] = aligned(rng.standard_normal(shape, np.float32))
            else:
                low, high = ranges[kind]
                found[name] = aligned(rng.integers(low, high + 1, shape).astype(kind))
        return found

    def widened(self, arrays: Arrays) -> dict[str, Array]:
        """The same numbers in float32, for the source; its result is the same."""
        return {n: aligned(a.astype(np.float32)) for n, a in arrays.items()}

    def reference(self, arrays: Arrays) -> Array:
        """The source's result by numpy in float32, where sums of these integers are exact."""
        return self.source.reference(self.widened(arrays))

    def model(self, arrays: Arrays) -> ModelProto:
        """The ONNX model with these weights; integers as in MatMulInteger and ConvInteger."""
        if self.element != "int8":
            return halved_model(self.source.model(self.widened(arrays)), self.element)
        weights = {n: arrays[n] for n in self.weights}
        if isinstance(self.source, Convolution):
            rank = len(self.source.size)
            weights["B"] = weights["B"].reshape(-1, *[1] * rank)
        return self._model(self.nodes(), weights, self._result)

    def forms(self, arrays: Arrays) -> dict[str, ModelProto]:
        """Sums as those of float32 behind DequantizeLinear with a scale of 1, ``qdq``.

        OpenVINO looks for such sums only where something is quantised: ``quantised`` quantises the
        inputs, which takes conversions to and from float32 that it may leave out.
        """
        if self.element != "int8" or not _is_sum(self.source):
            return {}
        return {"qdq": self._floats(arrays, False), "quantised": self._floats(arrays, True)}

    def _floats(self, arrays: Arrays, is_quantised: bool) -> ModelProto:
        weights = {n: arrays[n] for n in self.weights} | {"one": np.array(1, np.float32)}
        before, names = [], {}
        for name, kind in self.types.items():
            if kind != "float32":
                zero = f"{kind}_zero"
                weights[zero] = np.array(0, kind)
                names[name] = f"{name}_f"
                read = name
                if is_quantised and name in self.inputs:
                    cast, read = f"{name}_cast", f"{name}_quantised"
                    before.append(_node("Cast", [name], [cast], to=TensorProto.FLOAT))
                    before.append(_node("QuantizeLinear", [cast, "one", zero], [read]))
                before.append(_node("DequantizeLinear", [read, "one", zero], [names[name]]))
        after = self.source.nodes()
        for node in after:
            node.input[:] = [names.get(n, n) for n in node.input]
        return self._model([*before, *after], weights, "float32")

    def _model(self, nodes: list[NodeProto], weights: Arrays, result: str) -> ModelProto:
        def info(name: str, kind: str, shape: Shape) -> onnx.ValueInfoProto:
            number = helper.np_dtype_to_tensor_dtype(numpy_type(kind))
            return helper.make_tensor_value_info(name, number, shape)

        stored = [
            numpy_helper.from_array(a, n) for n, a in {**weights, **self._constants()}.items()
        ]
        graph = helper.make_graph(
            nodes,
            self.name.replace(" ", "_"),
            [info(n, self.types[n], s) for n, s in self.inputs.items()],
            [info("Y", result, self.output)],
            stored,
        )
        imports = [helper.make_opsetid("", _OPSET)]
        return helper.make_model(graph, opset_imports=imports, ir_version=_IR_VERSION)

    def _constants(self) -> Mapping[str, Array]:
        limits = {"low": np.array(0, np.int32), "high": np.array(127, np.int32)}
        is_sum_of_images = _operators(self.source) == ("Add", "Relu")
        return {**self.constants, **(limits if is_sum_of_images else {})}


_SATURATED = "int8(min(max(int32(A[n,c,h,w]) + int32(B[n,c,h,w]), 0), 127))"
_MEAN = "float32(X[n,c,h,w])"


def numpy_type(name: str) -> np.dtype[Any]:
    """The type of a name."""
    return NUMPY.get(name) or np.dtype(name)


def is_product(kernel: Kernel) -> bool:
    """Whether it is a matrix product or another contraction."""
    operators = _operators(kernel)
    return isinstance(kernel, Product) or (_is_sum(kernel) and "Conv" not in operators)


def _operators(kernel: Kernel) -> tuple[str, ...]:
    return tuple(n.op_type for n in kernel.nodes())


def _is_sum(kernel: Kernel) -> bool:
    """Whether it is a product of matrices or a convolution, perhaps with elementwise nodes."""
    return bool({"MatMul", "Einsum", "Conv"}.intersection(_operators(kernel)))


def has_integers(kernel: Kernel) -> bool:
    """Whether a kernel has a meaning in int8."""
    if isinstance(kernel, Product):
        return len(kernel.inputs) == 2
    return not {"Softmax", "LayerNormalization"}.intersection(_operators(kernel))


def _integer_nodes(kernel: Kernel) -> list[NodeProto]:
    """The nodes of a kernel on integers, with sums in int32."""
    found: list[NodeProto] = []
    for node in kernel.nodes():
        if node.op_type == "MatMul":
            node.op_type = "MatMulInteger"
            if "C" in kernel.inputs:  # floats follow
                cast = _node("Cast", ["sum"], list(node.output), to=TensorProto.FLOAT)
                node.output[:] = ["sum"]
                found += [node, cast]
                continue
        elif node.op_type == "Conv":
            node.op_type = "ConvInteger"
            result, bias = list(node.output), node.input.pop()
            node.output[:] = ["sum"]
            found += [node, _node("Add", ["sum", bias], result)]
            continue
        elif node.op_type == "Einsum":
            wide = [f"{n}_wide" for n in node.input]
            for name, copy in zip(node.input, wide, strict=True):
                found.append(_node("Cast", [name], [copy], to=TensorProto.INT32))
            node.input[:] = wide
        elif node.op_type == "GlobalAveragePool":
            found.append(_node("Cast", ["X"], ["floats"], to=TensorProto.FLOAT))
            node.input[:] = ["floats"]
        found.append(node)
    if _operators(kernel) == ("Add", "Relu"):
        return [
            _node("Cast", ["A"], ["A_wide"], to=TensorProto.INT32),
            _node("Cast", ["B"], ["B_wide"], to=TensorProto.INT32),
            _node("Add", ["A_wide", "B_wide"], ["sum"]),
            _node("Clip", ["sum", "low", "high"], ["clipped"]),
            _node("Cast", ["clipped"], ["Y"], to=TensorProto.INT8),
        ]
    return found


def narrowed(kernel: Kernel, element: str) -> Narrow:
    """A kernel in a type."""
    return Narrow(f"{kernel.name} {element}", f"{kernel.family} {element}", kernel, element)


@cache
def kernels() -> tuple[Narrow, ...]:
    """Suite K in each of the types, without what the type gives no meaning."""
    return tuple(
        narrowed(k, e) for e in ELEMENTS for k in suite_k() if e != "int8" or has_integers(k)
    )
