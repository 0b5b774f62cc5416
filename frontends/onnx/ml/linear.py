"""LinearClassifier and LinearRegressor: one product with the coefficients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from frontends.onnx.core.comprehension_text import declare, function, line
from frontends.onnx.core.node import Compute, Expanded, Node, Result, operator
from frontends.onnx.ml.common import (
    DOMAIN,
    Rows,
    best_class,
    class_labels,
    transform_of,
    transformed,
    two_scores,
    vector,
)
from poly.ir.dtypes import FLOAT32, INT64


def _weights(node: Node, width: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The coefficients as a matrix with a row for each of `count` scores, and the intercepts."""
    coefficients = vector(node, "coefficients", np.float32)
    if coefficients is None or len(coefficients) != count * width:
        given = 0 if coefficients is None else len(coefficients)
        raise node.fail(f"{given} coefficients do not fit {count} scores of {width} features")
    intercepts = vector(node, "intercepts", np.float32)
    if intercepts is None or not len(intercepts):
        intercepts = np.zeros(count, np.float32)
    if len(intercepts) != count:
        raise node.fail(f"{len(intercepts)} intercepts do not fit {count} scores")
    return coefficients.reshape(count, width), intercepts


def _product(rows: Rows, weights: np.ndarray) -> tuple[list[str], list[str]]:
    """Declarations of the operands, and the statements that make the scores S[n,k]."""
    count = len(weights)
    operands = [
        rows.declaration(),
        declare("W", FLOAT32, weights.shape),
        declare("B", FLOAT32, (count,)),
    ]
    ranges = {"n": rows.count, "k": count}
    lines = [
        declare("T", FLOAT32, (rows.count, count)),
        line(f"T[n,k] +=! {rows.number()} * W[k,c]", {**ranges, "c": rows.width}),
        declare("S", FLOAT32, (rows.count, count)),
        line("S[n,k] = T[n,k] + B[k]", ranges),
    ]
    return operands, lines


@operator("LinearRegressor", domain=DOMAIN)
def linear_regressor(node: Node) -> Sequence[Result]:
    """X W^T + b."""
    rows = Rows.of(node, double=False)
    count = node.integer("targets", 1)
    if count < 1:
        raise node.fail(f"{count} targets")
    weights, intercepts = _weights(node, rows.width, count)
    operands, lines = _product(rows, weights)
    kind = transform_of(node)
    if count == 1 and kind != "PROBIT":
        kind = "NONE"  # like ONNX Runtime: one number is not a distribution
    lines += transformed(kind, FLOAT32, rows.count, count, FLOAT32)
    out = [declare("Z", FLOAT32, (rows.count, count))]
    program = function("linear_regressor", operands, out, lines)
    return [Compute(program, (rows.value, weights, intercepts))]


@operator("LinearClassifier", domain=DOMAIN)
def linear_classifier(node: Node) -> Sequence[Result]:
    """The class with the greatest of the scores X W^T + b, or the sign of a single one."""
    labels = class_labels(node, "classlabels_ints")
    if isinstance(labels, Expanded):
        return [labels]
    rows = Rows.of(node, double=False)
    given = node.attributes.get("intercepts")
    count = len(given) if isinstance(given, tuple) and given else len(labels)
    weights, intercepts = _weights(node, rows.width, count)
    operands, lines = _product(rows, weights)
    kind = transform_of(node)
    if count == 1:
        if len(labels) != 2:
            labels = np.array([0, 1], np.int64)
        lines.append(line("L[n] = select(S[n,0] > 0, C[1], C[0])", {"n": rows.count}))
    elif len(labels) != count:
        raise node.fail(f"{len(labels)} class labels do not fit {count} scores")
    else:
        lines += best_class(rows.count, count, "C")
    two = count == 1 and node.attributes.get("classlabels_ints") is not None
    two = two and len(np.asarray(node.attributes["classlabels_ints"])) == 2
    if two and kind != "PROBIT":
        lines += two_scores(kind, rows.count, False, FLOAT32)
    else:
        if count == 1 and kind != "PROBIT":
            kind = "NONE"
        lines += transformed(kind, FLOAT32, rows.count, count, FLOAT32)
    width = 2 if two and kind != "PROBIT" else count
    out = [declare("L", INT64, (rows.count,)), declare("Z", FLOAT32, (rows.count, width))]
    operands.append(declare("C", INT64, (len(labels),)))
    program = function("linear_classifier", operands, out, lines)
    return [Compute(program, (rows.value, weights, intercepts, labels))]
