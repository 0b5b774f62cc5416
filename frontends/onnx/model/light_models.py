"""The light models that come with the onnx package: real networks without their weights.

Their weights are constants (ConstantOfShape), so that each file has some kilobytes; the output
for one fixed input is stored with each.  Equal weights hide mistakes in the order of elements, and
so `randomised` gives a model weights that differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto

from frontends.onnx.core.tensors import tensor_array
from frontends.onnx.model.loading import load
from poly.errors import ModelError

_PREFIX = "light_"


def _folder() -> Path:
    return Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def light_models() -> tuple[str, ...]:
    """Names of the models that the installed onnx package has, sorted; perhaps none."""
    return tuple(sorted(p.stem[len(_PREFIX) :] for p in _folder().glob(f"{_PREFIX}*.onnx")))


def load_light(name: str) -> tuple[Path, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The path of a light model, the fixed inputs and the outputs stored for them.

    Raises
    ------
    ModelError : if the onnx package has no such model, or not all of its files.
    """
    path = _folder() / f"{_PREFIX}{name}.onnx"
    if name not in light_models():
        raise ModelError(
            f"the installed onnx package has no light model '{name}'; "
            f"it has {', '.join(light_models()) or 'none'}"
        )
    graph = load(path).model.graph
    inputs = model_inputs(graph)
    outputs = {}
    for position, info in enumerate(graph.output):
        file = path.with_name(f"{path.stem}_output_{position}.pb")
        tensor = onnx.TensorProto()
        try:
            tensor.ParseFromString(file.read_bytes())
        except (OSError, ValueError) as error:
            raise ModelError(f"the stored output '{file.name}' cannot be read") from error
        outputs[info.name] = tensor_array(tensor, file.name, None)
    return path, inputs, outputs


def model_inputs(graph: onnx.GraphProto) -> dict[str, np.ndarray]:
    """The inputs for which the outputs are stored: 0 to 1 in equal steps."""
    stored = {t.name for t in graph.initializer}
    inputs = {}
    for info in graph.input:
        if info.name not in stored:
            shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
            count = int(np.prod(shape))
            ramp = np.arange(count).reshape(shape) / count
            inputs[info.name] = ramp.astype(np.float32)
    return inputs


def randomised(model: ModelProto, seed: int = 0) -> ModelProto:
    """A copy of a model with random weights, as initializers, in place of constant ones.

    Weights of convolutions and products are normal with the variance that keeps activations in
    scale (He); variances and scales of normalisations are positive; biases and means are small.
    Other constants are left alone.
    """
    result = ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    random = np.random.default_rng(seed)
    uses = _uses(graph)
    stored = {t.name: t for t in graph.initializer}
    shapes: dict[str, tuple[int, ...]] = {}
    for node in graph.node:
        if node.op_type == "ConstantOfShape" and node.input[0] in stored:
            dims = tensor_array(stored[node.input[0]], "the shape", None)
            shapes[node.output[0]] = tuple(int(d) for d in dims)
    filled = set(shapes)
    for name, tensor in stored.items():
        if tensor.data_type == onnx.TensorProto.FLOAT and tensor.dims:
            shapes[name] = tuple(tensor.dims)
    weights = {}
    for name in sorted(shapes):
        drawn = _draw(random, name, shapes[name], uses)
        if drawn is not None:
            weights[name] = drawn
    kept = [n for n in graph.node if not (set(n.output) & filled & weights.keys())]
    tensors = [t for t in graph.initializer if t.name not in weights]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(kept)
    graph.initializer.extend(tensors)
    for name, array in weights.items():
        graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return result


def _uses(graph: onnx.GraphProto) -> Mapping[str, tuple[NodeProto, int]]:
    """For each value its first use that is not a reshape: the node and the input's number."""
    first: dict[str, tuple[NodeProto, int]] = {}
    for node in reversed(graph.node):
        for position, name in enumerate(node.input):
            through = node.op_type in ("Unsqueeze", "Squeeze", "Reshape", "Identity")
            if through and position == 0 and node.output[0] in first:
                first[name] = first[node.output[0]]
            else:
                first[name] = (node, position)
    return first


def _draw(
    random: np.random.Generator,
    name: str,
    shape: tuple[int, ...],
    uses: Mapping[str, tuple[NodeProto, int]],
) -> np.ndarray | None:
    """Random values that suit the use of a weight; None for a value that is not a weight."""
    if name not in uses:
        return None
    node, position = uses[name]
    small = random.normal(0.0, 0.1, shape).astype(np.float32)
    positive = random.uniform(0.6, 1.0, shape).astype(np.float32)
    if node.op_type == "BatchNormalization" and 1 <= position <= 4:
        if position == 1:  # below 1, so that sums of residuals do not grow without bound
            return positive - np.float32(0.2)
        return positive + np.float32(0.2) if position == 4 else small
    if node.op_type in ("Conv", "Gemm", "MatMul") and position == 1:
        if node.op_type == "Conv":
            inputs = int(np.prod(shape[1:]))
        else:
            transposed = any(a.name == "transB" and a.i for a in node.attribute)
            inputs = shape[-1] if transposed else shape[-2] if len(shape) > 1 else shape[0]
        spread = np.sqrt(2.0 / max(inputs, 1))
        return random.normal(0.0, spread, shape).astype(np.float32)
    if node.op_type in ("Conv", "Gemm") and position == 2:
        return small
    if node.op_type == "Mul":
        return positive
    return small if node.op_type == "Add" else None
