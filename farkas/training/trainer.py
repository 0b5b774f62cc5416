"""`Trainer`: a network that is trained, step by step."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from farkas.console.files import write_file
from farkas.training.step_graph import Part, StepGraph
from farkas.training.training import Training
from poly.errors import ArgumentError
from runtime.network.compiled_graph import CompiledGraph

Array = np.ndarray


class Trainer:
    """A network with weights that change.  Made by `farkas.compile_onnx` with ``train=``.

    Attributes
    ----------
    training : what it is trained for; losses : of all steps so far
    """

    def __init__(
        self, training: Training, step: StepGraph, models: Sequence[CompiledGraph],
        initializers: Mapping[str, Array], file_with: Callable[[Mapping[str, Array]], bytes],
        counter: str,
    ) -> None:  # fmt: skip
        self.training, self._step, self._models = training, step, models
        self.losses: list[float] = []
        self._file_with, self._counter = file_with, counter
        self._lock = threading.Lock()
        ports = {p.name: p for m in models for p in m.inputs}
        parts = [step.first, *([step.update] if step.update else [])]
        #: What is kept, and where the next step writes it.
        self._now = {
            name: np.array(initializers[begin])
            if isinstance(begin, str)
            else np.full(ports[name].at({}), begin, ports[name].dtype.numpy)
            for part in parts
            for name, begin in part.state.items()
        }
        self._next = {n: np.empty_like(a) for n, a in self._now.items()}
        #: Initializers that nothing changes.
        fixed = ports.keys() & initializers.keys() - self._now.keys()
        self._fixed = {n: np.array(initializers[n]) for n in fixed}

    def step(self, batch: Mapping[str, Any], threads: int | None = None) -> float:
        """Change the weights by one batch, or by what was accumulated; returns the loss before.

        batch : arrays by the names of the network's inputs, and of what the loss takes

        Raises
        ------
        ArgumentError : an array is missing, unknown, or of another shape.
        """
        with self._lock:
            number, every = len(self.losses) + 1, self.training.accumulate
            numbers: dict[str, Any] = {self._counter: np.int64(number)} if self._counter else {}
            scalars = {
                n: np.float32(v) for n, v in self.training.optimiser.at(-(-number // every)).items()
            }
            loss = np.empty((), np.float32)
            given = {**batch, **numbers} | ({} if self._step.update else scalars)
            self._run(0, self._step.first, given, [loss], threads)
            if self._step.update is not None and number % every == 0:
                self._run(1, self._step.update, scalars, [], threads)
                for name in self._step.sums:
                    self._now[name][...] = 0
            self.losses.append(float(loss))
            return self.losses[-1]

    def _run(
        self, which: int, part: Part, given: Mapping[str, Any], first: list[Array],
        threads: int | None,
    ) -> None:  # fmt: skip
        """Run a part of a step, and take over what it changes."""
        model = self._models[which]
        fixed = {} if which else self._fixed
        kept = {n: self._now[n] for n in part.state}
        results = [*first, *(self._next[n] for n in part.changed)]
        out = dict(zip(model.output_names, results, strict=True))
        model.run({**fixed, **given, **kept}, threads, out=out)
        for n in part.changed:
            self._now[n], self._next[n] = self._next[n], self._now[n]

    @property
    def state(self) -> dict[str, Array]:
        """Copies of the weights, and of what the optimiser keeps for each, by name."""
        with self._lock:
            return {n: a.copy() for n, a in self._now.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave.

        Raises
        ------
        ArgumentError : an array is unknown, missing, or of another shape or type.
        """
        unknown = [n for n in state if n not in self._now]
        missing = [n for n in self._now if n not in state]
        if unknown or missing:
            name = (unknown or missing)[0]
            raise ArgumentError(f"the state {'has no' if unknown else 'needs'} {name}")
        with self._lock:
            for name, array in self._now.items():
                new = np.asarray(state[name])
                if new.shape != array.shape or new.dtype != array.dtype:
                    raise ArgumentError(
                        f"{name} is {new.dtype} of shape {new.shape}, not {array.dtype} of "
                        f"{array.shape}"
                    )
                array[...] = new

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the network with its present weights as an ONNX file."""
        with self._lock:
            data = self._file_with(self._now)
        write_file(Path(path), data)
