"""Copies between a tensor and the buffer of a promotion: the elements, and the loops over them.

The set of elements is computed in `poly.buffers.promotion`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

import islpy as isl

from poly.buffers.tensorize import Matched
from poly.deps.scop import Scop
from poly.ir.dtypes import DType
from poly.ir.expr import Const, Expr
from poly.ir.program import Tensor
from poly.machine.cpu import VECTOR_BYTES
from poly.sets.isl_names import dims
from poly.sets.to_isl import isl_expr
from poly.tree.kinds import LoopMark, Mark, Scope, Tensorized
from poly.tree.nodes import Band, Member, Promote, walk_tree

#: The most bytes that a thread of a GPU copies at once, and the least for several elements.
TOGETHER, LEAST_TOGETHER = 16, 4


#: Bytes of a row that are put between those of others at once.
INTERLEAVED = 16
#: Of how many rows.
GROUPS = (2, 4)

#: Vectors of a row of a packed operand that are copied without a loop.
MOST_VECTORS = 4
#: The fewest elements of a row that are converted together.
FEWEST = 4


@dataclass(frozen=True)
class Copy:
    """One extension statement: ``buffer[e mod size] = T[e]``, or back.

    prefix : the loops around it each iteration of which has its own buffer, by name
    shared : whether all threads of a block copy together
    op : for partial results, which begin as its identity and are combined with the tensor's
    ahead : it runs one iteration of the last of these loops early (double buffering)
    matrix : the dimensions of the tensor in which all threads of a warp copy together, a matrix at
        a time; the last loops run over them
    together : how many adjacent elements a thread copies at once; if several, the last of the loops
        runs over them
    within : ``{ name[p, e] : … }``, the instances that copy, if not all: the others store zeros
    """

    name: str
    tensor: str
    buffer: str
    inward: bool
    prefix: tuple[str, ...]
    rank: int
    sizes: tuple[int, ...]
    extension: str
    members: tuple[Member, ...]
    shared: bool = False
    op: str = ""
    ahead: bool = False
    matrix: tuple[int, ...] = ()
    together: int = 1
    within: str = ""

    @property
    def shared_out(self) -> tuple[Member, ...]:
        """The loops whose iterations are divided among threads."""
        return self.members[:-1] if self.together > 1 else self.members

    @property
    def depth(self) -> int:
        return len(self.prefix)

    @property
    def tuple_text(self) -> str:
        return f"{self.name}[{', '.join(dims('x', self.depth + self.rank))}]"


def in_matrices(c: Copy, fragment: Matched, sizes: tuple[int, ...]) -> Copy:
    """A copy whose innermost loops are those of a matrix of sums, marked as one instruction."""
    mark, tile = (
        Tensorized(fragment.intrinsic),
        dict.fromkeys((fragment.rows, fragment.columns), 0),
    )
    tile |= zip(tile, fragment.intrinsic.extents, strict=False)
    outer: list[Member] = []
    inner: list[Member] = []
    for d, m in enumerate(c.members):
        extent = tile.get(d)
        if extent is None:
            outer.append(replace(m, mark=Mark.UNROLL))
            continue
        value = isl.Val(extent)
        over = m.schedule.scale_down_val(value).floor()
        outer.append(Member(f"{m.name}_o", over, Mark.UNROLL))
        inner.append(Member(f"{m.name}_i", m.schedule.mod_val(value), mark))
    return replace(c, members=(*outer, *inner), matrix=tuple(sorted(tile)))


def contiguous_dimension(tensor: Tensor) -> int:
    """The dimension along which elements are adjacent in memory."""
    return max((d for d, e in enumerate(tensor.shape) if e != Const(1)), default=tensor.rank - 1)


def lanes_below(node: Promote, scop: Scop) -> int | None:
    """The number of lanes of the vector loops below; None unless it is the same for all of them."""
    widths: set[int] = set()
    for inner in walk_tree(node.child):
        for m in inner.members if isinstance(inner, Band) else ():
            if m.mark == Mark.VECTOR:
                domain = scop.domain.intersect(m.schedule.domain())
                f = isl.MultiUnionPwAff.from_union_pw_aff(m.schedule)
                image = domain.apply(isl.UnionMap.from_multi_union_pw_aff(f)).get_set_list()
                if not image.n_set():
                    continue  # it has no instances
                high = image.get_at(0).dim_max_val(0)
                widths.add(int(high.to_python()) + 1 if high.is_int() else 0)
    return widths.pop() if len(widths) == 1 and min(widths) > 1 else None


def copy_of(
    node: Promote, scop: Scop, elements: isl.Map | None, inward: bool, outer: list[Member],
    sizes: tuple[int, ...], aligned: tuple[bool, ...], in_lanes: bool, footprint: isl.Map,
    origins: tuple[Expr | None, ...] = (),
) -> Copy | None:  # fmt: skip
    """The copy of `elements`, which also fills the rest of the footprint of a padded buffer."""
    if elements is None:
        return None
    elements = elements.intersect_params(scop.context).coalesce()
    copied, elements = elements, footprint if node.padded and inward else elements
    rank = len(sizes)
    name = f"{node.buffer}_{'in' if inward else 'out'}"
    p, e = dims("p", len(outer)), dims("e", rank)
    params = ", ".join(elements.get_var_names(isl.dim_type.param))
    pair = isl.Map(
        f"[{params}] -> {{ [[{', '.join(p)}] -> {node.tensor}[{', '.join(e)}]]"
        f" -> {name}[{', '.join(p + e)}] }}"
    )
    # { [p] -> T[e] }  becomes  { [p] -> name[p, e] }
    extension = elements.domain_map().reverse().apply_range(pair)
    within, nothing = None, inward and bool(copied.is_empty()) and not elements.is_empty()
    if not nothing and not elements.is_subset(copied):
        within = copied.domain_map().reverse().apply_range(pair).range()
        within = within.gist(extension.range()).coalesce()
    together = 1 if in_lanes else _together(node, scop, inward, sizes, aligned)
    if within is not None and not _in_full_groups(copied, together):
        together = 1
    # Loops over aligned boxes run from 0, which makes indices in the buffer plain.
    indices = [f"({e[k]} mod {sizes[k]})" if aligned[k] else e[k] for k in range(rank)]
    for k, origin in enumerate(origins):
        if origin is not None:
            indices[k] = f"(({e[k]} - {isl_expr(origin)}) mod {sizes[k]})"
    instance = f"[{params}] -> {{ {name}[{', '.join(p + e)}]"
    members = _CopyLoops(node, scop, instance).over(indices, sizes, in_lanes, together)
    return Copy(
        name, node.tensor, node.buffer, inward, tuple(m.name for m in outer), rank, sizes,
        str(extension), members, node.scope == Scope.SHARED, ahead=node.ahead, together=together,
        within="" if within is None else str(within), op="+=" if nothing else "",
    )  # fmt: skip


@dataclass(frozen=True)
class _CopyLoops:
    """The loops over the elements of a copy.

    instance : an isl map from an instance of the copy, without its range
    """

    node: Promote
    scop: Scop
    instance: str

    def member(self, loop: str, value: str, mark: LoopMark) -> Member:
        """A loop over the values of an expression."""
        return Member(loop, isl.UnionPwAff(f"{self.instance} -> [({value})] }}"), mark)

    def over(
        self, indices: list[str], sizes: tuple[int, ...], in_lanes: bool, together: int
    ) -> tuple[Member, ...]:
        """The loops, outermost first.

        indices : in the buffer, by dimension; together : elements that one access moves
        """
        mark = Mark.UNROLL if self.node.scope == Scope.REGISTER else Mark.SEQ
        loops = self._dimensions(indices, sizes)
        members = [self.member(loop, index, mark) for loop, index, _ in loops]
        dtype = self.node.dtype or self.scop.program.tensors[self.node.tensor].dtype
        lanes = lanes_below(self.node, self.scop) or VECTOR_BYTES // dtype.bytes
        if loops and in_lanes and loops[-1][2] % lanes == 0 and dtype.bits >= 32:
            members = self._in_lanes(members, loops[-1], lanes, mark)
        elif loops and in_lanes and self.node.dtype is not None and loops[-1][2] >= FEWEST:
            members[-1] = replace(members[-1], mark=Mark.VECTOR)
        elif in_lanes and self.node.layout.blocks and self._is_interleaved(loops, dtype):
            members[-2:] = self._interleaved(loops[-2:], INTERLEAVED // dtype.bytes)
        if together > 1:
            loop, index, _ = loops[-1]
            members[-1:] = [
                self.member(f"{loop}_o", f"floor({index}/{together})", mark),
                self.member(f"{loop}_i", f"{index} mod {together}", Mark.WIDE),
            ]
        return tuple(members)

    def _dimensions(self, indices: list[str], sizes: tuple[int, ...]) -> list[tuple[str, str, int]]:
        """Loops over the dimensions of the buffer: name, index and extent, outermost first."""
        # Threads that copy together read adjacent elements, regardless of the buffer's layout, and
        # divide loops of several iterations among them.
        order = [*self.node.layout.order]
        if self.node.scope == Scope.SHARED:
            order = sorted(range(len(sizes)), key=lambda k: sizes[k] > 1)
        loops = [(f"{self.node.buffer}_e{k}", indices[k], sizes[k]) for k in order]
        for dim, size in self.node.layout.blocks:
            at = order.index(dim)
            loop, index, _ = loops[at]
            loops[at] = (f"{loop}_b", f"floor({index}/{size})", sizes[dim] // size)
            loops.append((loop, f"({index} mod {size})", size))
        return loops

    def _is_interleaved(self, loops: list[tuple[str, str, int]], dtype: DType) -> bool:
        """Whether groups of a few elements of adjacent rows are put together."""
        (name, _, length), (_, _, group) = loops[-2:]
        along = contiguous_dimension(self.scop.program.tensors[self.node.tensor])
        whole = length % (INTERLEAVED // dtype.bytes) == 0
        return group in GROUPS and name == f"{self.node.buffer}_e{along}" and whole

    def _interleaved(self, loops: list[tuple[str, str, int]], lanes: int) -> list[Member]:
        """The innermost loops with vectors of the rows of a group."""
        (loop, index, length), (group, place, _) = loops
        outer = [self.member(f"{loop}_o", f"floor({index}/{lanes})", Mark.SEQ)]
        return [
            *(outer if length > lanes else []),
            self.member(group, place, Mark.UNROLL),
            self.member(f"{loop}_i", f"{index} mod {lanes}", Mark.VECTOR),
        ]

    def _in_lanes(
        self, members: list[Member], innermost: tuple[str, str, int], lanes: int, mark: LoopMark
    ) -> list[Member]:
        """The loops with the innermost one in vector lanes."""
        loop, index, size = innermost
        # Rows contiguous in memory, which are transposed a block at a time.
        along = contiguous_dimension(self.scop.program.tensors[self.node.tensor])
        name = f"{self.node.buffer}_e{along}"
        transposed = [m for m in members[:-1] if m.name == name and loop != name]
        rest = [m for m in members[:-1] if m not in transposed]
        blocks = Mark.UNROLL if not transposed and size // lanes <= MOST_VECTORS else mark
        return [
            *rest,
            self.member(f"{loop}_o", f"floor({index}/{lanes})", blocks),
            *transposed,
            self.member(f"{loop}_i", f"{index} mod {lanes}", Mark.VECTOR),
        ]


def _in_full_groups(elements: isl.Map, count: int) -> bool:
    """Whether each aligned group of `count` adjacent elements is copied entirely or not at all."""
    e = dims("e", elements.dim(isl.dim_type.out))
    *outer, last = e
    tensor = elements.get_tuple_name(isl.dim_type.out)
    group = ", ".join([*outer, f"floor({last}/{count})"])
    same = isl.Map(f"{{ {tensor}[{', '.join(e)}] -> [{group}] }}")
    return bool(elements.apply_range(same).apply_range(same.reverse()).is_subset(elements))


def _together(
    node: Promote, scop: Scop, inward: bool, sizes: tuple[int, ...], aligned: tuple[bool, ...]
) -> int:
    """How many adjacent elements a thread of a GPU copies at once.

    It is as many as one access moves, where rows are multiples of that, in the buffer, and in
    memory as far as is known.

    Copies to shared memory use elements of up to 32 bits.
    """
    tensor = scop.program.tensors[node.tensor]
    last, size = tensor.rank - 1, tensor.dtype.bytes
    if last < 0 or node.layout.blocks or node.layout.order[-1] != last:
        return 1
    if node.dtype is not None:
        return 1  # each element is converted
    length = tensor.shape[last]
    if node.scope == Scope.REGISTER:
        row = int(length.value) if isinstance(length, Const) and _has_rows(tensor) else TOGETHER
        count = gcd(TOGETHER // size, sizes[last], row)
        return count if count > 1 and count * size >= LEAST_TOGETHER else 1
    count = TOGETHER // size
    if node.scope != Scope.SHARED or tensor.dtype.bits not in (16, 32) or not inward:
        return 1
    whole = isinstance(length, Const) and int(length.value) % count == 0
    return count if whole and aligned[last] and sizes[last] % count == 0 else 1


def _has_rows(tensor: Tensor) -> bool:
    """Whether elements are adjacent in another than the last dimension."""
    return any(e != Const(1) for e in tensor.shape[:-1])
