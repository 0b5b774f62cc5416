"""Operators of ai.onnx.ml against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import farkas as fk
from frontends.onnx import import_model
from poly.errors import ArgumentError, ModelError, UnsupportedModelError
from tests.frontends.onnx.ml_support import DOMAIN, check, forest, ml_graph, ml_model, rows_of
from tests.frontends.onnx.onnx_support import agree, floats, ort_run, run_graph

FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING
INT32 = TensorProto.INT32
SCORES = {"label": INT64, "scores": FLOAT}
NUMBER = {"y": FLOAT}


# --- linear models and support vectors ---


@pytest.mark.parametrize("post", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"])
@pytest.mark.parametrize("targets", [1, 3])
def test_linear_regressors(post, targets):
    x = np.random.default_rng(0).uniform(0, 0.3, (5, 4)).astype(np.float32)
    random = np.random.default_rng(1)
    attributes = {"coefficients": random.uniform(0, 0.3, 4 * targets).tolist(),
                  "intercepts": random.uniform(0.2, 0.4, targets).tolist()}  # fmt: skip
    model = ml_model("LinearRegressor", {"x": x}, NUMBER, targets=targets, post_transform=post,
                     **attributes)  # fmt: skip
    agree(model, {"x": x}, rtol=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.int32])
@pytest.mark.parametrize("post", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("classes", [1, 2, 3])
def test_linear_classifiers(dtype, post, classes):
    x = floats(7, 4).astype(dtype)
    random = np.random.default_rng(1)
    model = ml_model(
        "LinearClassifier", {"x": x}, SCORES, post_transform=post,
        coefficients=random.normal(size=4 * classes).tolist(),
        intercepts=random.normal(size=classes).tolist(),
        classlabels_ints=[3, 1, 4][: max(classes, 2)],
    )  # fmt: skip
    agree(model, {"x": x})


def test_malformed_linear_models():
    x = rows_of(2, 3)
    for wrong, message in (
        ({"coefficients": [1.0]}, "1 coefficients do not fit 2 scores of 3 features"),
        ({"classlabels_ints": [1, 2, 3]}, "3 class labels do not fit 2 scores"),
        ({"classlabels_ints": []}, "there are no class labels"),
    ):
        attributes = {"coefficients": [0.5] * 6, "intercepts": [0.0, 0.0],
                      "classlabels_ints": [1, 2], **wrong}  # fmt: skip
        if not attributes["classlabels_ints"]:
            del attributes["classlabels_ints"]
        with pytest.raises(ModelError, match=message):
            import_model(ml_model("LinearClassifier", {"x": x}, SCORES, **attributes))


def support_vectors(classes: int, kernel: str, **more):
    random = np.random.default_rng(classes)
    per_class = [2, 3, 1, 2][:classes]
    pairs = classes * (classes - 1) // 2
    return {
        "kernel_type": kernel,
        "kernel_params": [0.3, 0.5, 3.0],
        "support_vectors": random.normal(size=sum(per_class) * 4).tolist(),
        "coefficients": random.normal(size=(classes - 1) * sum(per_class)).tolist(),
        "rho": random.normal(size=pairs).tolist(),
        "vectors_per_class": per_class,
        "classlabels_ints": [5, 2, 7, 1][:classes],
        **more,
    }


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("classes", [2, 3, 4])
def test_support_vector_classifiers(kernel, classes):
    x = rows_of(9, 4)
    for post in ("NONE", "LOGISTIC", "SOFTMAX"):
        attributes = support_vectors(classes, kernel, post_transform=post)
        agree(ml_model("SVMClassifier", {"x": x}, SCORES, **attributes), {"x": x}, rtol=1e-4)
        positive = np.abs(attributes["coefficients"]).tolist()
        model = ml_model("SVMClassifier", {"x": x}, SCORES,
                         **{**attributes, "coefficients": positive})  # fmt: skip
        agree(model, {"x": x}, rtol=1e-4)


@pytest.mark.parametrize("classes", [2, 3, 4])
@pytest.mark.parametrize("kernel", ["RBF", "POLY"])
def test_support_vectors_with_probabilities(classes, kernel):
    x = rows_of(50, 4)
    pairs = classes * (classes - 1) // 2
    random = np.random.default_rng(9)
    attributes = support_vectors(
        classes, kernel, prob_a=(-random.uniform(1, 3, pairs)).tolist(),
        prob_b=random.normal(size=pairs).tolist(),
    )  # fmt: skip
    model = ml_model("SVMClassifier", {"x": x}, SCORES, **attributes)
    check(model, {"x": x}, rtol=1e-4)


def test_probabilities_of_any_number_of_rows():
    pairs = {"prob_a": [-2.0, -1.0, -3.0], "prob_b": [0.1, 0.2, -0.3]}
    model = ml_model("SVMClassifier", {"x": rows_of(5, 4)}, SCORES, rows="rows",
                     **support_vectors(3, "RBF", **pairs))  # fmt: skip
    network = fk.compile_onnx(model)
    for rows in (5, 7, 1):
        x = rows_of(rows, 4)
        found, expected = network.run({"x": x}), ort_run(model, {"x": x})
        np.testing.assert_array_equal(found["label"], expected["label"])
        np.testing.assert_allclose(found["scores"], expected["scores"], rtol=1e-4)


@pytest.mark.parametrize("classes", [1, 2, 3])
def test_support_vector_classifiers_without_vectors(classes):
    x = rows_of(9, 4)
    random = np.random.default_rng(2)
    for positive in (False, True):
        weights = random.normal(size=4 * classes)
        model = ml_model(
            "SVMClassifier", {"x": x}, SCORES, rho=[0.3], classlabels_ints=[3, 1, 4][:classes],
            coefficients=(np.abs(weights) if positive else weights).tolist(),
            kernel_params=[0.0, 0.0, 3.0],
        )  # fmt: skip
        agree(model, {"x": x})


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("one_class", [0, 1])
@pytest.mark.parametrize("vectors", [0, 5])
def test_support_vector_regressors(kernel, one_class, vectors):
    x, random = rows_of(9, 4), np.random.default_rng(3)
    model = ml_model(
        "SVMRegressor", {"x": x}, NUMBER, kernel_type=kernel, kernel_params=[0.3, 0.5, 2.0],
        n_supports=vectors, support_vectors=random.normal(size=4 * vectors).tolist() or [0.0],
        coefficients=random.normal(size=vectors or 4).tolist(), rho=[0.2], one_class=one_class,
    )  # fmt: skip
    agree(model, {"x": x}, rtol=1e-4)


def test_malformed_support_vectors():
    x = rows_of(2, 4)
    for wrong, message in (
        ({"rho": []}, "rho needs 3 numbers"),
        ({"coefficients": [1.0]}, "1 coefficients are not 2 rows of 6"),
        ({"support_vectors": [1.0]}, "1 support_vectors are not 6 rows of 4"),
        ({"kernel_type": "COSINE"}, "no kernel 'COSINE'"),
        ({"vectors_per_class": [2, -1, 1]}, "negative number"),
        ({"kernel_params": [1.0]}, "three numbers"),
        ({"prob_a": [1.0], "prob_b": [1.0]}, "prob_a and prob_b need 3 numbers"),
    ):
        attributes = support_vectors(3, "RBF", **wrong)
        attributes = {k: v for k, v in attributes.items() if v != []}
        with pytest.raises(ModelError, match=message):
            import_model(ml_model("SVMClassifier", {"x": x}, SCORES, **attributes))


# --- features ---


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.int32])
def test_scalers(dtype):
    x = (floats(5, 3) * 4).astype(dtype)
    for offset, scale in (([0.5, -1.0, 2.0], [2.0, 0.5, 1.5]), ([0.5], [3.0])):
        model = ml_model("Scaler", {"x": x}, NUMBER, offset=offset, scale=scale)
        agree(model, {"x": x})


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_normalizers(norm, dtype):
    x = np.round(floats(5, 3) * 4).astype(dtype)
    x[1] = 0
    for rows in (x, np.abs(x[0])):
        agree(ml_model("Normalizer", {"x": rows}, NUMBER, norm=norm), {"x": rows})


def test_imputers():
    x = rows_of(5, 3, holes=True)
    for values in ([1.5], [1.0, 2.0, 3.0]):
        model = ml_model("Imputer", {"x": x}, NUMBER, imputed_value_floats=values,
                         replaced_value_float=float("nan"))  # fmt: skip
        agree(model, {"x": x})
    model = ml_model("Imputer", {"x": np.round(x)}, NUMBER, imputed_value_floats=[7.0],
                     replaced_value_float=1.0)  # fmt: skip
    found = run_graph(import_model(model), {"x": np.array([[1, 2, np.nan]] * 5, np.float32)})
    np.testing.assert_array_equal(found["y"][0], [7, 2, np.nan])
    n = np.array([[1, 2, 3], [0, 2, 2]])
    model = ml_model("Imputer", {"x": n}, {"y": INT64}, imputed_value_int64s=[9],
                     replaced_value_int64=2)  # fmt: skip
    agree(model, {"x": n})


def test_an_imputer_of_a_number_that_the_type_does_not_have():
    n = np.array([[1, 2, 3], [0, 2, 2]], np.int32)
    model = ml_model("Imputer", {"x": n}, {"y": INT32}, imputed_value_int64s=[9],
                     replaced_value_int64=2**32 + 2)  # fmt: skip
    np.testing.assert_array_equal(run_graph(import_model(model), {"x": n})["y"], n)


def test_binarizers():
    x = floats(5, 3)
    agree(ml_model("Binarizer", {"x": x}, NUMBER, threshold=0.25), {"x": x})
    agree(ml_model("Binarizer", {"x": x}, NUMBER), {"x": x})


@pytest.mark.parametrize("shape", [(2, 4), (4,), (2, 3, 4)])
def test_array_feature_extractors(shape):
    inputs = {"x": floats(*shape), "p": np.array([3, 0, 3])}
    agree(ml_model("ArrayFeatureExtractor", inputs, NUMBER), inputs)
    inputs = {"x": floats(*shape), "p": np.array([[3, 0], [1, 2]])}
    agree(ml_model("ArrayFeatureExtractor", inputs, NUMBER), inputs)


def test_feature_vectorizers():
    inputs = {"a": floats(3, 2), "b": floats(3, 1), "c": floats(3, 4)}
    agree(ml_model("FeatureVectorizer", inputs, NUMBER, inputdimensions=[2, 1, 4]), inputs)
    with pytest.raises(
        ModelError, match=r"\[2, 1, 3\] do not fit operands of \[2, 1, 4\] features"
    ):
        import_model(ml_model("FeatureVectorizer", inputs, NUMBER, inputdimensions=[2, 1, 3]))


@pytest.mark.parametrize("dtype", [np.int64, np.float32, np.float64])
def test_one_hot_encoders(dtype):
    for shape in ((4,), (2, 2), (1, 1, 4), (2, 1, 2, 1)):
        x = np.array([1, 5, 7, 1], dtype).reshape(shape)
        model = ml_model("OneHotEncoder", {"x": x}, NUMBER, cats_int64s=[1, 5, 6], zeros=1)
        agree(model, {"x": x})


def test_malformed_features():
    x = rows_of(2, 3)
    for operator, attributes, message in (
        ("Scaler", {"offset": [1.0, 2.0], "scale": [1.0]}, "offset has 2 entries for 3"),
        ("Scaler", {}, "offset and scale are needed"),
        ("Normalizer", {"norm": "L3"}, "no norm 'L3'"),
        ("Imputer", {}, "no imputed values for float32"),
        ("OneHotEncoder", {}, "no categories"),
    ):
        with pytest.raises(ModelError, match=message):
            import_model(ml_model(operator, {"x": x}, NUMBER, **attributes))


# --- labels, strings and maps ---


@pytest.mark.parametrize("opset", [2, 4])
def test_label_encoders_of_numbers(opset):
    n = np.array([[3, 1], [4, -5], [1 << 62, -(1 << 63)]])
    f = np.array([0.5, 2.0, np.nan, -1.0], np.float32)
    for x, keys, values, out in (
        (n, {"keys_int64s": [1, 3, -5]}, {"values_int64s": [10, 30, 50]}, INT64),
        (n, {"keys_int64s": [1, 1 << 62]}, {"values_floats": [0.5, 1.5]}, FLOAT),
        (n, {"keys_int64s": [-(1 << 63), 1 - (1 << 63)]}, {"values_int64s": [5, 6]}, INT64),
        (f, {"keys_floats": [2.0, 0.5]}, {"values_int64s": [10, 30]}, INT64),
        (f, {"keys_floats": [2.0, float("nan")]}, {"values_floats": [4.0, 5.0]}, FLOAT),
    ):
        for shape in (x.shape, (1, 1, -1), (x.shape[0], 1, 1, -1)):
            inputs = {"x": x.reshape(shape)}
            agree(ml_model("LabelEncoder", inputs, {"y": out}, opset=opset, **keys, **values),
                  inputs)  # fmt: skip


@pytest.mark.parametrize("opset", [2, 4])
@pytest.mark.parametrize("keys", [[0.0, 1.0, 2.0], [1.0, float("nan"), float("nan"), 0.5]])
def test_names_of_numbers(opset, keys):
    """A number between two keys has no name; NaN has that of the first one since opset 4."""
    x = np.array([0.5, 1, 1.9, np.nan, -0.0, 7, -1], np.float32)
    model = ml_model("LabelEncoder", {"x": x}, {"y": STRING}, opset=opset, keys_floats=keys,
                     values_strings=["a", "b", "c", "d"][: len(keys)])  # fmt: skip
    found = fk.compile_onnx(model).run({"x": x})["y"]
    assert found.tolist() == ort_run(model, {"x": x})["y"].tolist()


def labelled(strings: bool, rows: str = "") -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A classifier as converters write it: labels handed on, scores as maps."""
    x, random = rows_of(6, 3), np.random.default_rng(0)
    names = ["red", "green", "blue"]
    labels = {"classlabels_strings": names} if strings else {"classlabels_int64s": [4, 5, 6]}
    attributes = forest(random, trees=3, depth=3, features=3, targets=3, prefix="class")
    nodes = [
        helper.make_node("TreeEnsembleClassifier", ["x"], ["l", "s"], domain=DOMAIN,
                         post_transform="SOFTMAX", **labels, **attributes),
        helper.make_node("Identity", ["l"], ["label"]),
        helper.make_node("Normalizer", ["s"], ["t"], domain=DOMAIN, norm="L1"),
        helper.make_node("ZipMap", ["t"], ["maps_strings" if strings else "maps"], domain=DOMAIN,
                         **labels),
    ]  # fmt: skip
    outputs = {"label": STRING if strings else INT64, nodes[-1].output[0]: 0}
    return ml_graph(nodes, {"x": x}, outputs, rows=rows), {"x": x}


