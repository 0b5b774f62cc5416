"""Pools over windows, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from frontends.aten.emitter import Emitter
from frontends.aten.move import filled
from frontends.aten.registry import Arguments, lowering
from frontends.aten.values import Extent, Ref, Unsupported, indices, is_empty
from frontends.onnx.core.comprehension_text import at

#: A place behind every element.
BEYOND = 1 << 62


@dataclass(frozen=True)
class Windows:
    """Windows over the last dimensions of an image, of which `lead` come before."""

    count: int
    lead: int
    kernel: list[int]
    stride: list[int]
    padding: list[int]
    dilation: list[int]

    @staticmethod
    def of(a: Arguments, image: Ref, count: int) -> Windows:
        """Those of a pool."""

        def each(name: str, default: Any) -> list[int]:
            found = [*(a.get(name) or [default])]
            found = found * count if len(found) == 1 else found
            if not all(isinstance(v, int) for v in found):
                raise Unsupported("windows of open size")
            return found

        kernel = each("kernel_size", 1)
        stride = each("stride", 0) if a.get("stride") else kernel
        if image.dtype == "bool":
            raise Unsupported("a pool of bool")
        return Windows(
            count, image.rank - count, kernel, stride, each("padding", 0), each("dilation", 1)
        )

    def names(self) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """Indices of what comes before, of places and of taps."""
        return indices(self.lead), indices(self.count, "p"), indices(self.count, "r")

    def inside(self, e: Emitter, image: Ref) -> tuple[list[str], str]:
        """The element at a tap, and that it is one: ``s p + d r - padding`` in the image."""
        where = tapped(self.stride, self.dilation, self.padding)
        return where, inside(e, where, image.shape[self.lead :])

    def around(self, e: Emitter, out: Ref) -> tuple[list[str], str]:
        """The place whose tap is at an element, and that there is one."""
        _, places, taps = self.names()
        where, guards = [], []
        for n in range(self.count):
            text = f"{places[n]} + {self.padding[n]} - {self.dilation[n]}*{taps[n]}"
            step = self.stride[n]
            where.append(text if step == 1 else f"({text}) // {step}")
            guards.append(f"0 <= {where[-1]} < {e.extent(out.shape[self.lead + n])}")
            if step != 1:
                guards.append(f"({text}) % {step} == 0")
        return where, ", ".join(guards)

    def ranges(self, e: Emitter, shape: tuple[Extent, ...]) -> str:
        """The ranges of all indices, where `shape` is that of places."""
        lead, places, taps = self.names()
        return e.ranges([*lead, *places, *taps], [*shape, *self.kernel])


def tapped(stride: Sequence[int], dilation: Sequence[int], padding: Sequence[int]) -> list[str]:
    """The element of an image at tap r of place p: ``s p + d r - padding``, by dimension."""
    steps = enumerate(zip(stride, dilation, padding, strict=True))
    return [f"{s}*p{n} + {d}*r{n} - {b}" for n, (s, d, b) in steps]


def inside(e: Emitter, where: Sequence[str], shape: Sequence[Extent]) -> str:
    """That an element is one of the image."""
    return ", ".join(f"0 <= {w} < {e.extent(s)}" for w, s in zip(where, shape, strict=True))


def numbered(e: Emitter, where: list[str], shape: tuple[Extent, ...]) -> str:
    """The place of an element in row-major order."""
    text = f"({where[0]})"
    for w, extent in zip(where[1:], shape[1:], strict=True):
        text = f"({text} * {e.extent(extent)} + {w})"
    return text


def _count(name: str) -> int:
    """How many dimensions the windows of an operator have."""
    return 3 if "3d" in name else 2


@lowering("max_pool2d_with_indices.default", "max_pool3d_with_indices.default")
def max_pool(e: Emitter, a: Arguments, outs: list[Ref]) -> list[Ref | None]:
    """The maximum of each window, and its first place in the image."""
    x, out = a["self"], outs[0]
    w = Windows.of(a, x, _count(a["name"]))
    if is_empty(out.shape):
        return [filled(e, o, 0) for o in outs]
    lead, places, _ = w.names()
    where, guards = w.inside(e, x)
    number = numbered(e, where, x.shape[w.lead :])
    guards = f"{w.ranges(e, out.shape)}, {guards}"
    return _largest(e, x, out, [*lead, *places], at("X", [*lead, *where]), number, guards)


def _largest(
    e: Emitter, x: Ref, out: Ref, own: Sequence[str], read: str, number: str, where: str
) -> list[Ref | None]:
    """The maximum of each window, and the first place of it, or of a NaN.

    own : the indices of the result; read, number : an element of a window, and its place
    where : the ranges of all indices, and when there is such an element
    """
    more = [*x.shape, *out.shape]
    line = f"{at('Y', own)} max=! {read} where {where}"
    (best,) = e.program([(x.dtype, out.shape)], [line], {"X": x}, more=more)
    hit = f"{read} == {at('B', own)}" + (f" or isnan({read})" if x.is_float else "")
    line = f"{at('Y', own)} min=! select({hit}, int64({number}), int64({BEYOND})) where {where}"
    (place,) = e.program([("int64", out.shape)], [line], {"X": x, "B": best}, more=more)
    return [best, place]


@lowering("max_pool2d_with_indices_backward.default", "max_pool3d_with_indices_backward.default")
def max_pool_backward(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """Each element collects the gradients of the windows whose place it is."""
    grad, x, place, out = a["grad_output"], a["self"], a["indices"], outs[0]
    w = Windows.of(a, x, _count(a["name"]))
    if is_empty(grad.shape):
        return filled(e, out, 0)
    lead, places, _ = w.names()
    where, guards = w.around(e, grad)
    own = numbered(e, [*places], x.shape[w.lead :])
    read = at("I", [*lead, *where])
    line = (
        f"{at('Y', [*lead, *places])} +=! select({read} == {own}, {at('G', [*lead, *where])}, 0)"
        f" where {w.ranges(e, x.shape)}, {guards}"
    )
    return e.program(
        [(out.dtype, out.shape)], [line], {"G": grad, "I": place}, more=[*grad.shape, *x.shape]
    )[0]


def _divisor(e: Emitter, a: Arguments, w: Windows, image: Ref, places: list[str]) -> str:
    """By what the sum of a window is divided, as text."""
    fixed = a.get("divisor_override")
    if fixed is not None:
        return f"{image.dtype}({fixed})"
    factors = []
    for n in range(w.count):
        size = e.extent(image.shape[w.lead + n])
        begin = f"({places[n]}) * {w.stride[n]} - {w.padding[n]}"
        end = f"min({begin} + {w.kernel[n]}, {size} + {w.padding[n]})"
        if not a.get("count_include_pad", True):
            begin, end = f"max({begin}, 0)", f"min({begin} + {w.kernel[n]}, {size})"
        plain = not a.get("ceil_mode") and (a.get("count_include_pad", True) or not w.padding[n])
        factors.append(f"{w.kernel[n]}" if plain else f"({end} - ({begin}))")
    return f"{image.dtype}({' * '.join(factors)})"


@lowering("avg_pool2d.default", "avg_pool3d.default")
def avg_pool(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """The mean of each window."""
    x, out = a["self"], outs[0]
    w = Windows.of(a, x, _count(a["name"]))
    if is_empty(out.shape):
        return filled(e, out, 0)
    lead, places, _ = w.names()
    where, guards = w.inside(e, x)
    own = [*lead, *places]
    lines = [
        f"{at('T', own)} +=! {at('X', [*lead, *where])} where {w.ranges(e, out.shape)}, {guards}",
        f"{at('Y', own)} = {at('T', own)} / {_divisor(e, a, w, x, [*places])}"
        f" where {e.ranges(own, out.shape)}",
    ]
    temps = [("T", x.dtype, out.shape)]
    more = [*x.shape, *out.shape]
    return e.program([(out.dtype, out.shape)], lines, {"X": x}, temps, more)[0]


@lowering("avg_pool2d_backward.default", "avg_pool3d_backward.default")
def avg_pool_backward(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """Each element collects its part of the gradients of the windows that it is in."""
    grad, x, out = a["grad_output"], a["self"], outs[0]
    w = Windows.of(a, x, _count(a["name"]))
    if is_empty(grad.shape):
        return filled(e, out, 0)
    lead, places, _ = w.names()
    where, guards = w.around(e, grad)
    divisor = _divisor(e, a, w, x, where)
    line = (
        f"{at('Y', [*lead, *places])} +=! {at('G', [*lead, *where])} / {divisor}"
        f" where {w.ranges(e, x.shape)}, {guards}"
    )
    return e.program([(out.dtype, out.shape)], [line], {"G": grad}, more=[*grad.shape, *x.shape])[0]


# --- windows that cover an image evenly -----------------------------------------------------------


def _even(e: Emitter, image: Ref, out: Ref, count: int) -> tuple[list[str], list[str], str, str]:
    """Indices of elements and of places; that an element is in the window of a place; its size.

    Window p of P over H elements begins at ``p H // P`` and ends before ``((p+1) H + P-1) // P``.
    """
    lead = image.rank - count
    elements, places = indices(count, "h"), indices(count, "p")
    guards, sizes = [], []
    sides = zip(elements, places, image.shape[lead:], out.shape[lead:], strict=True)
    for h, p, size, parts in sides:
        if not isinstance(size, int) or not isinstance(parts, int) or not size or not parts:
            raise Unsupported("windows of open size, or of nothing")
        begin, end = f"{p} * {size} // {parts}", f"({p} * {size} + {size + parts - 1}) // {parts}"
        guards += [f"{begin} <= {h}", f"{h} < {end}"]
        sizes.append(f"({end} - {begin})")
    return [*elements], [*places], ", ".join(guards), f"{image.dtype}({' * '.join(sizes)})"


@lowering("_adaptive_avg_pool2d_backward.default", "_adaptive_avg_pool3d_backward.default")
def adaptive_mean_backward(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """Each element collects its part of the gradients of the windows that it is in."""
    grad, x, out = a["grad_output"], a["self"], outs[0]
    elements, places, guards, size = _even(e, x, grad, _count(a["name"]))
    lead = indices(x.rank - len(elements))
    ranges = e.ranges([*lead, *elements, *places], [*x.shape, *grad.shape[len(lead) :]])
    line = (
        f"{at('Y', [*lead, *elements])} +=! {at('G', [*lead, *places])} / {size}"
        f" where {ranges}, {guards}"
    )
    more = [*grad.shape, *x.shape]
    return e.program([(out.dtype, out.shape)], [line], {"G": grad}, more=more)[0]


@lowering("_adaptive_avg_pool3d.default")
def adaptive_mean(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """The mean of each window."""
    x, out = a["self"], outs[0]
    elements, places, guards, size = _even(e, x, out, 3)
    lead = indices(x.rank - len(elements))
    ranges = e.ranges([*lead, *places, *elements], [*out.shape, *x.shape[len(lead) :]])
    line = (
        f"{at('Y', [*lead, *places])} +=! {at('X', [*lead, *elements])} / {size}"
        f" where {ranges}, {guards}"
    )
    return e.program([(out.dtype, out.shape)], [line], {"X": x}, more=[*out.shape, *x.shape])[0]


@lowering("adaptive_max_pool2d.default", "adaptive_max_pool3d.default")
def adaptive_max(e: Emitter, a: Arguments, outs: list[Ref]) -> list[Ref | None]:
    """The maximum of each window, and its first place in the image."""
    x, out = a["self"], outs[0]
    elements, places, guards, _ = _even(e, x, out, _count(a["name"]))
    lead = indices(x.rank - len(elements))
    ranges = e.ranges([*lead, *places, *elements], [*out.shape, *x.shape[len(lead) :]])
    number = numbered(e, elements, x.shape[len(lead) :])
    read = at("X", [*lead, *elements])
    return _largest(e, x, out, [*lead, *places], read, number, f"{ranges}, {guards}")


@lowering("adaptive_max_pool2d_backward.default", "adaptive_max_pool3d_backward.default")
def adaptive_max_backward(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """Each element collects the gradients of the windows whose place it is."""
    grad, x, place, out = a["grad_output"], a["self"], a["indices"], outs[0]
    elements, places, guards, _ = _even(e, x, grad, _count(a["name"]))
    lead = indices(x.rank - len(elements))
    ranges = e.ranges([*lead, *elements, *places], [*x.shape, *grad.shape[len(lead) :]])
    there = [*lead, *places]
    number = numbered(e, elements, x.shape[len(lead) :])
    line = (
        f"{at('Y', [*lead, *elements])} +=! "
        f"select({at('I', there)} == {number}, {at('G', there)}, 0) where {ranges}, {guards}"
    )
    inputs = {"G": grad, "I": place}
    more = [*grad.shape, *x.shape]
    return e.program([(out.dtype, out.shape)], [line], inputs, more=more)[0]
