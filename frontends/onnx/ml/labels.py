"""Operators of ai.onnx.ml on labels: tables of numbers and strings, and maps of scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from frontends.onnx.core.comprehension_text import at, declare, function, line, literal, names
from frontends.onnx.core.node import Compute, Node, Opaque, Result, Unsupported, Value, operator
from frontends.onnx.core.stages import NO_TENSOR, TEXT, Array, Body
from frontends.onnx.ml.common import DOMAIN, vector, words
from poly.ir.dtypes import dtype_of

#: Keys that are integers are looked up in a table if they span at most so many numbers.
MAX_SPAN = 1 << 20


def _as_strings(values: Sequence[str]) -> np.ndarray:
    array = np.empty(len(values), object)
    array[:] = list(values)
    return array


def _listed(node: Node, what: str) -> np.ndarray | None:
    """Keys or values: strings as objects, numbers in their type."""
    strings = words(node, f"{what}_strings")
    if strings is not None:
        return _as_strings(strings)
    for name, kind in (("int64s", np.int64), ("floats", np.float32)):
        found = vector(node, f"{what}_{name}", kind)
        if found is not None:
            return found
    tensor = node.attributes.get(f"{what}_tensor")
    if tensor is None:
        return None
    assert isinstance(tensor, np.ndarray)
    return tensor.reshape(-1)


def _default(node: Node, kind: np.dtype) -> Any:
    """The value for unknown keys."""
    tensor = node.attributes.get("default_tensor")
    if isinstance(tensor, np.ndarray) and tensor.size == 1:
        element = tensor.reshape(-1)[0]
        return element if kind.kind == "O" else element.astype(kind)
    if kind.kind == "O":
        return node.word("default_string", "_Unused")
    if kind.kind == "f":
        return kind.type(node.number("default_float", -0.0))
    return kind.type(node.integer("default_int64", -1))


@operator("LabelEncoder", since=2, domain=DOMAIN)
def label_encoder(node: Node) -> Sequence[Result]:
    """The value of each key in a table."""
    keys, values = _listed(node, "keys"), _listed(node, "values")
    if keys is None or values is None or len(keys) != len(values) or not len(keys):
        raise node.fail("keys and values must be lists of equal length")
    return [_looked_up(node, keys, values, _default(node, values.dtype))]


@operator("LabelEncoder", domain=DOMAIN)
def old_label_encoder(node: Node) -> Sequence[Result]:
    """Strings to their indices in a list, or back."""
    return [_between(node, words(node, "classes_strings"), None)]


@operator("CategoryMapper", domain=DOMAIN)
def category_mapper(node: Node) -> Sequence[Result]:
    """Strings to integers or back."""
    numbers = vector(node, "cats_int64s", np.int64)
    if numbers is None:
        raise node.fail("cats_int64s is missing")
    return [_between(node, words(node, "cats_strings"), numbers)]


def _between(node: Node, strings: Sequence[str] | None, numbers: np.ndarray | None) -> Result:
    """A table of strings and integers (or indices), in the direction of the operand's type."""
    if not strings:
        raise node.fail("there are no strings")
    texts = _as_strings(strings)
    if numbers is None:
        numbers = np.arange(len(texts), dtype=np.int64)
    if len(numbers) != len(texts):
        raise node.fail(f"{len(texts)} strings do not fit {len(numbers)} numbers")
    if node.required(0).dtype == TEXT:
        return _looked_up(node, texts, numbers, np.int64(node.integer("default_int64", -1)))
    return _looked_up(node, numbers, texts, node.word("default_string", "_Unused"))


def _looked_up(node: Node, keys: np.ndarray, values: np.ndarray, default: Any) -> Result:
    """The values of the operand's elements; of equal keys the first is used."""
    x = node.required(0)
    kind = TEXT if keys.dtype == object else dtype_of(keys.dtype)
    if x.dtype != kind:
        raise node.fail(f"keys of type {kind} cannot be found in a tensor of {x.dtype}")
    if keys.dtype == object or values.dtype == object:
        return _opaque(node, x, keys, values, default)
    if kind.is_integer:
        first, last = int(keys.min()), int(keys.max())
        if last - first < MAX_SPAN and first > -(1 << 62) and last < 1 << 62:
            return _from_table(x, keys, values, default, first, last)
    return _searched(node, x, keys, values, default)


