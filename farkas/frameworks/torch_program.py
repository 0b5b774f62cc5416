"""An operator of torch whose program is an argument, for what is made from others: gradients, what
they keep, and batches.

Names of operators that are made on the way would be unknown to a process that takes compiled code
from torch's cache; this one is there as soon as any operator is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from farkas.frameworks.operation import Operation, gradient_of, whole_gradient_of
from farkas.frameworks.torch_threads import compiler
from poly.ir.program import Program

if TYPE_CHECKING:
    from farkas.frameworks.torch_op import TorchOperator

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
    asked = [sizes[n] for n in _operator(text, exact).operation.asked]
    found: list[Any] = import_module("torch").ops.farkas.program(list(tensors), asked, text, exact)
    return found


@lru_cache(maxsize=KEPT)
def _operator(text: str, exact: bool) -> TorchOperator:
    """What computes a text; torch does not know of it."""
    from farkas.frameworks.torch_op import TorchOperator

    operation = Operation(text, exact, None, compiler, ".to(torch.{})")
    return TorchOperator(import_module("torch"), operation, NAME)


def register() -> None:
    """Tell torch of the operator, once."""
    if _LIBRARIES:
        return
    torch = import_module("torch")
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
    return _listed(_operator(text, exact).on_cpu(*tensors, *sizes))


def _on_cuda(tensors: Sequence[Any], sizes: Sequence[Any], text: str, exact: bool) -> list[Any]:
    return _listed(_operator(text, exact).on_cuda(*tensors, *sizes))


def _fake(tensors: Sequence[Any], sizes: Sequence[Any], text: str, exact: bool) -> list[Any]:
    return _listed(_operator(text, exact).fake(*tensors, *sizes))


def _vmap(
    info: Any, in_dims: Any, tensors: Sequence[Any], sizes: Sequence[Any], text: str, exact: bool
) -> tuple[list[Any], list[Any]]:
    results, dims = _operator(text, exact).vmap(info, in_dims[0], *tensors, *sizes)
    if isinstance(results, tuple):
        return list(results), list(dims)
    return [results], [dims]


def _set_up(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
    tensors, sizes, ctx.text, ctx.exact = inputs
    operator = _operator(ctx.text, ctx.exact)
    ctx.sizes = dict(zip(operator.operation.asked, sizes, strict=True))
    ctx.count = len(tensors)
    save(ctx, operator.program_of(tensors), tensors, output)


def _backward(ctx: Any, gradients: Sequence[Any]) -> tuple[Any, ...]:
    program = _operator(ctx.text, ctx.exact).program_of(ctx.saved_tensors[: ctx.count])
    needed = ctx.needs_input_grad[0]
    found = gradients_of(ctx, program, gradients, needed, ctx.sizes, ctx.exact)
    return found, [None] * len(ctx.sizes), None, None


# --- gradients --------------------------------------------------------------------------------


def save(ctx: Any, program: Program, tensors: Sequence[Any], results: Sequence[Any]) -> None:
    """Save the inputs, and those of the outputs that the gradient reads."""
    found = whole_gradient(program)
    values = dict(zip((t.name for t in program.outputs), results, strict=True))
    ctx.kept = tuple(n for n in found.kept if n in values) if found is not None else ()
    ctx.save_for_backward(*tensors, *(values[n] for n in ctx.kept))
    ctx.set_materialize_grads(False)


def gradients_of(
    ctx: Any, program: Program, gradients: Sequence[Any], needed: Sequence[bool],
    sizes: Mapping[str, Any], exact: bool,
) -> list[Any]:  # fmt: skip
    """The gradients with respect to the inputs that need one, None for the others.

    Raises
    ------
    GradientError : the program cannot be reversed.
    """
    names = [t.name for t in program.inputs]
    tensors, kept = ctx.saved_tensors[: len(names)], ctx.saved_tensors[len(names) :]
    outputs = zip((t.name for t in program.outputs), gradients, strict=True)
    given = {n: g for n, g in outputs if g is not None}
    wanted = tuple(n for n, need in zip(names, needed, strict=True) if need)
    found = _gradient_of(program, wanted, tuple(given), ctx.kept) if given else None
    if found is None:
        return [None] * len(names)
    values = dict(zip(ctx.kept, kept, strict=True))
    arrays = [*tensors, *(values[n] for n in found.kept), *(given[n] for n in found.of)]
    results = run_program(found.backward, exact, arrays, sizes)
    made = dict(zip(found.wrt, results, strict=True))
    return [made.get(n) for n in names]

