"""Launches: the parts of a schedule tree that run on a GPU as kernels, and the thread mapping.

The host runs everything outside of all loops on blocks: sequences, and loops that contain some.
Each largest part without that is a *launch*; one without loops on blocks has one block.  A sequence
for which a block would have too many threads becomes a sequence of launches, too.  Inside, with
b the loops on blocks around a statement and t those on threads,

    block  { S[x] -> b(x) }      thread  { S[x] -> t(x) }

give the block and thread that run an instance, each as up to three numbers, of which the
innermost loop gives x.  A dimension without a loop is 0.

Launches are ordered by the host.  In a launch, blocks are not ordered at all, and threads only by
barriers; see `poly.lower.place_barriers`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import islpy as isl

from poly.buffers.pad_tiles import check_padding, with_padding
from poly.buffers.tensorize import instruction_of, matched
from poly.deps.instances import end_value, function_of, member_limits
from poly.deps.scop import Scop
from poly.errors import CapacityError, ScheduleError
from poly.machine.gpu import BLOCK_THREADS, BLOCK_THREADS_Z, WARP
from poly.tree.kinds import ON_THREADS, Mark, Scope, Tensorized
from poly.tree.nodes import (
    Band,
    Filter,
    KernelLeaf,
    Member,
    Node,
    Promote,
    Sequence,
    all_loops,
    band,
    child_nodes,
    loops_of,
    path_to,
    sequence,
    walk_tree,
)

#: Names of the dimensions of grids and blocks, the innermost first.
AXES = ("x", "y", "z")


@dataclass(frozen=True, eq=False)
class Launch:
    """A part of a tree that runs as one kernel.

    number : its index among the launches of the tree
    host : the host's loops around it, outermost first
    statements : those below; tree : what orders them
    parameters : loops whose value is a parameter of the kernel, with the parameter
    grid : blocks in x, y and z, as functions of the sizes; block : threads in x, y and z
    block_names, thread_names : the parameters for the block and thread index, in the same order
    """

    number: int
    host: tuple[Member, ...]
    statements: tuple[str, ...]
    tree: Node
    parameters: tuple[tuple[Member, str], ...]
    grid: tuple[isl.PwAff, ...]
    block: tuple[int, int, int]
    block_names: tuple[str, ...]
    thread_names: tuple[str, ...]

    @property
    def threads(self) -> int:
        """Threads of a block."""
        x, y, z = self.block
        return x * y * z

    @property
    def host_names(self) -> tuple[str, ...]:
        """The parameters for the host's loops."""
        return tuple(name for m, name in self.parameters if m in self.host)

    def parameter_of(self, member: Member) -> str | None:
        """The parameter for a loop's value, None for a loop that the kernel runs."""
        return next((name for m, name in self.parameters if m is member), None)


def launches(tree: Node, scop: Scop) -> tuple[Node, tuple[Launch, ...]]:
    """The host's tree, with a `KernelLeaf` for each launch, and the launches.

    Raises
    ------
    ScheduleError : a block would have too many threads; loops on threads are around those on
        blocks, others between these; or a buffer is filled early for a loop of the host.
    """
    found: list[Launch] = []

    def visit(node: Node, host: tuple[Member, ...], statements: tuple[str, ...]) -> Node:
        if isinstance(node, Sequence) and (_has_blocks(node) or not _fits(node, statements, scop)):
            return sequence(
                [Filter(f.statements, visit(f.child, host, f.statements)) for f in node.children]
            )
        if isinstance(node, Band) and _has_blocks(node):
            first = next(
                (n for n, m in enumerate(node.members) if m.mark == Mark.BLOCK), len(node.members)
            )
            above, rest = node.members[:first], band(node.members[first:], node.child)
            for m in above:
                if m.mark in ON_THREADS:
                    raise ScheduleError(
                        f"{m.name} is on threads, and around loops on blocks; threads are inside "
                        "of blocks"
                    )
            return band(above, visit_below(rest, (*host, *above), statements))
        return kernel(node, host, statements)

    def visit_below(node: Node, host: tuple[Member, ...], statements: tuple[str, ...]) -> Node:
        starts = isinstance(node, Band) and node.members[0].mark == Mark.BLOCK
        return kernel(node, host, statements) if starts else visit(node, host, statements)

    def kernel(node: Node, host: tuple[Member, ...], statements: tuple[str, ...]) -> Node:
        found.append(_launch(len(found), host, statements, node, scop))
        return KernelLeaf(len(found) - 1)

    everything = tuple(s.name for s in scop.statements)
    return visit_below(tree, (), everything), tuple(found)


def _has_blocks(node: Node) -> bool:
    return any(
        isinstance(n, Band) and any(m.mark == Mark.BLOCK for m in n.members)
        for n in walk_tree(node)
    )


