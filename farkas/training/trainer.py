"""`Trainer`: a network that is trained, step by step."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from farkas.training.step_graph import StepGraph
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
        self, training: Training, step: StepGraph, model: CompiledGraph,
        initializers: Mapping[str, Array], source: Callable[[], Any], counter: str,
    ) -> None:  # fmt: skip
        self.training, self._step, self._model = training, step, model
        self.losses: list[float] = []
        self._source, self._counter = source, counter
        self._lock = threading.Lock()
        shapes = {p.name: p for p in model.inputs}
        first = {
            name: np.array(initializers[begin])
            if isinstance(begin, str)
            else np.full(shapes[name].at({}), begin, shapes[name].dtype.numpy)
            for name, begin in step.state.items()
        }
        #: Initializers that nothing changes.
        self._fixed = {n: np.array(initializers[n]) for n in shapes.keys() & initializers.keys()}
        self._fixed = {n: a for n, a in self._fixed.items() if n not in first}
        #: What is kept, and where the next step writes it.
        self._now, self._next = first, {n: np.empty_like(a) for n, a in first.items()}

    def step(self, batch: Mapping[str, Any], threads: int | None = None) -> float:
        """Change the weights by one batch; returns the loss before that.

        batch : arrays by the names of the network's inputs, and of what the loss takes

        Raises
        ------
        ArgumentError : an array is missing, unknown, or of another shape.
        """
        with self._lock:
            number = len(self.losses) + 1
            scalars = self.training.optimiser.at(number)
            given = {**self._fixed, **batch, **self._now}
            for name in self._step.scalars:
                given[name] = np.float32(scalars[name])
            if self._counter:
                given[self._counter] = np.int64(number)
            loss = np.empty((), np.float32)
            outputs = dict(zip(self._model.output_names, (loss, *self._next.values()), strict=True))
            self._model.run(given, threads, out=outputs)
            self._now, self._next = self._next, self._now
            self.losses.append(float(loss))
            return self.losses[-1]

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
        from onnx import numpy_helper

        from farkas.console.files import write_file

        model = self._source()
        with self._lock:
            for tensor in model.graph.initializer:
                if tensor.name in self._now:
                    tensor.CopyFrom(numpy_helper.from_array(self._now[tensor.name], tensor.name))
        write_file(Path(path), model.SerializeToString())
