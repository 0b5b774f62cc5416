"""From expressions to isl: the affine part of the algebra as sets and relations.

A statement's instances are ``S[i, j, k]``, its dimensions in execution order; those of its
initialisation are ``S_init[i, j]``.  Parameters of every set are the program's sizes, in order.
"""

from __future__ import annotations

from collections.abc import Sequence

import islpy as isl

from poly.ir.dtypes import INT64
from poly.ir.expr import Cast, Const, Expr, Index, Op, Read, Size
from poly.ir.program import INIT, Program, Statement

_COMPARE = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "=", "ne": "!="}


def isl_expr(expr: Expr) -> str | None:
    """isl's text for a quasi-affine expression; None if it is not quasi-affine."""
    if isinstance(expr, (Index, Size)):
        return expr.name
    if isinstance(expr, Const):
        # Index arithmetic is in int64; numbers of other types wrap around elsewhere.
        if type(expr.value) is not int or (expr.dtype or INT64) != INT64:
            return None
        return str(expr.value) if expr.value >= 0 else f"({expr.value})"
    if isinstance(expr, Cast):
        return isl_expr(expr.arg) if expr.dtype == INT64 else None
    if not isinstance(expr, Op):
        return None
    args = [isl_expr(a) for a in expr.args]
    if any(a is None for a in args):
        return None
    if expr.fn == "neg":
        return f"(-{args[0]})"
    if expr.fn in ("add", "sub"):
        return f"({args[0]} {'+' if expr.fn == 'add' else '-'} {args[1]})"
    if expr.fn == "mul":
        left, right = (_integer(a) for a in expr.args)
        if left is None and right is None:
            return None
        # isl takes a literal factor only without parentheses and in front.
        factor, other = (left, args[1]) if left is not None else (right, args[0])
        return f"({factor} * {other})"
    if expr.fn in ("floordiv", "mod"):
        divisor = _integer(expr.args[1])
        if divisor is None or divisor <= 0:
            return None
        if expr.fn == "floordiv":
            return f"floor({args[0]}/{divisor})"
        return f"({args[0]} mod {divisor})"
    if expr.fn in ("min", "max"):
        return f"{expr.fn}({args[0]}, {args[1]})"
    return None


def _integer(expr: Expr) -> int | None:
    if isinstance(expr, Const) and type(expr.value) is int:
        return expr.value
    if isinstance(expr, Op) and expr.fn == "neg":
        inner = _integer(expr.args[0])
        return None if inner is None else -inner
    return None


def isl_condition(expr: Expr) -> str | None:
    """isl's text for a condition over quasi-affine expressions; None if it is not one."""
    if isinstance(expr, Const) and isinstance(expr.value, bool):
        return "true" if expr.value else "false"
    if not isinstance(expr, Op):
        return None
    if expr.fn in _COMPARE:
        left, right = isl_expr(expr.args[0]), isl_expr(expr.args[1])
        return None if left is None or right is None else f"({left} {_COMPARE[expr.fn]} {right})"
    if expr.fn in ("and", "or"):
        left, right = isl_condition(expr.args[0]), isl_condition(expr.args[1])
        return None if left is None or right is None else f"({left} {expr.fn} {right})"
    if expr.fn == "not":
        inner = isl_condition(expr.args[0])
        return None if inner is None else f"(not {inner})"
    return None


def parameters(program: Program) -> str:
    """The parameter tuple, ``[N, M] ->``."""
    return f"[{', '.join(program.sizes)}] ->"


def context_set(program: Program) -> isl.Set:
    """``[N, M] -> { : N >= 0 and M >= 0 and constraints }``."""
    conditions = [f"{s} >= 0" for s in program.sizes]
    for c in program.constraints:
        text = isl_condition(c)
        if text is not None:
            conditions.append(text)
    return isl.Set(f"{parameters(program)} {{ : {' and '.join(conditions) or 'true'} }}")


def init_name(statement: Statement) -> str:
    """Name of the instances that initialise a ``+=!`` statement."""
    return f"{statement.name}{INIT}"


def domain_set(program: Program, statement: Statement) -> isl.Set:
    """``{ S[i, j, k] : ranges and guards }``."""
    return _domain(program, statement, statement.name, statement.indices, statement.guards)


def init_domain_set(program: Program, statement: Statement) -> isl.Set:
    """``{ S_init[i, j] : ranges and guards of the free indices }``."""
    return _domain(program, statement, init_name(statement), statement.free, statement.free_guards)


def _domain(
    program: Program,
    statement: Statement,
    name: str,
    indices: Sequence[str],
    guards: Sequence[Expr],
) -> isl.Set:
    conditions = []
    for r in statement.ranges:
        if r.index in indices:
            conditions.append(f"{isl_expr(r.lo)} <= {r.index} < {isl_expr(r.hi)}")
    for g in guards:
        text = isl_condition(g)
        if text is None:
            from poly.errors import ProgramError

            raise ProgramError(f"statement {statement.name}: the guard {g} is not affine")
        conditions.append(text)
    where = " and ".join(conditions) or "true"
    result = isl.Set(f"{parameters(program)} {{ {name}[{', '.join(indices)}] : {where} }}")
    return result.intersect_params(context_set(program)).coalesce()


def access_map(
    program: Program, domain: isl.Set, indices: Sequence[str], access: Read
) -> isl.Map | None:
    """``{ S[i, j, k] -> C[i, j] }`` on `domain`; None if an index is not quasi-affine."""
    texts = [isl_expr(i) for i in access.indices]
    if any(p is None for p in texts):
        return None
    name = domain.get_tuple_name()
    outs = ", ".join(map(str, texts))
    text = f"{parameters(program)} {{ {name}[{', '.join(indices)}] -> {access.tensor}[{outs}] }}"
    return isl.Map(text).intersect_domain(domain).coalesce()


def is_affine(access: Read) -> bool:
    """Whether an access has a relation, see `access_map`."""
    return all(isl_expr(i) is not None for i in access.indices)


def maps_of(union: isl.UnionMap) -> list[isl.Map]:
    """The relations between instances of one statement and one other, or one tensor."""
    maps = union.get_map_list()
    return [maps.get_at(n) for n in range(maps.n_map())]


def least_point(points: isl.Set) -> list[int]:
    """The lexicographically least point of a set that is not empty.

    Measured with islpy 2026.2: isl's own `lexmin` finds no point in ``{ [N, N] : exists e: N mod 2
    = 1 and 2e <= N - 3 and 4e > N and N >= 0 }``, which has N = 7; and `dim_min_val` counts an
    empty part of a union as 0.  So the parts are queried one by one, a coordinate at a time.
    """
    found: list[int] = []
    listed = points.get_basic_set_list()
    parts = [isl.Set.from_basic_set(listed.get_at(n)) for n in range(listed.n_basic_set())]
    for k in range(points.dim(isl.dim_type.set)):
        parts = [p for p in parts if not p.is_empty()]
        least = min(int(p.dim_min_val(k).to_python()) for p in parts)
        parts = [p.fix_val(isl.dim_type.set, k, isl.Val(least)) for p in parts]
        found.append(least)
    return found
