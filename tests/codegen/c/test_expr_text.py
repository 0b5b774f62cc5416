"""Index arithmetic has 64 bits wherever 32 would not do."""

from __future__ import annotations

import pytest

from codegen.c.expr_text import Names, index_text
from poly.ir.expr import Const, Expr, Index, Op, Size

NAMES = Names(
    {}, {"N": "N"}, {"t": "thread_x", "u": "thread_y", "i": "i"}, str, str, frozenset({"t", "u"})
)
T, U, LOOP, N = Index("t"), Index("u"), Index("i"), Size("N")
#: The least factor of a thread's number with which 32 bits are too few.
LARGE = Const(2**31 // 1023 + 1)
FITS = Const(2**31 // 1023)


def mul(a: Expr, b: Expr) -> Expr:
    return Op("mul", (a, b))


def add(a: Expr, b: Expr) -> Expr:
    return Op("add", (a, b))


@pytest.mark.parametrize(
    ("e", "text"),
    [
        (mul(FITS, T), "2099202*thread_x"),
        (mul(LARGE, T), "(int64_t)2099203*thread_x"),
        (mul(T, LARGE), "(int64_t)thread_x*2099203"),
        (mul(LARGE, LOOP), "2099203*i"),
        (mul(Const(-2099203), T), "(int64_t)(-2099203)*thread_x"),
        (mul(Const(2**31), T), "INT64_C(2147483648)*thread_x"),
        # Each of these would do, but not the two together.
        (add(mul(FITS, T), mul(FITS, U)), "(int64_t)(2099202*thread_x) + 2099202*thread_y"),
        (add(mul(FITS, T), mul(FITS, LOOP)), "2099202*thread_x + 2099202*i"),
        (Op("sub", (mul(FITS, T), mul(FITS, U))), "(int64_t)(2099202*thread_x) - 2099202*thread_y"),
        (mul(mul(T, U), mul(T, U)), "(int64_t)(thread_x*thread_y)*(thread_x*thread_y)"),
        (mul(Op("neg", (T,)), LARGE), "(int64_t)-thread_x*2099203"),
        (mul(Op("select", (Op("lt", (T, N)), T, U)), LARGE),
         "(int64_t)(thread_x < N ? thread_x : thread_y)*2099203"),
        (Op("lt", (mul(LARGE, T), N)), "(int64_t)2099203*thread_x < N"),
        (mul(Op("floordiv", (T, Const(2))), LARGE), "fk_floordiv(thread_x, 2)*2099203"),
    ],
)  # fmt: skip
def test_wide_where_needed(e: Expr, text: str) -> None:
    assert index_text(e, NAMES) == text