def _block(
    mapped: list[tuple[Member, int]], tree: Node, statements: tuple[str, ...], scop: Scop
) -> tuple[int, int, int]:
    """The threads in x, y and z of a block that runs statements of a tree.

    mapped : its loops on threads with the axis of each

    Raises
    ------
    CapacityError : too many threads, or more in x than a warp that runs a statement.
    """
    block = [1, 1, 1]
    for m, axis in mapped:
        count = thread_extent(m, scop, "threads")
        if m.mark == Mark.REDUCE:  # the other threads add the identity
            count = 1 << (count - 1).bit_length()
        block[axis] = max(block[axis], count)
    warps = [name for name in statements if instruction_of(tree, name) is not None]
    if warps:
        if block[0] > WARP:
            raise CapacityError(
                f"{warps[0]} is run by warps of {WARP} threads along x, but other loops have "
                f"{block[0]} threads there"
            )
        block[0] = WARP
    x, y, z = block
    if x * y * z > BLOCK_THREADS:
        raise CapacityError(
            f"a block would have {z} x {y} x {x} threads, over {BLOCK_THREADS}; use smaller tiles"
        )
    if z > BLOCK_THREADS_Z:
        raise CapacityError(
            f"a block would have {z} threads in z, over {BLOCK_THREADS_Z}; put a shorter loop "
            "outermost of those on threads"
        )
    return x, y, z


def _fits(node: Node, statements: tuple[str, ...], scop: Scop) -> bool:
    """Whether one block can run all of a node."""
    try:
        _block(_thread_axes(node), node, statements, scop)
    except CapacityError:
        return False
    return True


def _above_loops(node: Node) -> Iterator[Node]:
    """The nodes of a tree that are not in any of its loops."""
    yield node
    if not isinstance(node, Band):
        for child in child_nodes(node):
            yield from _above_loops(child)


def _launch(
    number: int, host: tuple[Member, ...], statements: tuple[str, ...], tree: Node, scop: Scop
) -> Launch:
    taken = {name for s in scop.statements for name in s.loops}
    taken |= {*scop.program.sizes, *all_loops(tree), *(m.name for m in host)}

    def fresh(name: str) -> str:
        while name in taken:
            name += "_"
        taken.add(name)
        return name

    parameters = [(m, fresh(f"host_{m.name}")) for m in host]
    members = tree.members if isinstance(tree, Band) else ()
    blocks = [m for m in reversed(members) if m.mark == Mark.BLOCK]
    for m in members[: len(blocks)]:
        if m.mark != Mark.BLOCK:
            raise ScheduleError(
                f"{m.name} is between the loops on blocks, which run in no order; move it out of "
                "all of them, or into them"
            )
    for node in _above_loops(tree) if host else ():
        if isinstance(node, Promote) and node.ahead:
            raise ScheduleError(
                f"{node.buffer} is filled for the next iteration of {host[-1].name}, which the "
                "host runs: a kernel keeps nothing for the next one"
            )
    block_names = tuple(fresh(f"block_{axis}") for _, axis in zip(blocks, AXES, strict=False))
    parameters += zip(blocks, block_names, strict=True)
    grid = tuple(
        end_value(scop, m, statements, last=True, none=-1).add_constant_val(isl.Val(1))
        for m in blocks
    )
    thread_names = tuple(fresh(f"thread_{axis}") for axis in AXES)
    on_threads = _thread_axes(tree)
    parameters += [(m, thread_names[axis]) for m, axis in on_threads]
    block = _block(on_threads, tree, statements, scop)
    launch = Launch(
        number, host, statements, tree, tuple(parameters), grid, block, block_names, thread_names
    )
    _check_reductions(launch)
    _check_fragments(launch, scop)
    return launch


def _thread_axes(node: Node) -> list[tuple[Member, int]]:
    """The loops on threads, each with its axis: the most loops on threads inside it."""
    found: list[tuple[Member, int]] = []

    def visit(node: Node) -> int:
        inside = max((visit(c) for c in child_nodes(node)), default=0)
        if isinstance(node, Band):
            if any(isinstance(m.mark, Tensorized) for m in node.members):
                inside = 1  # x is the axis of the threads of a warp
            for m in reversed(node.members):
                if m.mark in ON_THREADS:
                    found.append((m, inside))
                    inside += 1
        return inside

    visit(node)
    return found


def reducing(launch: Launch, node: Node) -> int:
    """The number of adjacent threads that combine their parts after a node of a launch."""
    inside = _axes_below(launch, node, Mark.REDUCE)
    return prod(launch.block[: max(inside, default=-1) + 1])


