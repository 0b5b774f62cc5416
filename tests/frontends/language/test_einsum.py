"""Einsum strings mean what numpy says they mean."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontends.language.einsum import einsum_program, is_einsum, operand_names
from poly.errors import LanguageError
from poly.ir.dtypes import BOOL, FLOAT32, FLOAT64, INT64
from poly.ir.expr import evaluate_int, reads_of
from poly.ir.program import Program


def run(program: Program, arrays: list[np.ndarray]) -> np.ndarray:
    """The einsum by its meaning: one statement, a product of reads."""
    (s,) = program.statements
    sizes: dict[str, int] = {}
    for t, a in zip(program.inputs, arrays, strict=True):
        for extent, n in zip(t.shape, a.shape, strict=True):
            sizes[str(extent)] = n
    named = dict(zip((t.name for t in program.inputs), arrays, strict=True))
    shape = tuple(evaluate_int(e, sizes) for e in program.outputs[0].shape)
    out = np.zeros(shape, arrays[0].dtype)
    for point in product(*(range(evaluate_int(r.hi, sizes)) for r in s.ranges)):
        env = {**sizes, **dict(zip(s.indices, point, strict=True))}
        value = 1
        for r in reads_of(s.value):
            value = value * named[r.tensor][tuple(evaluate_int(i, env) for i in r.indices)]
        out[tuple(evaluate_int(i, env) for i in s.target.indices)] += value
    return out


@pytest.mark.parametrize(
    ("subscripts", "text"),
    [
        ("ij,jk->ik", "out[i, k] +=! A[i, j] * B[j, k]"),
        ("ij,jk", "out[i, k] +=! A[i, j] * B[j, k]"),
        ("ba", "out[a, b] = A[b, a]"),
        ("ii->i", "out[i] = A[i, i]"),
        ("ii", "out[] +=! A[i, i]"),
        ("ij->", "out[] +=! A[i, j]"),
        ("ij->ji", "out[j, i] = A[i, j]"),
        ("i,j->ij", "out[i, j] = A[i] * B[j]"),
        (" i j , j k -> i k ", "out[i, k] +=! A[i, j] * B[j, k]"),
        ("Ab,bC->AC", "out[A, C] +=! B[A, b] * D[b, C]"),
        (",i->i", "out[i] = A[] * B[i]"),
        ("", None),
    ],
)
def test_text(subscripts: str, text: str | None) -> None:
    if text is None:
        assert not is_einsum(subscripts)
        return
    assert is_einsum(subscripts)
    program = einsum_program(subscripts, [FLOAT32] * (subscripts.count(",") + 1))
    assert str(program.statements[0]).partition(" where ")[0] == text
    assert tuple(t.name for t in program.inputs) == operand_names(subscripts)
    assert [t.name for t in program.outputs] == ["out"]


@given(
    st.lists(st.text("abcAB", max_size=3), min_size=1, max_size=3),
    st.none() | st.integers(0, 31),
)
def test_numpy_agrees(operands: list[str], kept: int | None) -> None:
    subscripts = ",".join(operands)
    letters = sorted(set("".join(operands)))
    if kept is not None:
        result = [c for n, c in enumerate(letters) if kept >> n & 1]
        subscripts += "->" + "".join(result)
    if not subscripts:
        return
    extents = {c: n for c, n in zip(letters, (2, 3, 1, 4, 2), strict=False)}
    arrays = [
        np.arange(1, 1 + int(np.prod([extents[c] for c in o], dtype=int))).reshape(
            [extents[c] for c in o]
        )
        for o in operands
    ]
    program = einsum_program(subscripts, [INT64] * len(operands))
    np.testing.assert_array_equal(run(program, arrays), np.einsum(subscripts, *arrays))


def test_types() -> None:
    program = einsum_program("ij,jk->ik", [FLOAT32, FLOAT64])
    assert program.outputs[0].dtype == FLOAT64
    logical = einsum_program("ij,jk->ik", [BOOL, BOOL])
    assert logical.outputs[0].dtype == BOOL
    assert str(logical.statements[0]).startswith("out[i, k] max=! A[i, j] and B[j, k]")


@pytest.mark.parametrize(
    ("subscripts", "message", "at"),
    [
        ("i...->i", "an ellipsis", "..."),
        ("ij->ik", "no operand has the index 'k'", "k"),
        ("ij->ii", "the result has the index 'i' twice", "i"),
        ("ij,j1->i", "these are not einsum subscripts", "1"),
        ("ij->i->j", "these are not einsum subscripts", None),
    ],
)
def test_errors(subscripts: str, message: str, at: str | None) -> None:
    with pytest.raises(LanguageError) as caught:
        einsum_program(subscripts, [FLOAT32] * (subscripts.count(",") + 1))
    assert message in str(caught.value)
    if at is not None:
        span = caught.value.span
        assert span is not None and subscripts[span.start : span.end] == at


def test_a_wrong_number_of_operands() -> None:
    with pytest.raises(LanguageError, match="2 operands, but there are 1"):
        einsum_program("ij,jk->ik", [FLOAT32])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ij,jk->ik", True), ("ij,jk", True), ("ii", True), ("ij...,jk->i", True), ("A,B->", True),
        ("C[i,j] +=! A[i,k] * B[k,j]", False), ("def f() -> (Y) {}", False), ("", False),
        ("i->j->k", False),
    ],
)  # fmt: skip
def test_is_einsum(text: str, expected: bool) -> None:
    assert is_einsum(text) is expected


def test_many_operands() -> None:
    spec = ",".join(["i"] * 95) + "->i"
    assert len(set(operand_names(spec))) == 95
    assert len(einsum_program(spec, [FLOAT32] * 95).inputs) == 95
