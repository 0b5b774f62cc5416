"""Processes that try mutants: a crash, an endless loop or too much memory is an answer."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import signal
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

import farkas as fk

Arrays = Mapping[str, np.ndarray]

#: Address space of a worker; what needs more is refused by the system.
MEMORY = 8 << 30
#: How much longer than the limit an answer may take on a machine that is busy with other things.
PATIENCE = 4
#: Tries after which a worker is replaced, so that nothing adds up.
TRIES = 100


@dataclass(frozen=True)
class Answer:
    """How a try ended: ``ran``, ``refused``, ``error``, ``crash`` or ``hang``.

    what : the type and text of an error; arrays : the outputs by name
    """

    how: str
    what: str = ""
    arrays: dict[str, Any] = field(default_factory=dict)
    opaque: tuple[str, ...] = ()


class Worker:
    """A process that answers one request after the other, replaced when it does not.

    limit : seconds of processor time that an answer may take
    """

    def __init__(
        self,
        target: Callable[..., Answer],
        cache: Path,
        limit: float,
        memory: int = MEMORY,
    ) -> None:
        self._target, self._cache, self._limit, self._memory = target, cache, limit, memory
        self._process: Any = None
        self._tries = 0

    def __call__(self, *request: object) -> Answer:
        """The answer to a request."""
        if self._process is None or self._tries >= TRIES:
            self._start()
        self._tries += 1
        try:
            self._pipe.send(request)
            if not self._answers():
                self.stop()
                return Answer("hang", f"no answer after {self._limit:g} s")
            answer: Answer = self._pipe.recv()
            return answer
        except (EOFError, OSError):
            self._process.join()
            code = self._process.exitcode
            self.stop()
            name = signal.Signals(-code).name if code and code < 0 else f"exit code {code}"
            return Answer("crash", name)

    def _answers(self) -> bool:
        """Whether an answer comes in time: other processes of the machine do not count."""
        begin, used = time.monotonic(), _computed(self._process.pid)
        while not self._pipe.poll(min(1.0, self._limit)):
            waited = time.monotonic() - begin
            long = waited > self._limit and _computed(self._process.pid) - used > self._limit
            if long or waited > PATIENCE * self._limit:
                return False
        return True

    def _start(self) -> None:
        self.stop()
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        arguments = (self._target, other, self._cache, self._memory)
        self._process = context.Process(target=_serve, args=arguments, daemon=False)
        self._process.start()
        other.close()
        self._pipe.recv()  # it is ready: what it imports takes no time from the first request
        self._tries = 0

    def stop(self) -> None:
        """End the process and the compilers that it started."""
        if self._process is not None:
            self._pipe.close()
            if self._process.is_alive():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.kill()
            self._process.join()
            self._process = None


def _computed(process: int) -> float:
    """Seconds of processor time of a process and its children; the time where nobody tells."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return time.monotonic()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _serve(target: Callable[..., Answer], pipe: Connection, cache: Path, memory: int) -> None:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ["FARKAS_CACHE_DIR"] = str(cache)
    silent = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(silent, stream)
    pipe.send("ready")
    while True:
        try:
            request = pipe.recv()
        except EOFError:
            return
        pipe.send(target(*request))


# --- what workers do ---------------------------------------------------------------------------


def run_farkas(data: bytes, inputs: Arrays) -> Answer:
    """Compile and run a model with Farkas."""
    try:
        with np.errstate(all="ignore"):
            model = fk.compile_onnx(data, threads=1)
            found = model.run(dict(inputs))
        return Answer("ran", "", dict(found), tuple(getattr(model, "opaque_operators", ())))
    except fk.FarkasError as error:
        what = f"{type(error).__name__}: {error}"
        good = isinstance(error, (fk.ModelError, fk.ArgumentError)) and "defect of" not in what
        return Answer("refused", what) if good else Answer("error", error_text(error))
    except BaseException as error:
        return Answer("error", error_text(error))


def error_text(error: BaseException) -> str:
    """An unexpected error, with where it came from."""
    while isinstance(error.__cause__, BaseException):
        error = error.__cause__
    return f"{type(error).__name__}: {error}\n{''.join(traceback.format_exception(error)[-3:])}"


def session_options() -> onnxruntime.SessionOptions:
    """ONNX Runtime as the judge: one thread, silent, every node computed as it is written."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return options


def run_reference(data: bytes, inputs: Arrays) -> Answer:
    """Run a model with ONNX Runtime, nothing optimised."""
    try:
        session = onnxruntime.InferenceSession(data, session_options())
        names = [o.name for o in session.get_outputs()]
        wanted = {i.name: inputs[i.name] for i in session.get_inputs() if i.name in inputs}
        return Answer("ran", "", dict(zip(names, session.run(names, wanted), strict=True)))
    except Exception as error:
        return Answer("refused", f"{type(error).__name__}: {error}")


def run_perturbed(data: bytes, inputs: Arrays, relative: float, times: int) -> Answer:
    """How far each element of ONNX Runtime's outputs moves when inputs and constants hardly do."""
    base = run_reference(data, inputs).arrays
    moved = {n: np.zeros(np.shape(a)) for n, a in base.items() if isinstance(a, np.ndarray)}
    rng = np.random.default_rng(0)
    for _ in range(times):
        model = onnx.load_from_string(data)
        for tensor in model.graph.initializer:
            array = numpy_helper.to_array(tensor)
            tensor.CopyFrom(numpy_helper.from_array(_moved(array, rng, relative), tensor.name))
        near = {n: _moved(a, rng, relative) for n, a in inputs.items()}
        found = run_reference(model.SerializeToString(), near).arrays
        for name, far in moved.items():
            other = found.get(name)
            if not isinstance(other, np.ndarray) or other.shape != far.shape:
                far[...] = np.inf
                continue
            with np.errstate(all="ignore"):
                gap = np.abs(other.astype(np.float64) - base[name].astype(np.float64))
            same = (other == base[name]) | ((other != other) & (base[name] != base[name]))
            gap = np.where(same, 0, np.where(np.isnan(gap), np.inf, gap))
            np.maximum(far, gap, out=far)
    return Answer("ran", "", dict(moved))


def _moved(array: np.ndarray, rng: np.random.Generator, relative: float) -> np.ndarray:
    if array.dtype.kind != "f":
        return array
    noise = 1 + relative * rng.uniform(-1, 1, array.shape)
    with np.errstate(all="ignore"):
        return (array * noise).astype(array.dtype)
