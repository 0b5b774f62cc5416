"""Check what a caller passes to a kernel: dtype, rank, sizes, layout, aliasing.

Nothing is converted silently.  The only thing done for the caller is to copy an input that is not
C-contiguous or not aligned, and ``copy=False`` refuses that too.  Every refusal is an
`ArgumentError` that names the argument, what it is and what was expected.
"""

from __future__ import annotations

import ctypes
import operator
import os
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from poly.errors import ArgumentError
from poly.ir.dtypes import DType
from poly.ir.expr import Const, Expr, Op, Size, evaluate_int, sizes_of
from poly.ir.intervals import LARGEST_SIZE, MOST_BYTES
from poly.ir.program import Program, Tensor
from poly.ir.size_values import by_name, check_size, shown, whole_number

Array = np.ndarray[Any, np.dtype[Any]]
Shape = tuple[int, ...]
#: A memory, the offset of the first byte that an array uses in it, and of the end.
Span = tuple[Hashable, int, int]

_address_of, _as_buffer = ctypes.addressof, ctypes.c_char.from_buffer  # looked up once

MAX_THREADS = 4096
#: Keyword arguments of calls that are not sizes.
WORDS_OF_CALLS = frozenset({"out", "threads", "copy", "stream", "like"})
#: Alignment in bytes of constants, temporaries and arenas.
ALIGNMENT = 64
#: numpy's flags of arrays that are read as they are (C-contiguous, aligned), and written.
READABLE = 0x1 | 0x100
WRITEABLE = READABLE | 0x400


@dataclass(frozen=True)
class Binding:
    """The value of every size, and with them the shape of every tensor of a program."""

    sizes: Mapping[str, int]
    shapes: Mapping[str, Shape]


def check_program(program: Program) -> None:
    """Raise `ArgumentError` for what is no program, as a text, from which `parse` makes one."""
    if not isinstance(program, Program):
        raise ArgumentError(
            f"the program is a {type(program).__name__}, expected a Program, as parse(text) makes"
        )


def bind(program: Program, shapes: Mapping[str, Shape], given: Mapping[str, Any]) -> Binding:
    """Find the value of every size from the inputs' shapes and from sizes given by name.

    Parameters
    ----------
    shapes : the shape of each of the program's inputs
    given : values for sizes; needed for those that no shape determines

    Raises
    ------
    ArgumentError : a size is missing, two shapes disagree, an extent is not what the program
        says, a precondition does not hold, or a tensor would be negative or absurdly large.
    """
    env, origin = _given_sizes(program, given)
    for tensor in program.inputs:
        _bind_plain(tensor, shapes[tensor.name], env, origin)
    _bind_solved(program, shapes, env, origin)
    missing = [s for s in program.sizes if s not in env]
    if missing:
        # Sizes named like call keywords cannot be given by name.
        words = [name for name in missing if name in WORDS_OF_CALLS]
        how = f"compile with sizes={{{words[0]!r}: …}}" if words else "pass "
        how += "" if words else ", ".join(f"{name}=…" for name in missing)
        raise ArgumentError(f"no input's shape determines {', '.join(missing)}: {how}")
    for name in program.sizes:
        check_size(name, env[name])  # including those that shapes determine
    for tensor in program.inputs:
        _check_shape(tensor, shapes[tensor.name], env)
    for constraint in program.constraints:
        if not evaluate_int(constraint, env):
            raise ArgumentError(f"precondition {constraint} does not hold: {_at(constraint, env)}")
    found = {t.name: shape_of(t, env) for t in program.tensors.values()}
    return Binding({name: env[name] for name in program.sizes}, found)


def undetermined(program: Program) -> tuple[str, ...]:
    """The sizes that no input's shape determines, which a call must give by name."""
    known: set[str] = set()
    extents = [e for t in program.inputs for e in t.shape]
    progress = True
    while progress:
        progress = False
        for extent in extents:
            unknown = [s for s in sizes_of(extent) if s not in known]
            if len(unknown) == 1 and _is_affine(extent):
                known.add(unknown[0])
                progress = True
    return tuple(s for s in program.sizes if s not in known)


