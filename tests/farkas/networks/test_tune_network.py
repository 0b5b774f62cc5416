"""When a network counts as faster: its calls are timed here as if noise were drawn.  And what
becomes of the records of its kernels, of which each wins here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from onnx import TensorProto, helper

import farkas as fk
from farkas.networks import tune_network
from farkas.tuning.exchange import records_here
from farkas.tuning.job import Job
from farkas.tuning.measurer import Comparison
from farkas.tuning.tune_program import Tuned
from poly.strategy.common.point import AUTOMATIC
from runtime.tuned.record import Winner


def verdicts(
    monkeypatch: pytest.MonkeyPatch, seconds: float, gain: float, noise: float, tries: int
) -> int:
    """How often a network whose calls are so much faster counts as faster."""
    rng = random.Random(1)

    def timed(network: Any, inputs: Any) -> float:
        return float(network.seconds) * rng.lognormvariate(0.0, noise)

    monkeypatch.setattr(tune_network, "_seconds", timed)
    before, after = (
        SimpleNamespace(inputs=(), seconds=s, run=lambda _: None) for s in (seconds, seconds / gain)
    )
    found = (tune_network._compare(before, after) for _ in range(tries))  # type: ignore[arg-type]
    return sum(c.is_faster(tune_network.WHOLE) for c in found)


@pytest.mark.parametrize(("seconds", "noise"), [(1e-3, 0.05), (1e-1, 0.03)])
def test_a_gain_of_seven_percent_is_seen(
    monkeypatch: pytest.MonkeyPatch, seconds: float, noise: float
) -> None:
    assert verdicts(monkeypatch, seconds, 1.07, noise, 20) >= 18


@pytest.mark.parametrize("seconds", [1e-3, 1e-1])
def test_noise_is_no_gain(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    assert verdicts(monkeypatch, seconds, 1.0, 0.10, 100) <= 2


def model() -> bytes:
    """Two products."""
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["y"]),
        helper.make_node("Softmax", ["y"], ["p"]),
        helper.make_node("MatMul", ["p", "w"], ["z"]),
    ]
    shapes = {"x": (40, 50), "v": (50, 60), "w": (60, 40)}
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    output = helper.make_tensor_value_info("z", TensorProto.FLOAT, (40, 40))
    graph = helper.make_graph(nodes, "products", inputs, [output])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(made.SerializeToString())


Tuning = Callable[[bool], fk.TunedNetwork]


@pytest.fixture
def tuning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Tuning]:
    """Tunes a network in whose kernels something always is faster, and says whether it is, too."""
    monkeypatch.setenv("FARKAS_RECORDS", str(tmp_path / "records"))
    monkeypatch.setattr(tune_network, "roofline", lambda threads: None)

    def once(job: Job, budget: float, *rest: Any) -> Tuned:
        assert job.file is not None and budget >= 1.0
        if (known := job.winner()) is not None and known.script:
            return Tuned(known)
        script = str(job.space.schedule(AUTOMATIC))
        winner = Winner(job.key, job.base, job.family, "it", script, None, 2.0, 1.0, *TOLD)
        job.file.add([winner])
        return Tuned(winner)

    monkeypatch.setattr(tune_network, "tune_once", once)

    def tune(is_faster: bool) -> fk.TunedNetwork:
        rounds = (((1.0, 0.5 if is_faster else 1.0),) * 9,) * 2
        monkeypatch.setattr(tune_network, "_compare", lambda *_: Comparison(rounds))
        return fk.tune_onnx(model(), budget=60)

    yield tune


TOLD: Any = (0.0, 1.0, "2026-11-29", "0.2")


def scripts() -> list[str]:
    """What compilations use of each kernel."""
    return [w.script for w in {w.key: w for w in records_here().winners()}.values()]


def test_what_won_is_found_again(tuning: Tuning) -> None:
    first = tuning(True)
    assert first.kept and first.gain == 2.0 and first.kernels and all(scripts())
    second = tuning(False)
    assert second.gain == 1.0 and not any(k.is_new for k in second.kernels)
    assert len(scripts()) == len(first.kernels) and all(scripts()), "nothing is withdrawn"


def test_what_is_no_gain_as_a_whole_is_withdrawn(tuning: Tuning) -> None:
    made = tuning(False)
    assert not made.kept and made.kernels and scripts() == [""] * len(made.kernels)
    assert {w.gain for w in records_here().winners() if not w.script} == {1.0}


def test_what_had_won_before_comes_back(tuning: Tuning) -> None:
    """Of a version with another automatic schedule, say, with which it is not compared any more."""
    tuning(True)
    file = records_here()
    file.add([replace(w, base="0" * 16, name="before") for w in file.winners()])
    made = tuning(False)
    assert not made.kept and all(k.is_new for k in made.kernels)
    assert {w.name for w in {w.key: w for w in file.winners()}.values()} == {"before"}


def test_an_interrupt_withdraws_what_was_not_compared(
    tuning: Tuning, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Comparison, "is_faster", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tuning(True)
    assert scripts() and not any(scripts())


def test_an_interrupt_ends_the_network(tuning: Tuning, monkeypatch: pytest.MonkeyPatch) -> None:
    once: Any = tune_network.tune_once  # type: ignore[attr-defined]
    monkeypatch.setattr(
        tune_network, "tune_once", lambda *given: replace(once(*given), interrupted=True)
    )
    assert len(tuning(True).kernels) == 1 < len(tune_network._kernels(fk.compile_onnx(model())))


def test_time_goes_where_something_is_left_to_gain() -> None:
    call: Any = None
    at_the_roof, far = (tune_network._Kernel(call, 1, 0.4, roof) for roof in (0.98, 0.3))
    unknown = tune_network._Kernel(call, 1, 0.4)
    assert at_the_roof.weight < far.weight < unknown.weight == 0.4
