"""Weights of few bits in blocks, of ONNX Runtime's own domain, compared with it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import farkas as fk
from frontends.onnx import import_model
from frontends.onnx.ops.contrib_schemas import DOMAIN
from poly.errors import ModelError, UnsupportedModelError
from tests.frontends.onnx.onnx_support import agree, close, floats, ort_run, single

COLUMNS = 5


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).integers(256, size=shape).astype(np.uint8)


def product(
    rows: tuple[int, ...] = (3,),
    inner: int = 64,
    bits: int = 4,
    size: int = 16,
    zeros: str = "",
    flat: bool = False,
    bias: bool = False,
    dtype: type = np.float32,
    **given: object,
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model and its inputs."""
    blocks = -(-inner // size)
    inputs = {"a": floats(*rows, inner, dtype=dtype)}
    constants = {
        "w": draw(COLUMNS, blocks, size * bits // 8),
        "s": floats(COLUMNS, blocks, low=0.1, high=0.5, dtype=dtype),
    }
    if zeros:
        constants["z"] = (
            draw(COLUMNS, -(-blocks * bits // 8)) if zeros == "packed"
            else floats(COLUMNS, blocks, low=4, high=9, dtype=dtype)
        )  # fmt: skip
    if flat:
        constants |= {n: constants[n].reshape(-1) for n in ("s", "z") if n in constants}
    if bias:
        constants["c"] = floats(COLUMNS, dtype=dtype)
    constants |= {n: given.pop(n) for n in ("g", *constants) if n in given}
    order = ["a", "w", "s", *(n if n in constants else "" for n in ("z", "g", "c"))]
    while not order[-1]:
        order.pop()
    settings = {"K": inner, "N": COLUMNS, "bits": bits, "block_size": size} | given
    model = single(
        "MatMulNBits", inputs, constants=constants, order=order, domain=DOMAIN, **settings
    )
    return model, inputs


@pytest.mark.parametrize("rows", [(), (3,), (2, 3), (20,), (2, 3, 4)])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", ["", "packed"])
@pytest.mark.parametrize("inner", [64, 48, 40])
def test_products(rows: tuple[int, ...], bits: int, zeros: str, inner: int) -> None:
    agree(*product(rows, inner, bits, zeros=zeros), rtol=1e-4)


@pytest.mark.parametrize("rows", [(1,), (20,)])
@pytest.mark.parametrize("given", [
    {"bias": True}, {"zeros": "floats"}, {"size": 32, "inner": 80, "zeros": "packed"},
    {"inner": 33}, {"bias": True, "zeros": "packed", "accuracy_level": 1},
])  # fmt: skip
def test_operands_that_may_be_omitted(rows: tuple[int, ...], given: dict) -> None:
    agree(*product(rows, **given), rtol=1e-4)


@pytest.mark.parametrize("zeros", ["", "packed", "floats"])
def test_scales_and_zero_points_as_vectors(zeros: str) -> None:
    agree(*product(zeros=zeros, flat=True, inner=48), rtol=1e-4)


def test_half_floats() -> None:
    agree(*product(dtype=np.float16, bias=True, zeros="packed"), rtol=4e-3)


def test_blocks_that_are_adjacent() -> None:
    agree(*product(g=np.arange(64, dtype=np.int32) // 16), rtol=1e-4)
    model, _ = product(g=np.arange(64, dtype=np.int32)[::-1] // 16)
    assert "blocks that are not adjacent" in refused(model, UnsupportedModelError)


def refused(model: onnx.ModelProto, kind: type[Exception] = ModelError) -> str:
    with pytest.raises(kind) as caught:
        import_model(model)
    return str(caught.value)


@pytest.mark.parametrize(("given", "told"), [
    ({"w": draw(5, 4, 4)}, "input number 2 has shape [5, 4, 4], not [5, 4, 8]"),
    ({"s": floats(4, 5)}, "input number 3 has shape [4, 5], not [5, 4]"),
    ({"z": draw(5, 3), "zeros": "packed"}, "input number 4 has shape [5, 3], not [5, 2]"),
    ({"c": floats(4), "bias": True}, "a bias of shape [4] for 5 columns"),
    ({"K": 60}, "A has shape [3, 64], but K is 60"),
    ({"N": 0}, "K is 64 and N is 0"),
    ({"block_size": 8}, "block_size is 8, not a power of 2 that is at least 16"),
])  # fmt: skip
def test_operands_that_do_not_fit(given: dict, told: str) -> None:
    assert refused(product(**given)[0]) == f"MatMulNBits 'node' (opset 1): {told}"


@pytest.mark.parametrize(("given", "told"), [
    ({"bits": 3, "size": 16}, "weights of 3 bits"), ({"weight_prepacked": 1}, "packed for a GPU"),
])  # fmt: skip
def test_what_is_not_supported(given: dict, told: str) -> None:
    assert told in refused(product(**given)[0], UnsupportedModelError)


def test_any_number_of_rows() -> None:
    """Few rows and many are computed by different programs, of any size."""
    model, _ = product()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    network = fk.compile_onnx(model)
    for rows in (3, 5, 13, 30, 2):
        inputs = {"a": floats(rows, 64)}
        close(network.run(inputs), ort_run(model, inputs), rtol=1e-4)


# --- rows --------------------------------------------------------------------------------------

WHICH = {
    "one": np.array(3), "several": np.array([[0, 6, 2], [5, 1, 1]]),
    "from the end": np.array([-1, -7, 0]), "outside": np.array([7, -8, 3]),
}  # fmt: skip


def gathered(
    which: np.ndarray, bits: int = 4, zeros: bool = False, shape: tuple = (7, 48), size: int = 16,
    dtype: type = np.float32, **given: object,
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:  # fmt: skip
    parts = 8 // bits
    blocks = [*shape[:-1], -(-shape[-1] // size)]
    constants = {
        "d": draw(*shape[:-1], shape[-1] // parts),
        "s": floats(*blocks, low=0.1, high=0.5, dtype=dtype),
    }
    if zeros:
        constants["z"] = draw(*blocks[:-1], -(-blocks[-1] // parts))
    constants |= {n: given.pop(n) for n in constants if n in given}
    order = ["d", "i", "s", *(["z"] if zeros else [])]
    settings = {"bits": bits, "block_size": size} | given
    model = single(
        "GatherBlockQuantized", {"i": which}, constants=constants, order=order, domain=DOMAIN,
        **settings,
    )  # fmt: skip
    return model, {"i": which}


@pytest.mark.parametrize("which", WHICH)
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_rows(which: str, bits: int, zeros: bool) -> None:
    agree(*gathered(WHICH[which].astype(np.int64), bits, zeros))


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_slices(bits: int, zeros: bool) -> None:
    which = WHICH["several"].astype(np.int32)
    agree(*gathered(which, bits, zeros, shape=(7, 3, 40), quantize_axis=-1))


def test_rows_of_half_floats() -> None:
    agree(*gathered(WHICH["several"], dtype=np.float16), rtol=2e-3)


@pytest.mark.parametrize(("given", "told"), [
    ({"gather_axis": 1}, "elements of uint8 are gathered along the first of several axes"),
    ({"quantize_axis": 0}, "elements of uint8 have blocks along the last axis"),
    ({"s": floats(7, 2)}, "scales of shape [7, 2], not [7, 3]"),
    ({"z": draw(7, 3), "zeros": True}, "zero points of shape [7, 3], not [7, 2]"),
])  # fmt: skip
def test_rows_that_do_not_fit(given: dict, told: str) -> None:
    model, _ = gathered(WHICH["one"], **given)
    assert refused(model) == f"GatherBlockQuantized 'node' (opset 1): {told}"


NARROW = {"int4": (onnx.TensorProto.INT4, -8), "uint4": (onnx.TensorProto.UINT4, 0)}


def narrow(name: str, kind: str, shape: tuple[int, ...]) -> onnx.TensorProto:
    """A tensor of integers of 4 bits."""
    number, low = NARROW[kind]
    values = np.random.default_rng(5).integers(low, low + 16, shape)
    return onnx.helper.make_tensor(name, number, shape, values.reshape(-1).tolist())


@pytest.mark.parametrize("kind", NARROW)
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("first", "axis"), [(0, 1), (0, 2), (1, 2), (2, 1), (-1, 0), (1, 0)])
def test_elements_of_4_bits(kind: str, zeros: bool, first: int, axis: int) -> None:
    shape = (5, 33, 7) if axis == 1 else (5, 6, 40) if axis == 2 else (40, 5, 6)
    blocks = tuple(-(-e // 16) if a == axis else e for a, e in enumerate(shape))
    which = np.array([[0, 4], [2, -1]])
    model, _ = gathered(which, zeros=zeros, gather_axis=first, quantize_axis=axis)
    stored = {t.name: t for t in model.graph.initializer}
    stored["d"].CopyFrom(narrow("d", kind, shape))
    stored["s"].CopyFrom(onnx.numpy_helper.from_array(floats(*blocks, low=0.1, high=0.5), "s"))
    if zeros:
        stored["z"].CopyFrom(narrow("z", kind, blocks))
    agree(model, {"i": which})


def test_scalars_have_no_rows() -> None:
    model, _ = gathered(WHICH["one"])
    model.graph.initializer[0].CopyFrom(narrow("d", "int4", ()))
    assert "a scalar has no elements to gather" in refused(model)


# --- codes of 4 bits ---------------------------------------------------------------------------


def coded(
    kind: int, rows: tuple[int, ...] = (3,), inner: int = 48, dtype: type = np.float32,
    **given: object,
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:  # fmt: skip
    count, inputs = COLUMNS * inner, {"a": floats(*rows, inner, dtype=dtype)}
    constants = {"b": draw(-(-count // 2)), "s": floats(-(-count // 16), dtype=dtype)}
    settings = {"K": inner, "N": COLUMNS, "block_size": 16, "quant_type": kind} | given
    return single("MatMulBnb4", inputs, constants=constants, domain=DOMAIN, **settings), inputs


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("rows", [(1,), (20,), (2, 3)])
@pytest.mark.parametrize("inner", [48, 40, 33])
def test_codes(kind: int, rows: tuple[int, ...], inner: int) -> None:
    agree(*coded(kind, rows, inner), rtol=1e-4)


def test_codes_that_are_refused() -> None:
    assert "MatMulBnb4 for training" in refused(coded(1, transB=0)[0], UnsupportedModelError)
    told = "MatMulBnb4 'node' (opset 1): "
    assert refused(coded(2)[0]) == told + "K is 48, N is 5, and quant_type 2"
    assert refused(coded(1, N=6)[0]) == told + "weights [120] and scales [15] for 288"
