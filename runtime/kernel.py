"""Building, loading and calling compiled kernels.

`load_kernel` turns a `KernelSource` into a `LoadedKernel` through the cache; a call checks its
arguments, allocates the outputs, and is one foreign call.  Sizes and shapes are worked out once
per combination of input shapes, so a repeated call costs a few microseconds.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from codegen.source import KernelSource
from poly.dtypes import UINT8
from poly.errors import ToolchainError
from poly.program import Program, Tensor
from runtime.arguments import (
    READABLE,
    WRITEABLE,
    Array,
    Shape,
    address,
    allocate,
    bind,
    check_input,
    check_output,
    check_overlaps,
    check_threads,
    clash,
    fits,
    match_arguments,
    match_outputs,
    shape_of,
)
from runtime.cache import Cache, Entry, digest
from runtime.compilation import compile_shared
from runtime.team import with_team
from runtime.toolchain import Toolchain

ALIGNMENT = 64
LIBRARY = "kernel.so"
_BUILD_FORMAT = "1"  # part of every key; change it when what an entry holds changes
_MAX_PLANS = 256
_MAX_SPARE_BYTES = 64 << 20
_BLOCK = Tensor("the workspace", UINT8, ())


def default_threads() -> int:
    """The number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# --- building ------------------------------------------------------------------------------


def build_library(
    sources: Mapping[str, str],
    flags: tuple[str, ...],
    toolchain: Toolchain,
    cache: Cache,
    meta: Mapping[str, Any] | None = None,
) -> Entry:
    """The cache entry of a shared library made from C text, compiled if it is not there.

    The entry holds ``kernel.so``, the sources, and ``meta.json`` (`meta`, flags, compiler).

    Raises
    ------
    ToolchainError : the compiler failed.
    CacheError : the library cannot be stored.
    """
    return cache.get_or_build(
        library_key(sources, flags, toolchain),
        lambda: _compile(sources, flags, toolchain, cache, meta or {}),
    )


def library_key(sources: Mapping[str, str], flags: tuple[str, ...], toolchain: Toolchain) -> str:
    """The cache key: sources, flags, compiler and processor."""
    texts = [part for name in sorted(sources) for part in (name, sources[name])]
    return digest("library", _BUILD_FORMAT, toolchain.identity, "\n".join(flags), *texts)


def _compile(
    sources: Mapping[str, str],
    flags: tuple[str, ...],
    toolchain: Toolchain,
    cache: Cache,
    meta: Mapping[str, Any],
) -> dict[str, bytes]:
    with cache.workspace() as folder:
        out = folder / LIBRARY
        warnings = compile_shared(toolchain, sources, flags, out)
        library = out.read_bytes()
    about = {**meta, "flags": list(flags), "toolchain": str(toolchain), "warnings": warnings}
    files = {name: text.encode() for name, text in sources.items()}
    return {**files, LIBRARY: library, "meta.json": json.dumps(about, indent=1).encode()}


def open_library(
    sources: Mapping[str, str],
    flags: tuple[str, ...],
    toolchain: Toolchain,
    cache: Cache,
    meta: Mapping[str, Any] | None = None,
) -> tuple[ctypes.CDLL, Entry]:
    """Build or find a library and load it.

    Raises
    ------
    ToolchainError : the compiler failed, or the library that it made cannot be loaded.
    CacheError : the library cannot be stored.
    """
    toolchain = with_team(toolchain, cache)
    for attempt in range(3):
        entry = build_library(sources, flags, toolchain, cache, meta)
        path = entry.file(LIBRARY)
        try:
            return ctypes.CDLL(str(path)), entry
        except OSError as error:
            # Another process may have evicted the entry between the check and the load.
            if path.exists() or attempt == 2:
                raise ToolchainError(f"the compiled kernel cannot be loaded: {error}") from error
    raise AssertionError("unreachable")


