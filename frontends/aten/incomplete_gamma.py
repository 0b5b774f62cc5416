"""The regularised incomplete gamma functions, by the methods of SciPy and Cephes."""

from __future__ import annotations

import math

from frontends.aten import special_tables as tables
from frontends.aten.emitter import Emitter
from frontends.aten.gamma import lgamma_of_positive
from frontends.aten.pointwise import LOG1P
from frontends.aten.registry import Arguments, lowering
from frontends.aten.special import erfc
from frontends.aten.steps import Steps, cases, polynomial, ratio
from frontends.aten.values import Ref

#: Terms of the series and of the continued fraction, where they are used.
_TERMS = 160
#: So many of them are one step.
_CHUNK = 16
#: Boost's g.
_G = 6.024680040776729583740234375


def _log1p(s: Steps, x: str) -> str:
    return LOG1P.format(self=s.let(x))


def _factor(s: Steps, a: str, x: str) -> str:
    """x^a exp(-x) / gamma(a)"""
    far = s.let(f"exp({a} * log({x}) - {x} - {lgamma_of_positive(s, a)})")
    shifted = s.let(f"{a} + {_G - 0.5!r}")
    inverse = s.let(f"1 / {a}")
    large = ratio(inverse, tables.LANCZOS_P[::-1], tables.LANCZOS_Q[::-1])
    small = ratio(a, tables.LANCZOS_P, tables.LANCZOS_Q)
    lanczos = s.let(f"select({a} > 1, {large}, {small})")
    root = s.let(f"sqrt({shifted} / {math.e!r}) / {lanczos}")
    part = s.let(f"({x} - {shifted}) / {shifted}")
    grown = f"exp({a} * (({_log1p(s, part)}) - {part}) + {x} * {0.5 - _G!r} / {shifted})"
    moderate = f"exp({a} - {x}) * pow({x} / {shifted}, {a})"
    near = f"{root} * select({a} < 200 and {x} < 200, {moderate}, {grown})"
    return s.let(f"select(abs({a} - {x}) > 0.4 * {a}, {far}, {near})")


def _series(s: Steps, a: str, x: str, factor: str) -> str:
    """The lower function, by its power series."""
    total = "1.0"
    for begin in reversed(range(0, _TERMS, _CHUNK)):
        for k in reversed(range(begin, begin + _CHUNK)):
            total = f"(1 + {x} / ({a} + {k + 1}) * {total})"
        total = s.let(total)
    return s.let(f"select({factor} == 0, 0.0, {total} * {factor} / {a})")


def _fraction(s: Steps, a: str, x: str, factor: str) -> str:
    """The upper function, by its continued fraction."""
    rest = s.let(f"{x} - {a}")
    value = s.let(f"{rest} + {2 * _TERMS + 1}")
    for begin in reversed(range(0, _TERMS, _CHUNK)):
        for k in reversed(range(begin, begin + _CHUNK)):
            value = f"({rest} + {2 * k + 1} - {k + 1} * ({k + 1} - {a}) / {value})"
        value = s.let(value)
    return s.let(f"select({factor} == 0, 0.0, {factor} / {value})")


def _small(s: Steps, a: str, x: str) -> str:
    """The upper function of x <= 1.1, without cancellation (DLMF 8.7.3)."""
    total = "0.0"
    for k in reversed(range(1, 24)):
        total = f"(-{x} / {k} * (1 / ({a} + {k}) + {total}))"
    log = s.let(f"{a} * log({x})")
    over = s.let(f"{log} - {lgamma_of_positive(s, s.let(f'{a} + 1'))}")
    near = f"2 * tanh(0.5 * {over}) / (1 - tanh(0.5 * {over}))"
    first = f"select(abs({over}) < 0.5, {near}, exp({over}) - 1)"
    return s.let(f"-({first}) - exp({log} - {lgamma_of_positive(s, a)}) * {total}")


def _temme(s: Steps, a: str, x: str, sign: str) -> str:
    """Either function of large a, near x = a."""
    part = s.let(f"({x} - {a}) / {a}")
    bend = s.let(f"sqrt(max(-2 * (({_log1p(s, part)}) - {part}), 0))")
    eta = s.let(f"select({part} < 0, -{bend}, {bend})")
    inverse = s.let(f"1 / {a}")
    total = "0.0"
    for row in reversed(tables.TEMME):
        total = s.let(f"{total} * {inverse} + {polynomial(eta, row[::-1])}")
    half = f"0.5 * ({erfc(s, s.let(f'{sign}{eta} * sqrt({a} / 2)'))})"
    more = f"exp(-0.5 * {a} * {eta} * {eta}) * {total} / sqrt({2 * math.pi!r} * {a})"
    return s.let(f"({half}) {sign or '+'} {more}")


def _register(name: str, is_upper: bool) -> None:
    names = (f"{name}.default", f"prims.{name}.default")

    @lowering(*names, f"special_gammainc{'c' if is_upper else ''}.default")
    def incomplete(e: Emitter, arguments: Arguments, outs: list[Ref]) -> Ref:
        s = Steps(e, arguments, outs[0])
        a, x = s.let(s.read("self")), s.let(s.read("other"))
        factor = _factor(s, a, x)
        lower, fraction = _series(s, a, x, factor), _fraction(s, a, x, factor)
        by_series = cases(
            (f"{x} > 1.1", f"{x} < {a}"),
            (f"{x} <= 0.5", f"-0.4 / log({x}) < {a}"),
            otherwise=f"{x} * 1.1 < {a}",
        )
        small = _small(s, a, x)
        upper = s.let(cases(
            (by_series, f"1 - {lower}"), (f"{x} > 1.1", fraction), otherwise=small
        ))  # fmt: skip
        if is_upper:
            value, near, ends = upper, _temme(s, a, x, ""), ("0.0", "1.0")
        else:
            value = f"select({x} > 1 and {x} > {a}, 1 - {upper}, {lower})"
            near, ends = _temme(s, a, x, "-"), ("1.0", "0.0")
        return s.result(
            cases(
                (f"isnan({a}) or isnan({x}) or {x} < 0 or {a} < 0", "nan"),
                (f"{a} == 0", f"select({x} > 0, {ends[0]}, nan)"),
                (f"{x} == 0", ends[1]),
                (f"isinf({a})", f"select(isinf({x}), nan, {ends[1]})"),
                (f"isinf({x})", ends[0]),
                (f"{a} > 20 and abs({x} - {a}) < 0.3 * {a}", near),
                otherwise=value,
            )
        )


_register("igamma", False)
_register("igammac", True)
