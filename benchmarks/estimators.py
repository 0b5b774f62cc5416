"""Estimators and pipelines of scikit-learn beside themselves, compiled and in ONNX Runtime.

``python -m benchmarks.estimators`` prints a table; ``--quick`` takes fewer turns, ``--only forest``
the estimators with that in their names.  They are fitted to seeded random data.  scikit-learn and
Farkas are passed float64, and Farkas checks it as scikit-learn does; ONNX Runtime is passed
float32, in which converted models usually run, without a check.
"""

from __future__ import annotations

import argparse
import math
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from benchmarks.measure import QUICK, Settings, take_turns

Array = np.ndarray

FEATURES, CLASSES, SAMPLES = 32, 4, 4000
ROWS = (1, 100, 10_000)
NAMES = ("scikit-learn", "ONNX Runtime", "Farkas")


def estimators() -> dict[str, Callable[[], Any]]:
    """Estimators and pipelines by name."""
    get = import_module
    linear, ensemble = get("sklearn.linear_model"), get("sklearn.ensemble")
    make = get("sklearn.pipeline").make_pipeline
    prepare, by_column = get("sklearn.preprocessing"), get("sklearn.compose").ColumnTransformer
    scaler, network = prepare.StandardScaler, get("sklearn.neural_network").MLPClassifier
    coded = [*range(4)]
    mixed = by_column([
        ("codes", prepare.OneHotEncoder(handle_unknown="ignore"), coded),
        ("numbers", scaler(), [*range(4, FEATURES)]),
    ])  # fmt: skip
    return {
        "scaler, ridge": lambda: make(scaler(), linear.Ridge()),
        "scaler, logistic": lambda: make(scaler(), linear.LogisticRegression()),
        "min-max, PCA, logistic": lambda: make(
            prepare.MinMaxScaler(), get("sklearn.decomposition").PCA(16),
            linear.LogisticRegression(),
        ),
        "columns, logistic": lambda: make(mixed, linear.LogisticRegression(max_iter=500)),
        "decision tree": lambda: get("sklearn.tree").DecisionTreeClassifier(random_state=0),
        "forest of depth 10": lambda: ensemble.RandomForestClassifier(
            100, max_depth=10, random_state=0
        ),
        "forest regressor": lambda: ensemble.RandomForestRegressor(100, random_state=0),
        "boosting": lambda: ensemble.GradientBoostingRegressor(random_state=0),
        "scaler, boosting classifier": lambda: make(
            scaler(), ensemble.GradientBoostingClassifier(n_estimators=50, random_state=0)
        ),
        "histogram boosting": lambda: ensemble.HistGradientBoostingClassifier(random_state=0),
        "perceptron": lambda: make(scaler(), network((64, 64), max_iter=20, random_state=0)),
        "naive Bayes": lambda: get("sklearn.naive_bayes").GaussianNB(),
        "k-means": lambda: get("sklearn.cluster").KMeans(8, n_init=1, random_state=0),
    }  # fmt: skip


def data() -> tuple[Array, Array, Array]:
    """Rows, numbers and classes; the first four features are whole numbers."""
    random = np.random.default_rng(0)
    x = random.normal(size=(SAMPLES, FEATURES))
    x[:, :4] = np.round(2 * x[:, :4]).clip(-4, 4)
    score = x @ random.normal(size=(FEATURES, CLASSES)) + np.abs(x[:, :1])
    return x, score[:, 0], score.argmax(1)


def rows_of(count: int) -> Array:
    """Rows that estimators were not fitted to; float32 has the same numbers."""
    random = np.random.default_rng(1)
    x = random.normal(size=(count, FEATURES)).astype(np.float32).astype(np.float64)
    x[:, :4] = np.round(2 * x[:, :4]).clip(-4, 4)
    return np.ascontiguousarray(x)


@dataclass(frozen=True)
class Line:
    """What was measured of one estimator for a number of rows.

    seconds : of one call, by name; differ : which part of the predictions differs from
    scikit-learn's, numbers by more than 1e-9 of the largest
    """

    name: str
    rows: int
    seconds: Mapping[str, float]
    differ: Mapping[str, float]


