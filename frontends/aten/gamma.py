"""The gamma function, its derivatives, and zeta, as in Cephes."""

from __future__ import annotations

import math
from collections.abc import Callable

from frontends.aten import special_tables as tables
from frontends.aten.emitter import Emitter
from frontends.aten.registry import Arguments, lowering
from frontends.aten.special import function
from frontends.aten.steps import Steps, cases, polynomial, ratio
from frontends.aten.values import Ref, Unsupported

#: Where Stirling's series and that of Euler and Maclaurin begin.
_FAR = 10


@function("lgamma.default", "prims.lgamma.default")
def lgamma(s: Steps, x: str) -> str:
    """log |gamma(x)|; of x < 0 by reflection, from 13 on by Stirling's series."""
    a = s.let(f"abs({x})")
    value = s.let(lgamma_of_positive(s, a))
    sine = s.let(_sine_of_pi(s, a))
    return cases(
        (f"isinf({x})", "inf"),
        (f"{x} <= 0 and {x} == floor({x})", "inf"),
        (f"{x} < 0", f"{math.log(math.pi)!r} - log({a} * abs({sine})) - {value}"),
        otherwise=value,
    )


def lgamma_of_positive(s: Steps, a: str) -> str:
    """Below 13, ``gamma(a) = a-1 ... u gamma(u)`` and the like with 2 <= u < 3."""
    near = s.let(f"min({a}, 13)")
    down = s.let(f"max(floor({near}) - 2, 0)")
    up = s.let(f"max(2 - floor({near}), 0)")
    factors = [f"select({n} <= {down}, {near} - {n}, 1)" for n in range(1, 12)]
    rest = [f"select({n} < {up}, {near} + {n}, 1)" for n in range(2)]
    product = s.let(f"select({up} > 0, {' * '.join(rest)}, {' * '.join(factors)})")
    v = s.let(f"{near} - ({down} - {up} + 2)")
    between = f"{v} * {ratio(v, tables.LGAMMA_B, tables.LGAMMA_C)}"
    small = f"select({up} > 0, -1.0, 1.0) * log({product}) + {between}"
    far = s.let(f"max({a}, 13)")
    square = s.let(f"1 / ({far} * {far})")
    series = polynomial(square, tables.LGAMMA_A)
    large = f"({far} - 0.5) * log({far}) - {far} + {math.log(2 * math.pi) / 2!r} + {series} / {far}"
    return f"select({a} < 13, {small}, select(isnan({a}), {a}, {large}))"


def _sine_of_pi(s: Steps, x: str) -> str:
    """sin(pi x), exact near whole numbers."""
    rest = s.let(f"{x} - round({x})")
    return f"sin({math.pi!r} * {rest}) * select(fmod(round({x}), 2) == 0, 1.0, -1.0)"


@function("digamma.default", "special_digamma.default", "prims.digamma.default")
def digamma(s: Steps, x: str) -> str:
    """The derivative of log gamma: x < 0 by reflection, others from x + n >= 10 down."""
    rest = s.let(f"{x} - trunc({x})")
    reflected = f"{math.pi!r} / tan({math.pi!r} * {rest})"
    a = s.let(f"select({x} < 0, 1 - {x}, {x})")
    total, far = s.let("0.0"), s.let(a)
    for _ in range(_FAR):
        total = s.let(f"{total} - select({far} < {_FAR}, 1 / {far}, 0)")
        far = s.let(f"select({far} < {_FAR}, {far} + 1, {far})")
    square = s.let(f"1 / ({far} * {far})")
    series = f"{square} * {polynomial(square, tables.DIGAMMA)}"
    value = s.let(f"{total} + log({far}) - 0.5 / {far} - {series}")
    return cases(
        (f"{x} == 0", f"-1 / {x}"),
        (f"{x} < 0 and {x} == trunc({x})", "nan"),
        (f"{x} < 0", f"{value} - {reflected}"),
        (f"{x} == inf", "inf"),
        otherwise=value,
    )


