"""Surface expressions to `poly.ir.expr`: which name is an index, a size, a tensor or a mistake."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from frontends.language.spelling import closest
from frontends.language.syntax import Access, Apply, Call, Chain, Name, Node, Number
from poly.errors import LanguageError, Span
from poly.ir.dtypes import DTYPES, DType, suggest_dtype
from poly.ir.expr import Cast, Const, Expr, Index, Op, Read, Size
from poly.ir.operators import FUNCTIONS, OPS
from poly.ir.program import ISL_WORDS, RESERVED


@dataclass(frozen=True)
class Scope:
    """The names that an expression may use.

    `ranks` has every tensor that is known so far.  When `indices` is False (shapes, constraints)
    a name must be a size; otherwise a name that is not a size is an index.
    """

    text: str
    sizes: tuple[str, ...]
    ranks: Mapping[str, int]
    indices: bool = True
    what: str = "an expression"

    def fail(self, message: str, span: Span, hint: str = "") -> LanguageError:
        return LanguageError(message, self.text, span, hint)


def did_you_mean(name: str, candidates: tuple[str, ...] | list[str]) -> str:
    """``did you mean 'x'?``, or nothing when no candidate is close."""
    found = closest(name, candidates)
    return f"did you mean {found!r}?" if found else ""


def check_new_name(name: Name, what: str, text: str) -> str:
    """The name, if it may name a tensor, an index, a size or a statement.

    Raises
    ------
    LanguageError : for a word of the language, or of isl, which would misread it.
    """
    if name.name in RESERVED or name.name in DTYPES or name.name.lower() in ISL_WORDS:
        raise LanguageError(
            f"{name.name!r} is a word of the language and cannot name {what}", text, name.span
        )
    return name.name


def resolve_dtype(name: Name, text: str) -> DType:
    """The element type of a declaration.

    Raises
    ------
    LanguageError : if there is no such type.
    """
    found = DTYPES.get(name.name)
    if found is None:
        message = f"there is no element type {name.name!r}"
        raise LanguageError(message, text, name.span, suggest_dtype(name.name))
    return found


def resolve(node: Node, scope: Scope) -> Expr:
    """The expression of a surface node.

    Raises
    ------
    LanguageError : for an unknown tensor, function or size, a wrong number of indices or
        arguments, or a literal that does not fit its cast.
    """
    if isinstance(node, Number):
        return Const(node.value)
    if isinstance(node, Name):
        return _resolve_name(node, scope)
    if isinstance(node, Access):
        return _resolve_access(node, scope)
    if isinstance(node, Call):
        return _resolve_call(node, scope)
    if isinstance(node, Apply):
        return Op(node.fn, tuple(resolve(a, scope) for a in node.args))
    assert isinstance(node, Chain)
    pairs = comparisons(node, scope)
    result = pairs[0]
    for pair in pairs[1:]:
        result = Op("and", (result, pair))
    return result


def comparisons(chain: Chain, scope: Scope) -> tuple[Expr, ...]:
    """``a <= b < c`` as the comparisons ``a <= b`` and ``b < c``."""
    args = [resolve(a, scope) for a in chain.args]
    return tuple(Op(fn, (args[n], args[n + 1])) for n, fn in enumerate(chain.fns))


def _resolve_name(node: Name, scope: Scope) -> Expr:
    name = node.name
    if name in scope.sizes:
        return Size(name)
    if name in scope.ranks:
        rank = scope.ranks[name]
        indices = ",".join("ijklmnpq"[:rank]) if rank <= 8 else "…"
        raise scope.fail(
            f"{name} is a tensor and needs its indices", node.span, f"write {name}[{indices}]"
        )
    check_new_name(node, "an index" if scope.indices else "a size", scope.text)
    if scope.indices:
        return Index(name)
    raise scope.fail(
        f"{name} is not declared; {scope.what} may use only sizes"
        + (f" ({', '.join(scope.sizes)})" if scope.sizes else ", and there are none"),
        node.span,
        did_you_mean(name, scope.sizes),
    )


def _resolve_access(node: Access, scope: Scope) -> Read:
    name = node.tensor.name
    if not scope.indices:
        raise scope.fail(f"{scope.what} cannot depend on data", node.span)
    if name not in scope.ranks:
        if name in FUNCTIONS or name in DTYPES:
            raise scope.fail(f"{name} is called with parentheses", node.span, f"write {name}(…)")
        raise scope.fail(
            f"there is no tensor {name!r}",
            node.tensor.span,
            did_you_mean(name, list(scope.ranks))
            or "a tensor is declared in the signature, or by writing to it",
        )
    rank = scope.ranks[name]
    if len(node.indices) != rank:
        raise scope.fail(
            f"{name} has {count(len(node.indices), 'index', 'indices')} here, but rank {rank}",
            node.span,
        )
    return Read(name, tuple(resolve(i, scope) for i in node.indices))


def count(number: int, one: str, many: str) -> str:
    """``1 index``, ``2 indices``"""
    return f"{number or 'no'} {one if number == 1 else many}"


def _resolve_call(node: Call, scope: Scope) -> Expr:
    name = node.fn.name
    args = tuple(resolve(a, scope) for a in node.args)
    if name in DTYPES:
        if len(args) != 1:
            raise scope.fail(f"a cast {name}(x) takes one value", node.span)
        return _cast(node, DTYPES[name], args[0], scope)
    if name not in FUNCTIONS:
        if name in scope.ranks:
            raise scope.fail(
                f"{name} is a tensor", node.span, f"elements are written with brackets: {name}[…]"
            )
        raise scope.fail(
            f"there is no function {name!r}",
            node.fn.span,
            did_you_mean(name, [*FUNCTIONS, *DTYPES]) or f"there are {', '.join(FUNCTIONS)}",
        )
    arity = OPS[name].arity
    if name in ("min", "max") and len(args) > 2:
        result = Op(name, args[:2])
        for a in args[2:]:
            result = Op(name, (result, a))
        return result
    if len(args) != arity:
        raise scope.fail(
            f"{name} takes {count(arity, 'argument', 'arguments')}, not {len(args)}", node.span
        )
    return Op(name, args)


def _cast(node: Call, dtype: DType, arg: Expr, scope: Scope) -> Expr:
    if not isinstance(arg, Const) or arg.dtype is not None:
        return Cast(dtype, arg)
    value = arg.value
    if dtype.kind == "b":
        return Const(bool(value), dtype)
    check_fits(value, dtype, node.span, scope)
    if dtype.is_float:
        # NaN equals nothing but the same object, so all NaN constants share one.
        number = float(value)
        return Const(math.nan if math.isnan(number) else number, dtype)
    return Const(int(value), dtype)


def check_fits(value: int | float, dtype: DType, span: Span, scope: Scope, hint: str = "") -> None:
    """Refuse a number that an element type cannot hold; fractions are truncated, floats rounded.

    Raises
    ------
    LanguageError : a whole number that is too small or too large, or a float that becomes infinite.
    """
    if dtype.is_float:
        with np.errstate(over="ignore"):
            rounded = float(np.asarray(float(value)).astype(dtype.numpy))
        if math.isinf(rounded) and not math.isinf(value):
            raise scope.fail(f"{value} does not fit {dtype}", span, hint or "write inf if meant")
        return
    if not math.isfinite(value):
        raise scope.fail(f"{value} does not fit {dtype}", span, hint)
    whole = int(value)
    least, most = dtype.limits
    if not least <= whole <= most:
        raise scope.fail(f"{whole} does not fit {dtype} ({least} to {most})", span, hint)
