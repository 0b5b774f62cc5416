"""Dependences whose instances a loop runs in one iteration, as far as their equations show it.

For most loops around a dependence nothing has to be solved: its equations ``j' = j`` carry over to
what is made of these dimensions, such as ``floor(j'/64) = floor(j/64)``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache, reduce

import islpy as isl

from poly.sets.same import Same
from poly.sets.to_isl import maps_of

_KINDS = (
    isl.dim_type.in_,
    isl.dim_type.out,
    isl.dim_type.param,
    isl.dim_type.div,
    isl.dim_type.cst,
)


def split_by_iteration(
    dependences: isl.UnionMap, loop: isl.UnionPwAff
) -> tuple[isl.UnionMap, isl.UnionMap]:
    """The dependences that are seen to be inside each iteration of a loop, and all others.

    loop : the function of its iterations.  If all are inside, the result has the argument itself.
    """
    functions = _functions(Same(loop))
    none = isl.UnionMap.empty(dependences.get_space())
    inside: list[_Piece] = []
    others: list[_Piece] = []
    for piece in _pieces(Same(dependences)):
        (inside if _is_inside(piece, functions) else others).append(piece)
    if not others:
        return dependences, none
    if not inside:
        return none, dependences
    return _union(inside, none), _union(others, none)


@dataclass(frozen=True, eq=False)
class _Piece:
    """The dependences between two statements.

    source, sink : for each dimension of their instances what it is equal to: dimensions that have
    the same value in both instances are marked alike
    """

    pairs: isl.Map
    source: tuple[object, ...]
    sink: tuple[object, ...]


def _union(pieces: list[_Piece], none: isl.UnionMap) -> isl.UnionMap:
    return reduce(isl.UnionMap.union, (isl.UnionMap.from_map(p.pairs) for p in pieces), none)


@lru_cache(maxsize=256)
def _pieces(dependences: Same) -> tuple[_Piece, ...]:
    return tuple(map(_piece, maps_of(dependences.value)))


def _piece(pairs: isl.Map) -> _Piece:
    """Read the equations ``j' = j`` and ``j = c``; others are not used."""
    hull = pairs.affine_hull()
    matrix = hull.equalities_matrix(*_KINDS)
    n_in, n_out = pairs.dim(isl.dim_type.in_), pairs.dim(isl.dim_type.out)
    constant = matrix.cols() - 1
    source: list[object] = [("source", n) for n in range(n_in)]
    sink: list[object] = [("sink", n) for n in range(n_out)]
    for r in range(matrix.rows()):
        row = [matrix.get_element_val(r, c) for c in range(matrix.cols())]
        used = [c for c, v in enumerate(row) if not v.is_zero() and c != constant]
        if len(used) == 1 and used[0] < n_in + n_out:
            value = row[constant].div(row[used[0]]).neg().to_str()
            where, n = (source, used[0]) if used[0] < n_in else (sink, used[0] - n_in)
            where[n] = value
        elif len(used) == 2 and used[0] < n_in <= used[1] < n_in + n_out:
            equal = row[used[0]].add(row[used[1]]).is_zero() and row[constant].is_zero()
            sink[used[1] - n_in] = ("source", used[0]) if equal else sink[used[1] - n_in]
    return _Piece(pairs, tuple(source), tuple(sink))


@dataclass(frozen=True)
class _Function:
    """``constant + Σ coefficient · term``: of dimensions, by number; of sizes; of quotients."""

    constant: str
    dimensions: tuple[tuple[int, str], ...]
    sizes: frozenset[tuple[str, str]]
    quotients: tuple[tuple[_Function, str], ...]

    @staticmethod
    def of(aff: isl.Aff) -> _Function:
        def terms(kind: isl.dim_type) -> list[tuple[int, str]]:
            values = ((n, aff.get_coefficient_val(kind, n)) for n in range(aff.dim(kind)))
            return [(n, v.to_str()) for n, v in values if not v.is_zero()]

        sizes = terms(isl.dim_type.param)
        return _Function(
            aff.get_constant_val().to_str(),
            tuple(terms(isl.dim_type.in_)),
            frozenset((aff.get_dim_name(isl.dim_type.param, n), v) for n, v in sizes),
            tuple((_Function.of(aff.get_div(n)), v) for n, v in terms(isl.dim_type.div)),
        )

    def at(self, dimensions: tuple[object, ...]) -> object:
        """A value that only equal functions of equal dimensions have in common."""
        # Terms are counted: two dimensions may be equal to each other.
        terms = Counter((dimensions[n], v) for n, v in self.dimensions)
        quotients = Counter((q.at(dimensions), v) for q, v in self.quotients)
        return self.constant, frozenset(terms.items()), self.sizes, frozenset(quotients.items())


@lru_cache(maxsize=256)
def _functions(loop: Same) -> dict[str, _Function]:
    """The function of each statement that has a single one."""
    listed = loop.value.get_pw_aff_list()
    functions = [listed.get_at(n) for n in range(listed.n_pw_aff())]
    return {
        f.get_space().get_tuple_name(isl.dim_type.in_): _Function.of(f.get_pieces()[0][1])
        for f in functions
        if f.n_piece() == 1
    }


def _is_inside(piece: _Piece, functions: dict[str, _Function]) -> bool:
    source = functions.get(piece.pairs.get_tuple_name(isl.dim_type.in_))
    sink = functions.get(piece.pairs.get_tuple_name(isl.dim_type.out))
    if source is None or sink is None:
        return False
    return source.at(piece.source) == sink.at(piece.sink)
