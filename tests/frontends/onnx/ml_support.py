"""What the tests of ai.onnx.ml share: models of one node, and random trees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import farkas as fk
from tests.frontends.onnx.onnx_support import ort_run

DOMAIN = "ai.onnx.ml"


def ml_model(
    operator: str,
    inputs: Mapping[str, np.ndarray],
    outputs: Mapping[str, int],
    opset: int = 3,
    rows: str = "",
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of one node; outputs with element types (0 for a sequence of maps).

    `rows` names the first dimension of the inputs, which then is dynamic.
    """
    node = helper.make_node(
        operator, list(inputs), list(outputs), name="node", domain=DOMAIN, **attributes
    )
    return ml_graph([node], inputs, outputs, opset, rows)


def ml_graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, np.ndarray],
    outputs: Mapping[str, int],
    opset: int = 3,
    rows: str = "",
    constants: Sequence[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    """A model of nodes of both domains."""
    graph = helper.make_graph(
        list(nodes),
        "test",
        [
            helper.make_tensor_value_info(
                name,
                helper.np_dtype_to_tensor_dtype(a.dtype),
                [rows, *a.shape[1:]] if rows else list(a.shape),
            )
            for name, a in inputs.items()
        ],
        [_output(name, number) for name, number in outputs.items()],
        list(constants),
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, opset)]
    model = helper.make_model(graph, opset_imports=imports)
    model.ir_version = 10
    return model


def _output(name: str, number: int) -> onnx.ValueInfoProto:
    if number:
        return helper.make_tensor_value_info(name, number, None)
    key = TensorProto.INT64 if not name.endswith("strings") else TensorProto.STRING
    scores = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    kind = helper.make_sequence_type_proto(helper.make_map_type_proto(key, scores))
    return helper.make_value_info(name, kind)


def forest(
    random: np.random.Generator,
    *,
    trees: int,
    depth: int,
    features: int,
    targets: int,
    prefix: str = "target",
    modes: Sequence[str] = ("BRANCH_LEQ",),
    missing: bool = False,
    whole: bool = False,
    only: int | None = None,
) -> dict[str, Any]:
    """Attributes of random trees, every leaf of which has a weight for every target.

    `whole` thresholds are integers; `only` one target has weights
    """
    nodes: dict[str, list[Any]] = {
        f"nodes_{n}": []
        for n in "treeids nodeids featureids values modes truenodeids falsenodeids "
        "missing_value_tracks_true".split()
    }
    leaves: dict[str, list[Any]] = {
        f"{prefix}_{n}": [] for n in ("treeids", "nodeids", "ids", "weights")
    }

    def grow(tree: int, number: int, left: int) -> int:
        """Add a subtree whose root has this number; gives the next number."""
        is_leaf = left == 0 or (left < depth and random.random() < 0.2)
        mode = "LEAF" if is_leaf else str(random.choice(list(modes)))
        value = random.integers(-2, 3) if whole else random.normal()
        place = len(nodes["nodes_treeids"])
        for name, item in (
            ("treeids", tree), ("nodeids", number), ("modes", mode),
            ("featureids", int(random.integers(features))), ("values", float(value)),
            ("truenodeids", 0), ("falsenodeids", 0),
            ("missing_value_tracks_true", int(missing and random.random() < 0.5)),
        ):  # fmt: skip
            nodes[f"nodes_{name}"].append(item)
        if is_leaf:
            for target in range(targets) if only is None else (only,):
                for name, item in (
                    ("treeids", tree), ("nodeids", number), ("ids", target),
                    ("weights", float(random.normal())),
                ):  # fmt: skip
                    leaves[f"{prefix}_{name}"].append(item)
            return number + 1
        nodes["nodes_truenodeids"][place] = number + 1
        following = grow(tree, number + 1, left - 1)
        nodes["nodes_falsenodeids"][place] = following
        return grow(tree, following, left - 1)

    for tree in range(trees):
        grow(tree, 0, depth)
    if not missing:
        del nodes["nodes_missing_value_tracks_true"]
    return {**nodes, **leaves}


def rows_of(count: int, width: int, seed: int = 0, holes: bool = False) -> np.ndarray:
    random = np.random.default_rng(seed)
    x = random.normal(size=(count, width)).astype(np.float32)
    if holes:
        x[random.random(x.shape) < 0.3] = np.nan
    return x


def check(model: onnx.ModelProto, inputs, rtol: float = 1e-5) -> fk.Network:
    """Compile a model, and compare all its outputs, whatever they are, with ONNX Runtime's."""
    compiled = fk.compile_onnx(model, threads=1)
    found, expected = compiled.run(inputs), ort_run(model, inputs)
    assert list(found) == list(expected)
    for name, theirs in expected.items():
        ours = found[name]
        if isinstance(theirs, list):
            assert isinstance(ours, list)
            for row, other in zip(ours, theirs, strict=True):
                assert row == pytest.approx(other, rel=rtol)
            continue
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        if theirs.dtype.kind == "f":
            np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=rtol)
        else:
            np.testing.assert_array_equal(ours, theirs)
    return compiled
