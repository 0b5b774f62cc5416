"""Compiled estimators raise what scikit-learn raises, and are used as its own are."""

from __future__ import annotations

import copy
import importlib
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import farkas as fk
from poly.errors import ModelWarning, ToolchainError
from tests.farkas.estimators import (
    ALL,
    PREDICT,
    SHARES,
    TRANSFORM,
    agree,
    compiled,
    data,
    ensembles,
    forest,
    logistic,
    make,
    of,
    refused,
    scaler,
    served_alone,
)

pytest.importorskip("sklearn", reason="scikit-learn is not installed")


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", [logistic, forest, lambda: make(scaler(), logistic())])
def test_errors(estimator: Callable[[], Any]) -> None:
    x, y = data("three")
    model = compiled(estimator(), x, y)
    allowed = of("utils", "get_tags")(model.estimator_).input_tags.allow_nan
    bad = [x[0], x[:, :5], x[:0], np.full((2, 6), np.inf), np.array([["a"] * 6]), 3.0, x[None]]
    bad += [] if allowed else [np.full((2, 6), np.nan)]
    if estimator is forest:
        bad.append(np.full((1, 6), 1e39))  # float32 has no such number
    for rows in bad:
        for method in SHARES:
            refused(model, method, rows)


def test_what_is_no_estimator() -> None:
    with pytest.raises(fk.ArgumentError, match="takes an estimator of scikit-learn, not a str"):
        fk.sklearn.Compiled("forest").fit(np.ones((4, 2)), np.ones(4))


def test_what_is_not_fitted() -> None:
    not_fitted = of("exceptions", "NotFittedError")
    x, _ = data("three")
    model = fk.sklearn.Compiled(logistic())
    with pytest.raises(not_fitted):
        model.predict(x)
    assert not hasattr(model, "classes_") and hasattr(model, "predict_proba")
    assert not hasattr(model, "transform") and model.compiled_methods_ == ()


def test_sparse_rows_and_arguments_go_to_the_original() -> None:
    sparse: Any = importlib.import_module("scipy.sparse")
    x, y = data("regressor")
    model = compiled(of("linear_model", "BayesianRidge")(), x, y)
    _, deviation = model.predict(x, return_std=True)
    np.testing.assert_array_equal(deviation, model.estimator_.predict(x, return_std=True)[1])
    model = compiled(of("linear_model", "Ridge")(), x, y)
    found = model.predict(sparse.csr_array(x))
    np.testing.assert_array_equal(found, model.estimator_.predict(sparse.csr_array(x)))


def test_scikit_learn_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("farkas.sklearn")

    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(module, "import_module", missing)
    with pytest.raises(ToolchainError, match=r"pip install '\.\[sklearn\]'"):
        _ = fk.sklearn.Compiled
    with pytest.raises(AttributeError, match="no attribute 'compile'"):
        _ = fk.sklearn.compile  # type: ignore[attr-defined]


# --- conventions of scikit-learn ------------------------------------------------------------------


def test_copies_pickles_and_clones() -> None:
    x, y = data("three")
    model = compiled(make(scaler(), logistic()), x, y)
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        np.testing.assert_array_equal(other.predict(x), model.predict(x))
        served_alone(other, x, ALL)
    again = of("base", "clone")(model)
    assert not hasattr(again, "estimator_") and again.estimator is not model.estimator
    assert again.get_params()["estimator__logisticregression__C"] == 1.0
    again.set_params(estimator__logisticregression__C=0.1)
    assert again.estimator[-1].C == 0.1 and model.estimator[-1].C == 1.0


def test_attributes_are_the_originals() -> None:
    x, y = data("three")
    model = compiled(make(scaler(), logistic()), x, y)
    assert list(model.classes_) == ["ash", "elm", "oak"] and model.n_features_in_ == 6
    assert model.score(x, y) == model.estimator_.score(x, y)
    assert model[0].mean_ is model.estimator_[0].mean_
    assert of("base", "is_classifier")(model) and not of("base", "is_regressor")(model)
    np.testing.assert_array_equal(model.predict_log_proba(x), model.estimator_.predict_log_proba(x))