def session_of(fitted: Any, regresses: bool) -> Any:
    """ONNX Runtime's session of what skl2onnx makes; None if either fails."""
    runtime, convert = import_module("onnxruntime"), import_module("skl2onnx").to_onnx
    options = None if regresses or not hasattr(fitted, "classes_") else {"zipmap": False}
    example = np.zeros((1, FEATURES), np.float32)
    try:
        model = convert(fitted, example, options=options)
        return runtime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        print(f"no ONNX Runtime: {type(error).__name__}", file=sys.stderr)
        return None


def run_session(session: Any, rows: Array) -> Array:
    """What ONNX Runtime predicts."""
    found: Array = session.run(None, {"X": rows})[0]
    return found


def measured(name: str, make: Callable[[], Any], settings: Settings) -> list[Line]:
    """One estimator, for each number of rows."""
    compiled_class = import_module("farkas.sklearn").Compiled
    x, numbers, classes = data()
    original = make()
    regresses = import_module("sklearn.base").is_regressor(original)
    compiled = compiled_class(original).fit(x, numbers if regresses else classes)
    fitted = compiled.estimator_
    session = session_of(fitted, regresses)
    lines = []
    for count in ROWS:
        rows = rows_of(count)
        narrow = rows.astype(np.float32)
        calls: dict[str, Callable[[], Any]] = {
            "scikit-learn": partial(fitted.predict, rows),
            "Farkas": partial(compiled.predict, rows),
        }
        if session is not None:
            calls["ONNX Runtime"] = partial(run_session, session, narrow)
        want = calls["scikit-learn"]()
        others = {n: call() for n, call in calls.items() if n != "scikit-learn"}
        lines.append(Line(
            name, count, take_turns(calls, settings),
            {n: differing(found, want) for n, found in others.items()},
        ))  # fmt: skip
    return lines


def differing(found: Array, want: Array) -> float:
    """Which part of the predictions differs."""
    found = np.asarray(found).reshape(want.shape)
    if want.dtype.kind != "f":
        return float((found != want).mean())
    return float((np.abs(found - want) > 1e-9 * np.abs(want).max()).mean())


def table(lines: Sequence[Line]) -> str:
    """Times in microseconds, how many times as long the others take, and differing predictions."""
    head = ["estimator", "rows", *(f"{n}, us" for n in NAMES), "sk/Farkas", "ORT/Farkas"]
    head += ["Farkas differs", "ORT differs"]
    cells = [head]
    for line in lines:
        own = line.seconds["Farkas"]
        cells.append([
            line.name, f"{line.rows:,}",
            *(f"{1e6 * line.seconds[n]:,.1f}" if n in line.seconds else "-" for n in NAMES),
            *(f"{line.seconds[n] / own:.2f}" if n in line.seconds else "-" for n in NAMES[:2]),
            *(f"{100 * line.differ[n]:.2f} %" if n in line.differ else "-"
              for n in ("Farkas", "ONNX Runtime")),
        ])  # fmt: skip
    for count in ROWS:
        of_count = [line for line in lines if line.rows == count]
        if of_count:
            cells.append(["geometric mean", f"{count:,}", "", "", "", *means(of_count), "", ""])
    text = ["| " + " | ".join(row) + " |" for row in cells]
    return "\n".join([text[0], "|" + "---|" * len(head), *text[1:]])


def means(lines: Sequence[Line]) -> list[str]:
    """The geometric means of the ratios to Farkas, for the others."""
    found = []
    for name in NAMES[:2]:
        ratios = [
            line.seconds[name] / line.seconds["Farkas"] for line in lines if name in line.seconds
        ]
        found.append(f"{math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f}" if ratios else "-")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.estimators", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer turns")
    parser.add_argument("--only", default="", help="estimators with this in their names")
    given = parser.parse_args(arguments)
    settings = QUICK if given.quick else Settings()
    lines: list[Line] = []
    for name, make in estimators().items():
        if given.only not in name:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            lines += measured(name, make, settings)
        print(f"{name} is done", file=sys.stderr)
    print(table(lines))


if __name__ == "__main__":
    main()
