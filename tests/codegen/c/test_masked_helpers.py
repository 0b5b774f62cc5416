"""Helpers that work on some lanes, and products of halves: each form of their text is right."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from codegen.c.masked_instructions import MOST_LANES
from codegen.c.type_names import LANE_TYPES
from tests.codegen.c.helpers_support import Load, address

SHAPES = [
    (element, bits // int(element[1:]))
    for element, bits in product(("u16", "f32", "f64", "i32", "u32", "i64", "u64"), (128, 256, 512))
    if bits // int(element[1:]) <= MOST_LANES
]


def vector(name: str) -> str:
    return f"*(const fk_{name}_u *)"


def functions(name: str, c: str) -> dict[str, str]:
    """A function for each helper: ``out`` and ``x`` are elements, ``a`` and ``b`` are lanes."""
    out, lanes = f"*(fk_{name}_u *)out", vector(name)
    bodies = {
        "put": f"fk_put_{name}(out + a, a, b, {lanes}x)",
        "put_even": f"fk_put_even_{name}(out + 2 * a, a, b, {lanes}x)",
        "take": f"{out} = fk_take_{name}(x + a, a, b)",
        "take_even": f"{out} = fk_take_even_{name}(x + 2 * a, a, b)",
        "some": f"{out} = fk_some_{name}(x, a, b)",
        "some_even": f"{out} = fk_some_even_{name}(x, a, b)",
        "among": f"{out} = fk_among_{name}(a, b, {lanes}x, {out})",
    }
    return {
        f"{helper}_{name}": f"void {helper}_{name}({c} *out, const {c} *x, int a, int b);\n"
        f"void {helper}_{name}({c} *out, const {c} *x, int a, int b)\n{{ {body}; }}\n"
        for helper, body in bodies.items()
    }


def dot2(lanes: int) -> str:
    name = f"i32x{lanes}"
    head = f"void dot2_{name}(int32_t *out, const int32_t *x, const int32_t *y)"
    factors = f"{vector(name)}x, {vector(name)}y"
    body = f"*(fk_{name}_u *)out = fk_dot2_{name}({vector(name)}out, {factors});"
    return f"{head};\n{head}\n{{ {body} }}\n"


def expected(helper: str, out: np.ndarray, x: np.ndarray, a: int, b: int, n: int) -> np.ndarray:
    made, lanes = out.copy(), np.arange(a, b)
    if helper == "put_even":
        made[2 * lanes] = x[lanes]
    elif helper in ("put", "among"):
        made[lanes] = x[lanes]
    else:
        made[:n] = 0
        made[lanes] = x[2 * lanes] if helper.endswith("even") else x[lanes]
    return made


def test_some_lanes(load: Load) -> None:
    library = load(
        "".join(t for e, n in SHAPES for t in functions(f"{e}x{n}", LANE_TYPES[e]).values())
    )
    rng = np.random.default_rng(0)
    for element, n in SHAPES:
        kind = np.dtype(element[0] + str(int(element[1:]) // 8))
        for function in functions(f"{element}x{n}", ""):
            helper = function.rsplit("_", 1)[0]
            for a, b in product(range(n), range(1, n + 1)):
                if b < a or (b == a and helper != "some_even"):
                    continue
                x, out = rng.integers(1, 99, (2, 2 * n)).astype(kind)
                wanted = expected(helper, out, x, a, b, n)
                library[function](address(out), address(x), a, b)
                assert np.array_equal(out, wanted), (function, a, b)


@pytest.mark.parametrize("lanes", [2, 4, 8, 16])
def test_products_of_halves(load: Load, lanes: int) -> None:
    library = load(dot2(lanes))
    rng = np.random.default_rng(lanes)
    x, y = rng.integers(-(1 << 15), 1 << 15, (2, 2 * lanes)).astype(np.int16)
    start = rng.integers(-(1 << 31), 1 << 31, lanes).astype(np.int32)
    out = start.copy()
    library[f"dot2_i32x{lanes}"](address(out), address(x), address(y))
    pairs = (x.astype(np.int64) * y).reshape(lanes, 2).sum(1)
    assert np.array_equal(out, (start + pairs).astype(np.int32))