def _power(x: str, n: int) -> str:
    """x ** n by squaring."""
    if n == 1:
        return x
    half = _power(x, n // 2)
    return f"({half} * {half}{f' * {x}' if n % 2 else ''})"


def _zeta_of_integer(s: Steps, n: int, q: str) -> str:
    """sum over k of (q + k) ** -n, for q > 0 and n > 1."""
    terms = [f"1 / {_power(s.let(f'({q} + {k})'), n)}" for k in range(_FAR)]
    first = s.let(" + ".join(reversed(terms)))
    w = s.let(f"{q} + {_FAR}")
    inverse = s.let(f"1 / {w}")
    square = s.let(f"{inverse} * {inverse}")
    series, rising = [], float(n)
    for k, divisor in enumerate(tables.ZETA):
        series.append(rising / divisor)
        rising *= (n + 2 * k + 1) * (n + 2 * k + 2)
    tail = f"{square} * {polynomial(square, series[::-1])}"
    return f"({first} + {_power(inverse, n - 1)} * ({1 / (n - 1)!r} + 0.5 * {inverse} + {tail}))"


@lowering("polygamma.default", "special_polygamma.default")
def polygamma(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """The n-th derivative of digamma: n! (-1)^(n+1) zeta(n + 1, x)."""
    n, s = a["n"], Steps(e, a, outs[0])
    x = s.let(s.read("self"))
    if n == 0:
        return s.result(digamma(s, x))
    if n == 1:
        return s.result(_trigamma(s, x))
    if n > _MOST:
        raise Unsupported(f"a derivative of digamma beyond the {_MOST}th")
    factor = float(math.factorial(n)) * (1 if n % 2 else -1)
    value = _everywhere(s, x, "1.0" if n % 2 else "-1.0", lambda q: _zeta_of_integer(s, n + 1, q))
    whole = f"{x} <= 0 and {x} == floor({x})"
    return s.result(f"{factor!r} * {cases((whole, 'inf'), otherwise=value)}")


#: The highest derivative of digamma.
_MOST = 30


def _trigamma(s: Steps, x: str) -> str:
    """Of x < 0.5 by reflection, with the sine of a product that is rounded as torch's."""
    dtype = s.out.dtype
    sine = s.let(f"sin(float64({dtype}({math.pi!r}) * {dtype}({x})))")
    q = s.let(f"select({x} < 0.5, 1 - {x}, {x})")
    value = s.let(_zeta_of_integer(s, 2, q))
    value = f"select({q} == inf, 0.0, {value})"
    return f"select({x} < 0.5, {math.pi**2!r} / ({sine} * {sine}) - {value}, {value})"


def _everywhere(s: Steps, q: str, sign: str, zeta: Callable[[str], str]) -> str:
    """zeta(n, q) from that of places above 0: the terms with q + k < 0 are a difference of two.

    sign : of (-1) ** n
    """
    above = s.let(f"select({q} > 0, {q}, {q} - floor({q}))")
    value = s.let(zeta(above))
    first, behind = s.let(zeta(s.let(f"1 - {above}"))), s.let(zeta(s.let(f"1 - {q}")))
    return cases(
        (f"{q} == inf", "nan"),
        (f"{q} > 0 or isnan({q})", value),
        otherwise=f"{value} + {sign} * select(isinf({first}), {first}, {first} - {behind})",
    )


@lowering("special_zeta.default", "prims.zeta.default")
def zeta(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """The sum over k of (q + k) ** -x."""
    s = Steps(e, a, outs[0])
    x, q = s.let(s.read("self")), s.let(s.read("other"))
    sign = s.let(f"select({x} - 2 * floor({x} / 2) == 1, -1.0, 1.0)")
    value = _everywhere(s, q, sign, lambda place: _zeta(s, x, place))
    return s.result(
        cases(
            (f"{x} == 1", "inf"),
            (f"{x} < 1", "nan"),
            (f"{q} <= 0 and {q} == floor({q})", "inf"),
            (f"{q} <= 0 and {x} != floor({x})", "nan"),
            otherwise=value,
        )
    )


def _zeta(s: Steps, x: str, q: str) -> str:
    """Terms, and what follows them by the formula of Euler and Maclaurin, for q > 0."""
    terms = [s.let(f"pow({q} + {k}, -{x})") for k in range(_FAR)]
    first = s.let(" + ".join(reversed(terms)))
    w, last = s.let(f"{q} + {_FAR - 1}"), terms[-1]
    square = s.let(f"1 / ({w} * {w})")
    series = "0.0"
    for k in reversed(range(len(tables.ZETA))):
        more = f" + ({x} + {2 * k + 1}) * ({x} + {2 * k + 2}) * {square} * {series}"
        series = f"({1 / tables.ZETA[k]!r}{more if series != '0.0' else ''})"
    tail = f"{last} * ({w} / ({x} - 1) - 0.5 + {x} / {w} * {series})"
    return f"select({last} < 1e-17 * {first}, {first}, {first} + {tail})"
