"""What files of `save` have in common: where their code runs, and the libraries that it needs."""

from __future__ import annotations

import contextlib
import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from farkas.console.files import write_stream
from farkas.targets.base import Target
from farkas.targets.cpu import CpuRunner
from farkas.targets.find_target import CacheLike, cache_of
from farkas.version import PACKAGES, version
from poly.errors import ArgumentError, CacheError, SavedFileError, ToolchainError
from poly.machine.cpu import Machine, cpu_flags
from runtime.common.archive import Archive, Member, damaged, write_archive
from runtime.common.arguments import check_threads
from runtime.common.cache import Entry
from runtime.common.fingerprint import code_digest
from runtime.common.saved_cache import SavedCache
from runtime.cpu.fast_call import quick_entry
from runtime.cpu.openmp_pool import team_entry, team_flags, with_team
from runtime.cpu.remembered import read_toolchain, toolchain_data
from runtime.cpu.toolchain import Toolchain, cpu_identity

_FORMAT = 1
_ENTRIES = "entries/"
_ENTRY, _NAME = re.compile("[0-9a-f]{16,64}"), re.compile("[A-Za-z0-9_][A-Za-z0-9_.-]*")
#: The features of x86 processors that compilers use; those of others all are.
_USED = re.compile(
    r"(sse|ssse|pni$|avx|fma|f16c|bmi|adx|abm|popcnt|movbe|gfni|aes|vaes|pclmul|vpclmul|sha|amx"
    r"|cmov|cx16|lahf|3dnowprefetch|mmx)"
)


def save_code(
    path: str | Path,
    kind: str,
    target: Target,
    record: Any,
    entries: Mapping[str, Entry],
    members: Mapping[str, Member],
) -> None:
    """Write a file of `save`, as a whole or not at all.

    kind : of what is saved; record : JSON data about it; entries : libraries by their keys

    Raises
    ------
    ArgumentError : the target is not the processor.
    FileError : the file cannot be written.
    CacheError : a library is not in the cache any more.
    """
    runner = check_saved(target)
    found = {**entries, **{e.key: e for e in _helpers(runner)}}
    files: dict[str, Member] = {
        f"{_ENTRIES}{key}/{name}": entry.read(name)
        for key, entry in found.items()
        for name in entry.files
    }
    about = {
        "format": _FORMAT,
        "kind": kind,
        "farkas": version(),
        "code": code_digest(*PACKAGES),
        "system": f"{platform.system()} on {platform.machine()}",
        "processor": cpu_identity(),
        "features": _features(),
        "machine": asdict(target.machine),
        "toolchain": toolchain_data(runner.toolchain),
        "threads": runner.threads,
        "own_threads": _has_own_threads(runner),
        "record": record,
    }
    write_stream(path, lambda file: write_archive(file, about, {**files, **members}))


def check_saved(target: Target) -> CpuRunner:
    """The runner of what can be saved.  Raises `ArgumentError` for other targets."""
    runner = target.runner
    if not isinstance(runner, CpuRunner):
        raise ArgumentError(
            f"what runs on target {target.name!r} cannot be saved; target 'cpu' can, and other "
            "targets find their kernels in the cache"
        )
    return runner


def _helpers(runner: CpuRunner) -> Iterable[Entry]:
    """The libraries that all kernels use, if there are any."""
    with contextlib.suppress(ToolchainError, CacheError):
        if _has_own_threads(runner):
            yield team_entry(runner.toolchain, runner.cache)
        yield quick_entry(runner.toolchain, runner.cache)


def _has_own_threads(runner: CpuRunner) -> bool:
    return with_team(runner.toolchain, runner.cache) != runner.toolchain


def _features() -> list[str]:
    """The features of this processor that its code may use."""
    is_x86 = platform.machine() in ("x86_64", "i686")
    return sorted(f for f in cpu_flags() if not is_x86 or _USED.match(f))


@dataclass(frozen=True, eq=False)
class SavedCode:
    """A file of `save` that can be loaded here.

    kind, record : see `save_code`; target : this machine, with the libraries of the file and the
    compiler that made them, which need not be here
    """

    archive: Archive
    kind: str
    record: Any
    target: Target

    @property
    def runner(self) -> CpuRunner:
        """The target's."""
        assert isinstance(self.target.runner, CpuRunner)
        return self.target.runner

    @property
    def toolchain(self) -> Toolchain:
        """The compiler, with the threads of kernels."""
        return with_team(self.runner.toolchain, self.runner.cache)


def open_saved(path: str | Path, threads: int | None, cache: CacheLike) -> SavedCode:
    """Open a file of `save`.

    threads : the default number, None for that of what was saved

    Raises
    ------
    SavedFileError : it is damaged, or for another machine or version.
    CacheError : the cache directory cannot be used.
    ArgumentError : `threads` is not a number from 1 to 4096.
    """
    archive = Archive(Path(path))
    about = archive.manifest
    try:
        check_version(about, archive.path)
        check_machine(about, archive.path)
        machine = Machine(**{k: _value(v) for k, v in about["machine"].items()})
        toolchain = read_toolchain(about["toolchain"])
        count = about["threads"] if threads is None else threads
        if count is not None:
            check_threads(count)
        kind, record, own = str(about["kind"]), about["record"], bool(about["own_threads"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged(archive.path, str(error)) from None
    store = SavedCache(cache_of(cache), _entries(archive))
    runner = CpuRunner(toolchain, store, count, machine=machine)
    if own != (team_flags(toolchain) != toolchain):
        raise SavedFileError(
            f"{archive.path} was saved with another value of FARKAS_OPENMP than there is now: set "
            "it as it was, or save the file again"
        )
    return SavedCode(archive, kind, record, Target(machine, "cpu", runner))


def _value(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _entries(archive: Archive) -> dict[str, dict[str, bytes]]:
    """The entries of the cache that are in a file."""
    found: dict[str, dict[str, bytes]] = {}
    for name in archive.names:
        if name.startswith(_ENTRIES):
            key, _, file = name.removeprefix(_ENTRIES).partition("/")
            if not _ENTRY.fullmatch(key) or not _NAME.fullmatch(file):
                raise SavedFileError(f"{archive.path} has a file of an invalid name, {name!r}")
            found.setdefault(key, {})[file] = archive.read(name)
    return found


def check_version(about: Mapping[str, Any], path: Path) -> None:
    """Refuse what another version has saved.  Raises `SavedFileError`."""
    there, here = about["farkas"], version()
    if there != here:
        raise SavedFileError(
            f"{path} was saved by Farkas {there}, and this is {here}: save it again with this one"
        )
    if about["format"] != _FORMAT or about["code"] != code_digest(*PACKAGES):
        raise SavedFileError(
            f"{path} was saved by another state of Farkas {there}: save it again with this one"
        )


def check_machine(about: Mapping[str, Any], path: Path) -> None:
    """Refuse code for other machines.  Raises `SavedFileError`."""
    advice = "compile it on such a machine as this one, and save it there"
    here = f"{platform.system()} on {platform.machine()}"
    if about["system"] != here:
        raise SavedFileError(f"{path} is for {about['system']}, and this is {here}: {advice}")
    missing = sorted({*about["features"]} - {*_features()})
    if missing:
        shown = ", ".join(missing[:8]) + (" …" if len(missing) > 8 else "")
        raise SavedFileError(
            f"{path} is for the processor {about['processor']}; this one lacks {shown}: {advice}"
        )
