"""The threads of kernels: a small OpenMP runtime of our own in place of gcc's.

See ``openmp_pool.c`` for how it works and why.  It is compiled once into the cache and loaded once
per process, whose kernels all share its threads.  Only the linking of kernels differs, and the
definition of ``FK_SCHEDULE``; their text is OpenMP that any compiler accepts.
"""

from __future__ import annotations

import ctypes
import os
import threading
from dataclasses import replace
from pathlib import Path

from poly.errors import CacheError, ToolchainError
from runtime.common.cache import Cache, digest
from runtime.cpu.compile_c import compile_shared
from runtime.cpu.toolchain import OPENMP, Toolchain

#: If set to ``compiler``, kernels use the OpenMP library of their compiler.
ENVIRONMENT = "FARKAS_OPENMP"
SOURCE = Path(__file__).with_name("openmp_pool.c")
LIBRARY = "team.so"
TIMEOUT = 60.0
#: The functions that gcc calls for the pragmas in generated code.  The last two are for other
#: pragmas; no library defines their wrappers, so that a kernel that needs them fails to load.
ENTRIES = (
    "GOMP_parallel", "GOMP_barrier", "GOMP_single_start", "GOMP_loop_end", "GOMP_loop_end_nowait",
    "GOMP_loop_runtime_start", "GOMP_loop_runtime_next",
    "GOMP_loop_maybe_nonmonotonic_runtime_start", "GOMP_loop_maybe_nonmonotonic_runtime_next",
    "omp_get_num_threads", "omp_get_thread_num",
)  # fmt: skip
FLAGS = ("-DFK_SCHEDULE=runtime",)
#: The compiler's own library is then not linked.
LINK_FLAGS = ("-Wl,--as-needed", *(f"-Wl,--wrap={name}" for name in ENTRIES))

_lock = threading.Lock()
_loaded: list[ctypes.CDLL] = []
_refused: set[str] = set()


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

    It is `toolchain` itself if its compiler is not gcc for Linux or has no OpenMP, or if
    ``FARKAS_OPENMP=compiler``.

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
    fitting = toolchain.kind == "gcc" and toolchain.openmp and "linux" in toolchain.target
    if not fitting or chosen:
        return toolchain
    return replace(
        toolchain,
        flags=(*toolchain.flags, *FLAGS),
        link_flags=(*toolchain.link_flags, *LINK_FLAGS),
    )


def load_team(toolchain: Toolchain, cache: Cache) -> ctypes.CDLL:
    """Build (or find in the cache) and load the library, for all kernels loaded after it.

    Raises
    ------
    ToolchainError : the compiler failed.
    CacheError : the library cannot be stored.
    OSError : it cannot be loaded.
    """
    flags = (*(f for f in toolchain.flags if f != OPENMP), "-pthread")
    plain = replace(toolchain, flags=flags)
    text = SOURCE.read_text(encoding="utf-8")

    def build() -> dict[str, bytes]:
        with cache.workspace() as folder:
            out = folder / LIBRARY
            compile_shared(plain, {SOURCE.name: text}, (), out, TIMEOUT)
            return {SOURCE.name: text.encode(), LIBRARY: out.read_bytes()}

    path = cache.get_or_build(digest("team", plain.identity, text), build).file(LIBRARY)
    # Its names are unique, so that nothing else in the process binds to them by accident.
    return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
