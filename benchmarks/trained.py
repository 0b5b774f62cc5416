"""Suite trained: models of scikit-learn, LightGBM and XGBoost, for 1, 100 and 10,000 rows.

They are fitted to seeded random data during the run; the packages are those of the extra
`models`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.kernel import Array, aligned
from benchmarks.task import Task, UnavailableError

FEATURES, CLASSES, SAMPLES = 32, 4, 4000
ROWS = (1, 100, 10_000)


def _estimators() -> Mapping[str, Callable[[], Any]]:
    """Estimators of scikit-learn by name."""
    from sklearn import ensemble, linear_model, neural_network, svm
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    forest = ensemble.RandomForestClassifier
    return {
        "logistic": lambda: make_pipeline(StandardScaler(), linear_model.LogisticRegression()),
        "perceptron": lambda: neural_network.MLPClassifier((64, 64), max_iter=20, random_state=0),
        "vectors": lambda: svm.SVC(max_iter=200),
        "forest of depth 10": lambda: forest(100, max_depth=10, random_state=0),
        "grown forest": lambda: forest(100, random_state=0),
        "boosting": lambda: ensemble.GradientBoostingRegressor(n_estimators=100, random_state=0),
    }


_BOOSTED = ("LightGBM", "XGBoost")
_NAMES = (
    "logistic", "perceptron", "vectors", "forest of depth 10", "grown forest", "boosting",
    *_BOOSTED,
)  # fmt: skip


def names() -> tuple[str, ...]:
    """Each model with each number of rows."""
    return tuple(f"{name}, {rows}" for name in _NAMES for rows in ROWS)


def size(name: str) -> tuple[int, int]:
    """No operations or bytes are counted."""
    return 0, 0


def write(name: str, folder: Path) -> Path:
    """Fit a model, and write its file; returns its path.

    Raises
    ------
    UnavailableError : a package is missing.
    """
    model = name.rpartition(", ")[0]
    path = folder / f"{model}.onnx"
    if not path.exists():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made = _fitted(model)
                for output in made.graph.output:  # converters declare one row
                    output.type.tensor_type.ClearField("shape")
                onnx.save(made, path)
        except ImportError as error:
            raise UnavailableError(f"{error}; pip install '.[models]'") from error
    return path


def _fitted(name: str) -> onnx.ModelProto:
    random = np.random.default_rng(0)
    x = random.normal(size=(SAMPLES, FEATURES)).astype(np.float32)
    score = x @ random.normal(size=(FEATURES, CLASSES)) + np.abs(x[:, :1])
    if name not in _BOOSTED:
        from skl2onnx import to_onnx

        estimator = _estimators()[name]()
        y = score[:, 0] if name == "boosting" else score.argmax(1)
        options = None if name == "boosting" else {"zipmap": False}
        made: onnx.ModelProto = to_onnx(estimator.fit(x, y), x[:1], options=options)
        return made
    import onnxmltools
    from onnxmltools.convert.common.data_types import FloatTensorType

    types = [("X", FloatTensorType([None, FEATURES]))]
    if name == "LightGBM":
        import lightgbm

        fitted = lightgbm.LGBMClassifier(n_estimators=50, verbose=-1, n_jobs=1)
        made = onnxmltools.convert_lightgbm(
            fitted.fit(x, score.argmax(1)), initial_types=types, zipmap=False
        )
        return made
    import xgboost

    regressor = xgboost.XGBRegressor(n_estimators=200, n_jobs=1).fit(x, score[:, 0])
    made = onnxmltools.convert_xgboost(regressor, initial_types=types)
    return made


def task(name: str, path: Path) -> Task:
    """The task of a model, for a number of rows."""
    rows = int(name.rpartition(", ")[2])
    graph = onnx.load(path).graph
    x: Array = np.random.default_rng(1).normal(size=(rows, FEATURES)).astype(np.float32)
    outputs = tuple(o.name for o in graph.output)
    return Task(name, "trained", path, {graph.input[0].name: aligned(x)}, outputs)