def load_kernel(
    source: KernelSource,
    toolchain: Toolchain,
    cache: Cache,
    threads: int | None = None,
) -> LoadedKernel:
    """Build (or find in the cache) and load one kernel.

    Parameters
    ----------
    threads : threads of a call that does not say; default is every processor.

    Raises
    ------
    ArgumentError : `threads` is not a number from 1 to 4096.
    ToolchainError : the compiler failed, or made a library without the entry point.
    CacheError : the library cannot be stored.
    """
    count = default_threads() if threads is None else check_threads(threads)
    meta = {"program": source.program.name, "symbol": source.symbol}
    library, entry = open_library({"kernel.c": source.text}, source.flags, toolchain, cache, meta)
    try:
        function = library[source.symbol]
    except AttributeError:
        raise ToolchainError(f"the compiled kernel has no function {source.symbol}") from None
    function.argtypes = (ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)
    function.restype = None
    return LoadedKernel(source, toolchain, entry, count, function)


# --- calling -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Plan:
    """What a call needs that depends on shapes alone."""

    sizes: Any  # a ctypes array of int64, only read
    outputs: tuple[tuple[Tensor, Shape], ...]
    offsets: tuple[int, ...]  # of each workspace tensor in its block
    workspace: int  # bytes of the block, alignment included


