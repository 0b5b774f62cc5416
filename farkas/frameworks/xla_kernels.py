"""Kernels that XLA calls: what it has to know of each, and which it has to be told of."""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from farkas.kernels.kernel import Kernel, compile
from poly.errors import ArgumentError, ToolchainError
from poly.ir.program import Program
from runtime.common.arguments import undetermined
from runtime.common.cache import Cache, digest
from runtime.cpu.shared_library import open_library
from runtime.cpu.toolchain import find_toolchain

#: The foreign function of all kernels, as XLA knows it.
TARGET = "farkas_kernel"
_HANDLER = Path(__file__).with_name("xla_handler.c")
_ASK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64,
    ctypes.POINTER(ctypes.c_int64), ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64,
)  # fmt: skip
_lock = threading.RLock()
#: The library with the foreign function, and what it asks; neither may go away.
_library: list[Any] = []
#: The kernels that XLA can call, by the names that it has for them, and the calls it knows.
_kernels: dict[str, Kernel] = {}
_known: set[tuple[str, tuple[int, ...]]] = set()

Shape = tuple[int, ...]


@dataclass(frozen=True)
class XlaKernel:
    """A kernel, as a call site of XLA names it.

    source : what it is made of, as text, so that another process can make it again; name : follows
        from that
    """

    name: str
    source: str
    kernel: Kernel

    @classmethod
    def of(cls, kernel: Kernel, program: Program, exact: bool, automatic: bool) -> XlaKernel:
        """A kernel of a program, which XLA may ask for from now on.

        automatic : whether the schedule is the automatic one, which is made again

        Raises
        ------
        ToolchainError : see `register`.
        """
        register()
        script = None if automatic else str(kernel.schedule)
        parts = {"program": str(program), "exact": exact, "schedule": script}
        source = json.dumps(parts)
        name = digest(source)[:40]
        with _lock:
            return cls(name, source, _kernels.setdefault(name, kernel))

    def add(self, sizes: Sequence[int], shapes: Sequence[Shape], results: Sequence[Shape]) -> None:
        """Let XLA call it with some sizes and shapes.

        sizes : those that no shape determines, in order

        Raises
        ------
        ArgumentError : the program takes no such shapes, or has other results.
        """
        with _lock:
            _add(self.name, (len(sizes), *sizes, *_flat(shapes), *_flat(results)))


def register() -> None:
    """Let XLA in this process run programs with operators of Farkas: those that `jax.export` has
    stored.  Making an operator does this, too.

    Raises
    ------
    ToolchainError : JAX is not installed, there is no C compiler, or it fails.
    """
    jax = jax_module()
    with _lock:
        if _library:
            return
        flags = (f"-I{jax.ffi.include_dir()}",)
        source = {_HANDLER.name: _HANDLER.read_text()}
        about = {"xla": True, "jax": str(jax.__version__)}
        library, _ = open_library(source, flags, find_toolchain(), Cache(), about)
        numbers = ctypes.POINTER(ctypes.c_int64)
        library.fk_add.argtypes = (
            ctypes.c_char_p, ctypes.c_void_p, numbers, ctypes.c_int64, numbers, ctypes.c_int64,
        )  # fmt: skip
        asked = _ASK(_asked)
        library.fk_ask_for(asked)
        jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(library.fk_call), platform="cpu")
        _library[:] = [library, asked]


def jax_module() -> Any:
    """JAX.  Raises `ToolchainError` if it is not installed."""
    try:
        jax = import_module("jax")
        for name in ("jax.ffi", "jax.custom_batching", "jax.numpy", "jax.export"):
            import_module(name)
    except ImportError:
        raise ToolchainError(
            "fk.jax needs JAX: pip install '.[jax]' in a clone of Farkas"
        ) from None
    return jax


def _add(name: str, key: tuple[int, ...]) -> None:
    """Tell the foreign function how a kernel is called for a key."""
    if (name, key) in _known:
        return
    kernel = _kernels[name]
    numbers = iter(key)
    sizes = dict(zip(undetermined(kernel.program), _several(numbers), strict=True))
    shapes = [_several(numbers) for _ in kernel.program.inputs]
    results = [_several(numbers) for _ in kernel.program.outputs]
    plan, expected = kernel.loaded.plan_numbers(shapes, sizes)
    for tensor, shape, result in zip(kernel.program.outputs, expected, results, strict=True):
        if shape != result:
            raise ArgumentError(f"{tensor.name} has shape {result}, expected {shape}")
    given, made = _array(key), _array(plan)
    address = kernel.loaded.address
    if _library[0].fk_add(name.encode(), address, given, len(given), made, len(made)):
        raise ToolchainError(f"the kernel {name} cannot be registered")
    _known.add((name, key))


def _asked(
    name: int, name_length: int, source: int, source_length: int,
    key: Any, count: int, message: int, room: int,
) -> int:  # fmt: skip
    """What the foreign function calls for a key that it does not know; 0 if that is added now."""
    try:
        text = ctypes.string_at(source, source_length).decode()
        called = ctypes.string_at(name, name_length).decode()
        with _lock:
            if called not in _kernels:
                _kernels[called] = _made(json.loads(text))
            _add(called, tuple(key[:count]))
    except BaseException as error:  # nothing may leave a callback: XLA raises what it says
        said = f"{type(error).__name__}: {error}".encode()[:room].decode(errors="ignore").encode()
        ctypes.memmove(message, said + b"\0", len(said) + 1)
        return 1
    return 0


def _made(source: Mapping[str, Any]) -> Kernel:
    """The kernel that another process has described."""
    return compile(source["program"], exact=source["exact"], schedule=source["schedule"])


def _flat(shapes: Sequence[Shape]) -> Iterator[int]:
    for shape in shapes:
        yield len(shape)
        yield from shape


def _several(numbers: Iterator[int]) -> Shape:
    """A number, then so many more."""
    count = next(numbers)
    return tuple(next(numbers) for _ in range(count))


def _array(numbers: Sequence[int]) -> Any:
    return (ctypes.c_int64 * len(numbers))(*numbers)
