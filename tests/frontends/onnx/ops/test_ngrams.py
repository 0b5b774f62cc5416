"""TfIdfVectorizer beside ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import farkas as fk
from poly.errors import ModelError

POOL = [2, 3, 5, 4, 5, 6, 7, 8, 6, 7, 1, 2, 3, 4, 5, 6]
STARTS, COLUMNS = [0, 4, 10], [0, 8, 2, 3, 4, 5, 6, 7, 1]
WEIGHTS = [0.5 * n + 1 for n in range(9)]


def vectorizer(mode: str, lengths: tuple[int, int], skips: int, **given: object) -> onnx.NodeProto:
    told = {"pool_int64s": POOL, "ngram_counts": STARTS, "ngram_indexes": COLUMNS, **given}
    return helper.make_node(
        "TfIdfVectorizer", ["x"], ["y"], mode=mode, min_gram_length=lengths[0],
        max_gram_length=lengths[1], max_skip_count=skips, **told,
    )  # fmt: skip


def model(node: onnx.NodeProto, x: np.ndarray) -> onnx.ModelProto:
    info = helper.make_tensor_value_info
    if x.dtype == object:  # a tensor of strings cannot be passed
        stored = helper.make_tensor("x", TensorProto.STRING, x.shape, x.ravel().tolist())
        inputs, constants = [info("z", TensorProto.FLOAT, [1])], [stored]
        nodes = [node, helper.make_node("Add", ["y", "z"], ["w"])]
    else:
        number = helper.np_dtype_to_tensor_dtype(x.dtype)
        inputs, constants = [info("x", number, x.shape)], []
        nodes = [node, helper.make_node("Identity", ["y"], ["w"])]
    graph = helper.make_graph(
        nodes, "g", inputs, [info("w", TensorProto.FLOAT, None)], initializer=constants
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize(("lengths", "skips"), [((1, 1), 0), ((1, 2), 0), ((2, 2), 3), ((1, 3), 2)])
@pytest.mark.parametrize("kind", ["int64 row", "int32 rows", "strings"])
def test_counts(mode: str, lengths: tuple[int, int], skips: int, kind: str) -> None:
    shape = (12,) if kind == "int64 row" else (3, 12)
    x = np.random.default_rng(0).integers(1, 9, shape)
    given: dict[str, object] = {} if mode == "TF" else {"weights": WEIGHTS}
    if kind == "strings":
        given |= {"pool_strings": [*map(str, POOL)], "pool_int64s": None}
        x = x.astype(str).astype(object)
    elif kind == "int32 rows":
        x = x.astype(np.int32)
    proto = model(vectorizer(mode, lengths, skips, **given), x)
    inputs = {"z": np.zeros(1, np.float32)} if kind == "strings" else {"x": x}
    (wanted,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, inputs)
    found = fk.compile_onnx(proto, threads=1).run(inputs)["w"]
    np.testing.assert_array_equal(found, wanted)
    assert wanted.any()


@pytest.mark.parametrize(("given", "told"), [
    ({"mode": "BM25"}, "there is no mode 'BM25'"),
    ({"lengths": (2, 1)}, "there are no grams of 2 to 1 words"),
    ({"ngram_counts": [0, 4, 11]}, "16 words do not make grams that begin at"),
    ({"ngram_indexes": [0, 1]}, "2 columns for 9 grams"),
    ({"weights": [1.0]}, "1 weights for 9 grams"),
])  # fmt: skip
def test_vocabularies_that_make_no_sense(given: dict, told: str) -> None:
    given = {"mode": "TF", "lengths": (1, 2), **given}
    x = np.arange(12)
    with pytest.raises(ModelError, match=told):
        fk.compile_onnx(model(vectorizer(skips=0, **given), x))
