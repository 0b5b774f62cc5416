"""Experimental operators of early opsets, compared with ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from frontends.onnx import import_model
from poly.errors import ModelError
from tests.frontends.onnx.onnx_support import agree, floats, single

X = floats(1, 3, 6, 7)


def early(operator: str, opset: int = 7, **given: object) -> onnx.ModelProto:
    return single(operator, {"x": X}, opset=opset, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(("operator", "given"), [
    ("Affine", {"alpha": 2.0, "beta": 0.5}), ("Affine", {}), ("Scale", {"scale": 3.0}),
    ("ScaledTanh", {"alpha": 2.0, "beta": 0.5}),
    ("ParametricSoftplus", {"alpha": 2.0, "beta": 3.0}),
    ("ImageScaler", {"scale": 2.0, "bias": [1.0, 2.0, 3.0]}), ("Crop", {"border": [1, 2, 0, 1]}),
    ("Crop", {"border": [1, 2, 0, 1], "scale": [3, 2]}),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("opset", [3, 7, 9])
def test_functions_of_images(operator: str, given: dict, opset: int) -> None:
    agree(early(operator, opset, **given), {"x": X})


@pytest.mark.parametrize("opset", [6, 8])
@pytest.mark.parametrize("across", [0, 1])
@pytest.mark.parametrize("divided", [None, 0, 1])
def test_mean_and_variance_of_images(opset: int, across: int, divided: int | None) -> None:
    given = {} if divided is None else {"normalize_variance": divided}
    model = early("MeanVarianceNormalization", opset, across_channels=across, **given)
    agree(model, {"x": X})


@pytest.mark.parametrize("opset", [7, 9, 10])
def test_thresholds(opset: int) -> None:
    agree(early("ThresholdedRelu", opset, alpha=0.5), {"x": X})


@pytest.mark.parametrize("axes", [None, [3, 1], [-1, 2]])
def test_slices(axes: list[int] | None) -> None:
    constants = {"s": np.array([0, 1]), "e": np.array([1, -1])}
    constants |= {} if axes is None else {"a": np.array(axes)}
    agree(single("DynamicSlice", {"x": X}, constants=constants, opset=7), {"x": X})


@pytest.mark.parametrize(("operator", "given", "told"), [
    ("ImageScaler", {"bias": [1.0]}, "1 numbers for an image of shape [1, 3, 6, 7]"),
    ("Crop", {"border": [1, 2]}, "borders [1, 2] of an image of rank 4"),
    ("Crop", {"border": [1, 2, 0, 9]}, "borders [1, 2, 0, 9] of an image of shape [1, 3, 6, 7]"),
    ("ScaledTanh", {"alpha": 1.0}, "attribute beta is missing"),
])  # fmt: skip
def test_what_does_not_fit(operator: str, given: dict, told: str) -> None:
    with pytest.raises(ModelError) as caught:
        import_model(early(operator, **given))
    assert str(caught.value) == f"{operator} 'node' (opset 7): {told}"


def test_later_opsets() -> None:
    with pytest.raises(ModelError, match="was withdrawn in opset 10"):
        import_model(early("Affine", 10))
