"""What is left of tiles of unknown extents: rows, vectors and matrices that are not whole."""

from __future__ import annotations

import re

import numpy as np
import pytest

import farkas as fk
from codegen.c.kernel_unit import generate
from frontends.language.parse_program import parse_program
from poly.ir.program import specialise
from poly.schedule.schedule import Schedule
from poly.strategy.cpu.auto_schedule import auto_schedule
from runtime.reference.evaluate import evaluate

PRODUCT = "def f(float32 A[M,K], float32 B[K,N]) -> (C) { C[i,j] +=! A[i,k] * B[k,j] }"
TRANSPOSED = """def f(float32 A[P,M,K], float32 X[P,N,K], float32 C[N]) -> (Y) {
    T[b,i,j] +=! A[b,i,k] * X[b,j,k]
    Y[b,i,j] = max(T[b,i,j] + C[j], 0)
}"""
PIXELS = """def f(float32 X[C,H,W], float32 F[K,C], float32 S[K]) -> (Y) {
    T[k,p,q] +=! X[c,p,q] * F[k,c]
    Y[k,p,q] = T[k,p,q] + S[k]
}"""
PADDED = """def f(float32 X[C,H,W], float32 F[K,C,3,3], float32 S[K]) -> (Y) {
    T[k,p,q] +=! X[c,p+r-1,q+s-1] * F[k,c,r,s]
        where p in 0:H, q in 0:W, 0 <= p+r-1 < H, 0 <= q+s-1 < W
    Y[k,p,q] = T[k,p,q] + S[k]
}"""
#: More padding than taps need: where the image is empty, there are pixels without any tap.
FAR_PADDED = """def f(float32 X[C,H,W], float32 F[K,C,3,3]) -> (Y) {
    Y[k,p,q] +=! X[c,p+r-2,2*q+s-2] * F[k,c,r,s]
        where p in 0:H+2, q in 0:W//2+1, 0 <= p+r-2 < H, 0 <= 2*q+s-2 < W
}"""
THREE = """def f(float32 Z[A,B,C,D], float32 X[D,B,E,A]) -> (Y) {
    Y[e,c] +=! Z[a,b,c,d] * X[d,b,e,a]
}"""
MOVED = "def f(float32 X[N,M]) -> (Y) { Y[j,i] = 2 * X[i,j] }"
MOVED_CHANNELS = "def f(float32 X[N,H,W,C]) -> (Y) { Y[n,c,h,w] = X[n,h,w,c] }"

#: Each with some sizes, so that tiles are whole, partial on one side or on both, or not there.
CASES = {
    "product": (PRODUCT, "MKN", [(8, 5, 32), (7, 9, 31), (17, 3, 65), (1, 1, 1), (9, 1030, 33)]),
    "transposed": (TRANSPOSED, "PMKN", [(2, 8, 16, 32), (3, 13, 7, 26), (1, 1, 1025, 50)]),
    "pixels": (PIXELS, "CHWK", [(3, 4, 8, 32), (5, 3, 14, 48), (2, 7, 7, 33), (1030, 2, 9, 5)]),
    "padded": (
        PADDED,
        "CHWK",
        [
            (2, 8, 8, 32),
            (3, 5, 14, 20),
            (2, 1, 1, 1),
            (4, 3, 23, 17),
            (3, 7, 7, 64),
            (65, 2, 14, 64),
            (2, 3, 12, 32),
            (1, 2, 9, 33),
            (2, 2, 2, 32),
            (1, 3, 28, 32),
        ],
    ),
    "far padded": (
        FAR_PADDED,
        "CHWK",
        [
            (2, 8, 28, 32),
            (3, 5, 14, 64),
            (2, 1, 1, 33),
            (4, 0, 0, 32),
            (1, 2, 0, 32),
            (2, 2, 41, 32),
        ],
    ),
    "three": (THREE, "ABCDE", [(3, 4, 40, 5, 35), (2, 7, 9, 3, 1), (17, 17, 3, 17, 33)]),
    "moved": (MOVED, "NM", [(32, 48), (33, 50), (5, 100), (100, 5), (1, 1), (0, 7)]),
    "channels": (MOVED_CHANNELS, "NHWC", [(1, 4, 16, 32), (2, 3, 19, 21), (1, 1, 3, 40)]),
}


