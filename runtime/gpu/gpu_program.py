"""Programs on a GPU: copy arrays there and back, and launch kernels in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from codegen.gpu.emit import GpuKernel, GpuSource
from codegen.loops.grid_limits import MOST_BLOCKS
from codegen.loops.nodes import Block, For, If, LaunchKernel, LoopNode
from poly.errors import ArgumentError, ToolchainError
from poly.ir.expr import evaluate_int
from poly.ir.intrinsics import SUMS_ALIGNMENT
from poly.ir.program import Program, Tensor
from runtime.common.arguments import (
    Array,
    Binding,
    Shape,
    allocate,
    bind,
    check_input,
    check_output,
    check_spans,
    key_of_sizes,
    match_arguments,
    match_outputs,
    shape_of,
)
from runtime.gpu.device import Device, DeviceArray, KernelLaunch, Operand
from runtime.gpu.memory_pool import DeviceBuffer
from runtime.gpu.operands import checked_operand, output_operand, span_on

_MAX_PLANS = 256
_MAX_STEPS = 4096
#: Calls, and launches at most, that `GpuProgram.repeated` records as one.
_GROUP, _GROUPED = 16, 1024

Result = Array | DeviceArray
Grid = tuple[int, int, int]
#: Kernel, grid and sizes of a launch.
_Step = tuple[GpuKernel, Grid, tuple[int, ...]]


@dataclass(frozen=True)
class _Plan:
    """What a call needs that depends on shapes only.

    steps : its launches; None if there are too many to keep
    workspace : bytes of each temporary
    """

    binding: Binding
    steps: tuple[_Step, ...] | None
    workspace: Mapping[str, int]


class GpuProgram:
    """A compiled program on a device, called with arrays.

    Attributes: `source`, `program`, `device`, and `module`, the device's compiled form of the
    source; a module of several sources may be given.
    Concurrent calls from several threads are safe.

    Raises
    ------
    ToolchainError : the device's compiler is missing, or failed.
    """

    def __init__(self, source: GpuSource, device: Device, module: Any = None) -> None:
        self.source, self.device = source, device
        self.program: Program = source.program
        self.module = device.build(source) if module is None else module
        self._updated = frozenset(source.program.updated)
        self._dtypes = [t.dtype.numpy for t in source.program.inputs]
        #: Tensors that tensor cores read or write.
        self.with_matrices = [*dict.fromkeys(n for k in source.kernels for n in k.with_matrices)]
        self._plans: dict[tuple[Any, ...], _Plan] = {}

    def __repr__(self) -> str:
        return f"<GpuProgram {self.program.name} on {self.device.name}>"

    def __call__(
        self,
        /,
        *arrays: Any,
        out: Any = None,
        threads: int | None = None,
        copy: bool = True,
        stream: Any = None,
        **named: Any,
    ) -> Result | tuple[Result, ...]:
        """Run the program.

        Parameters
        ----------
        arrays, named : the inputs, in order or by name, and by name the sizes that no input's
            shape determines.  Arrays of numpy are copied to the device; those on the device, of any
            library, are used without a copy.
        out : arrays to write to, on the device or not: one, a tuple of all outputs, or a mapping
            by name.
        copy : False refuses numpy arrays that would have to be copied on the host first.
        stream : of the device: CUDA's handle or an object that has one, or an OpenCL queue.  By
            default that of the first array which names its own, else the device's default.

        Returns
        -------
        The output, or a tuple of outputs in the program's order.  If all inputs are on the device,
        so are outputs that are not given, as `DeviceArray`, and the call may return before they
        are done; else they are numpy arrays.

        Raises
        ------
        ArgumentError : an argument does not match the program's declaration, or the device.
        ToolchainError : a kernel failed.
        """
        self.device.check_threads(threads)
        given, asked = match_arguments(self.program, arrays, named)
        call = _Call(self, given, match_outputs(self.program, out), stream)
        found = call.run(asked, copy)
        return found[0] if len(found) == 1 else tuple(found)

    @property
    def threads(self) -> None:
        """As in `runtime.cpu.loaded_kernel.LoadedKernel`; None, since there is no choice here."""
        return None

    def quick(self, arrays: tuple[Any, ...], out: Any, threads: Any, sizes: Any) -> Any:
        """As in `runtime.cpu.loaded_kernel.LoadedKernel`: a call with arrays of this device alone,
        of shapes that were checked before, and for `out` one of them.
        """
        if threads is not None or sizes or self._updated or len(arrays) != len(self._dtypes):
            return NotImplemented
        if not arrays:  # so that nothing says whether results are to stay here
            return NotImplemented
        pool = self.device.pool
        for a in arrays if out is None else (*arrays, out):
            if type(a) is not DeviceArray or a.device.pool is not pool:
                return NotImplemented
        plan = self._plans.get((tuple([a.shape for a in arrays]), ()))
        if plan is None or plan.steps is None or [a.dtype for a in arrays] != self._dtypes:
            return NotImplemented
        stream = self.device.stream_of_call(None, arrays)
        if self.device.may_end(stream):
            return NotImplemented
        results = self._results_of(plan, arrays, out, stream)
        if results is None:
            return NotImplemented
        handles = {t.name: a.used(stream) for t, a in zip(self.program.inputs, arrays, strict=True)}
        for t, a in zip(self.program.outputs, results, strict=True):
            handles[t.name] = a.used(stream, writes=True)
        self.launch(plan, handles, stream)
        return results[0] if len(results) == 1 else tuple(results)

    def _results_of(
        self, plan: _Plan, arrays: Sequence[DeviceArray], out: DeviceArray | None, stream: Any
    ) -> list[DeviceArray] | None:
        """The arrays that a call writes to; None if `out` may not be the one."""
        outputs, shapes, device = self.program.outputs, plan.binding.shapes, self.device
        if out is not None:
            wanted = [(shapes[t.name], t.dtype.numpy) for t in outputs]
            is_apart = not any(a.shares(out) for a in arrays)
            return [out] if is_apart and wanted == [(out.shape, out.dtype)] else None
        found = []
        for t in outputs:
            buffer = device.pool.take(bytes_of(t, shapes[t.name]), stream)
            found.append(DeviceArray(device, buffer, shapes[t.name], t.dtype.numpy, stream))
        return found

    def quick_named(
        self, arrays: tuple[Any, ...], out: Any, threads: Any, named: Mapping[str, Any]
    ) -> Any:
        """As `quick`."""
        names = [t.name for t in self.program.inputs[len(arrays) :]]
        if len(names) != len(named) or any(n not in named for n in names):
            return NotImplemented
        return self.quick((*arrays, *[named[n] for n in names]), out, threads, None)

    def plan(self, shapes: Mapping[str, Shape], asked: Mapping[str, Any]) -> _Plan:
        """Sizes, shapes and launches for input shapes.  Raises as `bind` does."""
        key = (tuple(shapes.values()), key_of_sizes(asked))
        plan = self._plans.get(key)
        if plan is None:
            binding = bind(self.program, shapes, asked)
            steps = []
            for step in self.steps(binding):
                steps.append(step)
                if len(steps) > _MAX_STEPS:
                    break
            few = tuple(steps) if len(steps) <= _MAX_STEPS else None
            temporaries = self.source.workspace
            taken = {t.name: bytes_of(t, shape_of(t, binding.sizes)) for t in temporaries}
            plan = _Plan(binding, few, taken)
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
            self._plans[key] = plan
        return plan

    def launch(self, plan: _Plan, handles: dict[str, Any], stream: Any) -> None:
        """Launch everything on a stream.

        handles : the memory of each input and output
        """
        device, taken = self.device, self._temporaries(plan, stream)
        handles |= {n: buffer.handle for n, buffer in taken.items()}
        steps = self.steps(plan.binding) if plan.steps is None else plan.steps
        try:
            for kernel, grid, sizes in steps:
                tensors = [handles[name] for name in kernel.tensors]
                device.launch(self.module, kernel, grid, sizes, tensors, stream)
        finally:
            for buffer in taken.values():
                buffer.release()

    def _temporaries(self, plan: _Plan, stream: Any) -> dict[str, DeviceBuffer]:
        return {n: self.device.pool.take(count, stream) for n, count in plan.workspace.items()}

    def repeated(self, given: Mapping[str, Any], out: Any) -> Callable[[int], None]:
        """A function that runs the program as often as it is told, without the host's work for each
        call: what is launched is recorded, see `runtime.gpu.device.Device.record`.

        given : the inputs, as `DeviceArray`, and sizes, by name; out : as for a call, likewise
        Raises as a call does.
        """
        self(**given, out=out)
        arrays, asked = match_arguments(self.program, (), given)
        plan = self.plan({t.name: arrays[t.name].shape for t in self.program.inputs}, asked)
        if plan.steps is None or self._updated:  # too many, or the host copies what is updated

            def call(count: int) -> None:
                for _ in range(count):
                    self(**given, out=out)

            return call
        device, stream = self.device, self.device.default_stream
        used = {n: a.used(stream) for n, a in arrays.items()}
        used |= {n: a.used(stream, True) for n, a in match_outputs(self.program, out).items()}
        taken = self._temporaries(plan, stream)
        used |= {n: buffer.handle for n, buffer in taken.items()}
        launches = [
            KernelLaunch(self.module, k, grid, sizes, tuple(used[n] for n in k.tensors))
            for k, grid, sizes in plan.steps
        ]
        group = max(1, min(_GROUP, _GROUPED // max(1, len(launches))))
        once, many = device.record(launches), device.record(launches * group)

        def run(count: int, _kept: Any = (given, out, taken)) -> None:
            for _ in range(count // group):
                many(stream)
            for _ in range(count % group):
                once(stream)

        return run

    def steps(self, binding: Binding) -> Iterator[_Step]:
        """The launches of a call, with the sizes that each kernel takes."""
        for kernel, grid, env in launches_of(self.source, binding.sizes):
            yield kernel, grid, tuple(env[s] for s in kernel.sizes)


class _Call:
    """One call: which of its arrays are on the device, and buffers for the others.

    given : the inputs by name; out : the outputs that the caller gives, by name
    """

    def __init__(
        self,
        owner: GpuProgram,
        given: Mapping[str, Any],
        out: Mapping[str, Any],
        stream: Any,
    ) -> None:
        self.owner, self.program, self.device = owner, owner.program, owner.device
        device, self._given = self.device, given
        self.outputs = {n: v for n, v in out.items() if v is not None}
        values = [*given.values(), *self.outputs.values()]
        self._here = {id(v) for v in values if device.holds(v)}
        self._arrays = [v for v in values if id(v) in self._here]
        self.stream = device.stream_of_call(stream, self._arrays)
        self._taken: list[DeviceBuffer] = []
        self.inputs: dict[str, Array | Operand] = {}

    def _input(self, tensor: Tensor, value: Any, copy: bool) -> Array | Operand:
        if id(value) not in self._here:
            return check_input(tensor, value, copy)
        return checked_operand(self.device, tensor, value, tensor.name, self.stream)

    def run(self, asked: Mapping[str, Any], copy: bool) -> list[Result]:
        """Check, copy, launch and copy back."""
        found: list[Result] = []
        waits = False
        try:
            self.inputs = {
                t.name: self._input(t, self._given[t.name], copy) for t in self.program.inputs
            }
            found = self._launched(asked)
            hosted = not all(isinstance(v, Operand) for v in self.inputs.values())
            # Other libraries may continue to use their arrays on their own streams.
            waits = hosted or self.device.is_apart(self._arrays, self.stream)
        finally:
            self.device.leave(self.stream, (*self._arrays, *found), waits)
        return found

    def _launched(self, asked: Mapping[str, Any]) -> list[Result]:
        plan = self.owner.plan({n: v.shape for n, v in self.inputs.items()}, asked)
        results = self._results(plan.binding)
        if self.outputs:
            self._check_apart(results)
        try:
            handles = self._handles(plan.binding, results)
            for name in self.owner.with_matrices:
                self._check_matrices(name, handles.get(name))
            self.owner.launch(plan, handles, self.stream)
            return self._finish(handles, results)
        finally:
            for buffer in self._taken:
                buffer.release()

    def _check_matrices(self, name: str, handle: Any) -> None:
        """Refuse an array whose matrices tensor cores cannot read; temporaries are aligned."""
        if handle is None:
            return
        _, start = self.device.locate(handle)
        if start % SUMS_ALIGNMENT:
            raise ArgumentError(
                f"{name} does not begin at a multiple of {SUMS_ALIGNMENT} bytes, which tensor "
                "cores need; copy it"
            )

    def _results(self, binding: Binding) -> dict[str, Array | Operand | None]:
        """The target of each output: a host array, one on the device, None for a new one."""
        stay = bool(self.inputs) and all(isinstance(v, Operand) for v in self.inputs.values())
        found: dict[str, Array | Operand | None] = {}
        for t in self.program.outputs:
            shape, value = binding.shapes[t.name], self.outputs.get(t.name)
            if value is None:
                found[t.name] = None if stay else allocate(t, shape)
            elif id(value) not in self._here:
                found[t.name] = check_output(t, value, shape)
            else:
                found[t.name] = output_operand(self.device, t, value, shape, self.stream)
        return found

    def _check_apart(self, results: Mapping[str, Array | Operand | None]) -> None:
        """Refuse outputs that share memory with other arrays, except for updates in place."""
        given = {n: v for n, v in results.items() if n in self.outputs and v is not None}
        inputs = {n: span_on(self.device, v) for n, v in self.inputs.items()}
        outputs = {n: span_on(self.device, v) for n, v in given.items()}
        check_spans(self.program.updated, inputs, outputs)

    def _take(self, count: int) -> DeviceBuffer:
        """A buffer that returns to the pool at the end of the call."""
        buffer = self.device.pool.take(count, self.stream)
        self._taken.append(buffer)
        return buffer

    def _handles(
        self, binding: Binding, results: dict[str, Array | Operand | None]
    ) -> dict[str, Any]:
        """The memory of each tensor, with the inputs in it.  New outputs are added to `results`."""
        device, handles = self.device, {}
        for t in self.program.outputs:
            shape, result = binding.shapes[t.name], results[t.name]
            if isinstance(result, Operand):
                handles[t.name] = result.handle
                continue
            buffer = device.pool.take(bytes_of(t, shape), self.stream)
            handles[t.name] = buffer.handle
            if result is None:
                made = DeviceArray(device, buffer, shape, t.dtype.numpy, self.stream)
                results[t.name] = Operand(buffer.handle, shape, t.dtype.numpy, owner=made)
            else:
                self._taken.append(buffer)
        for name, value in self.inputs.items():
            if isinstance(value, Operand):
                if name not in handles:
                    handles[name] = value.handle
                elif value.nbytes and device.locate(handles[name]) != device.locate(value.handle):
                    device.copy(handles[name], value.handle, value.nbytes, self.stream)
            else:
                if name not in handles:
                    handles[name] = self._take(value.nbytes).handle
                device.write(handles[name], value, self.stream)
        return handles

    def _finish(
        self, handles: Mapping[str, Any], results: Mapping[str, Array | Operand | None]
    ) -> list[Result]:
        """The results, with host arrays copied back."""
        found: list[Result] = []
        for t in self.program.outputs:
            result, value = results[t.name], self.outputs.get(t.name)
            if not isinstance(result, Operand):
                assert result is not None
                self.device.read(handles[t.name], result, self.stream)
                found.append(result)
            elif value is None:
                assert isinstance(result.owner, DeviceArray)
                found.append(result.owner)
            else:
                found.append(value)
        return found


def bytes_of(tensor: Tensor, shape: Shape) -> int:
    """The bytes of a tensor of some shape."""
    count = tensor.dtype.bytes
    for extent in shape:
        count *= extent
    return count


def launches_of(
    source: GpuSource, sizes: Mapping[str, int]
) -> Iterator[tuple[GpuKernel, tuple[int, int, int], dict[str, int]]]:
    """The launches of a call in order: kernel, grid, and values of its sizes and host loops.

    Raises
    ------
    ToolchainError : a grid has more blocks than a GPU allows.
    """
    sizes = source.all_sizes(sizes)
    for number, values in _instances(source.host, dict(sizes)):
        kernel = source.kernels[number]
        env = {**sizes, **dict(zip(kernel.hosts, values, strict=True))}
        extents = [evaluate_int(e, env) for e in kernel.grid]
        if min(extents, default=1) < 1:
            continue
        x, y, z = (*extents, 1, 1, 1)[:3]
        grid = [x, y, z]
        for axis, most in enumerate(MOST_BLOCKS):
            if axis in kernel.strided:
                grid[axis] = min(grid[axis], most)
            elif grid[axis] > most:
                raise ToolchainError(
                    f"{kernel.symbol} would have {grid[axis]} blocks in {'xyz'[axis]}, the limit "
                    f"is {most}; use larger tiles"
                )
        yield kernel, (grid[0], grid[1], grid[2]), env


def _instances(node: LoopNode, env: dict[str, int]) -> Iterator[tuple[int, list[int]]]:
    """The launches of host code: number, and values of the host's loops."""
    if isinstance(node, Block):
        for child in node.children:
            yield from _instances(child, env)
    elif isinstance(node, For):
        lower, upper = evaluate_int(node.lower, env), evaluate_int(node.upper, env)
        for value in range(lower, upper, node.step):
            yield from _instances(node.body, {**env, node.var: value})
    elif isinstance(node, If):
        if evaluate_int(node.cond, env):
            yield from _instances(node.then, env)
        elif node.other is not None:
            yield from _instances(node.other, env)
    else:
        assert isinstance(node, LaunchKernel)
        yield node.number, [evaluate_int(e, env) for e in node.args]
