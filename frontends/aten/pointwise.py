"""Operators that compute each element from those of the same place, with broadcasting."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from frontends.aten.emitter import Emitter, converted
from frontends.aten.registry import Arguments, lowering
from frontends.aten.values import Extent, Ref, Unsupported, extent_of, indices, is_empty, wide
from frontends.onnx.core.comprehension_text import literal
from frontends.onnx.ops.broadcasting import operand
from poly.ir.dtypes import DTYPES

_UNLESS_NAN = (
    "select(isnan({self}), {other}, select(isnan({other}), {self}, best({self}, {other})))"
)

#: Computed in the type of the result: the value over the arguments' names.
_SAME = {
    "abs.default": "abs({self})",
    "neg.default": "-{self}",
    "exp.default": "exp({self})",
    "exp2.default": "pow(2, {self})",
    "log.default": "log({self})",
    "sqrt.default": "sqrt({self})",
    "rsqrt.default": "1 / sqrt({self})",
    "reciprocal.default": "1 / {self}",
    "sin.default": "sin({self})",
    "cos.default": "cos({self})",
    "tan.default": "tan({self})",
    "asin.default": "asin({self})",
    "acos.default": "acos({self})",
    "atan.default": "atan({self})",
    "sinh.default": "sinh({self})",
    "cosh.default": "cosh({self})",
    "tanh.default": "tanh({self})",
    "asinh.default": "asinh({self})",
    "acosh.default": "acosh({self})",
    "atanh.default": "atanh({self})",
    "erf.default": "erf({self})",
    "sigmoid.default": "sigmoid({self})",
    "relu.default": "max({self}, 0)",
    "floor.default": "floor({self})",
    "ceil.default": "ceil({self})",
    "trunc.default": "trunc({self})",
    "round.default": "round({self})",
    "sign.default": "select({self} > 0, 1, select({self} < 0, -1, 0))",
    "sgn.default": "select({self} > 0, 1, select({self} < 0, -1, 0))",
    "maximum.default": "max({self}, {other})",
    "minimum.default": "min({self}, {other})",
    "atan2.default": "atan2({self}, {other})",
    "fmax.default": _UNLESS_NAN.replace("best", "max"),
    "fmin.default": _UNLESS_NAN.replace("best", "min"),
    "where.self": "select({condition:bool}, {self}, {other})",
    "where.ScalarOther": "select({condition:bool}, {self}, {other})",
    "where.ScalarSelf": "select({condition:bool}, {self}, {other})",
    "where.Scalar": "select({condition:bool}, {self}, {other})",
    "masked_fill.Scalar": "select({mask:bool}, {value}, {self})",
    "masked_fill.Tensor": "select({mask:bool}, {value}, {self})",
    "leaky_relu.default": "select({self} > 0, {self}, {negative_slope} * {self})",
    "hardtanh.default": "min(max({self}, {min_val}), {max_val})",
    "silu.default": "{self} * sigmoid({self})",
    "threshold_backward.default": "select({self} <= {threshold}, 0, {grad_output})",
    "fill.Scalar": "{value}",
    "fill.Tensor": "{value}",
}

#: Comparisons, in the type to which torch promotes the operands.
_COMPARED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}

#: Operators on truth values.
_LOGICAL = {
    "logical_and.default": "{self:bool} and {other:bool}",
    "logical_or.default": "{self:bool} or {other:bool}",
    "logical_xor.default": "{self:bool} != {other:bool}",
    "logical_not.default": "not {self:bool}",
}

#: Operators on bits, and what they are for bool.
_BITS = {"bitwise_and": ("&", "and"), "bitwise_or": ("|", "or"), "bitwise_xor": ("^", "!=")}

#: Arithmetic of bool, which is computed as that of truth values.
_OF_BOOL = {
    "maximum.default": "{self} or {other}",
    "minimum.default": "{self} and {other}",
    "fmax.default": "{self} or {other}",
    "fmin.default": "{self} and {other}",
    **dict.fromkeys(("abs.default", "sign.default", "sgn.default"), "{self}"),
}

#: What functions of floats are for integers, which have no NaN and nothing to round.
_OF_INTEGERS = {
    **dict.fromkeys(("floor.default", "ceil.default", "trunc.default", "round.default"), "{self}"),
    "fmax.default": _SAME["maximum.default"],
    "fmin.default": _SAME["minimum.default"],
}


class Reads:
    """The reads of the operands of a pointwise operator, as text."""

    def __init__(self, emitter: Emitter, arguments: Mapping[str, Any], out: Ref) -> None:
        self.emitter, self.arguments, self.out = emitter, arguments, out
        self.inputs: dict[str, Ref] = {}
        self._names: dict[str, str] = {}
        self.more: list[Extent] = []

    def text(self, name: str, dtype: str) -> str:
        """An argument in an element type."""
        value = self.arguments[name]
        if isinstance(value, Ref):
            return converted(self._read(value), value.dtype, dtype)
        return self.scalar(value, dtype)

    def scalar(self, value: Any, dtype: str) -> str:
        """A number in an element type.  Raises `Unsupported` if it does not fit."""
        if hasattr(value, "node"):  # of torch, symbolic
            if type(value).__name__ != "SymInt":
                raise Unsupported(f"a symbolic {type(value).__name__}")
            size = extent_of(value)
            if not isinstance(size, int):
                self.more.append(size)
                return f"{dtype}({self.emitter.extent(size)})"
            value = size
        if not isinstance(value, (bool, int, float)):
            raise Unsupported(f"an argument of type {type(value).__name__}")
        if dtype == "bool":
            return literal(bool(value))
        kind = DTYPES[dtype]
        if kind.is_float:
            return f"{dtype}({literal(float(value))})"
        if isinstance(value, float):
            if not math.isfinite(value):
                raise Unsupported(f"{value} as {dtype}")
            value = int(value)  # as torch does where the result is an integer
        bits = kind.bits - (kind.kind != "u")
        if not (0 if kind.kind == "u" else -(1 << bits) + 1) <= int(value) < 1 << bits:
            raise Unsupported(f"{value} as {dtype}")
        return f"{dtype}({literal(int(value))})"

    def _name(self, ref: Ref) -> str:
        if ref.name not in self._names:
            self._names[ref.name] = f"X{len(self._names)}"
            self.inputs[self._names[ref.name]] = ref
        return self._names[ref.name]

    def _read(self, ref: Ref) -> str:
        """The read of a tensor that is broadcast to the result."""
        skip = self.out.rank - ref.rank
        if skip < 0:
            raise Unsupported("an operand of a higher rank than the result")
        for extent, out in zip(ref.shape, self.out.shape[skip:], strict=True):
            if extent not in (out, 1):
                raise Unsupported(f"sizes {extent} and {out}, which may not be equal")
        return operand(self._name(ref), ref.shape, indices(self.out.rank), self.out.shape)


class _Format:
    """Formats a template: ``{self}`` in the type of the computation, ``{self:bool}`` as said."""

    def __init__(self, reads: Reads, dtype: str, name: str) -> None:
        self.reads, self.dtype, self.name = reads, dtype, name

    def __format__(self, spec: str) -> str:
        return self.reads.text(self.name, spec or self.dtype)


def computed(
    e: Emitter, template: str, arguments: Mapping[str, Any], out: Ref, dtype: str | None = None
) -> Ref:
    """Each element by a template, computed in `dtype`, in the type of `out`."""
    reads = Reads(e, arguments, out)
    dtype = dtype or out.dtype
    value = template.format(**{name: _Format(reads, dtype, name) for name in arguments})
    result = value if out.dtype == "bool" else f"{out.dtype}({value})"
    return e.each(out.dtype, out.shape, result, reads.inputs, reads.more)


def promoted(*values: Any) -> str:
    """The type to which torch promotes tensors and numbers."""
    if all(isinstance(v, Ref) for v in values) and len({v.dtype for v in values}) == 1:
        own: str = values[0].dtype
        return own
    torch = import_module("torch")
    common = import_module("torch._prims_common")

    def stand_in(value: Any) -> Any:
        if isinstance(value, Ref):
            return torch.empty([1] * value.rank, dtype=getattr(torch, value.dtype), device="meta")
        return 1 if hasattr(value, "node") else value

    kind = common.ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
    _, found = common.elementwise_dtypes(*map(stand_in, values), type_promotion_kind=kind)
    return str(found).removeprefix("torch.")


def _register_same(name: str, template: str) -> None:
    @lowering(name)
    def same(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
        text = template if outs[0].is_float else _OF_INTEGERS.get(name, template)
        if outs[0].dtype == "bool":
            text = _OF_BOOL.get(name, text)
        return computed(e, text, a, outs[0])


for _name, _template in _SAME.items():
    _register_same(_name, _template)


def _register_compared(name: str, symbol: str) -> None:
    @lowering(f"{name}.Tensor", f"{name}.Scalar")
    def compared(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
        dtype = promoted(a["self"], a["other"])
        if dtype == "bool" and symbol not in ("==", "!="):
            dtype = "int32"
        return computed(e, f"{{self}} {symbol} {{other}}", a, outs[0], dtype)


for _name, _symbol in _COMPARED.items():
    _register_compared(_name, _symbol)


def _register_logical(name: str, template: str) -> None:
    @lowering(name)
    def logical(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
        return computed(e, template, a, outs[0])


for _name, _template in _LOGICAL.items():
    _register_logical(_name, _template)


def _register_bits(name: str, of_integers: str, of_bool: str) -> None:
    @lowering(f"{name}.Tensor", f"{name}.Scalar")
    def bits(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
        symbol = of_bool if outs[0].dtype == "bool" else of_integers
        return computed(e, f"{{self}} {symbol} {{other}}", a, outs[0])


for _name, _symbols in _BITS.items():
    _register_bits(_name, *_symbols)


@lowering("bitwise_not.default")
def bitwise_not(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """All bits the other way; of bool, not."""
    return computed(e, "not {self}" if outs[0].dtype == "bool" else "~{self}", a, outs[0])


@lowering("isnan.default")
def is_nan(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """Whether an element is not a number; integers are numbers."""
    x = a["self"]
    return computed(e, "isnan({self})" if x.is_float else "false", a, outs[0], x.dtype)


@lowering("isinf.default")
def is_inf(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """Whether an element is infinite."""
    x = a["self"]
    return computed(e, "isinf({self})" if x.is_float else "false", a, outs[0], x.dtype)


@lowering("signbit.default")
def sign_bit(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """Whether an element is negative; zeros and NaN of floats have signs, too."""
    text = "false" if a["self"].dtype == "bool" else "signbit({self})"
    return computed(e, text, a, outs[0], a["self"].dtype)


def _logarithm(e: Emitter, a: Arguments, outs: list[Ref], base: int) -> Ref:
    """A logarithm that is whole where the element is a power of the base."""
    out = outs[0]
    text = f"log({{self}}) * {math.log(math.e, base)!r}"
    if out.dtype != "float64":
        return computed(e, text, a, out, "float64")
    found = computed(e, text, a, out)
    whole = f"select(pow({base}, round({{y}})) == {{self}}, round({{y}}), {{y}})"
    return computed(e, whole, {"self": a["self"], "y": found}, out)


@lowering("log2.default")
def binary_logarithm(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """log(self) / log(2)"""
    return _logarithm(e, a, outs, 2)


@lowering("log10.default")
def decimal_logarithm(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """log(self) / log(10)"""
    return _logarithm(e, a, outs, 10)


# --- arithmetic -----------------------------------------------------------------------------------


def _scaled(e: Emitter, a: Arguments, out: Ref, symbol: str) -> Ref:
    alpha = a.get("alpha", 1)
    if out.dtype == "bool":
        if symbol == "-" or alpha not in (1, True):
            raise Unsupported("arithmetic of bool")
        return computed(e, "{self} or {other}", a, out)
    if alpha == 1:
        return computed(e, f"{{self}} {symbol} {{other}}", a, out)
    return computed(e, f"{{self}} {symbol} {{alpha}} * {{other}}", a, out)


@lowering("add.Tensor", "add.Scalar")
def add(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """self + alpha * other"""
    return _scaled(e, a, outs[0], "+")


@lowering("sub.Tensor", "sub.Scalar")
def subtract(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """self - alpha * other"""
    return _scaled(e, a, outs[0], "-")


@lowering("rsub.Tensor", "rsub.Scalar")
def subtract_from(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """other - alpha * self"""
    swapped = {**a, "self": a["other"], "other": a["self"]}
    return _scaled(e, swapped, outs[0], "-")


@lowering("div.Tensor", "div.Scalar")
def quotient(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """self / other"""
    return computed(e, "{self} / {other}", a, outs[0], wide(outs[0].dtype))


@lowering("mul.Tensor", "mul.Scalar")
def multiply(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """self * other"""
    text = "{self} and {other}" if outs[0].dtype == "bool" else "{self} * {other}"
    return computed(e, text, a, outs[0], wide(outs[0].dtype))


#: How torch rounds a quotient down: the remainder is exact, its quotient nearly so.
_FLOOR_PARTS = (
    "({self} - fmod({self}, {other})) / {other}"
    " - select(fmod({self}, {other}) != 0 and ({other} < 0) != (fmod({self}, {other}) < 0), 1, 0)"
)


@lowering("div.Tensor_mode", "div.Scalar_mode", "floor_divide.default")
def rounded_quotient(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """The quotient rounded to zero or down."""
    mode, out = a.get("rounding_mode", "floor"), outs[0]
    if mode is None:
        return quotient(e, a, outs)
    if not out.is_float:
        _nonzero(e, a["other"], outs[0])
        return computed(e, "{self} / {other}" if mode == "trunc" else "{self} // {other}", a, out)
    if mode == "trunc":
        return computed(e, "trunc({self} / {other})", a, out)
    part = computed(e, _FLOOR_PARTS, a, out)
    whole = {**a, "part": part}
    text = (
        "select({other} == 0, {self} / {other},"
        " floor({part}) + select({part} - floor({part}) > 0.5, 1, 0))"
    )
    return computed(e, text, whole, out)


@lowering("fmod.Tensor", "fmod.Scalar")
def remainder_to_zero(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """The remainder with the sign of the dividend."""
    if not outs[0].is_float:
        _nonzero(e, a["other"], outs[0])
    return computed(e, "fmod({self}, {other})", a, outs[0])


@lowering("remainder.Tensor", "remainder.Scalar")
def remainder(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """The remainder with the sign of the divisor."""
    if not outs[0].is_float:
        _nonzero(e, a["other"], outs[0])
        return computed(e, "{self} % {other}", a, outs[0])
    rest = computed(e, "fmod({self}, {other})", a, outs[0])
    text = "select({rest} != 0 and ({rest} < 0) != ({other} < 0), {rest} + {other}, {rest})"
    return computed(e, text, {**a, "rest": rest}, outs[0])


def _nonzero(e: Emitter, value: Any, out: Ref) -> None:
    """torch ends a division of integers by 0 with an error."""
    if is_empty(out.shape):
        return
    if isinstance(value, Ref) and value.is_integer:
        e.refuse(value, "{0} == 0", RuntimeError, "ZeroDivisionError")
    elif isinstance(value, Ref) or not value or hasattr(value, "node"):
        raise Unsupported("a division of integers that may be by 0")


@lowering(
    "bitwise_left_shift.Tensor", "bitwise_left_shift.Tensor_Scalar", "prims.shift_left.default"
)
def left_shift(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """self * 2 ** other; 0 where all bits leave."""
    bits = _bits(outs[0])
    away = f"{{other}} < 0 or {{other}} >= {bits}"
    return computed(e, f"select({away}, 0, {{self}} << ({{other}} & {bits - 1}))", a, outs[0])


@lowering(
    "bitwise_right_shift.Tensor", "bitwise_right_shift.Tensor_Scalar",
    "prims.shift_right_arithmetic.default",
)  # fmt: skip
def right_shift(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """self // 2 ** other; only signs remain where all bits leave."""
    bits = _bits(outs[0])
    away = f"{{other}} < 0 or {{other}} >= {bits}"
    sign = "0" if outs[0].dtype.startswith("u") else "select({self} < 0, -1, 0)"
    text = f"select({away}, {sign}, {{self}} >> ({{other}} & {bits - 1}))"
    return computed(e, text, a, outs[0])


