"""How far apart in memory the elements are that iterations of a loop read."""

from __future__ import annotations

import pytest

from frontends.language.parse_program import parse_program
from poly.ir.accesses import block_of, count_expr, count_of, element_stride, vector_stride
from poly.ir.expr import Read
from poly.ir.layout import Layout, relayout
from poly.ir.program import Program


def read(text: str, layout: Layout | None = None) -> tuple[Program, Read]:
    program = parse_program(f"def f(float32 A[{text}", {})
    if layout is not None:
        program = relayout(program, "A", layout)
    (found,) = (r for r in program.statements[0].reads if r.tensor == "A")
    return program, found


@pytest.mark.parametrize(
    ("text", "loop", "stride"),
    [
        ("8,12]) -> (B) { B[i,j] = A[i,j] }", "i", 12),
        ("8,12]) -> (B) { B[i,j] = A[i,j] }", "j", 1),
        ("8,12,5]) -> (B) { B[i,k] = A[i,7 - k,2*k] where k in 0:2 }", "k", -5 + 2),
        ("8,12]) -> (B) { B[i,j,k] = A[i,j] where k in 0:3 }", "k", 0),
        ("8,N]) -> (B) { B[i,j] = A[i,j] }", "i", None),
        ("N,8]) -> (B) { B[i,j] = A[i,j] }", "i", 8),
        ("8,12]) -> (B) { B[i,j] = A[i,j // 2] where j in 0:24 }", "j", None),
    ],
)
def test_the_stride_of_a_read(text: str, loop: str, stride: int | None) -> None:
    program, found = read(text)
    assert element_stride(found, program.tensors["A"].shape, loop, 4) == stride


@pytest.mark.parametrize(
    ("count", "loop", "stride"), [(4, "k", 1), (2, "k", 1), (8, "k", None), (8, "j", 4)]
)
def test_the_stride_of_a_read_in_blocks_of_two_dimensions(
    count: int, loop: str, stride: int | None
) -> None:
    layout = Layout((1, 0), ((1, 8), (0, 4)))
    program, found = read("12,16]) -> (B) { B[k,j] = A[k,j] }", layout)
    assert element_stride(found, program.tensors["A"].shape, loop, count) == stride
    assert block_of(found, loop) == {"k": 4, "j": 8}[loop]


def test_lanes_are_as_far_apart_as_the_blocks_within_are_long() -> None:
    _, found = read("12,16]) -> (B) { B[k,j] = A[k,j] }", Layout((1, 0), ((1, 8), (0, 4))))
    assert vector_stride(found, "j", 8) == 4
    assert vector_stride(found, "k", 4) == 1


@pytest.mark.parametrize(
    ("where", "count"),
    [
        ("0:N", "N"),
        ("0:N+1", "N + 1"),
        ("2:N", "max(N - 2, 0)"),
        ("0:N-2", "max(N - 2, 0)"),
        ("0:N//2", "max(N // 2, 0)"),
        ("3:7", "4"),
        ("0:-3", "0"),
    ],
)
def test_the_number_of_values_of_a_range(where: str, count: str) -> None:
    program = parse_program(
        f"def f(float32 A[N]) -> (B) {{ B[i] +=! A[0] * 2 where i in 0:3, k in {where} }}"
    )
    (r,) = (r for r in program.statements[0].ranges if r.index == "k")
    assert str(count_expr(r)) == count
    assert count_of(r) == (float(count) if count.isdigit() else float("inf"))
