"""What an instruction has to compute for some cases, by the reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from poly.ir.dtypes import FLOAT64, DType
from poly.ir.expr import Cast, Const, Expr, Index, Op, Read, rewrite, walk
from poly.ir.intrinsics import VectorIntrinsic
from poly.ir.program import Program, Range, Tensor
from runtime.reference.evaluate import run
from runtime.reference.scalar_semantics import Array


@dataclass(frozen=True)
class Expected:
    """The target after each case, and what may differ from it.

    exact : results may differ only in the sign of a zero, where `zeros` says so, and in the bits of
        a NaN; otherwise they are within `bound` of `values` or of `flushed`
    flushed : the result where subnormal operands count as zeros
    free : elements of which nothing is required, since a partial sum may overflow
    """

    values: Array
    exact: bool
    zeros: bool = False
    bound: Array | None = None
    flushed: Array | None = None
    free: Array | None = None

    def part(self, count: int) -> Expected:
        """The first cases."""

        def cut(a: Array | None) -> Array | None:
            return None if a is None else a[:count]

        bound, flushed, free = map(cut, (self.bound, self.flushed, self.free))
        return Expected(self.values[:count], self.exact, self.zeros, bound, flushed, free)

    def agrees(self, got: Array) -> Array:
        """Where a result is right."""
        wanted = self.values
        same = _bits(got) == _bits(wanted.astype(got.dtype))
        if got.dtype.kind in "iub":
            return np.asarray(same)
        same |= np.isnan(got) & np.isnan(wanted)
        if self.zeros or not self.exact:
            same |= (got == 0) & (wanted == 0)
        if self.exact:
            return np.asarray(same)
        assert self.bound is not None and self.flushed is not None and self.free is not None
        exactly = got.astype(np.float64)
        for near in (wanted, self.flushed):
            same |= np.abs(exactly - near) <= self.bound
            same |= (exactly == near) | (np.isnan(exactly) & np.isnan(near))
        return np.asarray(same | self.free)


def expected(intrinsic: VectorIntrinsic, cases: Mapping[str, Array]) -> Expected:
    """The reference's results."""
    meaning = intrinsic.meaning
    target = meaning.dtypes[intrinsic.target]
    written = _run(meaning, cases, intrinsic.target)
    zeros = any(
        isinstance(e, Op) and e.fn in ("min", "max") for e in walk(intrinsic.statement.value)
    ) or intrinsic.statement.op in ("min=", "max=")
    if not (intrinsic.reorders and target.is_float):
        return Expected(written, True, zeros)
    with np.errstate(all="ignore"):
        return _within(intrinsic, cases)


def _within(intrinsic: VectorIntrinsic, cases: Mapping[str, Array]) -> Expected:
    """Results in float64, and how far others may be from them: one rounding for each operation, and
    one smallest normal number for each that may become zero.
    """
    meaning, statement = intrinsic.meaning, intrinsic.statement
    wide = {n: _wide(a) for n, a in cases.items()}
    flat = {n: _wide(_flushed(a)) for n, a in cases.items()}
    values = _run(_in_float64(meaning, statement.value), wide, intrinsic.target)
    flushed = _run(_in_float64(meaning, statement.value), flat, intrinsic.target)
    # Infinities and NaN give the same result in any order, unless finite numbers overflow as well.
    sizes = {n: _size_of(a) if a.dtype.kind == "f" else a for n, a in wide.items()}
    size = _run(_in_float64(meaning, _size(statement.value)), sizes, intrinsic.target)
    types = {meaning.dtypes[intrinsic.target].compute, meaning.dtypes[intrinsic.target]}
    types |= {e.dtype for e in walk(statement.value) if isinstance(e, Cast) and e.dtype.is_float}
    limits = [_limits(d) for d in types]
    steps = 2 + sum(isinstance(e, Op) for e in walk(statement.value))
    extents = dict(zip(statement.indices, intrinsic.extents, strict=True))
    steps *= prod(extents[x] for x in statement.reductions)
    relative, tiny = max(e for e, _, _ in limits), max(t for _, t, _ in limits)
    free = ~(size <= min(most for _, _, most in limits) / 2)
    return Expected(values, False, True, steps * (relative * size + tiny), flushed, free)


def _limits(d: DType) -> tuple[float, float, float]:
    """The distance of 1 to the next number, the smallest normal one, and the largest one."""
    digits, exponent = {
        "float16": (10, 15), "bfloat16": (7, 127), "float32": (23, 127), "float64": (52, 1023),
    }[d.name]  # fmt: skip
    return 2.0**-digits, 2.0 ** (1 - exponent), (2 - 2.0**-digits) * 2.0**exponent


def _size(e: Expr) -> Expr:
    """An upper bound of the magnitude of a value and of all that is computed on the way to it."""
    if isinstance(e, Op) and e.fn in ("add", "sub"):
        return Op("add", (_size(e.args[0]), _size(e.args[1])))
    if isinstance(e, Op) and e.fn == "mul":
        return Op("mul", (_size(e.args[0]), _size(e.args[1])))
    if isinstance(e, Op) and e.fn == "neg":
        return _size(e.args[0])
    return Op("abs", (e,)) if not isinstance(e, Const) else e


def _in_float64(meaning: Program, value: Expr) -> Program:
    """The meaning with all floats in float64."""

    def visit(e: Expr) -> Expr:
        return Cast(FLOAT64, e.arg) if isinstance(e, Cast) and e.dtype.is_float else e

    def changed(t: Tensor) -> Tensor:
        return replace(t, dtype=FLOAT64) if t.dtype.is_float else t

    (s,) = meaning.statements
    return meaning.with_tensors(changed, [replace(s, value=rewrite(value, visit))])


def _size_of(a: Array) -> Array:
    return np.where(np.isfinite(a), np.abs(a), 0)


def _wide(a: Array) -> Array:
    return a if a.dtype.kind in "iub" else a.astype(np.float64)


def _flushed(a: Array) -> Array:
    """Zeros in place of subnormal numbers."""
    if a.dtype.kind in "iub":
        return a
    smallest = {2: 2.0**-14 if a.dtype == np.float16 else 2.0**-126, 4: 2.0**-126, 8: 2.0**-1022}
    return np.where(np.abs(a.astype(np.float64)) < smallest[a.dtype.itemsize], a.dtype.type(0), a)


def _run(meaning: Program, cases: Mapping[str, Array], target: str) -> Array:
    """The target after each case; an element that is not written keeps its value."""
    count = len(cases[target])
    case = "case"
    while case in meaning.statements[0].indices:
        case += "_"

    def changed(t: Tensor) -> Tensor:
        return replace(t, shape=(Const(count), *t.shape))

    def visit(e: Expr) -> Expr:
        return Read(e.tensor, (Index(case), *e.indices)) if isinstance(e, Read) else e

    (s,) = meaning.statements
    made = replace(
        s,
        target=Read(s.target.tensor, (Index(case), *s.target.indices)),
        value=rewrite(s.value, visit),
        ranges=(Range(case, Const(0), Const(count)), *s.ranges),
    )
    program = meaning.with_tensors(changed, [made])
    found = run(program, {t.name: cases[t.name] for t in program.inputs})
    return np.where(found.written[target], found.values[target], cases[target])


def _bits(a: Array) -> Array:
    return np.ascontiguousarray(a).view(f"u{a.dtype.itemsize}")
