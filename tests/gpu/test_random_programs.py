"""Random programs through OpenCL equal the reference, in exact mode bit for bit."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("pyopencl", reason="pyopencl is not installed: pip install 'farkas[opencl]'")


def sweep(start: int, end: int) -> None:
    command = (sys.executable, "-W", "ignore", "-m", "tests.gpu.random_programs")
    done = subprocess.run((*command, str(start), str(end)), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert f"{end - start} equal" in done.stdout.replace("\n", " ") or "refused" in done.stdout


def test_random_programs() -> None:
    sweep(0, 8)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 400, 50))
def test_many_random_programs(start: int) -> None:
    sweep(start, start + 50)
