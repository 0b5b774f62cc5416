"""`load`: what `Network.save` or `Kernel.save` wrote."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from farkas.networks.network import Network
from farkas.targets.find_target import CacheLike
from farkas.targets.saved_code import open_saved
from poly.errors import ArgumentError
from runtime.common.archive import damaged
from runtime.common.compile_report import Progress

if TYPE_CHECKING:
    from farkas.kernels.kernel import Kernel


def load(
    path: str | os.PathLike[str],
    *,
    threads: int | None = None,
    cache: CacheLike = None,
    progress: Progress | None = None,
) -> Network | Kernel:
    """Load a network or a kernel that was saved.

    >>> model = fk.load("resnet50.fkm")

    No compiler is needed, and nothing has to be in the cache, in which libraries are put.  Only for
    sizes or element types for which nothing was compiled before, a C compiler is looked for.

    **Loading runs the code in the file.**  Load only files that you would run as programs.

    Parameters
    ----------
    path : of the file
    threads : default number of threads of a run; default is what it was compiled with
    cache : directory of compiled models; default is ``$FARKAS_CACHE_DIR``, then the user's
    progress : as for `compile_onnx`, for what is compiled later

    Raises
    ------
    SavedFileError : the file is damaged, is none of these, or is for another machine or version.
    ToolchainError : a library in it cannot be loaded.
    CacheError : the cache cannot be used.
    ArgumentError : `threads` is not a number from 1 to 4096.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ArgumentError(f"the path is a {type(path).__name__}, expected the path of a file")
    code = open_saved(Path(path), threads, cache)
    made: Network | Kernel
    if code.kind == "kernel":
        from farkas.kernels.load_kernel import load_kernel

        made = load_kernel(code)
    elif code.kind == "network":
        from farkas.networks.load_network import load_network

        made = load_network(code, progress)
    else:
        raise damaged(code.archive.path, f"an unknown kind, {code.kind!r}")
    made._again = _again, (code.archive.path.absolute(), threads, cache)
    return made


def _again(path: Path, threads: int | None, cache: CacheLike) -> Network | Kernel:
    """An unpickled one, from the same file."""
    return load(path, threads=threads, cache=cache)
