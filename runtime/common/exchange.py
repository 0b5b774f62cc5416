"""Arrays of other libraries: as numpy arrays that share their memory, and results in their kind.

torch and JAX are known by name, since their results come back as what was given.  Everything else
on the host is known by a protocol: ``__dlpack__``, ``__array_interface__`` or ``__array__``, which
pandas, xarray, Arrow and many others have.  Python numbers, and lists of them, have no element type
of their own; they take the one that is expected, if it can hold them.

Nothing here imports another library: an object of one can only be there if it is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from poly.errors import ArgumentError
from poly.ir.dtypes import BFLOAT16
from runtime.common.arguments import Array, wrong_dtype

_Dtype = np.dtype[Any]
#: DLPack's kinds of device whose memory is the host's: its own, and what a GPU can reach, too.
_ON_HOST = (1, 3, 11)
#: Python's numbers, which have no element type.
NUMBERS = (bool, int, float)


@dataclass(frozen=True)
class Library:
    """A library whose arrays are taken, and given back.

    name : of its module
    array : the name of their type in the module
    to_numpy : an array of it as numpy's, with the name of the argument
    from_numpy : an array of it that shares the memory of numpy's
    never_changes : whether its arrays never change
    """

    name: str
    array: str
    to_numpy: Callable[[str, Any], Array]
    from_numpy: Callable[[Array], Any]
    never_changes: bool = False

    def has(self, value: Any) -> bool:
        """Whether a value is one of its arrays, which all of the value's type are."""
        found = getattr(sys.modules.get(self.name), self.array, None)
        return isinstance(found, type) and isinstance(value, found)


# --- the libraries that are known by name ---------------------------------------------------------


def _of_torch(name: str, value: Any) -> Array:
    torch = sys.modules["torch"]
    if value.device.type != "cpu":
        raise ArgumentError(
            f"{name} is a tensor on {value.device}, but this runs on the CPU: pass "
            f"{_own(name)}cpu(), or compile with target="
        )
    if value.requires_grad and torch.is_grad_enabled():
        raise ArgumentError(
            f"{name} requires a gradient, which this does not compute: pass {_own(name)}detach(), "
            "or call it under torch.no_grad()"
        )
    check_no_tangent(name, value)
    return memory_of_torch(name, value)


def _own(name: str) -> str:
    """How a message begins a method of an argument: ``X.``, but ``its .`` for operand 0."""
    return f"{name}." if name.isidentifier() else "its ."


def check_no_tangent(name: str, value: Any) -> None:
    """Refuse a tensor with a derivative in forward mode.  Raises `ArgumentError`."""
    forward = sys.modules["torch"].autograd.forward_ad
    if forward._current_level >= 0 and forward.unpack_dual(value).tangent is not None:
        raise ArgumentError(f"{name} has a tangent, which this does not compute: pass its primal")


def memory_of_torch(name: str, value: Any) -> Array:
    """The memory of a tensor on the host, whether or not it requires a gradient.

    A tensor that is the conjugate or the negative of its memory is copied.

    Raises
    ------
    ArgumentError : it has none, being sparse, quantised, or made of no elements.
    """
    torch = sys.modules["torch"]
    try:
        plain = value.detach()
        if plain.dtype == torch.bfloat16:
            bits: Array = plain.view(torch.int16).numpy()
            return bits.view(BFLOAT16.numpy)
        found: Array = plain.numpy()
        return found
    except (TypeError, RuntimeError) as error:  # sparse, quantised, without memory, …
        if value.is_conj() or value.is_neg():
            return memory_of_torch(name, value.resolve_conj().resolve_neg())
        raise ArgumentError(f"{name} has no memory that can be read: {_line(error)}") from None


def to_torch(array: Array) -> Any:
    """A tensor that shares the memory of an array."""
    torch = sys.modules["torch"]
    if array.dtype == BFLOAT16.numpy:
        bits = torch.from_numpy(array.view(np.int16))
        # A view, as torch remembers it, may not always be written to.
        made = torch.empty(0, dtype=torch.bfloat16)
        return made.set_(bits.untyped_storage(), bits.storage_offset(), bits.shape, bits.stride())
    return torch.from_numpy(array)


