"""Fast calls: compiled code checks a call's arrays, allocates its outputs, and runs it.

Checks in Python take longer than a small kernel.  So what a call with certain shapes needs is
encoded as a *plan* (`plan_bytes`), and ``fast_call.c``, compiled once into the cache, compares the
arrays of a call with the plans of a kernel.  It runs calls that match; for all others it returns
``NotImplemented``, and the slow path decides: it copies what may be copied, or says what is wrong.

It reads the fields of Python objects and numpy arrays directly, so it is used only if their layout
is verified on samples, and a trial kernel gives the right result.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
import threading
from array import array
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from poly.errors import CacheError, ToolchainError
from poly.ir.dtypes import DTYPES, FLOAT32
from poly.ir.program import Tensor
from runtime.common.arguments import Array
from runtime.common.cache import Cache, Entry
from runtime.cpu.openmp_pool import with_team
from runtime.cpu.shared_library import build_library, open_library
from runtime.cpu.toolchain import Toolchain

#: Called with (inputs, out, threads, sizes): a tuple of arrays; None, an array or a tuple of them;
#: None or a number; None or a tuple of sizes.  Returns the output, a tuple of several, or
#: `NotImplemented` if it has done nothing.
Quick = Callable[[Any, Any, Any, Any], Any]

#: Larger workspaces are kept between calls, which only the slow path does.
MAX_WORKSPACE = 1 << 16
#: Most tensors of a fast call.
_MAX_TENSORS = 4096
#: What numpy calls capsules with a handler; a capsule only points to its name.
_MEM_HANDLER = b"mem_handler"
_HEAD = 16  # bytes before an object's value
_ABI = (0x01000009, 0x02000000)  # numpy's ABI: two versions that agree in what is used here
#: All names are resolved when the library is loaded, so that a missing one is an error then.
_FLAGS = ("-Wl,-z,now",)
_ABOUT = {"quick": True}
#: Indices of PyArray_Empty and PyDataMem_SetHandler in numpy's function table.
_EMPTY, _SET_HANDLER = 184, 304

_lock = threading.Lock()
_makers: dict[tuple[str, ...], Callable[[list[bytes]], Quick]] = {}


def never(inputs: Any, out: Any, threads: Any, sizes: Any) -> Any:
    """The `Quick` that leaves every call to the slow path."""
    return NotImplemented


def quick_calls(plans: list[bytes], toolchain: Toolchain, cache: Cache) -> Quick:
    """A function that runs the calls that match one of `plans`, to which more may be added.

    It is `never` if Python or numpy has an unknown layout, or nothing can be compiled.
    """
    with _lock:
        maker = _known(toolchain, cache)
        if maker is None:
            maker = _load(toolchain, cache)
            _makers[_key(toolchain, cache) if maker is _nothing else ()] = maker
    return maker(plans)


def has_quick_calls(toolchain: Toolchain, cache: Cache) -> bool:
    """Whether `quick_calls` has nothing to compile or load."""
    return _known(toolchain, cache) is not None


def _known(toolchain: Toolchain, cache: Cache) -> Callable[[list[bytes]], Quick] | None:
    return _makers.get(()) or _makers.get(_key(toolchain, cache))


def _key(toolchain: Toolchain, cache: Cache) -> tuple[str, ...]:
    # One per compiler and cache: what failed with one compiler may work with another.
    return toolchain.identity, str(cache.directory)


def plan_bytes(
    function: Any,
    threads: int,
    little: bool,
    inputs: Sequence[tuple[Tensor, tuple[int, ...], bool]],
    outputs: Sequence[tuple[Tensor, tuple[int, ...], int]],
    given: Sequence[int] = (),
    sizes: Sequence[int] = (),
    more: Sequence[int] = (),
    workspace: int = 0,
) -> bytes | None:
    """What a call needs, as ``fast_call.c`` reads it; None if it cannot be encoded.

    Parameters
    ----------
    function : the ctypes function to run; it must stay loaded, as libraries do
    threads : default number of threads
    little : whether it is so short that other Python threads may wait for it
    inputs : each with its shape, and whether it is passed
    outputs : each with its shape, and the position of the input that it updates, or -1
    given : the values of the sizes that a call must give
    sizes : the values of all sizes
    more : addresses to pass after those of the outputs; offsets into the workspace if there is one
    workspace : its bytes, a multiple of 64
    """
    if len(inputs) + len(outputs) + len(more) > _MAX_TENSORS or workspace > MAX_WORKSPACE:
        return None
    address = ctypes.cast(function, ctypes.c_void_p).value or 0
    words = [address, threads, int(little), len(inputs), len(outputs)]
    words += [len(given), len(sizes), len(more), workspace]
    for tensor, shape, passed in inputs:
        words += _tensor_words(tensor, shape, int(passed))
    for tensor, shape, updated in outputs:
        words += _tensor_words(tensor, shape, updated)
    return array("q", [*words, *given, *sizes, *more]).tobytes()


def _tensor_words(tensor: Tensor, shape: tuple[int, ...], other: int) -> list[int]:
    dtype = _dtypes[tensor.dtype.name]
    scalar = 0 if shape or tensor.dtype.name not in _scalars else id(dtype.type)
    return [id(dtype), prod(shape) * dtype.itemsize, len(shape), scalar, other, *shape]


# --- the compiled part -----------------------------------------------------------------------


class _Fields(ctypes.Structure):
    """The fields of a numpy array, as ``fast_call.c`` declares them."""

    _fields_ = (
        ("references", ctypes.c_ssize_t),
        ("type", ctypes.c_void_p),
        ("data", ctypes.c_void_p),
        ("rank", ctypes.c_int),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("base", ctypes.c_void_p),
        ("dtype", ctypes.c_void_p),
        ("flags", ctypes.c_int),
    )


#: Plans point to these, so they are never freed.
_dtypes = {name: dtype.numpy for name, dtype in DTYPES.items()}
#: The element types whose scalars (``numpy.float32(1)``) have their value at the known offset.
_scalars: set[str] = set()


def _nothing(plans: list[bytes]) -> Quick:
    return never


def _load(toolchain: Toolchain, cache: Cache) -> Callable[[list[bytes]], Quick]:
    """The function that makes quick calls; `_nothing` if they are not possible."""
    if not _objects_are_known():
        return _nothing
    try:
        library, _ = open_library(_sources(), _FLAGS, toolchain, cache, _ABOUT)
        table = _functions_of_numpy()
        setup, probe = library["fk_quick"], library["fk_quick_probe"]
        memory = _kept_memory(library)
    except (OSError, ToolchainError, CacheError, AttributeError, ImportError):
        return _nothing
    setup.argtypes, setup.restype = (ctypes.c_void_p,) * 4, ctypes.c_void_p
    method = setup(id(np.ndarray), table[_EMPTY], table[_SET_HANDLER], id(memory))
    kind = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    make = kind(("PyCFunction_NewEx", ctypes.pythonapi))

    def maker(plans: list[bytes]) -> Quick:
        made: Quick = make(method, plans, None)
        return made

    if not _trial(maker, probe):
        return _nothing
    _scalars.update(name for name in DTYPES if _scalar_is_known(name))
    return maker


#: Handlers of memory as numpy takes them, which arrays point to, and their libraries.
_handlers: list[tuple[Any, ctypes.CDLL]] = []


def _kept_memory(library: ctypes.CDLL) -> Any:
    """The handler of ``kept_memory.c`` as numpy takes it."""
    found = library["fk_kept_memory"]
    found.argtypes, found.restype = (), ctypes.c_void_p
    kind = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    made = kind(("PyCapsule_New", ctypes.pythonapi))(found(), _MEM_HANDLER, None)
    _handlers.append((made, library))
    return made


def quick_entry(toolchain: Toolchain, cache: Cache) -> Entry:
    """The cache entry of the compiled part.

    Raises
    ------
    ToolchainError : the compiler failed, or there is none.
    CacheError : the library cannot be stored.
    """
    return build_library(_sources(), _FLAGS, with_team(toolchain, cache), cache, _ABOUT)


def _sources() -> dict[str, str]:
    folder = Path(__file__).parent
    # One unit: several are compiled on threads, which an ending process cannot start.
    parts = [(folder / name).read_text() for name in ("kept_memory.c", "fast_call.c")]
    return {"fast_call.c": "\n".join(parts)}


def _objects_are_known() -> bool:
    """Whether Python's objects and numpy's arrays are laid out as ``fast_call.c`` reads them.

    Free-threaded and debug builds of Python have other object layouts.
    """
    if sys.implementation.name != "cpython" or sys.platform != "linux" or sys.maxsize != 2**63 - 1:
        return False
    if sys.abiflags or hasattr(sys, "getobjects"):
        return False
    if np.ndarray.__basicsize__ < ctypes.sizeof(_Fields):
        return False
    block = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    fixed = np.arange(3, dtype=np.int64)
    fixed.flags.writeable = False
    odd = np.zeros(9, np.uint8)[1:].view(np.float64)
    some: tuple[Array, ...] = (block, block[:, ::-2], block.T, fixed, odd, np.array(1.5))
    return all(map(_array_is_known, some))


def _array_is_known(a: Array) -> bool:
    fields = _Fields.from_address(id(a))
    rank = fields.rank
    if fields.type != id(np.ndarray) or fields.dtype != id(a.dtype) or rank != a.ndim:
        return False
    if fields.data != a.ctypes.data or fields.flags != a.flags.num:
        return False
    if rank == 0:
        return True
    if not fields.shape or not fields.strides:
        return False
    extents = (ctypes.c_ssize_t * rank).from_address(fields.shape)
    steps = (ctypes.c_ssize_t * rank).from_address(fields.strides)
    return (tuple(extents), tuple(steps)) == (a.shape, a.strides)


def _scalar_is_known(name: str) -> bool:
    """Whether the value of a scalar directly follows the object's header."""
    dtype = DTYPES[name].numpy
    scalar = np.array(1, dtype)[()]
    known: int = type(scalar).__basicsize__
    if not isinstance(scalar, np.generic) or known < _HEAD + dtype.itemsize:
        return False
    if type(scalar) is not dtype.type or np.asarray(scalar).dtype is not dtype:
        return False
    return ctypes.string_at(id(scalar) + _HEAD, dtype.itemsize) == scalar.tobytes()


