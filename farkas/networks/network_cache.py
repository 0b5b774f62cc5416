"""Networks compiled before: found in the cache by the content of their files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from farkas.networks.executable import WholeGraph
from farkas.networks.network import Network, Origin
from farkas.targets.cpu import CpuRunner
from poly.errors import CacheError
from poly.machine.cpu import host_machine
from runtime.common.arguments import default_threads
from runtime.common.fingerprint import code_digest, data_digest, file_digest
from runtime.cpu.openmp_pool import with_team
from runtime.cpu.toolchain import Toolchain
from runtime.network.cpu_model import CpuModel
from runtime.network.model_store import model_key, recall_model, store_model

#: All packages between a file and a model; the result may change with any of their code.
_PACKAGES = ("poly", "frontends", "codegen", "runtime", "farkas")


@dataclass(frozen=True)
class Content:
    """What a network is made from.

    origin : a path or bytes; digest : of these; asked : the arguments, as text
    """

    origin: Origin
    digest: str
    asked: str

    def key(self, toolchain: Toolchain) -> str:
        """The cache key of the network."""
        code = code_digest(*_PACKAGES)
        made_by = (code, version("onnx"), str(host_machine()))
        return model_key(toolchain, *made_by, self.digest, self.asked)

    def file_digest(self, name: str) -> str | None:
        """The digest of a file beside the network's."""
        if isinstance(self.origin.model, bytes):
            return None
        return file_digest(Path(self.origin.model).parent / name)


def content_of(origin: Origin) -> Content | None:
    """What a network is made from, None if it cannot be read or is in memory only."""
    found = _digest(origin.model)
    if found is None:
        return None
    shapes = sorted((str(name), repr(shape)) for name, shape in origin.shapes.items())
    return Content(origin, found, repr((shapes, origin.outputs)))


def _cpu(content: Content) -> CpuRunner:
    runner = content.origin.target.runner
    assert isinstance(runner, CpuRunner), "no other target recalls networks"
    return runner


def _digest(model: Any) -> str | None:
    if isinstance(model, bytes):
        return data_digest(model)
    return file_digest(model) if isinstance(model, (str, os.PathLike)) else None


def recall(content: Content) -> Network | None:
    """The network, if it was compiled before."""
    target = _cpu(content)
    toolchain = with_team(target.toolchain, target.cache)
    threads = target.threads or default_threads()
    key = content.key(toolchain)
    found = recall_model(key, toolchain, target.cache, threads, content.file_digest)
    return None if found is None else Network(content.origin, WholeGraph(found))


def remember(model: CpuModel, content: Content, files: Sequence[str]) -> None:
    """Store a compiled network for the next time.

    files : the names of other files that it was made from
    """
    target = _cpu(content)
    digests = {name: content.file_digest(name) for name in files}
    found = {name: d for name, d in digests.items() if d is not None}
    # If a file changed while it was read, the result belongs to neither content.
    if len(found) == len(digests) and _digest(content.origin.model) == content.digest:
        with contextlib.suppress(CacheError):  # it only takes longer the next time
            key = content.key(with_team(target.toolchain, target.cache))
            store_model(model, key, target.cache, found)
