"""Measure a network's nodes in float32 and in 8 bits, choose which stay, and check the result."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto

from farkas.networks.network import Network
from farkas.quantize import onnxruntime_tools
from farkas.quantize.calibration import Sample, same_shapes, spread
from farkas.quantize.choose import Measured, errors_by_halves, fewest, worst_first
from farkas.quantize.gains import (
    Unit,
    in_turns,
    narrow_seconds,
    numbered,
    profiled,
    units_of,
)
from farkas.quantize.metric import Metric, Outputs, relative_error
from farkas.quantize.prepare_model import cleaned
from farkas.quantize.quantiser import Quantiser
from frontends.onnx import Source
from frontends.onnx.core.serialise import serialised
from poly.errors import ModelError
from runtime.common.compile_report import Progress

#: How often nodes are quantised to measure their errors, and on how many samples.
MOST_TRIALS = 64
TRIAL_SAMPLES = 32
#: How many units more are put back where Farkas rounds otherwise than ONNX Runtime.
_LAST_STEPS = 3
#: A form is preferred only if it is faster by more than what measurements differ.
_NOISE = 0.01

#: Compiles a model or its path for shapes.
Compile = Callable[[Any, Mapping[str, Sequence[int]] | None], Network]


@dataclass(frozen=True, eq=False)
class Units:
    """The kernels of the network in float32 that can be quantised, measured.

    found, together : for each its measurements, and with how many others its error was measured;
    shared : those whose kernels in 8 bits compute others, too
    """

    all: tuple[Unit, ...]
    found: Mapping[int, Measured]
    together: Mapping[int, int]
    shared: frozenset[int]

    def nodes(self, numbers: Iterable[int]) -> list[str]:
        """The nodes of some units that can be quantised."""
        return [name for number in numbers for name in self.all[number].narrow]


@dataclass(frozen=True, eq=False)
class Chosen:
    """A quantised network, with the drop and the times of the whole.

    idle, harmful : the units that stay in float32, because they gain nothing or for their error;
    seconds : in float32 and in 8 bits; outputs : both of these; limitless : the drop and the
    seconds with the harmful ones in 8 bits, too; is_empty : nothing would be left in 8 bits
    """

    model: ModelProto
    idle: frozenset[int]
    harmful: frozenset[int]
    drop: float
    seconds: tuple[float, float]
    outputs: tuple[Sequence[Outputs], Sequence[Outputs]]
    limitless: tuple[float, float] | None = None
    is_empty: bool = False


@dataclass(frozen=True, eq=False)
class Search:
    """A network to quantise, the data, and what is asked for.

    given : the model as it was given, which is compiled for comparison; threads : of ONNX Runtime
    """

    given: Any
    source: Source
    quantiser: Quantiser
    samples: Sequence[Sample]
    metric: Metric
    max_drop: float
    compile: Compile
    threads: int | None
    report: Progress

    def run(self) -> tuple[Units, Chosen]:
        """Measure and choose.

        Raises
        ------
        ArgumentError : the metric cannot be taken of the network's outputs.
        ModelError : ONNX Runtime refuses the network, or it has nothing to quantise.
        """
        exact = self._outputs(self.quantiser.model, self.samples)
        _check_finite(exact)
        self.metric.check(exact)
        self.report("ranges", 0, 1, f"{len(self.samples)} samples")
        if not self.quantiser.narrow:
            raise ModelError("ONNX Runtime finds no node in the network that can be quantised")
        full = self.quantiser.without(())
        self.report("ranges", 1, 1, "")
        units, network = self._units(full)
        idle, fastest = self._idle(units, network)
        order = [n for n in worst_first(units.found) if n not in idle]
        return units, self._chosen(units, exact, idle, order, fastest)

    def _units(self, full: ModelProto) -> tuple[Units, Network]:
        """The units, measured, and the compiled network with all of them in 8 bits."""
        quantiser, sample = self.quantiser, self.samples[0]
        wide = self._compiled(numbered(quantiser.wide, quantiser.model), 0, "float32")
        every = units_of(quantiser.wide, quantiser.narrow, profiled(wide, sample))
        narrow = self._compiled(numbered(quantiser.wide, full), 1, "8 bits")
        taken, shared = narrow_seconds(quantiser.wide, every, profiled(narrow, sample))
        self.report("compile", 2, 2, "")
        errors = self._errors(every)
        found = {
            u.number: Measured(*errors[u.number][0], u.seconds, taken[u.number]) for u in every
        }
        together = {number: count for number, (_, count) in errors.items()}
        return Units(every, found, together, shared), narrow

    def _errors(self, units: Sequence[Unit]) -> dict[int, tuple[tuple[float, float], int]]:
        """The errors of each unit, quantised alone or with neighbours, on some of the samples."""
        few = spread(self.samples, TRIAL_SAMPLES)
        exact = self._outputs(self.quantiser.model, few)
        metric = Metric(self.metric.name)
        trials = min(MOST_TRIALS, len(units))
        names = {u.number: u.narrow for u in units}
        done = 0

        def trial(numbers: Sequence[int]) -> tuple[float, float]:
            nonlocal done
            own = {name for number in numbers for name in names[number]}
            self.report("errors", done, trials, names[numbers[0]][0])
            done = min(done + 1, trials - 1)
            outputs = self._outputs(self.quantiser.alone(own), few)
            return metric.drop(exact, outputs), relative_error(exact, outputs)

        found = errors_by_halves([u.number for u in units], MOST_TRIALS, trial)
        self.report("errors", trials, trials, "")
        return found

    def _idle(self, units: Units, narrow: Network) -> tuple[frozenset[int], Network]:
        """The units that gain nothing, if the network is faster without them in 8 bits.

        Also gives the faster network.
        """
        losing = frozenset(n for n, m in units.found.items() if m.loses)
        if not losing or len(losing) == len(units.all):
            return frozenset(), narrow
        network = self._compiled(self.quantiser.without(units.nodes(losing)), 0, "the choice")
        before, after = self._seconds(narrow, network)
        return (losing, network) if after < (1 - _NOISE) * before else (frozenset(), narrow)

    def _chosen(
        self,
        units: Units,
        exact: Sequence[Outputs],
        idle: frozenset[int],
        order: Sequence[int],
        fastest: Network,
    ) -> Chosen:
        """The network with as few units as possible put back for their errors."""
        rounds = max(1, len(order)).bit_length()
        done = 0
        drops: dict[int, float] = {}

        def enough(count: int) -> bool:
            nonlocal done
            self.report("choose", done, rounds + 1, f"{count} kernels more in float32")
            done = min(done + 1, rounds)
            kept = units.nodes({*idle, *order[:count]})
            model = self.quantiser.alone(self.quantiser.narrow - {*kept})
            drops[count] = self.metric.drop(exact, self._outputs(model, self.samples))
            return drops[count] <= self.max_drop

        count = fewest(len(order), enough)
        self.report("choose", rounds + 1, rounds + 1, "")
        wide = self.compile(self.given, self._shapes())
        for step in range(_LAST_STEPS):
            if count >= len(order):
                break
            found = self._checked(units, wide, idle, frozenset(order[:count]))
            if not any(n.op_type == "DequantizeLinear" for n in found.model.graph.node):
                break
            if found.drop <= self.max_drop:
                if not count:
                    return found
                before, after = self._seconds(wide, fastest)
                faster = found.seconds[0] * after / before  # as of the same moment
                return replace(found, limitless=(drops[0], faster))
            count += 1 << step
        # What gains is shown, and is what a user may keep.
        return self._checked(units, wide, idle, frozenset(), is_empty=True)

    def _checked(
        self,
        units: Units,
        wide: Network,
        idle: frozenset[int],
        harmful: frozenset[int],
        is_empty: bool = False,
    ) -> Chosen:
        """The quantised network, checked, compiled and compared with the one in float32."""
        self.report("check", 0, 1, "the whole network")
        made = self.quantiser.without(units.nodes({*idle, *harmful}))
        model = cleaned(made, self.source)
        # There may be operators that onnx does not know.
        broken = _what_is_broken(model)
        if broken and not _what_is_broken(self.quantiser.model):
            raise ModelError(f"ONNX Runtime has written a broken network: {broken}")
        narrow = self.compile(serialised(model), self._shapes())
        exact, found = ([[*n.run(s).values()] for s in self.samples] for n in (wide, narrow))
        before, after = self._seconds(wide, narrow)
        self.report("check", 1, 1, "")
        drop = self.metric.drop(exact, found)
        return Chosen(
            model, idle, harmful, drop, (before, after), (exact, found), is_empty=is_empty
        )

    def _compiled(self, model: ModelProto, done: int, what: str) -> Network:
        self.report("compile", done, 2, what)
        return self.compile(serialised(model), self._shapes())

    def _seconds(self, *networks: Network) -> list[float]:
        """The median seconds of a run of each, measured in turns."""
        return in_turns([partial(n.run, self.samples[0]) for n in networks])

    def _shapes(self) -> Mapping[str, Sequence[int]] | None:
        """The shapes of the samples, if all have the same."""
        if not same_shapes(self.samples):
            return None
        return {name: array.shape for name, array in self.samples[0].items()}

    def _outputs(self, model: ModelProto, samples: Sequence[Sample]) -> list[Outputs]:
        run = onnxruntime_tools.runner(serialised(model), self.threads)
        return [run(sample) for sample in samples]


def _what_is_broken(model: ModelProto) -> str:
    """What onnx has to say against a model, "" if that is nothing."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        return next(iter(str(error).splitlines()), "it is not valid")[:200]
    return ""


def _check_finite(outputs: Collection[Outputs]) -> None:
    """Raises `ModelError` if the network in float32 gives values that are not finite."""
    for k, found in enumerate(outputs):
        if any(a.dtype.kind == "f" and not np.isfinite(a).all() for a in found):
            raise ModelError(
                f"in float32 the network gives values that are not finite for sample {k}, "
                "so that errors cannot be measured"
            )
