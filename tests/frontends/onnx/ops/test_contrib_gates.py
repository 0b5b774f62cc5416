"""Gates of ONNX Runtime's own domain, compared with it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from frontends.onnx import import_model
from frontends.onnx.ops.contrib_schemas import DOMAIN
from poly.errors import ModelError, UnsupportedModelError
from tests.frontends.onnx.onnx_support import agree, floats, single

X, GATE = floats(2, 3, 8), floats(2, 3, 8)


def contrib(operator: str, inputs: dict[str, np.ndarray], **given: object) -> onnx.ModelProto:
    return single(operator, inputs, domain=DOMAIN, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [{}, {"activation": "swish"}, {"activation": "sigmoid"},
                                   {"epsilon": 0.1}], ids=str)  # fmt: skip
@pytest.mark.parametrize("width", [8, 4])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_norms(given: dict, width: int, dtype: type) -> None:
    inputs = {"x": X.astype(dtype), "s": floats(width, dtype=dtype), "g": GATE.astype(dtype)}
    agree(contrib("GatedRMSNorm", inputs, **given), inputs, 1e-5 if dtype == np.float32 else 2e-3)


def test_sums() -> None:
    inputs = {"x": X, "y": GATE, "g": floats(2, 3, 1)}
    agree(contrib("GatedAdd", inputs), inputs)


@pytest.mark.parametrize("scale", [None, 2.0])
def test_activations(scale: float | None) -> None:
    inputs = {"x": X} | ({} if scale is None else {"s": np.array(scale, np.float32)})
    agree(contrib("ScaledSiLU", inputs, alpha=0.5), inputs)


@pytest.mark.parametrize(("operator", "arrays", "given", "told"), [
    ("GatedRMSNorm", (X, floats(8), X), {"activation": "relu"}, "activation 'relu' does not exist"),
    ("GatedRMSNorm", (X, floats(3), X), {}, "a scale of shape [3] for [2, 3, 8]"),
    ("GatedRMSNorm", (X, floats(8), floats(3, 8)), {}, "a gate of shape [3, 8] for [2, 3, 8]"),
    ("GatedAdd", (X, X, X), {}, "shapes [2, 3, 8], [2, 3, 8], [2, 3, 8] do not fit"),
    ("ScaledSiLU", (X, floats(8)), {}, "a scale of shape [8]"),
])  # fmt: skip
def test_what_does_not_fit(operator: str, arrays: tuple, given: dict, told: str) -> None:
    model = contrib(operator, {f"x{n}": a for n, a in enumerate(arrays)}, **given)
    with pytest.raises(ModelError) as caught:
        import_model(model)
    assert str(caught.value) == f"{operator} 'node' (opset 1): {told}"


def test_gates_that_are_products() -> None:
    model = contrib("GatedAdd", {"x": X, "y": X, "g": floats(2, 3, 4), "w": floats(4, 1)})
    with pytest.raises(UnsupportedModelError, match="GatedAdd with gate_weight"):
        import_model(model)
