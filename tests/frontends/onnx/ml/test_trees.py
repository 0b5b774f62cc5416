"""Ensembles of trees against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import farkas as fk
from frontends.onnx import import_model
from poly.errors import ModelError
from tests.frontends.onnx.ml_support import check, forest, ml_model, rows_of
from tests.frontends.onnx.onnx_support import agree, run_graph

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
SCORES = {"label": INT64, "scores": FLOAT}
NUMBER = {"y": FLOAT}


MODES = [f"BRANCH_{m}" for m in ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ")]


@given(
    seed=st.integers(0, 1 << 30),
    trees=st.integers(1, 5),
    depth=st.integers(1, 4),
    targets=st.integers(1, 3),
    modes=st.lists(st.sampled_from(MODES), min_size=1, max_size=3),
    missing=st.booleans(),
    holes=st.booleans(),
    rows=st.sampled_from([5, 37]),
    aggregate=st.sampled_from(["SUM", "AVERAGE", "MIN", "MAX"]),
    post=st.sampled_from(["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"]),
    base=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_tree_regressors(
    seed, trees, depth, targets, modes, missing, holes, rows, aggregate, post, base
):
    random = np.random.default_rng(seed)
    x = rows_of(rows, 3, seed, holes)
    whole = any(m in ("BRANCH_EQ", "BRANCH_NEQ") for m in modes)
    x = np.round(x) if whole else x
    attributes = forest(
        random, trees=trees, depth=depth, features=3, targets=targets, modes=modes,
        missing=missing, whole=whole,
    )  # fmt: skip
    if base:
        attributes["base_values"] = random.normal(size=targets).tolist()
    model = ml_model(
        "TreeEnsembleRegressor", {"x": x}, NUMBER, n_targets=targets,
        aggregate_function=aggregate, post_transform=post, **attributes,
    )  # fmt: skip
    agree(model, {"x": x})


@given(
    seed=st.integers(0, 1 << 30),
    trees=st.integers(1, 4),
    classes=st.integers(2, 4),
    only=st.booleans(),
    positive=st.booleans(),
    post=st.sampled_from(["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"]),
    bases=st.integers(0, 2),
    missing=st.booleans(),
    rows=st.sampled_from([6, 20]),
)
@settings(max_examples=60, deadline=None)
def test_tree_classifiers(seed, trees, classes, only, positive, post, bases, missing, rows):
    random = np.random.default_rng(seed)
    x = rows_of(rows, 3, seed, missing)
    one = int(random.integers(classes)) if only else None
    attributes = forest(
        random, trees=trees, depth=3, features=3, targets=classes, prefix="class",
        missing=missing, only=one,
    )  # fmt: skip
    if positive:
        attributes["class_weights"] = np.abs(attributes["class_weights"]).tolist()
    size = bases if classes == 2 else classes * min(bases, 1)
    if size:
        attributes["base_values"] = random.normal(size=size).tolist()
    # ONNX Runtime names two classes 0 and 1, whatever their labels, if both have weights.
    labels = [0, 1] if classes == 2 else [int(n) for n in random.permutation(classes) * 7]
    model = ml_model(
        "TreeEnsembleClassifier", {"x": x}, SCORES, classlabels_int64s=labels,
        post_transform=post, **attributes,
    )  # fmt: skip
    agree(model, {"x": x})


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.int32])
@pytest.mark.parametrize("mode", MODES[:4])
def test_trees_on_other_types(dtype, mode):
    random = np.random.default_rng(3)
    x = (random.normal(size=(6, 3)) * 3).astype(dtype)
    attributes = forest(
        random, trees=3, depth=3, features=3, targets=3, modes=[mode], prefix="class"
    )
    labels = {"classlabels_int64s": [5, 6, 7]}
    agree(ml_model("TreeEnsembleClassifier", {"x": x}, SCORES, **labels, **attributes), {"x": x})


def test_trees_with_tables_of_doubles():
    random = np.random.default_rng(4)
    x = random.normal(size=(6, 3))
    attributes = forest(random, trees=3, depth=3, features=3, targets=1)
    for name in ("nodes_values", "target_weights"):
        tensor = helper.make_tensor(name, TensorProto.DOUBLE, [len(attributes[name])],
                                    attributes.pop(name))  # fmt: skip
        attributes[f"{name}_as_tensor"] = tensor
    agree(ml_model("TreeEnsembleRegressor", {"x": x}, NUMBER, n_targets=1, **attributes), {"x": x})


def test_a_probit_of_trees():
    random = np.random.default_rng(5)
    x = rows_of(6, 3)
    for targets in (1, 2):
        attributes = forest(random, trees=1, depth=3, features=3, targets=targets)
        weights = random.uniform(0.1, 0.9, len(attributes["target_weights"]))
        attributes["target_weights"] = weights.tolist()
        model = ml_model("TreeEnsembleRegressor", {"x": x}, NUMBER, n_targets=targets,
                         post_transform="PROBIT", **attributes)  # fmt: skip
        agree(model, {"x": x}, rtol=1e-4)


def linked(modes, values, members=None, dtype=FLOAT, **more):
    """A TreeEnsemble that asks for one feature after another, and stops at the first no."""
    count = len(modes)
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    attributes = {
        "n_targets": 1,
        "nodes_featureids": [n % 2 for n in range(count)],
        "nodes_modes": helper.make_tensor("m", TensorProto.UINT8, [count], modes),
        "nodes_splits": helper.make_tensor("s", dtype, [count], np.array(values, kind)),
        "nodes_truenodeids": [n + 1 for n in range(count - 1)] + [count],
        "nodes_trueleafs": [0] * (count - 1) + [1],
        "nodes_falsenodeids": list(range(count)),
        "nodes_falseleafs": [1] * count,
        "tree_roots": [0],
        "leaf_targetids": [0] * (count + 1),
        "leaf_weights": helper.make_tensor("w", dtype, [count + 1], np.arange(1, count + 2)),
        **more,
    }
    if members is not None:
        tensor = helper.make_tensor("v", dtype, [len(members)], np.array(members, kind))
        attributes["membership_values"] = tensor
    return attributes


@pytest.mark.parametrize("dtype", [FLOAT, TensorProto.DOUBLE])
def test_linked_trees(dtype):
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    x = np.array([[a, b] for a in range(-2, 3) for b in range(-2, 3)], kind)
    for modes in ([0, 1], [2, 3], [4], [5, 0], [1, 4]):
        attributes = linked(modes, [1.0] * len(modes), dtype=dtype)
        agree(ml_model("TreeEnsemble", {"x": x}, {"y": dtype}, opset=5, **attributes), {"x": x})


def test_nodes_that_ask_for_members():
    x = np.array([[a, b] for a in range(-2, 4) for b in (0, np.nan)], np.float32)
    attributes = linked([6, 6], [0.0, 0.0], [1.0, 3.0, -2.0, np.nan, 0.0, np.nan])
    agree(ml_model("TreeEnsemble", {"x": x}, {"y": FLOAT}, opset=5, **attributes), {"x": x})


def test_a_node_that_two_others_share():
    """Converters write the test for a member of a set like that."""
    attributes = linked([4, 4], [1.0, 2.0], nodes_truenodeids=[2, 2], nodes_trueleafs=[1, 1],
                        nodes_falsenodeids=[1, 0], nodes_falseleafs=[0, 1])  # fmt: skip
    x = np.array([[1, 0], [0, 2], [0, 0]], np.float32)
    agree(ml_model("TreeEnsemble", {"x": x}, {"y": FLOAT}, opset=5, **attributes), {"x": x})


@pytest.mark.parametrize("rows", [1, 40])
def test_trees_that_share_leaves(rows):
    """The second has no leaf of its own, or one."""
    x = np.round(rows_of(rows, 2))
    for falsely in ([1, 1], [1, 2]):
        attributes = linked([0, 0], [0.0, 0.0], tree_roots=[0, 1], nodes_truenodeids=[0, 0],
                            nodes_trueleafs=[1, 1], nodes_falsenodeids=falsely)  # fmt: skip
        agree(ml_model("TreeEnsemble", {"x": x}, {"y": FLOAT}, opset=5, **attributes), {"x": x})


def test_the_best_of_scores_in_float64():
    """Equal once they are rounded: the first would win."""

    def stored(values):
        return onnx.numpy_helper.from_array(np.array(values), "t")

    x = np.zeros((1, 1))
    model = ml_model(
        "TreeEnsembleClassifier", {"x": x}, {"label": INT64, "scores": FLOAT},
        classlabels_int64s=[0, 1, 2], class_ids=[0, 1, 2], class_treeids=[0] * 3,
        class_nodeids=[0] * 3, class_weights_as_tensor=stored([1, 1 + 1e-9, 0.5]),
        nodes_treeids=[0], nodes_nodeids=[0], nodes_featureids=[0], nodes_modes=["LEAF"],
        nodes_truenodeids=[0], nodes_falsenodeids=[0], nodes_values_as_tensor=stored([0.0]),
    )  # fmt: skip
    agree(model, {"x": x})


@pytest.mark.parametrize("classes", [1, 2, 3])
@pytest.mark.parametrize("missing", [False, True])
def test_trees_of_more_leaves_than_a_word_has_bits(classes, missing):
    random = np.random.default_rng(classes)
    x = rows_of(200, 4, holes=missing)
    attributes = forest(random, trees=3, depth=7, features=4, targets=classes, missing=missing)
    assert np.bincount(attributes["target_treeids"]).max() > 32 * classes
    model = ml_model("TreeEnsembleRegressor", {"x": x}, NUMBER, n_targets=classes, **attributes)
    check(model, {"x": x})


@pytest.mark.parametrize("classes", [1, 3])
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("modes", [MODES[:1], MODES])
def test_many_trees_on_few_rows(classes, missing, modes):
    random = np.random.default_rng(classes)
    x = np.round(rows_of(3, 4, holes=missing))
    attributes = forest(
        random, trees=20, depth=4, features=4, targets=classes, missing=missing, modes=modes,
        whole=True,
    )  # fmt: skip
    model = ml_model("TreeEnsembleRegressor", {"x": x}, NUMBER, n_targets=classes, **attributes)
    agree(model, {"x": x})


def test_a_tree_that_is_one_leaf_and_one_that_is_a_chain():
    x = rows_of(50, 2)
    count = 40
    attributes = {
        "nodes_treeids": [0] * (2 * count + 1) + [1],
        "nodes_nodeids": [*range(2 * count + 1), 0],
        "nodes_featureids": [0] * (2 * count + 2),
        "nodes_values": [0.05 * n - 1 for n in range(count)] + [0.0] * (count + 2),
        "nodes_modes": ["BRANCH_LEQ"] * count + ["LEAF"] * (count + 2),
        "nodes_truenodeids": [*range(count, 2 * count)] + [0] * (count + 2),
        "nodes_falsenodeids": [*range(1, count), 2 * count] + [0] * (count + 2),
        "target_treeids": [0] * (count + 1) + [1],
        "target_nodeids": [*range(count, 2 * count + 1), 0],
        "target_ids": [0] * (count + 2),
        "target_weights": [float(n) for n in range(count + 2)],
    }
    model = ml_model("TreeEnsembleRegressor", {"x": x}, NUMBER, n_targets=1, **attributes)
    agree(model, {"x": x})


BAD_TREES = [
    ({"nodes_truenodeids": [0, 0, 0]}, "form a cycle"),
    ({"nodes_truenodeids": [9, 0, 0]}, "has no node 9, a child for yes"),
    ({"nodes_falsenodeids": [-1, 0, 0]}, "has no node -1, a child for no"),
    ({"nodes_nodeids": [0, 1, 1]}, "node 1 of tree 0 is listed twice"),
    ({"nodes_featureids": [2, 0, 0]}, "asks for feature 2, but there are only 2"),
    ({"nodes_modes": ["BRANCH_MAYBE", "LEAF", "LEAF"]}, "no node mode 'MAYBE'"),
    ({"nodes_values": [0.0]}, "nodes_values has 1 entries for 3"),
    ({"target_nodeids": [1, 7]}, "has no node 7, which has a weight"),
    ({"target_ids": [0, 3]}, "not among 1"),
    ({"n_targets": 0}, "0 targets"),
    ({"n_targets": 1 << 62}, "would take more than"),
    ({"n_targets": 1 << 30, "target_ids": [0, (1 << 30) - 1]}, "1073741824 targets are too many"),
    ({"base_values": [1.0, 2.0, 3.0]}, "3 base_values do not fit"),
    ({"aggregate_function": "MEDIAN"}, "no aggregate function 'MEDIAN'"),
    ({"post_transform": "TANH"}, "no post transform 'TANH'"),
]


@pytest.mark.parametrize(("wrong", "message"), BAD_TREES)
def test_hostile_trees(wrong, message):
    x = rows_of(2, 2)
    attributes = {
        "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [1, 0, 0],
        "nodes_values": [0.5, 0.0, 0.0], "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0],
        "target_treeids": [0, 0], "target_nodeids": [1, 2], "target_ids": [0, 0],
        "target_weights": [1.0, 2.0], "n_targets": 1, **wrong,
    }  # fmt: skip
    model = ml_model("TreeEnsembleRegressor", {"x": x}, NUMBER, **attributes)
    with pytest.raises(ModelError, match=message):
        import_model(model)


def test_a_long_cycle_is_found():
    count = 500
    modes = ["BRANCH_LEQ"] * count + ["LEAF"]
    attributes = {
        "nodes_treeids": [0] * (count + 1), "nodes_nodeids": list(range(count + 1)),
        "nodes_featureids": [0] * (count + 1), "nodes_values": [0.0] * (count + 1),
        "nodes_modes": modes, "nodes_truenodeids": [*range(1, count), 7, 0],
        "nodes_falsenodeids": [count] * count + [0],
    }  # fmt: skip
    model = ml_model("TreeEnsembleRegressor", {"x": rows_of(2, 2)}, NUMBER, **attributes)
    with pytest.raises(ModelError, match="form a cycle"):
        import_model(model)


@pytest.mark.parametrize("rank", [1, 3])
def test_rows_are_a_matrix(rank):
    random = np.random.default_rng(0)
    x = np.zeros([2] * rank, np.float32)
    attributes = forest(random, trees=1, depth=2, features=2, targets=1)
    model = ml_model("TreeEnsembleRegressor", {"x": x}, NUMBER, n_targets=1, **attributes)
    if rank == 3:
        with pytest.raises(ModelError, match="not a tensor of rank 3"):
            import_model(model)
    else:
        assert run_graph(import_model(model), {"x": x})["y"].shape == (1, 1)


@pytest.mark.parametrize("missing", [False, True])
def test_an_open_number_of_rows_is_compiled_once_for_many(missing: bool) -> None:
    """Once for few blocks of rows, once for many."""
    random = np.random.default_rng(3)
    attributes = forest(random, trees=4, depth=3, features=3, targets=1, missing=missing)
    x = rows_of(5, 3, 0, missing)
    model = ml_model("TreeEnsembleRegressor", {"x": x}, NUMBER, n_targets=1, **attributes)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    compiled = fk.compile_onnx(model, threads=1)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for counts in ((16, 32, 33, 100, 224), (225, 256, 1000)):
        kernels = 0
        for count in counts:
            x = rows_of(count, 3, count, missing)
            (expected,) = session.run(None, {"x": x})
            np.testing.assert_allclose(compiled.run({"x": x})["y"], expected, 1e-5, 1e-5)
            kernels = kernels or compiled.report.kernels
            assert compiled.report.kernels == kernels, f"it was compiled again for {count} rows"
