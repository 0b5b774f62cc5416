"""The threads of kernels: a small OpenMP runtime of our own in place of the compiler's.

See ``openmp_pool.c`` for how it works and why.  It is compiled once into the cache and loaded once
per process, whose kernels all share its threads, whether gcc or clang has compiled them.  Only the
linking of kernels differs, and the definition of ``FK_SCHEDULE``; their text is OpenMP that any
compiler accepts.
"""

from __future__ import annotations

import ctypes
import os
import threading
import warnings
from dataclasses import replace
from pathlib import Path

from poly.errors import CacheError, ThreadsWarning, ToolchainError
from runtime.common.cache import Cache, Entry, digest
from runtime.cpu.compile_c import compile_shared
from runtime.cpu.remembered import at_hand
from runtime.cpu.toolchain import OPENMP, UNKNOWN_PRAGMAS, Toolchain

#: If set to ``compiler``, kernels use the OpenMP library of their compiler.
ENVIRONMENT = "FARKAS_OPENMP"
SOURCE = Path(__file__).with_name("openmp_pool.c")
LIBRARY = "team.so"
TIMEOUT = 60.0
#: The functions that compilers call for the pragmas in generated code.  The last of each are for
#: other pragmas; no library defines their wrappers, so that a kernel that needs them fails to load.
ENTRIES = {
    "gcc": (
        "GOMP_parallel", "GOMP_barrier", "GOMP_single_start", "GOMP_loop_end",
        "GOMP_loop_end_nowait", "GOMP_loop_runtime_start", "GOMP_loop_runtime_next",
        "GOMP_loop_maybe_nonmonotonic_runtime_start", "GOMP_loop_maybe_nonmonotonic_runtime_next",
        "omp_get_num_threads", "omp_get_thread_num",
    ),
    "clang": (
        "__kmpc_fork_call", "__kmpc_push_num_threads", "__kmpc_global_thread_num",
        "__kmpc_barrier", "__kmpc_single", "__kmpc_end_single", "__kmpc_dispatch_init_8",
        "__kmpc_dispatch_next_8", "__kmpc_dispatch_init_8u", "__kmpc_dispatch_next_8u",
        "__kmpc_dispatch_deinit", "__kmpc_dispatch_init_4", "__kmpc_for_static_init_4",
        "__kmpc_for_static_init_8", "omp_get_num_threads", "omp_get_thread_num",
    ),
}  # fmt: skip
FLAGS = ("-DFK_SCHEDULE=runtime",)

_lock = threading.Lock()
_loaded: list[ctypes.CDLL] = []
_refused: set[str] = set()
_warned: list[str] = []
_ADVICE = {"gcc": "install libgomp", "clang": "install libomp, or use gcc"}


def link_flags(kind: str) -> tuple[str, ...]:
    """Flags for linking what a kind of compiler has made; its own library is not linked."""
    return ("-Wl,--as-needed", *(f"-Wl,--wrap={name}" for name in ENTRIES[kind]))


def with_team(toolchain: Toolchain, cache: Cache) -> Toolchain:
    """The toolchain whose kernels run on our threads, which are loaded into this process.

    It is that of `team_flags`, or `toolchain` itself if the library cannot be built or loaded.

    Raises
    ------
    ToolchainError : see `team_flags`.
    """
    wanted = team_flags(toolchain)
    if wanted == toolchain:
        return toolchain
    with _lock:
        if not _loaded and toolchain.identity not in _refused:
            try:
                _loaded.append(load_team(toolchain, cache))
            except (ToolchainError, CacheError, OSError):
                _refused.add(toolchain.identity)
        return wanted if _loaded else toolchain


