"""`einsum`: numpy's einsum, compiled; and the same over other semirings."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from farkas.kernels.einsum_kernels import ADD, MOST_COMPLEX, MUL, Semiring, kernel_of, numbered
from farkas.kernels.kernel import Kernel
from frontends.language.subscripts import Label, Labels, Subscripts, from_lists, read_subscripts
from poly.errors import ArgumentError
from runtime.common.arguments import Array
from runtime.common.exchange import NUMBERS, library_of
from runtime.common.exchange_call import exchange_call

_MOST_PLANS = 1024
#: numpy's own, for views.
_VIEW = np.einsum


def einsum(
    *arguments: Any,
    out: Any = None,
    dtype: Any = None,
    order: str = "K",
    casting: str = "safe",
    optimize: Any = True,
    add: str = "+",
    mul: str = "*",
    threads: int | None = None,
    like: Any = None,
) -> Any:
    """`numpy.einsum`, compiled: for each index of the result, the sum of products over the others.

    >>> C = fk.einsum("ij,jk->ik", A, B)
    >>> D = fk.einsum("ij,jk->ik", A, B, add="min", mul="+")    # shortest paths

    A kernel is compiled for each combination of subscripts and element types, when it is first
    needed, and serves all sizes.

    Parameters
    ----------
    arguments : the subscripts and the operands, ``("ij,jk->ik", A, B)``; or each operand and its
        subscripts as numbers, and those of the result, ``(A, [0, 1], B, [1, 2], [0, 2])``.
        Ellipses, repeated letters, results that are left out and extents of 1 mean what they mean
        to numpy.  Operands are arrays of numpy, torch, JAX and others, see `Kernel`
    out : an array to write to
    dtype : the element type to compute in; default is numpy's for the operands and `out`
    order : ``"F"`` gives a result in Fortran's order, and so does ``"A"`` if all operands have it;
        ``"C"`` and ``"K"`` give one in C's order
    casting : which conversions `dtype` and `out` may need, as for `numpy.can_cast`
    optimize : contract three operands or more pairwise, in the order of `numpy.einsum_path`: True,
        False, ``"greedy"``, ``"optimal"``, or a path
    add, mul : what replaces the sum and the product: ``"+"``, ``"*"``, ``"max"``, ``"min"``
    threads, like : as for a call of a `Kernel`

    Returns
    -------
    An array; of numpy's, a number without dimensions, and a view for a transpose or a diagonal.

    Raises
    ------
    LanguageError : the subscripts do not fit the operands.
    ArgumentError : extents that differ; element types that are not numbers, or cannot be converted;
        an operation that there is not.
    """
    plain = out is dtype is like is None and optimize is True and order in ("K", "C")
    if plain and (steps := _plans.get(_plan_key(arguments, add, mul))) is not None:
        return _run(steps, arguments[1:], threads)[()] if steps else _VIEW(*arguments)
    text, operands = _split(arguments)
    _check_words(add, mul, order)
    call = partial(
        _compute, text, dtype=dtype, order=order.upper(), casting=casting, optimize=optimize,
        semiring=Semiring(add, mul), threads=threads,
        is_numpys=like is None and library_of(operands) is None,
    )  # fmt: skip
    # numpy gives numbers its own element types here, whatever they stand beside.
    given = (np.asarray(x) if type(x) in NUMBERS else x for x in operands)
    values = {f"operand {n}": value for n, value in enumerate(given)}
    return exchange_call(lambda ready, out: call([*ready.values()], out), values, out, like, {})


def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    """`numpy.tensordot`, compiled: sums of products along some dimensions of two arrays.

    axes : how many, the last ones of `a` and the first ones of `b`; or which, for each of the two

    Raises
    ------
    ArgumentError : dimensions that there are not, or whose extents differ.
    """
    ranks = np.ndim(a), np.ndim(b)
    chosen = _paired(axes, ranks)
    left, right = [*range(ranks[0])], [*range(ranks[0], sum(ranks))]
    for x, y in zip(*chosen, strict=True):
        if np.shape(a)[x] != np.shape(b)[y]:
            raise ArgumentError(
                f"a has {np.shape(a)[x]} elements along {x}, b has {np.shape(b)[y]} along {y}"
            )
        right[y] = left[x]
    summed = {left[x] for x in chosen[0]}
    return einsum(a, left, b, right, [n for n in (*left, *right) if n not in summed])


def _paired(axes: Any, ranks: tuple[int, int]) -> tuple[list[int], list[int]]:
    """Dimensions of two arrays, in pairs, counted from the left."""
    try:
        if not isinstance(axes, (tuple, list)):
            count = operator.index(axes)
            if not 0 <= count <= min(ranks):
                raise ValueError
            return [*range(ranks[0] - count, ranks[0])], [*range(count)]
        first, second = axes
        made = []
        for own, rank in ((first, ranks[0]), (second, ranks[1])):
            listed = own if isinstance(own, (tuple, list)) else [own]
            found = [operator.index(x) for x in listed]
            if not all(-rank <= x < rank for x in found):
                raise ValueError
            made.append([x % rank for x in found])
        if len(made[0]) != len(made[1]) or any(len({*x}) != len(x) for x in made):
            raise ValueError
        return made[0], made[1]
    except (TypeError, ValueError):
        raise ArgumentError(
            f"axes={axes!r} do not pair dimensions of {ranks[0]} and {ranks[1]}"
        ) from None


def transpose(a: Any, axes: Any = None) -> Any:
    """`numpy.transpose`, which opt_einsum asks of its backends."""
    return np.transpose(a, axes)


def _check_words(add: Any, mul: Any, order: Any) -> None:
    """Check the names of operations and of an order.  Raises `ArgumentError`."""
    for name, known in ((add, ADD), (mul, MUL)):
        if not isinstance(name, str) or name not in known:
            raise ArgumentError(f"there is no operation {name!r}; there are {', '.join(known)}")
    if not isinstance(order, str) or order.upper() not in ("C", "F", "A", "K"):
        raise ArgumentError(f"there is no order {order!r}; there are C, F, A, K")


def _split(arguments: Sequence[Any]) -> tuple[str, list[Any]]:
    """The subscripts as text, and the operands."""
    if not arguments:
        raise ArgumentError("einsum needs subscripts and operands")
    if isinstance(arguments[0], str):
        return arguments[0], list(arguments[1:])
    if len(arguments) < 2:
        raise ArgumentError("einsum needs the subscripts of its operand")
    return from_lists(arguments)


def _compute(
    text: str,
    operands: list[Any],
    out: Any,
    *,
    dtype: Any,
    order: str,
    casting: str,
    optimize: Any,
    semiring: Semiring,
    threads: int | None,
    is_numpys: bool,
) -> Any:
    """einsum of numpy arrays.

    is_numpys : whether the caller has given such arrays, and gets them
    """
    arrays = [_array(f"operand {n}", value) for n, value in enumerate(operands)]
    subscripts = read_subscripts(text, [a.ndim for a in arrays])
    beside = [out.dtype] if isinstance(out, np.ndarray) else []
    common = _common_dtype(arrays, beside, dtype, casting)
    terms, arrays = _broadcast(subscripts.operands, arrays)
    subscripts = Subscripts(terms, subscripts.result)
    is_same = is_numpys and out is None and common == arrays[0].dtype
    if semiring.is_usual and is_same and _is_view(subscripts):
        if text.isascii() and optimize is True:
            _remember((text, *operands), arrays, semiring, ())
        plain = numbered(subscripts)
        return _VIEW(arrays[0], [*plain.operands[0]], [*plain.result])
    is_fortran = order == "F" or (order == "A" and all(a.flags.f_contiguous for a in arrays))
    arrays = [np.asarray(a, common) for a in arrays]
    steps = _steps(subscripts, arrays, semiring.of(common), optimize)
    result = _run(steps, arrays, threads, _fitting(out, common))
    if is_same and optimize is True:
        _remember((text, *operands), arrays, semiring, steps)
    if out is not None:
        return _written(out, result, casting)
    if is_fortran and result.ndim > 1:
        return np.asfortranarray(result)
    return result if result.ndim or not is_numpys else result[()]


def _array(name: str, value: Any) -> Array:
    found = np.asanyarray(value)
    if isinstance(found, np.ma.MaskedArray):
        raise ArgumentError(f"{name} is a masked array; its mask would be ignored, so fill it")
    plain: Array = found.view(np.ndarray)
    return plain


def _common_dtype(
    arrays: Sequence[Array], beside: Sequence[np.dtype[Any]], dtype: Any, casting: str
) -> np.dtype[Any]:
    """The type to compute in.

    beside : that of `out`: as for numpy, sums into a wider array are computed in its type
    """
    try:
        common = np.result_type(*arrays, *beside) if dtype is None else np.dtype(dtype)
        casts = [np.can_cast(a.dtype, common, casting) for a in arrays]  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"the operands have no common element type: {error}") from None
    if (common.kind not in "biufc" and common.name != "bfloat16") or common.itemsize > 16:
        raise ArgumentError(f"einsum of {common} is not supported: its elements are no numbers")
    if common in (np.dtype(np.longdouble), np.dtype(np.clongdouble)):
        raise ArgumentError(f"einsum of {common} is not supported: convert to float64")
    for number, array in enumerate(arrays):
        if not casts[number]:
            raise ArgumentError(
                f"operand {number} of {array.dtype} does not become {common} by casting={casting!r}"
            )
    return common


def _is_view(subscripts: Subscripts) -> bool:
    """Whether the result is a part of the only operand."""
    return len(subscripts.operands) == 1 and {*subscripts.operands[0]} == {*subscripts.result}


def _fitting(out: Any, dtype: np.dtype[Any]) -> Any:
    """An array that results can be written to as they are; else None."""
    if isinstance(out, np.ndarray) and out.dtype == dtype and out.flags.carray:
        return out
    return None


def _written(out: Any, result: Array, casting: str) -> Any:
    if result is out:
        return out
    if not isinstance(out, np.ndarray):
        raise ArgumentError(f"out is a {type(out).__name__}, expected an array")
    if out.shape != result.shape:
        raise ArgumentError(f"out has shape {out.shape}, expected {result.shape}")
    if _overlaps_itself(out):
        raise ArgumentError("out has elements that share memory with each other")
    try:
        np.copyto(out, result, casting=casting)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"out: {error}") from None
    return out


def _overlaps_itself(array: Array) -> bool:
    """Whether elements may share memory: some dimension is not outside of the smaller ones."""
    end = array.itemsize
    for stride, extent in sorted(zip(map(abs, array.strides), array.shape, strict=True)):
        if extent > 1:
            if stride < end:
                return True
            end = stride * extent
    return False


# --- contractions ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Step:
    """A kernel of some operands, whose result comes behind those that are left.

    positions : of the operands among those that are left, from the first to the last
    order : in which the kernel takes them
    """

    kernel: Kernel
    positions: tuple[int, ...]
    order: tuple[int, ...]


def _steps(
    subscripts: Subscripts, arrays: Sequence[Array], semiring: Semiring, optimize: Any
) -> tuple[_Step, ...]:
    """One kernel, or one for each pair of operands."""
    labels, steps = list(subscripts.operands), []
    is_one = len(arrays) < 3 or optimize is False or not semiring.is_usual
    path = [tuple(range(len(arrays)))] if is_one else _path(subscripts, arrays, optimize)
    if semiring.elements == "complex":
        path = _shortened(path, len(arrays))
    for number, positions in enumerate(path):
        chosen = [labels.pop(p) for p in sorted(positions, reverse=True)][::-1]
        kept = {x for one in labels for x in one} | {*subscripts.result}
        made = {x for one in chosen for x in one} & kept
        last = number == len(path) - 1
        widest = sorted(chosen, key=len, reverse=True)
        own = tuple(dict.fromkeys(x for one in widest for x in one if x in made))
        result = subscripts.result if last else own
        kernel, order = kernel_of(Subscripts(tuple(chosen), result), semiring)
        steps.append(_Step(kernel, tuple(sorted(positions)), order))
        labels.append(result)
    return tuple(steps)


def _run(
    steps: Sequence[_Step], arrays: Sequence[Array], threads: int | None, out: Any = None
) -> Array:
    """The result of the last step."""
    if arrays[0].dtype.kind == "c":
        target = None if out is None else _pairs(out)
        found = _run(steps, [*map(_pairs, arrays)], threads, target)
        return out if found is target else found.view(arrays[0].dtype)[..., 0]
    left = list(arrays)
    for step in steps:
        chosen = [left.pop(p) for p in reversed(step.positions)][::-1]
        target = None if left else out  # the last step takes all that are left
        if target is not None and any(np.may_share_memory(target, a) for a in chosen):
            target = None  # which is copied afterwards
        given = [chosen[n] for n in step.order]
        left.append(step.kernel(*given, out=target, threads=threads))
    return left[0]


def _pairs(array: Array) -> Array:
    """Complex numbers as two real ones, along a dimension of its own, on the same memory."""
    return array[..., np.newaxis].view(array.real.dtype)


#: The steps of earlier calls whose operands needed no preparation, by what they follow from; none
#: for views.
_plans: dict[Any, tuple[_Step, ...]] = {}


def _plan_key(arguments: Sequence[Any], add: Any, mul: Any) -> Any:
    """What the steps of a call follow from; None if one of its operands is not numpy's own."""
    key: list[Any] = [arguments[0] if arguments else None, add, mul]
    for array in arguments[1:]:
        if type(array) is not np.ndarray:
            return None
        key += [array.dtype, array.shape]
    return tuple(key) if all(type(word) is str for word in key[:3]) else None


