"""Bessel, Airy and error functions of real numbers, as in Cephes."""

from __future__ import annotations

import math
from collections.abc import Callable

from frontends.aten import special_tables as tables
from frontends.aten.emitter import Emitter
from frontends.aten.pointwise import short_erfc
from frontends.aten.registry import Arguments, lowering
from frontends.aten.steps import Steps, cases, polynomial, ratio
from frontends.aten.values import Ref

#: The value of a function, whose steps are written, at a place that is named.
Function = Callable[[Steps, str], str]


def function(*names: str) -> Callable[[Function], Function]:
    """Register the lowering of functions of one operand."""

    def register(function: Function) -> Function:
        @lowering(*names)
        def lowered(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
            (operand,) = (name for name, value in a.items() if isinstance(value, Ref))
            steps = Steps(e, a, outs[0])
            return steps.result(function(steps, steps.let(steps.read(operand))))

        return function

    return register


# --- error functions ------------------------------------------------------------------------------


def _exp_of_square(s: Steps, x: str, sign: str = "") -> str:
    """exp(x^2) or exp(-x^2), of which the square is not rounded (Cody)."""
    near = s.let(f"trunc({x} * 16) / 16")
    return f"(exp({sign}({near} * {near})) * exp({sign}(({x} - {near}) * ({x} + {near}))))"


def scaled_erfc(s: Steps, x: str) -> str:
    """exp(x^2) erfc(x) of x >= 0.46875, a name."""
    z = s.let(f"1 / ({x} * {x})")
    far = f"(0.5641895835477563 - {z} * {ratio(z, tables.ERFC_FAR_P, tables.ERFC_FAR_Q)}) / {x}"
    near = s.let(f"min({x}, 4)")
    return f"select({x} <= 4, {ratio(near, tables.ERFC_P, tables.ERFC_Q)}, {far})"


def _near_erf(s: Steps, x: str) -> str:
    """erf(x) of |x| <= 0.46875."""
    z = s.let(f"{x} * {x}")
    return f"{x} * {ratio(z, tables.ERF_P, tables.ERF_Q)}"


def erfc(s: Steps, x: str) -> str:
    """1 - erf(x)"""
    a = s.let(f"min(abs({x}), 28)")
    tail = s.let(f"{scaled_erfc(s, a)} * {_exp_of_square(s, a, '-')}")
    return cases(
        (f"isnan({x})", x),
        (f"{a} <= 0.46875", f"1 - {_near_erf(s, x)}"),
        (f"{x} > 0", tail),
        otherwise=f"2 - {tail}",
    )


@lowering("erfc.default", "special_erfc.default", "prims.erfc.default")
def any_erfc(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """1 - erf(x)"""
    if outs[0].dtype == "float32":
        return short_erfc(e, a, outs)
    steps = Steps(e, a, outs[0])
    return steps.result(erfc(steps, steps.let(steps.read("self"))))


@function("special_erfcx.default", "prims.erfcx.default")
def erfcx(s: Steps, x: str) -> str:
    """exp(x^2) erfc(x)"""
    a = s.let(f"abs({x})")
    tail = s.let(scaled_erfc(s, a))
    square = s.let(_exp_of_square(s, s.let(f"min({a}, 30)")))
    return cases(
        (f"isnan({x})", x),
        (f"{a} <= 0.46875", f"{square} * (1 - {_near_erf(s, x)})"),
        (f"{x} > 0", tail),
        otherwise=f"2 * {square} - {tail}",
    )


@function("erfinv.default", "special_erfinv.default", "prims.erf_inv.default")
def erfinv(s: Steps, y: str) -> str:
    """A rational approximation, and two steps of Newton's method (Pavlis)."""
    a = s.let(f"abs({y})")
    square = s.let(f"{y} * {y}")
    z = s.let(f"sqrt(-log((1 - {a}) / 2))")
    central = f"{y} * " + ratio(
        square,
        (-0.140543331, 0.914624893, -1.645349621, 0.886226899),
        (0.012229801, -0.329097515, 1.442710462, -2.118377725, 1.0),
    )
    top = (1.641345311, 3.429567803, -1.624906493, -1.970840454)
    tail = f"select({y} < 0, -1.0, 1.0) * {ratio(z, top, (1.6370678, 3.5438892, 1.0))}"
    x = s.let(f"select({a} <= 0.7, {central}, {tail})")
    for _ in range(2):
        slope = f"({2 / math.sqrt(math.pi)!r} * exp(-({x} * {x})))"
        x = s.let(f"{x} - {_erf_less(s, x, y)} / {slope}")
    return cases((f"{a} > 1", "nan"), (f"{a} == 1", f"{y} * inf"), otherwise=x)


def _erf_less(s: Steps, x: str, y: str) -> str:
    """erf(x) - y; in the tails by erfc, which differs from 1 - |y| less than erf from |y|."""
    a = s.let(f"min(abs({x}), 28)")
    tail = s.let(f"{scaled_erfc(s, a)} * {_exp_of_square(s, a, '-')}")
    far = f"select({y} < 0, -1.0, 1.0) * ((1 - abs({y})) - {tail})"
    return f"select({a} <= 0.46875, {_near_erf(s, x)} - {y}, {far})"


@function("special_ndtri.default", "prims.ndtri.default")
def ndtri(s: Steps, p: str) -> str:
    """The x up to which the normal distribution has a probability."""
    edge = 0.1353352832366127  # exp(-2)
    y = s.let(f"select({p} > {1 - edge!r}, 1 - {p}, {p})")
    middle = s.let(f"{y} - 0.5")
    square = s.let(f"{middle} * {middle}")
    central = ratio(square, tables.NDTRI_P0, tables.NDTRI_Q0)
    central = f"2.5066282746310007 * ({middle} + {middle} * ({square} * {central}))"
    x = s.let(f"sqrt(-2 * log({y}))")
    z = s.let(f"1 / {x}")
    near, far = (
        ratio(z, p, q)
        for p, q in (
            (tables.NDTRI_P1, tables.NDTRI_Q1),
            (tables.NDTRI_P2, tables.NDTRI_Q2),
        )
    )
    tail = s.let(f"{x} - log({x}) / {x} - {z} * select({x} < 8, {near}, {far})")
    return cases(
        (f"{p} == 0", "-inf"),
        (f"{p} == 1", "inf"),
        (f"not ({p} > 0 and {p} < 1)", "nan"),
        (f"{y} > {edge!r}", central),
        (f"{p} > {1 - edge!r}", tail),
        otherwise=f"-{tail}",
    )


@function("special_log_ndtr.default", "log_ndtr.default")
def log_ndtr(s: Steps, x: str) -> str:
    """The logarithm of the probability that a normal number is less than x."""
    t = s.let(f"{x} * {math.sqrt(0.5)!r}")
    below = f"log({scaled_erfc(s, s.let(f'abs({t})'))} / 2) - {t} * {t}"
    half = s.let(f"-({erfc(s, t)}) / 2")
    more = s.let(f"1 + {half}")
    above = f"select({more} == 1, {half}, log({more}) * ({half} / ({more} - 1)))"
    return f"select({x} < -1, {below}, {above})"


# --- modified Bessel functions --------------------------------------------------------------------


def _scaled_i(s: Steps, x: str, order: int) -> str:
    """exp(-|x|) I(|x|)"""
    a = s.let(f"abs({x})")
    near, far = (tables.I1E_NEAR, tables.I1E_FAR) if order else (tables.I0E_NEAR, tables.I0E_FAR)
    first = polynomial(s.let(f"{a} / 4 - 1"), near) + (f" * {a}" if order else "")
    second = polynomial(s.let(f"16 / {a} - 1"), far)
    return s.let(f"select({a} <= 8, {first}, {second} / sqrt({a}))")


@function("special_i0e.default", "prims.bessel_i0e.default")
def i0e(s: Steps, x: str) -> str:
    """exp(-|x|) I0(x)"""
    return _scaled_i(s, x, 0)


@function(
    "i0.default", "special_i0.default", "prims.bessel_i0.default",
    "special_modified_bessel_i0.default",
)  # fmt: skip
def i0(s: Steps, x: str) -> str:
    """I0(x)"""
    return f"exp(abs({x})) * {_scaled_i(s, x, 0)}"


@function("special_i1e.default", "prims.bessel_i1e.default")
def i1e(s: Steps, x: str) -> str:
    """exp(-|x|) I1(x), which is odd."""
    value = _scaled_i(s, x, 1)
    return f"select({x} < 0, -{value}, {value})"


@function(
    "special_i1.default", "prims.bessel_i1.default", "special_modified_bessel_i1.default",
)  # fmt: skip
def i1(s: Steps, x: str) -> str:
    """I1(x), which is odd."""
    value = s.let(f"exp(abs({x})) * {_scaled_i(s, x, 1)}")
    return f"select({x} < 0, -{value}, {value})"


def _k(s: Steps, x: str, order: int, scaled: bool) -> str:
    square = s.let(f"{x} * {x} / 2 - 1")
    if order:
        small = polynomial(square, tables.K1_NEAR)
        near = f"log({x} / 2) * ({i1(s, x)}) + {small} / {x}"
        far = tables.K1E_FAR
    else:
        near = f"{polynomial(square, tables.K0_NEAR)} - log({x} / 2) * ({i0(s, x)})"
        far = tables.K0E_FAR
    tail = f"{polynomial(s.let(f'4 / {x} - 1'), far)} / sqrt({x})"
    if scaled:
        near = f"({near}) * exp({x})"
    else:
        tail = f"exp(-{x}) * {tail}"
    return cases((f"{x} == 0", "inf"), (f"{x} < 0", "nan"), (f"{x} <= 2", near), otherwise=tail)


def _register_k(name: str, order: int, scaled: bool) -> None:
    @function(f"special_{name}.default")
    def k(s: Steps, x: str) -> str:
        return _k(s, x, order, scaled)


for _order in (0, 1):
    _register_k(f"modified_bessel_k{_order}", _order, False)
    _register_k(f"scaled_modified_bessel_k{_order}", _order, True)


# --- Bessel and Airy functions --------------------------------------------------------------------
#
# Cephes takes the leading coefficients 1 of some denominators for granted, and torch has left them
# out: its Bessel functions are off by up to 4e-7 between 5 and 10, and its Airy function by 3e-6
# below -2.  These here are torch's, so that compiled code gives what eager code gives.


def _far_bessel(s: Steps, x: str, order: int, second: bool) -> str:
    """J or Y of x > 5, from the amplitude and the phase."""
    pp, pq, qp, qq = (
        (tables.J1_PP, tables.J1_PQ, tables.J1_QP, tables.J1_QQ)
        if order
        else (tables.J0_PP, tables.J0_PQ, tables.J0_QP, tables.J0_QQ)
    )
    w = s.let(f"5 / {x}")
    z = s.let(f"{w} * {w}")
    phase = s.let(f"{x} - {math.pi * (0.75 if order else 0.25)!r}")
    p, q = ratio(z, pp, pq), f"{w} * {ratio(z, qp, qq)}"
    turned = f"{p} * cos({phase}) - {q} * sin({phase})"
    if second:
        turned = f"{p} * sin({phase}) + {q} * cos({phase})"
    return f"({turned}) * {math.sqrt(2 / math.pi)!r} / sqrt({x})"


@function("special_bessel_j0.default", "prims.bessel_j0.default")
def j0(s: Steps, x: str) -> str:
    """J0(x), which is even."""
    a = s.let(f"abs({x})")
    z = s.let(f"{a} * {a}")
    roots = f"({z} - 5.783185962946784) * ({z} - 30.471262343662087)"
    near = f"{roots} * {ratio(z, tables.J0_RP, tables.J0_RQ)}"
    return f"select({a} <= 5, {near}, {_far_bessel(s, a, 0, False)})"


@function("special_bessel_j1.default", "prims.bessel_j1.default")
def j1(s: Steps, x: str) -> str:
    """J1(x), which is odd."""
    a = s.let(f"abs({x})")
    z = s.let(f"{a} * {a}")
    roots = f"({z} - 14.681970642123893) * ({z} - 49.21845632169460)"
    near = f"{x} * {roots} * {ratio(z, tables.J1_RP, tables.J1_RQ)}"
    far = s.let(_far_bessel(s, a, 1, False))
    return f"select({a} <= 5, {near}, select({x} < 0, -{far}, {far}))"


@function("special_bessel_y0.default")
def y0(s: Steps, x: str) -> str:
    """Y0(x)"""
    z = s.let(f"{x} * {x}")
    near = ratio(z, tables.Y0_P, tables.Y0_Q)
    near = f"{near} + {2 / math.pi!r} * log({x}) * ({j0(s, x)})"
    return _second_kind(s, x, 0, near)


@function("special_bessel_y1.default")
def y1(s: Steps, x: str) -> str:
    """Y1(x)"""
    z = s.let(f"{x} * {x}")
    near = ratio(z, tables.Y1_P, tables.Y1_Q)
    near = f"{x} * {near} + {2 / math.pi!r} * (({j1(s, x)}) * log({x}) - 1 / {x})"
    return _second_kind(s, x, 1, near)


def _second_kind(s: Steps, x: str, order: int, near: str) -> str:
    """Y(x), of which the value up to 5 is given."""
    far = _far_bessel(s, x, order, True)
    return cases((f"{x} == 0", "-inf"), (f"{x} < 0", "nan"), (f"{x} <= 5", near), otherwise=far)


@function("special_spherical_bessel_j0.default", "prims.spherical_bessel_j0.default")
def spherical_j0(s: Steps, x: str) -> str:
    """sin(x) / x"""
    square = s.let(f"{x} * {x}")
    powers = [(-1) ** k / math.factorial(2 * k + 1) for k in range(8)]
    near = polynomial(square, powers[::-1])
    return cases((f"isinf({x})", "0.0"), (f"abs({x}) < 0.5", near), otherwise=f"sin({x}) / {x}")


@function("special_airy_ai.default")
def airy(s: Steps, x: str) -> str:
    """Ai(x): oscillating below -2.09, a power series to 2.09, falling beyond."""
    root = s.let(f"sqrt(abs({x}))")
    zeta = s.let(f"2 * abs({x}) * {root} / 3")
    z = s.let(f"1 / {zeta}")
    square = s.let(f"{z} * {z}")
    angle = s.let(f"{zeta} + {math.pi / 4!r}")
    sine = f"1 + {square} * {ratio(square, tables.AIRY_FN, tables.AIRY_FD)}"
    cosine = f"{z} * {ratio(square, tables.AIRY_GN, tables.AIRY_GD)}"
    scale = 1 / math.sqrt(math.pi)
    below = f"{scale!r} / sqrt({root}) * (sin({angle}) * ({sine}) - cos({angle}) * {cosine})"
    above = (
        f"{scale / 2!r} * {ratio(z, tables.AIRY_N, tables.AIRY_D)} / sqrt({root}) * exp(-{zeta})"
    )
    cube = s.let(f"{x} * {x} * {x}")
    f, g = [1.0], [1.0]
    for k in range(1, 16):
        f.append(f[-1] / (3 * k * (3 * k - 1)))
        g.append(g[-1] / (3 * k * (3 * k + 1)))
    series = (
        f"0.355028053887817239 * {polynomial(cube, f[::-1])}"
        f" - 0.258819403792806798 * {x} * {polynomial(cube, g[::-1])}"
    )
    return cases(
        (f"isinf({x})", "nan"),
        (f"{x} > 103.892", "0.0"),
        (f"{x} < -2.09", below),
        (f"{x} >= 2.09", above),
        otherwise=series,
    )
