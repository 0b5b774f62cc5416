"""Networks with open sizes, and the check that one compilation serves all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnx import numpy_helper as nh

import farkas as fk

F, L = TensorProto.FLOAT, TensorProto.INT64
node = helper.make_node


def weights(*shape: int) -> np.ndarray:
    """Small random numbers, the same ones each time."""
    rng = np.random.default_rng(sum(shape))
    return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)


@dataclass(frozen=True)
class Network:
    """A model with open sizes, and the least and the greatest value of each."""

    nodes: Sequence[onnx.NodeProto]
    inputs: Mapping[str, tuple[int, Sequence[Any]]]
    outputs: Sequence[str]
    constants: Mapping[str, np.ndarray]
    sizes: Mapping[str, tuple[int, int]]
    opset: int = 17

    @property
    def model(self) -> onnx.ModelProto:
        graph = helper.make_graph(
            list(self.nodes),
            "open",
            [helper.make_tensor_value_info(n, t, s) for n, (t, s) in self.inputs.items()],
            [onnx.ValueInfoProto(name=n) for n in self.outputs],
            [nh.from_array(a, n) for n, a in self.constants.items()],
        )
        imports = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=imports, ir_version=9)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def random_inputs(network: Network, rng: np.random.Generator) -> dict[str, np.ndarray]:
    sizes = {n: int(rng.integers(low, high + 1)) for n, (low, high) in network.sizes.items()}
    arrays = {}
    for name, (number, shape) in network.inputs.items():
        extents = [sizes.get(e, e) for e in shape]
        if number == F:
            arrays[name] = rng.standard_normal(extents).astype(np.float32)
        else:
            arrays[name] = rng.integers(0, 2 if name == "mask" else 11, extents)
            arrays[name][..., 0] = 1
    return arrays


def one_compilation(network: Network, steps: int = 12, rtol: float = 1e-4) -> fk.Network:
    """Run a network at random sizes beside ONNX Runtime; only the first run may compile."""
    rng, model = np.random.default_rng(3), network.model
    session = onnxruntime.InferenceSession(model.SerializeToString())
    compiled = fk.compile_onnx(model)
    assert not compiled.is_whole
    kernels = 0
    for step in range(steps):
        arrays = random_inputs(network, rng)
        found, expected = compiled.run(arrays), session.run(None, arrays)
        for output, wanted in zip(network.outputs, expected, strict=True):
            assert found[output].shape == wanted.shape and found[output].dtype == wanted.dtype
            np.testing.assert_allclose(found[output], wanted, rtol=rtol, atol=1e-5)
        if step == 0:
            kernels = compiled.report.kernels
        assert compiled.report.kernels == kernels, f"compiled again: {compiled.conditions}"
    return compiled
