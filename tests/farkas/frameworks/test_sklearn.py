"""Estimators of scikit-learn, compiled: the same predictions, of the same types and shapes."""

from __future__ import annotations

import copy
import importlib
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import farkas as fk
from poly.errors import ModelWarning
from tests.farkas.estimators import (
    ALL,
    PREDICT,
    SCORES,
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


#: Estimators, the kind of target, and which methods must be compiled.
CASES: dict[str, tuple[Callable[[], Any], str, tuple[str, ...]]] = {
    "linear": (lambda: of("linear_model", "LinearRegression")(), "regressor", PREDICT),
    "ridge of two": (lambda: of("linear_model", "Ridge")(), "several", PREDICT),
    "lasso": (lambda: make(scaler(), of("linear_model", "Lasso")(0.01)), "regressor", PREDICT),
    "logistic of two": (lambda: logistic(max_iter=500), "two", ALL),
    "logistic of three": (lambda: make(scaler(), logistic()), "three", ALL),
    "ridge classifier": (lambda: of("linear_model", "RidgeClassifier")(), "three", SCORES),
    "gradient descent": (
        lambda: make(scaler(), of("linear_model", "SGDClassifier")(
            loss="log_loss", random_state=0)),
        "three", ALL,
    ),
    "linear vectors": (lambda: make(scaler(), of("svm", "LinearSVC")()), "two", SCORES),
    "discriminant": (
        lambda: of("discriminant_analysis", "LinearDiscriminantAnalysis")(), "three",
        (*ALL, "transform"),
    ),
    "tree": (lambda: of("tree", "DecisionTreeClassifier")(random_state=0), "three", SHARES),
    "tree of two": (lambda: of("tree", "DecisionTreeRegressor")(max_depth=4), "several", PREDICT),
    "forest": (forest, "three", SHARES),
    "grown forest": (lambda: forest(max_depth=None), "two", SHARES),
    "scaled forest": (lambda: make(scaler(), forest()), "three", SHARES),
    "forest regressor": (
        lambda: ensembles("RandomForestRegressor", n_estimators=10), "regressor", PREDICT,
    ),
    "extra trees": (lambda: ensembles("ExtraTreesClassifier", n_estimators=10), "two", SHARES),
    "boosting": (
        lambda: ensembles("GradientBoostingRegressor", n_estimators=10), "regressor", PREDICT,
    ),
    "boosting of two": (
        lambda: ensembles("GradientBoostingClassifier", n_estimators=10), "two", ALL,
    ),
    "boosting of three": (
        lambda: ensembles("GradientBoostingClassifier", n_estimators=10), "three", ALL,
    ),
    "exponential boosting": (
        lambda: ensembles("GradientBoostingClassifier", n_estimators=10, loss="exponential"),
        "two", ALL,
    ),
    "binned boosting": (
        lambda: ensembles("HistGradientBoostingRegressor", max_iter=10), "regressor", PREDICT,
    ),
    "binned boosting of two": (
        lambda: ensembles("HistGradientBoostingClassifier", max_iter=10), "two", ALL,
    ),
    "binned boosting of three": (
        lambda: ensembles("HistGradientBoostingClassifier", max_iter=10), "three", ALL,
    ),
    "k-means": (
        lambda: of("cluster", "KMeans")(4, n_init=1, random_state=0), "none",
        ("predict", "transform"),
    ),
    "bayes": (lambda: of("naive_bayes", "GaussianNB")(), "three", SHARES),
    "perceptron of two": (
        lambda: make(scaler(), of("neural_network", "MLPClassifier")(
            (8, 5), "tanh", max_iter=30, random_state=0)),
        "two", SHARES,
    ),
    "perceptron of three": (
        lambda: make(scaler(), of("neural_network", "MLPClassifier")(
            (8,), "logistic", max_iter=30, random_state=0)),
        "three", SHARES,
    ),
    "perceptron regressor": (
        lambda: make(scaler(), of("neural_network", "MLPRegressor")(
            hidden_layer_sizes=(8,), max_iter=30, random_state=0)),
        "regressor", PREDICT,
    ),
    "standard scaler": (scaler, "none", TRANSFORM),
    "scaler without mean": (lambda: scaler(with_mean=False), "none", TRANSFORM),
    "robust scaler": (lambda: of("preprocessing", "RobustScaler")(), "none", TRANSFORM),
    "min-max scaler": (
        lambda: of("preprocessing", "MinMaxScaler")((-1, 2), clip=True), "none", TRANSFORM,
    ),
    "max-abs scaler": (lambda: of("preprocessing", "MaxAbsScaler")(), "none", TRANSFORM),
    "normalizer l1": (lambda: of("preprocessing", "Normalizer")("l1"), "none", TRANSFORM),
    "normalizer l2": (lambda: of("preprocessing", "Normalizer")("l2"), "none", TRANSFORM),
    "normalizer max": (lambda: of("preprocessing", "Normalizer")("max"), "none", TRANSFORM),
    "polynomial": (lambda: of("preprocessing", "PolynomialFeatures")(3), "none", TRANSFORM),
    "selection": (lambda: of("feature_selection", "SelectKBest")(k=3), "two", TRANSFORM),
    "components": (lambda: of("decomposition", "PCA")(3), "none", TRANSFORM),
    "white components": (
        lambda: make(of("preprocessing", "MinMaxScaler")(), of("decomposition", "PCA")(
            3, whiten=True), logistic()),
        "three", ALL,
    ),
    "singular values": (
        lambda: of("decomposition", "TruncatedSVD")(3, random_state=0), "none", TRANSFORM,
    ),
    "union": (
        lambda: make(of("pipeline", "FeatureUnion")(
            [("a", scaler()), ("b", of("preprocessing", "MinMaxScaler")())]), logistic()),
        "three", ALL,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_predictions(name: str, dtype: str) -> None:
    estimator, kind, methods = CASES[name]
    x, y = data(kind)
    x = x.astype(dtype)
    model = compiled(estimator(), x, y)
    assert set(model.compiled_methods_) == set(methods) and not model.not_compiled_
    fresh = np.random.default_rng(1).normal(size=(300, 6)).astype(dtype) * 3
    for rows in (fresh, fresh[:1], fresh[5:12], x):
        agree(model, rows, methods, 1e-9 if dtype == "float64" else 1e-4)
        if "k-means" not in name:
            served_alone(model, rows[:1], methods)


def test_other_layouts_and_integers() -> None:
    x, y = data("three")
    model = compiled(make(scaler(), forest()), x, y)
    whole = np.round(x)
    for rows in (
        np.asfortranarray(x), x[::-2], x[:, ::-1], whole.astype(np.int64), whole.astype(np.int16),
        x.tolist(), x > 0, x.astype(np.float16),
    ):  # fmt: skip
        agree(model, rows, SHARES)
    served_alone(model, np.asfortranarray(x), SHARES)


def test_types_that_it_was_not_fitted_to() -> None:
    """float32 for an estimator of float64 is compiled, too, at the second call."""
    x, y = data("three")
    model = compiled(make(scaler(), forest()), x, y)
    narrow = x.astype(np.float32)
    agree(model, narrow, SHARES)
    served_alone(model, narrow, SHARES)
    agree(model, narrow, SHARES)


# --- what must not be a wrong number --------------------------------------------------------------


def scalers(name: str) -> Any:
    prepare: Any = importlib.import_module("sklearn.preprocessing")
    return {
        "none": lambda: "passthrough",
        "standard": prepare.StandardScaler,
        "robust": prepare.RobustScaler,
        "max-abs": prepare.MaxAbsScaler,
        "min-max": lambda: prepare.MinMaxScaler(clip=True),
        "two": lambda: make(prepare.StandardScaler(), prepare.MinMaxScaler()),
        "columns": lambda: of("compose", "ColumnTransformer")(
            [("a", prepare.StandardScaler(), [4, 0]), ("b", "passthrough", [1, 2])],
            remainder=prepare.MaxAbsScaler(),
        ),
    }[name]()


@pytest.mark.parametrize("name", ["none", "standard", "robust", "max-abs", "min-max", "two",
                                  "columns"])  # fmt: skip
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_thresholds_are_compared_as_scikit_learn_does(name: str, dtype: str) -> None:
    """The last number that goes one way, and the first that goes the other, of each threshold."""
    x, y = data("three")
    x = x.astype(dtype)
    tree = of("tree", "DecisionTreeClassifier")(random_state=0)
    model = compiled(make(scalers(name), tree), x, y)
    assert set(model.compiled_methods_) == set(SHARES)
    first, last = model.estimator_[:-1], model.estimator_[-1].tree_
    asked = np.flatnonzero(last.feature >= 0)
    rows = np.tile(x[:1], (len(asked), 1))
    # Each row has a number for which the first answer is yes, and is moved up until it is no.
    features, bounds = last.feature[asked], last.threshold[asked]
    place = np.arange(len(asked))
    column = np.array([4, 0, 1, 2, 3, 5])[features] if name == "columns" else features

    def is_yes(values: np.ndarray) -> np.ndarray:
        rows[place, column] = values
        found: np.ndarray = first.transform(rows).astype(np.float32)[place, features] <= bounds
        return found

    low, high = np.full(len(asked), -100, dtype), np.full(len(asked), 200, dtype)
    cut = is_yes(low) & ~is_yes(high)
    assert cut.sum() > 10
    for _ in range(80):
        middle = (low / 2 + high / 2).astype(dtype)
        below = is_yes(middle)
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    assert (np.nextafter(low, np.inf, dtype=dtype)[cut] == high[cut]).mean() > 0.9
    for values in (low, high, *(np.nextafter(high, s * np.inf, dtype=dtype) for s in (1, -1))):
        rows[place, column] = values
        found, want = model.predict_proba(rows), model.estimator_.predict_proba(rows)
        np.testing.assert_array_equal(found, want)
        for row in range(0, len(rows), 5):
            np.testing.assert_array_equal(model.predict_proba(rows[row : row + 1]), want[[row]])
    served_alone(model, rows, SHARES)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_large_means(dtype: str) -> None:
    """Features that vary little beside their mean lose no digits but those of scikit-learn."""
    x, y = data("three")
    x = (x + np.array([1e3, 0, 0, 0, -1e4, 0])).astype(dtype)
    model = fk.sklearn.Compiled(make(scaler(), logistic())).fit(x, y)
    agree(model, x, ALL, 1e-9 if dtype == "float64" else 1e-4)
    assert set(model.compiled_methods_) == set(ALL)


def test_rounding_does_not_decide() -> None:
    """Scores that are 0 but for rounding have the class that scikit-learn gives them."""
    random = np.random.default_rng(0)
    half = random.normal(size=(300, 20))
    x = np.hstack([half, -half[:, random.permutation(20)]])
    model = logistic().fit(x, half[:, 0] > 0)
    weights = random.normal(size=20)
    model.coef_, model.intercept_ = np.hstack([weights, weights])[None], np.zeros(1)
    rows = np.hstack([half, -half])
    order = random.permutation(40)
    model.coef_, rows = model.coef_[:, order], np.ascontiguousarray(rows[:, order])
    assert len(np.unique(model.predict(rows))) == 2, "rounding makes both classes"
    frozen = compiled(of("frozen", "FrozenEstimator")(model), x, half[:, 0] > 0)
    assert "predict" in frozen.compiled_methods_
    np.testing.assert_array_equal(frozen.predict(rows), model.predict(rows))
    for row in rows[:20]:
        assert frozen.predict(row[None]) == model.predict(row[None])


def test_votes_that_are_equal() -> None:
    """With grown trees, which vote for one class each, ties are exact."""
    random = np.random.default_rng(0)
    x, y = random.normal(size=(60, 3)), random.integers(0, 2, 60)
    model = compiled(forest(n_estimators=4, max_depth=None), x, y)
    rows = random.normal(size=(500, 3))
    shares = model.estimator_.predict_proba(rows)
    assert (shares[:, 0] == 0.5).sum() > 20
    agree(model, rows, SHARES)
    served_alone(model, rows, PREDICT)


def test_what_differs_stays_with_the_original(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lowering with a mistake is found on the rows that the estimator is fitted to."""
    registry: Any = importlib.import_module("frontends.sklearn.registry")
    right = registry._PREDICTORS["LinearRegression"]

    def wrong(e: Any, model: Any, x: Any) -> Any:
        other = copy.deepcopy(model)
        other.coef_ = other.coef_ * (1 + 1e-6)
        return right(e, other, x)

    monkeypatch.setitem(registry._PREDICTORS, "LinearRegression", wrong)
    x, y = data("regressor")
    with pytest.warns(ModelWarning, match="predict of LinearRegression: .* numbers differ"):
        model = fk.sklearn.Compiled(of("linear_model", "LinearRegression")()).fit(x, y)
    assert model.compiled_methods_ == () and "predict" in model.not_compiled_
    agree(model, x, PREDICT, 0.0)


def test_a_subclass_may_compute_something_else() -> None:
    linear: Any = of("linear_model", "LinearRegression")

    class Shifted(linear):  # type: ignore[misc]
        def predict(self, x: Any) -> Any:
            return super().predict(x) + 1

    x, y = data("regressor")
    with pytest.warns(ModelWarning, match="Shifted has no lowering"):
        model = fk.sklearn.Compiled(Shifted()).fit(x, y)
    agree(model, x, PREDICT, 0.0)


def test_what_has_no_lowering_stays_with_the_original() -> None:
    x, y = data("two")
    with pytest.warns(ModelWarning, match="SVC has no lowering") as found:
        model = fk.sklearn.Compiled(of("svm", "SVC")()).fit(x, y)
    assert len(found) == 1 and not hasattr(model, "predict_proba")
    agree(model, x, SCORES, 0.0)


def test_the_first_steps_may_stay_with_scikit_learn() -> None:
    x, y = data("three")
    with pytest.warns(ModelWarning, match=r"the first steps of Pipeline: .* after arithmetic"):
        model = fk.sklearn.Compiled(make(of("decomposition", "PCA")(3), forest())).fit(x, y)
    assert set(model.compiled_methods_) == set(SHARES)
    agree(model, x, SHARES)
    agree(model, x[:1], SHARES)
    with pytest.raises(ValueError, match="X contains NaN"):
        model.predict(np.full((1, 6), np.nan))


# --- data frames and categories -------------------------------------------------------------------


def table(count: int = 200) -> tuple[Any, np.ndarray]:
    pandas: Any = importlib.import_module("pandas")
    random = np.random.default_rng(0)
    frame = pandas.DataFrame({
        "age": random.integers(18, 80, count),
        "town": random.choice(["Aachen", "Berlin", "Celle"], count),
        "income": random.normal(size=count),
        "kind": random.choice(["a", "b"], count),
    })  # fmt: skip
    score = frame["income"] + (frame["town"] == "Celle") + 0.5 * (frame["kind"] == "b")
    return frame, np.asarray(score + 0.3 * random.normal(size=count) > 0.5)


def by_column(unknown: str, **params: Any) -> Any:
    encoder = of("preprocessing", "OneHotEncoder")(handle_unknown=unknown, **params)
    return of("compose", "ColumnTransformer")([
        ("numbers", scaler(), ["age", "income"]), ("texts", encoder, ["town", "kind"]),
    ])  # fmt: skip


@pytest.mark.parametrize("last", [logistic, forest])
@pytest.mark.parametrize("drop", [None, "first"])
def test_columns_of_text(last: Callable[[], Any], drop: str | None) -> None:
    pytest.importorskip("pandas")
    frame, y = table()
    model = compiled(make(by_column("error", drop=drop), last()), frame, y)
    methods = tuple(m for m in ALL if hasattr(model, m))
    assert set(model.compiled_methods_) == set(methods)
    for rows in (frame, frame[:1], frame[20:50]):
        agree(model, rows, methods)
    served_alone(model, frame[:1], ("predict_proba",))


def test_unknown_categories() -> None:
    pytest.importorskip("pandas")
    frame, y = table()
    other = frame.copy()
    other.loc[3, "town"] = "Dresden"
    model = compiled(make(by_column("ignore"), logistic()), frame, y)
    agree(model, other, ALL)
    served_alone(model, other, ("predict_proba",))
    other.loc[5, "kind"] = None
    agree(model, other, ALL)
    model = compiled(make(by_column("error"), logistic()), frame, y)
    for method in ALL:
        refused(model, method, other)


def test_ordinal_and_numeric_categories() -> None:
    x, y = data("two")
    x[:, :2] = np.round(x[:, :2]).clip(-2, 2)
    encode = importlib.import_module("sklearn.preprocessing")
    for encoder in (encode.OrdinalEncoder(), encode.OneHotEncoder(drop="if_binary")):
        columns = of("compose", "ColumnTransformer")(
            [("codes", encoder, [0, 1]), ("none", "drop", [2])], remainder="passthrough"
        )
        model = compiled(make(columns, logistic(max_iter=500)), x, y)
        agree(model, x, ALL)
        agree(model, x[:1], ALL)
        unknown = x.copy()
        unknown[7, 0] = 0.5
        refused(model, "predict_proba", unknown)


def test_columns_are_checked() -> None:
    pytest.importorskip("pandas")
    frame, y = table()
    model = compiled(make(scaler(), logistic()), frame[["age", "income"]], y)
    agree(model, frame[["age", "income"]], ALL)
    refused(model, "predict", frame[["income", "age"]])
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        model.predict(frame[["age", "income"]].to_numpy())
    nameless = compiled(make(scaler(), logistic()), frame[["age", "income"]].to_numpy(), y)
    with pytest.warns(UserWarning, match="was fitted without feature names"):
        nameless.predict(frame[["age", "income"]])


def test_columns_of_several_types() -> None:
    pandas = pytest.importorskip("pandas")
    x, y = data("two")
    plain = {"a": x[:, 0], "n": (x[:, 1] * 10).astype(np.int16), "m": np.arange(len(x))}
    columns = of("compose", "ColumnTransformer")
    for whole in (
        make(scaler(), logistic()), make(columns([("s", scaler(), ["a"])], remainder="passthrough"),
                                         logistic(max_iter=1000)),
    ):  # fmt: skip
        model = compiled(whole, pandas.DataFrame(plain), y)
        agree(model, pandas.DataFrame(plain), ALL)
        served_alone(model, pandas.DataFrame(plain), ("predict_proba",))
        # Transformers of float32 alone compute in it, and others do not.
        mixed = pandas.DataFrame(plain).astype({"a": np.float32})
        with pytest.warns(ModelWarning, match="rows of such a type"):
            model = fk.sklearn.Compiled(whole).fit(mixed, y)
        agree(model, mixed, ALL)


def test_unsure_rows_of_data_frames() -> None:
    pandas = pytest.importorskip("pandas")
    x, y = data("two")
    frame = pandas.DataFrame(x, columns=[*"abcdef"])
    model = compiled(logistic(fit_intercept=False), frame, y)
    frame.iloc[7] = 0.0  # of score 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agree(model, frame, PREDICT)


def test_dropped_and_unknown_categories() -> None:
    x = np.array([[0.0], [1.0], [2.0], [1.0]])
    encoder = of("preprocessing", "OneHotEncoder")
    model = compiled(encoder(drop="first", handle_unknown="ignore", sparse_output=False), x)
    agree(model, x, TRANSFORM)
    with pytest.warns(UserWarning, match="Found unknown categories"):
        found = model.transform(np.array([[5.0]]))
    np.testing.assert_array_equal(found, [[0, 0]])


@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_that_are_too_short(dtype: str, norm: str) -> None:
    x = data("none")[0].astype(dtype)
    model = compiled(of("preprocessing", "Normalizer")(norm=norm), x)
    eps = np.finfo(dtype).eps
    short = (np.ones((4, 6)) * np.array([[1], [2], [30], [0]]) * eps / 4).astype(dtype)
    agree(model, short, TRANSFORM, rtol=1e-6)
    served_alone(model, short, TRANSFORM)
    pipeline = compiled(make(scaler(), of("preprocessing", "Normalizer")(norm=norm)), x)
    agree(pipeline, x, TRANSFORM, rtol=1e-5 if dtype == "float32" else 1e-9)
    served_alone(pipeline, x, TRANSFORM)
    agree(pipeline, pipeline.estimator_[0].mean_[None].astype(dtype), TRANSFORM)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_overflows_between_steps(dtype: str) -> None:
    x, y = data("three")
    x = (x * 1e-3).astype(dtype)
    powers = of("preprocessing", "PolynomialFeatures")(2)
    for steps in (
        (scaler(), forest()), (scaler(), logistic()), (powers, logistic()),
        (scaler(), powers, logistic()), (scaler(), of("decomposition", "PCA")(3), logistic()),
    ):  # fmt: skip
        model = compiled(make(*steps), x, y)
        served_alone(model, x, ("predict_proba",))
        for large in (1e18, 1e20, 1e37, 1e38, *([1e152, 1e200] if dtype == "float64" else [])):
            huge = x[:2].copy()
            huge[0, 0] = large
            refused_or_same(model, huge)


def refused_or_same(model: Any, rows: np.ndarray) -> None:
    """It does what the original does."""
    try:
        model.estimator_.predict_proba(rows)
    except ValueError:
        refused(model, "predict_proba", rows)
    else:
        agree(model, rows, SHARES, rtol=1e-5 if rows.dtype == np.float32 else 1e-9)


def test_missing_numbers() -> None:
    x, y = data("three")
    x[np.random.default_rng(0).random(x.shape) < 0.1] = np.nan
    imputer = of("impute", "SimpleImputer")(strategy="median")
    for estimator in (
        make(imputer, scaler(), logistic()), make(imputer, forest()), make(scaler(), forest()),
        forest(), ensembles("HistGradientBoostingClassifier", max_iter=10),
        of("tree", "DecisionTreeClassifier")(max_depth=5, random_state=0),
    ):  # fmt: skip
        model = compiled(estimator, x, y)
        agree(model, x, SHARES)
        agree(model, x[:1], SHARES)
        served_alone(model, x, ("predict_proba",))
        x[3, 2], kept = np.inf, x[3, 2]
        if "Hist" not in type(estimator).__name__:
            refused(model, "predict", x)
        x[3, 2] = kept