def test_a_second_fit_replaces_the_first() -> None:
    x, y = data("regressor")
    model = compiled(of("linear_model", "LinearRegression")(), x, y)
    first = model.predict(x)
    model.fit(x, 2 * y)
    np.testing.assert_allclose(model.predict(x), 2 * first)
    model.fit(x[:, :3], y)
    agree(model, x[:, :3], PREDICT)


def test_partial_fits() -> None:
    x, _ = data("none")
    model = fk.sklearn.Compiled(scaler()).partial_fit(x[:100])
    agree(model, x, TRANSFORM)
    first = model.transform(x)
    model.partial_fit(x[100:])
    agree(model, x, TRANSFORM)
    assert not np.allclose(model.transform(x), first)
    served_alone(model, x, TRANSFORM)


def test_partial_fits_of_what_is_fitted() -> None:
    x, y = data("regressor")
    sgd = of("linear_model", "SGDRegressor")(random_state=0).fit(x[:100], y[:100])
    model = fk.sklearn.Compiled(copy.deepcopy(sgd)).partial_fit(x[100:], y[100:])
    np.testing.assert_allclose(model.coef_, sgd.partial_fit(x[100:], y[100:]).coef_)


def in_place() -> list[Any]:
    preprocessing = importlib.import_module("sklearn.preprocessing")
    return [
        scaler(copy=False), preprocessing.Normalizer(copy=False),
        of("impute", "SimpleImputer")(copy=False),
        make(preprocessing.QuantileTransformer(n_quantiles=9, copy=False), scaler(copy=False)),
    ]  # fmt: skip


@pytest.mark.parametrize("case", range(4))
def test_estimators_that_compute_in_place(case: int) -> None:
    """`fit` and `fit_transform` leave rows as the original's do, and nothing is computed twice."""
    x, _ = data("none")
    if case == 2:
        x[::3, 2] = np.nan
    one, other = x.copy(), x.copy()
    model, original = fk.sklearn.Compiled(in_place()[case]), in_place()[case]
    model.fit(one)
    original.fit(other)
    np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(model.transform(x.copy()), original.transform(x.copy()))
    model, original = fk.sklearn.Compiled(in_place()[case]), in_place()[case]
    np.testing.assert_allclose(model.fit_transform(one), original.fit_transform(other))
    if case < 3:
        served_alone(model, x.copy(), TRANSFORM)
    model = fk.sklearn.Compiled(original)  # which is copied at the first call
    np.testing.assert_allclose(model.transform(x.copy()), original.transform(x.copy()))


def test_transformers_that_need_no_fit() -> None:
    class Logarithms(of("base", "TransformerMixin"), of("base", "BaseEstimator")):  # type: ignore[misc]
        def fit(self, X: Any, y: Any = None) -> Any:  # noqa: N803
            return self

        def transform(self, X: Any) -> Any:  # noqa: N803
            return np.log1p(X)

    x = np.abs(data("none")[0])
    np.testing.assert_array_equal(fk.sklearn.Compiled(Logarithms()).transform(x), np.log1p(x))


def test_estimators_that_are_fitted_already() -> None:
    x, y = data("three")
    fitted = make(scaler(), logistic()).fit(x, y)
    model = fk.sklearn.Compiled(fitted)
    want = fitted.predict(x)
    np.testing.assert_array_equal(model.predict(x), want)
    served_alone(model, x, ALL)
    fitted.fit(-x, y)  # of which there is a copy
    np.testing.assert_array_equal(model.predict(x), want)
    frozen = compiled(of("frozen", "FrozenEstimator")(fitted), x, y)
    assert frozen.estimator_.estimator is fitted
    agree(frozen, x, ALL)


