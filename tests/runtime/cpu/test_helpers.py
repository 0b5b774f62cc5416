"""Libraries that all kernels use are made in the background, and never left half-made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

_TIMES = """
import os, sys, threading
from runtime.common.cache import Cache
from runtime.cpu.fast_call import has_quick_calls
from runtime.cpu.helpers import finish_helpers, prepare_helpers
from runtime.cpu.toolchain import find_toolchain

def working():
    return [t.name for t in threading.enumerate() if t.name.startswith("farkas")]

toolchain, cache = find_toolchain(), Cache(sys.argv[1])
print(has_quick_calls(toolchain, cache))
prepare_helpers(toolchain, cache)
prepare_helpers(toolchain, cache)
print(working())
{wait}
print(working(), has_quick_calls(toolchain, cache))
prepare_helpers(toolchain, cache)
print(working())
"""

_FORK = """
child = os.fork()
if not child:
    print(working(), has_quick_calls(toolchain, cache), flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""

_KERNEL = """
import sys
import numpy as np
import farkas as fk
try:
    print(fk.compile("y[i] = x[i] + 1", cache=sys.argv[1])(np.ones(2, np.float32)))
except fk.ToolchainError as error:
    print(error)
"""


_AFTER = """
import sys, threading, time
import numpy as np
import farkas as fk

def late():
    threading.main_thread().join()
    time.sleep(0.2)  # the interpreter is about to end
    print(fk.compile("y[i] = x[i] + 1", cache=sys.argv[1])(np.ones(2, np.float32)))

fk.compile("y[i] = x[i] + 2", cache=sys.argv[2])(np.ones(2, np.float32))  # all is imported
threading.Thread(target=late).start()
"""


def run(code: str, cache: Path, *more: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own, which has no helpers yet."""
    return subprocess.run(
        [sys.executable, "-u", "-c", code, str(cache), *more],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_they_are_made_once(tmp_path: Path) -> None:
    done = run(_TIMES.format(wait="finish_helpers()"), tmp_path)
    assert done.stdout.splitlines() == [
        "False", "['farkas-helpers']", "[] True", "[]"
    ], done.stderr  # fmt: skip


def test_a_fork_waits_for_them(tmp_path: Path) -> None:
    done = run(_TIMES.format(wait=_FORK), tmp_path)
    assert done.stdout.splitlines() == [
        "False", "['farkas-helpers']", "[] True", "[] True", "[]"
    ], done.stderr  # fmt: skip


def test_who_needs_them_sees_their_error(tmp_path: Path) -> None:
    done = run(_KERNEL, tmp_path, FARKAS_OPENMP="nonsense")
    assert done.stdout.startswith("FARKAS_OPENMP is 'nonsense'") and not done.stderr


def test_a_thread_that_outlives_the_main_one(tmp_path: Path) -> None:
    done = run(_AFTER, tmp_path / "one", str(tmp_path / "two"))
    assert done.stdout == "[2. 2.]\n" and not done.stderr


def test_a_process_may_end_meanwhile(tmp_path: Path) -> None:
    done = run(_TIMES.partition("print(working())")[0], tmp_path)
    assert done.stdout == "False\n" and not done.stderr
    assert list(tmp_path.rglob("team.so")) and list(tmp_path.rglob("kernel.so"))


def test_a_kernel_without_a_cache(tmp_path: Path) -> None:
    done = run(_KERNEL, tmp_path)
    assert done.stdout == "[2. 2.]\n" and not done.stderr
