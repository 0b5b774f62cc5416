"""Files of `save`: a zip archive of JSON, texts, libraries and raw numbers, with a manifest.

Nothing in it is unpickled.  Every member has a checksum, so that a damaged file is an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from poly.errors import SavedFileError

#: The manifest: what is in the file, and where it can be loaded.
MANIFEST = "farkas.json"
_TIME = (1980, 1, 1, 0, 0, 0)
_CHUNK = 1 << 20
#: Members that are read in place, or are not worth compressing.
_RAW = ("constants/", "model/")

#: The content of a member: whole, in pieces, or that of a file.
Member = bytes | tuple[memoryview, ...] | Path


def write_archive(
    file: BinaryIO, manifest: Mapping[str, Any], members: Mapping[str, Member]
) -> None:
    """Write an archive to a file that is open.

    Raises
    ------
    OSError : it cannot be written, or a file that is put in cannot be read.
    """
    with zipfile.ZipFile(file, "w") as archive:
        about = json.dumps(manifest, indent=1, sort_keys=True).encode()
        for name, content in {MANIFEST: about, **members}.items():
            info = zipfile.ZipInfo(name, _TIME)
            raw = name.startswith(_RAW)
            info.compress_type = zipfile.ZIP_STORED if raw else zipfile.ZIP_DEFLATED
            with archive.open(info, "w", force_zip64=True) as out:
                if isinstance(content, Path):
                    with content.open("rb") as given:
                        shutil.copyfileobj(given, out, _CHUNK)
                else:
                    for piece in (content,) if isinstance(content, bytes) else content:
                        out.write(piece)


class Archive:
    """An archive to be read; nothing stays open."""

    def __init__(self, path: Path) -> None:
        """Raises `SavedFileError` if it is no archive of `write_archive`."""
        self.path = path
        with self._opened() as archive:
            if MANIFEST not in archive.namelist():
                raise SavedFileError(f"{path} was not written by save: it has no {MANIFEST}")
            self._infos = archive.infolist()
            found = json.loads(archive.read(MANIFEST))
            if not isinstance(found, dict):
                raise ValueError("the manifest is no mapping")
            self.manifest: dict[str, Any] = found

    @property
    def names(self) -> list[str]:
        """The members, but for the manifest."""
        return [i.filename for i in self._infos if i.filename != MANIFEST]

    @cached_property
    def stamp(self) -> str:
        """Tells archives of other content apart."""
        about = [(i.filename, i.file_size, i.CRC) for i in self._infos]
        return hashlib.sha256(repr(about).encode()).hexdigest()

    def read(self, name: str) -> bytes:
        """The content of a member.  Raises `SavedFileError` if it is damaged or missing."""
        with self._opened() as archive:
            return archive.read(name)

    def fill(self, name: str, buffer: memoryview) -> None:
        """Read a member into memory of its size.  Raises as `read` does."""
        with self._opened() as archive, archive.open(name) as member:
            at = 0
            while piece := member.read(min(_CHUNK, len(buffer) - at + 1)):
                buffer[at : at + len(piece)] = piece  # a ValueError if there is too much
                at += len(piece)
            if at < len(buffer):
                raise ValueError(f"{name} is too short")

    def extract(self, prefix: str, folder: Path) -> None:
        """Write the members below a prefix to a folder.

        Raises
        ------
        SavedFileError : see `read`; a name that leads out of the folder.
        OSError : they cannot be written.
        """
        for name in self.names:
            if not name.startswith(prefix):
                continue
            parts = PurePosixPath(name.removeprefix(prefix)).parts
            if not parts or any(p in ("..", "/") or "\\" in p or "\0" in p for p in parts):
                raise SavedFileError(f"{self.path} has a file of an invalid name, {name!r}")
            target = folder.joinpath(*parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            with (
                self._opened() as archive,
                archive.open(name) as member,
                target.open("wb") as out,
            ):
                shutil.copyfileobj(member, out, _CHUNK)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[zipfile.ZipFile]:
        """The archive, open; mistakes in it are errors for the user."""
        try:
            with self.path.open("rb") as file:
                start = file.read(4)
                with zipfile.ZipFile(file) as archive:
                    yield archive
        except FileNotFoundError:
            raise SavedFileError(f"{self.path} does not exist") from None
        except OSError as error:
            raise SavedFileError(f"cannot read {self.path}: {error.strerror or error}") from None
        except zipfile.BadZipFile as error:
            if start == b"PK\3\4":
                raise damaged(self.path, str(error)) from None
            raise SavedFileError(
                f"{self.path} is not a file of Network.save or Kernel.save"
            ) from None
        except (
            ValueError, KeyError, IndexError, EOFError, RuntimeError, NotImplementedError,
            zlib.error, struct.error, MemoryError, OverflowError,
        ) as error:  # fmt: skip
            raise damaged(self.path, str(error)) from None


def damaged(path: Path, why: str) -> SavedFileError:
    """The error for a file that is not what was written."""
    return SavedFileError(
        f"{path} is truncated or damaged ({why}): copy it once more, or save it again"
    )