def _is_affine(expr: Expr) -> bool:
    ones = dict.fromkeys(sizes_of(expr), 1)
    unknown = [name for name in ones if (_linear(expr, name, ones) or (0, 0))[0] != 0]
    return len(unknown) == len(ones)


def shape_of(tensor: Tensor, sizes: Mapping[str, int]) -> Shape:
    """The concrete shape of a tensor.

    Raises
    ------
    ArgumentError : a negative extent, 2**62 bytes or more, or, if the shape has sizes, more
        elements than a size can hold.
    """
    shape = tuple(evaluate_int(extent, sizes) for extent in tensor.shape)
    for axis, (extent, value) in enumerate(zip(tensor.shape, shape, strict=True)):
        if value < 0:
            raise ArgumentError(
                f"{tensor.name}.shape[{axis}] would be {extent} = {value}: {_at(extent, sizes)}"
            )
    # Like numpy, refuse absurd extents even beside a zero.
    elements = prod(max(value, 1) for value in shape)
    # Collapsed dimensions have as many elements as an extent.
    is_open = any(sizes_of(extent) for extent in tensor.shape)
    if elements * tensor.dtype.bytes >= MOST_BYTES or (is_open and elements > LARGEST_SIZE):
        raise ArgumentError(f"{tensor.name} would have shape {shape}: too large to be addressed")
    return shape


def address(array: Array) -> int:
    """The address of an array's first element.

    It uses a buffer object, which takes a fraction of the time of ``array.ctypes``; the latter is
    the fallback for arrays without one: empty, read-only, or of types unknown to Python.
    """
    try:
        return _address_of(_as_buffer(array))  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError):
        return int(array.ctypes.data)


def aligned(shape: Shape, dtype: np.dtype[Any], alignment: int) -> Array:
    """An uninitialised contiguous array that begins at a multiple of `alignment` bytes."""
    size = prod(shape) * dtype.itemsize
    block = np.empty(size + alignment, np.uint8)
    start = -address(block) % alignment
    return block[start : start + size].view(dtype).reshape(shape)


