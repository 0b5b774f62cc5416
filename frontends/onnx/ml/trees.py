"""TreeEnsembleClassifier, TreeEnsembleRegressor and TreeEnsemble."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from frontends.onnx.core.comprehension_text import declare, function, line
from frontends.onnx.core.limits import checked_shape
from frontends.onnx.core.node import Compute, Expanded, Node, Result, operator
from frontends.onnx.ml.common import (
    DOMAIN,
    TRANSFORMS,
    Rows,
    best_class,
    class_labels,
    transform_of,
    transformed,
    two_scores,
    vector,
)
from frontends.onnx.ml.ensembles import Ensemble, linked_ensemble, listed_ensemble
from frontends.onnx.ml.tree_programs import sums_of
from poly.ir.dtypes import FLOAT32, FLOAT64, INT32, INT64, DType

AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


def _regression(
    node: Node, rows: Rows, trees: Ensemble, targets: int, aggregate: str, kind: str, out: DType
) -> Compute:
    """The aggregate over all trees for each target, and the post transform."""
    checked_shape((max(rows.count, 1), targets), FLOAT64, node.origin)
    base = vector(node, "base_values", rows.dtype.numpy)
    if base is None:
        base = vector(node, "base_values_as_tensor", rows.dtype.numpy)
    if base is None or not len(base):
        base = np.zeros(targets, rows.dtype.numpy)
    if len(base) != targets:
        raise node.fail(f"{len(base)} base_values do not fit {targets} targets")
    walk = sums_of(node, rows, trees, targets, aggregate)
    value = "Q[n,k]"
    if aggregate == "AVERAGE":
        value = f"Q[n,k] / {len(trees.roots)}.0"
    elif aggregate != "SUM":
        value = "select(isinf(Q[n,k]), 0, Q[n,k])"  # no tree has such a target
    if targets == 1 and kind != "PROBIT":
        kind = "NONE"  # like ONNX Runtime: one number is not a distribution
    lines = [
        *walk.lines,
        declare("S", rows.dtype, (rows.count, targets)),
        line(f"S[n,k] = {value} + B[k]", {"n": rows.count, "k": targets}),
        *transformed(kind, rows.dtype, rows.count, targets, out),
    ]
    operands = [*walk.operands, declare("B", rows.dtype, (targets,))]
    program = function("trees", operands, [declare("Z", out, (rows.count, targets))], lines)
    return Compute(program, (rows.value, *walk.arrays, base))


@operator("TreeEnsembleRegressor", domain=DOMAIN)
def tree_ensemble_regressor(node: Node) -> Sequence[Result]:
    """Numbers from the leaves of trees."""
    rows, targets = Rows.of(node), node.integer("n_targets", 1)
    aggregate = node.word("aggregate_function", "SUM")
    if aggregate not in AGGREGATES:
        raise node.fail(f"there is no aggregate function {aggregate!r}")
    if targets < 1:
        raise node.fail(f"{targets} targets")
    trees = listed_ensemble(node, rows.dtype, rows.width, "target")
    kind = transform_of(node)
    return [_regression(node, rows, trees, targets, aggregate, kind, FLOAT32)]


@operator("TreeEnsemble", domain=DOMAIN)
def tree_ensemble(node: Node) -> Sequence[Result]:
    """Numbers from the leaves of trees, whose leaves are listed apart."""
    rows, targets = Rows.of(node), node.integer("n_targets", 1)
    aggregate, kind = node.integer("aggregate_function", 1), node.integer("post_transform", 0)
    if not (0 <= aggregate < len(AGGREGATES) and 0 <= kind < len(TRANSFORMS)):
        raise node.fail(f"aggregate_function {aggregate} or post_transform {kind} does not exist")
    if targets < 1:
        raise node.fail(f"{targets} targets")
    trees = linked_ensemble(node, rows.dtype, rows.width)
    out = rows.value.dtype if rows.value.dtype.is_float else FLOAT32
    made = _regression(node, rows, trees, targets, AGGREGATES[aggregate], TRANSFORMS[kind], out)
    return [made]


@operator("TreeEnsembleClassifier", domain=DOMAIN)
def tree_ensemble_classifier(node: Node) -> Sequence[Result]:
    """The class with the greatest sum of weights; ONNX Runtime's rules for two classes."""
    labels = class_labels(node, "classlabels_int64s")
    if isinstance(labels, Expanded):
        return [labels]
    rows, count, kind = Rows.of(node), len(labels), transform_of(node)
    dtype = rows.dtype
    trees = listed_ensemble(node, dtype, rows.width, "class")
    base = vector(node, "base_values", dtype.numpy)
    if base is None:
        base = vector(node, "base_values_as_tensor", dtype.numpy)
    if base is None:
        base = np.zeros(0, dtype.numpy)
    if len(base) not in (0, count) and not (len(base) == 1 and count == 2):
        raise node.fail(f"{len(base)} base_values do not fit {count} classes")
    walk = sums_of(node, rows, trees, count, "SUM")
    voted = np.zeros(count, bool)
    voted[trees.targets] = True
    all_ = {"n": rows.count, "k": count}
    scores = declare("S", dtype, (rows.count, count))
    lines, arrays, operands = [*walk.lines], [*walk.arrays], [*walk.operands]
    width = count
    if count > 2:
        lines += [scores, line("S[n,k] = Q[n,k] + B[k]", all_)]
        arrays.append(base if len(base) else np.zeros(count, dtype.numpy))
        operands.append(declare("B", dtype, (count,)))
        ranked = "S"
        if not len(base) and not voted.all() and voted.any():  # some classes get no votes
            ranked = "ranked"
            lines += [
                declare("ranked", dtype, (rows.count, count)),
                line("ranked[n,k] = select(voted[k] != 0, S[n,k], -inf)", all_),
            ]
            arrays.append(voted.astype(np.int32))
            operands.append(declare("voted", INT32, (count,)))
        lines += best_class(rows.count, count, "C", ranked, dtype)
        lines += transformed(kind, dtype, rows.count, count, FLOAT32)
    else:
        positive = bool((trees.weights >= 0).all())
        made, width = _two_classes(dtype, rows.count, count, base, voted, positive, kind)
        lines += made
        if count == 1:
            labels = np.array([0, 1], np.int64)
    operands.append(declare("C", INT64, labels.shape))
    out = [declare("L", INT64, (rows.count,)), declare("Z", FLOAT32, (rows.count, width))]
    program = function("tree_classifier", operands, out, lines)
    return [Compute(program, (rows.value, *arrays, labels))]


