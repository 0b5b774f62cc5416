"""Networks that were compiled before: found in the cache by the content of their files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from farkas.target import Target
from poly.errors import CacheError
from poly.machine import host_machine
from runtime.arguments import default_threads
from runtime.fingerprint import code_digest, data_digest, file_digest
from runtime.model import Model
from runtime.stored_model import model_key, recall_model, store_model
from runtime.team import with_team

#: Everything between a file and a model; what any of it makes may change with its code.
_PACKAGES = ("poly", "frontends", "codegen", "runtime", "farkas")

Source = str | os.PathLike[str] | bytes | Any


@dataclass(frozen=True)
class Origin:
    """What a network is made from.

    source : path or bytes; content : its digest; shapes : what was asked for, as text
    """

    source: str | os.PathLike[str] | bytes
    content: str
    shapes: str

    def key(self, target: Target) -> str:
        """What the network is stored under."""
        code = code_digest(*_PACKAGES)
        made_by = (code, version("onnx"), str(host_machine()))
        toolchain = with_team(target.toolchain, target.cache)
        return model_key(toolchain, *made_by, self.content, self.shapes)

    def file_digest(self, name: str) -> str | None:
        """The digest of a file beside the network's."""
        if isinstance(self.source, bytes):
            return None
        return file_digest(Path(self.source).parent / name)


def origin_of(source: Source, shapes: Mapping[str, Sequence[int] | int] | None) -> Origin | None:
    """What a network is made from, None if that cannot be read or is in memory only."""
    content = _content(source)
    if content is None or not isinstance(shapes, Mapping | None):
        return None
    asked = sorted((str(name), repr(shape)) for name, shape in (shapes or {}).items())
    return Origin(source, content, repr(asked))


def _content(source: Source) -> str | None:
    if isinstance(source, bytes):
        return data_digest(source)
    return file_digest(source) if isinstance(source, (str, os.PathLike)) else None


def recall(origin: Origin, target: Target) -> Model | None:
    """The network, if it was compiled before."""
    toolchain = with_team(target.toolchain, target.cache)
    threads = target.threads or default_threads()
    key = origin.key(target)
    return recall_model(key, toolchain, target.cache, threads, origin.file_digest)


def remember(model: Model, origin: Origin, target: Target, files: Sequence[str]) -> None:
    """Keep a network for the next time.

    files : the names of files beside the network's that it was made from, too
    """
    digests = {name: origin.file_digest(name) for name in files}
    found = {name: d for name, d in digests.items() if d is not None}
    # What changed while it was read belongs to no content.
    if len(found) == len(digests) and _content(origin.source) == origin.content:
        with contextlib.suppress(CacheError):  # it only takes longer the next time
            store_model(model, origin.key(target), target.cache, found)