def check_names(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Check that arrays are given under known names.

    Raises
    ------
    ArgumentError : for another name.
    """
    names = list(known)
    for name in given:
        if name not in names:
            raise ArgumentError(f"there is no {what} {name!r}; there are {', '.join(names)}")


def aligned_copy(array: Array, alignment: int) -> Array:
    """The array itself if it is contiguous and aligned to `alignment` bytes, else a copy."""
    if array.flags.c_contiguous and address(array) % alignment == 0:
        return array
    copy = aligned(array.shape, array.dtype, alignment)
    copy[...] = array
    return copy


def allocate(tensor: Tensor, shape: Shape) -> Array:
    """An uninitialised array.  Raises `ArgumentError` if there is not enough memory."""
    try:
        return np.empty(shape, tensor.dtype.numpy)
    except (MemoryError, ValueError, OverflowError):
        total = tensor.dtype.bytes
        for value in shape:
            total *= value
        raise ArgumentError(
            f"there is not enough memory for {tensor.name} of shape {shape} ({total} bytes)"
        ) from None


# --- sizes ---------------------------------------------------------------------------------


def _given_sizes(program: Program, given: Mapping[str, Any]) -> tuple[dict[str, int], _Origin]:
    env: dict[str, int] = {}
    origin: _Origin = {}
    for name, value in by_name("sizes", given).items():
        if name not in program.sizes:
            raise ArgumentError(unknown_argument(program, name))
        env[name] = check_size(name, value)
        origin[name] = f"{name} = {value} was given"
    return env, origin


_Origin = dict[str, str]


def unknown_argument(program: Program, name: str) -> str:
    """The message for a keyword that names neither an input nor a size."""
    names = [*(t.name for t in program.inputs), *program.sizes]
    return f"{program.name} has no input or size {name!r}; it has {', '.join(names) or 'none'}"


def _bind_plain(tensor: Tensor, shape: Shape, env: dict[str, int], origin: _Origin) -> None:
    """Bind the sizes that are an extent by themselves."""
    for axis, (extent, got) in enumerate(zip(tensor.shape, shape, strict=True)):
        if not isinstance(extent, Size):
            continue
        extent_name = f"{tensor.name}.shape[{axis}]"
        if env.setdefault(extent.name, got) != got:
            raise ArgumentError(f"{extent_name} is {got} but {origin[extent.name]}")
        origin.setdefault(extent.name, f"{extent_name} makes {extent.name} = {got}")


def _bind_solved(
    program: Program, shapes: Mapping[str, Shape], env: dict[str, int], origin: _Origin
) -> None:
    """Solve extents such as ``2*N + 1`` in which one size is still unknown."""
    progress = True
    while progress and any(s not in env for s in program.sizes):
        progress = False
        for tensor in program.inputs:
            for axis, extent in enumerate(tensor.shape):
                unknown = [s for s in sizes_of(extent) if s not in env]
                if len(unknown) != 1:
                    continue
                line = _linear(extent, unknown[0], env)
                if line is None or line[0] == 0:
                    continue
                got = shapes[tensor.name][axis]
                value, rest = divmod(got - line[1], line[0])
                extent_name = f"{tensor.name}.shape[{axis}]"
                if rest or value < 0:
                    raise ArgumentError(
                        f"{extent_name} is {got}, which is {extent} for no {unknown[0]}"
                        + _at_known(extent, env)
                    )
                env[unknown[0]] = value
                origin[unknown[0]] = f"{extent_name} = {extent} makes {unknown[0]} = {value}"
                progress = True


def _linear(expr: Expr, name: str, env: Mapping[str, int]) -> tuple[int, int] | None:
    """``(a, b)`` with expr = a * name + b, or None if it is not of that form."""
    if isinstance(expr, Const) and isinstance(expr.value, int):
        return 0, int(expr.value)
    if isinstance(expr, Size):
        return (1, 0) if expr.name == name else (0, env[expr.name])
    if not isinstance(expr, Op):
        return None
    if name not in sizes_of(expr):
        return 0, evaluate_int(expr, env)
    parts = [_linear(a, name, env) for a in expr.args]
    if any(p is None for p in parts):
        return None
    lines = [p for p in parts if p is not None]
    if expr.fn == "neg":
        return -lines[0][0], -lines[0][1]
    if expr.fn in ("add", "sub"):
        (a, b), (c, d) = lines
        return (a + c, b + d) if expr.fn == "add" else (a - c, b - d)
    if expr.fn == "mul":
        (a, b), (c, d) = lines
        if a and c:
            return None
        return (a * d, b * d) if c == 0 else (c * b, d * b)
    return None


def _check_shape(tensor: Tensor, shape: Shape, env: Mapping[str, int]) -> None:
    for axis, (extent, got) in enumerate(zip(tensor.shape, shape, strict=True)):
        expected = evaluate_int(extent, env)
        if got != expected:
            known = _at(extent, env)
            must = f"{extent} = {expected} ({known})" if known else f"{expected}"
            raise ArgumentError(f"{tensor.name}.shape[{axis}] is {got} but must be {must}")


def _at(expr: Expr, env: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={env[name]}" for name in sizes_of(expr))


def _at_known(expr: Expr, env: Mapping[str, int]) -> str:
    known = ", ".join(f"{name}={env[name]}" for name in sizes_of(expr) if name in env)
    return f" ({known})" if known else ""


# --- arrays --------------------------------------------------------------------------------


def fits(value: Any, dtype: np.dtype[Any], shape: Shape, flags: int) -> bool:
    """Whether a value can be passed as it is; takes a fraction of a microsecond.

    If not, `check_input` and `check_output` say why, or make it fit.
    """
    return is_plain(value, dtype, flags) and value.shape == shape


def is_plain(value: Any, dtype: np.dtype[Any], flags: int = READABLE) -> bool:
    """`fits`, for any shape."""
    return type(value) is np.ndarray and value.dtype is dtype and value.flags.num & flags == flags


def check_input(tensor: Tensor, value: Any, copy: bool = True) -> Array:
    """One input as a C-contiguous, aligned array of the tensor's dtype and rank.

    An array that is not contiguous or not aligned is copied; with ``copy=False`` it is refused.

    Raises
    ------
    ArgumentError : not an array, a masked array, another dtype, byte order or rank; no memory to
        copy.
    """
    array = _check_array(tensor, value)
    if array.flags.c_contiguous and array.flags.aligned:
        return array
    if not copy:
        what = "aligned" if array.flags.c_contiguous else "C-contiguous"
        raise ArgumentError(f"{tensor.name} is not {what} and would be copied; copy=False forbids")
    try:
        return np.array(array, order="C", copy=True)
    except MemoryError:
        raise ArgumentError(
            f"there is not enough memory to copy {tensor.name} of shape {array.shape}, "
            "which is not C-contiguous"
        ) from None


def check_output(tensor: Tensor, value: Any, shape: Shape) -> Array:
    """An array given by ``out=``: it must match exactly, since it is never copied.

    Raises
    ------
    ArgumentError : another dtype or shape; read-only, not C-contiguous or not aligned.
    """
    what = f"out {tensor.name}"
    if isinstance(value, np.generic):
        raise ArgumentError(f"{what} is a number, which cannot be written to: pass an array")
    array = _check_array(tensor, value)
    if array.shape != shape:
        raise ArgumentError(f"{what} has shape {array.shape}, expected {shape}")
    if not array.flags.writeable:
        raise ArgumentError(f"{what} is read-only")
    if not array.flags.c_contiguous:
        raise ArgumentError(f"{what} is not C-contiguous, and results are not copied")
    if not array.flags.aligned:
        raise ArgumentError(f"{what} is not aligned to its elements, and results are not copied")
    return array


def clash(arrays: Sequence[Array], addresses: Sequence[int], first: int) -> tuple[int, int] | None:
    """The positions of two contiguous arrays that share memory, the later one at least `first`.

    addresses : the address of each array
    """
    spans = [(p, p + a.nbytes) for p, a in zip(addresses, arrays, strict=True)]
    for later in range(first, len(spans)):
        begin, end = spans[later]
        for position, (start, stop) in enumerate(spans[:later]):
            if begin < stop and start < end and begin < end and start < stop:
                return position, later
    return None


def check_overlaps(
    program: Program, inputs: Mapping[str, Array], outputs: Mapping[str, Array]
) -> None:
    """Refuse outputs that share memory with an input or with each other.

    An updated tensor may be its own output: exactly the same memory, updated in place.

    Raises
    ------
    ArgumentError : naming the two arguments.
    """
    check_spans(
        program.updated,
        {name: span_of(array) for name, array in inputs.items()},
        {name: span_of(array) for name, array in outputs.items()},
    )


def check_spans(
    updated: Collection[str], inputs: Mapping[str, Span], outputs: Mapping[str, Span]
) -> None:
    """`check_overlaps` for arrays that are known by the memory they use.

    updated : names of the tensors that are both input and output
    """
    targets = [(f"out {name}", name, *span) for name, span in outputs.items()]
    sources = [(name, name, *span) for name, span in inputs.items()]
    for number, (label, name, memory, start, stop) in enumerate(targets):
        for other, other_name, other_memory, begin, end in [*sources, *targets[:number]]:
            if memory != other_memory or not (start < end and begin < stop):
                continue
            in_place = other == name == other_name and name in updated
            if not (in_place and (start, stop) == (begin, end)):
                raise ArgumentError(f"{label} overlaps {other} in memory")


def span_of(array: Array) -> Span:
    """The span of host memory that a contiguous array uses."""
    start = address(array)
    return "host", start, start + array.nbytes


def _check_array(tensor: Tensor, value: Any) -> Array:
    name, expected = tensor.name, tensor.dtype
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if not isinstance(value, np.ndarray):
        raise ArgumentError(
            f"{name} is a {type(value).__name__}, expected a numpy array of {expected}; "
            f"pass numpy.asarray({name}, dtype=…)"
        )
    if isinstance(value, np.ma.MaskedArray):
        raise ArgumentError(f"{name} is a masked array; its mask would be ignored, so fill it")
    check_declared(tensor, value.dtype, value.shape)
    return value.view(np.ndarray) if type(value) is not np.ndarray else value


def check_declared(tensor: Tensor, dtype: np.dtype[Any], shape: Shape) -> None:
    """Check an array against its tensor's declaration.

    Raises
    ------
    ArgumentError : another dtype, byte order or rank.
    """
    if dtype != tensor.dtype.numpy:
        raise ArgumentError(f"{tensor.name} {_dtype_mismatch(dtype, tensor.dtype)}")
    if len(shape) != tensor.rank:
        raise ArgumentError(
            f"{tensor.name} has rank {len(shape)} (shape {shape}), expected rank {tensor.rank}: "
            f"{tensor}"
        )


def _dtype_mismatch(got: np.dtype[Any], expected: DType) -> str:
    if got.newbyteorder("=") == expected.numpy:
        return f"has {expected} elements in foreign byte order; use .astype({expected.name!r})"
    return wrong_dtype(got.name, expected.name)


def wrong_dtype(got: str, expected: str, conversion: str = ".astype") -> str:
    """What is wrong with an array of another element type; `conversion` is its library's."""
    return f"has dtype {got}, expected {expected}; use {conversion} if a conversion is meant"


# --- calls ---------------------------------------------------------------------------------


def match_arguments(
    program: Program, positional: Sequence[Any], named: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Sort the arguments of a call into inputs and sizes, both by name.

    Raises
    ------
    ArgumentError : too many, repeated, unknown or missing arguments.
    """
    names = [t.name for t in program.inputs]
    if len(positional) > len(names):
        raise ArgumentError(
            f"{program.name} takes {len(names)} arrays ({', '.join(names)}), "
            f"but {len(positional)} were given"
        )
    inputs: dict[str, Any] = dict(zip(names, positional, strict=False))
    sizes: dict[str, Any] = {}
    for name, value in named.items():
        if name in inputs:
            raise ArgumentError(f"{name} is given twice")
        if name in names:
            inputs[name] = value
        elif name in program.sizes:
            sizes[name] = value
        else:
            raise ArgumentError(unknown_argument(program, name))
    missing = [name for name in names if name not in inputs]
    if missing:
        raise ArgumentError(f"{program.name} needs {', '.join(missing)}, not given")
    return inputs, sizes


def match_outputs(program: Program, out: Any) -> dict[str, Any]:
    """The arrays of ``out=`` by output name: one array, a sequence of all, or a mapping of some.

    Raises
    ------
    ArgumentError : the wrong number of arrays, or an unknown name.
    """
    names = [t.name for t in program.outputs]
    if out is None:
        return {}
    if isinstance(out, Mapping):
        for name in out:
            if name not in names:
                raise ArgumentError(
                    f"{program.name} has no output {name!r}; it has {', '.join(names)}"
                )
        return dict(out)
    values = list(out) if isinstance(out, (tuple, list)) else [out]
    if len(values) != len(names):
        raise ArgumentError(
            f"out= has {len(values)} arrays, but {program.name} has {len(names)} outputs "
            f"({', '.join(names)})"
        )
    return dict(zip(names, values, strict=True))


def default_threads() -> int:
    """The number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_no_stream(stream: Any) -> None:
    """Refuse a stream on a CPU, where calls are synchronous.  Raises `ArgumentError`."""
    if stream is not None:
        raise ArgumentError("stream= is not supported on a CPU; omit it")


def key_of_sizes(sizes: Mapping[str, Any]) -> tuple[Any, ...]:
    """What tells the sizes of a call from others: objects may be numbers and print as they like."""
    return tuple(sorted((n, *_told(v)) for n, v in sizes.items())) if sizes else ()


def _told(value: Any) -> tuple[Any, type]:
    try:
        return operator.index(value), type(value)
    except TypeError:
        return str(value), type(value)


def check_threads(threads: Any) -> int:
    """A number of threads.  Raises `ArgumentError` unless it is an integer from 1 to 4096."""
    value = whole_number("threads", threads)
    if not 1 <= value <= MAX_THREADS:
        raise ArgumentError(f"threads={shown(value)} is not in the range 1 to {MAX_THREADS}")
    return value
