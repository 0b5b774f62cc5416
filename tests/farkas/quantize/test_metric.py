"""Drops of the three metrics, and what they cannot be taken of."""

from __future__ import annotations

import numpy as np
import pytest

import farkas as fk
from farkas.quantize.metric import Metric, relative_error

A = np.array([[4.0, 1, 0], [0, 2, 1]], np.float32)
B = np.array([[3.8, 1, 0], [0, 1, 2]], np.float32)
INTEGERS = np.array([1, 2], np.int64)


def test_relative_is_of_the_largest_value_and_the_worst_output() -> None:
    assert Metric().drop([[A]], [[B]]) == pytest.approx(25)
    assert Metric().drop([[A, A], [A, A]], [[A, A], [A, B]]) == pytest.approx(25)
    assert relative_error([[INTEGERS]], [[INTEGERS + 1]]) == 0
    assert Metric().drop([[0 * A]], [[0 * A]]) == 0
    assert Metric().drop([[0 * A]], [[A]]) == np.inf
    assert Metric().drop([[A]], [[A * np.nan]]) == np.inf
    assert Metric().drop([[A], [A]], [[A], [A * np.nan]]) == np.inf
    assert Metric().drop([[A, A]], [[A, A * np.nan]]) == np.inf


def test_cosine_is_the_mean_over_samples() -> None:
    turned = np.array([[0, 1]], np.float32), np.array([[1, 0]], np.float32)
    assert Metric("cosine").drop([[A]], [[3 * A]]) == pytest.approx(0, abs=1e-9)
    assert Metric("cosine").drop([[turned[0]], [A]], [[turned[1]], [A]]) == pytest.approx(50)
    assert Metric("cosine").drop([[A]], [[A + np.inf]]) == np.inf
    assert Metric("cosine").drop([[0 * A]], [[0 * A]]) == 0


def test_top1_counts_changes_or_lost_labels() -> None:
    assert Metric("top1").drop([[A]], [[B]]) == 50
    right = Metric("top1", np.array([0, 1]))
    assert right.drop([[A]], [[B]]) == 50 and right.accuracy([[A]]) == 100
    assert Metric("top1", np.array([0, 2])).drop([[A]], [[B]]) == -50
    assert Metric("top1").accuracy([[A]]) is None


def test_what_is_refused() -> None:
    for name, labels, message in (
        ("mean", None, "no metric 'mean', only relative, cosine, top1"),
        ("cosine", np.array([1]), "labels are for the metric top1"),
        ("top1", np.array([1.0]), "labels are integers, not float64"),
    ):
        with pytest.raises(fk.ArgumentError, match=message):
            Metric(name, labels)
    for metric, outputs, message in (
        (Metric(), [INTEGERS], "no output in floating point"),
        (Metric("top1"), [INTEGERS], "no axis of classes"),
        (Metric("top1"), [A[:, :1]], "no axis of classes"),
        (Metric("top1", np.array([1, 2, 0])), [A], "3 labels for 2 rows"),
        (Metric("top1", np.array([1, 3])), [A], "from 1 to 3, there are 3 classes"),
    ):
        with pytest.raises(fk.ArgumentError, match=message):
            metric.check([outputs])
