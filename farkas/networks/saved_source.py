"""`SavedSource`: the ONNX model in a file of `Network.save`, or why there is none."""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poly.errors import ArgumentError, ModelError, SavedFileError
from runtime.common.archive import Archive, Member
from runtime.common.cache import remove_own

if TYPE_CHECKING:
    from frontends.onnx import Source

FOLDER = "model/"
_FILE = "network.onnx"


class SavedSource(os.PathLike[str]):
    """The path of a saved model, which is written to a temporary folder when it is needed."""

    def __init__(self, path: Path, stamp: str) -> None:
        """path : of the file of `save`; stamp : `Archive.stamp`, from when that was loaded"""
        self.path, self.stamp = path, stamp
        self._folder: Path | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[SavedSource], tuple[Path, str]]:
        return SavedSource, (self.path, self.stamp)

    def __repr__(self) -> str:
        return f"<the model in {self.path}>"

    def __fspath__(self) -> str:
        with self._lock:
            if self._folder is None or not self._folder.is_dir():
                self._folder = self._extracted()
            return str(self._folder / _FILE)

    def _extracted(self) -> Path:
        archive = Archive(self.path)
        if archive.stamp != self.stamp:
            raise SavedFileError(f"{self.path} has changed since it was loaded: load it again")
        if FOLDER + _FILE not in archive.names:
            raise ModelError(
                f"{self.path} holds compiled code only; for other sizes, other outputs or C, use "
                "the ONNX model, or save with with_model=True"
            )
        made = Path(tempfile.mkdtemp(prefix="farkas-saved-"))
        weakref.finalize(self, remove_own, made, os.getpid())
        try:
            archive.extract(FOLDER, made)
        except OSError as error:
            raise ModelError(f"cannot read the model in {self.path}: {error.strerror}") from None
        return made


def model_members(model: Any, opened: Source) -> dict[str, Member]:
    """An ONNX model as members of an archive, with the files beside it.

    model : a path, bytes or a message; opened : the same, read again

    Raises
    ------
    ArgumentError : a model in memory is too large to be written.
    """
    from frontends.onnx.core.serialise import serialised

    if isinstance(model, bytes):
        return {FOLDER + _FILE: model}
    if isinstance(model, (str, os.PathLike)):
        path = Path(model)
        others = {FOLDER + name: path.parent / name for name in opened.external_files}
        return {FOLDER + _FILE: path, **others}
    try:
        return {FOLDER + _FILE: serialised(model)}
    except ModelError as error:
        raise ArgumentError(f"the model cannot be written: {error}; save it to a file") from error
