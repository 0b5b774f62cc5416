"""Suite E on a device, and two small networks like it for devices that are not GPUs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import onnx
from onnx import ModelProto

from benchmarks import models
from benchmarks.kernel import Array
from benchmarks.networks import bert, mobilenetv2
from benchmarks.peers import PEERS
from benchmarks.sixteen_bits import halved_model
from benchmarks.task import Task, UnavailableError

TINY: dict[str, Callable[[], ModelProto]] = {
    "tiny_bert": partial(bert, layers=1, hidden=16, heads=2, inner=24, length=5),
    "tiny_mobilenet": partial(
        mobilenetv2, size=16, classes=10, blocks=((1, 8, 1, 1), (2, 12, 2, 2)), head=32
    ),
}


def names(tiny: bool) -> tuple[str, ...]:
    """Names of the networks."""
    return tuple(TINY) if tiny else models.names()


def size(name: str) -> tuple[int, int]:
    """Floating-point operations, and bytes in float32, see `benchmarks.models.count`."""
    return models.count(TINY[name]()) if name in TINY else models.size(name)


def write(name: str, folder: Path) -> Path:
    """Write the file of a network in float32, if it does not exist; returns its path.

    Raises
    ------
    UnavailableError : it is not available here.
    """
    if name not in TINY:
        return models.write(name, folder)
    path = folder / f"{name}.onnx"
    onnx.save(TINY[name](), path)
    return path


def write_half(task: Task, folder: Path) -> Path:
    """Write the file of a network in float16; returns its path."""
    path = folder / f"{task.name}-float16.onnx"
    onnx.save(halved_model(onnx.load(task.path)), path)
    return path


def reference(task: Task, threads: int) -> list[Array]:
    """The outputs in float32, by ONNX Runtime or torch on the CPU.

    Raises
    ------
    UnavailableError : neither is installed.
    """
    for name in ("ort", "torch"):
        peer = PEERS[name]
        if peer.missing() is None:
            peer.load()
            prepared = peer.prepare(task, threads)
            return list(prepared.fetch(prepared.call()))
    raise UnavailableError("there is no onnxruntime and no torch to compare results with")