@pytest.mark.parametrize("strings", [False, True])
@pytest.mark.parametrize("rows", ["", "rows"])
def test_labels_and_maps(strings, rows):
    model, inputs = labelled(strings, rows)
    compiled = check(model, inputs)
    assert set(compiled.opaque_operators) == ({"LabelEncoder", "ZipMap"} if strings else {"ZipMap"})
    assert str(compiled.outputs[0]).startswith("string label" if strings else "int64 label")
    assert str(compiled.outputs[1]).startswith("sequence maps")
    if rows:
        more = {"x": rows_of(9, 3, seed=5)}
        found = compiled.run(more)
        assert found["label"].tolist() == ort_run(model, more)["label"].tolist()


def test_labels_by_place():
    """argmax and a list of classes, as converters write it; then strings in another shape."""
    classes = helper.make_tensor("classes", STRING, [3], [b"a", b"b", b"c"])
    shape = helper.make_tensor("shape", INT64, [1], [-1])
    x = rows_of(6, 3)
    nodes = [
        helper.make_node("ArgMax", ["x"], ["best"], axis=1),
        helper.make_node("ArrayFeatureExtractor", ["classes", "best"], ["rows"], domain=DOMAIN),
        helper.make_node("Reshape", ["rows", "shape"], ["label"]),
        helper.make_node("LabelEncoder", ["label"], ["back"], domain=DOMAIN,
                         keys_strings=["c", "a"], values_int64s=[30, 10]),
    ]  # fmt: skip
    outputs = {"label": STRING, "back": INT64}
    check(ml_graph(nodes, {"x": x}, outputs, constants=[classes, shape]), {"x": x})


