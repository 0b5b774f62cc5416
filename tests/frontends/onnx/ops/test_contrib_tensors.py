"""Operators of ONNX Runtime's own domain that are nearly standard ones, compared with it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import farkas as fk
from frontends.onnx import import_model
from frontends.onnx.ops.contrib_schemas import DOMAIN
from poly.errors import ModelError, UnsupportedModelError
from tests.frontends.onnx.onnx_support import agree, close, floats, ort_run, run_graph, single

X = floats(2, 3, 8)


def contrib(operator: str, inputs: dict[str, np.ndarray], **given: object) -> onnx.ModelProto:
    return single(operator, inputs, domain=DOMAIN, **given)  # type: ignore[arg-type]


def check(operator: str, *arrays: np.ndarray, constants: tuple = (), **given: object) -> None:
    """Compare an operator, on inputs and then constants."""
    inputs = {f"x{n}": a for n, a in enumerate(arrays)}
    known = {f"c{n}": np.asarray(a) for n, a in enumerate(constants)}
    agree(contrib(operator, inputs, constants=known, **given), inputs)


def refused(model: onnx.ModelProto, kind: type[Exception] = ModelError) -> str:
    with pytest.raises(kind) as caught:
        import_model(model)
    return str(caught.value)


def fails(operator: str, *arrays: np.ndarray, **given: object) -> str:
    """The message of an operator that is refused, without its origin."""
    model = contrib(operator, {f"x{n}": a for n, a in enumerate(arrays)}, **given)
    told = refused(model)
    assert told.startswith(f"{operator} 'node' (opset 1): ")
    return told.removeprefix(f"{operator} 'node' (opset 1): ")


# --- what moves --------------------------------------------------------------------------------


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [None, 0, -1, 2, 9])
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_triangles(upper: int, k: int | None, dtype: type) -> None:
    constants = () if k is None else (np.array(k),)
    check("Trilu", X.astype(dtype), constants=constants, upper=upper)


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("aligned", [0, 1])
def test_samples_of_images(mode: str, padding: str, aligned: int) -> None:
    grid = floats(2, 4, 3, 2, low=-1.2, high=1.2)
    check(
        "GridSample", floats(2, 3, 5, 6), grid, mode=mode, padding_mode=padding,
        align_corners=aligned,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_slices_by_vectors_of_indices(dtype: type) -> None:
    check("GatherND", X, np.array([[1, 2], [0, -1]], dtype))
    check("GatherND", X, np.array([[[1], [0]]], dtype))


@pytest.mark.parametrize("axis", [0, 2, 3, -1, -4])
def test_axes_of_one_element(axis: int) -> None:
    check("ExpandDims", X, constants=(np.array(axis, np.int32),))


@pytest.mark.parametrize(("bounds", "dtype"), [
    ((2, 9), np.int64), ((2, 9, 3), np.int32), ((9, 2, -2), np.int16), ((0.5, 3.0), np.float32),
    ((1.0, 0.0, -0.25), np.float64),
])  # fmt: skip
def test_ranges(bounds: tuple, dtype: type) -> None:
    constants = {f"c{n}": np.array(b, dtype) for n, b in enumerate(bounds)}
    model = contrib("Range", {"x": np.array([1])}, constants=constants, order=[*constants])
    agree(model, {"x": np.array([1])})


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
@pytest.mark.parametrize("rows", [False, True])
def test_pads(mode: str, rows: bool) -> None:
    pads = np.array([0, 1, 2, 1, 0, 2])
    check("Pad", X, constants=(pads[None] if rows else pads,), mode=mode)


@pytest.mark.parametrize("shape", [(), (1,)])
def test_pads_of_a_value(shape: tuple) -> None:
    value = np.full(shape, 1.5, np.float32)
    check("Pad", X, constants=(np.array([0, 1, 2, 1, 0, -2]), value))


def test_distinct_elements() -> None:
    x = np.array([2, 1, 1, 3, 4, 3], np.float32)
    model = contrib("Unique", {"x": x}, outputs=3)
    found, expected = fk.compile_onnx(model).run({"x": x}), ort_run(model, {"x": x})
    close(found, expected)
    assert fails("Unique", X, outputs=3) == "an operand of rank 3"


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("step", [1, 2])
def test_slices_of_a_size(dim: int, step: int) -> None:
    check("UnfoldTensor", floats(5, 4, 7), dim=dim, size=3, step=step)


def test_slices_that_are_too_long() -> None:
    told = fails("UnfoldTensor", X, size=9)
    assert told == "slices of 9 elements in steps of 1 of [2, 3, 8]"


def test_shapes_of_what_moves() -> None:
    assert fails("Pad", X, np.zeros((2, 3), np.int64)) == "pads of shape [2, 3]"
    assert fails("ExpandDims", X, np.zeros(2, np.int32)) == "an axis of shape [2]"


# --- products and distances --------------------------------------------------------------------


@pytest.mark.parametrize("shapes", [((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5))])
@pytest.mark.parametrize("kinds", [(np.int16, np.int16), (np.uint16, np.uint16)])
def test_products_of_16_bits(shapes: tuple, kinds: tuple) -> None:
    """ONNX Runtime has a kernel for signed operands only; numpy is the judge of others."""
    draw = np.random.default_rng(1).integers
    a, b = (draw(-90 if k == np.int16 else 0, 999, s).astype(k)
            for s, k in zip(shapes, kinds, strict=True))  # fmt: skip
    if kinds[0] == np.int16:
        check("MatMulInteger16", a, b)
        return
    found = run_graph(import_model(contrib("MatMulInteger16", {"a": a, "b": b})), {"a": a, "b": b})
    close(found, {"y0": (a.astype(np.uint32) @ b.astype(np.uint32))})


@pytest.mark.parametrize("zeros", [False, True])
def test_products_of_elements(zeros: bool) -> None:
    """ONNX Runtime has no kernel for CPUs; numpy is the judge."""
    draw = np.random.default_rng(1).integers
    a, b = (draw(0, 255, s).astype(np.uint8) for s in ((3, 4), (4,)))
    constants = {"za": np.uint8(7), "zb": np.uint8(200)} if zeros else {}
    order = ["a", "za", "b", "zb"] if zeros else ["a", "", "b"]
    model = contrib(
        "MulInteger", {"a": a, "b": b},
        constants={n: np.array(v) for n, v in constants.items()}, order=order,
    )  # fmt: skip
    wide = [v.astype(np.int32) - z * zeros for v, z in ((a, 7), (b, 200))]
    close(run_graph(import_model(model), {"a": a, "b": b}), {"y0": wide[0] * wide[1]})


@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_distances(metric: str, dtype: type) -> None:
    a, b = floats(4, 6, dtype=dtype), floats(5, 6, dtype=dtype)
    check("CDist", a, b, metric=metric)


def test_distances_that_do_not_exist() -> None:
    model = contrib("CDist", {"a": floats(4, 6), "b": floats(5, 6)}, metric="cosine")
    assert "CDist with metric 'cosine'" in refused(model, UnsupportedModelError)
    assert fails("CDist", floats(4, 6), floats(5, 7)) == "rows of [4, 6] and [5, 7]"


@pytest.mark.parametrize("shape", [(3, 3), (2, 4, 4)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_inverses(shape: tuple, dtype: type) -> None:
    x = floats(*shape, dtype=dtype) + 4 * np.eye(shape[-1], dtype=dtype)
    model = contrib("Inverse", {"x": x})
    close(fk.compile_onnx(model).run({"x": x}), ort_run(model, {"x": x}), rtol=1e-4)
    told = fails("Inverse", X)
    assert told == "an operand of shape [2, 3, 8] has no square matrices"


# --- elementwise -------------------------------------------------------------------------------


def test_biases() -> None:
    """ONNX Runtime has no kernels for CPUs; numpy and standard operators are the judges."""
    bias, skip = floats(8), floats(2, 3, 8)
    inputs = {"x": X, "b": bias, "s": skip}
    found = run_graph(import_model(contrib("BiasAdd", inputs)), inputs)
    close(found, {"y0": X + bias + skip})
    inputs = {"x": X, "b": bias}
    left, right = np.split(X + bias, 2, axis=-1)
    gelu = ort_run(contrib("Gelu", {"x": right}), {"x": right})["y0"]
    found = run_graph(import_model(contrib("BiasSplitGelu", inputs)), inputs)
    close(found, {"y0": left * gelu})


def test_biases_that_do_not_fit() -> None:
    assert fails("BiasAdd", X, floats(7), X) == "a bias of shape [7] for [2, 3, 8]"
    assert fails("BiasAdd", X, floats(8), floats(3, 8)) == "shapes [2, 3, 8] and [3, 8] differ"
    assert fails("BiasSplitGelu", floats(2, 7), floats(7)) == "7 columns have no halves"