def _bits(out: Ref) -> int:
    if not out.is_integer:
        raise Unsupported(f"shifts of {out.dtype}")
    return DTYPES[out.dtype].bits


def float_power(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """self ** exponent, and small powers of integers."""
    out, exponent = outs[0], a["exponent"]
    number = exponent if isinstance(exponent, (int, float)) else None
    if number is not None and number in (1, 2, 3, 4):
        return computed(e, " * ".join(["{self}"] * int(number)), a, out)
    if number == 0:
        return computed(e, "1", a, out)
    if number in (0.5, -0.5, -1, -2):
        text = {
            0.5: "sqrt({self})",
            -0.5: "1 / sqrt({self})",
            -1: "1 / {self}",
            -2: "1 / ({self} * {self})",
        }
        return computed(e, text[number], a, out)
    return computed(e, "pow({self}, {exponent})", a, out)


#: log(1 + x), precise near 0 (Goldberg 1991, theorem 4).
LOG1P = "select(1 + {self} == 1, {self}, log(1 + {self}) * ({self} / ((1 + {self}) - 1)))"


@lowering("log1p.default")
def log1p(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """log(1 + x)"""
    return computed(e, f"select({{self}} == inf, {{self}}, {LOG1P})", a, outs[0])


@lowering("expm1.default")
def expm1(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """exp(x) - 1, near 0 by 2 t / (1 - t) with t = tanh(x / 2)."""
    near = "2 * tanh(0.5 * {self}) / (1 - tanh(0.5 * {self}))"
    return computed(e, f"select(abs({{self}}) < 0.5, {near}, exp({{self}}) - 1)", a, outs[0])


@lowering("hypot.default")
def hypotenuse(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """sqrt(x^2 + y^2) without overflow; inf beside NaN is inf, as in C."""
    high, low = "max(abs({self}), abs({other}))", "min(abs({self}), abs({other}))"
    text = (
        f"select(isinf({{self}}) or isinf({{other}}), inf, select({high} == 0, {high},"
        f" {high} * sqrt(1 + ({low} / {high}) * ({low} / {high}))))"
    )
    return computed(e, text, a, outs[0])


@lowering("clamp.default", "clamp.Tensor")
def clamp(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """min(max(self, min), max), of which one may be missing."""
    given = {k: v for k, v in a.items() if v is not None}
    text = "max({self}, {min})" if "min" in given else "{self}"
    if "max" in given:
        text = f"min({text}, {{max}})"
    if outs[0].dtype == "bool":
        return e.cast(computed(e, text, given, Ref("", "int32", outs[0].shape)), "bool")
    return computed(e, text, given, outs[0])


@lowering("clamp_min.default", "clamp_max.default", "clamp_min.Tensor", "clamp_max.Tensor")
def clamp_one(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """One bound of `clamp`."""
    return clamp(e, a, outs)


def short_erfc(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """1 - erf(x) of float32; beyond 0.5 by a polynomial (Press et al., Numerical Recipes, 6.2)."""
    t = computed(e, "1 / (1 + 0.5 * abs({self}))", a, outs[0])
    text = "0"
    for c in reversed(_ERFC):
        text = f"({c!r} + {{t}} * {text})" if text != "0" else f"({c!r})"
    tail = computed(e, f"{{t}} * exp({text} - {{self}} * {{self}})", {**a, "t": t}, outs[0])
    near = "select(abs({self}) < 0.5, 1 - erf({self}), select({self} > 0, {tail}, 2 - {tail}))"
    return computed(e, near, {**a, "tail": tail}, outs[0])


#: Coefficients of the exponent, from the constant on.
_ERFC = (
    -1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398,
    1.48851587, -0.82215223, 0.17087277,
)  # fmt: skip


@lowering("angle.default")
def angle(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """0 of what is positive, pi of what is negative."""
    text = f"select({{self}} < 0, {math.pi!r}, 0)"
    if a["self"].is_float:
        text = f"select(isnan({{self}}), {{self}}, {text})"
    return computed(e, text, a, outs[0])


@lowering("elu.default")
def elu(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """scale * (x > 0 ? x : alpha * (exp(input_scale * x) - 1))"""
    part = {**a, "self": computed(e, "min({self}, 0) * {input_scale}", a, outs[0])}
    grown = expm1(e, part, outs)
    text = "{scale} * select({self} > 0, {self}, {alpha} * {grown})"
    return computed(e, text, {**a, "grown": grown}, outs[0])


@lowering("gelu.default")
def gelu(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """x/2 (1 + erf(x / sqrt 2)), or its approximation by tanh."""
    if a.get("approximate", "none") == "tanh":
        inner = (
            f"{math.sqrt(2 / math.pi)!r} * ({{self}} + 0.044715 * {{self}} * {{self}} * {{self}})"
        )
        return computed(e, f"0.5 * {{self}} * (1 + tanh({inner}))", a, outs[0])
    return computed(e, f"0.5 * {{self}} * (1 + erf({{self}} * {math.sqrt(0.5)!r}))", a, outs[0])


# --- types ----------------------------------------------------------------------------------------


@lowering(
    "_to_copy.default", "clone.default", "alias.default", "lift_fresh_copy.default",
    "detach.default", "alias_copy.default", "contiguous.default",
)  # fmt: skip
def converted_copy(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """The same elements, perhaps in another type."""
    return e.cast(a["self"], outs[0].dtype)


@lowering("prims.convert_element_type.default")
def convert_element_type(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """The same elements in another type."""
    return e.cast(a["a"], outs[0].dtype)


@lowering("copy.default")
def copied(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """`src` under the shape and in the type of `self`."""
    return computed(e, "{src}", {"src": a["src"]}, outs[0])
