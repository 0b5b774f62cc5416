"""How far the outputs of a quantised network are from those of the network in float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from poly.errors import ArgumentError

Array = np.ndarray[Any, np.dtype[Any]]
#: The outputs of one sample, in the order of the network.
Outputs = Sequence[Array]

RELATIVE, COSINE, TOP1 = METRICS = ("relative", "cosine", "top1")


@dataclass(frozen=True, eq=False)
class Metric:
    """A drop in percent: 0 where nothing changes.

    ``relative``: the largest difference, in percent of the largest value of each output;
    ``cosine``: 1 - cosine of the angle between outputs, the mean over samples; ``top1``: the share
    of rows whose largest element of the first output is another one or, with `labels`, by how much
    fewer of these it is.  Of several outputs the worst counts.
    """

    name: str = RELATIVE
    labels: Array | None = None

    def __post_init__(self) -> None:
        if self.name not in METRICS:
            raise ArgumentError(f"there is no metric '{self.name}', only {', '.join(METRICS)}")
        if self.labels is None:
            return
        if self.name != TOP1:
            raise ArgumentError(f"labels are for the metric top1, not for {self.name}")
        if self.labels.dtype.kind not in "iu":
            raise ArgumentError(f"labels are integers, not {self.labels.dtype}")

    def check(self, outputs: Sequence[Outputs]) -> None:
        """Check that the metric can be taken of such outputs.

        Raises
        ------
        ArgumentError : it needs other outputs, or other labels.
        """
        if self.name != TOP1:
            if not any(_is_float(a) for a in outputs[0]):
                raise ArgumentError(
                    f"the network has no output in floating point for the metric {self.name}"
                )
            return
        if any(_is_not_scores(o[0]) for o in outputs):
            raise ArgumentError("the first output has no axis of classes for the metric top1")
        if self.labels is None:
            return
        rows = sum(o[0].size // o[0].shape[-1] for o in outputs)
        classes = min(o[0].shape[-1] for o in outputs)
        if self.labels.size != rows:
            raise ArgumentError(f"there are {self.labels.size} labels for {rows} rows of scores")
        low, high = int(self.labels.min()), int(self.labels.max())
        if low < 0 or high >= classes:
            raise ArgumentError(f"labels reach from {low} to {high}, there are {classes} classes")

    def drop(self, exact: Sequence[Outputs], found: Sequence[Outputs]) -> float:
        """By how much `found` is worse than `exact`, in percent."""
        if self.name == TOP1:
            return _top1(exact, found, self.labels)
        each = _relative if self.name == RELATIVE else _cosine
        numbers = [i for i, a in enumerate(exact[0]) if _is_float(a)]
        return max(each([o[i] for o in exact], [o[i] for o in found]) for i in numbers)

    def accuracy(self, outputs: Sequence[Outputs]) -> float | None:
        """The percentage of rows that have their labels, None without labels."""
        if self.labels is None:
            return None
        return 100 * float(np.mean(_winners(outputs) == self.labels.reshape(-1)))


def relative_error(exact: Sequence[Outputs], found: Sequence[Outputs]) -> float:
    """The drop of the metric ``relative``; 0 if no output is in floating point."""
    if not any(_is_float(a) for a in exact[0]):
        return 0.0
    return Metric().drop(exact, found)


def _is_float(array: Array) -> bool:
    return isinstance(array, np.ndarray) and array.dtype.kind == "f"


def _is_not_scores(array: Array) -> bool:
    return not _is_float(array) or array.ndim == 0 or array.shape[-1] < 2


def _relative(exact: Sequence[Array], found: Sequence[Array]) -> float:
    # Python's max would lose a NaN.
    apart = [np.abs(f - e).max(initial=0) for e, f in zip(exact, found, strict=True)]
    error = float(np.max(apart))
    scale = float(np.max([np.abs(e).max(initial=0) for e in exact]))
    if np.isnan(error):
        return float("inf")
    return 100 * error / scale if scale else (float("inf") if error else 0.0)


def _cosine(exact: Sequence[Array], found: Sequence[Array]) -> float:
    return 100 * float(np.mean([_apart(e, f) for e, f in zip(exact, found, strict=True)]))


def _apart(exact: Array, found: Array) -> float:
    """1 - cosine of two arrays."""
    a, b = exact.astype(np.float64).ravel(), found.astype(np.float64).ravel()
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    if not np.isfinite(b).all():
        return float("inf")
    if not lengths:
        return 0.0 if np.array_equal(a, b) else 1.0
    return max(0.0, 1 - float(a @ b) / lengths)


def _winners(outputs: Sequence[Outputs]) -> Array:
    return np.concatenate([np.argmax(o[0], axis=-1).reshape(-1) for o in outputs])


def _top1(exact: Sequence[Outputs], found: Sequence[Outputs], labels: Array | None) -> float:
    before, after = _winners(exact), _winners(found)
    if labels is None:
        return 100 * float(np.mean(before != after))
    wanted = labels.reshape(-1)
    return 100 * float(np.mean(before == wanted) - np.mean(after == wanted))