class LoadedKernel:
    """A compiled program that is called with numpy arrays.

    Attributes: `source`, `program`, `toolchain`, `entry` (its cache entry), `threads`.
    Calls from several threads at once are safe.
    """

    def __init__(
        self, source: KernelSource, toolchain: Toolchain, entry: Entry, threads: int, function: Any
    ) -> None:
        self.source, self.toolchain, self.entry, self.threads = source, toolchain, entry, threads
        self.program: Program = source.program
        self._function = function
        program = source.program
        updated = set(program.updated)
        self._inputs = program.inputs
        self._dtypes = tuple(t.dtype.numpy for t in program.inputs)
        self._passed = tuple(i for i, t in enumerate(program.inputs) if t.name not in updated)
        self._copied = tuple(
            (o, i)
            for o, output in enumerate(program.outputs)
            for i, t in enumerate(program.inputs)
            if t.name == output.name
        )
        count = len(self._passed) + len(program.outputs) + len(source.workspace)
        self._pointers = ctypes.c_void_p * count
        self._plans: dict[tuple[Any, ...], _Plan] = {}
        self._spare: list[tuple[int, Array]] = []

    def __repr__(self) -> str:
        return f"<LoadedKernel {self.program.name} ({self.source.symbol})>"

    @property
    def path(self) -> Path:
        """The shared library."""
        return self.entry.file(LIBRARY)

    def __call__(
        self,
        *arrays: Any,
        out: Any = None,
        threads: int | None = None,
        copy: bool = True,
        **named: Any,
    ) -> Array | tuple[Array, ...]:
        """Run the kernel.

        Parameters
        ----------
        arrays, named : the inputs, in order or by name; and by name the sizes that no input's
            shape determines.  An input that is not C-contiguous and aligned is copied first.
        out : arrays to write to: one, a tuple of all outputs, or a mapping by name.
        threads : threads for this call.
        copy : False refuses inputs that would have to be copied.

        Returns
        -------
        The output, or a tuple of outputs in the program's order; those of `out` are `out`'s.

        Raises
        ------
        ArgumentError : anything that does not fit the program's declaration.
        """
        checked = self._ready(arrays) if not named else None
        sizes: Mapping[str, Any] = {}
        if checked is None:
            inputs, sizes = match_arguments(self.program, arrays, named)
            checked = [check_input(t, inputs[t.name], copy) for t in self._inputs]
        plan = self._plan(checked, sizes)
        results = self._outputs(plan, out)
        count = self.threads if threads is None else check_threads(threads)
        places = [address(array) for array in (*checked, *results)]
        if out is not None:
            self._check_apart(checked, results, places)
        self._update(checked, results, places)
        addresses = [places[i] for i in self._passed] + places[len(checked) :]
        if plan.offsets:
            block = self._take(plan)
            start = -(-address(block) // ALIGNMENT) * ALIGNMENT
            addresses += [start + offset for offset in plan.offsets]
            self._function(count, plan.sizes, self._pointers(*addresses))
            self._give(block)
        else:
            self._function(count, plan.sizes, self._pointers(*addresses))
        return results[0] if len(results) == 1 else tuple(results)

    def _ready(self, arrays: tuple[Any, ...]) -> list[Array] | None:
        """The arrays if they can be passed as they are; None leaves it to the careful path."""
        if len(arrays) != len(self._inputs):
            return None
        for array, dtype, tensor in zip(arrays, self._dtypes, self._inputs, strict=True):
            if type(array) is not np.ndarray or array.dtype is not dtype:
                return None
            if array.flags.num & READABLE != READABLE or array.ndim != len(tensor.shape):
                return None
        return list(arrays)

    def _plan(self, inputs: list[Array], sizes: Mapping[str, Any]) -> _Plan:
        key: tuple[Any, ...] = tuple([array.shape for array in inputs])
        if sizes:
            key = (key, tuple(sorted((n, str(v), type(v)) for n, v in sizes.items())))
        plan = self._plans.get(key)
        if plan is None:
            plan = self._make_plan(inputs, sizes)
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
            self._plans[key] = plan
        return plan

    def _make_plan(self, inputs: list[Array], sizes: Mapping[str, Any]) -> _Plan:
        program = self.program
        shapes = {t.name: a.shape for t, a in zip(self._inputs, inputs, strict=True)}
        binding = bind(program, shapes, sizes)
        values = [binding.sizes[name] for name in program.sizes]
        offsets, total = [], 0
        for tensor in self.source.workspace:
            offsets.append(total)
            count = tensor.dtype.bytes
            for extent in shape_of(tensor, binding.sizes):
                count *= extent
            total += -(-count // ALIGNMENT) * ALIGNMENT
        return _Plan(
            (ctypes.c_int64 * max(1, len(values)))(*values),
            tuple((t, binding.shapes[t.name]) for t in program.outputs),
            tuple(offsets),
            total + ALIGNMENT,
        )

    def _outputs(self, plan: _Plan, out: Any) -> list[Array]:
        """The output arrays: given or fresh."""
        if out is None:
            return [allocate(tensor, shape) for tensor, shape in plan.outputs]
        if len(plan.outputs) == 1:
            ((tensor, shape),) = plan.outputs
            if fits(out, tensor.dtype.numpy, shape, WRITEABLE):
                return [out]
        given = match_outputs(self.program, out)
        return [
            check_output(tensor, given[tensor.name], shape)
            if given.get(tensor.name) is not None
            else allocate(tensor, shape)
            for tensor, shape in plan.outputs
        ]

    def _check_apart(self, inputs: list[Array], results: list[Array], places: list[int]) -> None:
        """Refuse outputs that share memory with other arrays, but for updates in place."""
        if clash((*inputs, *results), places, len(inputs)) is not None:
            named = {t.name: a for t, a in zip(self._inputs, inputs, strict=True)}
            written = {t.name: a for t, a in zip(self.program.outputs, results, strict=True)}
            check_overlaps(self.program, named, written)

    def _update(self, inputs: list[Array], results: list[Array], places: list[int]) -> None:
        """Fill the updated outputs with their input."""
        for o, i in self._copied:
            if places[len(inputs) + o] != places[i]:
                np.copyto(results[o], inputs[i])

    def _take(self, plan: _Plan) -> Array:
        """A block of workspace: the spare one if it is large enough, else a fresh one."""
        try:
            size, block = self._spare.pop()  # atomic, so no two calls get the same block
            if size >= plan.workspace:
                return block
        except IndexError:
            pass
        return allocate(_BLOCK, (plan.workspace,))

    def _give(self, block: Array) -> None:
        if block.nbytes <= _MAX_SPARE_BYTES and not self._spare:
            self._spare.append((block.nbytes, block))
