"""A content-addressed cache on disk, safe against other users, crashes and other processes.

An entry is a folder of named files under a key that hashes everything it was made from, so two
processes that make the same entry make equal ones and no lock is needed: an entry is written under
a temporary name and renamed into place as a whole.  A process killed half-way leaves only a
temporary folder, which a later process removes.  A manifest holds the size and SHA-256 of each
file; an entry that does not match it is discarded and rebuilt, and is never loaded.

If a directory is not writable (for example because the disk is full), a temporary one replaces it
until the process ends, and a `CacheWarning` says so.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import platformdirs

from poly.errors import CacheError, CacheWarning

DEFAULT_LIMIT = 2 << 30
ENVIRONMENT = "FARKAS_CACHE_DIR"
_FORMAT = "v1"
_MANIFEST = "manifest.json"
#: What is left behind is removed after so many seconds, if a process of that number runs later.
_STALE_SECONDS, _OLD_SECONDS = 3600.0, 24 * 3600.0
_CHUNK = 1 << 20
#: Files of so many bytes are written by all processors.
_LARGE = 8 << 20
#: Bytes that must be free to compile.
_ROOM = 32 << 20
#: The content of a file: whole, or in pieces that need not be joined in memory.
Data = bytes | tuple[memoryview, ...]

_KEY = re.compile(r"[0-9a-f]{16,64}\Z")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\Z")


def digest(*parts: str | bytes) -> str:
    """The key of what is made from these parts (each is hashed with its length)."""
    hasher = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        hasher.update(len(data).to_bytes(8, "little"))
        hasher.update(data)
    return hasher.hexdigest()


@dataclass(frozen=True)
class Entry:
    """A verified entry: its key, its folder, its file names, and what each file should hold."""

    key: str
    path: Path
    files: tuple[str, ...]
    fingerprints: Mapping[str, Mapping[str, int | str]] = field(default_factory=dict, compare=False)

    def file(self, name: str) -> Path:
        """Path of one file.  Raises `CacheError` if the entry has no such file."""
        if name not in self.files:
            raise CacheError(f"cache entry {self.key} has no {name}; it has {self.files}")
        return self.path / name

    def read(self, name: str) -> bytes:
        """Content of one file.  Raises `CacheError` if it does not exist (any more)."""
        try:
            return self.file(name).read_bytes()
        except OSError as error:
            raise CacheError(f"{error.filename}: {error.strerror}") from error

    def fill(self, name: str, buffer: memoryview) -> None:
        """Read a file that `Cache.get` left unread into memory of its size.

        Raises
        ------
        CacheError : the file is missing, or not what was written.
        """
        hasher, at = hashlib.sha256(), 0
        try:
            with open(self.file(name), "rb", buffering=0) as file:
                while at < len(buffer):
                    count = file.readinto(buffer[at : at + _CHUNK])
                    if not count:
                        break
                    hasher.update(buffer[at : at + count])
                    at += count
        except OSError as error:
            raise CacheError(f"{error.filename}: {error.strerror}") from error
        expected = {"size": at, "sha256": hasher.hexdigest()}
        if at < len(buffer) or self.fingerprints.get(name) != expected:
            raise CacheError(f"cache entry {self.key}: {name} is damaged")


@dataclass(frozen=True)
class CacheInfo:
    """How much a cache holds: entries, their size in bytes, and the limit."""

    directory: Path
    entries: int
    bytes: int
    limit: int

    def __str__(self) -> str:
        entries = "1 entry" if self.entries == 1 else f"{self.entries} entries"
        size, limit = self.bytes / 2**20, self.limit / 2**20
        return f"{self.directory}: {entries}, {size:.1f} of at most {limit:.0f} MiB"


class Cache:
    """A cache in one directory.

    Parameters
    ----------
    directory : default is the environment variable ``FARKAS_CACHE_DIR``, else the user's cache
        directory.  It is created with permissions for its owner only.
    limit : bytes that the entries may use together; the least recently used ones are evicted first.
        The entry written last always stays.

    Raises
    ------
    CacheError : the directory belongs to someone else, or others may write to it: code is loaded
        from it.  Or it cannot be created; the user's cache directory is then replaced by another.
    """

    def __init__(self, directory: str | Path | None = None, limit: int = DEFAULT_LIMIT) -> None:
        if limit <= 0:
            raise CacheError(f"the size limit of a cache must be positive, not {limit}")
        self.directory = Path(directory).expanduser().absolute() if directory else _default()
        self.limit = limit
        self._entries = self.directory / _FORMAT
        self._temporary = self.directory / "temporary"
        self._unchecked: int | None = None  # bytes written since the last check of the limit
        try:
            for folder in (self.directory, self._entries, self._temporary):
                _make_private(folder)
        except OSError as error:
            if directory or os.environ.get(ENVIRONMENT):
                raise CacheError(
                    f"cannot make the cache directory {folder}: {error.strerror}; "
                    f"choose another with Cache(directory=…) or {ENVIRONMENT}"
                ) from error
            _stand_in(self.directory, error)

    def __reduce__(self) -> tuple[Any, ...]:
        # Other users have another default.
        directory = None if self.directory == _default() else str(self.directory)
        return Cache, (directory, self.limit)

    def get(self, key: str, unread: str | None = None) -> Entry | None:
        """The entry of a key if it exists and is intact; marks it as used.

        A damaged entry is removed.

        unread : prefix of the names of files that are not checked here: `Entry.fill` checks them
            while it reads them
        """
        folder = self._folder(key)
        other = _STAND_INS.get(self.directory)
        if other is not None and other.has(key):
            return other.get(key, unread)
        if not self.has(key):
            return None
        files = _verified_files(folder, key, unread)
        if files is None:
            self._discard(folder)
            return None
        with contextlib.suppress(OSError):
            os.utime(folder)
        return Entry(key, folder, tuple(sorted(files)), files)

    def has(self, key: str) -> bool:
        """Whether there is an entry, which may be damaged."""
        try:
            return self._folder(key).is_dir()
        except OSError:
            return False

    def discard(self, key: str) -> None:
        """Remove an entry, if it exists."""
        self._discard(self._folder(key))
        if self.directory in _STAND_INS:
            _STAND_INS[self.directory].discard(key)

    def put(self, key: str, files: Mapping[str, Data]) -> Entry:
        """Store files under a key; what another process stored there first is equivalent.

        Raises
        ------
        CacheError : the files cannot be written, not even to a temporary directory; nothing is left
            behind.
        """
        if self.directory in _STAND_INS:
            return _STAND_INS[self.directory].put(key, files)
        try:
            return self._put(key, files)
        except OSError as error:
            return _stand_in(self.directory, error).put(key, files)

    def keep(self, key: str, files: Mapping[str, Data]) -> None:
        """Store files for other processes if they can be written; this process does not need them.

        Raises
        ------
        CacheError : others may write to the directory.
        """
        if self.directory in _STAND_INS:
            return
        try:
            self._put(key, files)
        except OSError as error:
            _warn(self.directory, error)

    def replace(self, key: str, files: Mapping[str, Data]) -> None:
        """`keep` them instead of what is there: other processes find either the whole of the one
        or of the other, or nothing for a moment."""
        if self.directory not in _STAND_INS:
            self._discard(self._folder(key))
        self.keep(key, files)

    def _put(self, key: str, files: Mapping[str, Data]) -> Entry:
        folder = self._folder(key)
        for name in files:
            if not _NAME.match(name) or name == _MANIFEST:
                raise CacheError(f"{name!r} is not a valid file name in the cache")
        for parent in (self.directory, self._entries, self._temporary, folder.parent):
            _make_private(parent)
        written = self._write(key, files)
        try:
            self._rename(written, folder, key)
        finally:
            shutil.rmtree(written, ignore_errors=True)
        self._keep_limit(_size(files), keep=folder)
        return Entry(key, folder, tuple(sorted(files)))

    def get_or_build(self, key: str, build: Callable[[], Mapping[str, bytes]]) -> Entry:
        """The entry of a key, made by `build` if it is missing or damaged."""
        return self.get(key) or self.put(key, build())

    @contextlib.contextmanager
    def workspace(self) -> Iterator[Path]:
        """A private folder for making an entry; removed at the end.

        Raises
        ------
        CacheError : it cannot be created, or the code inside cannot write to it.
        """
        folder = self._temporary / f"{os.getpid()}-{uuid.uuid4().hex}"
        try:
            _make_private(self._temporary)
            folder.mkdir(mode=0o700)
            _check_room(folder)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            with _stand_in(self.directory, error).workspace() as other:
                yield other
            return
        try:
            yield folder
        except OSError as error:
            raise CacheError(
                f"cannot write to the cache at {self.directory}: {error.strerror or error}"
            ) from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def info(self) -> CacheInfo:
        """Count and measure the entries."""
        sizes = [size for _, _, size in self._scan()]
        return CacheInfo(self.directory, len(sizes), sum(sizes), self.limit)

    def clear(self) -> CacheInfo:
        """Remove all entries; returns what was there.

        Only what another process is writing at this moment stays.
        """
        before = self.info()
        for folder, _, _ in list(self._scan()):
            self._discard(folder)
        self._remove_stale()
        return before

    # --- inside ---------------------------------------------------------------------------

    def _folder(self, key: str) -> Path:
        if not _KEY.match(key):
            raise CacheError(f"{key!r} is not a valid cache key")
        return self._entries / key[:2] / key

    def _write(self, key: str, files: Mapping[str, Data]) -> Path:
        """Write a complete entry under a temporary name."""
        folder = self._temporary / f"{os.getpid()}-{uuid.uuid4().hex}"
        folder.mkdir(mode=0o700)
        try:
            paths = map(folder.joinpath, files)
            if _size(files) < _LARGE:  # also where no thread can be started, as at exit
                written = [*map(_write_file, paths, files.values())]
            else:
                with ThreadPoolExecutor(os.cpu_count()) as pool:
                    written = [*pool.map(_write_file, paths, files.values())]
            manifest = {"key": key, "files": dict(zip(files, written, strict=True))}
            (folder / _MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True))
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return folder

    def _rename(self, written: Path, folder: Path, key: str) -> None:
        """Move an entry into place, unless an intact one is there; replaces a damaged one."""
        for _ in range(8):
            try:
                written.rename(folder)
                return
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                    raise
            if _verified_files(folder, key) is not None:
                return
            self._discard(folder)
        raise CacheError(f"cache entry {folder} is damaged and cannot be replaced")

    def _discard(self, path: Path) -> None:
        """Make an entry invisible at once, then delete it."""
        aside = self._temporary / f"{os.getpid()}-{uuid.uuid4().hex}"
        with contextlib.suppress(OSError):
            path.rename(aside)
            path = aside
        _remove(path)

    def _scan(self) -> Iterator[tuple[Path, float, int]]:
        """Each entry with the time of its last use and its size."""
        for group in _children(self._entries):
            for folder in _children(group):
                with contextlib.suppress(OSError):
                    used = folder.stat().st_mtime
                    size = sum(f.stat().st_size for f in _children(folder))
                    yield folder, used, size

    def _keep_limit(self, written: int, keep: Path) -> None:
        """Evict down to nine tenths of the limit; a large cache is checked only occasionally."""
        if self._unchecked is not None:
            self._unchecked += written
            if self._unchecked < self.limit // 64:
                return
        self._unchecked = 0
        self._remove_stale()
        entries = sorted(self._scan(), key=lambda e: e[1])
        total = sum(size for _, _, size in entries)
        if total <= self.limit:
            return
        for folder, _, size in entries:
            if total <= self.limit * 9 // 10:
                break
            if folder != keep:
                self._discard(folder)
                total -= size

    def _remove_stale(self) -> None:
        """Remove what processes that have ended left behind more than an hour ago."""
        now = time.time()
        for path in _children(self._temporary):
            with contextlib.suppress(OSError):
                age = now - path.lstat().st_mtime
                # In another container or on another machine, a number is that of another process.
                is_alive = age < _OLD_SECONDS and _is_alive(path.name.partition("-")[0])
                if age > _STALE_SECONDS and not is_alive:
                    _remove(path)


def _is_alive(process: str) -> bool:
    """Whether there is a process of this number, which may be another one by now."""
    if not re.fullmatch(r"[1-9]\d{0,9}", process):
        return False
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass  # there is one, of another user
    return True


#: The temporary directories that replace directories that are not writable.
_STAND_INS: dict[Path, Cache] = {}
_WARNED: set[Path] = set()
_LOCK = threading.Lock()


def _stand_in(directory: Path, error: OSError) -> Cache:
    """The cache that replaces one that is not writable, until the process ends.

    Raises
    ------
    CacheError : temporary directories are not writable either.
    """
    with _LOCK:
        if directory in _STAND_INS:
            return _STAND_INS[directory]
        problem = f"cannot write to the cache at {directory}: {error.strerror or error}"
        if directory in (c.directory for c in _STAND_INS.values()):
            raise CacheError(problem) from error
        try:
            folder = Path(tempfile.mkdtemp(prefix="farkas-cache-"))
        except OSError as other:
            raise CacheError(f"{problem}; nor to a temporary directory: {other}") from error
        _STAND_INS[directory] = Cache(folder)
        atexit.register(remove_own, folder, os.getpid())
    _warn(directory, error)
    return _STAND_INS[directory]


def remove_own(folder: Path, owner: int) -> None:
    """Remove a folder, in the process that has made it."""
    if os.getpid() == owner:  # not in a child process
        shutil.rmtree(folder, ignore_errors=True)


def _warn(directory: Path, error: OSError) -> None:
    """Warn once that a directory is not writable."""
    if directory in _WARNED:
        return
    _WARNED.add(directory)
    warnings.warn(
        f"cannot write to the cache at {directory}: {error.strerror or error}; what is compiled is "
        f"lost when the process ends: free some space, or choose another directory with cache=… or "
        f"{ENVIRONMENT}",
        CacheWarning,
        stacklevel=2,
    )


def _check_room(folder: Path) -> None:
    """Raise an `OSError` if there is not enough disk space for a compiler's output."""
    probe = folder / "probe"
    probe.write_bytes(bytes(_CHUNK))
    probe.unlink()
    if shutil.disk_usage(folder).free < _ROOM:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _default() -> Path:
    """The default directory of a cache."""
    chosen = os.environ.get(ENVIRONMENT) or platformdirs.user_cache_dir("farkas")
    return Path(chosen).expanduser().absolute()


