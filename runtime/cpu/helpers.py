"""The libraries that all kernels use, built and loaded while the first kernel is generated."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from poly.errors import FarkasError
from runtime.common.cache import Cache
from runtime.cpu.fast_call import has_quick_calls, quick_calls
from runtime.cpu.toolchain import Toolchain


@contextlib.contextmanager
def helpers_meanwhile(toolchain: Toolchain, cache: Cache) -> Iterator[None]:
    """A context in which the threads of kernels and quick calls become ready in the background.

    At its end they are, so that no later fork finds them half-made.  With an empty cache, compiling
    them takes as long as generating a small kernel.
    """
    if has_quick_calls(toolchain, cache):
        yield
        return

    def make() -> None:
        with contextlib.suppress(FarkasError):  # whoever needs them sees the error
            quick_calls([], toolchain, cache)

    thread = threading.Thread(target=make, name="farkas-helpers")
    thread.start()
    try:
        yield
    finally:
        thread.join()
