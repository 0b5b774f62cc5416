"""Operators with subgraphs, which capture values of the graph around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import helper

from tests.graphs.draft import Draft, Value, element_type

#: Adds a few nodes to a draft.
Grow = Callable[[Draft, int], None]


def declared(value: Value, shaped: bool = False) -> onnx.ValueInfoProto:
    shape = list(value.shape) if shaped else None
    return helper.make_tensor_value_info(value.name, element_type(value), shape)


def result_in(
    draft: Draft, body: Draft, suits: Callable[[Value], bool] = lambda v: True
) -> Value | None:
    """An output of a body: computed there, stored there, or an Identity of what is captured."""
    own = [v for v in body.values if suits(v)]
    if own and draft.rng.random() < 0.7:
        return draft.rng.choice(own)
    outer = draft.pick(suits)
    if outer is None:
        return draft.rng.choice(own) if own else None
    found = body.add("Identity", [outer])
    return found[0] if found else None


def branch(draft: Draft, grow: Grow, types: Sequence[Value] | None) -> tuple[Draft, list[Value]]:
    """A branch with a result of each of these types, one or two of its own if None."""
    body = draft.body()
    grow(body, draft.rng.randint(0, 4))
    results: list[Value] = []
    for like in types or [None] * draft.rng.randint(1, 2):
        found = result_in(
            draft, body, lambda v, t=like: t is None or (v.type == t.type and v.rank == t.rank)
        )
        if found is not None and found not in results:
            results.append(found)
    return body, results


def condition(draft: Draft) -> Value | None:
    """A truth value in some role."""
    found = draft.pick(lambda v: v.type == "bool" and v.all(lambda a: a.size == 1))
    if found is not None and draft.rng.random() < 0.6:
        return found
    if draft.rng.random() < 0.5:
        return draft.operand(*(draft.random_array("bool", ()) for _ in range(draft.trials)))
    value = draft.pick(lambda v: v.type == "int64" and v.rank == 0)
    made = draft.add("Greater", [value, draft.operand(np.array(2))]) if value else None
    return made[0] if made else None


def if_node(draft: Draft, grow: Grow) -> None:
    """An If whose branches capture values."""
    chosen = condition(draft)
    if chosen is None:
        return
    one, results = branch(draft, grow, None)
    other, others = branch(draft, grow, results)
    if not results or len(results) != len(others):
        return
    graphs = [
        helper.make_graph(b.nodes, name, [], [declared(v) for v in found], b.initializers)
        for b, found, name in ((one, results, "then"), (other, others, "else"))
    ]
    captured = draft.captures([*one.nodes, *other.nodes])
    draft.add(
        "If", [chosen], len(results), captured, then_branch=graphs[0], else_branch=graphs[1]
    )  # fmt: skip


def loop(draft: Draft, grow: Grow) -> None:
    """A Loop of a few iterations that carries one value and may collect another."""
    carried = draft.pick(lambda v: v.type != "bool")
    if carried is None:
        return
    rng, body = draft.rng, draft.body()
    number = Value(draft.fresh("number"), (np.array(0),) * draft.trials)
    going = Value(draft.fresh("going"), (np.array(True),) * draft.trials)
    state = Value(draft.fresh("state"), carried.arrays)
    body.values += [number, going, state]
    grow(body, rng.randint(0, 3))
    kept = body.add("Identity", [going]) if rng.random() < 0.6 else _goes_on(body, number)
    after = body.add(rng.choice(("Add", "Max", "Identity")), [state, state][: rng.randint(1, 2)])
    after = after or body.add("Identity", [state])
    if not kept or not after:
        return
    results = [kept[0], after[0]]
    collected = result_in(draft, body) if rng.random() < 0.6 else None
    if collected is not None and collected not in (*results, number, going, state):
        results.append(collected)
    graph = helper.make_graph(
        body.nodes, "body",
        [declared(number, True), declared(going, True), declared(state)],
        [declared(v) for v in results], body.initializers,
    )  # fmt: skip
    count = draft.operand(*(np.array(rng.randint(1, 3)) for _ in range(draft.trials)))
    first = condition(draft) if rng.random() < 0.3 else None
    captured = draft.captures(body.nodes)
    draft.add("Loop", [count, first, carried], len(results) - 1, captured, body=graph)


def _goes_on(body: Draft, number: Value) -> list[Value] | None:
    """Whether a Loop goes on: for a few iterations."""
    return body.add("Less", [number, body.operand(np.array(body.rng.randint(0, 3)))])


def scan(draft: Draft, grow: Grow) -> None:
    """A Scan over rows that adds them up."""
    rows = draft.pick(lambda v: v.rank >= 1 and v.type in ("float32", "int64") and 0 not in v.shape)
    if rows is None or not rows.all(lambda a: len(a) > 0):
        return
    body = draft.body()
    sums = draft.add("ReduceMax", [rows], keepdims=0, **_first_axis(draft, rows))
    if not sums:
        return
    state = Value(draft.fresh("state"), sums[0].arrays)
    row = Value(draft.fresh("row"), tuple(a[0] for a in rows.arrays))
    body.values += [state, row]
    grow(body, draft.rng.randint(0, 2))
    added, shown = body.add("Add", [state, row]), body.add("Identity", [row])
    if not added or not shown:
        return
    graph = helper.make_graph(
        body.nodes, "body", [declared(state, True), declared(row, True)],
        [declared(added[0], True), declared(shown[0], True)], body.initializers,
    )  # fmt: skip
    captured = draft.captures(body.nodes)
    draft.add("Scan", [sums[0], rows], 2, captured, body=graph, num_scan_inputs=1)


def _first_axis(draft: Draft, rows: Value) -> dict[str, object]:
    """ReduceMax has its axes as an attribute before opset 18; all axes do for vectors."""
    return {"axes": [0]} if draft.opset < 18 else {}


ALL = {if_node: 4, loop: 2, scan: 1}
