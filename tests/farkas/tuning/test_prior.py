"""The measurements that are shipped fit today's features, and say something about them."""

from __future__ import annotations

import math

import pytest

import farkas as fk
from farkas.targets.find_target import text_target
from farkas.tuning.learned import Ranking, features
from farkas.tuning.prior import chosen, prior
from poly.space.estimate import estimate
from runtime.tuned.record import Key, Trial


def test_they_fit_the_features_of_an_estimate() -> None:
    machine = text_target("cpu").machine
    schedule = fk.Schedule.of(fk.parse("ij,jk->ik", dtypes="float32"))
    cost = estimate(schedule, {"I": 30, "J": 40, "K": 50}, machine)
    count = len(features(cost, cost))
    rows = prior()
    assert len(rows) >= 200 and {len(found) for _, found in rows} == {count}
    assert all(math.isfinite(x) for value, found in rows for x in (value, *found))


def test_a_model_of_them_orders_schedules_better_than_chance() -> None:
    pytest.importorskip("sklearn")
    model = Ranking(prior=prior())._fitted(len(prior()[0][1]))
    slow = [found for value, found in prior() if value > math.log(1.5)]
    fast = [found for value, found in prior() if value < math.log(1.05)]
    assert len(slow) > 20 and len(fast) > 20
    assert model.predict(slow).mean() > model.predict(fast).mean() + 0.2


def trial(program: str, number: int, features: tuple[float, ...] = (1.0,)) -> Trial:
    return Trial(Key(program, False, 1, ()), "b", "f", str(number), {}, 1.0, 0.0, features, "")


def test_records_of_other_features_are_left_out() -> None:
    """Those of another version, and what was edited beyond what the model can take."""
    pytest.importorskip("sklearn")
    schedule = fk.Schedule.of(fk.parse("ij,jk->ik", dtypes="float32"))
    cost = estimate(schedule, {"I": 30, "J": 40, "K": 50}, text_target("cpu").machine)
    count = len(features(cost, cost))
    known = [trial("a", n, (1.0,) * (count - 1)) for n in range(50)]
    known += [trial("b", n, (1e300,) * count) for n in range(50)]
    clean = Ranking(prior=prior()).scores([cost], cost)
    assert Ranking(known, prior()).scores([cost], cost) == clean
    assert Ranking(known).scores([cost], cost) == [0.0], "nothing is left to learn from"


def test_every_program_has_the_same_say() -> None:
    many = [trial("a", n) for n in range(100)] + [trial("b", n) for n in range(3)]
    kept = chosen(many)
    assert [t.key.program for t in kept].count("b") == 3 and 3 < len(kept) < 40
    assert chosen(many) == kept
