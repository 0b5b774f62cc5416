"""Resize and GridSample where their modes meet types and axes, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from frontends.onnx import import_model
from poly.errors import UnsupportedModelError
from tests.frontends.onnx.onnx_support import agree, floats, ort_run, run_graph, single

RANDOM = np.random.default_rng(5)


def extremes(dtype: Any, *shape: int) -> np.ndarray:
    """The least and the greatest number of 8 bits, between which a cubic overshoots."""
    low = 0 if dtype == np.uint8 else -128
    return np.where(RANDOM.random(shape) < 0.5, low, low + 255).astype(dtype)


def resize(x: np.ndarray, scales: list[float], opset: int = 18, **attributes: Any) -> Any:
    order = ["x", "r", "s"] if opset < 13 else ["x", "", "s"]
    constants = {"s": np.array(scales, np.float32), "r": np.zeros(0, np.float32)}
    used = {n: constants[n] for n in order if n in constants}
    return single("Resize", {"x": x}, constants=used, order=order, opset=opset, **attributes)


def run(model: Any, x: np.ndarray) -> np.ndarray:
    return run_graph(import_model(model), {"x": x})["y0"]


def nearly_the_same(found: np.ndarray, wanted: np.ndarray) -> None:
    """Few sums are so close to the next integer that they may be rounded to it."""
    assert found.shape == wanted.shape
    apart = np.abs(found.astype(float) - wanted)
    assert apart.max() <= 1 and apart.mean() < 0.1


def sampled(x: np.ndarray, grid: np.ndarray, mode: str) -> tuple[np.ndarray, np.ndarray]:
    """Ours, of integers, and what ONNX Runtime computes of the same floats."""
    how: dict[str, Any] = {"opset": 20, "mode": mode, "align_corners": 1}
    given, wide = {"x": x, "g": grid}, {"x": x.astype(np.float32), "g": grid}
    found = run_graph(import_model(single("GridSample", given, **how)), given)["y0"]
    assert found.dtype == x.dtype
    return found, ort_run(single("GridSample", wide, **how), wide)["y0"]


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_tf_half_pixel_leaves_unchanged_axes_alone(mode: str) -> None:
    x = floats(2, 3, 4, 4)
    how = "tf_half_pixel_for_nn"
    model = resize(x, [1, 1, 2, 2], 11, mode=mode, coordinate_transformation_mode=how)
    agree(model, {"x": x})


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("scales", [[0.5, 0.5], [0.7, 0.4], [1, 0.5]])
def test_sums_of_integers_are_rounded(dtype: Any, mode: str, scales: list[float]) -> None:
    """With antialias, along each axis, the last one first; of 8 bits, they are limited, too.

    ONNX Runtime limits int8 to numbers above 0: here it computes the same for uint8.
    """
    x = extremes(dtype, 1, 2, 7, 10)
    found = run(resize(x, [1, 1, *scales], mode=mode, antialias=1), x)
    shift = 128 if dtype == np.int8 else 0
    judge = x if dtype == np.int32 else (x.astype(int) + shift).astype(np.uint8)
    model = resize(judge, [1, 1, *scales], mode=mode, antialias=1)
    assert found.dtype == dtype
    wanted = ort_run(model, {"x": judge})["y0"]
    nearly_the_same(found.astype(int) + shift, wanted)
    if mode == "linear" and scales[-1] == 0.5:  # whose weights are eighths
        np.testing.assert_array_equal(found.astype(int) + shift, wanted)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_a_cubic_stays_within_its_type(dtype: Any) -> None:
    """ONNX Runtime has it for floats only: its results, truncated and limited."""
    x = extremes(dtype, 1, 1, 6, 8)
    model = resize(x, [1, 1, 1.5, 1.5], mode="cubic")
    of_floats = resize(x.astype(np.float32), [1, 1, 1.5, 1.5], mode="cubic")
    exact = ort_run(of_floats, {"x": x.astype(np.float32)})["y0"]
    assert exact.max() > np.iinfo(dtype).max and exact.min() < np.iinfo(dtype).min
    found = run(model, x)
    assert found.dtype == dtype
    limits = np.iinfo(dtype)
    nearly_the_same(found, np.trunc(np.clip(exact, limits.min, limits.max)))


@pytest.mark.parametrize("value", [8388609, 16777217, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("antialias", [0, 1])
def test_large_integers_are_summed_up_in_float64(value: int, antialias: int) -> None:
    x = np.full((1, 1, 2, 6), value, np.int32)
    found = run(resize(x, [1, 1, 1, 0.5], mode="linear", antialias=antialias), x)
    np.testing.assert_array_equal(found, x[..., :3])


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.int64])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_samples_of_integers_are_summed_up_before_they_are_truncated(dtype: Any, mode: str) -> None:
    """ONNX Runtime has it for floats only."""
    x = extremes(np.uint8, 1, 2, 5, 6).astype(dtype)
    grid = RANDOM.uniform(-1, 1, (1, 4, 3, 2)).astype(np.float32)
    found, exact = sampled(x, grid, mode)
    limits = np.iinfo(dtype)
    nearly_the_same(found, np.trunc(np.clip(exact, limits.min, limits.max)))


def test_samples_of_a_plain_image_are_plain() -> None:
    x = np.full((1, 1, 2, 50), 120, np.uint8)
    grid = np.stack(np.meshgrid(np.linspace(-1, 1, 99), [0]), -1)[None].astype(np.float32)
    assert (sampled(x, grid, "linear")[0] == 120).all()


def test_the_nearest_integers_are_exact() -> None:
    x = RANDOM.integers(2**62, 2**63 - 1, (1, 1, 3, 4))
    x[0, 0, 1, 1] = np.iinfo(np.int64).max
    corners = np.stack(np.meshgrid(np.linspace(-1, 1, 4), np.linspace(-1, 1, 3)), -1)
    grid = corners[None].astype(np.float32)
    model = single("GridSample", {"x": x, "g": grid}, opset=20, mode="nearest", align_corners=1)
    found = run_graph(import_model(model), {"x": x, "g": grid})["y0"]
    np.testing.assert_array_equal(found, x)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_bools_are_not_interpolated(mode: str) -> None:
    x, grid = np.ones((1, 1, 3, 4), np.bool_), floats(1, 2, 2, 2)
    with pytest.raises(UnsupportedModelError, match=f"mode {mode} for tensors of bool"):
        import_model(resize(x, [1, 1, 2, 2], mode=mode))
    model = single("GridSample", {"x": x, "g": grid}, opset=20, mode=mode)
    with pytest.raises(UnsupportedModelError, match="images of bool"):
        import_model(model)
    nearest = resize(x, [1, 1, 2, 2], mode="nearest")
    assert run(nearest, x).shape == (1, 1, 6, 8)
