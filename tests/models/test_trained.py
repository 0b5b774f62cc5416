"""Models trained with scikit-learn, LightGBM and XGBoost, converted to ONNX.

The packages are those of the extra `models`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest

import farkas as fk

pytestmark = pytest.mark.slow
onnxruntime.set_default_logger_severity(4)

FEATURES = 8


def packages(*names: str) -> None:
    """Skip the test if one of the packages is missing."""
    for name in names:
        pytest.importorskip(name, reason=f"{name} is missing; pip install '.[models]'")


def data(classes: int, holes: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Features, and labels (or numbers, if there are no classes)."""
    random = np.random.default_rng(classes)
    x = random.normal(size=(400, FEATURES)).astype(np.float32)
    score = x @ random.normal(size=(FEATURES, max(classes, 1))) + np.abs(x[:, :1])
    if holes:
        x[random.random(x.shape) < 0.1] = np.nan
    return x, (score.argmax(1) if classes else score[:, 0])


def compare(model: Any, x: np.ndarray, labels_may_differ: float = 0.0, rtol: float = 1e-4) -> None:
    """Compile a model, and compare it with ONNX Runtime for two numbers of rows."""
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    name = session.get_inputs()[0].name
    compiled = fk.compile_onnx(model, threads=2)
    for rows in (1, 300):
        expected = session.run(None, {name: x[:rows]})
        found = compiled.run({name: x[:rows]})
        for ours, theirs in zip(found.values(), expected, strict=True):
            if isinstance(theirs, list):
                for row, other in zip(ours, theirs, strict=True):
                    assert row == pytest.approx(other, rel=rtol, abs=rtol)
                continue
            assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
            if theirs.dtype.kind == "f":
                scale = max(float(np.abs(theirs).max()), 1e-3)
                np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=rtol * scale)
            else:
                assert (ours != theirs).mean() <= labels_may_differ


def sklearn_models() -> dict[str, Callable[[], Any]]:
    """Estimators by name."""
    from sklearn import ensemble, linear_model, naive_bayes, neural_network, svm, tree
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MinMaxScaler, Normalizer, StandardScaler

    return {
        "logistic": lambda: linear_model.LogisticRegression(),
        "scaled logistic": lambda: make_pipeline(
            StandardScaler(), linear_model.LogisticRegression()
        ),
        "linear": lambda: linear_model.LinearRegression(),
        "ridge": lambda: make_pipeline(MinMaxScaler(), Normalizer(), linear_model.Ridge()),
        "tree classifier": lambda: tree.DecisionTreeClassifier(random_state=0),
        "tree regressor": lambda: tree.DecisionTreeRegressor(random_state=0),
        "forest classifier": lambda: ensemble.RandomForestClassifier(20, random_state=0),
        "forest regressor": lambda: ensemble.RandomForestRegressor(20, max_depth=8, random_state=0),
        "extra trees classifier": lambda: ensemble.ExtraTreesClassifier(
            10, max_depth=6, random_state=0
        ),
        "boosting classifier": lambda: ensemble.GradientBoostingClassifier(
            n_estimators=20, random_state=0
        ),
        "boosting regressor": lambda: ensemble.GradientBoostingRegressor(
            n_estimators=20, random_state=0
        ),
        "vectors classifier": lambda: svm.SVC(),
        "polynomial classifier": lambda: svm.SVC(kernel="poly", degree=2),
        "vectors regressor": lambda: svm.SVR(),
        "linear vectors regressor": lambda: svm.SVR(kernel="linear"),
        "imputed classifier": lambda: make_pipeline(
            SimpleImputer(), StandardScaler(), linear_model.LogisticRegression()
        ),
        "bayes classifier": lambda: naive_bayes.GaussianNB(),
        "network classifier": lambda: neural_network.MLPClassifier((16,), max_iter=50),
    }


def is_classifier(name: str) -> bool:
    return "classifier" in name or "logistic" in name


NAMES = [
    "logistic", "scaled logistic", "linear", "ridge", "tree classifier", "tree regressor",
    "forest classifier", "forest regressor", "extra trees classifier", "boosting classifier",
    "boosting regressor", "vectors classifier",
    "polynomial classifier", "vectors regressor", "linear vectors regressor",
    "imputed classifier", "bayes classifier", "network classifier",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("labels", ["integers", "strings"])
@pytest.mark.parametrize("classes", [2, 3])
def test_sklearn(name: str, labels: str, classes: int) -> None:
    packages("sklearn", "skl2onnx")
    from skl2onnx import to_onnx

    if not is_classifier(name) and (labels == "strings" or classes == 3):
        pytest.skip("a regressor has no labels")
    x, y = data(classes if is_classifier(name) else 0, holes="imputed" in name)
    if labels == "strings":
        y = np.array(["ash", "birch", "cedar"])[y]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = to_onnx(sklearn_models()[name]().fit(x, y), x[:1])
    compare(model, x, labels_may_differ=0.01)


def test_sklearn_with_categories() -> None:
    packages("sklearn", "skl2onnx")
    from skl2onnx import to_onnx
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    x, y = data(3)
    x = np.round(x).clip(-2, 2).astype(np.int64)
    model = to_onnx(make_pipeline(OneHotEncoder(), LogisticRegression()).fit(x, y), x[:1])
    compare(model, x)


@pytest.mark.parametrize("labels", ["integers", "strings"])
def test_sklearn_with_probabilities(labels: str) -> None:
    packages("sklearn", "skl2onnx")
    from skl2onnx import to_onnx
    from sklearn.svm import SVC

    x, y = data(3)
    if labels == "strings":
        y = np.array(["ash", "birch", "cedar"])[y]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn would rather calibrate
        model = to_onnx(SVC(probability=True).fit(x, y), x[:1])
    compare(model, x)


@pytest.mark.parametrize("package", ["lightgbm", "xgboost"])
@pytest.mark.parametrize("classes", [0, 2, 3])
@pytest.mark.parametrize("holes", [False, True])
def test_boosting(package: str, classes: int, holes: bool) -> None:
    packages("onnxmltools", package)
    import onnxmltools
    from onnxmltools.convert.common.data_types import FloatTensorType

    x, y = data(classes, holes)
    types = [("x", FloatTensorType([None, FEATURES]))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if package == "lightgbm":
            import lightgbm

            kind = lightgbm.LGBMClassifier if classes else lightgbm.LGBMRegressor
            fitted = kind(n_estimators=20, verbose=-1, n_jobs=1).fit(x, y)
            model = onnxmltools.convert_lightgbm(fitted, initial_types=types)
        else:
            import xgboost

            kind = xgboost.XGBClassifier if classes else xgboost.XGBRegressor
            fitted = kind(n_estimators=20, n_jobs=1).fit(x, y)
            model = onnxmltools.convert_xgboost(fitted, initial_types=types)
    compare(model, x)
