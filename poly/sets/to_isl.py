"""From expressions to isl: the affine part of the algebra as sets and relations.

A statement's instances are ``S[i, j, k]``, its dimensions in execution order; those of its
initialisation are ``S_init[i, j]``.  Parameters of every set are the program's sizes, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias, TypeVar

import islpy as isl

from poly.errors import ProgramError
from poly.ir.dtypes import INT64
from poly.ir.expr import Cast, Const, Expr, Index, Op, Read, Size
from poly.ir.program import INIT, Program, Statement

#: isl's signs for comparisons.
COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "=", "ne": "!="}
_SIGNS = {"add": "+", "sub": "-"}

T = TypeVar("T")
C = TypeVar("C")


class Algebra(Protocol[T, C]):
    """What quasi-affine functions and conditions on them are made of."""

    def variable(self, name: str) -> T: ...
    def constant(self, value: int) -> T: ...
    def scale(self, factor: int, a: T) -> T: ...
    def floor(self, a: T, divisor: int) -> T: ...
    def mod(self, a: T, divisor: int) -> T: ...
    def apply(self, fn: str, a: T, b: T) -> T:
        """``add``, ``sub``, ``min`` or ``max``"""

    def compare(self, fn: str, a: T, b: T) -> C: ...
    def truth(self, value: bool) -> C: ...
    def join(self, fn: str, a: C, b: C) -> C:
        """``and`` or ``or``"""

    def negate(self, a: C) -> C: ...


def function_of(expr: Expr, algebra: Algebra[T, C]) -> T | None:
    """A quasi-affine expression in an algebra; None if it is not quasi-affine."""
    if isinstance(expr, (Index, Size)):
        return algebra.variable(expr.name)
    if isinstance(expr, Const):
        # Index arithmetic is in int64; numbers of other types wrap around elsewhere.
        if type(expr.value) is not int or (expr.dtype or INT64) != INT64:
            return None
        return algebra.constant(expr.value)
    if isinstance(expr, Cast):
        return function_of(expr.arg, algebra) if expr.dtype == INT64 else None
    if not isinstance(expr, Op):
        return None
    args = []
    for a in expr.args:
        if (made := function_of(a, algebra)) is None:
            return None
        args.append(made)
    if expr.fn == "neg":
        return algebra.scale(-1, args[0])
    if expr.fn in ("add", "sub", "min", "max"):
        return algebra.apply(expr.fn, args[0], args[1])
    if expr.fn == "mul":
        left, right = (_integer(a) for a in expr.args)
        if left is not None:
            return algebra.scale(left, args[1])
        return None if right is None else algebra.scale(right, args[0])
    if expr.fn in ("floordiv", "mod"):
        divisor = _integer(expr.args[1])
        if divisor is None or divisor <= 0:
            return None
        rounded = algebra.floor if expr.fn == "floordiv" else algebra.mod
        return rounded(args[0], divisor)
    return None


def condition_of(expr: Expr, algebra: Algebra[T, C]) -> C | None:
    """A condition over quasi-affine expressions in an algebra; None if it is not one."""
    if isinstance(expr, Const) and isinstance(expr.value, bool):
        return algebra.truth(expr.value)
    if not isinstance(expr, Op):
        return None
    if expr.fn in COMPARISONS:
        left, right = function_of(expr.args[0], algebra), function_of(expr.args[1], algebra)
        return None if left is None or right is None else algebra.compare(expr.fn, left, right)
    if expr.fn in ("and", "or"):
        first, second = condition_of(expr.args[0], algebra), condition_of(expr.args[1], algebra)
        return None if first is None or second is None else algebra.join(expr.fn, first, second)
    if expr.fn == "not":
        inner = condition_of(expr.args[0], algebra)
        return None if inner is None else algebra.negate(inner)
    return None


def _integer(expr: Expr) -> int | None:
    if isinstance(expr, Const) and type(expr.value) is int:
        return expr.value
    if isinstance(expr, Op) and expr.fn == "neg":
        inner = _integer(expr.args[0])
        return None if inner is None else -inner
    return None


class _Text:
    """isl's text."""

    def variable(self, name: str) -> str:
        return name

    def constant(self, value: int) -> str:
        return str(value) if value >= 0 else f"({value})"

    def scale(self, factor: int, a: str) -> str:
        # isl takes a literal factor only without parentheses and in front.
        return f"(-{a})" if factor == -1 else f"({factor} * {a})"

    def floor(self, a: str, divisor: int) -> str:
        return f"floor({a}/{divisor})"

    def mod(self, a: str, divisor: int) -> str:
        return f"({a} mod {divisor})"

    def apply(self, fn: str, a: str, b: str) -> str:
        return f"{fn}({a}, {b})" if fn in ("min", "max") else f"({a} {_SIGNS[fn]} {b})"

    def compare(self, fn: str, a: str, b: str) -> str:
        return f"({a} {COMPARISONS[fn]} {b})"

    def truth(self, value: bool) -> str:
        return "true" if value else "false"

    def join(self, fn: str, a: str, b: str) -> str:
        return f"({a} {fn} {b})"

    def negate(self, a: str) -> str:
        return f"(not {a})"


