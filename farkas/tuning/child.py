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


class NoChildError(ChildError):
    """No process could be started, or set up: what it was to do is not to blame."""


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
        NoChildError : there is no process.
        """
        try:
            done, result = self._asked(arguments, limit)
        except BaseException:
            self.stop()  # an answer that is still to come would be taken for the next call's
            raise
        if not done:
            self.stop()  # a GPU on which a kernel has crashed runs no other for this process
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

    def _asked(self, arguments: tuple[Any, ...], limit: float) -> Any:
        process = self._started()
        assert process.stdin is not None
        try:
            pickle.dump(arguments, process.stdin, protocol=5)
            process.stdin.flush()
        except OSError:
            raise ChildError(f"its process {end_of(process)}") from None
        return self._answer(process, limit)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            try:
                process = start_process(*self._function)
            except OSError as error:
                raise NoChildError(f"no process could be started: {error.strerror}") from None
            self._process, self._answers = process, queue.SimpleQueue()
            threading.Thread(target=_read, args=(process, self._answers), daemon=True).start()
            if self._answer(process, START) != READY:
                raise NoChildError("its process did not start")
        return self._process

    def _answer(self, process: subprocess.Popen[bytes], limit: float) -> Any:
        try:
            answer = self._answers.get(timeout=limit)
        except queue.Empty:
            raise ChildError(f"it took longer than {limit:.3g} s") from None
        if answer is None:
            raise ChildError(f"its process {end_of(process)}")
        return answer


def _read(process: subprocess.Popen[bytes], answers: queue.SimpleQueue[Any]) -> None:
    """Pass on what a process answers; None at its end."""
    assert process.stdout is not None
    while True:
        try:
            answers.put(pickle.load(process.stdout))
        except Exception:  # the end, or a pipe that was closed or broken
            answers.put(None)
            return