def _pieces(data: Data) -> tuple[bytes | memoryview, ...]:
    return (data,) if isinstance(data, bytes) else data


def _size(files: Mapping[str, Data]) -> int:
    return sum(len(piece) for data in files.values() for piece in _pieces(data))


def _write_file(path: Path, data: Data) -> dict[str, int | str]:
    """Write a file; returns its fingerprint."""
    pieces = _pieces(data)
    with path.open("wb") as file:
        file.writelines(pieces)
    return _fingerprint(*pieces)


def _fingerprint(*pieces: bytes | memoryview) -> dict[str, int | str]:
    hasher = hashlib.sha256()
    for piece in pieces:
        hasher.update(piece)
    return {"size": sum(map(len, pieces)), "sha256": hasher.hexdigest()}


def _verified_files(
    folder: Path, key: str, unread: str | None = None
) -> dict[str, dict[str, int | str]] | None:
    """The manifest of an entry if all its files match it, except the unread ones; else None."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text())
        if manifest["key"] != key:
            return None
        for name, expected in manifest["files"].items():
            if not _NAME.match(name):
                return None
            path = folder / name
            if path.is_symlink() or path.stat().st_size != expected["size"]:
                return None
            left = unread is not None and name.startswith(unread)
            if not left and _fingerprint(path.read_bytes()) != expected:
                return None
        return dict(manifest["files"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _make_private(folder: Path) -> None:
    """Create a directory for the owner only, or check that an existing one is safe to use."""
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
    status = folder.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise CacheError(f"the cache directory {folder} is not a directory")
    if status.st_uid != os.geteuid():
        raise CacheError(
            f"the cache directory {folder} belongs to another user (uid {status.st_uid}); code "
            f"is loaded from it, so choose another with Cache(directory=…) or {ENVIRONMENT}"
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise CacheError(
            f"other users may write to the cache directory {folder}; code is loaded from it, "
            f"so run: chmod go-w '{folder}'"
        )


def _children(folder: Path) -> list[Path]:
    """The contents of a directory; empty if it no longer exists."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _remove(path: Path) -> None:
    """Delete a file or a folder that another process may be deleting too."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
