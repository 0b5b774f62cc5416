"""Tuning: found, recorded, used by every later compilation, never trusted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import farkas as fk
from codegen.pipeline import CPU
from farkas.targets.find_target import target_of
from farkas.tuning import tune_program as module
from farkas.tuning.exchange import export_records, import_records, records_here
from farkas.tuning.job import Job, Progress, job_of
from farkas.views.explain import fallback_lines
from poly.machine.cpu import host_machine
from poly.space.point_data import read_point
from poly.space.space import Space
from poly.strategy.common.point import AUTOMATIC, Pick, Point
from runtime.tuned.record import Trial, Winner
from tests.farkas.tuning.test_measurer import with_statement

TEXT, SIZES = "ij,jk->ik", {"I": 3, "J": 501, "K": 100}
RNG = np.random.default_rng(0)
A = RNG.standard_normal((3, 501)).astype(np.float32)
B = RNG.standard_normal((501, 100)).astype(np.float32)


@pytest.fixture(autouse=True)
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of records of its own."""
    monkeypatch.setenv("FARKAS_RECORDS", str(tmp_path / "records"))
    return tmp_path / "records"


def tuned(trials: int = 16, **options: Any) -> fk.TunedKernel:
    return fk.tune(TEXT, dtypes="float32", sizes=SIZES, trials=trials, budget=60, **options)


def compiled(**options: Any) -> fk.Kernel:
    return fk.compile(TEXT, dtypes="float32", sizes=SIZES, **options)


def emit_with(statement: str, automatic: bool) -> Callable[[Job, fk.Schedule], Any]:
    """`Job.emit` that adds a statement to the automatic schedule's C, or to that of all others."""
    emit = Job.emit

    def changed(job: Job, schedule: fk.Schedule) -> Any:
        made = emit(job, schedule)
        is_automatic = schedule == job.space.schedule(AUTOMATIC)
        return with_statement(made, statement) if is_automatic == automatic else made

    return changed


@pytest.fixture(scope="module")
def won() -> Iterator[str]:
    """The lines of the records of a program that was tuned."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FARKAS_RECORDS", str(Path(fk.Cache().directory) / "won"))
        waste(patch)
        made = fk.tune(TEXT, dtypes="float32", sizes=SIZES, trials=24, budget=60)
        assert made.winner.script, "another schedule than one that wastes time wins"
        yield records_here().path.read_text()


def waste(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the automatic schedule waste time, so that another one wins on a busy machine, too."""
    statement = "for (volatile int fk_n = 0; fk_n < 1000000; fk_n++);"
    monkeypatch.setattr(Job, "emit", emit_with(statement, automatic=True))


def how(kernel: fk.Kernel) -> str:
    """How its statements were scheduled, and what was given up."""
    compiled = kernel._only()
    return "\n".join([*fallback_lines(compiled.fallbacks), *map(str, compiled.choices)])


def given(text: str) -> None:
    """Make these the records of this machine."""
    path = records_here().path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def changed(text: str, **changes: Any) -> str:
    """The records with something else in the winner."""
    *others, winner = text.splitlines()
    return "\n".join([*others, json.dumps({**json.loads(winner), **changes})]) + "\n"


