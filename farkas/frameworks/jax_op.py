"""Operators of JAX from comprehensions, as foreign functions of XLA: arrays are not copied."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from farkas.frameworks.batch_program import batch_program, batched_tensors
from farkas.frameworks.operation import (
    Meaning,
    Operation,
    dtype_called,
    extent_value,
    gradient_of,
    output_shapes,
    whole_gradient_of,
)
from farkas.frameworks.xla_kernels import TARGET, XlaKernel, jax_module
from farkas.kernels.gradients import Recomputed
from farkas.kernels.kernel import compile
from farkas.targets.compile_program import ScheduleLike
from poly.errors import ArgumentError
from poly.gradients.split import Halves
from poly.ir.dtypes import DType
from poly.ir.expr import INTEGER_MEANING
from poly.ir.program import Program
from poly.ir.size_values import check_size
from runtime.common.exchange import library_of

#: Most combinations of sizes for which a call is kept.
_MOST_SIZES = 64


def op(
    text: str, *, exact: bool = False, schedule: ScheduleLike = None, recompute: Recomputed = ()
) -> JaxOperator:
    """Make a function of JAX from a comprehension.

    >>> distance = fk.jax.op("D[i,j] +=! abs(X[i,k] - Y[j,k])")
    >>> jax.jit(distance)(x, y)

    It works under `jax.jit`, `jax.grad` and `jax.vjp` (see `farkas.grad`), `jax.vmap`, which gives
    the program a dimension for the batch, and `jax.export`, also with symbolic shapes.  Arrays are
    on the CPU and are not copied; one that the program updates is copied, as arrays of JAX never
    change.  A kernel is compiled when a call is traced for new element types, and serves all sizes.

    Parameters
    ----------
    text : a definition, bare comprehensions, or an einsum string, as for `farkas.compile`
    exact, schedule : as for `farkas.compile`
    recompute : tensors of ``for`` blocks whose states the gradient computes again, in segments, as
        for `farkas.grad`; then it has no gradient itself

    Raises
    ------
    LanguageError : a mistake in the text.
    GradientError : no block computes a tensor of `recompute`.
    ToolchainError : JAX is not installed, or there is no C compiler.
    """
    operation = Operation(text, exact, schedule, recompute=recompute)
    return JaxOperator(jax_module(), operation)


class JaxOperator:
    """A function of JAX; call it with arrays, and with sizes that no shape determines by name.

    operation : what it computes
    """

    def __init__(self, jax: Any, operation: Operation) -> None:
        self._jax, self.operation = jax, operation
        #: Those for batches and for gradients, by their texts.
        self._others: dict[str, JaxOperator] = {}
        self._halves: dict[Program, Halves | None] = {}
        self._compiled: dict[Program, XlaKernel] = {}
        #: Calls that are not traced, by their sizes: to trace each of them would take longer.
        self._jitted: dict[tuple[int, ...], Callable[..., Any]] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<JaxOperator {self.operation.name}({', '.join(self.operation.inputs)})>"

    def __call__(self, /, *arrays: Any, **sizes: int) -> Any:
        """Run it, or trace it.

        sizes : numbers, or symbolic dimensions

        Raises
        ------
        ArgumentError : a wrong number of arrays, element types, ranks or sizes; shapes that are
            symbolic and need not be those that the program takes.
        """
        names = self.operation.inputs
        self.operation.check_given(sizes)
        self.operation.check_count(len(arrays), "array")
        sizes = {
            name: value if self._jax.export.is_symbolic_dim(value) else check_size(name, value)
            for name, value in sizes.items()
        }
        given = [self._taken(n, a) for n, a in zip(names, arrays, strict=True)]
        is_symbolic = any(not isinstance(n, int) for n in sizes.values())
        if is_symbolic or any(isinstance(a, self._jax.core.Tracer) for a in given):
            results = self._with_rules(sizes)(*given)
        else:
            results = self._at_once(sizes)(*given)
        return results if len(results) > 1 else results[0]

    def _at_once(self, sizes: Mapping[str, int]) -> Callable[..., Any]:
        """The call with arrays that have values."""
        key = tuple(sizes[name] for name in self.operation.asked)
        if key not in self._jitted:
            if len(self._jitted) >= _MOST_SIZES:
                self._jitted.clear()
            self._jitted[key] = self._jax.jit(partial(self._call, sizes))
        return self._jitted[key]

    def _taken(self, name: str, value: Any) -> Any:
        """An argument as an array of JAX, of the same element type if it has one."""
        library = library_of([value])
        if library is not None and library.name != "jax":
            raise ArgumentError(
                f"{name} is a tensor of {library.name}, not an array of JAX: pass "
                f"jax.numpy.from_dlpack({name})"
            )
        try:
            found = self._jax.numpy.asarray(value)
        except (TypeError, ValueError, OverflowError) as error:
            line = (str(error).splitlines() or [""])[0]
            raise ArgumentError(f"{name} is no array: {line}") from None
        if getattr(value, "dtype", found.dtype) != found.dtype:
            raise ArgumentError(
                f"{name} has dtype {value.dtype}, which JAX has disabled: set jax_enable_x64"
            )
        return found

    def _with_rules(self, sizes: Mapping[str, int]) -> Callable[..., Any]:
        """The call, with what vmap and grad make of it."""
        jax = self._jax
        call = jax.custom_batching.custom_vmap(partial(self._call, sizes))
        call.def_vmap(partial(self._batched, sizes))
        whole = jax.custom_vjp(call)
        whole.defvjp(partial(self._forward, sizes, whole), partial(self._backward, sizes))
        found: Callable[..., Any] = whole
        return found

    def _call(self, sizes: Mapping[str, int], *arrays: Any) -> Any:
        program = self.operation.program([_dtype(a) for a in arrays])
        for tensor in (*program.inputs, *program.outputs):
            if tensor.dtype.bytes == 8 and not self._jax.config.jax_enable_x64:
                raise ArgumentError(
                    f"{tensor} has 64 bits, which JAX has disabled: set jax_enable_x64"
                )
        given = [a.shape for a in arrays]
        values = [sizes[name] for name in self.operation.asked]
        kernel = self._kernel(program)
        if any(map(self._jax.export.is_symbolic_dim, (*values, *(n for s in given for n in s)))):
            shapes = self._symbolic_shapes(program, given, sizes)
        else:
            shapes, _ = output_shapes(program, given, sizes)
            kernel.add(values, given, shapes)
        made = self._jax.ShapeDtypeStruct
        outputs = [made(s, t.dtype.numpy) for t, s in zip(program.outputs, shapes, strict=True)]
        passed = [len(values), *values]
        if any(map(self._jax.export.is_symbolic_dim, values)):
            arrays = (*arrays, self._jax.numpy.stack([self._jax.numpy.asarray(v) for v in values]))
            passed = [-1]
        call = self._jax.ffi.ffi_call(TARGET, outputs)
        named = {"kernel": kernel.name, "source": kernel.source}
        return tuple(call(*arrays, **named, sizes=np.asarray(passed, np.int64)))

    def _kernel(self, program: Program) -> XlaKernel:
        """The kernel of a program, compiled once."""
        exact, schedule = self.operation.exact, self.operation.schedule
        with self._lock:
            if program not in self._compiled:
                kernel = compile(str(program), exact=exact, schedule=schedule)
                automatic = schedule is None or schedule == "auto"
                self._compiled[program] = XlaKernel.of(kernel, program, exact, automatic)
            return self._compiled[program]

    def _symbolic_shapes(
        self, program: Program, given: Sequence[tuple[Any, ...]], sizes: Mapping[str, Any]
    ) -> list[tuple[Any, ...]]:
        """The shapes of the outputs, where those of the inputs are symbolic.

        The program is refused unless they are its own whatever the symbols stand for; its
        preconditions are checked by every call.
        """
        meaning = _symbolic_meaning(self._jax)
        shapes, env = output_shapes(program, given, sizes, meaning)
        for tensor, shape in zip(program.inputs, given, strict=True):
            for axis, (extent, got) in enumerate(zip(tensor.shape, shape, strict=True)):
                value = extent_value(extent, env, meaning)
                # JAX calls symbols equal only if they are for all values.
                if not value == got:
                    raise ArgumentError(
                        f"{tensor.name}.shape[{axis}] is {got}, which need not be {extent}"
                        + (f" = {value}" if str(value) != str(extent) else "")
                        + ": write both with the same symbols, or add a constraint"
                    )
        return shapes

    def _batched(
        self, sizes: Mapping[str, int], count: int, there: Sequence[bool], *arrays: Any
    ) -> tuple[Any, Any]:
        """The call for a batch: the program with one more dimension."""
        program = self.operation.program([_dtype(a) for a in arrays])
        names = self.operation.inputs
        batched = batched_tensors(program, [n for n, b in zip(names, there, strict=True) if b])
        spread = self._jax.numpy.broadcast_to
        given = [
            spread(a, (count, *a.shape)) if name in batched and not b else a
            for name, a, b in zip(names, arrays, there, strict=True)
        ]
        results = self._other(batch_program(program, batched))._with_rules(sizes)(*given)
        return results, tuple(t.name in batched for t in program.outputs)

    def _forward(self, sizes: Mapping[str, Any], whole: Callable[..., Any], *arrays: Any) -> Any:
        """The results, and what the gradient reads: inputs, and what it is worth keeping."""
        program = self.operation.program([_dtype(a) for a in arrays])
        found = self._kept(program)
        if found is None:
            return whole(*arrays), (arrays, None)
        count = len(program.outputs)
        keeps_more = len(found.forward.outputs) > count
        run = self._other(found.forward)._with_rules(sizes) if keeps_more else whole
        results = run(*arrays)
        values = dict(zip((t.name for t in found.forward.outputs), results, strict=True))
        return results[:count], (arrays, tuple(values[n] for n in found.kept))

    def _backward(self, sizes: Mapping[str, Any], saved: Any, gradients: Sequence[Any]) -> Any:
        """The gradients with respect to the inputs, by an operator of their own."""
        arrays, kept = saved
        program = self.operation.program([_dtype(a) for a in arrays])
        given = dict(zip(self.operation.outputs, gradients, strict=True))
        names = self.operation.inputs
        found = self._kept(program)
        if found is None:
            found = gradient_of(
                program, names, self.operation.outputs, (), self.operation.recompute
            )
            kept = ()
        if found is None:
            return (None,) * len(names)
        whole = self._other(found.backward)
        own = {n: sizes[n] for n in whole.operation.asked}
        results = whole._with_rules(own)(*arrays, *kept, *(given[n] for n in found.of))
        by_name = dict(zip(found.wrt, results, strict=True))
        return tuple(by_name.get(n) for n in names)

    def _kept(self, program: Program) -> Halves | None:
        if program not in self._halves:
            self._halves[program] = whole_gradient_of(program, self.operation.recompute)
        return self._halves[program]

    def _other(self, program: Program) -> JaxOperator:
        text = str(program)
        if text not in self._others:
            self._others[text] = op(text, exact=self.operation.exact)
        return self._others[text]


def _symbolic_meaning(jax: Any) -> Meaning:
    """What operators of extents do with symbolic dimensions.

    Only those of which JAX makes a dimension: Python's comparisons would choose one case for all.
    """
    numbers = ("add", "sub", "mul", "neg", "floordiv", "mod")
    known = {fn: INTEGER_MEANING[fn] for fn in numbers}
    return {**known, "min": jax.core.min_dim, "max": jax.core.max_dim}


def _dtype(array: Any) -> DType:
    return dtype_called(str(array.dtype), "arrays")