def test_mappers_and_old_label_encoders():
    x = np.array([0, 2, 7, 1])
    names = ["a", "b", "c"]
    model = ml_model("LabelEncoder", {"x": x}, {"y": STRING}, opset=1, classes_strings=names)
    check(model, {"x": x})
    nodes = [
        helper.make_node("CategoryMapper", ["x"], ["y"], domain=DOMAIN, cats_strings=names,
                         cats_int64s=[7, 0, 1], default_string="none"),
        helper.make_node("CategoryMapper", ["y"], ["z"], domain=DOMAIN, cats_strings=names,
                         cats_int64s=[7, 0, 5], default_int64=-7),
    ]  # fmt: skip
    check(ml_graph(nodes, {"x": x}, {"y": STRING, "z": INT64}), {"x": x})


def test_what_cannot_be_done_with_strings_and_maps():
    x = np.array([0, 2, 1])
    names = ["a", "b", "c"]
    encode = helper.make_node("LabelEncoder", ["x"], ["s"], domain=DOMAIN, keys_int64s=[0, 1, 2],
                              values_strings=names)  # fmt: skip
    model = ml_graph([encode, helper.make_node("Size", ["s"], ["y"])], {"x": x}, {"y": INT64})
    with pytest.raises(UnsupportedModelError, match="cannot process tensors of strings"):
        fk.compile_onnx(model).run({"x": x})
    f = rows_of(2, 3)
    zipped = helper.make_node("ZipMap", ["x"], ["m"], domain=DOMAIN, classlabels_int64s=[1, 2, 3])
    model = ml_graph([zipped, helper.make_node("Identity", ["m"], ["y"])], {"x": f}, {"y": 0})
    with pytest.raises(UnsupportedModelError, match="'m' is a sequence"):
        fk.compile_onnx(model)
    labels = {"classlabels_int64s": [1, 2]}
    with pytest.raises(ModelError, match="2 labels do not fit 3 scores"):
        fk.compile_onnx(ml_model("ZipMap", {"x": f}, {"m": 0}, **labels))
    model, inputs = labelled(True)
    with pytest.raises(ArgumentError, match="label is a string and needs no array"):
        fk.compile_onnx(model).run(inputs, out={"label": np.zeros(6)})
