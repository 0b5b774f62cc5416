"""Tensorisation: matching a statement with an instruction.

Those of CPUs are matched in `poly.buffers.vector_instructions`; here are those of tensor cores.

With p the loops outside and t the chosen ones, a statement is the instruction in each iteration p
if

* every tile is full: where a tile has an instance, it has all of those of the instruction; or
  the statement may be run as if it had, on operands that are padded with zeros
  (`poly.buffers.pad_tiles`);
* the value is that of the meaning, up to the order of a product and casts between types that the
  instruction converts itself;
* each access moves with t as that of the meaning does: by one per iteration along one dimension
  of the tensor, the same one everywhere, or not at all.

Undecided cases are refused.  Whether the loops carry only the sum is checked in
`poly.deps.legality`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

import islpy as isl

from poly.buffers.full_tiles import are_full, other_extent
from poly.buffers.pad_tiles import check_padding, limits_of, unpadded_operands, with_padding
from poly.buffers.vector_instructions import match_vector
from poly.deps.access_strides import in_order_of_target, movement
from poly.deps.dependences import Dependences
from poly.deps.footprint import prefix_map
from poly.deps.scop import Role, Scop, ScopStatement
from poly.errors import ScheduleError
from poly.ir.expr import Cast, Expr, Index, Op, Read
from poly.ir.instruction_tables import known_intrinsics
from poly.ir.intrinsics import ACCUMULATOR, Intrinsic, MatrixIntrinsic, VectorIntrinsic
from poly.ir.program import Statement
from poly.tree.kinds import Mark, Tensorized
from poly.tree.nodes import Leaf, Member, Node, Promote, band, loops_of, replace_node
from poly.tree.primitive import primitive
from poly.tree.steps import Step, check_unmarked, same_band

#: Loops on threads around an instruction: those of a warp have the innermost dimension of a block.
MOST_AROUND = 2


@dataclass(frozen=True)
class Matched:
    """A statement matched with an instruction.

    operands : the elements that correspond to A and B of the meaning; none where sums begin
    rows, columns : the dimensions of the target along which those of a matrix of sums run
    """

    intrinsic: MatrixIntrinsic
    operands: tuple[Read, ...]
    rows: int
    columns: int


@primitive("tensorize C: i_i, j_i, k_i as wmma_f16", words=True, of_dependences=True)
def tensorize(tree: Node, scop: Scop, step: Step, dependences: Dependences) -> Node:
    """Mark some innermost loops with the name of an instruction."""
    known = known_intrinsics()
    if len(step.words) != 1:
        raise ScheduleError(f"{step}: `as` takes one of {', '.join(known)}")
    if step.words[0] not in known:
        near = get_close_matches(step.words[0], known, n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise ScheduleError(
            f"{step}: there is no instruction {step.words[0]}; {meant}`as` takes one of "
            f"{', '.join(known)}, or one that you declare before: fk.intrinsic(…), "
            "fk.load_intrinsics(FILE)"
        )
    intrinsic = known[step.words[0]]
    if isinstance(intrinsic, VectorIntrinsic):
        if dependences.exact and intrinsic.reorders:
            raise ScheduleError(
                f"{step}: {intrinsic.name} rounds otherwise than `{intrinsic.statement}` as it is "
                "written, and this schedule is exact"
            )
        return _as_vectors(tree, scop, step, intrinsic)
    return _as_matrices(tree, scop, step, intrinsic)


def _chosen(
    tree: Node, step: Step, count: int, intrinsic: Intrinsic
) -> tuple[Node, list[Member], list[Member]]:
    """The tree with the loops of an instruction marked, these loops, and those around them."""
    nest, positions = same_band(tree, step, count)
    chosen = [nest.members[p] for p in positions]
    check_unmarked(step, *chosen)
    if not isinstance(nest.child, Leaf) or min(positions) < len(nest.members) - count:
        of = step.statements[0]
        raise ScheduleError(f"{step}: these are not the innermost loops of {of}; see `reorder`")
    around = [m for m in loops_of(tree, step.statements[0]) if m not in chosen]
    members = list(nest.members)
    for p in positions:
        members[p] = replace(members[p], mark=Tensorized(intrinsic))
    return replace_node(tree, nest, band(members, nest.child)), chosen, around


def _as_vectors(tree: Node, scop: Scop, step: Step, intrinsic: VectorIntrinsic) -> Node:
    if not intrinsic.checked:
        raise ScheduleError(
            f"{step}: {intrinsic.name} was not compared with its meaning on this machine, which "
            f"lacks {intrinsic.feature or 'what it needs'}; see `farkas intrinsic check`"
        )
    count = len(intrinsic.extents)
    if len(step.loops) != count:
        raise ScheduleError(
            f"{step}: {intrinsic.name} takes {count} loops, in the order of "
            f"{', '.join(intrinsic.statement.indices)} in `{intrinsic.statement}`"
        )
    done, chosen, around = _chosen(tree, step, count, intrinsic)
    padded = with_padding(done, scop)
    s = padded.as_run(step.statements[0])
    match_vector(padded, s, around, chosen, intrinsic, f"{step}")
    return done


def _as_matrices(tree: Node, scop: Scop, step: Step, intrinsic: MatrixIntrinsic) -> Node:
    s = scop.statement(step.statements[0])
    roles = _roles(s, f"{step}")
    if len(step.loops) != roles:
        raise ScheduleError(
            f"{step}: {s.name} takes {roles} loops, in the order of {', '.join('ijk'[:roles])} in "
            f"`{intrinsic.meaning.statements[0]}`"
        )
    done, chosen, around = _chosen(tree, step, roles, intrinsic)
    for m in around:
        if m.mark in (Mark.PARALLEL, Mark.VECTOR, Mark.REDUCE):
            raise ScheduleError(f"{step}: {m.name} outside is marked {m.mark}")
    if sum(m.mark == Mark.THREAD for m in around) > MOST_AROUND:
        raise ScheduleError(
            f"{step}: a warp takes one dimension of a block, but {MOST_AROUND + 1} loops on "
            "threads are around it"
        )
    padded = with_padding(done, scop)
    unpadded = unpadded_operands(done, s)
    match(padded, padded.as_run(s.name), around, chosen, intrinsic, f"{step}", unpadded)
    check_padding(done, padded, s.name, [*scop.by_name], (), f"{step}")
    return done


def instruction_of(tree: Node, statement: str) -> MatrixIntrinsic | None:
    """The instruction of tensor cores that a statement is matched with, None if there is none."""
    marks = (m.mark for m in loops_of(tree, statement))
    found = next((mark.intrinsic for mark in marks if isinstance(mark, Tensorized)), None)
    return found if isinstance(found, MatrixIntrinsic) else None


def matched(tree: Node, scop: Scop, outer: Sequence[Member], statement: str) -> Matched:
    """The match of a statement below `tree`, which has the loops `outer` around it.

    scop : from `with_padding`

    Raises
    ------
    ScheduleError : steps after `tensorize` have changed its loops.
    """
    loops = loops_of(tree, statement)
    intrinsic = instruction_of(tree, statement)
    assert intrinsic is not None
    chosen = [m for m in loops if m.mark == Tensorized(intrinsic)]
    around = [m for m in loops if m.mark != Tensorized(intrinsic)]
    s = scop.as_run(statement)
    what = f"tensorize {statement}"
    unpadded = unpadded_operands(tree, s)
    return match(scop, s, [*outer, *around], chosen, intrinsic, what, unpadded, any_order=True)


# --- matching ------------------------------------------------------------------------------


def match(
    scop: Scop,
    s: ScopStatement,
    around: Sequence[Member],
    chosen: Sequence[Member],
    intrinsic: MatrixIntrinsic,
    what: str,
    unpadded: Sequence[str] = (),
    any_order: bool = False,
) -> Matched:
    """Match a statement with an instruction; `chosen` are its loops in the order of the meaning's.

    s : with the instances that are run; unpadded : operands that could be padded
    any_order : the loops have been matched before; now their order in the tree is fixed

    Raises
    ------
    ScheduleError : it does not match; the message begins with `what`.
    """
    if any_order:
        chosen = in_order_of_target(scop, s, around, chosen)
    meaning = intrinsic.meaning.statements[0]
    operands = _operands(s, scop, intrinsic, what)
    roles = meaning.indices[: _roles(s, what)]
    _check_full(scop, s, around, chosen, intrinsic, what, unpadded)
    times = prefix_map(s, [*around, *chosen]).intersect_params(scop.context)
    relations = {s.target: s.write, **dict(zip(s.source.reads, s.reads[1:], strict=False))}
    moves = {
        read: {
            x: movement(times.reverse().apply_range(relations[read]), len(around) + n)
            for n, x in enumerate(roles)
        }
        for read in (s.target, *operands)
    }
    dims = _unified(meaning.target, moves[s.target])
    loops = dict(zip(roles, (m.name for m in chosen), strict=True))
    if dims is None:
        raise ScheduleError(_mismatch(meaning.target, s.target, loops, meaning, what))
    for pair in (operands, operands[::-1]):
        wrong = [
            (pattern, read)
            for pattern, read in zip(meaning.reads, pair, strict=False)
            if _unified(pattern, moves[read]) is None
        ]
        if not wrong:
            return Matched(intrinsic, pair, *dims)
    # A product has no order; the better match of the two is reported.
    raise ScheduleError(_mismatch(*wrong[0], loops, meaning, what))


def _mismatch(
    pattern: Read, read: Read, loops: Mapping[str, str], meaning: Statement, what: str
) -> str:
    own = " and ".join(loops[x] for x in loops if Index(x) in pattern.indices)
    return (
        f"{what}: {read} is not {pattern} of `{meaning}`; it must move by one along a dimension "
        f"of its own with each of {own}, and be invariant otherwise"
    )


def _roles(s: ScopStatement, what: str) -> int:
    """The number of loops of the instruction for a statement: sums begin, or are added to."""
    if s.source.op != "+=" or s.role not in (Role.UPDATE, Role.INIT):
        raise ScheduleError(f"{what}: {s.name} is not a sum")
    return 3 if s.role == Role.UPDATE else 2


def _operands(
    s: ScopStatement, scop: Scop, intrinsic: MatrixIntrinsic, what: str
) -> tuple[Read, ...]:
    """The elements that are multiplied, in the order of the meaning as far as types tell."""
    tensors = scop.program.tensors
    target = tensors[s.target.tensor].dtype
    allowed = dict.fromkeys((ACCUMULATOR, intrinsic.operand))
    if target not in allowed:
        raise ScheduleError(
            f"{what}: {s.target.tensor} is {target}, but {intrinsic.name} sums up "
            f"{' or '.join(map(str, allowed))}"
        )
    if s.role == Role.INIT:
        return ()
    if not s.is_reduction:
        raise ScheduleError(f"{what}: {s.name} reads {s.target.tensor}, which it also updates")
    reads = [_operand(e) for e in s.value.args] if (
        isinstance(s.value, Op) and s.value.fn == "mul") else []  # fmt: skip
    pair = tuple(r for r in reads if r is not None)
    if len(pair) != 2 or s.may_reads:
        raise ScheduleError(
            f"{what}: {s.name} adds {s.value}, and not a product of two elements as "
            f"`{intrinsic.meaning.statements[0]}`"
        )
    for read in pair:
        dtype = tensors[read.tensor].dtype
        if dtype != intrinsic.operand:
            raise ScheduleError(
                f"{what}: {read.tensor} is {dtype}, but {intrinsic.name} multiplies "
                f"{intrinsic.operand}"
            )
    return pair


def _operand(value: Expr) -> Read | None:
    """An element, either plain or converted to the type of the sum."""
    if isinstance(value, Cast) and value.dtype == ACCUMULATOR:
        value = value.arg
    return value if isinstance(value, Read) else None


def _check_full(
    scop: Scop,
    s: ScopStatement,
    around: Sequence[Member],
    chosen: Sequence[Member],
    intrinsic: MatrixIntrinsic,
    what: str,
    unpadded: Sequence[str],
) -> None:
    """Refuse tiles of other extents, partial ones, and several instances at one time."""
    for m, extent in zip(chosen, intrinsic.extents, strict=False):
        limits = limits_of(m, s)
        if limits != (0, extent - 1):
            raise other_extent(m, limits, extent, intrinsic, what)
    if not are_full(scop, s, around, chosen, intrinsic.extents[: len(chosen)], what):
        sizes = ", ".join(map(str, intrinsic.extents[: len(chosen)]))
        advice = f"fix the sizes to multiples of {sizes}"
        if unpadded:
            advice += f", or promote {' and '.join(unpadded)} around as `shared, padded` before"
        raise ScheduleError(f"{what}: not every tile is known to be full; {advice}")


def _unified(pattern: Read, moves: Mapping[str, tuple[int, ...] | None]) -> tuple[int, ...] | None:
    """The dimension of a tensor for each one of the meaning's matrix; None if there is no match."""
    dims: dict[str, int] = {}
    for index, by in moves.items():
        if by is None or any(v not in (0, 1) for v in by) or sum(by) > 1:
            return None
        if sum(by):
            dims[index] = by.index(1)
    wanted = [str(i) for i in pattern.indices]
    if set(dims) != set(wanted) or len(set(dims.values())) != len(wanted):
        return None
    return tuple(dims[x] for x in wanted)


# --- fragments -----------------------------------------------------------------------------


def fragment_of(
    node: Promote, scop: Scop, outer: Sequence[Member], statements: Sequence[str]
) -> Matched:
    """The contents of a fragment: sums of instructions, which no other statement accesses.

    Raises
    ------
    ScheduleError : another statement below accesses the tensor.
    """
    found: dict[str, Matched] = {}
    for name in statements:
        s = scop.statement(name)
        accesses = (s.write, *s.all_reads)
        if all(m.get_tuple_name(isl.dim_type.out) != node.tensor for m in accesses):
            continue
        if instruction_of(node.child, name) is None or s.target.tensor != node.tensor:
            raise ScheduleError(
                f"{node.tensor} cannot be kept in a fragment here: {name} accesses single elements "
                f"of it; tensorize {name}, too, or promote further in"
            )
        found[name] = matched(node.child, scop, outer, name)
    shapes = {(m.intrinsic, m.rows, m.columns) for m in found.values()}
    if len(shapes) != 1:
        raise ScheduleError(
            f"{node.tensor} cannot be kept in a fragment here: nothing below is an instruction, or "
            "the instructions below have their sums in different places"
        )
    return next(iter(found.values()))
