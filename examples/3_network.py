"""An ONNX network, compiled as a whole: here one of two layers that is made on the spot."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import farkas as fk

rng = np.random.default_rng(0)
W1, W2 = rng.standard_normal((64, 128)), rng.standard_normal((128, 10))
graph = helper.make_graph(
    [
        helper.make_node("MatMul", ["x", "W1"], ["h"], name="first"),
        helper.make_node("Relu", ["h"], ["a"], name="activation"),
        helper.make_node("MatMul", ["a", "W2"], ["y"], name="second"),
    ],
    "perceptron",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 64])],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 10])],
    [
        numpy_helper.from_array(W1.astype(np.float32), "W1"),
        numpy_helper.from_array(W2.astype(np.float32), "W2"),
    ],
)
model = fk.compile_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))

for batch in (1, 32, 7):  # one compilation serves all of them
    x = rng.random((batch, 64), np.float32)
    y = model.run({"x": x})["y"]
    assert np.allclose(y, np.maximum(x @ W1, 0) @ W2, rtol=1e-3, atol=1e-3)

print(f"{model.report.kernels} kernels, {model.report.calls} calls")
print(model.specialize(batch=32).explain())
