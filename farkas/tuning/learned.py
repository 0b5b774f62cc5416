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
#: The weight of what was measured on another machine.
PRIOR = 0.3
#: Features beyond this are none: they are logarithms.
LARGEST = 1e6

#: What the model learns from: a value, see `value_of`, and features.
Row = tuple[float, tuple[float, ...]]


class Ranking:
    """Scores points by what they cost; less is better.

    known : trials of this machine; prior : what is known of others, which counts for less
    """

    def __init__(self, known: Iterable[Trial] = (), prior: Iterable[Row] = ()) -> None:
        self._prior = list(prior)
        self._rows: list[Row] = []
        self._model: Any = None
        self._trained = 0
        self.learn(known)

    def learn(self, trials: Iterable[Trial]) -> None:
        """Take trials into account."""
        for trial in trials:
            if trial.features:
                self._rows.append((value_of(trial), trial.features))

    def scores(self, costs: Sequence[Cost], automatic: Cost) -> list[float]:
        """The logarithms of the times that points may take, over that of the automatic schedule."""
        estimated = [math.log(c.cycles / automatic.cycles) for c in costs]
        model = self._fitted(len(features(automatic, automatic)))
        if model is None or not costs:
            return estimated
        found: list[float] = model.predict([features(c, automatic) for c in costs]).tolist()
        return found

    def _fitted(self, count: int) -> Any:
        """The model of so many features, trained again once there is a fifth more to learn from.

        Records may be of a version with other features, or edited.
        """
        if self._model is None or len(self._rows) > 1.2 * self._trained:
            prior = [r for r in self._prior if len(r[1]) == count]
            rows = [r for r in self._rows if len(r[1]) == count and max(map(abs, r[1])) < LARGEST]
            if len(prior) + len(rows) < FEWEST or find_spec("sklearn") is None:
                return None
            self._model = fitted([*prior, *rows[-MOST:]], len(prior))
            self._trained = len(self._rows)
        return self._model


def value_of(trial: Trial) -> float:
    """What the model learns: the logarithm of a time over that of the automatic schedule."""
    return math.log(min(trial.ratio, FAILED))


def fitted(rows: Sequence[Row], less: int = 0) -> Any:
    """A model of such rows, of which the first `less` have less weight."""
    from sklearn.ensemble import GradientBoostingRegressor

    model = GradientBoostingRegressor(n_estimators=60, max_depth=4, subsample=0.7, random_state=0)
    weights = [PRIOR if n < less else 1.0 for n in range(len(rows))]
    return model.fit([row[1] for row in rows], [row[0] for row in rows], sample_weight=weights)


def features(cost: Cost, automatic: Cost) -> tuple[float, ...]:
    """What the model knows of a point: its estimate, alone and beside the automatic schedule's."""
    own, base = cost.features, automatic.features
    return (*own, *(a - b for a, b in zip(own, base, strict=True)))
