"""Orthogonal polynomials whose degree is an element of a tensor.

Where they are too large for their type, they are infinite; torch's recurrences end there with NaN.
"""

from __future__ import annotations

from frontends.aten.emitter import Emitter
from frontends.aten.registry import Arguments, lowering
from frontends.aten.steps import Steps, cases
from frontends.aten.values import Ref, Unsupported

#: Hermite polynomials of a higher degree are NaN in torch, by element type.
_MOST = {"float32": 128, "float64": 512}


def _overloads(name: str) -> list[str]:
    return [f"special_{name}.{kind}" for kind in ("default", "n_scalar", "x_scalar")]


def _operands(e: Emitter, a: Arguments, out: Ref) -> tuple[Steps, str, str]:
    """The place and the degree, which is cut to a whole number."""
    s = Steps(e, a, out)
    return s, s.let(s.read("x")), s.let(f"trunc({s.read('n')})")


# --- Chebyshev ------------------------------------------------------------------------------------

#: With x = cos(t): the value, that at 1, the kind that is mirrored at 0, and the factor of exp(n t)
#: far away; with x = cosh(t), the same of hyperbolic functions.
_KINDS = {
    "t": ("cos({n} * {t})", "1.0", "t", "0.5"),
    "u": ("sin(({n} + 1) * {t}) / sin({t})", "({n} + 1)", "u", "1.0"),
    "v": ("cos(({n} + 0.5) * {t}) / cos(0.5 * {t})", "1.0", "w", "1.0"),
    "w": ("sin(({n} + 0.5) * {t}) / sin(0.5 * {t})", "(2 * {n} + 1)", "v", "1.0"),
}
#: Beyond this t, exp(-2 t) is nothing beside 1.
_FAR = 20


def chebyshev(s: Steps, x: str, n: str, kind: str) -> str:
    """``(-1)^n`` times the mirrored kind at |x| below 0."""
    a = s.let(f"abs({x})")
    odd = s.let(f"select(fmod({n}, 2) == 0, 1.0, -1.0)")
    inside, outside = s.let(f"acos({a})"), s.let(f"acosh({a})")

    def positive(which: str) -> str:
        text, at_one, _, factor = _KINDS[which]
        beyond = text.replace("cos(", "cosh(").replace("sin(", "sinh(")
        return s.let(
            cases(
                (f"{a} == 1", at_one.format(n=n)),
                (f"{a} < 1", text.format(n=n, t=inside)),
                (f"{outside} > {_FAR}", f"{factor} * exp({n} * {outside})"),
                otherwise=beyond.format(n=n, t=outside),
            )
        )

    value = positive(kind)
    mirrored = value if _KINDS[kind][2] == kind else positive(_KINDS[kind][2])
    signed = f"select({x} < 0, {odd} * {mirrored}, {value})"
    return cases((f"not ({n} >= 0)", "0.0"), (f"{n} == 0", "1.0"), otherwise=signed)


def _register_chebyshev(kind: str, shifted: bool) -> None:
    @lowering(*_overloads(f"{'shifted_' if shifted else ''}chebyshev_polynomial_{kind}"))
    def lowered(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
        s, x, n = _operands(e, a, outs[0])
        place = s.let(f"2 * {x} - 1") if shifted else x
        return s.result(chebyshev(s, place, n, kind))


for _kind in _KINDS:
    _register_chebyshev(_kind, False)
    _register_chebyshev(_kind, True)


# --- recurrences ----------------------------------------------------------------------------------

#: The polynomial of degree 1, and the one after q, which comes after p, of degree k + 1.
_RECURRENCES = {
    "hermite_polynomial_h": ("2 * {x}", "2 * ({x} * {q} - {k} * {p})"),
    "hermite_polynomial_he": ("{x}", "{x} * {q} - {k} * {p}"),
    "laguerre_polynomial_l": ("1 - {x}", "((2 * {k} + 1 - {x}) * {q} - {k} * {p}) / ({k} + 1)"),
    "legendre_polynomial_p": ("{x}", "((2 * {k} + 1) * {x} * {q} - {k} * {p}) / ({k} + 1)"),
}


def _register_recurrence(name: str, first: str, text: str) -> None:
    @lowering(*_overloads(name))
    def lowered(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
        """Go on to each element's degree; beyond `most`, torch does, or has NaN."""
        s, x, n = _operands(e, a, outs[0])
        most = _MOST.get(outs[0].dtype, 512)
        if not name.startswith("hermite"):
            if isinstance(a["n"], Ref):
                degree = e.cast(a["n"], "float64")
                e.leave(degree, f"{{0}} > {most}", f"degrees that may be above {most}")
            elif not a["n"] <= most:
                raise Unsupported(f"a degree above {most}")
        p, q, following = s.let("1.0"), s.let(first.format(x=x)), s.let("0.0")
        s.loop(
            "k", 1, most,
            [
                (following, text.format(x=x, p=p, q=q, k="float64(k)")),
                (p, f"select(k < {n}, {q}, {p})"),
                (q, f"select(k < {n}, {following}, {q})"),
            ],
        )  # fmt: skip
        ends = [(f"not ({n} >= 0)", "0.0"), (f"{n} == 0", "1.0"), (f"{n} > {most}", "nan")]
        return s.result(cases(*ends, otherwise=q))


for _name, _texts in _RECURRENCES.items():
    _register_recurrence(_name, *_texts)
