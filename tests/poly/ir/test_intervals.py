"""Bounds of index arithmetic, against every value that it takes."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontends.language.parse_program import parse_program
from poly.ir.dtypes import INT64
from poly.ir.expr import Cast, Const, Expr, Index, Op, Read, Size, evaluate_int
from poly.ir.intervals import INT64 as WORD
from poly.ir.intervals import LARGEST_SIZE, Beyond64BitsError, interval, size_intervals

KNOWN = {"i": (-3, 4), "j": (0, 5), "N": (0, 3)}
BINARY = ("add", "sub", "mul", "min", "max", "floordiv", "mod", "div", "fmod", "lt", "eq")


def exprs() -> st.SearchStrategy[Expr]:
    leaves = st.sampled_from([Index("i"), Index("j"), Size("N")]) | st.integers(-9, 9).map(Const)

    def deeper(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        binary = st.builds(lambda fn, a, b: Op(fn, (a, b)), st.sampled_from(BINARY), inner, inner)
        chosen = st.builds(lambda a, b, c: Op("select", (Op("lt", (a, b)), b, c)), *[inner] * 3)
        return binary | chosen | inner.map(lambda a: Op("neg", (a,)))

    return st.recursive(leaves, deeper, max_leaves=8)


@given(exprs())
def test_no_value_is_outside(e: Expr) -> None:
    low, high = interval(e, KNOWN)
    for point in product(*(range(a, b + 1) for a, b in KNOWN.values())):
        assert low <= evaluate_int(e, dict(zip(KNOWN, point, strict=True))) <= high


@given(exprs(), st.integers(-(2**66), 2**66))
def test_what_could_leave_64_bits_on_the_way_is_refused(e: Expr, factor: int) -> None:
    low, high = interval(e, KNOWN)
    product_ = Op("mul", (e, Const(factor)))
    # Its quotient is small again.
    expr = Op("floordiv", (product_, Const(2**62)))
    corners = [low * factor, high * factor, factor]
    if all(WORD[0] <= c <= WORD[1] for c in corners):
        interval(expr, KNOWN)
    else:
        with pytest.raises(Beyond64BitsError, match="beyond 64 bits"):
            interval(expr, KNOWN)


def test_sizes_are_from_0_to_the_largest() -> None:
    text = (
        "def f(float32 A[M,N,K,L]) -> (Y) where N < 9 and 100 >= K, M >= 3 { Y[] +=! A[i,j,k,l] }"
    )
    most = (0, LARGEST_SIZE)
    assert size_intervals(parse_program(text)) == {"M": most, "N": (0, 8), "K": (0, 100), "L": most}


def test_messages() -> None:
    known = {"M": (0, 2**38)}
    assert interval(Op("mul", (Const(2**24), Size("M"))), known) == (0, 2**62)
    message = r"^33554432 \* M can reach 2\*\*63, beyond 64 bits$"
    with pytest.raises(Beyond64BitsError, match=message):
        interval(Op("mul", (Const(2**25), Size("M"))), known)
    with pytest.raises(Beyond64BitsError, match=r"can reach -2\*\*65, beyond 64 bits$"):
        interval(Op("mul", (Const(-(2**62)), Const(8))), {})


def test_what_data_decides_is_any_number() -> None:
    place = Cast(INT64, Read("I", (Index("i"),)))
    assert interval(place, KNOWN) == WORD
    assert interval(Op("max", (Const(0), Op("min", (place, Const(7))))), KNOWN) == (0, 7)
    assert interval(Cast(INT64, Index("i")), KNOWN) == KNOWN["i"]
