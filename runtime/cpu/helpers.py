"""The libraries that all kernels use, built and loaded while the first kernel is generated."""

from __future__ import annotations

import contextlib
import os
import threading

from poly.errors import FarkasError
from runtime.common.cache import Cache
from runtime.cpu.fast_call import has_quick_calls, quick_calls
from runtime.cpu.toolchain import Toolchain

_lock = threading.Lock()
_threads: list[threading.Thread] = []


def prepare_helpers(toolchain: Toolchain, cache: Cache) -> None:
    """Make the threads of kernels and quick calls ready in the background, unless they are.

    With an empty cache, compiling them takes longer than generating a small kernel.
    """
    with _lock:
        if any(t.is_alive() for t in _threads) or has_quick_calls(toolchain, cache):
            return

        def make() -> None:
            with contextlib.suppress(FarkasError):  # whoever needs them sees the error
                quick_calls([], toolchain, cache)

        _threads[:] = [threading.Thread(target=make, name="farkas-helpers")]
        _threads[0].start()


def finish_helpers() -> None:
    """Wait until what `prepare_helpers` has begun is ready."""
    for thread in _threads:
        if thread is not threading.current_thread():
            thread.join()


if hasattr(os, "register_at_fork"):
    # A process forked meanwhile would have the locks, but not the thread that releases them.
    os.register_at_fork(before=finish_helpers)
