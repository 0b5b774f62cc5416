"""Sorts, as networks of comparisons, and what is read off sorted elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from frontends.aten.emitter import Emitter
from frontends.aten.move import filled
from frontends.aten.registry import Arguments, lowering
from frontends.aten.values import Ref, Unsupported, axis_of, indices, is_empty, numel
from frontends.onnx.core.comprehension_text import at

#: The most elements in a row.  The network takes n log(n)^2 / 4 comparisons.
MOST = 1 << 16


@dataclass(frozen=True)
class Sorted:
    """Elements in order along an axis, and where each of them was."""

    values: Ref
    places: Ref
    axis: int

    @property
    def count(self) -> int:
        found = self.values.shape[self.axis]
        assert isinstance(found, int)
        return found


def sorted_along(e: Emitter, x: Ref, dim: int, descending: bool = False) -> Sorted:
    """Sort, stably; NaN is greater than all numbers.

    In step t, element i is compared with that at ``i ^ masks[t]``, and the lesser one goes where
    the index is less.  So what lies behind the end would stay there, if it was there (Batcher's
    bitonic network, with all comparisons in one direction).
    """
    x = e.reshape(x, x.shape or (1,))
    axis = axis_of(dim, x.rank)
    n = x.shape[axis]
    if not isinstance(n, int):
        raise Unsupported("a sort of an open size")
    if n > MOST:
        raise Unsupported(f"a sort of more than {MOST} elements")
    dtype = "int32" if x.dtype == "bool" else x.dtype
    given = e.cast(x, dtype)
    masks = _masks(n)
    if not masks or is_empty(x.shape):
        return Sorted(x, e.each("int64", x.shape, "int64(0)", {}), axis)
    own = list(indices(x.rank))
    i, steps = own[axis], len(masks)

    def read(name: str, place: str) -> str:
        return at(name, ["t % 2", *own[:axis], place, *own[axis + 1 :]])

    found = f"select((int64({i}) ^ M[t]) < {n}, int64({i}) ^ M[t], int64({i}))"
    whole = [2, *x.shape]
    partner = at("Q", own)
    here, other = ((read("V", p), read("P", p)) for p in (i, partner))
    before = _precedes(other, here, x, descending)
    exchange = f"{partner} != int64({i}) and ({partner} > int64({i})) == {before}"
    both = ["z", *own]
    lines = [
        e.line(f"{at('V', both)} = {at('X', own)}", both, whole),
        e.line(f"{at('P', both)} = int64({i})", both, whole),
        f"for t in 0:{steps} {{",
        e.line(f"{at('Q', [*own[:-1], own[-1] + ' + 0*t'])} = {found}", own, x.shape),
        e.line(f"{at('S', [*own[:-1], own[-1] + ' + 0*t'])} = {exchange}", own, x.shape),
        *(
            e.line(
                f"{at(name, ['(t + 1) % 2', *own])} = select({at('S', own)}, {there}, {stays})",
                own, x.shape,
            )
            for name, there, stays in (("V", other[0], here[0]), ("P", other[1], here[1]))
        ),
        "}",
        *(
            e.line(f"{at(out, own)} = {at(name, [str(steps % 2), *own])}", own, x.shape)
            for out, name in (("Y", "V"), ("Y1", "P"))
        ),
    ]  # fmt: skip
    table = Ref(e.constant(masks), "int64", (steps,))
    temps = [
        ("V", dtype, whole), ("P", "int64", whole), ("Q", "int64", x.shape), ("S", "bool", x.shape)
    ]  # fmt: skip
    outputs = [(dtype, x.shape), ("int64", x.shape)]
    values, places = e.program(outputs, lines, {"X": given, "M": table}, temps, x.shape)
    return Sorted(e.cast(values, x.dtype), places, axis)


def _masks(n: int) -> list[int]:
    """By which bits the partners in each step differ."""
    found = []
    block = 2
    while block < 2 * n:
        found.append(block - 1)
        found += [1 << b for b in reversed(range(block.bit_length() - 2))]
        block *= 2
    return found if n > 1 else []


def _precedes(a: tuple[str, str], b: tuple[str, str], x: Ref, descending: bool) -> str:
    """Whether an element with its place comes before another: no two are equal."""
    (u, p), (v, q) = a, b
    less = f"{u} > {v}" if descending else f"{u} < {v}"
    same = f"{u} == {v}"
    if x.is_float:
        greater, other = (u, v) if descending else (v, u)
        less = f"({less} or (isnan({greater}) and not isnan({other})))"
        same = f"({same} or (isnan({u}) and isnan({v})))"
    return f"({less} or ({same} and {p} < {q}))"


# --- operators ------------------------------------------------------------------------------------


@lowering("sort.default", "sort.stable")
def sort(e: Emitter, a: Arguments, outs: list[Ref]) -> list[Ref | None]:
    """The elements along a dimension in order, and where they were."""
    x = a["self"]
    found = sorted_along(e, x, a.get("dim", -1), bool(a.get("descending")))
    return [e.reshape(found.values, x.shape), e.reshape(found.places, x.shape)]


def _read(e: Emitter, s: Sorted, place: str, outs: Sequence[Ref], **inputs: Ref) -> list[Ref]:
    """The element that is somewhere in the order of each row, and where it was.

    place : a text over the indices of the others, o0, o1, …
    """
    rest = [*indices(s.values.rank - 1, "o")]
    shape = [n for axis, n in enumerate(s.values.shape) if axis != s.axis]
    where = [*rest[: s.axis], place, *rest[s.axis :]]
    lines = [
        e.line(f"{at(out, rest)} = {at(name, where)}", rest, shape)
        for out, name in (("Y", "V"), ("Y1", "P"))
    ]
    given = {"V": s.values, "P": s.places, **inputs}
    outputs = [(s.values.dtype, shape), ("int64", shape)]
    found = e.program(outputs, lines, given, more=s.values.shape)
    return [e.reshape(r, o.shape) for r, o in zip(found, outs, strict=False)]


def _count_of_nan(e: Emitter, s: Sorted) -> Ref:
    """How many elements of each row are NaN."""
    own = [*indices(s.values.rank)]
    rest = [i for axis, i in enumerate(own) if axis != s.axis]
    shape = [n for axis, n in enumerate(s.values.shape) if axis != s.axis]
    nan = f"isnan({at('V', own)})" if s.values.is_float else "false"
    line = e.line(f"{at('Y', rest)} +=! int64({nan})", own, s.values.shape)
    return e.program([("int64", shape)], [line], {"V": s.values}, more=s.values.shape)[0]


@lowering("median.default", "nanmedian.default", "median.dim", "nanmedian.dim")
def median(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref | list[Ref | None]:
    """The lesser of the middle elements; the first NaN, unless those are left out."""
    x = a["self"]
    whole = a["name"].endswith("default")
    if whole:
        x = e.reshape(x, (numel(x.shape),))
    if is_empty(outs[0].shape):
        return [filled(e, out, 0) for out in outs]
    s = sorted_along(e, x, 0 if whole else a["dim"])
    if not s.count and not (whole and x.is_float):
        raise Unsupported("a median of nothing")
    if not s.count:
        return filled(e, outs[0], math.nan)
    count = _count_of_nan(e, s)
    missing = at("C", indices(s.values.rank - 1, "o"))
    if a["name"].startswith("nan"):
        place = f"max({s.count} - {missing} - 1, 0) // 2"
    else:
        place = f"select({missing} > 0, {s.count} - {missing}, {(s.count - 1) // 2})"
    found = _read(e, s, place, outs, C=count)
    return found[0] if whole else [*found]


@lowering("kthvalue.default")
def kth(e: Emitter, a: Arguments, outs: list[Ref]) -> list[Ref | None]:
    """The k-th least element, and its place."""
    if is_empty(outs[0].shape):
        return [filled(e, out, 0) for out in outs]
    s = sorted_along(e, a["self"], a.get("dim", -1))
    return [*_read(e, s, str(a["k"] - 1), outs)]


@lowering("topk.default")
def top(e: Emitter, a: Arguments, outs: list[Ref]) -> list[Ref | None]:
    """The k greatest or least elements in order, and their places."""
    x, k = a["self"], a["k"]
    if not isinstance(k, int):
        raise Unsupported("an open number of elements")
    s = sorted_along(e, x, a.get("dim", -1), bool(a.get("largest", True)))
    own = indices(s.values.rank)
    shape = [k if n == s.axis else d for n, d in enumerate(s.values.shape)]
    found = [e.each(r.dtype, shape, at("X", own), {"X": r}) for r in (s.values, s.places)]
    return [e.reshape(r, o.shape) for r, o in zip(found, outs, strict=True)]


@lowering("mode.default")
def mode(e: Emitter, a: Arguments, outs: list[Ref]) -> list[Ref | None]:
    """The least of the most frequent elements, and its last place."""
    if is_empty(outs[0].shape):
        return [filled(e, out, 0) for out in outs]
    s = sorted_along(e, a["self"], a.get("dim", -1))
    if not s.count:
        raise Unsupported("a mode of nothing")
    own = [*indices(s.values.rank)]
    i = own[s.axis]
    rest = [o for n, o in enumerate(own) if n != s.axis]
    shape = [d for n, d in enumerate(s.values.shape) if n != s.axis]

    def moved(name: str, place: str) -> str:
        return at(name, [*own[: s.axis], place, *own[s.axis + 1 :]])

    same = f"{at('V', own)} == {moved('V', f'{i} - 1')}"
    lines = [
        # How many equal elements come before each, and itself.
        e.line(f"{moved('R', '0')} = int64(1)", rest, shape),
        e.line(
            f"{at('R', own)} = select({same}, {moved('R', f'{i} - 1')} + 1, int64(1))",
            rest, shape, [f"{i} in 1:{s.count}"],
        ),
        e.line(f"{at('B', rest)} max=! {at('R', own)}", own, s.values.shape),
        e.line(
            f"{at('Y', rest)} min=! select({at('R', own)} == {at('B', rest)}, int64({i}),"
            f" int64({s.count}))",
            own, s.values.shape,
        ),
    ]  # fmt: skip
    temps = [("R", "int64", s.values.shape), ("B", "int64", shape)]
    given = {"V": e.cast(s.values, "int32") if s.values.dtype == "bool" else s.values}
    (place,) = e.program([("int64", shape)], lines, given, temps, s.values.shape)
    return [*_read(e, s, at("C", indices(len(rest), "o")), outs, C=place)]
