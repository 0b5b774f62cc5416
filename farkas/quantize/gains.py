"""Seconds of each unit in float32 and in 8 bits, from the profiles of two compiled networks.

A unit is what the network in float32 computes in one kernel: a convolution with the sum and the
activation behind it.  In 8 bits kernels may be cut otherwise, so their time is shared out by the
nodes that they name.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from onnx import ModelProto, NodeProto

from farkas.networks.network import Network
from farkas.quantize.calibration import Sample
from farkas.quantize.float_nodes import Wide
from runtime.network.profile import Timing

#: In copies that are measured, nodes are called by their number; conversions, by what they serve.
_NUMBER = re.compile(r"'n(\d+)(?:q\d+)?'")


@dataclass(frozen=True)
class Unit:
    """Nodes that are one kernel in float32.

    nodes : all of them, in order; narrow : those that can be quantised, by name; seconds : of a run
    in float32
    """

    number: int
    nodes: tuple[NodeProto, ...]
    narrow: tuple[str, ...]
    seconds: float


def numbered(wide: Wide, model: ModelProto) -> ModelProto:
    """A copy of the model, or of a quantised form, whose nodes have short names for `units_of`."""
    numbers = {n.name: k for k, n in enumerate(wide.graph.node)}
    makers = {name: n for n in model.graph.node for name in n.output if name}
    readers: dict[str, list[NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    copy = ModelProto()
    copy.CopyFrom(model)
    for count, node in enumerate(copy.graph.node):
        if node.name in numbers:
            node.name = f"n{numbers[node.name]}"
        else:
            owner = next((k for k in _served(node, numbers, makers, readers)), None)
            node.name = f"q{count}" if owner is None else f"n{owner}q{count}"
    return copy


def _served(
    conversion: NodeProto,
    numbers: Mapping[str, int],
    makers: Mapping[str, NodeProto],
    readers: Mapping[str, Sequence[NodeProto]],
) -> Iterator[int]:
    """The nodes that a conversion serves: whose result it converts, then those that read it."""
    before: NodeProto | None = conversion
    after = [conversion]
    for _ in range(2):  # a value passes QuantizeLinear and DequantizeLinear
        before = makers.get(before.input[0]) if before is not None else None
        if before is not None and before.name in numbers:
            yield numbers[before.name]
    for _ in range(2):
        after = [r for n in after for name in n.output for r in readers.get(name, ())]
        yield from (numbers[r.name] for r in after if r.name in numbers)


def units_of(wide: Wide, narrow: frozenset[str], timings: Sequence[Timing]) -> tuple[Unit, ...]:
    """The units with nodes that can be quantised, from the profile of the network in float32."""
    nodes = list(wide.graph.node)
    calls = [(sorted(_numbers(t)), t.seconds) for t in timings]
    joined = _Joined(len(nodes))
    for members, _ in calls:
        for number in members[1:]:
            joined.join(members[0], number)
    named = {n for members, _ in calls for n in members}
    place = {name: k for k, n in enumerate(nodes) for name in n.output}
    for k, node in enumerate(nodes):  # views have no kernel: they follow what they look at
        before = next((place[i] for i in node.input if i in place), None)
        if k not in named and before is not None:
            joined.join(before, k)
    groups: dict[int, list[int]] = {}
    for k in range(len(nodes)):
        groups.setdefault(joined.root(k), []).append(k)
    seconds = dict.fromkeys(groups, 0.0)
    for members, taken in calls:
        if members:
            seconds[joined.root(members[0])] += taken
    found: list[Unit] = []
    for root, group in sorted(groups.items()):
        names = tuple(nodes[k].name for k in group if nodes[k].name in narrow)
        if names:
            own = tuple(nodes[k] for k in group)
            found.append(Unit(len(found), own, names, seconds[root]))
    return tuple(found)


def narrow_seconds(
    wide: Wide, units: Sequence[Unit], timings: Iterable[Timing]
) -> tuple[dict[int, float], frozenset[int]]:
    """Seconds of each unit in 8 bits, and the units that share kernels with others there.

    The time of a shared kernel is divided like the times in float32.
    """
    numbers = {n.name: k for k, n in enumerate(wide.graph.node)}
    home = {numbers[n.name]: unit for unit in units for n in unit.nodes}
    found = {unit.number: 0.0 for unit in units}
    shared: set[int] = set()
    for timing in timings:
        own = {home[k].number: home[k] for k in _numbers(timing) if k in home}
        total = sum(unit.seconds for unit in own.values())
        for number, unit in own.items():
            part = unit.seconds / total if total else 1 / len(own)
            found[number] += timing.seconds * part
        if len(own) > 1:
            shared |= own.keys()
    return found, frozenset(shared)


def profiled(network: Network, sample: Sample, budget: float = 2.0) -> tuple[Timing, ...]:
    """The median seconds of each kernel, of as many runs as fit into `budget`, 5 to 100."""
    start = time.perf_counter()
    network.profile(sample, 1)  # also warms up
    once = time.perf_counter() - start
    return network.profile(sample, max(5, min(100, int(budget / max(once, 1e-6)))))


def in_turns(
    runs: Sequence[Callable[[], object]], at_least: int = 5, budget: float = 2.0, most: int = 500
) -> list[float]:
    """The median seconds of functions that are called in turns."""
    times: list[list[float]] = [[] for _ in runs]
    began = time.perf_counter()
    while len(times[0]) < at_least or (
        time.perf_counter() - began < budget * len(runs) and len(times[0]) < most
    ):
        for run, own in zip(runs, times, strict=True):
            start = time.perf_counter()
            run()
            own.append(time.perf_counter() - start)
    return [sorted(own)[len(own) // 2] for own in times]


def _numbers(timing: Timing) -> set[int]:
    return {int(n) for n in _NUMBER.findall(timing.origin)}


class _Joined:
    """Sets of numbers that grow together; the smallest number stands for its set."""

    def __init__(self, count: int) -> None:
        self._above = list(range(count))

    def root(self, number: int) -> int:
        while self._above[number] != number:
            number = self._above[number]
        return number

    def join(self, first: int, second: int) -> None:
        low, high = sorted((self.root(first), self.root(second)))
        self._above[high] = low
