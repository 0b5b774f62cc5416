"""Footprints: the elements of a tensor that one iteration of a loop touches.

For the loops p around statements S, and A_S their accesses to the tensor T:

    F = { p -> T[e] : some S[x] with p(x) = p and A_S(x) = T[e] }

Footprints are measured by the box around them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import islpy as isl

from poly.deps.instances import sizes_set
from poly.deps.scop import Scop, ScopStatement
from poly.ir.expr import evaluate_int
from poly.sets.isl_names import dims
from poly.sets.same import Same
from poly.tree.nodes import Band, Member, Node, joint, path_to, statements_below


@dataclass(frozen=True)
class Footprint:
    """The box of a tensor's elements that one iteration touches, and its size in bytes."""

    tensor: str
    extents: tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class LoopFootprint:
    """The footprints of one iteration of a loop; `loop` is "" for everything scheduled together.

    depth : the number of loops around it
    """

    loop: str
    depth: int
    tensors: tuple[Footprint, ...]

    @property
    def bytes(self) -> int:
        """All tensors together."""
        return sum(t.bytes for t in self.tensors)


def footprints(
    tree: Node, scop: Scop, statement: str, sizes: Mapping[str, int]
) -> tuple[LoopFootprint, ...]:
    """The footprints of one iteration of each loop around a statement, outermost first.

    sizes : a value for every size of the program.  A data-dependent read counts as all of its
        tensor.
    """
    everything = tuple(s.name for s in scop.statements)
    outer: list[Member] = []
    found = [LoopFootprint("", 0, _touched(scop, everything, outer, sizes))]
    for node in path_to(tree, statement):
        if isinstance(node, Band):
            names = statements_below(tree, node, everything)
            for member in node.members:
                outer.append(member)
                touched = _touched(scop, names, outer, sizes)
                found.append(LoopFootprint(member.name, len(outer), touched))
    return tuple(found)


def _touched(
    scop: Scop, names: Iterable[str], outer: Sequence[Member], sizes: Mapping[str, int]
) -> tuple[Footprint, ...]:
    below = [scop.statement(name) for name in names]
    fixed = sizes_set(sizes)
    found: list[Footprint] = []
    for tensor in scop.program.tensors.values():
        shape = tuple(evaluate_int(e, sizes) for e in tensor.shape)
        accesses = [(s, m) for s in below for m in (s.write, *s.reads)]
        relation = prefix_relation(accesses, outer, tensor.name)
        extents: tuple[int, ...] | None = None
        if any(m.get_tuple_name(isl.dim_type.out) == tensor.name for s in below
               for m in s.may_reads):  # fmt: skip
            extents = shape
        elif relation is not None:
            relation = relation.intersect_params(scop.context).intersect_params(fixed)
            if not relation.is_empty():
                boxes = [box_extent(relation, k) for k in range(len(shape))]
                extents = tuple(
                    full if e is None else e for e, full in zip(boxes, shape, strict=True)
                )
        if extents is not None:
            found.append(Footprint(tensor.name, extents, prod(extents) * tensor.dtype.bytes))
    return tuple(found)


def prefix_map(s: ScopStatement, outer: Sequence[Member]) -> isl.Map:
    """``{ S[x] -> [p] }`` on the domain of S."""
    return _prefix_map(Same(s.domain), tuple(Same(m.schedule) for m in outer))


@lru_cache(maxsize=256)  # each promotion asks for the same ones again
def _prefix_map(instances: Same, outer: tuple[Same, ...]) -> isl.Map:
    domain = isl.UnionSet.from_set(instances.value)
    if not outer or instances.value.is_empty():
        target = isl.Set(f"{{ [{', '.join(dims('p', len(outer)))}] }}")
        return isl.Map.from_domain_and_range(instances.value, target)
    times = joint([f.value.intersect_domain_union_set(domain) for f in outer])
    return isl.UnionMap.from_multi_union_pw_aff(times).get_map_list().get_at(0)


def prefix_relation(
    accesses: Iterable[tuple[ScopStatement, isl.Map]], outer: Sequence[Member], tensor: str
) -> isl.Map | None:
    """``{ [p] -> T[e] }`` over the given accesses to the tensor, or None if there are none."""
    result: isl.Map | None = None
    for s, access in accesses:
        if access.get_tuple_name(isl.dim_type.out) != tensor:
            continue
        one = prefix_map(s, outer).reverse().apply_range(access)
        result = one if result is None else result.union(one)
    return result


def box_extent(footprint: isl.Map, dim: int) -> int | None:
    """The constant bound of dimension `dim`'s extent over all prefixes; None if unbounded."""
    if footprint.is_empty():
        return 0
    # The largest of ``{ e - e' : p -> e, p -> e' }``.  (As the maximum of dim_max - dim_min, isl
    # was seen to compute for hours, and its bound on operations did not stop it.)
    extent = footprint.reverse().apply_range(footprint).deltas().dim_max_val(dim)
    return int(extent.to_python()) + 1 if extent.is_int() else None
