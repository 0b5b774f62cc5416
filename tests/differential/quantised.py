"""Random quantised graphs of ONNX, and what their results may differ from those of others.

A case is a model of 1 to 6 operations with an input, and for each output how far results may be
apart.  Four forms are drawn:

* sums of integers (ConvInteger, MatMulInteger) and operators that round once (QLinearConv,
  QLinearMatMul): results are equal to the last bit;
* DynamicQuantizeLinear before them: likewise, but the product with the scales is float32;
* operators of ONNX Runtime's own domain, which may each be one step apart;
* QuantizeLinear and DequantizeLinear around float operators.  Where nothing is rounded in between
  (scales that are powers of two, or operators that only choose or move), results are equal.  Else
  a float sum in another order, or a fused multiply-add, may end on the other side of the middle
  between two steps: then a value is one step off, and what is computed from it a little.  ONNX's
  reference and ONNX Runtime differ in the same way from each other.  A bound follows the weights
  through the graph; as it is far above what happens, `STEPS` and `SHARE` are limits, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray
#: What float sums of these sizes may differ by, whatever their order.
ROUNDING = 1e-4
#: At most so many steps and such a share of the elements may be off.
STEPS, SHARE = 3, 0.1
OPSETS = (13, 19, 21)
_TYPES = {np.dtype(np.int8): TensorProto.INT8, np.dtype(np.uint8): TensorProto.UINT8}


@dataclass(frozen=True)
class Case:
    """A graph with its input.

    form : ``operators``, ``dynamic``, ``contrib`` or ``qdq``
    allowed : for each output, how far its elements may be apart
    operations : names of the operators
    """

    seed: int
    form: str
    model: onnx.ModelProto
    inputs: dict[str, Array]
    allowed: tuple[float, ...]
    operations: tuple[str, ...]


@dataclass(frozen=True)
class Quantity:
    """A value: its name, shape, and how far results may be apart.

    exact : no float operation that gave it rounds
    """

    name: str
    shape: tuple[int, ...]
    apart: float = 0.0
    exact: bool = True


@dataclass
class Draw:
    """A graph while it is drawn."""

    rng: np.random.Generator
    opset: int
    is_binary: bool  # scales are powers of two
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    operations: list[str] = field(default_factory=list)

    def chance(self, percent: int) -> bool:
        return bool(self.rng.integers(100) < percent)

    def pick(self, values: Sequence[Any]) -> Any:
        return values[int(self.rng.integers(len(values)))]

    def constant(self, array: Array, what: str = "c") -> str:
        name = f"{what}{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        return name

    def node(self, operator: str, inputs: Sequence[str], **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(
                operator, list(inputs), [name], name=f"n{len(self.nodes)}", **attributes
            )
        )
        return name

    def scale(self, count: int = 0, least: float = 0.01, most: float = 0.06) -> Array:
        """One scale, or one for each of `count` channels."""
        found = self.rng.uniform(least, most, count or None)
        if self.is_binary:
            found = 2.0 ** np.round(np.log2(found))
        return np.asarray(found, np.float32)

    def zero(self, kind: Any, count: int = 0) -> Array:
        """A zero point in the middle half of a type, or 0."""
        if self.chance(30):
            return np.zeros(count or (), kind)
        low, high = np.iinfo(kind).min // 2, np.iinfo(kind).max * 3 // 4
        return np.asarray(self.rng.integers(low, high, count or None), kind)

    def shaped(self, array: Array) -> Array:
        """A scalar, as one or as a vector of one element."""
        return array.reshape(1) if array.ndim == 0 and self.chance(50) else array

    def kind(self) -> Any:
        return self.pick([np.int8, np.uint8])


# --- QuantizeLinear and DequantizeLinear around float operators ---------------------------------


def requantised(d: Draw, value: Quantity) -> Quantity:
    """A float value through QuantizeLinear and DequantizeLinear."""
    scale, zero = d.scale(), d.zero(d.kind())
    names = [d.constant(d.shaped(scale), "s"), d.constant(d.shaped(zero), "z")]
    q = d.node("QuantizeLinear", [value.name, *names])
    step = float(scale)
    off = value.apart + (0.0 if value.exact else ROUNDING)
    apart = step * np.ceil(off / step - 1e-9)
    return Quantity(d.node("DequantizeLinear", [q, *names]), value.shape, float(apart))


def weights(d: Draw, shape: tuple[int, ...], axis: int, inner: int) -> tuple[str, float]:
    """Dequantised weights, and the greatest sum of their magnitudes for one output."""
    kind, count = d.kind(), shape[axis] if d.chance(50) else 0
    spread = 0.02 * inner**-0.5
    scale = d.scale(count, spread, 2 * spread)
    integers = d.rng.integers(np.iinfo(kind).min, np.iinfo(kind).max + 1, shape).astype(kind)
    zero = np.asarray(d.zero(kind, count) if d.chance(30) else np.zeros(count or (), kind), kind)
    if not count:
        scale, zero = d.shaped(scale), d.shaped(zero)
    names = [d.constant(integers, "w"), d.constant(scale, "s"), d.constant(zero, "z")]
    made = d.node("DequantizeLinear", names, **({"axis": axis} if count else {}))
    along = [1] * len(shape)
    along[axis] = -1
    wide = [a.astype(np.float64) for a in (integers, zero, scale)]
    if count:
        wide[1:] = [a.reshape(along) for a in wide[1:]]
    floats = np.abs((wide[0] - wide[1]) * wide[2])
    most = floats.sum(tuple(n for n in range(len(shape)) if n != axis)).max()
    return made, float(most)


def conv(d: Draw, x: Quantity) -> Quantity:
    attributes, shape, out = _windows(d, x.shape)
    w, most = weights(d, shape, 0, int(np.prod(shape[1:])))
    operands = [x.name, w]
    if d.chance(50):
        # In units of 2^-12, so that adding it is exact where the sum is.
        bias = d.rng.integers(-2048, 2048, shape[0]) / 4096.0
        operands.append(d.constant(bias.astype(np.float32), "b"))
    name = d.node("Conv", operands, **attributes)
    return Quantity(name, out, x.apart * most, x.exact and d.is_binary)


def _windows(
    d: Draw, shape: tuple[int, ...], fixed: tuple[int, ...] | None = None
) -> tuple[dict[str, Any], tuple[int, ...], tuple[int, ...]]:
    """Attributes of a convolution, and the shapes of its weights and its result."""
    channels = shape[1]
    groups = d.pick([1, 1, 1, channels, 2 if channels % 2 == 0 else 1])
    filters = groups * d.pick([1, 2]) if groups > 1 else d.pick([1, 3, 8, 17])
    window, strides, dilations, pads, out = [], [], [], [], []
    for extent in shape[2:]:
        dilation, size = d.pick([1, 1, 2]), d.pick([1, 2, 3, 3])
        low, high = int(d.rng.integers(0, size)), int(d.rng.integers(0, size))
        reach = dilation * (size - 1) + 1
        if reach > extent + low + high:
            dilation, size, low, high, reach = 1, 1, 0, 0, 1
        stride = d.pick([1, 1, 2])
        window.append(size)
        strides.append(stride)
        dilations.append(dilation)
        pads.append((low, high))
        out.append((extent + low + high - reach) // stride + 1)
    attributes = {
        "kernel_shape": window, "strides": strides, "dilations": dilations, "group": groups,
        "pads": [p[0] for p in pads] + [p[1] for p in pads],
    }  # fmt: skip
    return attributes, (filters, channels // groups, *window), (shape[0], filters, *out)


def matmul(d: Draw, x: Quantity) -> Quantity:
    inner, columns = x.shape[-1], d.pick([1, 4, 16, 19])
    if len(x.shape) == 2 and d.chance(50):
        transposed = d.chance(50)
        shape = (columns, inner) if transposed else (inner, columns)
        w, most = weights(d, shape, 0 if transposed else 1, inner)
        name = d.node("Gemm", [x.name, w], transB=int(transposed))
    else:
        w, most = weights(d, (inner, columns), 1, inner)
        name = d.node("MatMul", [x.name, w])
    return Quantity(name, (*x.shape[:-1], columns), x.apart * most, x.exact and d.is_binary)


def arithmetic(d: Draw, x: Quantity) -> Quantity:
    """A sum or product with itself or a quantised constant that is broadcast."""
    operator = d.pick(["Add", "Mul"])
    if d.chance(40):
        other, apart, most = x.name, x.apart, 8.0
    else:
        kept = [n if d.chance(60) else 1 for n in x.shape]
        kind, scale = d.kind(), d.scale()
        array = d.rng.integers(np.iinfo(kind).min, np.iinfo(kind).max + 1, kept).astype(kind)
        names = [d.constant(array, "w"), d.constant(scale, "s"), d.constant(d.zero(kind), "z")]
        other, apart = d.node("DequantizeLinear", names), 0.0
        most = 256 * float(scale)
    name = d.node(operator, [x.name, other])
    off = x.apart + apart if operator == "Add" else most * x.apart + 8.0 * apart
    return Quantity(name, x.shape, off, x.exact and d.is_binary)


def pool(d: Draw, x: Quantity) -> Quantity:
    operator = d.pick(["MaxPool", "AveragePool", "GlobalAveragePool"])
    if operator == "GlobalAveragePool":
        out = (*x.shape[:2], *[1] * len(x.shape[2:]))
        return Quantity(d.node(operator, [x.name]), out, x.apart, False)
    window = [min(d.pick([2, 3]), n) for n in x.shape[2:]]
    strides = [d.pick([1, 2]) for _ in window]
    low, high = ([int(d.rng.integers(0, w)) for w in window] for _ in range(2))
    out = [
        (n + a + b - w) // s + 1
        for n, w, s, a, b in zip(x.shape[2:], window, strides, low, high, strict=True)
    ]
    more = {"count_include_pad": int(d.chance(50))} if operator == "AveragePool" else {}
    name = d.node(operator, [x.name], kernel_shape=window, strides=strides, pads=low + high, **more)
    is_exact = x.exact and operator == "MaxPool"
    return Quantity(name, (*x.shape[:2], *out), x.apart, is_exact)


def pointwise(d: Draw, x: Quantity) -> Quantity:
    operator = d.pick(["Relu", "Clip", "Sigmoid", "Softmax"])
    if operator == "Clip":
        low, high = (d.constant(np.array(v, np.float32)) for v in (-0.5, d.pick([0.75, 2.0])))
        return Quantity(d.node("Clip", [x.name, low, high]), x.shape, x.apart, x.exact)
    more = {"axis": -1} if operator == "Softmax" else {}
    is_exact = x.exact and operator == "Relu"
    return Quantity(d.node(operator, [x.name], **more), x.shape, x.apart, is_exact)


def moved(d: Draw, x: Quantity) -> Quantity:
    operators = ["Transpose", "Reshape", "Concat"] + ["Resize"] * (len(x.shape) == 4)
    operator = d.pick(operators)
    if operator == "Transpose":
        order = [int(n) for n in d.rng.permutation(len(x.shape))]
        out = tuple(x.shape[n] for n in order)
        return Quantity(d.node(operator, [x.name], perm=order), out, x.apart, x.exact)
    if operator == "Concat":
        axis = int(d.rng.integers(len(x.shape)))
        out = tuple(2 * n if a == axis else n for a, n in enumerate(x.shape))
        return Quantity(d.node(operator, [x.name] * 2, axis=axis), out, x.apart, x.exact)
    if operator == "Resize":
        factors = d.constant(np.array([1, 1, 2, 2], np.float32))
        name = d.node(
            operator, [x.name, "", factors], mode="nearest",
            coordinate_transformation_mode="asymmetric", nearest_mode="floor",
        )  # fmt: skip
        out = (*x.shape[:2], *(2 * n for n in x.shape[2:]))
        return Quantity(name, out, x.apart, x.exact)
    out = (x.shape[0], int(np.prod(x.shape[1:])))
    shape = d.constant(np.array(out, np.int64))
    return Quantity(d.node(operator, [x.name, shape]), out, x.apart, x.exact)


def _qdq(d: Draw, seed: int) -> Case:
    shape = d.pick([(1, 4, 9, 7), (2, 3, 8, 8), (1, 8, 5, 6), (3, 12), (2, 5, 16)])
    value = requantised(d, Quantity("x", shape))
    for _ in range(int(d.rng.integers(1, 7))):
        steps: list[Callable[[Draw, Quantity], Quantity]] = [matmul, arithmetic, pointwise, moved]
        if len(value.shape) == 4:
            steps += [conv, conv, conv, pool]
        value = d.pick(steps)(d, value)
        d.operations.append(d.nodes[-1].op_type)
        value = requantised(d, value)
        if np.prod(value.shape) > 5000:
            break
    step = float(d.constants[d.nodes[-1].input[1]].reshape(()))
    apart, kind = min(value.apart, STEPS * step), TensorProto.FLOAT
    if d.chance(50):  # the integers themselves
        last = d.nodes.pop()
        apart, kind = apart / step, _TYPES[d.constants[last.input[2]].dtype]
        value = Quantity(last.input[0], value.shape)
    value = Quantity(value.name, value.shape, apart)
    inputs = {"x": d.rng.standard_normal(shape).astype(np.float32)}
    return _case(d, seed, "qdq", inputs, value, kind)


# --- operators on integers ----------------------------------------------------------------------


def _integers(d: Draw, shape: Sequence[int], kind: Any) -> Array:
    return d.rng.integers(np.iinfo(kind).min, np.iinfo(kind).max + 1, shape).astype(kind)


def _sum(d: Draw, x: str, shape: tuple[int, ...], kind: Any, rounds: bool) -> Quantity:
    """A convolution or product of integers; its scale and zero point if it `rounds` once."""
    is_conv = len(shape) == 4 and d.chance(70)
    attributes: dict[str, Any] = {}
    if is_conv:
        attributes, w_shape, out = _windows(d, shape)
    else:
        w_shape = (shape[-1], d.pick([1, 5, 16, 18]))
        out = (*shape[:-1], w_shape[1])
    # int8 by uint8 is what no runtime has.
    w_kind = np.int8 if kind == np.int8 else d.kind()
    each = w_shape[0 if is_conv else 1] if d.chance(40) and (rounds or not is_conv) else 0
    w = d.constant(_integers(d, w_shape, w_kind), "w")
    # Weights with a scale each have the same zero point in ONNX Runtime.
    w_zero = np.full(each or (), d.zero(w_kind), w_kind)
    zeros = [d.constant(d.shaped(z), "z") for z in (d.zero(kind), w_zero)]
    if not rounds:
        operator = "ConvInteger" if is_conv else "MatMulInteger"
        name = d.node(operator, [x, w, *zeros], **attributes)
        return Quantity(name, out)
    spread = 0.02 * float(np.prod(w_shape[1:] if is_conv else w_shape[:1])) ** -0.5
    scales = [d.scale(), d.scale(each, spread, 2 * spread), d.scale()]
    names = [d.constant(d.shaped(s), "s") for s in scales]
    zero = d.constant(d.shaped(d.zero(kind)), "z")
    operands = [x, names[0], zeros[0], w, names[1], zeros[1], names[2], zero]
    if is_conv and d.chance(50):
        operands.append(d.constant(d.rng.integers(-3000, 3000, w_shape[0]).astype(np.int32), "b"))
    operator = "QLinearConv" if is_conv else "QLinearMatMul"
    return Quantity(d.node(operator, operands, **attributes), out)


def _operators(d: Draw, seed: int) -> Case:
    kind = d.kind()
    shape = d.pick([(1, 4, 9, 7), (2, 3, 8, 8), (1, 8, 5, 6), (3, 12), (2, 5, 16)])
    inputs = {"x": _integers(d, shape, kind)}
    value = Quantity("x", shape)
    count = int(d.rng.integers(1, 7))
    for n in range(count):
        rounds = n + 1 < count or d.chance(60)
        value = _sum(d, value.name, value.shape, kind, rounds)
        d.operations.append(d.nodes[-1].op_type)
        if np.prod(value.shape) > 5000:
            break
    is_sum = d.operations[-1] in ("ConvInteger", "MatMulInteger")
    result = TensorProto.INT32 if is_sum else _TYPES[np.dtype(kind)]
    return _case(d, seed, "operators", inputs, value, result)


def _dynamic(d: Draw, seed: int) -> Case:
    """As tools quantise layers while they run: a sum of integers, times both scales."""
    shape = d.pick([(1, 4, 9, 7), (2, 3, 8, 8), (3, 12), (2, 5, 16)])
    d.nodes.append(
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"], name="dynamic")
    )
    d.operations.append("DynamicQuantizeLinear")
    total = _sum(d, "q", shape, np.uint8, False)
    d.nodes[-1].input[2] = "zero"
    d.operations.append(d.nodes[-1].op_type)
    floats = d.node("Cast", [total.name], to=TensorProto.FLOAT)
    factor = d.node("Mul", ["scale", d.constant(d.scale(), "s")])
    name = d.node("Mul", [floats, factor])
    inputs = {"x": d.rng.standard_normal(shape).astype(np.float32)}
    return _case(d, seed, "dynamic", inputs, Quantity(name, total.shape), TensorProto.FLOAT)


# --- operators of ONNX Runtime's own domain ------------------------------------------------------

_DOMAIN = "com.microsoft"


def _scaled(d: Draw, kind: Any, step: float | None = None) -> tuple[str, str, float]:
    """A scale and a zero point, which are scalars there, and the scale's value."""
    scale = d.scale() if step is None else np.asarray(step, np.float32)
    return d.constant(scale, "s"), d.constant(d.zero(kind), "z"), float(scale)


