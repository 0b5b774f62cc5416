"""The forms in which texts, element types and sizes may be given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import farkas as fk
from farkas.kernels.source_text import read_text

MATMUL = "C[i,j] +=! A[i,k] * B[k,j]"
DEFINITION = "def f(float32 A[N,K], float32 B[K,M]) -> (C) { C[i,j] +=! A[i,k] * B[k,j] }"


def test_kinds() -> None:
    assert read_text(MATMUL).kind == "comprehensions"
    assert read_text(MATMUL).inputs == (("A", 2), ("B", 2))
    assert read_text(DEFINITION).kind == "definition"
    assert read_text(DEFINITION).inputs == ()
    assert read_text("ij, jk -> ik").kind == "einsum"
    assert read_text(" b i j ,j->bi").inputs == (("A", 3), ("B", 1))


@pytest.mark.parametrize("text", [MATMUL, DEFINITION, "ij,jk->ik"])
def test_a_byte_order_mark_is_left_out(text: str) -> None:
    assert read_text("\ufeff" + text) == read_text(text)
    dtypes = None if text == DEFINITION else "float32"
    assert fk.parse("\ufeff" + text, dtypes) == fk.parse(text, dtypes)


@pytest.mark.parametrize(
    "dtypes",
    [
        "float64",
        np.float64,
        np.dtype("float64"),
        float,
        fk.DTYPES["float64"],
        ["float64", np.float64],
        {"A": "float64", "B": np.dtype("f8")},
    ],
)
def test_forms_of_dtypes(dtypes: Any) -> None:
    program = fk.parse(MATMUL, dtypes)
    assert [t.dtype.name for t in (*program.inputs, *program.outputs)] == ["float64"] * 3


def test_einsum_and_names() -> None:
    program = fk.parse("ij,jk", "float32", name="product")
    assert program.name == "product"
    assert [t.name for t in program.inputs] == ["A", "B"]
    assert fk.parse(DEFINITION, name="g").name == "g"


def test_sizes_are_fixed() -> None:
    program = fk.parse(DEFINITION, sizes={"N": 4, "M": np.int64(5)})
    assert program.sizes == ("K",)
    assert str(program.outputs[0]) == "float32 C[4,5]"


@pytest.mark.parametrize(
    ("text", "dtypes", "sizes", "message"),
    [
        (MATMUL, None, None, "element type of A, B is not known"),
        (MATMUL, {"A": "float32"}, None, "element type of B is not known"),
        (MATMUL, "float33", None, "no element type 'float33'"),
        (MATMUL, "flaot32", None, "no element type 'flaot32' here; did you mean 'float32'?"),
        (MATMUL, ["float32"], None, "dtypes has 1 entries, but the inputs are A, B"),
        (MATMUL, complex, None, "no element type 'complex128'"),
        (MATMUL, 7, None, "dtypes is a int"),
        (MATMUL, [3, 4], None, "A: 3 is not an element type"),
        (MATMUL, {"A": "int8", "B": "int8", "Z": "int8"}, None, "no tensor 'Z'"),
        ("ij->i", {"A": "int8", "Z": "int8"}, None, "no operand Z"),
        (DEFINITION, "float32", None, "declares the element types"),
        (DEFINITION, {"A": "int8"}, None, "A is declared as float32"),
        (DEFINITION, None, {"Q": 1}, "no size 'Q'; it has N, K, M"),
        (DEFINITION, None, {"N": -1}, "not in the range"),
        (DEFINITION, None, {"N": 1.5}, "must be an integer"),
        (DEFINITION, None, {"N": True}, "must be an integer, not True"),
        (DEFINITION, None, [3], r"sizes are given by name, as in \{'name': …\}, not as list"),
        (DEFINITION, None, "N", "sizes are given by name"),
        (DEFINITION, None, {"N": 2**62}, "not in the range"),
        (b"ij", None, None, "the text is a bytes"),
        ("", None, None, "."),
        ("ij,jk->ii", "int8", None, "twice"),
        ("C[i] = ", None, None, "."),
    ],
)
def test_what_does_not_fit_is_refused(text: Any, dtypes: Any, sizes: Any, message: str) -> None:
    with pytest.raises(fk.FarkasError, match=message):
        fk.parse(text, dtypes, sizes=sizes)


def test_a_precondition_of_fixed_sizes_is_checked() -> None:
    text = "def f(float32 A[N], float32 B[M]) -> (C) { C[i] = A[i] + B[i] where i in 0:N }"
    with pytest.raises(fk.ArgumentError, match=r"precondition .* does not hold"):
        fk.parse(text, sizes={"N": 9, "M": 4})


def test_what_is_given_by_name() -> None:
    program = fk.parse("def f(float32 A[N,M]) -> (C) { C[i,j] = A[i,j] * 2 }")
    array = np.ones((2, 2), np.float32)
    with pytest.raises(fk.ArgumentError, match=r"arrays are given by name, .* not as list"):
        fk.evaluate(program, [array])  # type: ignore[arg-type]
    with pytest.raises(fk.ArgumentError, match=r"sizes are given by name, .* not as int"):
        fk.evaluate(program, {"A": array}, sizes=3)  # type: ignore[arg-type]
    with pytest.raises(fk.ArgumentError, match="no value is given for M"):
        fk.verify(program, lambda a: a, sizes={"N": 2})
    with pytest.raises(fk.ArgumentError, match="f has 1 outputs, but 2 arrays came back"):
        fk.verify(program, lambda a: (a, a), sizes={"N": 2, "M": 2})
    with pytest.raises(fk.ArgumentError, match=r"sizes are given by name, .* not as list"):
        fk.compile("C[i] = A[i]", sizes=[3])  # type: ignore[arg-type]