@pytest.fixture(scope="module")
def kernels() -> dict[str, fk.Kernel]:
    return {name: fk.compile(text) for name, (text, _, _) in CASES.items()}


@pytest.mark.parametrize(
    ("name", "values"), [(n, v) for n, (_, _, found) in CASES.items() for v in found]
)
@pytest.mark.parametrize("threads", [1, 3])
def test_all_sizes(
    kernels: dict[str, fk.Kernel], name: str, values: tuple[int, ...], threads: int
) -> None:
    text, letters, _ = CASES[name]
    sizes = dict(zip(letters, values, strict=True))
    program = specialise(parse_program(text), sizes)
    rng = np.random.default_rng(sum(values))
    given = {}
    for t in program.inputs:
        shape = [int(e.value) for e in t.shape]  # type: ignore[attr-defined]
        given[t.name] = rng.integers(-3, 4, shape).astype(np.float32)
    expected = evaluate(program, given, {})["Y" if "Y" in program.tensors else "C"]
    np.testing.assert_array_equal(kernels[name](**given, threads=threads), expected)


def test_what_is_not_there_spoils_nothing() -> None:
    # The last row, and lanes that take no part, are read again for rows that are not there.
    kernel = fk.compile(PADDED)
    x = np.full((2, 5, 13), np.inf, np.float32)
    x[:, 1:-1, 1:-1] = 0
    f = np.zeros((19, 2, 3, 3), np.float32)
    f[:, :, 1, 1] = 1
    f[3] = np.nan
    b = np.zeros(19, np.float32)
    with np.errstate(invalid="ignore"):
        expected = evaluate(parse_program(PADDED), {"X": x, "F": f, "S": b})["Y"]
    np.testing.assert_array_equal(kernel(x, f, b), expected)


def body(text: str) -> str:
    code = generate(auto_schedule(Schedule.of(parse_program(text)))).text
    return code[code.index("_body(") :]


def loops_over(code: str, var: str) -> list[str]:
    """The bodies of the innermost loops over a variable."""
    lines = code.splitlines()
    found = []
    for n, line in enumerate(lines):
        if re.match(rf"\s*for \(int64_t {var} =", line):
            indent = len(line) - len(line.lstrip())
            end = next(k for k in range(n + 1, len(lines)) if lines[k] == " " * indent + "}")
            found.append("\n".join(lines[n:end]))
    return found


def test_no_branches_inside_of_a_reduction() -> None:
    loops = [x for x in loops_over(body(PIXELS), "c_q") if "+=" in x]
    assert loops
    assert all(x.count("if (") <= 1 for x in loops)


def test_a_temporary_is_stored_only_where_it_is_read_again() -> None:
    code = body(PIXELS)
    stores = [line for line in code.splitlines() if re.search(r"fk_put\w+\(&T\[|&T\[.*\] =", line)]
    assert stores
    # The last block of the reduction is the one with the epilogue.
    for part in code.split("if (1024*c_p + 1024 >= C)")[1:]:
        assert "T[" not in part.split("else")[0]


def test_matrices_of_unknown_shape_are_turned_around() -> None:
    assert "fk_transpose_f32x16" in body(MOVED)
    assert "fk_transpose_f32x16" in body(PADDED)


def test_rows_at_the_edge_of_an_image_take_part_under_masks() -> None:
    loops = [x for x in loops_over(body(PADDED), "c_q") if "fk_among" in x]
    assert loops
    # Half of the rows, and the other half, are left out by branches.
    whole = [x for x in loops if "fk_take" not in x]
    assert whole
    assert all(x.count("if (") <= 2 for x in whole)
