"""Contractions in 8 bits: which tiles they get where sizes are open."""

from __future__ import annotations

import numpy as np
import pytest

import farkas as fk
from codegen.loops.nodes import CallIntrinsic
from codegen.loops.traverse import walk_loops
from codegen.pipeline import CPU
from poly.machine.cpu import Machine
from tests.machines import AVX512, VNNI

TEXT = (
    "def f(uint8 X[1,{c},34,W], int8 F[{k},{c},3,3]) -> (int32 Y[1,{k},32,W-2]) "
    "{{ Y[n,k,p,q] +=! int32(X[n,c,p+r,q+s]) * int32(F[k,c,r,s]) }}"
)


@pytest.mark.parametrize(("k", "c"), [(24, 24), (40, 8), (16, 24), (7, 12)])
@pytest.mark.parametrize("machine", [AVX512, VNNI], ids=["plain", "VNNI"])
def test_images_of_unknown_width(k: int, c: int, machine: Machine) -> None:
    """Vectors along rows of unknown length may be partial, for which instructions have no room."""
    program = CPU.prepare(fk.parse(TEXT.format(k=k, c=c)), machine)
    found = {x.tactic for x in CPU.automatic(program, machine).choices}
    assert found & ({"contraction"} if machine.extensions else {"contraction", "stencil"})


@pytest.mark.parametrize("width", [3, 18, 35, 98])
def test_they_are_right(width: int) -> None:
    draw = np.random.default_rng(width)
    x = draw.integers(0, 256, (1, 24, 34, width)).astype(np.uint8)
    f = draw.integers(-128, 128, (24, 24, 3, 3)).astype(np.int8)
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.int32), (3, 3), (2, 3))
    expected = np.einsum("ncpqrs,kcrs->nkpq", windows, f.astype(np.int32))
    np.testing.assert_array_equal(fk.compile(TEXT.format(k=24, c=24))(x, f), expected)


@pytest.mark.parametrize("rows", [1, 3, 4, 5, 8, 13])
def test_rows_of_unknown_number(rows: int) -> None:
    """Instructions for rows beyond the last one read that one, instead of one condition for each:
    up to four rows have a loop of their own.
    """
    text = "def f(uint8 A[N,64], int8 B[64,96]) -> (C) { C[i,j] +=! int32(A[i,k]) * int32(B[k,j]) }"
    program = CPU.prepare(fk.parse(text), VNNI)
    (loops,) = CPU.loops(CPU.automatic(program, VNNI).schedule)
    sums = [n for n in walk_loops(loops) if isinstance(n, CallIntrinsic)]
    assert any("min(i_i, N - " in str(n) for n in sums)
    draw = np.random.default_rng(rows)
    a = draw.integers(0, 256, (rows, 64)).astype(np.uint8)
    b = draw.integers(-128, 128, (64, 96)).astype(np.int8)
    np.testing.assert_array_equal(fk.compile(text)(a, b), a.astype(np.int32) @ b.astype(np.int32))
