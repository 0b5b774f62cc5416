"""The order in which points are tried: by the estimate, and by a model of what was measured.

The model is a sum of small decision trees (Friedman, "Greedy function approximation: a gradient
boosting machine", 2001) from features of an estimate to the time beside the automatic schedule's.
scikit-learn has it; without it, the estimate alone decides.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import Any

from poly.space.cost import Cost
from runtime.tuned.record import Trial

#: With fewer trials, a model has nothing to learn from; with more than these, the last ones do.
FEWEST, MOST = 24, 2000
#: What failed counts as this many times as slow as the automatic schedule.
FAILED = 4.0


class Ranking:
    """Scores points by what they cost; less is better.

    known : trials of this machine
    """

    def __init__(self, known: Iterable[Trial] = ()) -> None:
        self._rows: list[tuple[float, ...]] = []
        self._values: list[float] = []
        self._model: Any = None
        self._trained = 0
        self.learn(known)

    def learn(self, trials: Iterable[Trial]) -> None:
        """Take trials into account."""
        for trial in trials:
            if trial.features:
                self._rows.append(trial.features)
                self._values.append(math.log(min(trial.ratio, FAILED)))

    def scores(self, costs: Sequence[Cost], automatic: Cost) -> list[float]:
        """The logarithms of the times that points may take, over that of the automatic schedule."""
        estimated = [math.log(c.cycles / automatic.cycles) for c in costs]
        model = self._fitted()
        if model is None or not costs:
            return estimated
        found: list[float] = model.predict([features(c, automatic) for c in costs]).tolist()
        return found

    def _fitted(self) -> Any:
        """The model, trained again once there is a fifth more to learn from."""
        if len(self._rows) < FEWEST or find_spec("sklearn") is None:
            return None
        if self._model is None or len(self._rows) > 1.2 * self._trained:
            from sklearn.ensemble import GradientBoostingRegressor

            model = GradientBoostingRegressor(
                n_estimators=60, max_depth=4, subsample=0.7, random_state=0
            )
            self._model = model.fit(self._rows[-MOST:], self._values[-MOST:])
            self._trained = len(self._rows)
        return self._model


def features(cost: Cost, automatic: Cost) -> tuple[float, ...]:
    """What the model knows of a point: its estimate, alone and beside the automatic schedule's."""
    own, base = cost.features, automatic.features
    return (*own, *(a - b for a, b in zip(own, base, strict=True)))