def _remember(
    arguments: Sequence[Any], arrays: Sequence[Array], semiring: Semiring, steps: tuple[_Step, ...]
) -> None:
    """Let later calls with such arguments take the same steps, if nothing is to be prepared.

    arrays : what the steps have been given
    """
    key = _plan_key(arguments, semiring.add, semiring.mul)
    if key is None:
        return
    if any(
        a.shape != b.shape or a.dtype != b.dtype for a, b in zip(arguments[1:], arrays, strict=True)
    ):
        return
    if len(_plans) >= _MOST_PLANS:
        _plans.clear()
    _plans[key] = steps


def _path(subscripts: Subscripts, arrays: Sequence[Array], optimize: Any) -> list[tuple[int, ...]]:
    """Which operands are contracted one after the other, as `numpy.einsum_path` has it."""
    plain = numbered(subscripts)
    given: list[Any] = []
    for labels, array in zip(plain.operands, arrays, strict=True):
        given += [array, [*labels]]
    given.append([*plain.result])
    if isinstance(optimize, (list, tuple)) and optimize and optimize[0] != "einsum_path":
        optimize = ["einsum_path", *optimize] if isinstance(optimize[0], tuple) else optimize
    try:
        found = np.einsum_path(*given, optimize=optimize)[0]
    except (TypeError, ValueError, KeyError, IndexError, RuntimeError) as error:
        raise ArgumentError(f"optimize={optimize!r}: {error}") from None
    return [tuple(step) for step in found[1:]]


