"""``python -m benchmarks.tuning_prior RECORDS…``: write the measurements that Farkas ships.

RECORDS are files that ``python -m benchmarks --suite tuned`` has written.  What they are worth is
printed first: for programs that a model was not trained on, how well it orders their schedules
(Spearman's coefficient; the estimate alone beside it), and how much slower than the best one is the
best of the quarter that it would measure first.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import numpy as np
from scipy.stats import spearmanr

from farkas.tuning.learned import fitted, value_of
from farkas.tuning.prior import chosen, write_prior
from runtime.tuned.record import Trial, read_line

FOLDS, FEWEST = 5, 20

Score = Callable[[Sequence[Trial]], Sequence[float]]


def read_trials(path: Path) -> list[Trial]:
    """What a file says was measured."""
    lines = path.read_text(encoding="utf-8").splitlines()[1:]
    found = (read_line(line) for line in lines)
    return [t for t in found if isinstance(t, Trial) and t.features]


def worth(programs: dict[str, list[Trial]]) -> None:
    """Print what a model that was trained on other programs is worth."""
    names = [n for n, trials in programs.items() if len(trials) >= FEWEST]
    Random(0).shuffle(names)
    found: dict[str, list[tuple[float, float]]] = {"estimate": [], "model": []}
    for fold in range(FOLDS):
        held = set(names[fold::FOLDS])
        rows = [(value_of(t), t.features) for n in programs if n not in held for t in programs[n]]
        model = fitted(rows)
        for name in held:
            trials = programs[name]
            values = np.array([value_of(t) for t in trials])
            scores = {
                "estimate": np.array([t.features[-1] for t in trials]),
                "model": np.array(model.predict([t.features for t in trials])),
            }
            for kind, score in scores.items():
                first = np.argsort(score)[: max(1, len(trials) // 4)]
                lost = float(np.exp(values[first].min() - values.min()))
                found[kind].append((float(spearmanr(score, values)[0]), lost))
    for kind, results in found.items():
        order, lost = np.nanmean(np.array(results), axis=0)
        print(
            f"{kind:<10} coefficient {order:.2f}, best of the first quarter {lost:.3f} of the best"
        )


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.tuning_prior", description=__doc__)
    parser.add_argument("records", nargs="+", type=Path)
    trials = [t for path in parser.parse_args().records for t in read_trials(path)]
    programs: dict[str, list[Trial]] = {}
    for trial in trials:
        programs.setdefault(trial.key.program, []).append(trial)
    print(f"{len(trials)} measurements of {len(programs)} programs")
    worth(programs)
    kept = chosen(trials)
    write_prior((value_of(t), t.features) for t in kept)
    print(f"{len(kept)} are kept")
    return 0


if __name__ == "__main__":
    sys.exit(main())
