"""Operands copied in groups of terms: which, and that nothing changes."""

from __future__ import annotations

import numpy as np
import pytest

from frontends.language.parse_program import parse_program
from poly.ir.program import Program
from poly.rewrites.group_operands import group_operands
from runtime.reference.evaluate import evaluate

RNG = np.random.default_rng(0)
VNNI, PAIRS = ("avx512_vnni",), ("avx2",)


def same(text: str, extensions: tuple[str, ...] = VNNI) -> Program:
    """The program with copies, after comparing it with the one as written."""
    program = parse_program(text)
    made = group_operands(program, extensions)
    arrays = {}
    for t in program.inputs:
        info = np.iinfo(t.dtype.numpy)
        shape = [int(e.value) for e in t.shape]  # type: ignore[attr-defined]
        arrays[t.name] = RNG.integers(info.min, info.max + 1, shape).astype(t.dtype.numpy)
    wanted, got = evaluate(program, arrays), evaluate(made, arrays)
    for name, array in wanted.items():
        assert np.array_equal(array, got[name]), name
    return made


def conv(c: int, index: str, extent: int = 8, guards: str = "") -> str:
    return f"""def f(uint8 X[{c},20], int8 W[16,{c},3]) -> (Y) {{
        Y[k,p] +=! int32(X[c,{index}]) * int32(W[k,c,s])
            where k in 0:16, p in 0:{extent}, c in 0:{c}, s in 0:3{guards} }}"""


@pytest.mark.parametrize(
    ("index", "row"),
    [("p + s", 20), ("2*p + s", 20), ("2*p", 8), ("2*p + 1", 20)],
)  # only every other element is copied, if the sum reads no others
def test_images(index: str, row: int) -> None:
    made = same(conv(8, index))
    (copy, _) = made.statements
    assert str(made.tensors[copy.target.tensor]) == f"uint8 X_p[2,{row},4]"


def test_images_with_a_border() -> None:
    made = same(conv(4, "p + s - 1", 20, ", 0 <= p + s - 1, p + s - 1 < 20"))
    assert len(made.statements) == 2


@pytest.mark.parametrize(
    ("text", "copied"),
    [
        (conv(6, "p + s"), ""),  # no whole number of groups
        (conv(8, "p + s").replace("16", "4"), ""),  # few filters
        ("def f(uint8 A[9,16], int8 B[16,32]) -> (Y) "
         "{ Y[i,j] +=! int32(A[i,k]) * int32(B[k,j]) }", ""),  # packed for vectors along j
        ("def f(uint8 A[32,16], int8 B[16,49]) -> (Y) "
         "{ Y[i,j] +=! int32(A[i,k]) * int32(B[k,j]) }", "B"),  # three vectors and one element
        ("def f(uint8 A[9,16], int8 B[16,49]) -> (Y) "
         "{ Y[i,j] +=! int32(A[i,k]) * int32(B[k,j]) }", ""),  # and rows of A are no better
        ("def f(uint8 A[2,3,64], int8 B[32,3,8]) -> (Y) { Y[k,p] +=! int32(A[0,c,8*p + s]) * "
         "int32(B[k,c,s]) where k in 0:32, p in 0:8, c in 0:3, s in 0:8 }", ""),  # s is adjacent
        ("def f(uint8 A[16,9], int8 B[16,32]) -> (Y) "
         "{ Y[i,j] +=! int32(A[k,i]) * int32(B[k,j]) }", "A"),  # both would be packed
        ("def f(uint8 A[9,16], int8 B[30,16]) -> (Y) "
         "{ Y[i,j] +=! int32(A[i,k]) * int32(B[j,k]) }", ""),  # as they are read
        ("def f(int8 A[9,16], int8 B[16,49]) -> (Y) "
         "{ Y[i,j] +=! int32(A[i,k]) * int32(B[k,j]) }", ""),  # no instruction for these types
    ],
)  # fmt: skip
def test_products(text: str, copied: str) -> None:
    made = same(text)
    assert [t.name for t in made.temps] == ([f"{copied}_p"] if copied else [])


def test_sixteen_bits() -> None:
    """bfloat16 in pairs; without the instruction, and of other types, nothing is copied."""
    text = """def f(bfloat16 X[8,20], bfloat16 W[16,8,3]) -> (float32 Y[16,18]) {
        Y[k,p] +=! float32(X[c,p + s]) * float32(W[k,c,s])
            where k in 0:16, p in 0:18, c in 0:8, s in 0:3 }"""
    program = parse_program(text)
    made = group_operands(program, ("avx512_bf16",))
    assert [str(t) for t in made.temps] == ["bfloat16 X_p[4,20,2]"]
    assert group_operands(program, VNNI) is program
    half = parse_program(text.replace("bfloat16", "float16"))
    assert group_operands(half, ("avx512_bf16", *VNNI)) is half
    rng = np.random.default_rng(1)
    arrays = {t.name: rng.integers(-8, 9, [int(e.value) for e in t.shape]).astype(t.dtype.numpy)  # type: ignore[attr-defined]
              for t in program.inputs}  # fmt: skip
    assert np.array_equal(evaluate(made, arrays)["Y"], evaluate(program, arrays)["Y"])


def test_products_of_a_narrow_type_are_no_sums_of_a_wide_one() -> None:
    text = (
        "def f(uint8 A[16,9], uint8 B[16,32], int32 Y[9,32]) -> (Y) { Y[i,j] += A[k,i] * B[k,j] }"
    )
    program = parse_program(text)
    assert group_operands(program, VNNI) is program


def test_a_copy_is_put_in_groups_itself() -> None:
    made = same(
        """def f(uint8 X[8,20], int8 W[16,8]) -> (Y) {
        int16 Z[8,20]
        int16 V[16,8]
        Z[c,q] = int16(int32(X[c,q]) - 3) where c in 0:8, q in 0:20
        V[k,c] = int16(W[k,c]) where k in 0:16, c in 0:8
        Y[k,p] +=! int32(Z[c,2*p]) * int32(V[k,c]) where k in 0:16, p in 0:10, c in 0:8 }""",
        PAIRS,
    )
    assert len(made.statements) == 3 and str(made.tensors["Z"]) == "int16 Z[4,20,2]"
