"""What mutants found, each as a small model that is refused with a reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import pytest

import farkas as fk
from frontends.onnx import OpaqueCall
from tests.frontends.onnx.onnx_support import floats, single


def claiming(model: onnx.ModelProto, element_type: int) -> onnx.ModelProto:
    """The model, which says that its output has this element type."""
    model.graph.output[0].type.tensor_type.elem_type = element_type
    return model


def deformed(**attributes: object) -> onnx.ModelProto:
    arrays = {"x": floats(1, 1, 3, 3), "w": floats(1, 1, 2, 2), "o": floats(1, 8, 2, 2)}
    return single("DeformConv", arrays, opset=19, **attributes)


REFUSED: Mapping[str, tuple[onnx.ModelProto, str]] = {
    "a claim about what numpy computes": (
        claiming(single("NonZero", {"x": floats(2, 3)}), onnx.TensorProto.FLOAT),
        "'y0' is int64, but the model says float",
    ),
    "a switch that is neither on nor off": (
        single("ReduceMin", {"x": floats(2, 3)}, keepdims=-3),
        "keepdims is -3, not 0 or 1",
    ),
    "kernel_shape of a DeformConv": (deformed(kernel_shape=[2, 0]), "differs from the weights'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    model, message = REFUSED[name]
    inputs = [i.type.tensor_type for i in model.graph.input]
    arrays = {
        info.name: np.ones(
            [d.dim_value for d in t.shape.dim], onnx.helper.tensor_dtype_to_np_dtype(t.elem_type)
        )
        for info, t in zip(model.graph.input, inputs, strict=True)
    }
    with pytest.raises(fk.ModelError, match=message):
        fk.compile_onnx(model, threads=1).run(arrays)


def test_numpy_without_enough_memory() -> None:
    def run(*_: object) -> Sequence[np.ndarray]:
        raise MemoryError("no 2 GiB")

    call = OpaqueCall("NonZero", "NonZero 'n'", ("x",), ("y",), run)
    with pytest.raises(fk.ModelError, match="NonZero 'n': there is not enough memory: no 2 GiB"):
        call([np.ones(3)])
