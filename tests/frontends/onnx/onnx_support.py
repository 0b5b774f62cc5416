"""What the tests of the ONNX frontend share: small models, and graphs run with numpy."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, defs, helper

import farkas as fk
from codegen.pipeline import CPU
from frontends.onnx import import_model
from poly.ir.graph import Call, Graph
from poly.machine.cpu import Machine
from runtime.reference.evaluate import evaluate
from tests.conformance.official import opened

onnxruntime.set_default_logger_severity(4)

RANDOM = np.random.default_rng(7)


def run_graph(graph: Graph, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of a graph, by their names in the model."""
    values = dict(graph.constants)
    for name in graph.inputs:
        values[name] = inputs[graph.label(name)]
    for node in graph.nodes:
        if isinstance(node, Call):
            arrays = {
                t.name: values[v] for t, v in zip(node.program.inputs, node.inputs, strict=True)
            }
            results = evaluate(node.program, arrays)
            for tensor, value in zip(node.program.outputs, node.outputs, strict=True):
                values[value] = results[tensor.name]
        else:
            values[node.output] = values[node.input].reshape(graph.shape(node.output))
    return {graph.label(name): values[name] for name in graph.outputs}


def floats(*shape: int, low: float = -2.0, high: float = 2.0, dtype: type = np.float32):
    """Random floats of a shape."""
    return RANDOM.uniform(low, high, shape).astype(dtype)


#: Vectors of two float32, so that small networks have values in blocks.
PAIRS = Machine(8, 32, 32 << 10, 1 << 20, 16 << 20, 2)


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, np.ndarray],
    outputs: Sequence[str],
    constants: Mapping[str, np.ndarray] | None = None,
    opset: int = 17,
    ir_version: int | None = None,
) -> onnx.ModelProto:
    """A model of some nodes; the types of the outputs are inferred.

    Domains other than the default one are imported at the newest opset that `onnx` knows of them.
    """
    graph = helper.make_graph(
        list(nodes),
        "test",
        [
            helper.make_tensor_value_info(
                n, helper.np_dtype_to_tensor_dtype(a.dtype), list(a.shape)
            )
            for n, a in inputs.items()
        ],
        [helper.make_tensor_value_info(n, TensorProto.UNDEFINED, None) for n in outputs],
        [onnx.numpy_helper.from_array(a, n) for n, a in (constants or {}).items()],
    )
    opsets = {"": opset} | {n.domain: newest_opset(n.domain) for n in nodes if n.domain}
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid(*o) for o in opsets.items()]
    )
    model.ir_version = ir_version or (3 if opset < 9 else 8 if opset < 19 else 10)
    inferred = onnx.shape_inference.infer_shapes(model)
    types = {v.name: v for v in inferred.graph.output}
    for output in model.graph.output:
        output.CopyFrom(types[output.name])
        if not output.type.tensor_type.elem_type:
            output.ClearField("type")  # its operator infers none: neither claim nor check one
    return model


def newest_opset(domain: str) -> int:
    """The newest opset of a domain with a schema, 1 if there is none."""
    return max((s.since_version for s in defs.get_all_schemas() if s.domain == domain), default=1)


def single(
    operator: str,
    inputs: Mapping[str, np.ndarray],
    *,
    constants: Mapping[str, np.ndarray] | None = None,
    order: Sequence[str] | None = None,
    outputs: int = 1,
    opset: int = 17,
    **attributes: object,
) -> onnx.ModelProto:
    """A model of one node; `order` lists its operands when "" or constants stand between."""
    names = list(order) if order is not None else [*inputs, *(constants or {})]
    results = [f"y{n}" for n in range(outputs)]
    node = helper.make_node(operator, names, results, name="node", **attributes)
    return model_of([node], inputs, results, constants, opset)


def ort_run(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs that ONNX Runtime gives."""
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def agree(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray], rtol: float = 1e-5) -> Graph:
    """Import a model, and check its outputs against ONNX Runtime's, also after the passes over
    graphs; returns the graph as imported."""
    graph = import_model(model)
    expected = ort_run(model, inputs)
    close(run_graph(graph, inputs), expected, rtol)
    close(run_graph(CPU.optimise(graph, PAIRS, evaluate), inputs), expected, rtol)
    if "FARKAS_TEST_OPEN" in os.environ:
        agree_when_open(model, inputs, rtol)
    return graph


def agree_when_open(
    model: onnx.ModelProto, inputs: Mapping[str, np.ndarray], rtol: float = 1e-5
) -> None:
    """Check a compiled model's outputs against ONNX Runtime's when all its sizes are open."""
    compiled = fk.compile_onnx(opened(model), threads=1)
    close(compiled.run(inputs), ort_run(model, inputs), max(rtol, 1e-4))


def close(
    ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray], rtol: float = 1e-5
) -> None:
    """Check equal names, dtypes, shapes and (for floats nearly) equal elements."""
    assert list(ours) == list(theirs)
    for name, expected in theirs.items():
        found = ours[name]
        assert found.shape == expected.shape, name
        assert found.dtype == expected.dtype, name
        if expected.dtype.kind in "fV":
            wide = expected.astype(np.float64)
            finite = wide[np.isfinite(wide)]
            scale = float(np.abs(finite).max()) if finite.size else 1.0
            np.testing.assert_allclose(
                found.astype(np.float64), wide, rtol=rtol, atol=rtol * max(scale, 1e-3)
            )
        else:
            np.testing.assert_array_equal(found, expected)
