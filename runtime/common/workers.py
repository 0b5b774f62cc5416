"""Worker processes, which apply a function while this process does as well.

They are new processes, not forks, so that it does not matter what threads, locks and libraries
this one has; and they do not import the user's script again, as those of `multiprocessing` do.
Where none can be started, everything is computed here.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

from poly.errors import ArgumentError, FarkasError
from runtime.common.arguments import default_threads
from runtime.common.worker_main import READY

#: The number of processes that generate kernels, this one included; 1 starts none.
ENVIRONMENT = "FARKAS_PROCESSES"
#: The most processes without being told.
MOST = 8

_CODE = """\
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from runtime.common.worker_main import serve
serve(*sys.argv[2:])
"""


class WorkerDiedError(FarkasError):
    """A worker process ended before it had answered.

    argument : the number of the arguments that it was working on
    """

    def __init__(self, argument: int, reason: str) -> None:
        super().__init__(f"a worker process {reason}; {ENVIRONMENT}=1 starts none")
        self.argument, self.reason = argument, reason


def processes() -> int:
    """How many processes may work at once, this one included.

    Raises
    ------
    ArgumentError : ``FARKAS_PROCESSES`` is not a positive number.
    """
    chosen = os.environ.get(ENVIRONMENT, "")
    if chosen:
        if not chosen.isascii() or not chosen.isdigit() or int(chosen) < 1:
            raise ArgumentError(
                f"{ENVIRONMENT} is {chosen!r}: set it to a number from 1 on, or not at all"
            )
        return int(chosen)
    return min(MOST, default_threads())


def start_process(
    module: str, name: str, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """A process that applies a function of a module, see `runtime.common.worker_main`.

    Raises
    ------
    OSError : there is no memory, or there are no more processes.
    """
    path = json.dumps([os.path.abspath(p) for p in sys.path])
    return subprocess.Popen(
        [sys.executable, "-c", _CODE, path, module, name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **(environment or {})},
        start_new_session=True,  # Ctrl-C is for this process, which ends the others
    )


def end_process(process: subprocess.Popen[bytes]) -> None:
    """Kill a process, and wait for its end."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):
            if pipe is not None:
                pipe.close()


class Workers(AbstractContextManager["Workers"]):
    """Processes that apply one function of a module; they end with the context.

    module, name : of the function, whose arguments and results can be pickled
    count : how many processes are started
    """

    def __init__(self, module: str, name: str, count: int) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        if _is_python(sys.executable):
            with contextlib.suppress(OSError):  # no memory or no more processes: work here
                for _ in range(count):
                    alone = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
                    self._processes.append(start_process(module, name, alone))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            end_process(process)

    def apply(
        self, arguments: Sequence[tuple[Any, ...]], here: Callable[..., Any]
    ) -> Iterator[tuple[int, Any]]:
        """Apply the function to all arguments, here and in the workers.

        Yields the number of the arguments and the result, in the order in which they are ready.
        Arguments for which a worker raises an error are tried here, so that callers see it.

        here : the function, in this process

        Raises
        ------
        WorkerDiedError : a worker was killed.
        """
        waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in range(len(arguments)):
            waiting.put(number)
        ready: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        threads = [
            threading.Thread(target=_feed, args=(process, arguments, waiting, ready), daemon=True)
            for process in self._processes
        ]
        for thread in threads:
            thread.start()
        left = len(arguments)
        while left:
            try:
                number = waiting.get_nowait()
                yield number, here(*arguments[number])
                left -= 1
                found = _all_of(ready)
            except queue.Empty:
                found = [ready.get()]
            for number, answer in found:
                if isinstance(answer, WorkerDiedError):
                    raise answer
                done, result = answer
                yield number, result if done else here(*arguments[number])
                left -= 1


def _all_of(ready: queue.SimpleQueue[tuple[int, Any]]) -> list[tuple[int, Any]]:
    found = []
    with contextlib.suppress(queue.Empty):
        while True:
            found.append(ready.get_nowait())
    return found


def _feed(
    process: subprocess.Popen[bytes],
    arguments: Sequence[tuple[Any, ...]],
    waiting: queue.SimpleQueue[int],
    ready: queue.SimpleQueue[tuple[int, Any]],
) -> None:
    """Send a worker arguments as long as there are any, and collect its answers."""
    assert process.stdin is not None and process.stdout is not None
    try:
        if pickle.load(process.stdout) != READY:
            return
    except Exception:
        return  # it could not be started: the others do its work
    while True:
        try:
            number = waiting.get_nowait()
        except queue.Empty:
            return
        try:
            pickle.dump(arguments[number], process.stdin, protocol=5)
            process.stdin.flush()
            answer = pickle.load(process.stdout)
        except Exception:
            answer = WorkerDiedError(number, end_of(process))
        ready.put((number, answer))
        if isinstance(answer, WorkerDiedError):
            return


def end_of(process: subprocess.Popen[bytes]) -> str:
    """How a worker ended."""
    try:
        code = process.wait(5)
    except subprocess.TimeoutExpired:
        return "gave no valid answer"
    if code < 0:
        return f"was killed by {signal.Signals(-code).name} (out of memory, perhaps)"
    return f"ended with exit code {code}"


def _is_python(executable: str | None) -> bool:
    """Whether this process is a Python interpreter, and not a program that embeds one."""
    return bool(executable) and Path(str(executable)).name.lower().startswith(("python", "pypy"))