def _check_fragments(launch: Launch, scop: Scop) -> None:
    """Refuse instructions that steps after `tensorize` have changed, or without a fragment.

    Raises
    ------
    ScheduleError : naming the statement.
    """
    padded = padded_scop(launch, scop)
    for name in launch.statements:
        if instruction_of(launch.tree, name) is None:
            continue
        matched(launch.tree, padded, launch.host, name)
        check_padding(
            launch.tree, padded, name, launch.statements, launch.host, f"tensorize {name}"
        )
        target = scop.statement(name).target.tensor
        kept = [
            n for n in path_to(launch.tree, name)
            if isinstance(n, Promote) and n.tensor == target and n.scope == Scope.FRAGMENT
        ]  # fmt: skip
        if not kept:
            raise ScheduleError(
                f"{name} sums up in a fragment of a warp, but there is none; add one by `promote "
                f"{name}: … as {target}, fragment`, at the innermost loop around the whole sum"
            )


def _axes_below(launch: Launch, node: Node, mark: Mark) -> list[int]:
    """The axes of the loops with a mark at and below a node."""
    members = [m for n in walk_tree(node) if isinstance(n, Band) for m in n.members]
    parameters = [launch.parameter_of(m) for m in members if m.mark == mark]
    return [launch.thread_names.index(p) for p in parameters if p is not None]


def _check_reductions(launch: Launch) -> None:
    """Refuse reductions by threads that are not adjacent, or whose number is not a power of two.

    Raises
    ------
    ScheduleError : naming the statement.
    """
    for node in walk_tree(launch.tree):
        if not isinstance(node, Promote) or node.scope != Scope.PARTIAL:
            continue
        axes = _axes_below(launch, node, Mark.REDUCE)
        if _axes_below(launch, node, Mark.THREAD) or sorted(axes) != list(range(len(axes))):
            raise ScheduleError(
                f"the threads that reduce {node.tensor} are not adjacent; only loops inside "
                "all others on threads can be reduced together"
            )
        count = reducing(launch, node)
        if count & (count - 1):
            raise ScheduleError(
                f"{count} adjacent threads reduce {node.tensor}; the number must be a power of two"
            )


# --- mapping of instances to threads --------------------------------------------------------


def padded_scop(launch: Launch, scop: Scop) -> Scop:
    """The scop with the instances that a launch runs of each statement."""
    return with_padding(launch.tree, scop, launch.statements, launch.host)


def parameter_values(launch: Launch, scop: Scop, statement: str) -> dict[str, isl.PwAff]:
    """``{ S[x] -> [n] }`` for each parameter of blocks and threads, and of the host's loops."""
    s = scop.as_run(statement)
    loops = (*launch.host, *loops_of(launch.tree, statement))
    found: dict[str, isl.PwAff] = {}
    for m in loops:
        name = launch.parameter_of(m)
        if name is not None:
            found[name] = function_of(m, s)
    for name in launch.thread_names:
        found.setdefault(name, isl.PwAff.val_on_domain(s.domain, isl.Val(0)))
    return found


def lanes_of(launch: Launch, statement: str) -> str | None:
    """The parameter for the threads of a warp, if they run a statement together."""
    found = instruction_of(launch.tree, statement)
    return None if found is None else launch.thread_names[0]


def thread_function(launch: Launch, scop: Scop, writes: bool = False) -> isl.MultiUnionPwAff:
    """``{ S[x] -> [z, y, x] }`` for all statements of a launch: the thread of an instance.

    writes : the thread that writes its result, which is the first of those that reduce together
    """
    result: isl.MultiUnionPwAff | None = None
    for name in reversed(launch.thread_names):
        axis: isl.UnionPwAff | None = None
        for statement in launch.statements:
            value = parameter_values(launch, scop, statement)[name]
            if writes and name in reduced_names(launch, statement):
                value = isl.PwAff.val_on_domain(scop.statement(statement).domain, isl.Val(0))
            f = isl.UnionPwAff.from_pw_aff(value)
            axis = f if axis is None else axis.union_add(f)
        assert axis is not None
        one = isl.MultiUnionPwAff.from_union_pw_aff(axis)
        result = one if result is None else result.flat_range_product(one)
    assert result is not None
    return result


def reduced_names(launch: Launch, statement: str) -> frozenset[str]:
    """The parameters for threads that reduce a statement together."""
    reduced = [m for m in loops_of(launch.tree, statement) if m.mark == Mark.REDUCE]
    return frozenset(n for n in map(launch.parameter_of, reduced) if n is not None)


def thread_extent(member: Member, scop: Scop, what: str) -> int:
    """The number of threads of a loop: one more than its greatest value.

    Raises
    ------
    ScheduleError : it is not constant, more than a block has, or a value is below 0.
    """
    limits = member_limits(member, scop)
    if limits is None:
        raise ScheduleError(
            f"{what}: the extent of {member.name} is not fixed; split it by a number, "
            f"as in `split S: {member.name} by 32`, and map the inner loop"
        )
    least, greatest = limits
    if least < 0:
        raise ScheduleError(f"{what}: {member.name} begins at {least}; shift it to begin at 0")
    if greatest >= BLOCK_THREADS:
        raise CapacityError(
            f"{what}: {member.name} has {greatest + 1} iterations, but a block at most "
            f"{BLOCK_THREADS} threads; split it first"
        )
    return greatest + 1
