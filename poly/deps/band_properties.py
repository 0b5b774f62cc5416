"""Properties of each band of a tree under the dependences: coincident loops, permutable bands.

With D the dependences not ordered by anything above a band, and f its members:

* a member is *coincident* if it carries none of the dependences that the members before it leave:
  ``{ s -> t in D : f(s) = f(t) before it, f(s) != f(t) in it }`` is empty.  Its iterations may run
  on threads.  D has the updates of a reduction here, too
* a band is *permutable* if none of its members runs a pair backwards, regardless of the others:
  ``{ s -> t in D : f(s) > f(t) }`` is empty for each.  Its loops may be interchanged and tiled.
"""

from __future__ import annotations

from dataclasses import dataclass

import islpy as isl

from poly.deps.dependences import Dependences
from poly.deps.legality import budget, by_children, carried
from poly.deps.scop import Scop
from poly.errors import UndecidedError
from poly.tree.nodes import Band, Node, Promote, Sequence


@dataclass(frozen=True)
class BandProperties:
    """`coincident`: for each member; `permutable`: of all members together.

    Properties that could not be decided are false.
    """

    coincident: tuple[bool, ...]
    permutable: bool


def band_properties(tree: Node, scop: Scop, dependences: Dependences) -> tuple[BandProperties, ...]:
    """The properties of all bands of a tree, in the order of `walk_tree`."""
    return tuple(_below(tree, scop, dependences.ordering, dependences.all))


def _below(node: Node, scop: Scop, order: isl.UnionMap, both: isl.UnionMap) -> list[BandProperties]:
    if isinstance(node, Band):
        try:
            with budget(scop, "band properties"):
                here = _of_band(node, order, both)
        except UndecidedError:
            here = BandProperties((False,) * len(node.members), False)
        for m in node.members:
            f = isl.MultiUnionPwAff.from_union_pw_aff(m.schedule)
            order = order.eq_at_multi_union_pw_aff(f)
            both = both.eq_at_multi_union_pw_aff(f)
        return [here, *_below(node.child, scop, order, both)]
    if isinstance(node, Promote):
        return _below(node.child, scop, order, both)
    found: list[BandProperties] = []
    if isinstance(node, Sequence):
        ordered, either = by_children(node, order), by_children(node, both)
        for n, f_in in enumerate(node.children):
            found += _below(f_in.child, scop, ordered[n, n], either[n, n])
    return found


def _of_band(node: Band, order: isl.UnionMap, both: isl.UnionMap) -> BandProperties:
    functions = [isl.MultiUnionPwAff.from_union_pw_aff(m.schedule) for m in node.members]
    permutable = all(order.lex_gt_at_multi_union_pw_aff(f).is_empty() for f in functions)
    coincident: list[bool] = []
    for member, f in zip(node.members, functions, strict=True):
        coincident.append(carried(both, member).is_empty())
        both = both.eq_at_multi_union_pw_aff(f)
    return BandProperties(tuple(coincident), permutable)
