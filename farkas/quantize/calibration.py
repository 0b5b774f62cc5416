"""Samples of a network's inputs, from ``.npz`` files or arrays, checked against the network."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from farkas.console.files import FileError, load_array
from poly.errors import ArgumentError
from poly.ir.port import Port

Array = np.ndarray[Any, np.dtype[Any]]
Sample = Mapping[str, Array]
#: A file, a folder of files, arrays by input name, or several of these.
Data = str | os.PathLike[str] | Mapping[str, Any] | Sequence[Any]

#: What reading a file of arrays raises, also if it is compressed in an unknown way or encrypted.
_BROKEN = (
    OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error, RuntimeError,
    NotImplementedError,
)  # fmt: skip


def read_samples(data: Data, inputs: Sequence[Port]) -> tuple[Sample, ...]:
    """The samples in `data`, in order.

    An array of an input's own rank is one sample; with one axis more, in front, it holds several.

    Raises
    ------
    FileError : a file that cannot be read, or is not a ``.npz`` file.
    ArgumentError : arrays that do not fit the inputs, values that are not finite, or no samples.
    """
    found = [s for where, arrays in _sources(data) for s in _samples(where, arrays, inputs)]
    if not found:
        raise ArgumentError("there are no samples: the arrays of the data are empty")
    return tuple(found)


def read_labels(path: str) -> Array:
    """The labels in a ``.npy`` file.  Raises `FileError`."""
    return load_array(path)


def same_shapes(samples: Sequence[Sample]) -> bool:
    """Whether all samples have the shapes of the first."""
    first = {n: a.shape for n, a in samples[0].items()}
    return all({n: a.shape for n, a in s.items()} == first for s in samples)


def spread(samples: Sequence[Sample], count: int) -> tuple[Sample, ...]:
    """At most `count` of the samples, evenly spread."""
    if len(samples) <= count:
        return tuple(samples)
    return tuple(samples[i * len(samples) // count] for i in range(count))


def _sources(data: Data) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Arrays by name, with where they come from."""
    if isinstance(data, Mapping):
        yield "the data", data
    elif isinstance(data, (str, os.PathLike)):
        path = Path(data)
        if path.is_dir():
            files = sorted(path.glob("*.npz"))
            if not files:
                raise FileError(f"{path} has no .npz files")
            for file in files:
                yield str(file), _load(file)
        else:
            yield str(path), _load(path)
    elif isinstance(data, Sequence):
        if not data:
            raise ArgumentError("there are no samples: the data is empty")
        for part in data:
            yield from _sources(part)
    else:
        raise ArgumentError(
            "the data is a .npz file, a folder of these, or arrays by input name, "
            f"not a {type(data).__name__}"
        )


def _load(path: Path) -> dict[str, Array]:
    try:
        with open(path, "rb") as file:
            if not zipfile.is_zipfile(file):
                raise FileError(f"{path} is not a .npz file; numpy.savez writes one")
            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                return {name: arrays[name] for name in arrays.files}
    except MemoryError:
        raise FileError(f"there is not enough memory for {path}") from None
    except _BROKEN as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        line = next(iter(reason.splitlines()), type(error).__name__)
        raise FileError(f"cannot read {path}: {line}") from None


def _samples(where: str, arrays: Mapping[str, Any], inputs: Sequence[Port]) -> list[Sample]:
    """The samples of one file."""
    ports = {p.name: p for p in inputs}
    _check_names(where, arrays, ports)
    parts = {name: _parts(where, _array(where, name, arrays), p) for name, p in ports.items()}
    counts = {name: len(found) for name, found in parts.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{count} of '{name}'" for name, count in counts.items())
        raise ArgumentError(f"{where} has different numbers of samples: {listed}")
    count = next(iter(counts.values()), 0)
    samples = [{name: found[k] for name, found in parts.items()} for k in range(count)]
    for k, sample in enumerate(samples):
        _check_sizes(f"{where}, sample {k}", sample, ports)
    return list(samples)


def _check_names(where: str, arrays: Mapping[str, Any], ports: Mapping[str, Port]) -> None:
    unknown = [f"'{n}'" for n in arrays if n not in ports]
    missing = [f"'{n}'" for n in ports if n not in arrays]
    if not unknown and not missing:
        return
    problems = []
    if unknown:
        problems.append(f"arrays that are not inputs: {', '.join(unknown)}")
    if missing:
        problems.append(f"no arrays for: {', '.join(missing)}")
    listed = "\n".join(f"  {p}" for p in ports.values())
    raise ArgumentError(f"{where} has {'; '.join(problems)}; the inputs are\n{listed}")


def _array(where: str, name: str, arrays: Mapping[str, Any]) -> Array:
    """What is given for an input."""
    try:
        return np.asarray(arrays[name])
    except (ValueError, TypeError, RuntimeError) as error:
        line = next(iter(str(error).splitlines()), type(error).__name__)[:200]
        raise ArgumentError(
            f"{where}: '{name}' is no array: {line}; samples of several shapes are a list of "
            f"dicts, [{{'{name}': a}}, {{'{name}': b}}]"
        ) from error


def _parts(where: str, array: Array, port: Port) -> list[Array]:
    """The samples in an array."""
    shown = f"{where}: '{port.name}'"
    if array.dtype != port.dtype.numpy:
        raise ArgumentError(
            f"{shown} has elements of {array.dtype}, the input of {port.dtype.name}; "
            f"convert it with .astype('{port.dtype.name}')"
        )
    if array.dtype.kind in "fc" and not np.isfinite(array).all():
        position = tuple(int(p[0]) for p in np.nonzero(~np.isfinite(array)))
        raise ArgumentError(
            f"{shown} has the value {array[position]} at {list(position)}; "
            "ranges can be found from finite values only"
        )
    extra = min(1, array.ndim) if port.shape is None else array.ndim - len(port.shape)
    fixed = port.shape or ()
    shape = array.shape[1:] if extra == 1 else array.shape
    if extra not in (0, 1) or not _fits(shape, fixed, port.shape is None):
        hint = ""
        if extra == 0 and fixed and fixed[0] == 1 and _fits(array.shape[1:], fixed[1:], False):
            hint = f"; add an axis for each sample's first one: {port.name}[:, None]"
        raise ArgumentError(
            f"{shown} has shape {list(array.shape)}; a sample is {port}, several have one more "
            f"axis in front{hint}"
        )
    if not shape or all(shape):
        return [np.asarray(a) for a in array] if extra == 1 else [array]
    raise ArgumentError(f"{shown} has samples without elements, of shape {list(shape)}")


def _fits(shape: tuple[int, ...], declared: tuple[Any, ...], unknown: bool) -> bool:
    if unknown:
        return True
    return len(shape) == len(declared) and all(
        not isinstance(e, int) or e == n for e, n in zip(declared, shape, strict=True)
    )


def _check_sizes(where: str, sample: Sample, ports: Mapping[str, Port]) -> None:
    """Check that dimensions of the same name have the same size."""
    sizes: dict[str, tuple[int, str]] = {}
    for name, array in sample.items():
        for extent, size in zip(ports[name].shape or (), array.shape, strict=False):
            if not isinstance(extent, str) or not extent:
                continue
            known, other = sizes.setdefault(extent, (size, name))
            if known != size:
                raise ArgumentError(
                    f"{where}: dimension '{extent}' is {known} in '{other}', {size} in '{name}'"
                )
