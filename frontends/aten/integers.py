"""Arithmetic of integers in loops, and parts of floats that are whole numbers."""

from __future__ import annotations

from frontends.aten.emitter import Emitter
from frontends.aten.pointwise import float_power
from frontends.aten.registry import Arguments, lowering
from frontends.aten.steps import Steps, cases
from frontends.aten.values import Ref, Unsupported
from poly.ir.dtypes import DTYPES

#: Divisions that Euclid's algorithm needs at most: Fibonacci numbers need most.
_DIVISIONS = {8: 13, 16: 24, 32: 47, 64: 93}


@lowering("gcd.default", "prims.gcd.default")
def gcd(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """The greatest common divisor, by Euclid's algorithm."""
    out = outs[0]
    s = Steps(e, a, out)
    first, second = (s.let(f"abs({s.read(n, out.dtype)})", out.dtype) for n in ("self", "other"))
    rest = s.let("0", out.dtype)
    s.loop(
        "k", 0, _DIVISIONS[DTYPES[out.dtype].bits],
        [
            (rest, f"select({first} == 0, {second}, fmod({second}, {first}))"),
            (second, f"select({first} == 0, {second}, {first})"),
            (first, f"select({first} == 0, {first}, {rest})"),
        ],
    )  # fmt: skip
    return s.result(second)


@lowering("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")
def power(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """self ** exponent"""
    exponent = a["exponent"]
    if outs[0].is_float or (isinstance(exponent, int) and exponent in (1, 2, 3, 4)):
        return float_power(e, a, outs)
    return integer_power(e, a, outs[0])


def integer_power(e: Emitter, a: Arguments, out: Ref) -> Ref:
    """self ** exponent by squaring, which wraps; with a negative exponent, 0 unless of 1 and -1."""
    s, dtype = Steps(e, a, out), out.dtype
    base, exponent = s.let(s.read("self", dtype), dtype), s.let(s.read("exponent", dtype), dtype)
    negative = "false"
    if not dtype.startswith("u"):
        negative = s.let(f"{exponent} < 0", "bool")
    first, odd = s.let(base, dtype), s.let(f"({exponent} & 1) != 0", "bool")
    value = s.let("1", dtype)
    s.loop(
        "k", 0, DTYPES[dtype].bits,
        [
            (value, f"select(({exponent} & 1) != 0, {value} * {base}, {value})"),
            (base, f"{base} * {base}"),
            (exponent, f"{exponent} >> 1"),
        ],
    )  # fmt: skip
    text = value
    if negative != "false":
        unit = cases(
            (f"{first} == 1", "1"), (f"{first} == -1", f"select({odd}, -1, 1)"), otherwise="0"
        )
        text = f"select({negative}, {unit}, {value})"
    return s.result(text)


@lowering("frexp.Tensor", "prims.frexp.default")
def frexp(e: Emitter, a: Arguments, outs: list[Ref]) -> list[Ref | None]:
    """x = m 2^k with 1/2 <= |m| < 1, by multiplications with powers of two, which are exact."""
    s = Steps(e, a, outs[0])
    x = s.let(s.read("self"))
    value, exponent = s.let(f"abs({x})"), s.let("0", "int32")
    plain = s.let(f"{value} == 0 or isinf({x}) or isnan({x})", "bool")
    for k in (512, 256, 128, 64, 32, 16, 8, 4, 2, 1):
        large = s.let(f"{value} >= {2.0**k!r}", "bool")
        value = s.let(f"select({large}, {value} * {2.0**-k!r}, {value})")
        exponent = s.let(f"select({large}, {exponent} + {k}, {exponent})", "int32")
    for k in (512, 512, 256, 128, 64, 32, 16, 8, 4, 2, 1):
        small = s.let(f"{value} < {2.0 ** (1 - k)!r}", "bool")
        value = s.let(f"select({small}, {value} * {2.0**k!r}, {value})")
        exponent = s.let(f"select({small}, {exponent} - {k}, {exponent})", "int32")
    mantissa = f"select({x} < 0, -0.5, 0.5) * {value}"
    texts = [f"select({plain}, {x}, {mantissa})", f"select({plain}, 0, {exponent} + 1)"]
    return [*s.results(texts, outs)]


#: Half a unit in the last place of 1, the least number above 0, the range in which that is the
#: distance of neighbours, what is scaled to be away from it, and the greatest number.
_FLOATS = {
    "float32": (2.0**-24, 2.0**-149, 2.0**-125, 2.0**-60, 2.0**30, (2 - 2.0**-23) * 2.0**127),
    "float64": (2.0**-53, 5e-324, 2.0**-1021, 2.0**-500, 2.0**200, (2 - 2.0**-52) * 2.0**1023),
}


@lowering("nextafter.default", "prims.nextafter.default")
def next_after(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """The neighbour of x towards y (Rump, Zimmermann, Boldo and Melquiond 2009)."""
    dtype = outs[0].dtype
    if dtype not in _FLOATS:
        raise Unsupported(f"neighbours in {dtype}")
    unit, least, dense, low, scale, most = _FLOATS[dtype]
    s = Steps(e, a, outs[0])
    x, y = (s.let(s.read(n, dtype), dtype) for n in ("self", "other"))
    up = s.let(f"select({x} < {y}, 1, -1)", dtype)
    small = s.let(f"abs({x}) < {low!r}", "bool")
    scaled = s.let(f"select({small}, {x} * {scale!r}, {x})", dtype)
    moved = s.let(f"{scaled} + {up} * ({unit * (1 + 2 * unit)!r} * abs({scaled}))", dtype)
    value = cases(
        (f"isnan({x}) or isnan({y})", "nan"),
        (f"{x} == {y}", y),
        (f"isinf({x})", f"select({x} < 0, -{most!r}, {most!r})"),
        (f"{x} == -{least!r} and {up} > 0", "-0.0"),
        (f"abs({x}) < {dense!r}", f"{x} + {up} * {least!r}"),
        (small, f"{moved} / {scale!r}"),
        otherwise=moved,
    )
    return s.result(value)