def _shortened(path: Sequence[tuple[int, ...]], count: int) -> list[tuple[int, ...]]:
    """The same of `count` operands, in steps that take no more than kernels can.

    >>> _shortened([(0, 1, 2, 3, 4, 5)], 6)
    [(0, 1, 2, 3), (0, 1, 2)]
    """
    made, left = [], count
    for step in path:
        positions = sorted(step)
        while len(positions) > MOST_COMPLEX:
            made.append(tuple(positions[:MOST_COMPLEX]))
            left -= MOST_COMPLEX - 1
            positions = [*(p - MOST_COMPLEX for p in positions[MOST_COMPLEX:]), left - 1]
        made.append(tuple(positions))
        left -= len(positions) - 1
    return made


def _broadcast(
    operands: Sequence[Labels], arrays: Sequence[Array]
) -> tuple[tuple[Labels, ...], list[Array]]:
    """Operands without the dimensions of extent 1 that others have more elements along.

    Raises
    ------
    ArgumentError : two extents of a label differ, and none is 1.
    """
    extents: dict[Label, int] = {}
    for number, (labels, array) in enumerate(zip(operands, arrays, strict=True)):
        own: dict[Label, int] = {}
        for label, extent in zip(labels, array.shape, strict=True):
            if own.setdefault(label, extent) != extent:
                raise ArgumentError(
                    f"operand {number} has {own[label]} and {extent} elements along {label!r}"
                )
            known = extents.setdefault(label, extent)
            if known == 1:
                extents[label] = extent
            elif extent not in (1, known):
                what = repr(label) if isinstance(label, str) else "the ellipsis"
                raise ArgumentError(
                    f"operand {number} has {extent} elements along {what}, but {known} come before"
                )
    kept_labels, kept = [], []
    for labels, array in zip(operands, arrays, strict=True):
        spread = [n == 1 != extents[x] for x, n in zip(labels, array.shape, strict=True)]
        if any(spread):
            array = array[tuple(0 if s else slice(None) for s in spread)]
        kept_labels.append(tuple(x for x, s in zip(labels, spread, strict=True) if not s))
        kept.append(array)
    return tuple(kept_labels), kept
