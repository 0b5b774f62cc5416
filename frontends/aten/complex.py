"""Complex values, as two real ones.

What moves elements is done to both; arithmetic is spelt out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import frontends.aten.index
import frontends.aten.reduce
import frontends.aten.scatter  # noqa: F401 - these fill the registry
from frontends.aten.contract import matmul
from frontends.aten.emitter import Emitter
from frontends.aten.move import filled
from frontends.aten.pointwise import computed, promoted
from frontends.aten.registry import LOWERINGS, Arguments, complex_lowering
from frontends.aten.values import PARTS, Complex, Ref, Unsupported, indices
from frontends.onnx.core.comprehension_text import at

#: Operators that do the same to both parts: moves, and what is linear over real numbers.
_LIFTED = (
    "view.default _unsafe_view.default reshape.default unsqueeze.default squeeze.default "
    "squeeze.dim squeeze.dims view_copy.default unsqueeze_copy.default permute.default "
    "permute_copy.default transpose.int t.default expand.default expand_copy.default "
    "slice.Tensor select.int select_copy.int cat.default constant_pad_nd.default flip.default "
    "repeat.default diagonal.default diagonal_copy.default as_strided.default unfold.default "
    "unfold_backward.default "
    "split_with_sizes.default split.Tensor unbind.int split_with_sizes_copy.default "
    "slice_scatter.default select_scatter.default diagonal_scatter.default full.default "
    "full_like.default scalar_tensor.default new_full.default zeros.default "
    "zeros_like.default new_zeros.default empty.memory_format empty_like.default "
    "new_empty.default empty_permuted.default empty_strided.default new_empty_strided.default "
    "clone.default alias.default detach.default alias_copy.default contiguous.default "
    "lift_fresh_copy.default copy.default index_select.default gather.default index.Tensor "
    "_unsafe_index.Tensor embedding.default where.self where.ScalarOther where.ScalarSelf "
    "where.Scalar masked_fill.Scalar masked_fill.Tensor fill.Scalar fill.Tensor add.Tensor "
    "add.Scalar sub.Tensor sub.Scalar rsub.Tensor rsub.Scalar neg.default sum.default "
    "sum.dim_IntList mean.default mean.dim cumsum.default "
    "index_put.default _unsafe_index_put.default scatter.src scatter.value scatter_add.default "
)

#: Arguments whose elements are those of the result, so that real ones have an imaginary part of 0.
_ELEMENTS = {"self", "other", "src", "source", "values", "value", "fill_value", "s", "tensors"}


def parts(e: Emitter, pairs: Ref, dtype: str) -> Complex:
    """The complex values whose parts are in a last dimension."""
    own = indices(pairs.rank - 1)
    re, im = (
        e.each(PARTS[dtype], pairs.shape[:-1], at("X", [*own, str(n)]), {"X": pairs})
        for n in range(2)
    )
    return Complex(dtype, re, im)


def joined(e: Emitter, x: Complex) -> Ref:
    """The parts in a last dimension."""
    own = indices(x.rank)
    lines = [
        e.line(f"{at('Y', [*own, str(n)])} = {at(name, own)}", own, x.shape)
        for n, name in enumerate("RI")
    ]
    kind = (x.re.dtype, (*x.shape, 2))
    return e.program([kind], lines, {"R": x.re, "I": x.im}, more=x.shape)[0]


# --- the same for both parts ----------------------------------------------------------------------


def _half(e: Emitter, value: Any, part: str, is_elements: bool) -> Any:
    """One part, re or im, of an argument."""
    if isinstance(value, Complex):
        return getattr(value, part)
    if isinstance(value, list):
        return [_half(e, v, part, is_elements) for v in value]
    if isinstance(value, complex):
        return value.real if part == "re" else value.imag
    if part == "re" or not is_elements or value is None:
        return value
    return filled(e, value, 0) if isinstance(value, Ref) else 0


def _lifted(e: Emitter, a: Arguments, outs: Sequence[Any]) -> Any:
    """What the real lowering makes of each part; of real results, of the real ones."""

    alpha = a.get("alpha")
    if isinstance(alpha, complex) and alpha.imag:
        raise Unsupported("a factor that is complex")

    def made(part: str) -> list[Any]:
        given = {name: _half(e, v, part, name in _ELEMENTS) for name, v in a.items()}
        found = LOWERINGS[a["name"]](e, given, [_half(e, out, part, False) for out in outs])
        return found if isinstance(found, list) else [found]

    if not isinstance(outs[0], Complex):
        return made("re")
    pairs = zip(outs, made("re"), made("im"), strict=True)
    return [Complex(out.dtype, re, im) for out, re, im in pairs]


for _name in _LIFTED.split():
    complex_lowering(_name)(_lifted)


@complex_lowering("ones.default", "ones_like.default")
def ones(e: Emitter, a: Arguments, outs: list[Any]) -> Complex:
    """Ones."""
    out = outs[0]
    return Complex(out.dtype, filled(e, out.re, 1), filled(e, out.im, 0))


@complex_lowering("_to_copy.default", "prims.convert_element_type.default")
def converted_copy(e: Emitter, a: Arguments, outs: list[Any]) -> Any:
    """The same elements in another type: real ones have no imaginary part, and those none left."""
    x, out = a["self"] if "self" in a else a["a"], outs[0]
    re, im = (x.re, x.im) if isinstance(x, Complex) else (x, 0)
    if isinstance(out, Complex):
        imaginary = e.cast(im, out.im.dtype) if isinstance(im, Ref) else filled(e, out.im, 0)
        return Complex(out.dtype, e.cast(re, out.re.dtype), imaginary)
    if out.dtype == "bool":
        return computed(e, "{re} != 0 or {im} != 0", {"re": re, "im": im}, out, re.dtype)
    return e.cast(re, out.dtype)


# --- arithmetic -----------------------------------------------------------------------------------


def _both(first: Any, second: Any = 0) -> dict[str, Any]:
    """The parts of two operands: a + bi and c + di."""

    def split(value: Any) -> tuple[Any, Any]:
        if isinstance(value, Complex):
            return value.re, value.im
        return (value.real, value.imag) if isinstance(value, complex) else (value, 0)

    return dict(zip("abcd", (*split(first), *split(second)), strict=True))


def _spelt(e: Emitter, out: Complex, re: str, im: str, given: dict[str, Any]) -> Complex:
    """Both parts by templates."""
    return Complex(out.dtype, computed(e, re, given, out.re), computed(e, im, given, out.im))


@complex_lowering("complex.default")
def make(e: Emitter, a: Arguments, outs: list[Any]) -> Complex:
    """real + i imag"""
    return _spelt(e, outs[0], "{real}", "{imag}", a)


@complex_lowering("polar.default")
def polar(e: Emitter, a: Arguments, outs: list[Any]) -> Complex:
    """abs (cos angle + i sin angle)"""
    return _spelt(e, outs[0], "{abs} * cos({angle})", "{abs} * sin({angle})", a)


@complex_lowering("view_as_real.default", "view_as_real_copy.default")
def view_as_real(e: Emitter, a: Arguments, outs: list[Any]) -> Ref:
    """The parts in a last dimension."""
    return joined(e, a["self"])


@complex_lowering("view_as_complex.default", "view_as_complex_copy.default")
def view_as_complex(e: Emitter, a: Arguments, outs: list[Any]) -> Complex:
    """Complex values of parts in a last dimension."""
    return parts(e, a["self"], outs[0].dtype)


@complex_lowering("_conj.default", "conj_physical.default", "_conj_physical.default")
def conjugate(e: Emitter, a: Arguments, outs: list[Any]) -> Complex:
    """a - bi"""
    return _spelt(e, outs[0], "{a}", "-{b}", _both(a["self"]))  # torch also asks it of numbers


@complex_lowering("mul.Tensor", "mul.Scalar")
def multiply(e: Emitter, a: Arguments, outs: list[Any]) -> Complex:
    """The product."""
    given = _both(a["self"], a["other"])
    return _spelt(e, outs[0], "{a} * {c} - {b} * {d}", "{a} * {d} + {b} * {c}", given)


@complex_lowering("div.Tensor", "div.Scalar")
def divide(e: Emitter, a: Arguments, outs: list[Any]) -> Complex:
    """The quotient, by a divisor over its larger part, so that squares do not overflow."""
    out = outs[0]
    given = _both(a["self"], a["other"])
    given["m"] = computed(e, "max(abs({c}), abs({d}))", given, out.re)
    for name in "cd":
        given[name] = computed(e, f"{{{name}}} / {{m}}", given, out.re)
    square = "({c} * {c} + {d} * {d}) / {m}"
    re, im = "({a} * {c} + {b} * {d})", "({b} * {c} - {a} * {d})"
    return _spelt(e, out, f"{re} / {square}", f"{im} / {square}", given)


@complex_lowering("abs.default")
def absolute(e: Emitter, a: Arguments, outs: list[Any]) -> Ref:
    """sqrt(a^2 + b^2)"""
    x = a["self"]
    found = LOWERINGS["hypot.default"](e, {"self": x.re, "other": x.im}, outs)
    assert isinstance(found, Ref)
    return found


@complex_lowering("angle.default")
def angle(e: Emitter, a: Arguments, outs: list[Any]) -> Ref:
    """The angle to the real axis."""
    return computed(e, "atan2({b}, {a})", _both(a["self"]), outs[0])


@complex_lowering("sgn.default")
def direction(e: Emitter, a: Arguments, outs: list[Any]) -> Complex:
    """x / |x|, of 0 0"""
    x = a["self"]
    given = _both(x) | {"size": absolute(e, a, [x.re])}
    re, im = (f"select({{size}} == 0, 0, {{{n}}} / {{size}})" for n in "ab")
    return _spelt(e, outs[0], re, im, given)


@complex_lowering("exp.default")
def exponential(e: Emitter, a: Arguments, outs: list[Any]) -> Complex:
    """e^a (cos b + i sin b)"""
    re, im = "exp({a}) * cos({b})", "exp({a}) * sin({b})"
    return _spelt(e, outs[0], re, im, _both(a["self"]))


@complex_lowering("eq.Tensor", "eq.Scalar", "ne.Tensor", "ne.Scalar")
def compared(e: Emitter, a: Arguments, outs: list[Any]) -> Ref:
    """Whether both parts are equal."""
    given = _both(a["self"], a["other"])
    wide = promoted(given["a"], given["c"])
    equal = "{a} == {c} and {b} == {d}"
    text = equal if a["name"].startswith("eq") else f"not ({equal})"
    return computed(e, text, given, outs[0], wide)


@complex_lowering("mm.default", "bmm.default")
def product_of_matrices(e: Emitter, a: Arguments, outs: list[Any]) -> Complex:
    """The product of matrices by four of real ones."""
    x, y, shape = a["self"], a["mat2"], outs[0].shape

    def product(first: Ref, second: Ref) -> Ref:
        return matmul(e, first, second, shape)

    given = {
        "ac": product(x.re, y.re), "bd": product(x.im, y.im),
        "ad": product(x.re, y.im), "bc": product(x.im, y.re),
    }  # fmt: skip
    return _spelt(e, outs[0], "{ac} - {bd}", "{ad} + {bc}", given)