def _of_jax(name: str, value: Any) -> Array:
    jax = sys.modules["jax"]
    if isinstance(value, jax.core.Tracer):
        raise ArgumentError(
            f"{name} is traced by JAX and has no elements yet: call this outside of jit, vmap and "
            "grad"
        )
    try:
        devices = value.devices()
        if all(device.platform == "cpu" for device in devices):
            return np.asarray(value)
    except (TypeError, RuntimeError) as error:  # keys of random numbers, deleted arrays
        raise ArgumentError(f"{name} has no memory that can be read: {_line(error)}") from None
    raise ArgumentError(
        f"{name} is on {', '.join(map(str, devices))}, but this runs on the CPU: pass "
        f"jax.device_get({name}), or compile with target="
    )


def _to_jax(array: Array) -> Any:
    jax = sys.modules["jax"]
    if jax.dtypes.canonicalize_dtype(array.dtype) != array.dtype:
        return array  # JAX would halve it
    return jax.numpy.asarray(array)


LIBRARIES = (
    Library("torch", "Tensor", _of_torch, to_torch),
    Library("jax", "Array", _of_jax, _to_jax, never_changes=True),
)


#: The libraries of types that were seen.
_LIBRARY_OF: dict[type, Library | None] = {np.ndarray: None}


def _library_of(value: Any) -> Library | None:
    kind = type(value)
    if kind not in _LIBRARY_OF:
        _LIBRARY_OF[kind] = next((x for x in LIBRARIES if x.has(value)), None)
    return _LIBRARY_OF[kind]


def library_of(values: Iterable[Any]) -> Library | None:
    """The library of the first array that is not numpy's; None if all are, or of others."""
    for value in values:
        library = _library_of(value)
        if library is not None:
            return library
    return None


def library_like(like: Any) -> Library | None:
    """The library that ``like=`` names, by its name or by one of its arrays; None for numpy.

    Raises
    ------
    ArgumentError : neither.
    """
    found = None if isinstance(like, str) else library_of([like])
    if isinstance(like, str):
        if like == "numpy":
            return None
        found = next((library for library in LIBRARIES if library.name == like), None)
        if found is not None and find_spec(like) is None:
            raise ArgumentError(f"like={like!r}, but {like} is not installed")
        if found is not None:
            import_module(like)
    if found is None and not isinstance(like, np.ndarray):
        known = ", ".join(repr(x) for x in ("numpy", *(library.name for library in LIBRARIES)))
        raise ArgumentError(f"like={like!r} is neither of {known} nor an array of one of them")
    return found


# --- to numpy -------------------------------------------------------------------------------------


def is_foreign(value: Any) -> bool:
    """Whether a value is no array of numpy's."""
    return not isinstance(value, (np.ndarray, np.generic))


def host_array(name: str, value: Any, dtype: _Dtype | None = None) -> Any:
    """A value as a numpy array that shares its memory, or itself if no protocol is known for it.

    name : of the argument, for messages
    dtype : the element type that is expected, for Python numbers; None: numpy's choice

    Raises
    ------
    ArgumentError : an array on another device, one that needs a gradient, or that has no memory; a
        number that the type cannot hold; a list that is no array; a tensor of torch that has
        another element type.
    """
    if not is_foreign(value):
        return value
    if isinstance(value, (*NUMBERS, list, tuple)):
        return _of_python(name, value, dtype)
    library = _library_of(value)
    if library is None:
        return _of_protocol(name, value)
    found = library.to_numpy(name, value)
    if library.name == "torch" and dtype is not None and found.dtype != dtype:
        problem = wrong_dtype(found.dtype.name, dtype.name, f".to(torch.{dtype.name})")
        raise ArgumentError(f"{name} {problem}")
    return found


def _of_python(name: str, value: Any, dtype: _Dtype | None) -> Array:
    """An array of Python numbers, or of a list that numpy would take."""
    try:
        natural = np.asarray(value)
    except Exception as error:  # whatever its elements raise
        raise ArgumentError(f"{name} is no array: {_line(error)}") from None
    if dtype is None or natural.dtype == dtype or not _is_weak(value):
        return natural
    if natural.size and not _holds(dtype, natural.dtype.kind):
        raise ArgumentError(f"{name} is {_short(value)}, which {dtype.name} cannot hold")
    try:
        with np.errstate(over="ignore"):
            found = np.asarray(value, dtype)
    except OverflowError:
        found = None
    if found is None or (dtype.kind in "iu" and not np.array_equal(found, natural)):
        raise ArgumentError(f"{name} is {_short(value)}, which {dtype.name} cannot hold")
    if natural.dtype == object:  # Python's integers have no bounds, and are finite
        natural = np.zeros(natural.shape)
    if dtype.kind not in "iub" and not np.array_equal(np.isfinite(found), np.isfinite(natural)):
        raise ArgumentError(f"{name} is {_short(value)}, which {dtype.name} cannot hold")
    return found


