"""A compiled network as a function of numpy arrays.

Farkas copies this file into the packages that it makes: it needs numpy, and nothing of Farkas.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

#: The C codes for an input that always has the same elements, of sizes, of elements that cannot be
#: used, and of success.
_VALUE, _SIZE, _ELEMENT, _OK = 4, 5, 7, 0
if TYPE_CHECKING:
    #: Numbers, and the names of open sizes; of outputs, expressions over these.
    Shape = tuple[Any, ...]


class Network:
    """Calls of a network's C function.

    path : of the library; name : prefix of its names
    sizes : the names of open sizes, in the order of arguments
    inputs, outputs : the numpy type and the shape of each, by name, in the order of arguments
    fixed : the bytes of inputs that always have the same elements, which need not be passed
    workspace, memory : bytes that a run of fixed sizes needs, and those that each thread needs in
        addition
    has_team : whether a run may have several threads
    """

    def __init__(
        self,
        path: str,
        name: str,
        sizes: Sequence[str],
        inputs: Mapping[str, tuple[str, Shape]],
        outputs: Mapping[str, tuple[str, Shape]],
        fixed: Mapping[str, bytes],
        workspace: int,
        memory: int,
        has_team: bool,
    ) -> None:
        library = ctypes.CDLL(path)
        self._run = getattr(library, f"{name}_run")
        self._error = getattr(library, f"{name}_error")
        self._error.restype = ctypes.c_char_p
        self._sizes = tuple(sizes)
        if sizes:
            self._shapes = getattr(library, f"{name}_shapes")
            self._bytes = getattr(library, f"{name}_workspace_bytes")
            self._bytes.restype = ctypes.c_size_t
        self._inputs = {n: (np.dtype(d), s) for n, (d, s) in inputs.items()}
        self._outputs = {n: (np.dtype(d), s) for n, (d, s) in outputs.items()}
        self._fixed = {
            n: np.frombuffer(data, self._inputs[n][0]).reshape(self._inputs[n][1])
            for n, data in fixed.items()
        }
        self._workspace, self._memory = workspace, memory
        self._own = threading.local()
        self._team = _Team(library, name) if has_team else None

    def run(self, *arrays: Any, **named: Any) -> dict[str, np.ndarray[Any, Any]]:
        """Run the network: arrays in the order of `INPUTS`, or by name, or in one dict.

        What comes back are new arrays, by the names in `OUTPUTS`.  Arrays that are not contiguous
        are copied; nothing else is converted.  Threads may run it at the same time.

        Raises
        ------
        TypeError : an input is missing, unknown, or has elements of another type.
        ValueError : an input has another shape, or other elements than it always has; sizes for
            which there is no code; elements that cannot be used, such as an index out of range.
        RuntimeError : this machine lacks instructions that the code needs.
        """
        found: dict[str, int] = {}
        given = [self._checked(name, x, found) for name, x in self._bound(arrays, named).items()]
        sizes = [ctypes.c_int64(found[name]) for name in self._sizes]
        shapes = self._shapes_for(sizes)
        types = (dtype for dtype, _ in self._outputs.values())
        results = {n: np.empty(*x) for n, x in zip(self._outputs, zip(shapes, types))}  # noqa: B905
        passed = [ctypes.c_void_p(a.ctypes.data) for a in (*given, *results.values())]
        self._check(self._call(sizes, passed))
        return results

    def _check(self, code: int) -> None:
        if code != _OK:
            message = self._error(code).decode()
            raise (ValueError if code in (_VALUE, _SIZE, _ELEMENT) else RuntimeError)(message)

    def _shapes_for(self, sizes: list[ctypes.c_int64]) -> list[tuple[int, ...]]:
        """The shapes of the outputs."""
        if not sizes:
            return [shape for _, shape in self._outputs.values()]
        arrays = [(ctypes.c_int64 * len(shape))() for _, shape in self._outputs.values()]
        self._check(self._shapes(*sizes, *(a for a in arrays if len(a))))
        return [tuple(a) for a in arrays]

    def set_threads(self, count: int) -> None:
        """Run on so many threads from now on, 1 to 64; by default on all CPUs, up to that many.

        A run that begins while another one has the threads takes one.
        """
        if self._team is None:
            raise RuntimeError("this package was made for one thread: export it with threads")
        self._team.resize(count)

    def _bound(self, arrays: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
        """The arrays by name, in the order of arguments."""
        found: dict[str, Any] = {}
        if len(arrays) == 1 and isinstance(arrays[0], Mapping):
            named = {**arrays[0], **named}
        elif len(arrays) > len(self._inputs):
            raise TypeError(f"{len(arrays)} arrays for {len(self._inputs)} inputs")
        else:
            found.update(zip(self._inputs, arrays))  # noqa: B905 (Python 3.8 has no strict)
        for name, array in named.items():
            if name not in self._inputs:
                raise TypeError(f"there is no input {name!r}; there are {list(self._inputs)}")
            if name in found:
                raise TypeError(f"the input {name!r} is given twice")
            found[name] = array
        found = {**self._fixed, **found}
        missing = [name for name in self._inputs if name not in found]
        if missing:
            raise TypeError(f"the input {missing[0]!r} is missing")
        return {name: found[name] for name in self._inputs}

    def _checked(self, name: str, given: Any, sizes: dict[str, int]) -> np.ndarray[Any, Any]:
        """The array of an input, if it may be that; `sizes` collects the open ones."""
        dtype, shape = self._inputs[name]
        if isinstance(given, np.ma.MaskedArray):
            raise TypeError(f"the input {name!r} has a mask, which would be ignored")
        array = np.asarray(given)
        expected = f"expected {dtype}[{', '.join(map(str, shape))}]"
        if array.dtype != dtype:
            raise TypeError(f"the input {name!r} is {array.dtype}{list(array.shape)}, {expected}")
        fits = array.ndim == len(shape) and all(
            sizes.setdefault(e, n) == n if isinstance(e, str) else e == n
            for e, n in zip(shape, array.shape)  # noqa: B905
        )
        if not fits:
            known = "".join(f", {e} = {sizes[e]}" for e in shape if e in sizes)
            raise ValueError(
                f"the input {name!r} is {array.dtype}{list(array.shape)}, {expected}{known}"
            )
        return np.require(array, requirements=["C", "A"])

    def _call(self, sizes: list[ctypes.c_int64], passed: list[ctypes.c_void_p]) -> int:
        if self._team is None:
            return int(self._run(*sizes, *passed, *self._memory_for(sizes, 1)))
        team = self._team.take()
        try:
            count = team.count if team is not None else 1
            address = ctypes.c_void_p(None if team is None else team.address)
            return int(self._run(*sizes, *passed, *self._memory_for(sizes, count), address))
        finally:
            if team is not None:
                team.lock.release()

    def _memory_for(
        self, sizes: list[ctypes.c_int64], threads: int
    ) -> tuple[ctypes.c_void_p, ctypes.c_size_t]:
        """The workspace of this thread, which the next run on it uses again."""
        if sizes:
            needed = self._bytes(*sizes, *([] if self._team is None else [ctypes.c_int(threads)]))
        else:
            needed = self._workspace + self._memory * threads
        memory = getattr(self._own, "memory", None)
        if memory is None or memory.nbytes < needed:
            memory = self._own.memory = np.empty(max(needed, 1), np.uint8)
        return ctypes.c_void_p(memory.ctypes.data), ctypes.c_size_t(memory.nbytes)


class _Team:
    """Threads for one run at a time, started for the first of them."""

    def __init__(self, library: ctypes.CDLL, name: str) -> None:
        self._start = getattr(library, f"{name}_start")
        self._stop = getattr(library, f"{name}_stop")
        bytes_ = getattr(library, f"{name}_team_bytes")
        bytes_.restype = ctypes.c_size_t
        self._size = bytes_()
        available = len(os.sched_getaffinity(0))
        self.count = max(1, min(64, available))
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """A process that was forked has none of the threads."""
        self.lock = threading.Lock()
        self._buffer: Any = None

    @property
    def address(self) -> int:
        """Where the team is in memory."""
        return ctypes.addressof(self._buffer)

    def take(self) -> _Team | None:
        """The team, whose lock the caller then releases; None if it is busy, or of one thread."""
        if self.count == 1 or not self.lock.acquire(blocking=False):
            return None
        if self._buffer is None:
            buffer = ctypes.create_string_buffer(self._size)
            if self._start(buffer, self.count) != _OK:
                self.lock.release()
                return None
            self._buffer = buffer
        return self

    def resize(self, count: int) -> None:
        """Have so many threads."""
        if not 1 <= count <= 64:
            raise ValueError(f"{count} threads; 1 to 64 are possible")
        with self.lock:
            if self._buffer is not None:
                self._stop(self._buffer)
            self._buffer, self.count = None, count
