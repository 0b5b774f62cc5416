"""`quantize_onnx`: a network in 8 bits, as far as that gains time and keeps the error small."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from farkas.networks.compile_onnx import compile_onnx
from farkas.networks.network import Network
from farkas.quantize import onnxruntime_tools
from farkas.quantize.calibration import Data, read_samples
from farkas.quantize.metric import RELATIVE, TOP1, Metric
from farkas.quantize.prepare_model import opened, prepared, size_of
from farkas.quantize.quantiser import Quantiser
from farkas.quantize.report import Row, change, percent, sizes, table
from farkas.quantize.search import Chosen, Search, Units
from farkas.targets.find_target import CacheLike, CompilerLike
from frontends.onnx import Source
from frontends.onnx.core.serialise import serialised
from poly.errors import ArgumentError
from runtime.common.arguments import check_threads
from runtime.common.compile_report import Progress

#: Why nodes stay in float32.
NO_GAIN, TOO_FAR = "no gain", "error"


@dataclass(frozen=True, eq=False)
class QuantizedModel:
    """A network in 8 bits, in QDQ format, and what was measured of it.

    Attributes
    ----------
    model : the network, an ``onnx.ModelProto``
    rows : for the nodes of each kernel in float32, their error, their seconds, and whether they
        stay in float32
    metric, drop, max_drop : by how much the network as a whole is worse on the data, in percent,
        and by how much it may be
    accuracy : of the network in float32 and in 8 bits, in percent, if there were labels
    seconds : of a run in float32 and in 8 bits, measured in turns
    sizes : of both files, in bytes
    limitless : the drop and the seconds without a limit of the drop, if that makes a difference
    enough : whether the goal can be reached with something in 8 bits
    """

    model: ModelProto
    rows: tuple[Row, ...]
    metric: str
    drop: float
    max_drop: float
    accuracy: tuple[float, float] | None
    seconds: tuple[float, float]
    sizes: tuple[int, int]
    limitless: tuple[float, float] | None
    enough: bool

    @property
    def reached(self) -> bool:
        """Whether the drop is small enough."""
        return self.enough and self.drop <= self.max_drop

    def table(self, every: bool = False) -> str:
        """The rows as text; of many rows those alike share a line, unless `every` one is wanted."""
        return table(self.rows, every)

    def summary(self) -> str:
        """The network as a whole, as text."""
        kept = [r for r in self.rows if r.kept]
        lines = [f"stays     {len(kept)} of {len(self.rows)} lines stay in float32"]
        if self.accuracy is not None:
            before, after = self.accuracy
            lines.append(f"accuracy  {before:.2f} % -> {after:.2f} %")
        missed = "" if self.reached else "; that is missed"
        lines += [
            f"drop      {percent(self.drop)} ({self.metric}), at most {percent(self.max_drop)}"
            f"{missed}",
            f"time      {change(*self.seconds)}",
            f"size      {sizes(*self.sizes)}",
        ]
        if self.limitless is not None:
            drop, narrow = self.limitless
            lines.append(f"no limit  drop {percent(drop)}, {change(self.seconds[0], narrow)}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return f"{self.table()}\n{self.summary()}"

    def serialized(self) -> bytes:
        """The network as the content of a file."""
        return serialised(self.model)


def quantize_onnx(
    model: str | os.PathLike[str] | bytes | Any,
    data: Data,
    *,
    max_drop: float = 0.5,
    metric: str = RELATIVE,
    labels: Any = None,
    threads: int | None = None,
    cc: CompilerLike = None,
    cache: CacheLike = None,
    progress: Progress | None = None,
) -> QuantizedModel:
    """Quantise an ONNX network to 8 bits with ONNX Runtime's tools, as far as that pays here.

    >>> made = fk.quantize_onnx("network.onnx", {"data": images})
    >>> model = fk.compile_onnx(made.model)

    Each node is quantised alone to see its error, and timed in float32 and in 8 bits.  Nodes that
    gain nothing stay in float32, then those with the largest error for the time that they gain.

    Parameters
    ----------
    model : the path of a file, its bytes, or an ``onnx.ModelProto``, in float32
    data : samples of the inputs: arrays by name, the path of a ``.npz`` file or of a folder of
        these, or several of all that.  An array with one axis more than its input holds a sample in
        each element of the first axis; without, it is one sample
    max_drop : by how much the network may be worse on the data, in percent
    metric : ``"relative"``, the largest difference in percent of the largest value of an output;
        ``"cosine"``, 1 - cosine of both; ``"top1"``, the percentage of changed largest elements of
        the first output or, with `labels`, the points of accuracy that are lost
    labels : the right class of each row of the first output
    threads, cc, cache : as for `compile_onnx`, to measure
    progress : called with (stage, steps done, steps in all, current item)

    Raises
    ------
    ArgumentError : data, labels or a metric that do not fit the network; no ONNX Runtime.
    FileError : data that cannot be read; a `FarkasError`.
    ModelError : a network that is broken or quantised already, or that ONNX Runtime refuses.
    """
    limit = _percent(max_drop)
    if threads is not None:
        check_threads(threads)
    asked = Metric(metric, None if labels is None else np.asarray(labels))
    onnxruntime_tools.check_installed()
    source = opened(model)
    samples = read_samples(data, source.input_ports({}))
    report = progress or _quiet
    with tempfile.TemporaryDirectory(prefix="farkas-quantize-") as name:
        folder = Path(name)
        report("prepare", 0, 1, "")
        quantiser = Quantiser(prepared(source, folder), samples, folder)
        report("prepare", 1, 1, "")

        def compiled(network: Any, shapes: Mapping[str, Sequence[int]] | None) -> Network:
            return compile_onnx(network, threads=threads, shapes=shapes, cc=cc, cache=cache)

        search = Search(model, source, quantiser, samples, asked, limit, compiled, threads, report)
        units, chosen = search.run()
    return _described(source, asked, limit, units, chosen)


def _percent(max_drop: Any) -> float:
    """A drop that is allowed.  Raises `ArgumentError`."""
    if isinstance(max_drop, bool) or not isinstance(max_drop, Real):
        raise ArgumentError(f"max_drop is a number of percent, not {max_drop!r}")
    limit = float(max_drop)
    if not (math.isfinite(limit) and limit >= 0):
        raise ArgumentError(f"max_drop={max_drop} must be a number of percent from 0")
    return limit


def _quiet(stage: str, done: int, total: int, what: str) -> None:
    """Shows nothing."""


def _described(
    source: Source, metric: Metric, max_drop: float, units: Units, chosen: Chosen
) -> QuantizedModel:
    """What was chosen, with a row for each unit."""
    rows = []
    for unit in units.all:
        measured = units.found[unit.number]
        kept = NO_GAIN if unit.number in chosen.idle else ""
        rows.append(
            Row(
                tuple((n.op_type, n.name) for n in unit.nodes if n.name in unit.narrow),
                measured.error if metric.name == TOP1 else measured.drop,
                units.together[unit.number],
                measured.wide,
                measured.narrow,
                unit.number in units.shared,
                TOO_FAR if unit.number in chosen.harmful else kept,
            )
        )
    before, after = map(metric.accuracy, chosen.outputs)
    return QuantizedModel(
        chosen.model,
        tuple(rows),
        metric.name,
        chosen.drop,
        max_drop,
        None if before is None or after is None else (before, after),
        chosen.seconds,
        (size_of(source), len(serialised(chosen.model))),
        chosen.limitless,
        not chosen.is_empty,
    )