def _holds(dtype: _Dtype, kind: str) -> bool:
    """Whether an element type may hold Python numbers of a kind, those that are in its range."""
    if kind == "b" or dtype.kind == "b":
        return kind == dtype.kind
    is_float = dtype.kind in "fc" or dtype == BFLOAT16.numpy
    return is_float or (kind in "iu" and dtype.kind in "iu")


def _is_weak(value: Any) -> bool:
    """Whether there are only numbers of Python, which have no element type, in a list."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_weak, value))
    return type(value) in NUMBERS


def _of_protocol(name: str, value: Any) -> Any:
    if isinstance(value, type):
        return value
    device = getattr(value, "__dlpack_device__", None)
    try:
        if device is not None and device()[0] not in _ON_HOST:
            return value
    except Exception as error:
        raise ArgumentError(f"{name}: {_line(error)}") from None
    missing = getattr(value, "null_count", 0)
    missing = missing() if callable(missing) else missing
    if isinstance(missing, int) and missing:
        raise ArgumentError(f"{name} has {missing} missing values: fill them")
    if device is not None:
        try:
            return np.from_dlpack(value)
        except (BufferError, TypeError, RuntimeError, NotImplementedError):
            pass  # a type that one of the two does not know
    if hasattr(value, "__array_interface__") or hasattr(value, "__array__"):
        try:
            return np.asarray(value)
        except Exception as error:
            what = type(value).__name__
            raise ArgumentError(f"{name} is a {what} that is no array: {_line(error)}") from None
    return value


def shared_array(name: str, value: Any) -> Any:
    """An array that is written to, as numpy's, on the same memory.

    Raises
    ------
    ArgumentError : its memory is not known, or it never changes.
    """
    library = _library_of(value)
    if isinstance(value, np.ndarray):
        return value
    if library is not None and library.never_changes:
        raise ArgumentError(f"{name} is an array of {library.name}, which never changes")
    is_known = library is not None or hasattr(value, "__array_interface__")
    if not is_known and hasattr(value, "__dlpack__"):
        try:
            return np.from_dlpack(value)
        except (BufferError, TypeError, RuntimeError, NotImplementedError) as error:
            raise ArgumentError(f"{name}: {_line(error)}") from None
    if not is_known:
        raise ArgumentError(f"{name} is a {type(value).__name__}, expected an array to write to")
    if library is not None and library.name == "torch" and (value.is_conj() or value.is_neg()):
        raise ArgumentError(
            f"{name} is the conjugate or the negative of its memory, which cannot be written so"
        )
    return host_array(name, value)


def has_changed(value: Any) -> None:
    """Tell a library that one of its arrays was written to: torch checks that for gradients."""
    library = _library_of(value)
    if library is not None and library.name == "torch":
        sys.modules["torch"].autograd.graph.increment_version(value)


def weak_dtypes(values: Mapping[str, Any], known: Mapping[str, _Dtype]) -> dict[str, _Dtype]:
    """The element types that Python numbers take beside arrays, as numpy promotes them.

    They get the arrays' common type, or numpy's for numbers of their kind: 2.5 is a float64 beside
    int64, and a float32 beside float32.

    known : the element types of arrays that are not numpy's
    """
    strong = [v.dtype for v in values.values() if isinstance(v, (np.ndarray, np.generic))]
    strong += known.values()
    found = {}
    for name, value in values.items():
        if type(value) in NUMBERS and strong:
            try:
                found[name] = np.result_type(value, *strong)
            except TypeError as error:
                raise ArgumentError(f"{name}: {_line(error)}") from None
            if {*strong} == {BFLOAT16.numpy} and type(value) is not bool:
                found[name] = BFLOAT16.numpy  # which numpy does not promote numbers to
    return found


def _line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


# --- results --------------------------------------------------------------------------------------


def given_back(results: Any, library: Library | None, out: Sequence[tuple[Any, Any]] = ()) -> Any:
    """Results as a library has them, and what was passed as ``out=`` as itself.

    results : an array, a tuple of them, or several by name
    library : None for numpy
    out : what was passed, each with its numpy array
    """
    if isinstance(results, tuple):
        return tuple(given_back(r, library, out) for r in results)
    if isinstance(results, dict):
        return {name: given_back(r, library, out) for name, r in results.items()}
    for passed, array in out:
        if array is results:
            return passed
    if library is None or not isinstance(results, np.ndarray) or results.dtype.hasobject:
        return results  # no other library has strings
    return library.from_numpy(results)
