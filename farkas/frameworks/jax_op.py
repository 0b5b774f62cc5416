"""Operators of JAX from comprehensions, as foreign functions of XLA: arrays are not copied."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from farkas.frameworks.batch_program import batch_program, batched_tensors
from farkas.frameworks.operation import Operation, dtype_called, output_shapes
from farkas.kernels.kernel import Kernel, compile
from farkas.targets.compile_program import ScheduleLike
from poly.errors import ArgumentError, ToolchainError
from poly.ir.dtypes import DType
from poly.ir.program import Program
from poly.ir.size_values import check_size
from runtime.common.cache import Cache, digest
from runtime.cpu.shared_library import open_library
from runtime.cpu.toolchain import find_toolchain

#: The foreign function of all kernels, as XLA knows it.
TARGET = "farkas_kernel"
_HANDLER = Path(__file__).with_name("xla_handler.c")
_lock = threading.Lock()
_library: list[ctypes.CDLL] = []
#: The kernels that XLA can call, by the names that it has for them; they stay loaded.
_kernels: dict[str, Kernel] = {}


def op(text: str, *, exact: bool = False, schedule: ScheduleLike = None) -> JaxOperator:
    """Make a function of JAX from a comprehension.

    >>> distance = fk.jax.op("D[i,j] +=! abs(X[i,k] - Y[j,k])")
    >>> jax.jit(distance)(x, y)

    It works under `jax.jit` and `jax.vmap`, which gives the program a dimension for the batch.
    Arrays are on the CPU and are not copied; one that the program updates is copied, as arrays of
    JAX never change.  A kernel is compiled when a call is traced for new element types, and serves
    all sizes.

    Parameters
    ----------
    text : a definition, bare comprehensions, or an einsum string, as for `farkas.compile`
    exact, schedule : as for `farkas.compile`

    Raises
    ------
    LanguageError : a mistake in the text.
    ToolchainError : JAX is not installed, or there is no C compiler.
    """
    return JaxOperator(_jax(), Operation(text, exact, schedule))


class JaxOperator:
    """A function of JAX; call it with arrays, and with sizes that no shape determines by name.

    operation : what it computes
    """

    def __init__(self, jax: Any, operation: Operation) -> None:
        self._jax, self.operation = jax, operation
        self._batches: dict[str, JaxOperator] = {}
        self._compiled: dict[Program, Kernel] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<JaxOperator {self.operation.name}({', '.join(self.operation.inputs)})>"

    def __call__(self, /, *arrays: Any, **sizes: int) -> Any:
        """Run it, or trace it.

        Raises
        ------
        ArgumentError : a wrong number of arrays, element types, ranks or sizes.
        """
        names = self.operation.inputs
        if len(arrays) != len(names):
            raise ArgumentError(
                f"{self.operation.name} takes {len(names)} arrays ({', '.join(names)}), but "
                f"{len(arrays)} were given"
            )
        self.operation.check_given(sizes)
        sizes = {name: check_size(name, value) for name, value in sizes.items()}
        given = [self._taken(n, a) for n, a in zip(names, arrays, strict=True)]
        results = self._with_rules(sizes)(*given)
        return results if len(results) > 1 else results[0]

    def _taken(self, name: str, value: Any) -> Any:
        """An argument as an array of JAX, of the same element type if it has one."""
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
        whole.defvjp(lambda *arrays: (call(*arrays), None), self._no_gradient)
        found: Callable[..., Any] = whole
        return found

    def _call(self, sizes: Mapping[str, int], *arrays: Any) -> Any:
        program = self.operation.program([_dtype(a) for a in arrays])
        given = [a.shape for a in arrays]
        if any(not isinstance(n, int) for shape in given for n in shape):
            raise ArgumentError(f"{self.operation.name} needs shapes of numbers, not {given}")
        shapes, _ = output_shapes(program, given, sizes)
        name, plan = self._prepared(program, given, sizes)
        made = self._jax.ShapeDtypeStruct
        outputs = [made(s, t.dtype.numpy) for t, s in zip(program.outputs, shapes, strict=True)]
        for tensor in (*program.inputs, *program.outputs):
            if tensor.dtype.bytes == 8 and not self._jax.config.jax_enable_x64:
                raise ArgumentError(
                    f"{tensor} has 64 bits, which JAX has disabled: set jax_enable_x64"
                )
        call = self._jax.ffi.ffi_call(TARGET, outputs)
        return tuple(call(*arrays, kernel=name, plan=np.asarray(plan, np.int64)))

    def _prepared(
        self, program: Program, shapes: Sequence[tuple[int, ...]], sizes: Mapping[str, int]
    ) -> tuple[str, list[int]]:
        """The name of a kernel that XLA can call, and the numbers for these shapes."""
        with self._lock:
            if program not in self._compiled:
                kernel = compile(
                    str(program), exact=self.operation.exact, schedule=self.operation.schedule
                )
                self._compiled[program] = kernel
            kernel = self._compiled[program]
        # Not the program alone: a plan that another process has stored has to fit the kernel.
        name = digest(kernel.source, kernel.toolchain.identity)[:40]
        with _lock:
            if name not in _kernels:
                _add(_handler(self._jax), name, kernel)
                _kernels[name] = kernel
        return name, kernel.loaded.plan_numbers(shapes, sizes)

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
        text = str(batch_program(program, batched))
        if text not in self._batches:
            self._batches[text] = op(text, exact=self.operation.exact)
        results = self._batches[text]._with_rules(sizes)(*given)
        return results, tuple(t.name in batched for t in program.outputs)

    def _no_gradient(self, residuals: Any, gradients: Any) -> Any:
        raise ArgumentError(
            f"{self.operation.name} has no gradient: give it one with jax.custom_vjp, or stop it "
            "with jax.lax.stop_gradient"
        )


def _jax() -> Any:
    try:
        jax = import_module("jax")
        for name in ("jax.ffi", "jax.custom_batching", "jax.numpy"):
            import_module(name)
    except ImportError:
        raise ToolchainError("fk.jax needs JAX: pip install 'farkas[jax]'") from None
    return jax


def _dtype(array: Any) -> DType:
    return dtype_called(str(array.dtype), "arrays")


def _handler(jax: Any) -> ctypes.CDLL:
    """The library with the foreign function, which XLA is told of once.

    Raises
    ------
    ToolchainError : no C compiler, or it fails.
    """
    if not _library:
        flags = (f"-I{jax.ffi.include_dir()}",)
        source = {_HANDLER.name: _HANDLER.read_text()}
        about = {"xla": True, "jax": str(jax.__version__)}
        library, _ = open_library(source, flags, find_toolchain(), Cache(), about)
        jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(library.fk_call), platform="cpu")
        library.fk_add_kernel.argtypes = (ctypes.c_char_p, ctypes.c_void_p)
        _library.append(library)
    return _library[0]


def _add(library: ctypes.CDLL, name: str, kernel: Kernel) -> None:
    """Let XLA call a kernel by a name."""
    if library.fk_add_kernel(name.encode(), kernel.loaded.address):
        raise ToolchainError(f"the kernel {name} cannot be registered")
