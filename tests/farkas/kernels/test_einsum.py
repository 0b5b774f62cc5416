"""`fk.einsum` beside numpy's."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import farkas as fk

SIZES = dict(zip("abcde", (2, 3, 4, 1, 5), strict=True))
DRAW = np.random.default_rng(0)


def draw(shape: tuple[int, ...], dtype: str = "float64") -> np.ndarray:
    if dtype == "bool":
        return DRAW.random(shape) < 0.6
    if np.dtype(dtype).kind in "iu":
        return DRAW.integers(0, 4, shape).astype(dtype)
    values = DRAW.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * DRAW.standard_normal(shape)
    return values.astype(dtype)


def compare(*arguments: Any, **options: Any) -> None:
    expected = np.einsum(*arguments, **options)
    found = fk.einsum(*arguments, **options)
    assert type(found) is type(expected) and found.dtype == expected.dtype
    assert found.shape == expected.shape
    tolerance = 1e-5
    if found.dtype == "float16":  # numpy rounds after each term
        tolerance = 1e-3
        wide = [a.astype(float) if isinstance(a, np.ndarray) else a for a in arguments]
        expected = np.einsum(*wide, **options)
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("ij,jk", [(2, 3), (3, 4)]),
        ("ba,b", [(2, 3), (2,)]),
        (" i j , j k -> k i ", [(2, 3), (3, 4)]),
        ("ii", [(3, 3)]),
        ("ii->i", [(3, 3)]),
        ("iij->ij", [(3, 3, 2)]),
        ("ij->", [(2, 3)]),
        ("ij->ji", [(2, 3)]),
        (",", [(), ()]),
        (",ij->ji", [(), (2, 3)]),
        ("i,j", [(2,), (3,)]),
        ("...ij,...jk", [(5, 2, 3), (3, 4)]),
        ("...ij,...jk->...ik", [(1, 5, 2, 3), (6, 1, 3, 4)]),
        ("i...->...", [(2, 3, 4)]),
        ("...,...", [(2, 3), (3,)]),
        ("a...b,b...->...a", [(2, 5, 3), (3, 5)]),
        ("ij,ij->j", [(1, 3), (2, 3)]),
        ("ij,jk->ik", [(2, 1), (3, 4)]),
        ("ij,jk->ik", [(0, 3), (3, 4)]),
        ("ij,jk->ik", [(2, 0), (0, 4)]),
        ("ab,bc,cd,de->ae", [(2, 3), (3, 4), (4, 5), (5, 6)]),
        ("ea,fb,abcd,gc,hd->efgh", [(3, 3)] * 2 + [(3, 3, 3, 3)] + [(3, 3)] * 2),
    ],
)
def test_it_is_numpys(text: str, shapes: list[tuple[int, ...]]) -> None:
    compare(text, *(draw(shape) for shape in shapes))


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("i->", [(5,)]),
        ("ijk->kj", [(3, 4, 5)]),
        ("ii", [(3, 3)]),
        (",", [(), ()]),
        ("ij,ji->", [(4, 5), (5, 4)]),
        ("ijk,kj->i", [(3, 4, 5), (5, 4)]),
        ("i,i->", [(0,), (0,)]),
        ("ij,jk,kl->il", [(3, 4), (4, 5), (5, 6)]),
        ("a,b,c,d,e,f->abcdef", [(2,)] * 6),
        ("a,a,a,a,a,a,a->a", [(7,)] * 7),
    ],
)
def test_complex_numbers(text: str, shapes: list[tuple[int, ...]], optimize: bool) -> None:
    for dtype, tolerance in (("complex128", 1e-12), ("complex64", 1e-5)):
        arrays = [draw(shape[::-1], dtype).T for shape in shapes]  # not in C's order
        found = fk.einsum(text, *arrays, optimize=optimize)
        np.testing.assert_allclose(found, np.einsum(text, *arrays), tolerance, tolerance)
        assert found.dtype == dtype


@pytest.mark.parametrize("dtype", ["float32", "int64", "float16", "bool", "complex64"])
@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("dcb,cba->ac", [(4, 3, 2), (3, 2, 5)]),
        ("ca,b->ac", [(3, 2), (4,)]),
        ("aad,bde->b", [(3, 3, 2), (4, 2, 3)]),
        ("a,b,cc->", [(2,), (3,), (4, 4)]),
    ],
)
def test_sums_of_one_factor(text: str, shapes: list[tuple[int, ...]], dtype: str) -> None:
    compare(text, *(draw(shape, dtype) for shape in shapes), optimize=False)


@pytest.mark.parametrize(
    "dtypes",
    ["float32 float64", "int32 float32", "int8 uint8", "int64 float32", "bool bool", "bool int8",
     "float16 float16", "complex64 complex64", "complex128 float32", "uint8 uint8"],
)  # fmt: skip
def test_types_are_promoted(dtypes: str) -> None:
    a, b = (draw(s, d) for s, d in zip([(3, 4), (4, 2)], dtypes.split(), strict=True))
    compare("ij,jk->ik", a, b)
    compare("ij,jk", a, b, dtype="complex128" if "c" in dtypes else "float64")


def test_sums_into_a_wider_array() -> None:
    for operand, dtype in (("int8", "int64"), ("uint8", "int32"), ("bool", "int64"),
                           ("float32", "float64")):  # fmt: skip
        a, b = (np.full(300, v).astype(operand) for v in (100, 1e30 if "f" in operand else 1))
        found, expected = np.zeros((), dtype), np.zeros((), dtype)
        assert fk.einsum("i,i->", a, b, out=found) is found
        np.einsum("i,i->", a, b, out=expected)
        np.testing.assert_allclose(found, expected)


def test_numbers_and_lists_are_operands() -> None:
    compare(",i->", 2.5, draw((3,), "float32"))
    compare("i,i", [1, 2], draw((2,)))
    compare("ij->ji", [[1, 2], [3, 4]])


def test_operands_as_lists_of_subscripts() -> None:
    a, b = draw((5, 2, 3)), draw((3, 4))
    compare(a, [..., 0, 1], b, [1, 2], [..., 0, 2])
    compare(a, [30, 1, 2], b, [2, 0])
    for bad in ([0, -1], [52, 0], [0, "a"], 3):
        with pytest.raises(fk.ArgumentError, match="is no list of subscripts"):
            fk.einsum(b, bad)


def test_out_order_and_views() -> None:
    a, b = draw((2, 3)), draw((3, 4))
    out = np.empty((2, 4))
    assert fk.einsum("ij,jk->ik", a, b, out=out) is out
    np.testing.assert_allclose(out, a @ b)
    wide = np.empty((2, 4), np.complex128)
    assert fk.einsum("ij,jk->ik", a, b, out=wide) is wide
    square = draw((3, 3))
    assert fk.einsum("ij,jk->ik", square, square, out=square.T).base is square
    assert fk.einsum("ij,jk", a, b, order="F").flags.f_contiguous
    assert fk.einsum("ij,jk", a, b, order="C").flags.c_contiguous
    fk.einsum("ii->i", square)[:] = 7
    assert np.trace(square) == 21
    both = draw((3, 3))
    expected = both @ both
    np.testing.assert_allclose(fk.einsum("ij,jk->ik", both, both, out=both), expected)


@pytest.mark.parametrize(
    "optimize", [True, False, "greedy", "optimal", ["einsum_path", (0, 2), (0, 1)]]
)
def test_paths(optimize: Any) -> None:
    arrays = [draw((2, 3)), draw((3, 4)), draw((4, 2))]
    compare("ij,jk,kl->il", *arrays, optimize=optimize)


@pytest.mark.parametrize(
    ("add", "mul", "expected"),
    [
        ("max", "+", lambda a, b: (a[:, :, None] + b).max(1)),
        ("min", "+", lambda a, b: (a[:, :, None] + b).min(1)),
        ("max", "min", lambda a, b: np.minimum(a[:, :, None], b).max(1)),
        ("max", "*", lambda a, b: (a[:, :, None] * b).max(1)),
        ("*", "+", lambda a, b: (a[:, :, None] + b).prod(1)),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_other_semirings(add: str, mul: str, expected: Any, dtype: str) -> None:
    a, b = draw((4, 3), dtype), draw((3, 5), dtype)
    found = fk.einsum("ij,jk->ik", a, b, add=add, mul=mul)
    np.testing.assert_allclose(found, expected(a, b), rtol=1e-5)


def test_truth_values() -> None:
    a, b = draw((4, 3), "bool"), draw((3, 5), "bool")
    pairs = a[:, :, None], b
    assert np.array_equal(fk.einsum("ij,jk", a, b), (pairs[0] & pairs[1]).any(1))
    found = fk.einsum("ij,jk", a, b, add="*", mul="+")
    assert np.array_equal(found, (pairs[0] | pairs[1]).all(1))


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((), {}, "needs subscripts"),
        (("ij,jk", np.ones((2, 2))), {}, "2 operands, but there are 1"),
        (("ij", np.ones(2)), {}, "operand 0 has 1 dimensions, but the subscripts have 2"),
        (("i...", np.ones(())), {}, "at least 1"),
        (("i$", np.ones(2)), {}, "not einsum subscripts"),
        (("i......", np.ones(2)), {}, "a second ellipsis"),
        (("i->j", np.ones(2)), {}, "no operand has the index 'j'"),
        (("i->ii", np.ones(2)), {}, "'i' twice"),
        (("...i->i", np.ones((2, 2))), {}, "the result has no ellipsis"),
        (("i,i", np.ones(2), np.ones(3)), {}, "operand 1 has 3 elements along 'i', but 2 come bef"),
        (("...,...", np.ones(2), np.ones(3)), {}, "along the ellipsis"),
        (("i", np.array(["a"])), {}, "is not supported"),
        (("ii", np.ones((1, 3))), {}, "operand 0 has 1 and 3 elements along 'i'"),
        (("ii->i", np.ones((2, 3))), {}, "operand 0 has 2 and 3 elements along 'i'"),
        (("i->", np.ma.array([1.0, 2.0], mask=[0, 1])), {}, "operand 0 is a masked array"),
        (("i->", np.ones(2)), {"out": 0.0}, "out is a float, expected an array to write to"),
        (("i", np.ones(2)), {"add": ["+"]}, "no operation"),
        (("i->i", np.ones(2, "f4")), {"out": np.lib.stride_tricks.as_strided(
            np.ones(1), (2,), (0,))}, "share memory with each other"),
        (("i", np.ones(2)), {"add": "-"}, r"no operation '-'; there are \+, \*, max, min"),
        (("i", np.ones(2)), {"order": "W"}, "no order 'W'"),
        (("i->", np.ones(2)), {"dtype": "int32"}, "does not become int32 by casting='safe'"),
        (("i->", np.ones(2)), {"dtype": "nothing"}, "no common element type"),
        (("i->", np.ones(2)), {"out": np.ones(3)}, "result has rank 1"),
        (("i->", np.ones(2)), {"out": np.ones((), np.int8)}, "Cannot cast"),
        (("i->", np.ones(2)), {"out": "test"}, "out is a str"),
        (("i,i,i", *[np.ones(2)] * 3), {"optimize": "best"}, "optimize='best'"),
        (("i,i", *[np.ones(2, "c8")] * 2), {"add": "max"}, "the usual sum and product only"),
    ],
)  # fmt: skip
def test_what_is_refused(arguments: Any, options: Any, message: str) -> None:
    with pytest.raises(fk.FarkasError, match=message):
        fk.einsum(*arguments, **options)


LETTERS = st.lists(st.sampled_from("abcde"), max_size=3).map("".join)


@given(st.lists(LETTERS, min_size=1, max_size=3), st.data())
def test_random_subscripts(terms: list[str], data: st.DataObject) -> None:
    known = sorted({*"".join(terms)})
    result = data.draw(st.permutations(known).map("".join)) if known else ""
    text = ",".join(terms) + "->" + result[: data.draw(st.integers(0, len(result)))]
    dtype = data.draw(st.sampled_from(["float32", "int64", "bool"]))
    arrays = [draw(tuple(SIZES[c] for c in term), dtype) for term in terms]
    compare(text, *arrays)


@pytest.mark.parametrize("axes", [0, 1, 2, (1, 0), ([2, 1], [1, 0]), ([-1, 1], [-2, 0])])
def test_tensordot(axes: Any) -> None:
    a, b = draw((2, 3, 3)), draw((3, 3, 4))
    np.testing.assert_allclose(fk.tensordot(a, b, axes), np.tensordot(a, b, axes))


@pytest.mark.parametrize(
    "axes", [4, -1, 1.0, "ab", (0, 0), (3, 0), ([0, 1], [0]), ([1, 1], [0, 1]), ([1, 2], [0, 0])]
)
def test_axes_that_do_not_fit(axes: Any) -> None:
    with pytest.raises(fk.ArgumentError, match=r"axes=|elements along"):
        fk.tensordot(draw((2, 3, 3)), draw((3, 3, 4)), axes)


def test_arrays_of_others_come_back_as_such() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    a, b = torch.rand(3, 4), torch.rand(4, 5)
    found = fk.einsum("ij,jk->ik", a, b)
    assert isinstance(found, torch.Tensor) and torch.allclose(found, a @ b)
    assert isinstance(fk.einsum("ij,ij->", a, a), torch.Tensor)
    with pytest.raises(fk.ArgumentError, match=r"operand 0 requires .*: pass its \.detach\(\), or"):
        fk.einsum("ij,jk->ik", a.clone().requires_grad_(), b)
    c = torch.randn(3, 4, dtype=torch.complex64).conj()  # the conjugate, or negative, of its memory
    for part in (c, c.imag):
        assert torch.allclose(fk.einsum("ij,ij->i", part, a), (part * a).sum(1), atol=1e-6)
    with pytest.raises(fk.ArgumentError, match="out is the conjugate or the negative"):
        fk.einsum("ij->ij", a, out=c.imag)
    own = draw((2, 3))
    turned = fk.einsum("ij->ji", own[::-1], like="torch")
    own[:] = 0
    assert turned.abs().min() > 0  # no view of an array of numpy's


def test_calls_that_repeat() -> None:
    """They take the steps of the first: those of the same subscripts, types, shapes, operations."""
    calls = [
        ("ij,jk->ik", [(2, 3), (3, 4)], "float64"),
        ("ij,jk->ki", [(2, 3), (3, 4)], "float64"),
        ("ij,jk->ik", [(2, 3), (3, 4)], "int32"),
        ("ij,jk->ik", [(2, 1), (3, 4)], "float64"),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)], "float64"),
        ("ij,jk,kl->il", [(20, 3), (3, 40), (40, 2)], "float64"),
        ("ij,ij->", [(2, 3), (2, 3)], "bool"),
        ("ij,jk->ik", [(2, 3), (3, 4)], "complex64"),
    ]
    for _ in range(3):
        for text, shapes, dtype in calls:
            compare(text, *(draw(shape, dtype) for shape in shapes))
            compare(text, *(draw(shape, dtype).T for shape in (s[::-1] for s in shapes)))
        a, b = draw((2, 3)), draw((3, 4))
        found = fk.einsum("ij,jk->ik", a, b, add="max", mul="+")
        np.testing.assert_allclose(found, (a[:, :, None] + b).max(1))
        assert fk.einsum("ij,jk->ik", a, b, order="F").flags.f_contiguous
        with pytest.raises(fk.ArgumentError, match="masked"):
            fk.einsum("ij,jk->ik", np.ma.masked_array(a), b)
    out = np.empty((3, 2))
    fk.einsum("ij->ji", draw((2, 3)), out=out)
    assert fk.einsum("ij->ji", a).base is a  # a view, whatever came before
    for bad in ({"add": ["+"]}, {"mul": "-"}, {"order": "X"}):
        with pytest.raises(fk.ArgumentError, match="there is no"):
            fk.einsum("ij,jk->ik", a, b, **bad)


def test_opt_einsum_has_it_as_a_backend() -> None:
    pytest.importorskip("opt_einsum", reason="opt_einsum is not installed")
    contract = importlib.import_module("opt_einsum").contract
    arrays = [draw((2, 3)), draw((3, 4)), draw((4, 5))]
    found = contract("ij,jk,kl->il", *arrays, backend="farkas")
    np.testing.assert_allclose(found, arrays[0] @ arrays[1] @ arrays[2])
