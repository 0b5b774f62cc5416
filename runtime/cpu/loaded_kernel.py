"""Build, load and call compiled kernels.

`load_kernel` turns a `KernelSource` into a `LoadedKernel` through the cache; a call checks its
arguments, allocates the outputs, and makes one foreign call.  Sizes and shapes are computed once
per combination of input shapes, and a call that repeats one is made by `quick` in one step.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from codegen.c.kernel_source import KernelSource
from poly.errors import ArgumentError, ToolchainError
from poly.ir.cost import WORTH_SHARING, work_of_program
from poly.ir.dtypes import UINT8
from poly.ir.program import Program, Tensor
from runtime.common.arguments import (
    ALIGNMENT,
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
    default_threads,
    fits,
    key_of_sizes,
    match_arguments,
    match_outputs,
    shape_of,
    undetermined,
)
from runtime.common.cache import Cache, Entry
from runtime.common.no_room import no_room
from runtime.cpu.fast_call import Quick, plan_bytes, quick_calls
from runtime.cpu.openmp_pool import check_parallel, with_team
from runtime.cpu.shared_library import LIBRARY, open_library
from runtime.cpu.toolchain import Toolchain

_MAX_PLANS = 256
_MAX_SPARE_BYTES = 64 << 20
_BLOCK = Tensor("the workspace", UINT8, ())


# --- building ------------------------------------------------------------------------------


def load_kernel(
    source: KernelSource,
    toolchain: Toolchain,
    cache: Cache,
    threads: int | None = None,
) -> LoadedKernel:
    """Build (or find in the cache) and load one kernel.

    Parameters
    ----------
    threads : default number of threads; if None, one per processor.  By default, a call runs on one
        thread if it does less work than starting threads takes.

    Raises
    ------
    ArgumentError : `threads` is not a number from 1 to 4096.
    ToolchainError : the compiler failed, or made a library without the entry point.
    CacheError : the library cannot be stored.
    """
    count = default_threads() if threads is None else check_threads(threads)
    meta = {"program": source.program.name, "symbol": source.symbol}
    library, entry = open_library(source.files, source.flags, toolchain, cache, meta)
    check_parallel(with_team(toolchain, cache), count)
    try:
        function = library[source.symbol]
    except AttributeError:
        raise ToolchainError(f"the compiled kernel has no function {source.symbol}") from None
    function.argtypes = (ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)
    function.restype = None
    plans: list[bytes] = []
    quick = quick_calls(plans, toolchain, cache)
    return LoadedKernel(source, toolchain, entry, count, function, quick, plans)


# --- calling -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Plan:
    """What a call needs that depends on shapes only."""

    sizes: Any  # a ctypes array of int64, only read
    little: bool  # less work than starting threads takes
    outputs: tuple[tuple[Tensor, Shape], ...]
    offsets: tuple[int, ...]  # of each workspace tensor in its block
    workspace: int  # bytes of the block, alignment included


class LoadedKernel:
    """A compiled program that is called with numpy arrays.

    Attributes: `source`, `program`, `toolchain`, `entry` (its cache entry), `threads`, and `quick`,
    which makes a call in one step if it has the shapes of an earlier one, see
    `runtime.cpu.fast_call`. Concurrent calls from several threads are safe.
    """

    def __init__(
        self,
        source: KernelSource,
        toolchain: Toolchain,
        entry: Entry,
        threads: int,
        function: Any,
        quick: Quick,
        quick_plans: list[bytes],
    ) -> None:
        self.source, self.toolchain, self.entry, self.threads = source, toolchain, entry, threads
        self.quick, self._quick_plans = quick, quick_plans
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
        #: The names of all inputs, and of the sizes that a call must give.
        self._names = tuple(t.name for t in program.inputs)
        self._asked = undetermined(program)
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
        /,
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
        ArgumentError : an argument does not match the program's declaration.
        """
        result = self.quick_named(arrays, out, threads, named)
        if result is not NotImplemented:
            found: Array | tuple[Array, ...] = result
            return found
        checked = self._ready(arrays) if not named else None
        sizes: Mapping[str, Any] = {}
        if checked is None:
            inputs, sizes = match_arguments(self.program, arrays, named)
            checked = [check_input(t, inputs[t.name], copy) for t in self._inputs]
        plan = self._plan(checked, sizes)
        results = self._outputs(plan, out)
        count = self._usual_threads(plan) if threads is None else check_threads(threads)
        at = [address(array) for array in (*checked, *results)]
        if out is not None:
            self._check_apart(checked, results, at)
        self._update(checked, results, at)
        addresses = [at[i] for i in self._passed] + at[len(checked) :]
        if plan.offsets:
            block = self._take(plan)
            start = -(-address(block) // ALIGNMENT) * ALIGNMENT
            addresses += [start + offset for offset in plan.offsets]
            self._function(count, plan.sizes, self._pointers(*addresses))
            self._give(block)
        else:
            self._function(count, plan.sizes, self._pointers(*addresses))
        return results[0] if len(results) == 1 else tuple(results)

    @property
    def address(self) -> int:
        """The address of the compiled function, which takes threads, sizes and tensors."""
        return ctypes.cast(self._function, ctypes.c_void_p).value or 0

    def plan_numbers(
        self, shapes: Sequence[Shape], sizes: Mapping[str, int]
    ) -> tuple[list[int], list[Shape]]:
        """What a call of `address` passes, as numbers, and the shapes of the outputs.

        The numbers are threads, bytes of workspace, and lists after their lengths: the sizes, the
        positions of inputs that are passed, pairs of an output and the input that it begins as, and
        the offsets of temporaries in the workspace.

        shapes : of the inputs, in order; sizes : those that no shape determines

        Raises
        ------
        ArgumentError : see `runtime.common.arguments.bind`.
        """
        plan = self._make_plan(shapes, sizes)
        numbers = list(plan.sizes)[: len(self.program.sizes)]
        lists = (numbers, self._passed, self._copied, plan.offsets)
        made = [self._usual_threads(plan), plan.workspace]
        for values in lists:
            made.append(len(values))
            for value in values:
                made += value if isinstance(value, tuple) else [value]
        return made, [shape for _, shape in plan.outputs]

    def quick_named(
        self, arrays: tuple[Any, ...], out: Any, threads: Any, named: Mapping[str, Any]
    ) -> Any:
        """As `quick`, with inputs and sizes by name."""
        if not named:
            return self.quick(arrays, out, threads, None)
        inputs, asked = self._names[len(arrays) :], self._asked
        if len(named) != len(inputs) + len(asked):
            return NotImplemented
        try:
            if inputs:
                arrays += tuple(map(named.__getitem__, inputs))
            sizes = tuple(map(named.__getitem__, asked)) if asked else None
        except KeyError:
            return NotImplemented
        return self.quick(arrays, out, threads, sizes)

    def _ready(self, arrays: tuple[Any, ...]) -> list[Array] | None:
        """The arrays if they can be passed as they are; None leaves the call to the slow path."""
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
            key = (key, key_of_sizes(sizes))
        plan = self._plans.get(key)
        if plan is None:
            plan = self._make_plan([array.shape for array in inputs], sizes)
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
                self._quick_plans.clear()
            self._plans[key] = plan
            self._add_quick(inputs, sizes, plan)
        return plan

    def _usual_threads(self, plan: _Plan) -> int:
        """The default number of threads of a call."""
        return 1 if plan.little else self.threads

    def _add_quick(self, inputs: list[Array], sizes: Mapping[str, Any], plan: _Plan) -> None:
        """Make later calls with these shapes quick ones, if possible."""
        if set(sizes) != set(self._asked):
            return
        updates = dict(self._copied)
        passed = set(self._passed)
        block = plan.workspace - ALIGNMENT
        made = plan_bytes(
            self._function,
            self._usual_threads(plan),
            plan.little,
            [(t, inputs[n].shape, n in passed) for n, t in enumerate(self._inputs)],
            [(t, shape, updates.get(n, -1)) for n, (t, shape) in enumerate(plan.outputs)],
            [int(sizes[name]) for name in self._asked],
            plan.sizes,
            plan.offsets,
            block,
        )
        if made is not None:
            self._quick_plans.insert(0, made)

    def _make_plan(self, given: Sequence[Shape], sizes: Mapping[str, Any]) -> _Plan:
        program = self.program
        shapes = {t.name: shape for t, shape in zip(self._inputs, given, strict=True)}
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
            work_of_program(program, binding.sizes) < WORTH_SHARING,
            tuple((t, binding.shapes[t.name]) for t in program.outputs),
            tuple(offsets),
            total + ALIGNMENT,
        )

    def _outputs(self, plan: _Plan, out: Any) -> list[Array]:
        """The output arrays: given or new."""
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

    def _check_apart(self, inputs: list[Array], results: list[Array], at: list[int]) -> None:
        """Refuse outputs that share memory with other arrays, except for updates in place."""
        if clash((*inputs, *results), at, len(inputs)) is not None:
            named = {t.name: a for t, a in zip(self._inputs, inputs, strict=True)}
            written = {t.name: a for t, a in zip(self.program.outputs, results, strict=True)}
            check_overlaps(self.program, named, written)

    def _update(self, inputs: list[Array], results: list[Array], at: list[int]) -> None:
        """Fill the updated outputs with their input."""
        for o, i in self._copied:
            if at[len(inputs) + o] != at[i]:
                np.copyto(results[o], inputs[i])

    def _take(self, plan: _Plan) -> Array:
        """A block of workspace: the spare one if it is large enough, else a new one."""
        try:
            size, block = self._spare.pop()  # atomic, so no two calls get the same block
            if size >= plan.workspace:
                return block
        except IndexError:
            pass
        try:
            return allocate(_BLOCK, (plan.workspace,))
        except ArgumentError:
            sizes = dict(zip(self.program.sizes, plan.sizes, strict=False))
            raise no_room(self.program, self.source.workspace, sizes) from None

    def _give(self, block: Array) -> None:
        if block.nbytes <= _MAX_SPARE_BYTES and not self._spare:
            self._spare.append((block.nbytes, block))
