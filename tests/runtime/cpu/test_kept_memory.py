"""Memory of large results, which later calls use again."""

from __future__ import annotations

import ctypes
import resource
import sys
from typing import Any

import numpy as np
import pytest
from numpy._core.multiarray import get_handler_name

import farkas as fk
from runtime.cpu import fast_call

LARGE = np.ones(1 << 20, np.float32)
SMALL = np.ones(1 << 10, np.float32)


@pytest.fixture(scope="module")
def kernel() -> fk.Kernel:
    """A kernel that has been called with arrays of these sizes."""
    kernel = fk.compile("Y[i] = X[i] + 1", threads=1)
    for x in (LARGE, SMALL):
        kernel(x)
    return kernel


def test_large_results_come_from_it(kernel: fk.Kernel) -> None:
    assert get_handler_name(kernel(LARGE)) == "farkas"
    assert get_handler_name(kernel(SMALL)) == "default_allocator"
    assert get_handler_name() == "default_allocator"


def test_it_is_used_again(kernel: fk.Kernel) -> None:
    for _ in range(3):
        kernel(LARGE)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(100):
        kernel(LARGE)
    # Once and not each time; 1,024 pages are a result's.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 4096


def test_results_that_live_have_their_own(kernel: fk.Kernel) -> None:
    held = [kernel(LARGE + n) for n in range(20)]
    assert [int(y[-1]) for y in held] == [n + 2 for n in range(20)]
    assert len({y.ctypes.data for y in held}) == 20
    del held[::2]
    more = [kernel(LARGE + n) for n in range(20)]
    assert [int(y[0]) for y in held] == [n + 2 for n in range(1, 20, 2)]
    assert [int(y[0]) for y in more] == [n + 2 for n in range(20)]


def bytes_kept() -> int:
    loaded = {library._handle: library for _, library in fast_call._handlers}
    kind = ctypes.CFUNCTYPE(ctypes.c_size_t)
    return sum(ctypes.cast(library["fk_kept_bytes"], kind)() for library in loaded.values())


def test_little_of_it_is_kept(kernel: fk.Kernel) -> None:
    """At most what two calls take."""
    for _ in range(1000):  # so that the limit falls to that of these calls
        kernel(LARGE)
    held = [kernel(LARGE) for _ in range(64)]
    none = bytes_kept()  # of what other tests have loaded
    del held
    assert bytes_kept() - none == 2 * LARGE.nbytes
    kernel(np.ones(1 << 18, np.float32))
    assert bytes_kept() - none <= 2 * LARGE.nbytes


def test_arrays_from_it_may_be_resized(kernel: fk.Kernel) -> None:
    y: Any = kernel(LARGE)
    y.resize(3 << 20, refcheck=False)
    assert y.sum() == 2 * LARGE.size and not y[LARGE.size :].any()
    del y
    assert kernel(LARGE).sum() == 2 * LARGE.size


def test_nothing_is_leaked(kernel: fk.Kernel) -> None:
    kernel(LARGE)
    before = [sys.getrefcount(handler) for handler, _ in fast_call._handlers]
    for _ in range(1000):
        kernel(LARGE)
    after = [sys.getrefcount(handler) for handler, _ in fast_call._handlers]
    assert all(abs(a - b) < 100 for a, b in zip(before, after, strict=True))
