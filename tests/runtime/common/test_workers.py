"""Worker processes: their answers, their ends, and what happens where none can be started."""

import os
import sys
import time
from pathlib import Path

import pytest

from poly.errors import ArgumentError
from runtime.common.workers import ENVIRONMENT, WorkerDiedError, Workers, processes

NUMBERS = [(n,) for n in (3, 5, 4, 0, 7, 6)]
FACTORIALS = {0: 6, 1: 120, 2: 24, 3: 1, 4: 5040, 5: 720}


def slowly(n: int) -> str:
    """As a function of this process that leaves workers the time to start."""
    time.sleep(0.5)
    return f"here {n}"


def test_workers_and_this_process_share_the_work() -> None:
    with Workers("math", "factorial", 2) as workers:
        found = dict(workers.apply(NUMBERS, slowly))
    assert sorted(found) == [*range(len(NUMBERS))]
    far = {n: value for n, value in found.items() if isinstance(value, int)}
    assert far and all(FACTORIALS[n] == value for n, value in far.items())
    assert all(value == f"here {NUMBERS[n][0]}" for n, value in found.items() if n not in far)


def test_without_workers_all_is_done_here() -> None:
    with Workers("math", "factorial", 0) as workers:
        assert [*workers.apply([(1,), (2,)], str)] == [(0, "1"), (1, "2")]
        assert [*workers.apply([], str)] == []


def test_an_error_of_a_worker_is_one_of_this_process() -> None:
    def here(n: int) -> int:
        time.sleep(0.5)
        if n < 0:
            raise ValueError(f"{n} has no factorial")
        return n

    with (
        Workers("math", "factorial", 1) as workers,
        pytest.raises(ValueError, match="-1 has no factorial"),
    ):
        for _ in workers.apply([(2,), (-1,), (3,)], here):
            pass


@pytest.mark.parametrize(
    ("module", "name", "argument", "reason"),
    [
        ("signal", "raise_signal", 9, r"was killed by SIGKILL \(out of memory, perhaps\)"),
        ("os", "_exit", 3, "ended with exit code 3"),
    ],
)
def test_a_worker_that_ends_is_an_error(module: str, name: str, argument: int, reason: str) -> None:
    with (
        Workers(module, name, 1) as workers,
        pytest.raises(WorkerDiedError, match=f"a worker process {reason}; {ENVIRONMENT}=1") as e,
    ):
        for _ in workers.apply([(argument,)] * 8, slowly):
            pass
    assert e.value.argument in range(8)


def test_no_process_is_left_behind() -> None:
    with Workers("time", "sleep", 2) as workers:
        answers = workers.apply([(0,), (60,), (60,)], lambda n: n)
        next(answers)
        pids = [p.pid for p in workers._processes]
    assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize("executable", ["", "/usr/sbin/httpd", "/nowhere/python3"])
def test_where_no_worker_can_be_started(monkeypatch: pytest.MonkeyPatch, executable: str) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    with Workers("math", "factorial", 2) as workers:
        assert dict(workers.apply([(1,), (2,)], str)) == {0: "1", 1: "2"}


def test_a_worker_that_cannot_load_the_function(tmp_path: Path) -> None:
    with Workers("no_such_module", "f", 1) as workers:
        found = dict(workers.apply([(n,) for n in range(4)], slowly))
    assert found == {n: f"here {n}" for n in range(4)}


def test_what_a_worker_prints_is_not_taken_for_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "chatty.py").write_text("def f(n):\n    print('n is', n)\n    return n\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with Workers("chatty", "f", 1) as workers:
        found = dict(workers.apply([(n,) for n in range(4)], slowly))
    assert any(value == n for n, value in found.items())


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", "²"])
def test_an_invalid_number_of_processes(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(ENVIRONMENT, value)
    with pytest.raises(ArgumentError, match=f"{ENVIRONMENT} is '.*': set it to a number from 1"):
        processes()


def test_the_number_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, "3")
    assert processes() == 3
    monkeypatch.delenv(ENVIRONMENT)
    assert 1 <= processes() <= len(os.sched_getaffinity(0))
