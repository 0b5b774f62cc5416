"""SVMClassifier and SVMRegressor: sums of kernels over support vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from frontends.onnx.core.comprehension_text import declare, function, line, literal
from frontends.onnx.core.limits import checked_shape
from frontends.onnx.core.node import Compute, Expanded, Node, Opaque, Result, Unsupported, operator
from frontends.onnx.core.stages import Array, Body
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
from frontends.onnx.ml.svm_probability import coupled
from poly.ir.dtypes import FLOAT32, INT64

KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")


@dataclass(frozen=True, eq=False)
class _Kernel:
    """A kernel, and the vectors with which it compares each row."""

    kind: str
    gamma: float
    offset: float
    degree: float
    vectors: np.ndarray

    @staticmethod
    def of(node: Node, vectors: np.ndarray, kind: str) -> _Kernel:
        given = vector(node, "kernel_params", np.float32)
        params = [0.0, 0.0, 0.0] if given is None or not len(given) else given.tolist()
        if len(params) != 3:
            raise node.fail(f"kernel_params are three numbers, not {len(params)}")
        gamma, offset, degree = params
        return _Kernel(kind, gamma, offset, degree, vectors)

    def statements(self, rows: Rows) -> list[str]:
        """Statements that make K[n,v] from the operand X and the vectors V."""
        count = len(self.vectors)
        ranges = {"n": rows.count, "v": count}
        x = rows.number()
        each = f"({x} - V[v,c]) * ({x} - V[v,c])" if self.kind == "RBF" else f"{x} * V[v,c]"
        gamma, offset = literal(self.gamma), literal(self.offset)
        found = {
            "LINEAR": "G[n,v]",
            "RBF": f"exp(-{gamma} * G[n,v])",
            "POLY": f"pow({gamma} * G[n,v] + {offset}, {literal(self.degree)})",
            "SIGMOID": f"tanh({gamma} * G[n,v] + {offset})",
        }
        return [
            declare("G", FLOAT32, (rows.count, count)),
            line(f"G[n,v] +=! {each}", {**ranges, "c": rows.width}),
            declare("K", FLOAT32, (rows.count, count)),
            line(f"K[n,v] = {found[self.kind]}", ranges),
        ]

    def values(self, x: np.ndarray) -> np.ndarray:
        """The same by numpy: a column for each vector."""
        vectors = self.vectors
        if self.kind == "RBF":
            rows = [np.square(row - vectors).sum(1, dtype=np.float32) for row in x]
            squares = np.array(rows, np.float32).reshape(len(x), len(vectors))
            return np.asarray(np.exp(np.float32(-self.gamma) * squares))
        products = x @ vectors.T
        if self.kind == "LINEAR":
            return np.asarray(products)
        scaled = np.float32(self.gamma) * products + np.float32(self.offset)
        if self.kind == "SIGMOID":
            return np.asarray(np.tanh(scaled))
        return np.asarray(np.power(scaled, np.float32(self.degree)))


def _kernel_kind(node: Node) -> str:
    kind = node.word("kernel_type", "LINEAR")
    if kind not in KERNELS:
        raise node.fail(f"there is no kernel {kind!r}")
    return kind


def _matrix(node: Node, name: str, rows: int, width: int) -> np.ndarray:
    """An attribute as a matrix of this size."""
    found = vector(node, name, np.float32)
    if found is None or len(found) != rows * width:
        given = 0 if found is None else len(found)
        raise node.fail(f"{given} {name} are not {rows} rows of {width}")
    return found.reshape(rows, width)


def _rho(node: Node, count: int) -> np.ndarray:
    found = vector(node, "rho", np.float32)
    if found is None or len(found) < count:
        raise node.fail(f"rho needs {count} numbers")
    return found[:count]


@operator("SVMRegressor", domain=DOMAIN)
def svm_regressor(node: Node) -> Sequence[Result]:
    """rho + the sum of kernels, each times its coefficient."""
    rows = Rows.of(node, double=False)
    supports = node.integer("n_supports", 0)
    transform_of(node)
    rho = _rho(node, 1)
    if supports > 0:
        vectors = _matrix(node, "support_vectors", supports, rows.width)
        kernel = _Kernel.of(node, vectors, _kernel_kind(node))
        coefficients = _matrix(node, "coefficients", 1, supports)[0]
    else:  # without support vectors, the coefficients are those of the features
        kernel = _Kernel.of(node, _matrix(node, "coefficients", 1, rows.width), "LINEAR")
        coefficients = np.ones(1, np.float32)
    value = "T[n] + R[0]"
    if node.flag("one_class"):
        value = f"select({value} > 0, 1.0, -1.0)"
    count = len(kernel.vectors)
    lines = [
        *kernel.statements(rows),
        declare("T", FLOAT32, (rows.count,)),
        line("T[n] +=! K[n,v] * A[v]", {"n": rows.count, "v": count}),
        line(f"Z[n,0] = float32({value})", {"n": rows.count}),
    ]
    operands = [
        rows.declaration(),
        declare("V", FLOAT32, kernel.vectors.shape),
        declare("A", FLOAT32, (count,)),
        declare("R", FLOAT32, (1,)),
    ]
    out = [declare("Z", FLOAT32, (rows.count, 1))]
    program = function("svm_regressor", operands, out, lines)
    return [Compute(program, (rows.value, kernel.vectors, coefficients, rho))]


@operator("SVMClassifier", domain=DOMAIN)
def svm_classifier(node: Node) -> Sequence[Result]:
    """The class that wins most comparisons of two, or has the greatest score."""
    labels = class_labels(node, "classlabels_ints")
    if isinstance(labels, Expanded):
        return [labels]
    rows = Rows.of(node, double=False)
    per_class = node.ints("vectors_per_class") or ()
    if any(n < 0 for n in per_class):
        raise node.fail("vectors_per_class has a negative number")
    if not sum(per_class):
        return [_linear(node, rows, labels)]
    if len(per_class) != len(labels) or len(labels) < 2:
        raise node.fail(f"{len(labels)} class labels do not fit {len(per_class)} vectors_per_class")
    vectors = _matrix(node, "support_vectors", sum(per_class), rows.width)
    kernel = _Kernel.of(node, vectors, _kernel_kind(node))
    pairs = _pair_weights(node, per_class)
    rho = _rho(node, len(pairs))
    a, b = vector(node, "prob_a", np.float32), vector(node, "prob_b", np.float32)
    if a is not None and len(a):
        if b is None or not len(a) == len(b) == len(pairs):
            raise node.fail(f"prob_a and prob_b need {len(pairs)} numbers")
        return [_probabilities(node, rows, kernel, pairs, rho, a, b, labels)]
    return [_votes(node, rows, kernel, pairs, rho, labels)]


def _pair_weights(node: Node, per_class: Sequence[int]) -> np.ndarray:
    """For each pair of classes the coefficients of all support vectors, most of which are 0."""
    classes, supports = len(per_class), sum(per_class)
    given = _matrix(node, "coefficients", classes - 1, supports)
    starts = np.concatenate([[0], np.cumsum(per_class)])
    count = classes * (classes - 1) // 2
    checked_shape((count, supports), FLOAT32, node.origin)
    pairs = np.zeros((count, supports), np.float32)
    both = ((i, j) for i in range(classes) for j in range(i + 1, classes))
    for pair, (i, j) in enumerate(both):
        own, other = slice(starts[i], starts[i + 1]), slice(starts[j], starts[j + 1])
        pairs[pair, own] = given[j - 1, own]
        pairs[pair, other] = given[i, other]
    return pairs


def _votes(
    node: Node,
    rows: Rows,
    kernel: _Kernel,
    pairs: np.ndarray,
    rho: np.ndarray,
    labels: np.ndarray,
) -> Compute:
    """Every two classes are compared; the scores are those of the comparisons."""
    count, classes, kind = len(pairs), len(labels), transform_of(node)
    first, second = np.triu_indices(classes, 1)
    # The winner of a comparison: row 0 if its sum is positive, else row 1.
    sides = np.zeros((2, count, classes), np.int64)
    sides[0, np.arange(count), first] = sides[1, np.arange(count), second] = 1
    lines = [
        *kernel.statements(rows),
        declare("P", FLOAT32, (rows.count, count)),
        line("P[n,p] +=! K[n,v] * A[p,v]", {"n": rows.count, "p": count, "v": len(kernel.vectors)}),
        declare("S", FLOAT32, (rows.count, count)),
        line("S[n,k] = P[n,k] + R[k]", {"n": rows.count, "k": count}),
        declare("votes", INT64, (rows.count, classes)),
        line(
            "votes[n,q] +=! select(S[n,p] > 0, D[0,p,q], D[1,p,q])",
            {"n": rows.count, "q": classes, "p": count},
        ),
    ]
    if classes == 2 and _all_positive(node):
        # ONNX Runtime treats the numbers as probabilities, but votes nevertheless.
        lines.append(line("L[n] = select(S[n,0] > 0, C[0], C[1])", {"n": rows.count}))
    else:
        lines += best_class(rows.count, classes, "C", "votes")
    width = 2 if classes == 2 else count
    if classes == 2 and kind != "PROBIT":
        lines += two_scores(kind, rows.count, kind == "NONE", FLOAT32)
    else:
        width = count
        lines += transformed(kind, FLOAT32, rows.count, count, FLOAT32)
    operands = [
        rows.declaration(),
        declare("V", FLOAT32, kernel.vectors.shape),
        declare("A", FLOAT32, pairs.shape),
        declare("R", FLOAT32, rho.shape),
        declare("D", INT64, sides.shape),
        declare("C", INT64, labels.shape),
    ]
    out = [declare("L", INT64, (rows.count,)), declare("Z", FLOAT32, (rows.count, width))]
    program = function("svm_classifier", operands, out, lines)
    return Compute(program, (rows.value, kernel.vectors, pairs, rho, sides, labels))


def _all_positive(node: Node) -> bool:
    coefficients = vector(node, "coefficients", np.float32)
    return coefficients is not None and bool((coefficients >= 0).all())


def _linear(node: Node, rows: Rows, labels: np.ndarray) -> Compute:
    """Without support vectors: a row of coefficients for each class, and one constant."""
    count, kind = len(labels), transform_of(node)
    kernel = _Kernel.of(node, _matrix(node, "coefficients", count, rows.width), "LINEAR")
    rho = _rho(node, 1)
    lines = [
        *kernel.statements(rows),
        declare("S", FLOAT32, (rows.count, count)),
        line("S[n,k] = K[n,k] + R[0]", {"n": rows.count, "k": count}),
    ]
    if count == 2:
        limit = "best[n] >= 0.5" if _all_positive(node) else "best[n] > 0"
        found = best_class(rows.count, count, "C")
        chosen = found.pop().replace(
            "L[n] = C[place[n]]", f"L[n] = select({limit}, C[1], C[place[n]])"
        )
        lines += [*found, chosen]
    else:
        lines += best_class(rows.count, count, "C")
    if count == 1 and kind != "PROBIT":
        kind = "NONE"
    lines += transformed(kind, FLOAT32, rows.count, count, FLOAT32)
    operands = [
        rows.declaration(),
        declare("V", FLOAT32, kernel.vectors.shape),
        declare("R", FLOAT32, (1,)),
        declare("C", INT64, labels.shape),
    ]
    out = [declare("L", INT64, (rows.count,)), declare("Z", FLOAT32, (rows.count, count))]
    program = function("svm_linear_classifier", operands, out, lines)
    return Compute(program, (rows.value, kernel.vectors, rho, labels))


def _probabilities(
    node: Node,
    rows: Rows,
    kernel: _Kernel,
    pairs: np.ndarray,
    rho: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    labels: np.ndarray,
) -> Opaque:
    """Probabilities of classes from those of pairs, by an iteration that stops near convergence."""
    first, second = np.triu_indices(len(labels), 1)
    if transform_of(node) != "NONE":
        raise Unsupported("a post transform of probabilities")

    def run(arrays: Sequence[Array | None], bodies: Sequence[Body]) -> Sequence[Array]:
        assert arrays[0] is not None
        x = arrays[0].reshape(-1, kernel.vectors.shape[1]).astype(np.float32)
        sums = kernel.values(x) @ pairs.T + rho
        votes = np.zeros((len(x), len(labels)), np.int64)
        for pair, (i, j) in enumerate(zip(first, second, strict=True)):
            votes[:, i] += sums[:, pair] > 0
            votes[:, j] += sums[:, pair] <= 0
        won = 1 / (1 + np.exp(sums * a + b))
        scores = coupled(np.clip(won, 1e-7, 1 - 1e-7).astype(np.float32), len(labels))
        return [labels[votes.argmax(1)], scores]

    assert math.comb(len(labels), 2) == len(pairs)
    return Opaque((rows.value,), run, (INT64, FLOAT32))
