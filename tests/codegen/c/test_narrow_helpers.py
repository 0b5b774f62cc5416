"""Helpers for numbers of 8 and 16 bits: each form of their text is right."""

from __future__ import annotations

import numpy as np

from codegen.c.type_names import LANE_TYPES
from tests.codegen.c.helpers_support import Load, address

RNG = np.random.default_rng(3)


def function(name: str, out: str, x: str, body: str) -> str:
    head = f"void {name}({out} *out, const {x} *x, const void *y)"
    return f"{head};\n{head}\n{{ (void)y; {body} }}\n"


def wide(element: str, lanes: int) -> str:
    c = LANE_TYPES[element]
    value = f"fk_wide_{element}_i32x{lanes}(*(const fk_{element}x{lanes}_u *)x)"
    return function(f"wide_{element}_{lanes}", "int32_t", c, f"*(fk_i32x{lanes}_u *)out = {value};")


def test_widening(load: Load) -> None:
    shapes = [(e, n) for e in ("u8", "i8", "u16", "i16") for n in (4, 8, 16)]
    library = load("".join(wide(e, n) for e, n in shapes))
    for element, n in shapes:
        kind = np.dtype(("u" if element[0] == "u" else "i") + str(int(element[1:]) // 8))
        info = np.iinfo(kind)
        for x in (
            RNG.integers(info.min, info.max + 1, n),
            np.array([info.min, info.max] * (n // 2)),
        ):
            given, out = x.astype(kind), np.zeros(n, np.int32)
            library[f"wide_{element}_{n}"](address(out), address(given), None)
            assert np.array_equal(out, given.astype(np.int32)), (element, n)


def test_rounding_and_limits(load: Load) -> None:
    lanes = (4, 8, 16)
    code = "".join(
        function(
            f"nearest_{n}", "int32_t", "float",
            f"*(fk_i32x{n}_u *)out = fk_nearest_f32x{n}(*(const fk_f32x{n}_u *)x);",
        )
        + function(
            f"clip_{n}", "float", "float",
            f"*(fk_f32x{n}_u *)out = fk_clip_f32x{n}(*(const fk_f32x{n}_u *)x, "
            f"fk_splat_f32x{n}(-3.0f), fk_splat_f32x{n}(7.0f));",
        )
        for n in lanes
    )  # fmt: skip
    library = load(code)
    for n in lanes:
        x = np.resize(np.float32([0.5, 1.5, -0.5, -1.5, 2.4999, 1e9, -7.5, 3.0, 0.49999997]), n)
        out = np.zeros(n, np.int32)
        library[f"nearest_{n}"](address(out), address(x), None)
        assert np.array_equal(out, np.rint(x).astype(np.int32))
        x = np.resize(np.float32([-np.inf, -3, -4, 7, 8, np.inf, 0, -0.0, np.nan]), n)
        made = np.zeros(n, np.float32)
        library[f"clip_{n}"](address(made), address(x), None)
        number = ~np.isnan(x)
        assert np.array_equal(made[number], np.clip(x[number], -3, 7))
        assert np.isin(made[~number], [-3, 7]).all()


def test_tables(load: Load) -> None:
    shapes = [(e, n) for e in ("u8", "i8") for n in (4, 16, 32, 64)]
    code = "".join(
        function(
            f"table_{e}_{n}", LANE_TYPES[e], "uint8_t",
            f"*(fk_{e}x{n}_u *)out = fk_table_{e}x{n}((const {LANE_TYPES[e]} *)y, "
            f"*(const fk_u8x{n}_u *)x);",
        )
        for e, n in shapes
    )  # fmt: skip
    library = load(code)
    for element, n in shapes:
        kind = np.dtype(("u" if element[0] == "u" else "i") + "1")
        table = RNG.permutation(256).astype(np.uint8).view(kind)
        for start in range(0, 256, n):
            x, out = np.arange(start, start + n, dtype=np.uint8), np.zeros(n, kind)
            library[f"table_{element}_{n}"](address(out), address(x), address(table))
            assert np.array_equal(out, table[x]), (element, n)


def test_products_of_bytes(load: Load) -> None:
    lanes = (4, 8, 16)
    code = "".join(
        function(
            f"dot4_{n}", "int32_t", "uint8_t",
            f"fk_i32x{n} a = (fk_i32x{n})*(const fk_u8x{4 * n}_u *)x; "
            f"fk_i32x{n} b = (fk_i32x{n})*(const fk_u8x{4 * n}_u *)y; "
            f"*(fk_i32x{n}_u *)out = fk_dot4_i32x{n}(*(fk_i32x{n}_u *)out, a, b);",
        )
        for n in lanes
    ) + function(
        "turned", "int32_t", "uint8_t",
        "*(fk_i32x16_u *)out = fk_turned4_i32x16(*(const fk_u8x64_u *)x);",
    )  # fmt: skip
    library = load(code)
    for n in lanes:
        most = np.full(4 * n, 255, np.uint8)
        any_a = RNG.integers(0, 256, 4 * n).astype(np.uint8)
        any_b = RNG.integers(-128, 128, 4 * n).astype(np.int8)
        for x, y in (
            (any_a, any_b),
            (most, np.full(4 * n, 127, np.int8)),
            (most, np.full(4 * n, -128, np.int8)),
        ):
            out = RNG.integers(-(1 << 31), 1 << 31, n).astype(np.int32)
            wanted = out + (x.astype(np.int32) * y).reshape(n, 4).sum(1, dtype=np.int32)
            library[f"dot4_{n}"](address(out), address(x), address(y))
            assert np.array_equal(out, wanted), n
    x, out = np.arange(64, dtype=np.uint8), np.zeros(64, np.uint8)
    library.turned(address(out), address(x), None)
    assert np.array_equal(out.reshape(16, 4), x.reshape(4, 16).T)
