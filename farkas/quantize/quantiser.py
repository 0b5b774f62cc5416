"""A prepared network, and its quantised forms with some nodes in float32."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import onnx
from onnx import ModelProto

from farkas.quantize import onnxruntime_tools
from farkas.quantize.calibration import Sample
from farkas.quantize.float_nodes import REMOVABLE, Wide, narrow_nodes, read_wide, with_activations
from farkas.quantize.unfit_nodes import nodes_without_ranges, unfit_nodes
from frontends.onnx.core.serialise import serialised


@dataclass(frozen=True, eq=False)
class Quantiser:
    """Quantises a network: statically, weights per channel, in QDQ format.

    model : in float32, prepared; samples : from which the ranges of values are taken; folder : for
    files on the way
    """

    model: ModelProto
    samples: Sequence[Sample]
    folder: Path

    @cached_property
    def wide(self) -> Wide:
        return Wide(self.model.graph)

    @cached_property
    def unfit(self) -> frozenset[str]:
        """The names of the nodes that are never quantised, see `farkas.quantize.unfit_nodes`."""
        return self._known_unfit | nodes_without_ranges(self.wide, self._first)

    @cached_property
    def narrow(self) -> frozenset[str]:
        """The names of the nodes that can be quantised."""
        made = self._first if self.unfit == self._known_unfit else self._made(self.unfit)
        return narrow_nodes(self.wide, made, onnxruntime_tools.operators()) - self.unfit

    @cached_property
    def _known_unfit(self) -> frozenset[str]:
        """Those that are known before there are ranges."""
        return unfit_nodes(self.wide)

    @cached_property
    def _first(self) -> ModelProto:
        """All other nodes in 8 bits."""
        return self._made(self._known_unfit)

    def without(self, excluded: Iterable[str]) -> ModelProto:
        """The network in 8 bits, but for the nodes `excluded`, and activations before these or
        that no range of 8 bits can stand for.

        Raises
        ------
        ModelError : ONNX Runtime refuses the network.
        """
        others = {n.name for n in self.model.graph.node} - self.narrow
        kept = with_activations(self.wide, self.narrow, {*others, *excluded})
        return read_wide(self.wide, self._made(kept), kept)

    def alone(self, names: Iterable[str]) -> ModelProto:
        """The network with only some nodes in 8 bits, in less time than `without` takes.

        Its activations are not removed, but what it computes is the same.
        """
        others = {n.name for n in self.model.graph.node} - self.narrow
        return read_wide(self.wide, self._whole, self.narrow - {*names} | others | self._removable)

    @cached_property
    def _removable(self) -> frozenset[str]:
        return frozenset(n.name for n in self.model.graph.node if n.op_type in REMOVABLE)

    @cached_property
    def _whole(self) -> ModelProto:
        """All nodes in 8 bits, with the activations between them."""
        others = {n.name for n in self.model.graph.node} - self.narrow
        return self._made(frozenset(others | self._removable))

    def _made(self, excluded: frozenset[str]) -> ModelProto:
        result, ranges = self.folder / "quantised.onnx", self.folder / "ranges.json"
        onnxruntime_tools.quantise(self._path, result, self.samples, sorted(excluded), ranges)
        return onnx.load(str(result))

    @cached_property
    def _path(self) -> Path:
        path = self.folder / "prepared.onnx"
        path.write_bytes(serialised(self.model))
        return path