#: A function of instances, with one piece or several.
Function: TypeAlias = "isl.Aff | isl.PwAff"


def _in_pieces(a: Function) -> isl.PwAff:
    return isl.PwAff.from_aff(a) if isinstance(a, isl.Aff) else a


class Functions:
    """isl's functions of the instances ``name[indices]``; sizes are parameters.

    They are made without a text, whose reading takes ten times as long.
    """

    def __init__(self, sizes: Sequence[str], name: str, indices: Sequence[str]) -> None:
        space = isl.Space.create_from_names(
            isl.DEFAULT_CONTEXT, set=list(indices), params=list(sizes)
        )
        self.space = space.set_tuple_name(isl.dim_type.set, name) if name else space
        self._local = isl.LocalSpace.from_space(self.space)
        kinds = ((isl.dim_type.param, sizes), (isl.dim_type.set, indices))
        self._places = {n: (kind, k) for kind, names in kinds for k, n in enumerate(names)}

    def variable(self, name: str) -> Function:
        return isl.Aff.var_on_domain(self._local, *self._places[name])

    def constant(self, value: int) -> Function:
        return isl.Aff.zero_on_domain(self._local).set_constant_val(isl.Val(value))

    def scale(self, factor: int, a: Function) -> Function:
        return a.scale_val(isl.Val(factor))

    def floor(self, a: Function, divisor: int) -> Function:
        return a.scale_down_val(isl.Val(divisor)).floor()

    def mod(self, a: Function, divisor: int) -> Function:
        return a.mod_val(isl.Val(divisor))

    def apply(self, fn: str, a: Function, b: Function) -> Function:
        if fn in ("min", "max") or type(a) is not type(b):
            a, b = _in_pieces(a), _in_pieces(b)
        made: Function = getattr(a, fn)(b)
        return made

    def compare(self, fn: str, a: Function, b: Function) -> isl.Set:
        if type(a) is not type(b):
            a, b = _in_pieces(a), _in_pieces(b)
        made: isl.Set = getattr(a, f"{fn}_set")(b)
        return made

    def truth(self, value: bool) -> isl.Set:
        return isl.Set.universe(self.space) if value else isl.Set.empty(self.space)

    def join(self, fn: str, a: isl.Set, b: isl.Set) -> isl.Set:
        return a.intersect(b) if fn == "and" else a.union(b)

    def negate(self, a: isl.Set) -> isl.Set:
        return a.complement()

    def relation(self, places: Sequence[Function], tensor: str) -> isl.Map:
        """``{ name[indices] -> tensor[places] }``"""
        count = self.space.dim(isl.dim_type.set)
        target = self.space.drop_dims(isl.dim_type.set, 0, count)
        target = target.add_dims(isl.dim_type.set, len(places))
        target = target.set_tuple_name(isl.dim_type.set, tensor)
        space = isl.Space.map_from_domain_and_range(self.space, target)
        simple = all(isinstance(p, isl.Aff) for p in places)
        listed = (isl.AffList if simple else isl.PwAffList).alloc(isl.DEFAULT_CONTEXT, len(places))
        for p in places:
            listed = listed.add(p if simple else _in_pieces(p))
        if simple:
            return isl.Map.from_multi_aff(isl.MultiAff.from_aff_list(space, listed))
        return isl.Map.from_multi_pw_aff(isl.MultiPwAff.from_pw_aff_list(space, listed))


_TEXT = _Text()


def isl_expr(expr: Expr) -> str | None:
    """isl's text for a quasi-affine expression; None if it is not quasi-affine."""
    return function_of(expr, _TEXT)


def isl_condition(expr: Expr) -> str | None:
    """isl's text for a condition over quasi-affine expressions; None if it is not one."""
    return condition_of(expr, _TEXT)


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
    functions = Functions(program.sizes, name, indices)
    conditions: list[Expr] = []
    for r in statement.ranges:
        if r.index in indices:
            conditions += [Op("le", (r.lo, Index(r.index))), Op("lt", (Index(r.index), r.hi))]
    result = isl.Set.universe(functions.space)
    for condition in (*conditions, *guards):
        holds = condition_of(condition, functions)
        if holds is None:
            raise ProgramError(f"statement {statement.name}: the guard {condition} is not affine")
        result = result.intersect(holds)
    return result.intersect_params(context_set(program)).coalesce()


def access_map(
    program: Program, domain: isl.Set, indices: Sequence[str], access: Read
) -> isl.Map | None:
    """``{ S[i, j, k] -> C[i, j] }`` on `domain`; None if an index is not quasi-affine."""
    functions = Functions(program.sizes, domain.get_tuple_name(), indices)
    places = []
    for i in access.indices:
        if (place := function_of(i, functions)) is None:
            return None
        places.append(place)
    return functions.relation(places, access.tensor).intersect_domain(domain).coalesce()


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