def _rounded(
    d: Draw, operator: str, value: Quantity, kind: Any, operands: Sequence[str],
    off: float, step: float, shape: tuple[int, ...], **attributes: Any,
) -> tuple[Quantity, tuple[str, str, float]]:  # fmt: skip
    """An operator whose float result is off by `off` for each step of the value, rounded."""
    result = _scaled(d, kind, step)
    name = d.node(operator, [*operands, *result[:2]], domain=_DOMAIN, **attributes)
    apart = np.ceil(value.apart * off / result[2]) + 1
    return Quantity(name, shape, float(apart), False), result


def _contrib(d: Draw, seed: int) -> Case:
    d.is_binary = False  # many results would be in the middle between two steps
    kind = d.kind()
    shape = d.pick([(1, 4, 9, 7), (2, 3, 8, 8), (3, 12), (2, 5, 16)])
    inputs = {"x": _integers(d, shape, kind)}
    value, own = Quantity("x", shape), _scaled(d, kind)
    for _ in range(int(d.rng.integers(1, 4))):
        shape, x = value.shape, [value.name, *own[:2]]
        operators = ["Add", "Mul", "Sigmoid", "LeakyRelu"]
        operators += ["AveragePool", "GlobalAveragePool"] * (len(shape) == 4)
        operator = d.pick(operators)
        step, more = own[2] * d.rng.uniform(0.7, 1.5), {}
        off = own[2]
        if operator in ("Add", "Mul"):
            kept = tuple(n if d.chance(60) else 1 for n in shape)
            other = _scaled(d, kind)
            x += [d.constant(_integers(d, kept, kind), "w"), *other[:2]]
            if operator == "Mul":
                off, step = off * 256 * other[2], step * 64 * other[2]
        elif operator == "AveragePool":
            window = [int(d.rng.integers(1, n + 1)) for n in shape[2:]]
            more = {"kernel_shape": window}
            shape = (*shape[:2], *(n - w + 1 for n, w in zip(shape[2:], window, strict=True)))
        elif operator == "GlobalAveragePool":
            shape = (*shape[:2], 1, 1)
        elif operator == "Sigmoid":
            step = d.rng.uniform(0.003, 0.01)
        value, own = _rounded(d, f"QLinear{operator}", value, kind, x, off, step, shape, **more)
        d.operations.append(f"QLinear{operator}")
    if len(value.shape) == 2 and d.chance(70):
        inner, columns = value.shape[1], d.pick([5, 16, 17])
        weights_ = _integers(d, (inner, columns), np.int8 if kind == np.int8 else d.kind())
        scale = d.constant(d.scale(0, 0.001, 0.002), "s")
        zero = d.constant(np.zeros((), weights_.dtype), "z")
        x = [value.name, *own[:2], d.constant(weights_, "w"), scale, zero, ""]
        off = own[2] * float(np.abs(weights_.astype(np.int32)).sum(0).max()) * 0.002
        shape = (value.shape[0], columns)
        value, own = _rounded(d, "QGemm", value, kind, x, off, own[2], shape)
        d.operations.append("QGemm")
    return _case(d, seed, "contrib", inputs, value, _TYPES[np.dtype(kind)])


def _case(
    d: Draw, seed: int, form: str, inputs: dict[str, Array], value: Quantity, kind: int
) -> Case:
    (x,) = inputs.values()
    number = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        d.nodes,
        f"quantised_{seed}",
        [helper.make_tensor_value_info("x", number, x.shape)],
        [helper.make_tensor_value_info(value.name, kind, value.shape)],
        [numpy_helper.from_array(a, n) for n, a in d.constants.items()],
    )
    imports = [helper.make_opsetid("", d.opset), helper.make_opsetid(_DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10 if d.opset > 18 else 8)
    return Case(seed, form, model, inputs, (value.apart,), tuple(d.operations))


def random_case(seed: int) -> Case:
    """The case of a seed: three of seven are QDQ."""
    rng = np.random.default_rng(seed)
    draw = Draw(rng, OPSETS[seed % len(OPSETS)], bool(rng.integers(100) < 40))
    make = (_qdq, _operators, _qdq, _dynamic, _qdq, _operators, _contrib)[seed % 7]
    return make(draw, seed)
