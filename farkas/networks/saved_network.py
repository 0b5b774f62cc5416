"""Networks as data, and their files: see `Network.save`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farkas.networks.executable import Parts
from farkas.networks.saved_source import model_members
from farkas.networks.variants import StagesRecord, Start, Variant
from farkas.targets.base import Target
from farkas.targets.saved_code import check_saved, save_code
from frontends.onnx import Stage, StoredNode
from runtime.common.archive import Member
from runtime.common.cache import Entry
from runtime.common.records import write_record
from runtime.network.cpu_model import CpuModel
from runtime.network.saved_models import MODEL_CLASSES, SavedModel, saved_model

if TYPE_CHECKING:
    from frontends.onnx import Source

KIND = "network"


@dataclass(frozen=True, eq=False)
class SavedNetwork:
    """A network as data.

    made : the name of the graph that is all of it, or its stages; models : its graphs by name
    shapes, outputs, passed : see `farkas.networks.network.Origin`
    """

    made: str | StagesRecord
    models: Mapping[str, SavedModel]
    shapes: Mapping[str, int | tuple[int, ...]]
    outputs: tuple[str, ...]
    passed: tuple[str, ...]


CLASSES = (*MODEL_CLASSES, SavedNetwork, StagesRecord, Start, Variant, Stage, StoredNode)


@dataclass(frozen=True, eq=False)
class Described:
    """What a network was compiled from, see `farkas.networks.network.Origin`.

    open : reads the model again
    """

    model: Any
    open: Callable[[], Source]
    target: Target
    shapes: Mapping[str, Sequence[int] | int]
    outputs: tuple[str, ...]
    passed: tuple[str, ...]


def save_network(
    origin: Described,
    parts: Callable[[], Parts],
    path: str | os.PathLike[str],
    with_model: bool | None,
) -> None:
    """Write a network to a file; see `Network.save`, also for what is raised.

    parts : what is compiled of it
    """
    check_saved(origin.target)
    found = parts()
    saved: dict[str, SavedModel] = {}
    entries: dict[str, Entry] = {}
    members: dict[str, Member] = {}
    for name, graph in found.models.items():
        assert isinstance(graph, CpuModel), "the target is the processor"
        saved[name], constants = saved_model(graph)
        entries[graph.entry.key] = graph.entry
        members |= constants
    for graph in found.others:
        assert isinstance(graph, CpuModel), "the target is the processor"
        entries[graph.entry.key] = graph.entry
    if with_model or (with_model is None and found.open is not None):
        members |= model_members(origin.model, (found.open or origin.open)())
    shapes = {n: s if isinstance(s, int) else tuple(s) for n, s in origin.shapes.items()}
    record = SavedNetwork(found.made, saved, shapes, origin.outputs, origin.passed)
    data = write_record(record, CLASSES)
    save_code(Path(path), KIND, origin.target, data, entries, members)
