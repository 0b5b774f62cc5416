"""Records of tuning: written, read, edited by hand, torn, and appended to by several processes."""

from __future__ import annotations

import json
import logging
import math
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from poly.errors import CacheError, TuningError
from runtime.tuned.record import Key, Trial, Winner, read_line, write_line
from runtime.tuned.record_file import RecordFile

KEY = Key("0123456789abcdef", False, 2, (("N", 100),))
BASE, SCRIPT = "b" * 16, "tile S0: i by 8\nunroll S0: i_i"
TRIAL = Trial(KEY, BASE, "f" * 16, SCRIPT, {"a": 1}, 0.5, 0.01, (1.0, 2.5))
WINNER = Winner(
    KEY, BASE, "f" * 16, "matmul", "tile S0: i by 8", None, 2e-3, 1e-3, 0.02, 60.0, "2026-11-27",
    "0.2", (8, 300),
)  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> RecordFile:
    return RecordFile(tmp_path / "deep" / "machine.jsonl", "a machine; 2 cores")


def test_what_is_written_is_read(file: RecordFile) -> None:
    failed = replace(TRIAL, ratio=math.inf, failure="wrong result")
    file.add([TRIAL, failed])
    file.add([WINNER])
    assert file.read() == ([TRIAL, failed, WINNER], [])
    assert file.winners() == (WINNER,)
    assert file.winner(KEY) == WINNER and WINNER.gain == 2.0
    assert file.winner(replace(KEY, threads=1)) is None


def test_the_last_winner_counts(file: RecordFile) -> None:
    later = replace(WINNER, script="", seconds=2e-3)
    file.add([WINNER])
    assert file.winner(KEY) == WINNER
    file.add([later])
    assert file.winner(KEY) == later


def test_no_file(file: RecordFile) -> None:
    assert file.read() == ([], []) and file.winners() == ()


def edited(**changes: object) -> str:
    return json.dumps({**json.loads(write_line(WINNER)), **changes})


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "not a record"),
        ("x" * (1 << 20) + "y", "too long"),
        (edited(kind="bonus"), "a winner or a trial, not a 'bonus'"),
        (edited(program="../../etc/passwd"), "'program' is not a digest"),
        (edited(exact=1), "'exact' is neither true nor false"),
        (edited(threads=0), "not a number of threads"),
        (edited(threads=True), "not a number of threads"),
        (edited(sizes={"N; rm": 1}), "not sizes by name"),
        (edited(sizes={"N": -1}), "not sizes by name"),
        (edited(seconds=-1), "'seconds' is not positive"),
        (edited(seconds="fast"), "'seconds' is not a number"),
        (edited(spread=math.nan), "'spread' is not a finite number"),
        (edited(spread=10**400), "'spread' is not a finite number"),
        (edited(numbers=[3, -1]), "'numbers' is not a list of whole numbers"),
        (edited(numbers=[1.5]), "'numbers' is not a list of whole numbers"),
        (edited(numbers=[1] * 201), "'numbers' is not a list of whole numbers"),
        (edited(script="tile S0: i by 8"), "'script' is not a list of lines"),
        (edited(script=["tile\x1b[2J"]), "'script' is not a list of lines"),
        (edited(name="\x1b[2J"), "'name' is not a text"),
    ],
)
def test_a_line_that_is_no_record_is_named(file: RecordFile, line: str, reason: str) -> None:
    with pytest.raises(TuningError, match=reason):
        read_line(line)
    file.add([TRIAL])
    with file.path.open("a") as out:
        out.write(line + "\n")
    file.add([WINNER])
    records, (problem,) = file.read()
    assert records == [TRIAL, WINNER]
    assert problem.line == 3 and reason in str(problem)


def test_winners_that_are_none_are_logged(
    file: RecordFile, caplog: pytest.LogCaptureFixture
) -> None:
    file.add([WINNER])
    with file.path.open("a") as out:
        out.write(edited(seconds=0) + "\n")
    with caplog.at_level(logging.WARNING, "farkas.tuning"):
        assert file.winners() == (WINNER,)
    assert "line 3: 'seconds' is not positive" in caplog.text


def test_records_of_another_machine(file: RecordFile, caplog: pytest.LogCaptureFixture) -> None:
    file.add([WINNER])
    other = replace(file, description="another machine")
    with caplog.at_level(logging.WARNING, "farkas.tuning"):
        assert other.winners() == ()
    assert "not records of this machine" in caplog.text


def test_a_torn_line_costs_nothing_else(file: RecordFile) -> None:
    file.add([TRIAL])
    with file.path.open("a") as out:
        out.write(write_line(WINNER)[:40])
    file.add([WINNER])
    records, (problem,) = file.read()
    assert records == [TRIAL, WINNER] and problem.reason == "the line is not JSON"


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="FARKAS_RECORDS"):
        RecordFile(tmp_path / "file" / "x.jsonl", "m").add([TRIAL])


WRITER = """
import sys
from pathlib import Path
from tests.runtime.tuned.test_record_file import TRIAL
from dataclasses import replace
from runtime.tuned.record_file import RecordFile
file = RecordFile(Path(sys.argv[1]), "a machine; 2 cores")
n = 0
while n < int(sys.argv[2]):
    file.add([replace(TRIAL, ratio=float(n + 1), script="x" * 3000)])
    n += 1
    print(n, flush=True)
"""


def test_two_processes_one_of_which_is_killed(file: RecordFile) -> None:
    file.add([])
    command = [sys.executable, "-c", WRITER, str(file.path)]
    killed = subprocess.Popen([*command, "100000"], stdout=subprocess.PIPE, text=True)
    other = subprocess.Popen([*command, "200"], stdout=subprocess.DEVNULL)
    assert killed.stdout is not None
    killed.stdout.readline()
    time.sleep(0.1)
    killed.send_signal(signal.SIGKILL)
    said = 1 + len(killed.stdout.read().split())
    assert killed.wait() < 0 and other.wait() == 0
    records, problems = file.read()
    assert not problems
    assert len(records) - 200 in (said, said + 1)