def test_searches() -> None:
    x, y = data("three")
    search = of("model_selection", "GridSearchCV")(logistic(max_iter=500), {"C": [0.1, 1.0]}, cv=2)
    agree(compiled(search, x, y), x, ALL)
    outer = of("model_selection", "cross_val_score")(
        fk.sklearn.Compiled(make(scaler(), logistic())), x, y, cv=2
    )
    inner = of("model_selection", "cross_val_score")(make(scaler(), logistic()), x, y, cv=2)
    np.testing.assert_array_equal(outer, inner)


def test_in_a_pipeline_and_with_weights() -> None:
    x, y = data("three")
    weights = np.linspace(0.1, 1, len(x))
    model = fk.sklearn.Compiled(logistic(max_iter=500)).fit(x, y, sample_weight=weights)
    other = logistic(max_iter=500).fit(x, y, sample_weight=weights)
    np.testing.assert_allclose(model.predict_proba(x), other.predict_proba(x))
    assert of("utils.validation", "has_fit_parameter")(model, "sample_weight")
    whole = make(fk.sklearn.Compiled(scaler()), fk.sklearn.Compiled(logistic())).fit(x, y)
    np.testing.assert_array_equal(whole.predict(x), make(scaler(), logistic()).fit(x, y).predict(x))


def test_output_as_data_frames() -> None:
    pytest.importorskip("pandas")
    x, _ = data("none")
    model = compiled(scaler(), x).set_output(transform="pandas")
    assert type(model.transform(x)).__name__ == "DataFrame"
    assert type(compiled(scaler(), x).fit_transform(x)) is np.ndarray
    with of("_config", "config_context")(transform_output="pandas"):
        assert type(compiled(scaler(), x).transform(x)).__name__ == "DataFrame"


def test_output_of_pipelines_as_data_frames() -> None:
    pytest.importorskip("pandas")
    x, _ = data("none")
    model = compiled(make(of("impute", "SimpleImputer")(), scaler()), x)
    with pytest.warns(ModelWarning, match="not a DataFrame"):
        found = model.set_output(transform="pandas").transform(x)
    assert type(found).__name__ == "DataFrame"
    assert type(model.set_output(transform="default").transform(x)) is np.ndarray


CHECKED: dict[str, Callable[[], Any]] = {
    "logistic": logistic,
    "scaler": scaler,
    "pipeline": lambda: make(scaler(), of("linear_model", "LinearRegression")()),
    "bayes": lambda: of("naive_bayes", "GaussianNB")(),
    "forest": lambda: forest(n_estimators=3),
    "boosting": lambda: ensembles("GradientBoostingRegressor", n_estimators=20, learning_rate=0.3),
    "k-means": lambda: of("cluster", "KMeans")(n_clusters=3, n_init=1, random_state=0),
    "vectors, which are not compiled": lambda: of("svm", "SVC")(),
}
#: Checks that these estimators fail by themselves, as scikit-learn's own tests expect.
WEIGHTS = {
    f"check_sample_weight_equivalence_on_{kind}_data": "weights are not repetitions of rows"
    for kind in ("dense", "sparse")
}
UNWEIGHTED = ("forest", "boosting", "k-means", "vectors, which are not compiled")


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKED)
@pytest.mark.filterwarnings("ignore")
def test_check_estimator(name: str) -> None:
    checks = importlib.import_module("sklearn.utils.estimator_checks")
    found = checks.check_estimator(
        fk.sklearn.Compiled(CHECKED[name]()),
        on_skip=None,
        expected_failed_checks=WEIGHTS if name in UNWEIGHTED else {},
    )
    status = {check["check_name"] for check in found}
    own = {getattr(c, "func", c).__name__ for _, c in
           checks.estimator_checks_generator(CHECKED[name]())}  # fmt: skip
    # These look at the class of the estimator, or at a parameter of its own.
    others = ("check_class_weight", "check_cluster", "check_estimators_partial_fit_n_features")
    assert len(status) > 35 and {n for n in own - status if not n.startswith(others)} == set()
