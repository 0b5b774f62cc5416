"""A process that measures, which may crash or hang without harm."""

from __future__ import annotations

import pickle
import queue
import subprocess
import threading
from contextlib import AbstractContextManager
from typing import Any

from poly.errors import TuningError
from runtime.common.worker_main import READY
from runtime.common.workers import end_of, end_process, start_process

#: Seconds in which a process has to be ready.
START = 60.0


class ChildError(TuningError):
    """A process crashed, hung, or raised an error; the next call starts another."""


class Child(AbstractContextManager["Child"]):
    """A process that applies a function of a module to what it is sent, within a time limit.

    module, name : of the function, whose arguments and results can be pickled
    """

    def __init__(self, module: str, name: str) -> None:
        self._function = (module, name)
        self._process: subprocess.Popen[bytes] | None = None
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def call(self, *arguments: Any, limit: float) -> Any:
        """The function's result.

        limit : seconds that it may take

        Raises
        ------
        ChildError : it took longer, raised an error, or its process died.
        """
        process = self._started()
        assert process.stdin is not None
        try:
            pickle.dump(arguments, process.stdin, protocol=5)
            process.stdin.flush()
        except OSError:
            raise self._ended(f"its process {self._end()}") from None
        done, result = self._answer(limit)
        if not done:
            raise ChildError(result)
        return result

    @property
    def is_running(self) -> bool:
        """Whether the next call starts no other process."""
        return self._process is not None

    def stop(self) -> None:
        """End the process; the next call starts another."""
        if self._process is not None:
            end_process(self._process)
            self._process = None

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            try:
                process = start_process(*self._function)
            except OSError as error:
                raise ChildError(f"no process could be started: {error.strerror}") from None
            self._process, self._answers = process, queue.SimpleQueue()
            threading.Thread(target=_read, args=(process, self._answers), daemon=True).start()
            if self._answer(START) != READY:
                raise self._ended("its process did not start")
        return self._process

    def _answer(self, limit: float) -> Any:
        try:
            answer = self._answers.get(timeout=limit)
        except queue.Empty:
            raise self._ended(f"it took longer than {limit:.3g} s") from None
        if answer is None:
            raise self._ended(f"its process {self._end()}")
        return answer

    def _end(self) -> str:
        return "ended" if self._process is None else end_of(self._process)

    def _ended(self, reason: str) -> ChildError:
        self.stop()
        return ChildError(reason)


def _read(process: subprocess.Popen[bytes], answers: queue.SimpleQueue[Any]) -> None:
    """Pass on what a process answers; None at its end."""
    assert process.stdout is not None
    while True:
        try:
            answers.put(pickle.load(process.stdout))
        except Exception:  # the end, or a pipe that was closed or broken
            answers.put(None)
            return
