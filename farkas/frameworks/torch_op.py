"""Operators of torch from comprehensions, by way of `torch.library`."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from farkas.frameworks.operation import Operation
from farkas.frameworks.torch_inline import register_inline
from farkas.frameworks.torch_program import (
    Computation,
    gradients_of,
    register,
    run_program,
    save,
    torch_module,
    whole_gradient,
)
from farkas.frameworks.torch_threads import compiler
from farkas.kernels.gradients import Recomputed
from farkas.targets.compile_program import ScheduleLike
from poly.errors import ArgumentError
from poly.gradients.split import Halves
from runtime.common.exchange import check_no_tangent

#: Where operators are whose name does not say.
NAMESPACE = "farkas"
_NAME = re.compile(r"([A-Za-z_]\w*)::([A-Za-z_]\w*)")
#: The operators that there are, by their names; torch keeps them as long as the process lives.
_OPERATORS: dict[str, TorchOperator] = {}
_LIBRARIES: list[Any] = []
_LOCK = threading.RLock()


def op(
    text: str,
    *,
    name: str | None = None,
    backward: Callable[..., Any] | None = None,
    setup_context: Callable[..., Any] | None = None,
    exact: bool = False,
    schedule: ScheduleLike = None,
    recompute: Recomputed = (),
) -> TorchOperator:
    """Make an operator of torch from a comprehension.

    >>> distance = fk.torch.op("def l1(float32 X[N,K], float32 Y[M,K]) -> (D) "
    ...                        "{ D[i,j] +=! abs(X[i,k] - Y[j,k]) }", name="mine::l1")
    >>> distance(x, y)                              # also torch.ops.mine.l1(x, y)

    It works under `torch.compile`, `torch.func.vmap`, `torch.export` and fake tensors, for tensors
    on the CPU and on CUDA devices.  Its gradient is that of `farkas.grad`, which has one, too.  It
    never changes its inputs: a tensor that the program updates is copied.  A kernel is compiled
    when the operator first runs, and serves all sizes.

    Parameters
    ----------
    text : a definition, bare comprehensions, or an einsum string, as for `farkas.compile`
    name : ``"namespace::name"``, or a name in the namespace ``farkas``; default is that of the
        definition
    backward, setup_context : another gradient, as `torch.library.register_autograd` takes it
    exact, schedule : as for `farkas.compile`
    recompute : tensors of ``for`` blocks whose states the gradient computes again, in segments, as
        for `farkas.grad`; then nothing but the inputs is kept for it, and it has none itself

    Raises
    ------
    LanguageError : a mistake in the text.
    GradientError : no block computes a tensor of `recompute`.
    ArgumentError : a name that is none, or that another operator has; a program without inputs.
    ToolchainError : torch is not installed.
    """
    torch = torch_module()
    operation = Operation(text, exact, schedule, compiler, ".to(torch.{})", recompute)
    qualified = _qualified(name or operation.name)
    if not operation.inputs:
        raise ArgumentError(f"{qualified} has no inputs: torch chooses what runs by its tensors")
    register()
    with _LOCK:
        known = _OPERATORS.get(qualified)
        if known is not None and backward is None and known.operation.is_like(operation):
            return known
        space, _, own = qualified.partition("::")
        if known is not None or hasattr(getattr(torch.ops, space), own):
            raise ArgumentError(f"there is an operator {qualified} already: choose another name")
        made = TorchOperator(torch, operation, qualified)
        made.register(backward, setup_context)
        register_inline(f"{space}.{own}.default", operation)
        _OPERATORS[qualified] = made
        return made


class TorchOperator:
    """An operator of torch; call it with tensors, and with sizes that no shape determines by name.

    Attributes
    ----------
    name : with its namespace; operation : what it computes
    overload : torch's own object, ``torch.ops.NAMESPACE.NAME.default``
    """

    def __init__(self, torch: Any, operation: Operation, name: str) -> None:
        self._torch, self.operation, self.name = torch, operation, name
        self._computation = Computation(torch, operation, name)
        #: Whether its gradient is that of its text.
        self._is_own = True

    def __call__(self, /, *tensors: Any, **sizes: int) -> Any:
        """Run it.

        Raises
        ------
        ArgumentError : something else than tensors that are not sparse; wrong element types, ranks
            or sizes; an unknown or a missing size; a tensor with a derivative in forward mode, of
            which only this call knows.
        """
        if self._torch.autograd.forward_ad._current_level >= 0:
            for name, tensor in zip(self.operation.inputs, tensors, strict=False):
                check_no_tangent(name, tensor)
        try:
            if self._wants_gradient(tensors):
                found = whole_gradient(self._computation.program_of(tensors))
                if found is not None and len(found.forward.outputs) > len(self.operation.outputs):
                    self.operation.check_given(sizes)
                    return self._keeping(found, tensors, sizes)
            if sizes or self.operation.asked:
                return self.overload(*tensors, *self._in_order(sizes))
            return self.overload(*tensors)
        except RuntimeError:
            self._check_tensors(tensors)
            raise

    def __repr__(self) -> str:
        return f"<TorchOperator {self._schema}>"

    def _wants_gradient(self, tensors: Sequence[Any]) -> bool:
        """Whether a call is recorded, and not compiled, for a gradient of its own."""
        torch = self._torch
        return (
            self._is_own
            and not self.operation.recompute
            and torch.is_grad_enabled()
            and not torch.compiler.is_compiling()
            and len(tensors) == len(self.operation.inputs)
            and all(isinstance(t, torch.Tensor) for t in tensors)
            and any(t.requires_grad for t in tensors)
        )

    def _keeping(self, found: Halves, tensors: Sequence[Any], sizes: Mapping[str, int]) -> Any:
        """The outputs of a call that also returned what its gradient reads."""
        results = run_program(found.forward, self.operation.exact, tensors, sizes)
        count = len(self.operation.outputs)
        return tuple(results[:count]) if count > 1 else results[0]

    @property
    def overload(self) -> Any:
        """torch's own object."""
        space, _, name = self.name.partition("::")
        return getattr(getattr(self._torch.ops, space), name).default

    def _check_tensors(self, given: Sequence[Any]) -> None:
        """Say in a line what torch's dispatcher says in many."""
        for name, value in zip(self.operation.inputs, given, strict=False):
            if not isinstance(value, self._torch.Tensor):
                kind = type(value)
                what = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
                raise ArgumentError(f"{name} is a {what}, expected a tensor of torch")
            if value.layout != self._torch.strided:
                raise ArgumentError(
                    f"{name} is sparse ({value.layout}), which is not supported: convert it by "
                    ".to_dense()"
                )
        self.operation.check_count(len(given), "tensor")

    def _in_order(self, sizes: Mapping[str, int]) -> list[int]:
        self.operation.check_given(sizes)
        return [sizes[name] for name in self.operation.asked]

    # --- registration -------------------------------------------------------------------------

    @property
    def _schema(self) -> str:
        inputs = [f"Tensor {name}" for name in self.operation.inputs]
        inputs += [f"SymInt {name}" for name in self.operation.asked]
        outputs = ["Tensor"] * len(self.operation.outputs)
        result = outputs[0] if len(outputs) == 1 else f"({', '.join(outputs)})"
        return f"{self.name}({', '.join(inputs)}) -> {result}"

    def register(
        self, backward: Callable[..., Any] | None, setup_context: Callable[..., Any] | None
    ) -> None:
        """Tell torch what it is, and what runs where."""
        library = self._torch.library
        space, _, name = self.name.partition("::")
        own = library.Library(space, "FRAGMENT")
        _LIBRARIES.append(own)
        schema = self._schema.removeprefix(f"{space}::")
        try:
            own.define(schema, tags=(self._torch.Tag.pt2_compliant_tag,))
        except RuntimeError as error:  # e.g. an input that is called None
            line = str(error).splitlines()[0]
            raise ArgumentError(f"torch takes no operator {schema}: {line}") from None
        own.impl(name, self._computation.on_cpu, "CPU")
        own.impl(name, self._computation.on_cuda, "CUDA")
        library.register_fake(self.name, self._computation.fake, lib=own)
        library.register_vmap(self.name, self._computation.vmap, lib=own)
        self._is_own = backward is None
        if backward is None:
            backward, setup_context = self._backward, self._set_up
        library.register_autograd(self.name, backward, setup_context=setup_context, lib=own)

    def _set_up(self, ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        """Keep what the gradient reads."""
        tensors, ctx.sizes = self._computation.split(inputs)
        results = output if isinstance(output, (tuple, list)) else (output,)
        program = self._computation.program_of(tensors)
        save(ctx, program, tensors, results, self.operation.recompute)

    def _backward(self, context: Any, *gradients: Any) -> tuple[Any, ...]:
        """The gradients with respect to the inputs that need one."""
        count = len(self.operation.inputs)
        tensors = context.saved_tensors[:count]
        program, needed = self._computation.program_of(tensors), context.needs_input_grad[:count]
        found = gradients_of(
            context, program, gradients, needed, context.sizes, self.operation.exact,
            self.operation.recompute,
        )  # fmt: skip
        return (*found, *(None for _ in self.operation.asked))


def _qualified(name: str) -> str:
    full = name if "::" in name else f"{NAMESPACE}::{name}"
    if not _NAME.fullmatch(full):
        raise ArgumentError(f"{name!r} is no name of an operator; write namespace::name")
    return full
