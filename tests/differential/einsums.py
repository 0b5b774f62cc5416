"""Random einsums, convolutions and stencils of fixed, odd extents, as a person may write them."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from random import Random

EXTENTS = (1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 15, 16, 17, 19, 23, 24, 31, 32, 33, 40, 48, 63, 65)
#: The fewest and the most iterations of a statement.
FEWEST, MOST = 500, 60_000


def fixed_text(seed: int) -> str:
    """A program without sizes."""
    rng = Random(seed)
    return rng.choice((_einsum, _einsum, _convolution, _stencil))(rng)


def _extents(rng: Random, letters: str, most: int = MOST) -> dict[str, int]:
    while True:
        drawn = {letter: rng.choice(EXTENTS) for letter in letters}
        if FEWEST < prod(drawn.values()) <= most:
            return drawn


def _shape(letters: str, extents: Mapping[str, int]) -> str:
    return ",".join(str(extents[letter]) for letter in letters)


def _einsum(rng: Random) -> str:
    """Two or three operands, with letters in any order; perhaps something that follows."""
    letters = "abcde"[: rng.randint(3, 5)]
    extents = _extents(rng, letters)
    operands = [""]
    while {*"".join(operands)} != {*letters}:
        ranks = (rng.randint(1, 3) for _ in range(rng.choice((2, 2, 3))))
        operands = ["".join(rng.sample(letters, rank)) for rank in ranks]
    result = "".join(rng.sample(letters, rng.randint(1, len(letters) - 1)))
    inputs = [f"float32 A{n}[{_shape(x, extents)}]" for n, x in enumerate(operands)]
    value = " * ".join(f"A{n}[{','.join(x)}]" for n, x in enumerate(operands))
    at = ",".join(result)
    epilogue = rng.choice(("", "", f"Y[{at}] = max(C[{at}] + B[{result[0]}], 0)"))
    if epilogue:
        inputs.append(f"float32 B[{extents[result[0]]}]")
    outputs = rng.choice(("Y", "C, Y")) if epilogue else "C"
    return f"def f({', '.join(inputs)}) -> ({outputs}) {{ C[{at}] +=! {value}\n {epilogue} }}"


def _convolution(rng: Random) -> str:
    """Channels first, with filters in one of two layouts and a stride of 1 or 2."""
    r, s, step = rng.randint(1, 3), rng.randint(1, 3), rng.choice((1, 1, 2))
    extents = _extents(rng, "kcpq", MOST // (r * s)) | {"r": r, "s": s}
    filters = rng.choice(("kcrs", "rsck"))
    rows, columns = ((extents[i] - 1) * step + extents[t] for i, t in ("pr", "qs"))
    inputs = f"float32 X[{extents['c']},{rows},{columns}], float32 W[{_shape(filters, extents)}]"
    where = ", ".join(f"{i} in 0:{n}" for i, n in extents.items())
    return (
        f"def f({inputs}) -> (Y) {{ Y[k,p,q] +=! X[c,{step}*p+r,{step}*q+s] * "
        f"W[{','.join(filters)}] where {where} }}"
    )


def _stencil(rng: Random) -> str:
    """A sum or maximum around each element, with weights or without."""
    u, v = rng.choice((2, 3, 5)), rng.choice((1, 3, 5))
    extents = _extents(rng, "ij", MOST // (u * v)) | {"u": u, "v": v}
    inputs = f"float32 X[{extents['i'] + u - 1},{extents['j'] + v - 1}]"
    value, op = "X[i+u,j+v]", rng.choice(("+=!", "max=!"))
    if rng.random() < 0.6:
        inputs, value = f"{inputs}, float32 W[{u},{v}]", f"{value} * W[u,v]"
    where = ", ".join(f"{i} in 0:{n}" for i, n in extents.items())
    return f"def f({inputs}) -> (Y) {{ Y[i,j] {op} {value} where {where} }}"
