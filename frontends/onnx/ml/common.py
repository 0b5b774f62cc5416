"""Shared by the operators of ai.onnx.ml: rows of features, post transforms, class labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import helper

from frontends.onnx.core.comprehension_text import declare, line, literal
from frontends.onnx.core.node import Expanded, Node, Value
from poly.ir.dtypes import FLOAT32, FLOAT64, DType

DOMAIN = "ai.onnx.ml"


def vector(node: Node, name: str, kind: type | np.dtype) -> np.ndarray | None:
    """A list of numbers, or a tensor of rank 1, that an attribute gives; None if it is absent."""
    value = node.attributes.get(name)
    if value is None:
        return None
    array = np.asarray(value)
    if array.ndim != 1:
        raise node.fail(f"attribute {name} must have rank 1")
    with np.errstate(over="ignore"):
        return array.astype(kind)


def words(node: Node, name: str) -> tuple[str, ...] | None:
    """A list of strings, None if the attribute is absent."""
    value = node.attributes.get(name)
    assert value is None or isinstance(value, tuple)
    return value


@dataclass(frozen=True)
class Rows:
    """An operand as rows of features: a matrix, or a vector, which is one row.

    `count` rows of `width` features, computed with in `dtype`.
    """

    value: Value
    count: int
    width: int
    dtype: DType

    @staticmethod
    def of(node: Node, position: int = 0, double: bool = True) -> Rows:
        """The rows of an operand; float64 is kept if `double`.

        Raises
        ------
        ModelError : if it has another rank.
        """
        value = node.required(position)
        if value.rank not in (1, 2):
            raise node.fail(f"rows of features are a matrix, not a tensor of rank {value.rank}")
        count = value.shape[0] if value.rank == 2 else 1
        dtype = FLOAT64 if double and value.dtype == FLOAT64 else FLOAT32
        return Rows(value, count, value.shape[-1], dtype)

    def declaration(self, name: str = "X") -> str:
        """The operand as the input of a program."""
        return declare(name, self.value.dtype, self.value.shape)

    def at(self, row: str = "n", feature: str = "c", name: str = "X") -> str:
        """One feature in the type of the operand."""
        return f"{name}[{row},{feature}]" if self.value.rank == 2 else f"{name}[{feature}]"

    def number(self, row: str = "n", feature: str = "c") -> str:
        """One feature as a number of `dtype`."""
        read = self.at(row, feature)
        return read if self.value.dtype == self.dtype else f"{self.dtype}({read})"


#: Winitzki's approximation of the inverse of erf, with the constants of ONNX Runtime.
_PROBIT = (2 / (3.14159 * 0.147), 1 / 0.147, 1.41421356)

TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def transform_of(node: Node) -> str:
    """The post transform of a node.

    Raises
    ------
    ModelError : if there is none of this name.
    """
    name = node.word("post_transform", "NONE")
    if name not in TRANSFORMS:
        raise node.fail(f"there is no post transform {name!r}")
    return name


def transformed(kind: str, dtype: DType, rows: int, width: int, out: DType) -> list[str]:
    """Statements that make the scores Z[n,k] of type `out` from the numbers S[n,k] of `dtype`."""
    all_ = {"n": rows, "k": width}

    def final(text: str) -> str:
        return text if out == dtype else f"{out}({text})"

    if kind == "NONE":
        return [line(f"Z[n,k] = {final('S[n,k]')}", all_)]
    if kind == "LOGISTIC":
        return [line(f"Z[n,k] = {final('sigmoid(S[n,k])')}", all_)]
    if kind == "PROBIT":
        offset, factor, scale = map(literal, _PROBIT)
        return [
            declare("odds", dtype, (rows, width)),
            line("odds[n,k] = 2 * S[n,k] - 1", all_),
            declare("logs", dtype, (rows, width)),
            line("logs[n,k] = log((1 - odds[n,k]) * (1 + odds[n,k]))", all_),
            declare("half", dtype, (rows, width)),
            line(f"half[n,k] = {offset} + 0.5 * logs[n,k]", all_),
            declare("root", dtype, (rows, width)),
            line(
                f"root[n,k] = sqrt(sqrt(half[n,k] * half[n,k] - {factor} * logs[n,k]) - half[n,k])",
                all_,
            ),
            line(
                f"Z[n,k] = {final(f'select(odds[n,k] < 0, -{scale}, {scale}) * root[n,k]')}", all_
            ),
        ]
    each = "exp(S[n,k] - top[n])"
    added = "exps[n,k]"
    if kind == "SOFTMAX_ZERO":  # zeros stay 0, and are not in the sum
        each = f"select(abs(S[n,k]) > 0.0000001, {each}, S[n,k] * exp(-top[n]))"
        added = "select(abs(S[n,k]) > 0.0000001, exps[n,k], 0)"
    return [
        declare("top", dtype, (rows,)),
        line("top[n] max=! S[n,k]", all_),
        declare("exps", dtype, (rows, width)),
        line(f"exps[n,k] = {each}", all_),
        declare("total", dtype, (rows,)),
        line(f"total[n] +=! {added}", all_),
        line(f"Z[n,k] = {final('exps[n,k] / total[n]')}", all_),
    ]


def two_scores(kind: str, rows: int, mixed: bool, out: DType) -> list[str]:
    """Statements for the scores Z[n,0] and Z[n,1] of two classes from one number S[n,0].

    `mixed` numbers may be negative, the others are probabilities.
    """
    row = {"n": rows}
    negative, positive = ("-S[n,0]", "S[n,0]") if mixed else ("1 - S[n,0]", "S[n,0]")
    if kind == "LOGISTIC":
        negative, positive = "sigmoid(-S[n,0])", "sigmoid(S[n,0])"
    return [
        line(f"Z[n,0] = {out}({negative})", row),
        line(f"Z[n,1] = {out}({positive})", row),
    ]


def best_class(
    rows: int, width: int, labels: str = "T", scores: str = "S", dtype: DType = FLOAT32
) -> list[str]:
    """Statements that make the label L[n] of the first of the greatest scores, as a `dtype`."""
    all_ = {"n": rows, "k": width}
    return [
        declare("best", dtype, (rows,)),
        line(f"best[n] max=! {dtype}({scores}[n,k])", all_),
        f"int64 place[{rows}]",
        line(f"place[n] min=! select({dtype}({scores}[n,k]) == best[n], k, {width})", all_),
        line(f"L[n] = {labels}[place[n]]", {"n": rows}),
    ]


def class_labels(node: Node, numbers: str) -> np.ndarray | Expanded:
    """The class labels if they are numbers; a node whose labels are strings becomes two nodes.

    The first computes the indices of labels, the second looks the labels up.

    Parameters
    ----------
    numbers : name of the attribute of labels that are integers
    """
    found = vector(node, numbers, np.int64)
    strings = words(node, "classlabels_strings")
    if strings:
        return _with_indices(node, numbers, strings)
    if found is None or not len(found):
        raise node.fail("there are no class labels")
    return found


def _with_indices(node: Node, numbers: str, strings: Sequence[str]) -> Expanded:
    proto, scope = node.surroundings.proto, node.surroundings
    found = f"{scope.prefix}place"
    first = type(proto)()
    first.CopyFrom(proto)
    kept = [a for a in proto.attribute if a.name not in ("classlabels_strings", numbers)]
    del first.attribute[:], first.output[:]
    first.attribute.extend(kept)
    first.attribute.append(helper.make_attribute(numbers, list(range(len(strings)))))
    first.output.extend([found, *proto.output[1:]])
    # With a single label there are still two classes, which are called 0 and 1.
    known = list(strings) if len(strings) > 1 else ["0", "1"]
    second = helper.make_node(
        "LabelEncoder",
        [found],
        [proto.output[0]],
        domain=DOMAIN,
        keys_int64s=list(range(len(known))),
        values_strings=known,
    )
    nodes = [first, second] if proto.output[0] else [first]
    return Expanded(tuple(nodes), versions_with(scope.versions, 2))


def versions_with(versions: Mapping[str, int], least: int) -> dict[str, int]:
    """The opsets of a node, with at least the given one of this domain."""
    return {**versions, DOMAIN: max(least, versions.get(DOMAIN, 1))}
