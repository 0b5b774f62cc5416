"""An operator of torch whose program is an argument, for what is made from others: gradients, what
they keep, and batches.

Names of operators that are made on the way would be unknown to a process that takes compiled code
from torch's cache; this one is there as soon as any operator is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any

from farkas.frameworks.batch_program import batch_program, batched_tensors
from farkas.frameworks.operation import (
    Operation,
    Segments,
    dtype_called,
    gradient_of,
    output_shapes,
    whole_gradient_of,
)
from farkas.frameworks.torch_threads import compiler
from poly.errors import ArgumentError, ToolchainError
from poly.ir.dtypes import DType
from poly.ir.program import Program
from runtime.common.exchange import memory_of_torch, to_torch

NAME = "farkas::program"
_SCHEMA = "program(Tensor[] tensors, SymInt[] sizes, str text, bool exact) -> Tensor[]"
_LIBRARIES: list[Any] = []

#: Gradients of so many programs are kept.
KEPT = 256
whole_gradient = lru_cache(maxsize=KEPT)(whole_gradient_of)
_gradient_of = lru_cache(maxsize=KEPT)(gradient_of)


def run_program(
    program: Program, exact: bool, tensors: Sequence[Any], sizes: Mapping[str, Any]
) -> list[Any]:
    """The outputs of a program, by the operator that takes any.

    sizes : by name, those that no shape of a tensor determines among them
    """
    register()
    text = str(program)
    asked = [sizes[n] for n in _computation(text, exact).operation.asked]
    found: list[Any] = torch_module().ops.farkas.program(list(tensors), asked, text, exact)
    return found


@lru_cache(maxsize=KEPT)
def _computation(text: str, exact: bool) -> Computation:
    operation = Operation(text, exact, None, compiler, ".to(torch.{})")
    return Computation(torch_module(), operation, NAME)


def torch_module() -> Any:
    """torch.  Raises `ToolchainError` if it is not installed."""
    try:
        return import_module("torch")
    except ImportError:
        raise ToolchainError(
            "fk.torch needs torch: pip install '.[torch]' in a clone of Farkas"
        ) from None


class Computation:
    """What an operator of torch does with tensors, on each device and without elements.

    `given` are tensors in the order of the inputs, and then the sizes that no shape determines.
    name : for messages
    """

    def __init__(self, torch: Any, operation: Operation, name: str) -> None:
        self.torch, self.operation, self.name = torch, operation, name

    def split(self, given: Sequence[Any]) -> tuple[Sequence[Any], dict[str, Any]]:
        """The tensors, and the sizes by name."""
        count = len(self.operation.inputs)
        return given[:count], dict(zip(self.operation.asked, given[count:], strict=True))

    def on_cpu(self, *given: Any) -> Any:
        tensors, _ = self.split(given)
        names = self.operation.inputs
        arrays = [memory_of_torch(n, t) for n, t in zip(names, tensors, strict=True)]
        results = self._called("cpu", arrays, given)
        if isinstance(results, tuple):
            return tuple(map(to_torch, results))
        return to_torch(results)

    def on_cuda(self, *given: Any) -> Any:
        tensors, _ = self.split(given)
        arrays = [t.detach().contiguous() for t in tensors]
        results = self._called(self._device(tensors), arrays, given)
        taken = self.torch.from_dlpack
        return tuple(map(taken, results)) if isinstance(results, tuple) else taken(results)

    def _called(self, target: str, arrays: Sequence[Any], given: Sequence[Any]) -> Any:
        """What the kernel for a target makes of arrays, which are `given` as tensors."""
        tensors, sizes = self.split(given)
        try:
            return self.operation.kernel(target)(*arrays, **sizes)
        except ArgumentError:
            self.program_of(tensors)  # whose message is one of tensors
            raise

    def program_of(self, tensors: Sequence[Any]) -> Program:
        """The program for tensors of these element types."""
        return self.operation.program([_dtype(t) for t in tensors])

    def _device(self, tensors: Sequence[Any]) -> str:
        """The device of all tensors."""
        devices = sorted({str(t.device) for t in tensors})
        if len(devices) > 1:
            raise ArgumentError(f"{self.name} is given tensors on {' and '.join(devices)}")
        return devices[0]

    def fake(self, *given: Any) -> Any:
        """The outputs without elements, for shapes that may be symbolic."""
        tensors, sizes = self.split(given)
        self._device(tensors)
        program = self.program_of(tensors)
        shapes, _ = output_shapes(program, [t.shape for t in tensors], sizes)
        made = tuple(
            tensors[0].new_empty(shape, dtype=getattr(self.torch, t.dtype.name))
            for t, shape in zip(program.outputs, shapes, strict=True)
        )
        return made if len(made) > 1 else made[0]

    def vmap(self, info: Any, in_dims: Sequence[int | None], *given: Any) -> Any:
        """One operator for the batch: the text with one more dimension."""
        tensors, sizes = self.split(given)
        names = self.operation.inputs
        there = dict(zip(names, in_dims, strict=False))
        program = self.program_of(tensors)
        batched = batched_tensors(program, [n for n in names if there[n] is not None])
        moved = []
        for name, tensor in zip(names, tensors, strict=True):
            axis = there[name]
            if axis is not None:
                tensor = tensor.movedim(axis, 0)
            elif name in batched:
                tensor = tensor.expand(info.batch_size, *tensor.shape)
            moved.append(tensor)
        whole = batch_program(program, batched)
        results = tuple(run_program(whole, self.operation.exact, moved, sizes))
        dims = [0 if t.name in batched else None for t in program.outputs]
        return (results[0], dims[0]) if len(dims) == 1 else (results, tuple(dims))


def _dtype(tensor: Any) -> DType:
    return dtype_called(str(tensor.dtype).removeprefix("torch."), "tensors")


def register() -> None:
    """Tell torch of the operator, once."""
    if _LIBRARIES:
        return
    torch = torch_module()
    own = torch.library.Library("farkas", "FRAGMENT")
    _LIBRARIES.append(own)
    own.define(_SCHEMA, tags=(torch.Tag.pt2_compliant_tag,))
    own.impl("program", _on_cpu, "CPU")
    own.impl("program", _on_cuda, "CUDA")
    torch.library.register_fake(NAME, _fake, lib=own)
    torch.library.register_vmap(NAME, _vmap, lib=own)
    torch.library.register_autograd(NAME, _backward, setup_context=_set_up, lib=own)


def _listed(found: Any) -> list[Any]:
    return list(found) if isinstance(found, tuple) else [found]


def _on_cpu(tensors: Sequence[Any], sizes: Sequence[Any], text: str, exact: bool) -> list[Any]:
    return _listed(_computation(text, exact).on_cpu(*tensors, *sizes))


def _on_cuda(tensors: Sequence[Any], sizes: Sequence[Any], text: str, exact: bool) -> list[Any]:
    return _listed(_computation(text, exact).on_cuda(*tensors, *sizes))


def _fake(tensors: Sequence[Any], sizes: Sequence[Any], text: str, exact: bool) -> list[Any]:
    return _listed(_computation(text, exact).fake(*tensors, *sizes))


def _vmap(
    info: Any, in_dims: Any, tensors: Sequence[Any], sizes: Sequence[Any], text: str, exact: bool
) -> tuple[list[Any], list[Any]]:
    results, dims = _computation(text, exact).vmap(info, in_dims[0], *tensors, *sizes)
    if isinstance(results, tuple):
        return list(results), list(dims)
    return [results], [dims]


def _set_up(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
    tensors, sizes, ctx.text, ctx.exact = inputs
    own = _computation(ctx.text, ctx.exact)
    ctx.sizes = dict(zip(own.operation.asked, sizes, strict=True))
    ctx.count = len(tensors)
    save(ctx, own.program_of(tensors), tensors, output)


def _backward(ctx: Any, gradients: Sequence[Any]) -> tuple[Any, ...]:
    program = _computation(ctx.text, ctx.exact).program_of(ctx.saved_tensors[: ctx.count])
    needed = ctx.needs_input_grad[0]
    found = gradients_of(ctx, program, gradients, needed, ctx.sizes, ctx.exact)
    return found, [None] * len(ctx.sizes), None, None


# --- gradients --------------------------------------------------------------------------------


def save(
    ctx: Any, program: Program, tensors: Sequence[Any], results: Sequence[Any],
    recompute: Segments = (),
) -> None:  # fmt: skip
    """Save the inputs, and those of the outputs that the gradient reads.

    recompute : tensors whose states are computed again; then the gradient reads no output
    """
    found = None if recompute else whole_gradient(program)
    values = dict(zip((t.name for t in program.outputs), results, strict=True))
    ctx.kept = tuple(n for n in found.kept if n in values) if found is not None else ()
    ctx.save_for_backward(*tensors, *(values[n] for n in ctx.kept))
    ctx.set_materialize_grads(False)


def gradients_of(
    ctx: Any, program: Program, gradients: Sequence[Any], needed: Sequence[bool],
    sizes: Mapping[str, Any], exact: bool, recompute: Segments = (),
) -> list[Any]:  # fmt: skip
    """The gradients with respect to the inputs that need one, None for the others.

    recompute : tensors whose states are computed again

    Raises
    ------
    GradientError : the program cannot be reversed.
    """
    names = [t.name for t in program.inputs]
    tensors, kept = ctx.saved_tensors[: len(names)], ctx.saved_tensors[len(names) :]
    outputs = zip((t.name for t in program.outputs), gradients, strict=True)
    given = {n: g for n, g in outputs if g is not None}
    wanted = tuple(n for n, need in zip(names, needed, strict=True) if need)
    found = _gradient_of(program, wanted, tuple(given), ctx.kept, recompute) if given else None
    if found is None:
        return [None] * len(names)
    values = dict(zip(ctx.kept, kept, strict=True))
    arrays = [*tensors, *(values[n] for n in found.kept), *(given[n] for n in found.of)]
    results = run_program(found.backward, exact, arrays, sizes)
    made = dict(zip(found.wrt, results, strict=True))
    return [made.get(n) for n in names]
