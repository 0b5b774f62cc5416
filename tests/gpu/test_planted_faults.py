"""Faults planted in generated kernels: each is found by the checks that are there to find it.

`FAULTS` says for each which layers (see `tests.gpu.layers`) have to report it.  The kernels as they
were generated are clean in all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path

import pytest

from codegen.gpu import emit
from codegen.loops.nodes import Block, Buffer, If, LoopNode, Store, Wait
from codegen.loops.traverse import map_children, walk_loops
from poly.errors import ScheduleError
from poly.ir.expr import Const, Expr, Index, Op, Read, substitute
from tests.gpu.layers import Edit, findings, missing_layers
from tests.gpu.programs import CASES, MATMUL, SHARED, Case
from tests.gpu.races import without_wait

TILES = Case(MATMUL, SHARED.replace("16, 16", "4, 4").replace("by 8", "by 4"),
             {"N": 6, "K": 7, "M": 9}, 1, 2)  # fmt: skip


def each(change: Callable[[LoopNode], LoopNode]) -> Edit:
    """Applies a change to every node, bottom up."""

    def visit(node: LoopNode) -> LoopNode:
        return change(map_children(node, visit))

    return visit


def stores(array: str, change: Callable[[Store], LoopNode]) -> Edit:
    """Applies a change to the stores to an array; there have to be some."""

    def edit(body: LoopNode) -> LoopNode:
        def own(node: LoopNode) -> bool:
            return isinstance(node, Store) and node.target.tensor == array

        assert any(own(n) for n in walk_loops(body))
        return each(lambda n: change(n) if own(n) else n)(body)  # type: ignore[arg-type]

    return edit


def waits_not(number: int) -> Edit:
    return lambda body: without_wait(body, number)


def unguarded(what: str) -> Edit:
    """Leaves out what conditions say of something; one at least has to say it."""

    def edit(body: LoopNode) -> LoopNode:
        def change(node: LoopNode) -> LoopNode:
            if not isinstance(node, If) or what not in str(node.cond):
                return node
            kept = [c for c in _conjuncts(node.cond) if what not in str(c)]
            if not kept:
                return node.then
            return replace(node, cond=reduce(lambda a, b: Op("and", (a, b)), kept))

        changed = each(change)(body)
        assert changed != body
        return changed

    return edit


def _conjuncts(cond: Expr) -> list[Expr]:
    if isinstance(cond, Op) and cond.fn == "and":
        return [part for a in cond.args for part in _conjuncts(a)]
    return [cond]


def moved(read: Read, dimension: int, to: Callable[[Expr], Expr]) -> Read:
    indices = list(read.indices)
    indices[dimension] = to(indices[dimension])
    return replace(read, indices=tuple(indices))


# --- a buffer in two halves -------------------------------------------------------------------


def in_halves(read_at: int) -> Edit:
    """What is shared twice, filled in turns, so that nobody waits behind the use.

    read_at : in step k the half ``(k + read_at) mod 2`` is read, and k mod 2 filled
    """

    def half(offset: int) -> Expr:
        return Op("mod", (Op("add", (Index("k_o"), Const(offset))), Const(2)))

    def values(e: Expr) -> Expr:
        if isinstance(e, Read):
            return e if not e.tensor.endswith("_s") else with_half(e, read_at)
        return replace(e, args=tuple(map(values, e.args))) if isinstance(e, Op) else e

    def with_half(read: Read, offset: int) -> Read:
        return replace(read, indices=(half(offset), *read.indices))

    def change(node: LoopNode) -> LoopNode:
        if isinstance(node, Buffer) and node.scope == "shared":
            return replace(node, shape=(2, *node.shape))
        if isinstance(node, Store):
            to = with_half(node.target, 0) if node.target.tensor.endswith("_s") else node.target
            return replace(node, target=to, value=values(node.value))
        return node

    return lambda body: each(change)(without_wait(body, 1))


# --- the faults -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """`must` : the layers that have to report it."""

    case: Case
    edit: Edit
    must: str


def _one_less(e: Expr) -> Expr:
    return Op("max", (Op("sub", (e, Const(1))), Const(0)))


def _one_more(e: Expr) -> Expr:
    return Op("add", (e, Const(1)))


def _first_block(e: Expr) -> Expr:
    return substitute(e, {"block_x": Const(0)})


def _some_wait(node: LoopNode) -> LoopNode:
    return If(Op("lt", (Index("thread_x"), Const(3))), node) if isinstance(node, Wait) else node


FAULTS = {
    "no barrier before the use": Fault(
        TILES, waits_not(0), "results thread oclgrind races"
    ),
    "no barrier behind the use": Fault(
        TILES, waits_not(1), "results thread oclgrind races"
    ),
    "no barrier between steps of time": Fault(
        CASES["one block runs time"], waits_not(0), "results thread oclgrind races"
    ),
    "shared memory is too short": Fault(
        TILES,
        stores("A_s", lambda s: replace(s, target=moved(s.target, 1, _one_more))),
        "results address oclgrind",
    ),
    "a row too many": Fault(TILES, unguarded("+ thread_y + 1"), "address oclgrind"),
    "an element before the first": Fault(
        CASES["the host runs time"],
        unguarded("+ thread_x >= 1"),
        "results address oclgrind",
    ),
    "blocks write to one place": Fault(
        TILES,
        stores("C", lambda s: replace(s, target=moved(s.target, 1, _first_block))),
        "results thread oclgrind races",
    ),
    "a barrier that some do not reach": Fault(
        TILES, each(_some_wait), "results address thread oclgrind races"
    ),
    "a column that nobody fills": Fault(
        TILES,
        stores("A_s", lambda s: If(Op("ne", (Index("A_s_in_column"), Const(1))), s)),
        "results oclgrind",
    ),
    "sums that do not begin": Fault(
        TILES, stores("C", lambda s: Block(()) if s.op == "=" else s), "results oclgrind"
    ),
    "a maximum instead of a sum": Fault(
        TILES, stores("C", lambda s: replace(s, op="max=") if s.op == "+=" else s), "results"
    ),
    "every thread has the sum of the block": Fault(
        CASES["rows"], unguarded("thread_x == 0"), "results thread oclgrind races"
    ),
    "a thread writes to its neighbour's element": Fault(
        CASES["neighbours"],
        stores("T", lambda s: replace(s, target=moved(s.target, 0, _one_less))),
        "results thread oclgrind races",
    ),
    "the half that is being filled is read": Fault(
        TILES, in_halves(1), "results thread oclgrind races"
    ),
}  # fmt: skip
CLEAN = {
    "tiles": Fault(TILES, lambda body: body, ""),
    "halves that take turns": Fault(TILES, in_halves(0), ""),
    "one block runs time": Fault(CASES["one block runs time"], lambda body: body, ""),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=list(FAULTS))
def test_a_fault_is_found(fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Barriers that some threads do not reach are refused before anything runs.
    monkeypatch.setattr(emit, "check_barriers", lambda body: body)
    case, must = fault.case, set(fault.must.split())
    found = findings(case.text, case.script, case.sizes, fault.edit, tmp_path)
    assert must and must - missing_layers() <= found


def test_a_barrier_that_some_do_not_reach_is_refused(tmp_path: Path) -> None:
    fault = FAULTS["a barrier that some do not reach"]
    case = fault.case
    with pytest.raises(ScheduleError, match=r"different barriers: the condition thread_x < 3"):
        findings(case.text, case.script, case.sizes, fault.edit, tmp_path)


@pytest.mark.parametrize("clean", CLEAN.values(), ids=list(CLEAN))
def test_nothing_is_found_where_nothing_is_wrong(clean: Fault, tmp_path: Path) -> None:
    case = clean.case
    assert findings(case.text, case.script, case.sizes, clean.edit, tmp_path) == set()
