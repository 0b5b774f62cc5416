"""Probabilities of classes from those of pairs of classes.

T.-F. Wu, C.-J. Lin and R. C. Weng, Probability estimates for multi-class classification by
pairwise coupling, 2004; the iteration of LIBSVM, for all rows at once.  It stops early, so that
its result depends on its steps.
"""

from __future__ import annotations

import numpy as np

MAX_ROUNDS = 100


def coupled(won: np.ndarray, classes: int) -> np.ndarray:
    """Probabilities [row, class] from those that the first class of a pair wins [row, pair]."""
    rows = len(won)
    first, second = np.triu_indices(classes, 1)
    r = np.zeros((rows, classes, classes), np.float32)
    r[:, first, second], r[:, second, first] = won, 1 - won
    q = -np.swapaxes(r, 1, 2) * r
    diagonal = np.arange(classes)
    q[:, diagonal, diagonal] = np.square(r).sum(1)
    p = np.full((rows, classes), np.float32(1 / classes))
    near = np.float32(0.005 / classes)
    active = np.arange(rows)
    for _ in range(MAX_ROUNDS):
        own, matrix = p[active], q[active]
        products = np.einsum("nij,nj->ni", matrix, own)
        total = (own * products).sum(1)
        going = np.abs(products - total[:, None]).max(1) >= near
        active = active[going]
        if not len(active):
            break
        own, matrix, products, total = own[going], matrix[going], products[going], total[going]
        for i in range(classes):
            step = (total - products[:, i]) / matrix[:, i, i]
            own[:, i] += step
            whole = 1 + step
            total = (total + step * (step * matrix[:, i, i] + 2 * products[:, i])) / whole / whole
            products = (products + step[:, None] * matrix[:, i]) / whole[:, None]
            own /= whole[:, None]
        p[active] = own
    return p