def _two_classes(
    dtype: DType,
    rows: int,
    count: int,
    base: np.ndarray,
    voted: np.ndarray,
    positive: bool,
    kind: str,
) -> tuple[list[str], int]:
    """Labels and scores of one or two classes from the sums Q, and how many scores there are.

    If trees vote for one class only, their sum is the probability or the logit of the second.
    """
    row = {"n": rows}
    one_sided = count == 2 and voted.sum() == 1
    limit = "0.5" if one_sided and positive else "0"
    second = count == 2 and bool(voted[1])
    terms = [float(b) for b in base] + [0.0] * (2 - len(base))

    def plus(number: float) -> str:
        return f" + {number!r}" if number >= 0 else f" - {-number!r}"

    def labelled(score: str) -> str:
        return line(f"L[n] = select({score} > {limit}, C[1], C[0])", row)

    single = count == 1 or (not second and len(base) < 2)
    if single:
        lines = [
            declare("S", dtype, (rows, 1)),
            line(f"S[n,0] = Q[n,0]{plus(terms[0])}", row),
            labelled("S[n,0]"),
        ]
        if count == 2 and kind != "PROBIT":
            return lines + two_scores(kind, rows, not positive, FLOAT32), 2
        if kind != "PROBIT":
            kind = "NONE"
        lines += transformed(kind, dtype, rows, 1, FLOAT32)
        return ([*lines, line("Z[n,1] = 0", row)], 2) if count == 2 else (lines, 1)
    first = f"Q[n,0]{plus(terms[0])}" if voted[0] else "0"
    last = "Q[n,1]" if second else "0"
    if len(base) == 2 and second:
        # ONNX Runtime uses the sum of the first class as the logit of the second.
        last = f"Q[n,0]{plus(terms[1])}"
        first = f"-({last})" if voted[0] else "0"
    lines = [
        declare("S", dtype, (rows, 2)),
        line(f"S[n,0] = {first}", row),
        line(f"S[n,1] = {last}", row),
        labelled("S[n,1]" if second else "S[n,0]"),
    ]
    return lines + transformed(kind, dtype, rows, 2, FLOAT32), 2
