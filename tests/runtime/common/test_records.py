"""Values as JSON data: equal when read, and nothing but what is listed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poly.ir.dtypes import DTYPES
from poly.ir.expr import Const, Expr, Index, Op
from runtime.common.records import read_record, write_record


@dataclass(frozen=True)
class Pair:
    one: Any
    other: Any = None


@dataclass(eq=False)
class Box:
    items: list[Any] = field(default_factory=list)


CLASSES = (Pair, Box, Const, Index, Op)


def again(value: Any) -> Any:
    return read_record(json.loads(json.dumps(write_record(value, CLASSES))), CLASSES)


PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    PLAIN | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.tuples(st.integers()), inner)
        | st.builds(Pair, inner, inner)
        | st.frozensets(st.integers() | st.text())
    ),
)


@given(VALUES)
def test_values_come_back(value: Any) -> None:
    found = again(value)
    assert (found == value and repr(found) == repr(value)) or "frozenset" in repr(value)


def test_what_is_equal_but_not_the_same() -> None:
    value = (1, True, 1.0, 0.0, -0.0, (1,), (True,), (1.0,), Pair(1), Pair(True))
    assert repr(again(value)) == repr(value)
    assert again(float("inf")) == float("inf") and again(Const(float("nan"))) == Const(float("nan"))


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_arrays(name: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(DTYPES[name].numpy)
    for value in (array, array[:, ::2], array[0, 0:0], np.array(array[0, 0])):
        found = again(value)
        assert found.dtype == value.dtype and found.shape == value.shape
        assert found.tobytes() == value.tobytes() and found.flags.writeable


def test_texts() -> None:
    array = np.array([["a", ""], ["ü\n", "b"]], object)
    found = again(array)
    assert found.dtype == object and (found == array).all() and found.shape == (2, 2)


def test_equal_values_are_one_row() -> None:
    deep: Expr = Index("i")
    for _ in range(5000):  # deeper than Python's stack
        deep = Op("add", (deep, deep))
    data = write_record((deep, Op("add", (Index("i"), Index("i")))), CLASSES)
    assert len(data["rows"]) == 2 * 5000 + 2
    found = read_record(data, CLASSES)
    assert found[0].args[0] is found[0].args[1]
    boxes = again([Box([1]), Box([1])])
    assert boxes[0] is not boxes[1]
    box = Box()
    shared = again((box, box))
    assert shared[0] is shared[1]


def test_what_cannot_be_written() -> None:
    loop: list[Any] = []
    loop.append((loop,))
    for value in (object(), print, 1j, np.float16, np.zeros(2, "M8[s]"), {1: set}):
        with pytest.raises((TypeError, Exception)):
            write_record(value, CLASSES)

    @dataclass
    class Box:  # of the same name
        items: int

    with pytest.raises(TypeError, match="a Box cannot be stored"):
        write_record(Box(1), CLASSES)


@pytest.mark.parametrize(
    "data",
    [
        None, [], {}, "x", {"classes": {}, "rows": []}, {"classes": [], "rows": [], "root": [0]},
        {"classes": {}, "rows": [["tuple", [0]]], "root": [0]},
        {"classes": {}, "rows": [["tuple", [-1]]], "root": [0]},
        {"classes": {}, "rows": [["tuple", [True]]], "root": [0]},
        {"classes": {}, "rows": [["tuple", {}]], "root": [0]},
        {"classes": {}, "rows": [["print", "x"]], "root": [0]},
        {"classes": {}, "rows": [["=object"]], "root": [0]},
        {"classes": {"object": []}, "rows": [["=object"]], "root": [0]},
        {"classes": {"Pair": ["one"]}, "rows": [["=Pair", 1]], "root": [0]},
        {"classes": {"Pair": ["one", "other"]}, "rows": [["=Pair", 1]], "root": [0]},
        {"classes": {}, "rows": [["dict", 1]], "root": [0]},
        {"classes": {}, "rows": [["list"], ["frozenset", [0]]], "root": [1]},
        {"classes": {}, "rows": [["bytes", "?"]], "root": [0]},
        {"classes": {}, "rows": [["array", "float32", "[3]", "AAAA"]], "root": [0]},
        {"classes": {}, "rows": [["array", "object", "[0]", ""]], "root": [0]},
        {"classes": {}, "rows": [[1]], "root": [0]},
    ],
)  # fmt: skip
def test_what_cannot_be_read(data: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_record(data, CLASSES)


def test_scalars_of_numpy() -> None:
    with pytest.raises(TypeError, match="cannot be stored"):
        write_record((np.int64(3),), CLASSES)
    with pytest.raises(TypeError, match="cannot be stored"):
        write_record(ml_dtypes.bfloat16(3), CLASSES)
