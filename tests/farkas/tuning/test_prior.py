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
    model = Ranking(prior=prior())._fitted()
    slow = [found for value, found in prior() if value > math.log(1.5)]
    fast = [found for value, found in prior() if value < math.log(1.05)]
    assert len(slow) > 20 and len(fast) > 20
    assert model.predict(slow).mean() > model.predict(fast).mean() + 0.2


def test_every_program_has_the_same_say() -> None:
    def trial(program: str, number: int) -> Trial:
        return Trial(Key(program, False, 1, ()), "b", "f", str(number), {}, 1.0, 0.0, (1.0,), "")

    many = [trial("a", n) for n in range(100)] + [trial("b", n) for n in range(3)]
    kept = chosen(many)
    assert [t.key.program for t in kept].count("b") == 3 and 3 < len(kept) < 40
    assert chosen(many) == kept
