"""RotaryEmbedding of ONNX Runtime's own domain, compared with it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import farkas as fk
from frontends.onnx import import_model
from frontends.onnx.ops.contrib_schemas import DOMAIN
from poly.errors import ModelError, UnsupportedModelError
from tests.frontends.onnx.onnx_support import agree, close, floats, ort_run, single

BATCH, ROWS, HEADS, WIDTH = 2, 3, 4, 8
IDS = {"number": np.array(2), "first": np.array([2]), "each": np.array([[0, 1, 2], [5, 9, 3]])}


def rotary(
    ids: np.ndarray, rank: int = 3, turned: int = WIDTH, dtype: type = np.float32, **given: object
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model and its inputs."""
    shape = (BATCH, ROWS, HEADS * WIDTH) if rank == 3 else (BATCH, HEADS, ROWS, WIDTH)
    angles = floats(10, turned // 2)
    tables = {"c": np.cos(angles).astype(dtype), "s": np.sin(angles).astype(dtype)}
    tables |= {n: given.pop(n) for n in "cs" if n in given}
    if turned != WIDTH:
        given = {"rotary_embedding_dim": turned, "num_heads": HEADS} | given
    inputs = {"x": floats(*shape, dtype=dtype), "p": ids}
    model = single("RotaryEmbedding", inputs, constants=tables, domain=DOMAIN, **given)
    return model, inputs


@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("turned", [WIDTH, 4])
@pytest.mark.parametrize("interleaved", [0, 1])
def test_pairs(ids: str, rank: int, turned: int, interleaved: int) -> None:
    agree(*rotary(IDS[ids], rank, turned, interleaved=interleaved))


def test_attributes() -> None:
    agree(*rotary(IDS["each"], num_heads=HEADS, scale=0.5))
    agree(*rotary(IDS["each"], dtype=np.float16), rtol=2e-3)


def test_any_size() -> None:
    model, _ = rotary(IDS["each"])
    for value in (*model.graph.input, *model.graph.output):
        for dim, name in zip(value.type.tensor_type.shape.dim, ("batch", "rows"), strict=False):
            dim.dim_param = name
    network = fk.compile_onnx(model)
    for batch, rows in ((2, 3), (3, 1), (1, 9)):
        ids = np.arange(batch * rows).reshape(batch, rows)
        inputs = {"x": floats(batch, rows, HEADS * WIDTH), "p": ids}
        close(network.run(inputs), ort_run(model, inputs))


def refused(model: onnx.ModelProto, kind: type[Exception] = ModelError) -> str:
    with pytest.raises(kind) as caught:
        import_model(model)
    return str(caught.value)


@pytest.mark.parametrize(("given", "told"), [
    ({"ids": np.array([[1, 2, 3]])}, "position_ids of shape [1, 3], not [2, 3]"),
    ({"s": floats(10, 3)}, "tables of shape [10, 4] and [10, 3] for 8 numbers"),
    ({"c": floats(10, 3), "s": floats(10, 3)}, "32 columns do not make heads of 6"),
    ({"num_heads": 3}, "32 columns do not make heads of 10"),
    ({"rotary_embedding_dim": 8}, "rotary_embedding_dim needs num_heads"),
    ({"turned": 3}, "3 of 8 numbers cannot be turned in pairs"),
])  # fmt: skip
def test_operands_that_do_not_fit(given: dict, told: str) -> None:
    model, _ = rotary(**{"ids": IDS["each"]} | given)
    assert refused(model) == f"RotaryEmbedding 'node' (opset 1): {told}"


def test_packed_sentences() -> None:
    model, _ = rotary(IDS["each"], is_packed_batching=1)
    assert "is_packed_batching" in refused(model, UnsupportedModelError)
