"""The operator TreeSums of the domain ``farkas``: sums of the weights of leaves, in float64.

The operators of ai.onnx.ml give float32, or compare in the type that they sum in.  scikit-learn
compares in float32 and sums in float64, which this one does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from frontends.onnx.core.comprehension_text import declare, function, line
from frontends.onnx.core.node import Compute, Node, Result
from frontends.onnx.core.own_models import DOMAIN
from frontends.onnx.ml.common import Rows
from frontends.onnx.ml.ensembles import ensemble_of
from frontends.onnx.ml.tree_programs import sums_of
from frontends.onnx.ops.contrib_schemas import contrib
from poly.ir.dtypes import FLOAT64


@contrib(
    "TreeSums",
    "X:T features:I thresholds:T yes:I no:I missing:I roots:I leaves:I targets:I weights:D",
    "sums:D", {"T": "float double", "I": "int64", "D": "double"}, domain=DOMAIN, width="int!",
)  # fmt: skip
def tree_sums(node: Node) -> Sequence[Result]:
    """For each row and target, the sum of the weights of the leaves that the row reaches.

    features, thresholds, yes, no, missing : of each node; a row goes to `yes` if its feature is at
    most the threshold, or NaN where `missing` is 1; leaves have `yes` = -1
    roots : the first node of each tree
    leaves, targets, weights : for each weight of a leaf the node, the target, the number
    width : the number of targets
    """
    rows, width = Rows.of(node), node.integer("width", 1)
    features, thresholds, yes, no, missing, roots, leaves, targets, weights = (
        _known(node, position) for position in range(1, 10)
    )
    count = len(features)
    if not count or any(len(a) != count for a in (thresholds, yes, no, missing)):
        raise node.fail("there must be as many features, thresholds, yes, no and missing")
    if not len(leaves) == len(targets) == len(weights):
        raise node.fail("there must be as many leaves, targets and weights")
    is_leaf = yes < 0
    inside = (yes[~is_leaf] < count) & (no[~is_leaf] >= 0) & (no[~is_leaf] < count)
    if not inside.all() or any(((a < 0) | (a >= count)).any() for a in (roots, leaves)):
        raise node.fail("a node that does not exist is named")
    trees = ensemble_of(
        node,
        rows.dtype,
        rows.width,
        modes=np.where(is_leaf, "LEAF", "LEQ").tolist(),
        features=features,
        values=thresholds,
        yes=yes,
        no=no,
        missing=missing,
        roots=roots,
        leaf_weights=(leaves, targets, weights),
        sums=FLOAT64,
    )
    walk = sums_of(node, rows, trees, width, "SUM")
    lines = [*walk.lines, line("Z[n,k] = Q[n,k]", {"n": rows.count, "k": width})]
    out = declare("Z", FLOAT64, (rows.count, width))
    program = function("tree_sums", walk.operands, [out], lines)
    return [Compute(program, (rows.value, *walk.arrays))]


def _known(node: Node, position: int) -> np.ndarray:
    found = node.known(position, "a table of trees")
    if found is None or found.ndim != 1:
        raise node.fail(f"input {position} must be a vector")
    return found