def _functions_of_numpy() -> Any:
    """numpy's function table, by index.  Raises ImportError if its version is unknown."""
    try:
        module = importlib.import_module("numpy._core._multiarray_umath")
    except ImportError:
        module = importlib.import_module("numpy.core._multiarray_umath")
    kind = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    pointer = kind(("PyCapsule_GetPointer", ctypes.pythonapi))
    table = ctypes.cast(pointer(module._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
    if ctypes.PYFUNCTYPE(ctypes.c_uint)(table[0])() not in _ABI:
        raise ImportError("another version of the binary interface")
    return table


def _trial(maker: Callable[[list[bytes]], Quick], probe: Any) -> bool:
    """Whether quick calls work: a sum of an array's element, a scalar, a size and the threads."""
    x, y, z = (Tensor(name, FLOAT32, ()) for name in "xyz")
    inputs = ((x, (), True), (y, (), True))
    plan = plan_bytes(probe, 5, True, inputs, ((z, (), -1),), (7,), (7,), (0,), 64)
    assert plan is not None
    quick = maker([plan])
    one, two = np.ones((), np.float32), np.full((), 2, np.float32)
    own = np.zeros((), np.float32)
    results = (quick((one, two), None, None, (7,)), quick((two, one), own, 6, (7,)))
    refused = (
        quick((one, two), None, None, (8,)),
        quick((one, two), one, None, (7,)),
        quick((one, np.ones(())), None, None, (7,)),
        quick((one, one.view(np.ma.MaskedArray)), None, None, (7,)),
    )
    return (
        [type(r) for r in results] == [np.ndarray] * 2
        and [(r.dtype, r.shape, float(r)) for r in results]
        == [(FLOAT32.numpy, (), 15.0), (FLOAT32.numpy, (), 16.0)]
        and results[1] is own
        and all(r is NotImplemented for r in refused)
    )
