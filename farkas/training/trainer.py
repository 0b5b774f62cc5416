"""`Trainer`: a network that is trained, step by step."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from farkas.console.files import write_file
from farkas.training.step_graph import StepGraph
from farkas.training.training import Training
from poly.errors import ArgumentError
from poly.ir.program import fresh_name
from runtime.network.compiled_graph import CompiledGraph

if TYPE_CHECKING:
    from farkas.views.page import View

Array = np.ndarray


@dataclass(frozen=True)
class CompiledStep:
    """A step for batches of fixed shapes: its graphs, and these compiled."""

    graphs: StepGraph
    models: tuple[CompiledGraph, ...]

    @cached_property
    def types(self) -> Mapping[str, np.dtype]:
        """The element types of all inputs, by name."""
        return {p.name: p.dtype.numpy for m in self.models for p in m.inputs}


@dataclass(frozen=True)
class Network:
    """What is trained.

    inputs : the names of what each step passes to the network; floats : its initializers
    step_at : the step for shapes of inputs; file_with : the network with other initializers
    counter : the name of the input for the number of the step, "" if there is none
    is_open : whether shapes of inputs are those of each batch
    """

    inputs: tuple[str, ...]
    floats: Mapping[str, Array]
    step_at: Callable[[Mapping[str, tuple[int, ...]]], CompiledStep]
    file_with: Callable[[Mapping[str, Array]], bytes]
    counter: str
    is_open: bool


class Trainer:
    """A network with weights that change.  Made by `farkas.train_onnx`.

    Attributes
    ----------
    training : what it is trained for; losses : of all steps so far
    """

    def __init__(self, training: Training, network: Network) -> None:
        self.training, self._network = training, network
        self.losses: list[float] = []
        self._lock = threading.Lock()
        #: Steps so far, and what their number is called in `state`.
        self._count, self._count_label = 0, "steps"
        #: What is kept, and where the next step writes it.
        self._now: dict[str, Array] = {}
        self._next: dict[str, Array] = {}
        #: Initializers that nothing changes.
        self._fixed: dict[str, Array] = {}
        #: Steps by the shapes of batches; the key is () where the network fixes these.
        self._steps: dict[tuple[tuple[int, ...], ...], CompiledStep] = {}
        if not network.is_open:
            self._compile((), {})

    def _compile(
        self, key: tuple[tuple[int, ...], ...], shapes: Mapping[str, tuple[int, ...]]
    ) -> CompiledStep:
        made = self._steps[key] = self._network.step_at(shapes)
        if not self._now:
            self._begin(made)
        return made

    def _begin(self, step: CompiledStep) -> None:
        floats = self._network.floats
        ports = {p.name: p for m in step.models for p in m.inputs}
        self._now = {
            name: np.array(floats[begin])
            if isinstance(begin, str)
            else np.full(ports[name].at({}), begin, ports[name].dtype.numpy)
            for part in step.graphs.parts
            for name, begin in part.state.items()
        }
        self._next = {n: np.empty_like(a) for n, a in self._now.items()}
        self._count_label = fresh_name("steps", {*self._now})
        fixed = ports.keys() & floats.keys() - self._now.keys()
        self._fixed = {n: np.array(floats[n]) for n in fixed}

    def _step_for(self, batch: Mapping[str, Any]) -> CompiledStep:
        if not self._network.is_open:
            return self._steps[()]
        shapes = {n: np.shape(batch[n]) for n in self._network.inputs if n in batch}
        key = tuple(shapes.values())
        return self._steps.get(key) or self._compile(key, shapes)

    def step(self, batch: Mapping[str, Any], threads: int | None = None) -> float:
        """Change the weights by one batch, or by what was accumulated; returns the loss before.

        batch : arrays by the names of the network's inputs, and of what the loss takes

        Raises
        ------
        ArgumentError : an array is missing, unknown, or of another shape.
        """
        with self._lock:
            step = self._step_for(batch)
            number, every = self._count + 1, self.training.accumulate
            counter = self._network.counter
            numbers: dict[str, Any] = {counter: np.int64(number)} if counter else {}
            labels = step.graphs.scalars
            at = self.training.optimiser.at(-(-number // every))
            scalars = {labels[n]: np.array(v, step.types[labels[n]]) for n, v in at.items()}
            loss = np.empty((), step.models[0].outputs[0].dtype.numpy)
            given = {**batch, **numbers} | ({} if step.graphs.update else scalars)
            self._run(step, 0, given, [loss], threads)
            if step.graphs.update is not None and number % every == 0:
                self._run(step, 1, scalars, [], threads)
                for name in step.graphs.sums:
                    self._now[name][...] = 0
            self._count = number
            self.losses.append(float(loss))
            return self.losses[-1]

    def _run(
        self, step: CompiledStep, which: int, given: Mapping[str, Any], first: list[Array],
        threads: int | None,
    ) -> None:  # fmt: skip
        """Run a part of a step, and take over what it changes."""
        model, part = step.models[which], step.graphs.parts[which]
        fixed = {} if which else self._fixed
        kept = {n: self._now[n] for n in part.state}
        results = [*first, *(self._next[n] for n in part.changed)]
        out = dict(zip(model.output_names, results, strict=True))
        model.run({**fixed, **given, **kept}, threads, out=out)
        for n in part.changed:
            self._now[n], self._next[n] = self._next[n], self._now[n]

    @property
    def state(self) -> dict[str, Array]:
        """Copies of the weights and of what the optimiser keeps for each, by name, and how many
        steps there were, as ``steps``: rates and the moments of Adam depend on it.

        Raises
        ------
        ArgumentError : the network leaves shapes open, and no batch has come yet.
        """
        with self._lock:
            return {n: a.copy() for n, a in self._everything().items()}

    def _everything(self) -> dict[str, Array]:
        if not self._now:
            raise ArgumentError(
                "what is kept is not known before the first step, since the network leaves shapes "
                "open: pass shapes= to train_onnx"
            )
        return {**self._now, self._count_label: np.array(self._count, np.int64)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave.

        Raises
        ------
        ArgumentError : an array is unknown, missing, or of another shape or type; or the network
            leaves shapes open, and no batch has come yet.
        """
        known = self._everything()
        unknown = [n for n in state if n not in known]
        missing = [n for n in known if n not in state]
        if unknown or missing:
            name = (unknown or missing)[0]
            raise ArgumentError(f"the state {'has no' if unknown else 'needs'} {name}")
        with self._lock:
            for name, array in known.items():
                new = np.asarray(state[name])
                if new.shape != array.shape or new.dtype != array.dtype:
                    raise ArgumentError(
                        f"{name} is {new.dtype} of shape {new.shape}, not {array.dtype} of "
                        f"{array.shape}"
                    )
            for name, array in self._now.items():
                array[...] = state[name]
            self._count = int(state[self._count_label])

    def plot(self, path: str | os.PathLike[str]) -> Path:
        """Write the losses of all steps to a file, as PNG or SVG.

        Raises
        ------
        ArgumentError : the name ends in neither .png nor .svg, or matplotlib is missing.
        FileError : the file cannot be written.
        """
        from farkas.views.losses import save_losses

        return save_losses(self.losses, path)

    def view(self) -> View:
        """The same as a picture for Jupyter.  Raises `ArgumentError` if matplotlib is missing."""
        from farkas.views.losses import losses_view

        return losses_view(self.losses)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the network with its present weights as an ONNX file."""
        with self._lock:
            data = self._network.file_with(self._now)
        write_file(Path(path), data)
