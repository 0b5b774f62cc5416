"""Reference groups: the accesses to a tensor that one promoted buffer serves.

The accesses A_1, .., A_n below a promotion to a tensor that is only read may touch parts that are
far apart, as the two of ``C[i,j] +=! A[k,i] * A[k,j]`` do: the box around both is large, and most
of it is never used.  Two groups g and h of accesses are merged if the box of F_g u F_h has no more
elements than theirs together, and each group has a buffer of its own (as the reference groups
of Verdoolaege et al., "Polyhedral Parallel Code Generation for CUDA", TACO 2013, which join where
parts overlap).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import prod

import islpy as isl

from poly.deps.footprint import box_extent, prefix_relation
from poly.deps.scop import Scop
from poly.tree.nodes import Access, Member


def reference_groups(
    tensor: str, scop: Scop, outer: Sequence[Member], statements: tuple[str, ...]
) -> tuple[frozenset[Access], ...]:
    """The groups of accesses to a tensor by some statements, ordered by the first of each.

    outer : the loops each iteration of which has its own buffers.  There are no groups if the
        tensor is written, or read at an index that is not affine or has no constant bounds.
    """
    found: list[tuple[frozenset[Access], isl.Map]] = []
    for s in map(scop.statement, statements):
        if any(m.get_tuple_name(isl.dim_type.out) == tensor for m in (s.write, *s.may_reads)):
            return ()
        for read, relation in s.affine_reads:
            part = prefix_relation([(s, relation)], outer, tensor)
            if part is not None:
                part = part.intersect_params(scop.context).coalesce()
                found.append((frozenset({(s.name, read)}), part))
    sizes = {accesses: _elements(part) for accesses, part in found}
    if len(found) < 2 or None in sizes.values():
        return tuple(accesses for accesses, _ in found)
    while True:
        for (g, a), (h, b) in combinations(found, 2):
            both = a.union(b).coalesce()
            count, apart = _elements(both), (sizes[g] or 0) + (sizes[h] or 0)
            if count is not None and count <= apart:
                sizes[g | h] = count
                found = [(g | h, both) if x == g else (x, p) for x, p in found if x != h]
                break
        else:
            return tuple(accesses for accesses, _ in found)


def _elements(part: isl.Map) -> int | None:
    """The number of elements in the box around a footprint; None if unbounded."""
    extents = [box_extent(part, k) for k in range(part.dim(isl.dim_type.out))]
    return None if None in extents else prod(e for e in extents if e is not None)