def _from_table(
    x: Value, keys: np.ndarray, values: np.ndarray, default: Any, first: int, last: int
) -> Compute:
    """A table of the integers that the keys span; both ends hold the default of all others."""
    table = np.full(last - first + 3, default, values.dtype)
    table[keys[::-1].astype(np.int64) - (first - 1)] = values[::-1]
    indices = names(x.rank)
    read = at("X", indices)
    number = read if x.dtype.name == "int64" else f"int64({read})"
    low, high = literal(first - 1), literal(last + 1)
    index = f"max(min({number}, {high}), {low}) - {literal(first)} + 1"
    out = dtype_of(values.dtype)
    program = function(
        "label",
        [declare("X", x.dtype, x.shape), declare("T", out, table.shape)],
        [declare("Y", out, x.shape)],
        [line(f"{at('Y', indices)} = T[{index}]", dict(zip(indices, x.shape, strict=True)))],
    )
    return Compute(program, (x, table))


def _searched(node: Node, x: Value, keys: np.ndarray, values: np.ndarray, default: Any) -> Compute:
    """Each element compared with each key; since opset 4, NaN equals NaN."""
    indices = names(x.rank)
    read, out = at("X", indices), dtype_of(values.dtype)
    ranges = dict(zip(indices, x.shape, strict=True))
    same = f"{read} == K[key]"
    if node.opset >= 4 and x.dtype.is_float and np.isnan(keys.astype(np.float64)).any():
        same = f"{same} or isnan({read}) and isnan(K[key])"
    index = at("P", indices)
    program = function(
        "label",
        [
            declare("X", x.dtype, x.shape),
            declare("K", x.dtype, keys.shape),
            declare("V", out, (len(values) + 1,)),
        ],
        [declare("Y", out, x.shape)],
        [
            declare("P", dtype_of(np.int64), x.shape),
            line(
                f"{index} min=! select({same}, key, {len(keys)})",
                {**ranges, "key": len(keys)},
            ),
            line(f"{at('Y', indices)} = V[{index}]", ranges),
        ],
    )
    return Compute(program, (x, keys, np.append(values, np.array([default], values.dtype))))


def _opaque(node: Node, x: Value, keys: np.ndarray, values: np.ndarray, default: Any) -> Opaque:
    """A table with strings on one side or both."""
    out = TEXT if values.dtype == object else dtype_of(values.dtype)
    table = dict(zip(keys[::-1].tolist(), values[::-1].tolist(), strict=True))
    # Since opset 4, all NaNs are equal; in a table none is.
    of_nan = [value for key, value in table.items() if key != key and node.opset >= 4] or [default]
    # Indices in a list, which classifiers compute, can index an array.
    is_dense = keys.dtype.kind in "iu" and np.array_equal(keys, np.arange(len(keys)))
    others = np.empty(len(values) + 1, values.dtype)
    others[:-1], others[-1] = values, default

    def run(arrays: Sequence[Array | None], bodies: Sequence[Body]) -> Sequence[Array]:
        given = arrays[0]
        assert given is not None
        if is_dense:
            inside = (given >= 0) & (given < len(values))
            return [others[np.where(inside, given, len(values)).astype(np.int64)]]
        found = np.empty(given.shape, values.dtype)
        found.reshape(-1)[:] = [
            table.get(key, default) if key == key else of_nan[-1]
            for key in given.reshape(-1).tolist()
        ]
        return [found]

    return Opaque((x,), run, (out,))


@operator("ZipMap", domain=DOMAIN)
def zip_map(node: Node) -> Sequence[Result]:
    """For each row, a map from labels to scores."""
    x = node.required(0)
    if x.rank not in (1, 2):
        raise node.fail(f"scores are a matrix, not a tensor of rank {x.rank}")
    numbers = vector(node, "classlabels_int64s", np.int64)
    labels: list[Any] = list(words(node, "classlabels_strings") or ())
    if bool(labels) == (numbers is not None and len(numbers) > 0):
        raise node.fail("either classlabels_strings or classlabels_int64s is needed")
    labels = labels or (numbers.tolist() if numbers is not None else [])
    if len(labels) != x.shape[-1]:
        raise node.fail(f"{len(labels)} labels do not fit {x.shape[-1]} scores")
    if x.array is not None:
        raise Unsupported("scores that are known at compile time")

    def run(arrays: Sequence[Array | None], bodies: Sequence[Body]) -> Sequence[Any]:
        given = arrays[0]
        assert given is not None
        rows = given.reshape(-1, len(labels)).tolist()
        return [[dict(zip(labels, row, strict=True)) for row in rows]]

    return [Opaque((x,), run, (NO_TENSOR,))]
