"""Networks in the cache, by the content of their files; `farkas.networks.recall` finds them.

An entry says which compiled graphs a network consists of: one of fixed sizes, or the stages that
were compiled until then, with the conditions under which each is valid.  The graphs are entries
of their own, see `runtime.network.model_store`.
"""

from __future__ import annotations

import contextlib
import inspect
import marshal
import pickle
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np

from farkas.networks.network import Origin, changed, model_digest
from farkas.targets.cpu import CpuRunner
from farkas.version import PACKAGES
from poly.errors import CacheError
from poly.ir.instruction_tables import declared_intrinsics
from poly.machine.cpu import host_machine
from runtime.common.arguments import default_threads
from runtime.common.cache import digest
from runtime.common.fingerprint import code_digest, data_digest, file_digest
from runtime.cpu.openmp_pool import team_flags, with_team
from runtime.network.cpu_model import CpuModel
from runtime.network.model_store import recall_model, store_model

if TYPE_CHECKING:
    from farkas.networks.variants import StagesRecord
    from frontends.onnx import Source

_FORMAT = "2"
_NETWORK = "network.pickle"


@dataclass(frozen=True)
class Content:
    """What a network is made from.

    origin : a path or bytes; digest : of these; asked : the arguments, as text
    """

    origin: Origin
    digest: str
    asked: str

    @cached_property
    def key(self) -> str:
        """The cache key of the network."""
        made_by = (_FORMAT, sys.version, np.__version__, version("onnx"), code_digest(*PACKAGES))
        # The library of the threads is not needed yet: it may be compiled meanwhile.
        where = (team_flags(self.runner.toolchain).identity, str(host_machine()))
        declared = (i.text for i in declared_intrinsics())
        tuned = self.runner.tuned.identity
        own = (tuned, *declared, *_foreign_operators())
        return digest("network", *made_by, *where, *own, self.digest, self.asked)

    @property
    def runner(self) -> CpuRunner:
        """The target's."""
        runner = self.origin.target.runner
        assert isinstance(runner, CpuRunner), "no other target recalls networks"
        return runner

    def has_changed(self, files: Mapping[str, str | None]) -> bool:
        """Whether the network is not the same any more.  files : digests of other files, by name"""
        return self._have_changed(files) or model_digest(self.origin.model) != self.digest

    def _have_changed(self, files: Mapping[str, str | None]) -> bool:
        return any(d is None or self.origin.file_digest(name) != d for name, d in files.items())

    def record(self) -> NetworkRecord | None:
        """What is in the cache, None unless it is intact and made from the same files."""
        entry = self.runner.cache.get(self.key)
        if entry is None:
            return None
        try:
            found: NetworkRecord = pickle.loads(entry.read(_NETWORK))
        except CacheError:
            return None
        return None if self._have_changed(found.files) else found

    def load(self, key: str) -> CpuModel | None:
        """A compiled graph, None unless it is in the cache and its threads can be loaded."""
        runner = self.runner
        toolchain = with_team(runner.toolchain, runner.cache)
        if toolchain != team_flags(runner.toolchain):
            return None
        return recall_model(key, toolchain, runner.cache, runner.threads or default_threads())


def _foreign_operators() -> list[str]:
    """Digests of the files of operators that are no part of Farkas; nothing is imported for it."""
    core = sys.modules.get("frontends.onnx.core.node")
    if core is None:
        return []
    found = []
    for function in map(inspect.unwrap, getattr(core, "foreign_operators", tuple)()):
        code = getattr(function, "__code__", None) or type(function).__call__.__code__
        found.append(file_digest(code.co_filename) or data_digest(marshal.dumps(code)))
    return sorted(found)


def content_of(origin: Origin) -> Content | None:
    """What a network is made from, None if it cannot be read or is in memory only."""
    found = model_digest(origin.model)
    if found is None:
        return None
    if not isinstance(origin.model, bytes):
        origin = replace(origin, digest=found)
    shapes = sorted((str(name), repr(shape)) for name, shape in origin.shapes.items())
    return Content(origin, found, repr((shapes, origin.outputs, origin.passed)))


@dataclass(frozen=True, eq=False)
class NetworkRecord:
    """A network in the cache.

    files : digests of the other files that it was made from, by name; made : the key of the
    compiled graph that is all of it, or its stages
    """

    files: Mapping[str, str | None]
    made: str | StagesRecord


class VariantStore(ABC):
    """Where the compiled stages of a network are kept, and what more are made from."""

    @abstractmethod
    def open(self) -> Source:
        """The model, read again.  Raises `ModelError` if that is not possible."""

    @abstractmethod
    def load(self, key: str) -> CpuModel | None:
        """A compiled graph, None if it is not there any more."""

    def store(self, model: CpuModel) -> str | None:
        """Keep a compiled graph; returns its key, None if it is not kept."""
        return None

    def record(self, made: str | StagesRecord) -> None:
        """Say what the network consists of now."""
        return


@dataclass(frozen=True, eq=False)
class Keeper(VariantStore):
    """Keeps what is compiled of a network in the cache.

    files : digests of the other files that it is made from, by name, from when it was opened
    """

    content: Content
    files: Mapping[str, str | None]

    def open(self) -> Source:
        """The model, read again.

        Raises
        ------
        ModelError : it has changed since, so that its parts would not belong together.
        """
        opened = self.content.origin.open()
        if self.content.has_changed(self.files):
            raise changed(self.content.origin.model)
        return opened

    def load(self, key: str) -> CpuModel | None:
        return self.content.load(key)

    def store(self, model: CpuModel) -> str | None:
        with contextlib.suppress(CacheError):  # it only takes longer the next time
            return store_model(model, self.content.runner.cache)
        return None

    def record(self, made: str | StagesRecord) -> None:
        # If a file changed while it was read, the result belongs to neither content.
        if self.content.has_changed(self.files):
            return
        data = pickle.dumps(NetworkRecord(self.files, made), protocol=5)
        with contextlib.suppress(CacheError):
            self.content.runner.cache.replace(self.content.key, {_NETWORK: data})


def keeper_of(content: Content, opened: Source) -> Keeper:
    """What stores a network that was just opened."""
    return Keeper(content, files_of(content.origin, opened))


def files_of(origin: Origin, opened: Source) -> dict[str, str | None]:
    """The digests of the files beside a model, by name."""
    return {name: origin.file_digest(name) for name in opened.external_files}