def test_later_compilations_find_it(won: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given(won)
    winner = records_here().winners()[-1]
    kernel = compiled()
    assert str(kernel.schedule) == winner.script != str(compiled(schedule="auto").schedule)
    assert winner.gain > 1.02
    np.testing.assert_allclose(kernel(A, B), A @ B, rtol=2e-4, atol=1e-4)
    assert "a tuned schedule" in how(kernel)

    def never(*_: Any) -> None:
        raise AssertionError("it was tuned again")

    monkeypatch.setattr(module, "tune_program", never)
    again = tuned()
    assert again.winner == winner and not again.found.history
    assert again.kernel.source == kernel.source
    assert compiled(tune=30).source == kernel.source


def test_schedules_with_other_results_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the checks accept is compared; if it differs, that is said, not counted alone."""
    spoil = "((float *)tensors[2])[0] += 1;"
    monkeypatch.setattr(Job, "emit", emit_with(spoil, automatic=False))
    with pytest.warns(fk.TuningWarning, match=r"(?s)4 of 4 schedules .*a wrong result: .*jsonl"):
        found = tuned(trials=4)
    assert not found.winner.script
    assert [m.trial.is_wrong for m in found.found.history] == [True] * 4


def test_another_automatic_schedule_has_to_be_beaten_anew(won: str) -> None:
    """As after an update: what was found is used, and compared again by the next tuning."""
    given(changed(won, base="0" * 16))
    old = records_here().winners()[-1]
    assert str(compiled().schedule) == old.script
    again = tuned(trials=3)
    assert again.found.history[0].trial.script == old.script, "it is tried first"
    assert again.winner.base != old.base
    assert records_here().winners()[-1] == again.winner


def test_another_process_makes_the_same_c(won: str) -> None:
    given(won)
    code = (
        f"import farkas as fk; print(fk.compile({TEXT!r}, dtypes='float32', sizes={SIZES}).source)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.rstrip("\n") == compiled().source.rstrip("\n")


def test_other_threads_and_sizes_are_other_records(won: str) -> None:
    given(won)
    automatic = str(compiled(schedule="auto").schedule)
    assert str(compiled(threads=1).schedule) == automatic or len(records_here().winners()) > 1
    other = fk.compile(TEXT, dtypes="float32", sizes={**SIZES, "J": 502})
    assert "a tuned schedule" not in how(other)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (["parallelize S0: nothing"], "nothing"),
        (["parallelize S0: j"], "S0"),
        (["import os"], "there is no primitive 'import'"),
        (["tile S9: i by 8"], "there is no statement S9"),
    ],
)
def test_a_script_that_was_edited_is_refused(
    won: str, script: list[str], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    given(changed(won, script=script))
    kernel = compiled()
    assert "what was tuned for it no longer fits" in caplog.text and reason in caplog.text
    assert str(kernel.schedule) == str(compiled(schedule="auto").schedule)
    np.testing.assert_allclose(kernel(A, B), A @ B, rtol=2e-4, atol=1e-4)
    explained = how(kernel)
    assert "a tuned schedule: given up" in explained and reason in explained


def test_a_record_of_another_program_is_not_used(won: str) -> None:
    given(changed(won, program="0" * 16))
    assert str(compiled().schedule) == str(compiled(schedule="auto").schedule)


def scheduled_with(name: str, value: Any, sizes: dict[str, int]) -> None:
    """Ask for a contraction with one parameter."""
    program = fk.parse(TEXT, dtypes="float32", sizes=sizes)
    space = Space(fk.Schedule.of(program), host_machine(), CPU.strategy)
    pick = Pick("contraction", ((name, value),))
    space.schedule(Point(picks=((("S0_init", "S0"), pick),)))


@pytest.mark.parametrize(
    ("name", "value"), [("lanes along", "zz"), ("vectors", 0), ("rows", -1), ("rows", "many")]
)
def test_values_that_no_plan_has_make_no_schedule(name: str, value: Any) -> None:
    with pytest.raises(fk.ScheduleError, match=f"{name} cannot be {value!r}"):
        scheduled_with(name, value, SIZES)


@pytest.mark.parametrize(("name", "value"), [("rows", 4), ("rows in a block", 32)])
def test_what_won_with_rows_makes_no_schedule_without(name: str, value: int) -> None:
    with pytest.raises(fk.ScheduleError, match="S0 has no rows"):
        scheduled_with(name, value, {**SIZES, "I": 1})


def test_a_point_that_was_edited_is_left_out(won: str) -> None:
    given(changed(won, point={"apart": 7}))
    assert fk.tune(TEXT, dtypes="float32", sizes={**SIZES, "J": 499}, trials=1).gain >= 1.0


def test_the_same_records_give_the_same_answer(won: str) -> None:
    given(won)
    winner = records_here().winners()[-1]
    again = tuned(24, again=True)
    assert len(again.found.history) == 24
    measured = [r for r in records_here().read()[0] if isinstance(r, Trial)]
    assert len(measured) == 24, "what was measured is not measured again"
    assert again.winner == winner
    assert tuned(1, again=True).winner == winner, "also if the search does not come to it"


def test_sizes_of_which_the_kernel_keeps_none() -> None:
    with pytest.raises(fk.ArgumentError, match="no values for I, J, K: pass sizes="):
        fk.tune(TEXT, dtypes="float32")
    made = fk.tune(TEXT, dtypes="float32", at=SIZES, trials=2, budget=30)
    np.testing.assert_allclose(made.kernel(A, B), A @ B, rtol=2e-4, atol=1e-4)
    np.testing.assert_allclose(made.kernel(B, B.T.copy()), B @ B.T, rtol=2e-4, atol=1e-3)


@pytest.mark.parametrize("budget", [0, -1, "60s", None, float("nan"), float("inf"), True, 1e9])
def test_budgets_that_make_no_sense(budget: Any) -> None:
    with pytest.raises(fk.TuningError, match="expected seconds, from 1 to a week"):
        fk.tune(TEXT, dtypes="float32", sizes=SIZES, budget=budget)
    if budget is not None:
        with pytest.raises(fk.TuningError, match="expected seconds"):
            compiled(tune=budget)


@pytest.mark.parametrize("trials", [0, -3, 2.5, True])
def test_numbers_of_trials_that_make_no_sense(trials: Any) -> None:
    with pytest.raises(fk.TuningError, match="expected a whole number from 1 on"):
        tuned(trials)


def test_a_schedule_and_tuning() -> None:
    with pytest.raises(fk.ArgumentError, match="leave one out"):
        compiled(tune=10, schedule="written")


def interrupt_at(report: int) -> Callable[[Progress], None]:
    """What presses Ctrl-C at the report of this number."""
    seen: list[Progress] = []

    def interrupt(progress: Progress) -> None:
        seen.append(progress)
        if len(seen) == report:
            raise KeyboardInterrupt

    return interrupt


def test_an_interrupt_keeps_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    waste(monkeypatch)
    made = tuned(400, progress=interrupt_at(2))
    assert made.found.interrupted and len(made.found.history) == 8
    assert made.winner.script and records_here().winner(made.winner.key) == made.winner


def test_an_interrupt_before_anything_was_found_settles_nothing() -> None:
    made = tuned(400, progress=interrupt_at(1))
    assert made.found.interrupted and not made.found.history and not made.winner.script
    assert not records_here().winners(), "the next one is to search"
    assert tuned(2).found.history


def test_a_recorded_winner_has_to_be_beaten(won: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was imported, without what was measured beside it: here, 1000 times as fast."""
    head, *_, winner = changed(won, automatic=1.0, seconds=1e-3).splitlines()
    given(f"{head}\n{winner}\n")
    recorded = records_here().winners()[-1]
    waste(monkeypatch)
    assert tuned(8, again=True).winner == recorded
    given(f"{head}\n{changed(won, automatic=1.0, seconds=0.999).splitlines()[-1]}\n")
    assert tuned(8, again=True).winner.when != "", "any other that is faster wins"
    assert records_here().winners()[-1].automatic != 1.0


def test_a_file_of_another_machine(won: str) -> None:
    """Whatever were added to it would not be found."""
    given(won.replace("cores", "spindles", 1))
    assert not records_here().winners() and not records_here().read()[0]
    with pytest.raises(fk.TuningError, match=r"(?s)line 1: .*not records of this.*FARKAS_RECORDS"):
        tuned(1)


def test_of_several_sizes_the_last_counts() -> None:
    """A kernel of open sizes has one schedule, whatever it was measured at."""
    first, second = SIZES, {**SIZES, "J": 77}

    def at(sizes: dict[str, int]) -> fk.TunedKernel:
        return fk.tune(TEXT, dtypes="float32", at=sizes, trials=1, budget=30)

    automatic = str(at(first).schedule)
    at(second)
    file = records_here()
    recorded = [replace(w, script=automatic) for w in file.winners() if dict(w.key.sizes) == first]
    other = [replace(w, script="") for w in file.winners() if dict(w.key.sizes) == second]
    file.add([*recorded, *other])
    assert "a tuned schedule" not in how(fk.compile(TEXT, dtypes="float32"))
    assert "a tuned schedule" in how(at(first).kernel)
    assert "a tuned schedule" in how(fk.compile(TEXT, dtypes="float32"))
    assert "a tuned schedule" not in how(at(second).kernel)


def test_a_search_begins_with_the_nearest_sizes(won: str) -> None:
    given(won)
    winner = records_here().winners()[-1]
    assert winner.numbers.count(501) >= 1

    def won_at(terms: int, apart: str) -> Winner:
        numbers = tuple(terms if n == 501 else n for n in winner.numbers)
        point = {"apart": [apart], "picks": [], "steps": []}
        return replace(
            winner, key=replace(winner.key, program=f"{terms:016x}"), numbers=numbers, point=point
        )

    old = replace(won_at(777, "old"), numbers=())
    records_here().add([won_at(600, "near"), old, won_at(9000, "far"), won_at(100, "less")])
    program = fk.parse(TEXT, dtypes="float32", sizes={**SIZES, "J": 500})
    starts = module._starts(job_of(program, False, {}, target_of(None, None)))
    assert [s.apart for s in starts[1:]] == [("near",), ("less",), ("far",), ("old",)]
    assert starts[0] == read_point(winner.point)


def test_export_and_import(won: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given(won)
    assert export_records(tmp_path / "out.jsonl") == 1
    monkeypatch.setenv("FARKAS_RECORDS", str(tmp_path / "elsewhere"))
    assert not records_here().winners()
    assert import_records(tmp_path / "out.jsonl") == (1, 0, [])
    assert import_records(tmp_path / "out.jsonl") == (0, 1, [])
    assert len(records_here().winners()) == 1
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    for head in ('{"machine": "another"}', "[" * 200_000):
        (tmp_path / "other.jsonl").write_text("\n".join([head, *lines[1:], ""]))
        added, known, (problem,) = import_records(tmp_path / "other.jsonl")
        assert (added, known) == (0, 0) and "not records of this machine" in str(problem)
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(fk.FarkasError, match="has no records"):
        import_records(tmp_path / "empty.jsonl")
    with pytest.raises(fk.FarkasError, match="no such file"):
        import_records(tmp_path / "nothing.jsonl")


def test_plots(won: str, tmp_path: Path) -> None:
    made = tuned(2)
    with pytest.raises(fk.ArgumentError, match=r"ends in \.png or \.svg"):
        made.plot(tmp_path / "plot.pdf")
    pytest.importorskip("matplotlib")
    assert made.plot(tmp_path / "plot.svg").read_text().count("<svg") == 1
    assert made.plot(tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert made.view()._repr_html_().count("<svg") == 1


ASKED = r"""
import farkas as fk
from farkas.targets.find_target import target_of
from farkas.tuning.job import job_of
from farkas.tuning.learned import Ranking
from farkas.tuning.search import Search
text = "def f(float32 A[40,50,60], float32 B[60,50,30], float32 D[30]) -> (C) {"
text += " T[i,l] +=! A[i,j,k] * B[k,j,l]; C[i,l] = max(T[i,l] + D[l], 0) }"
job = job_of(fk.parse(text), False, {}, target_of(None, None, 2))
search = Search(job.space, job.estimate, 3, Ranking())
print(*(c.script for _ in range(2) for c in search.ask(6)), sep="\n\n")
"""


def test_the_same_seed_asks_for_the_same_points_in_every_process() -> None:
    """Sets of strings have another order in each."""
    asked = []
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", ASKED], capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )  # fmt: skip
        asked.append(done.stdout)
    assert asked[0] == asked[1] and asked[0].count("\n\n") >= 8