def team_flags(toolchain: Toolchain) -> Toolchain:
    """The toolchain with the flags for kernels on our threads.

    It is `toolchain` itself if its compiler is not for Linux or has no OpenMP, if it has these
    flags or is not to have them, or if ``FARKAS_OPENMP=compiler``.

    Raises
    ------
    ToolchainError : ``FARKAS_OPENMP`` has another value.
    """
    chosen = os.environ.get(ENVIRONMENT, "")
    if chosen not in ("", "compiler"):
        raise ToolchainError(
            f"{ENVIRONMENT} is {chosen!r}: set it to 'compiler', for the OpenMP library of the "
            "compiler, or not at all"
        )
    if not toolchain.own_threads:
        return toolchain
    plain = toolchain.flags
    if toolchain.kind == "clang":
        plain = (*(f for f in plain if f not in (OPENMP, UNKNOWN_PRAGMAS)), *toolchain.unlinked)
    if OPENMP not in plain or "linux" not in toolchain.target or chosen or FLAGS[0] in plain:
        return toolchain
    return replace(
        toolchain,
        flags=(*plain, *FLAGS),
        link_flags=(*toolchain.link_flags, *link_flags(toolchain.kind)),
    )


def on_threads_of_process(toolchain: Toolchain) -> Toolchain:
    """A toolchain whose kernels run on the threads of the OpenMP library in this process, if there
    is one that they can call; else `toolchain` itself.

    The threads of a library wait for its next loop on their processors, for 10 ms and more.  Where
    another library's loops take turns with ours, as torch's do, ours would find no processor free.
    """
    if toolchain.kind != "gcc" or not toolchain.openmp or not _is_loaded("libgomp.so.1"):
        return toolchain
    return replace(toolchain, own_threads=False)


def _is_loaded(library: str) -> bool:
    """Whether a library, or one that takes its place, is in this process."""
    try:
        ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except (OSError, AttributeError):  # not loaded; not on this system
        return False
    return True


def threads_of(toolchain: Toolchain) -> str:
    """What shares the loops of kernels, in words.

    Raises
    ------
    ToolchainError : see `team_flags`.
    """
    if team_flags(toolchain) != toolchain:
        return "Farkas's own"
    return "OpenMP" if toolchain.openmp else "none: the compiler has no OpenMP"


def check_parallel(toolchain: Toolchain, threads: int) -> None:
    """Warn, once in a process, of kernels that are to run on several threads and cannot.

    toolchain : that of `with_team`
    """
    if threads < 2 or toolchain.openmp:
        return
    with _lock:
        if _warned:
            return
        _warned.append(toolchain.identity)
    warnings.warn(
        f"kernels compiled with {toolchain} run on one thread, not on {threads}, as it has no "
        f"OpenMP; {_ADVICE[toolchain.kind]}, or pass threads=1",
        ThreadsWarning,
        stacklevel=2,
    )


def load_team(toolchain: Toolchain, cache: Cache) -> ctypes.CDLL:
    """Build (or find in the cache) and load the library, for all kernels loaded after it.

    Raises
    ------
    ToolchainError : the compiler failed.
    CacheError : the library cannot be stored.
    OSError : it cannot be loaded.
    """
    path = team_entry(toolchain, cache).file(LIBRARY)
    # Its names are unique, so that nothing else in the process binds to them by accident.
    return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def team_entry(toolchain: Toolchain, cache: Cache) -> Entry:
    """The library, compiled if it is not in the cache.

    Raises
    ------
    ToolchainError : the compiler failed, or there is none.
    CacheError : the library cannot be stored.
    """
    flags = (*(f for f in toolchain.flags if f != OPENMP), "-pthread")
    plain = replace(toolchain, flags=flags)
    text = SOURCE.read_text(encoding="utf-8")

    def build() -> dict[str, bytes]:
        with cache.workspace() as folder:
            out = folder / LIBRARY
            compile_shared(plain, {SOURCE.name: text}, (), out, TIMEOUT)
            return {SOURCE.name: text.encode(), LIBRARY: out.read_bytes()}

    key = digest("team", plain.identity, text)
    entry = cache.get(key)
    if entry is None and toolchain.remembered is not None:
        return team_entry(at_hand(toolchain), cache)
    return entry or cache.put(key, build())
