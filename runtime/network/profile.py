"""Time each call of a compiled graph: the kernels one by one, on one thread."""

from __future__ import annotations

import ctypes
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from poly.errors import ArgumentError, ModelError
from poly.ir.size_values import whole_number
from runtime.common.cache import Entry


@dataclass(frozen=True)
class Timing:
    """One call: the nodes that it comes from, the function in the C text, median seconds."""

    origin: str
    kernel: str
    seconds: float


def check_repeat(repeat: Any) -> None:
    """Check a number of repetitions.  Raises `ArgumentError` if it is less than 1."""
    if whole_number("repeat", repeat) < 1:
        raise ArgumentError(f"repeat={repeat} must be at least 1")


def trace_events(timings: Sequence[Timing]) -> str:
    """The calls one after the other, as a file for chrome://tracing and Perfetto."""
    events, now = [], 0.0
    for t in timings:
        events.append(
            {
                "name": t.origin,
                "cat": "kernel",
                "ph": "X",
                "ts": now * 1e6,
                "dur": t.seconds * 1e6,
                "pid": 1,
                "tid": 1,
                "args": {"kernel": t.kernel},
            }
        )
        now += t.seconds
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}, indent=1)


def time_calls(
    library: ctypes.CDLL,
    entry: Entry,
    arrays: Sequence[int | None],
    sizes: Sequence[int],
    repeat: int = 5,
) -> tuple[Timing, ...]:
    """Make the calls of a graph in order, `repeat` times.

    Parameters
    ----------
    arrays, sizes : what the graph's entry point is passed

    Raises
    ------
    ModelError : a routine failed.
    """
    made = []
    for origin, symbol, numbers, slots in json.loads(entry.read("meta.json"))["calls"]:
        function = library[symbol]
        function.restype = ctypes.c_int32 if numbers is None else None
        if numbers is None:
            passed: list[Any] = [
                (ctypes.c_int64 * len(sizes))(*sizes), (ctypes.c_void_p * len(arrays))(*arrays)
            ]  # fmt: skip
        else:
            passed = [ctypes.c_int64(sizes[n]) for n in numbers]
            passed += [ctypes.c_void_p((arrays[index] or 0) + offset) for index, offset in slots]
        made.append((origin, symbol, function, passed, list[float]()))
    for _ in range(repeat):
        for origin, _, function, passed, times in made:
            start = time.perf_counter()
            if function(*passed):
                raise ModelError(f"{origin}: elements of an input cannot be used")
            times.append(time.perf_counter() - start)
    return tuple(Timing(o, k, sorted(times)[len(times) // 2]) for o, k, _, _, times in made)
