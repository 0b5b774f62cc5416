"""Trees: normal form, walking, and text."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from poly.deps.scop import build_scop
from poly.errors import ScheduleError
from poly.ir.program import Program
from poly.lower.isl_tree import to_isl
from poly.schedule.primitives import PRIMITIVES
from poly.tree.nodes import (
    Band,
    Filter,
    Leaf,
    Node,
    Sequence,
    band,
    leaf,
    loops_of,
    path_to,
    rebuild,
    replace_node,
    sequence,
    show_tree,
    statements_below,
    walk_tree,
)
from tests.poly.random_programs import programs, steps
from tests.poly.texts import MATMUL, SOFTMAX, program, schedule


def is_normal(node: Node) -> bool:
    return all(
        n.members and not isinstance(n.child, Band)
        if isinstance(n, Band)
        else len(n.children) > 1 and not any(isinstance(f.child, Sequence) for f in n.children)
        if isinstance(n, Sequence)
        else True
        for n in walk_tree(node)
    )


def test_normal_form() -> None:
    scop = build_scop(program(MATMUL))
    mm = scop.initial_tree.children[1].child  # type: ignore[attr-defined]
    i, j, k = mm.members
    assert band([], mm) is mm
    assert band([i], band([j, k], leaf())) == mm
    inner = sequence([Filter(("a",), leaf()), Filter(("b",), leaf())])
    assert sequence([Filter(("a", "b"), inner)]) == inner
    flat = sequence([Filter(("a", "b"), inner), Filter(("c",), leaf())])
    assert isinstance(flat, Sequence)
    assert [f.statements for f in flat.children] == [("a",), ("b",), ("c",)]


def test_members_compare_by_what_they_say() -> None:
    a, b = (build_scop(program(MATMUL)).initial_tree for _ in range(2))
    assert a == b and loops_of(a, "mm")[0] != loops_of(a, "mm")[1]
    assert loops_of(a, "mm")[0] != 3


def test_walking() -> None:
    s = schedule(SOFTMAX, "fuse top_init, top: i\nfuse top, e: i")
    path = path_to(s.tree, "top")
    assert [type(n).__name__ for n in path] == ["Sequence", "Band", "Sequence", "Band", "Leaf"]
    assert isinstance(path[-1], Leaf)
    assert statements_below(s.tree, path[1], s.statements) == ("top_init", "top", "e")
    assert statements_below(s.tree, s.tree, s.statements) == s.statements
    assert statements_below(s.tree, leaf(), ("x",)) != ()
    assert replace_node(s.tree, path[1], path[1]) == s.tree
    assert rebuild(s.tree, lambda n: n) == s.tree


def test_text() -> None:
    s = schedule(
        SOFTMAX,
        "fuse top_init, top: i\nfuse top, e: i\nparallelize top: i\nsplit e: j by 8\n"
        "promote top: i as t, register",
    )
    assert (
        s.show
        == show_tree(s.tree)
        == (
            """\
- top_init, top, e
  for i  [parallel]: e[i, j] -> [(i)]; top[i, j] -> [(i)]; top_init[i] -> [(i)]
    promote t to register t_r
      - top_init
      - top
        for j: top[i, j] -> [(j)]
      - e
        for j_o: e[i, j] -> [(floor((j)/8))]
          for j_i: e[i, j] -> [((j) mod 8)]
- sum_init
  for i: sum_init[i] -> [(i)]
- sum
  for i: sum[i, j] -> [(i)]
    for j: sum[i, j] -> [(j)]
- norm
  for i: norm[i, j] -> [(i)]
    for j: norm[i, j] -> [(j)]"""
        )
    )


@given(programs(), st.data())
@settings(max_examples=50)
def test_steps_keep_trees_normal(p: Program, data: st.DataObject) -> None:
    """Also: loop names are unique around each statement, and isl understands the tree."""
    scop = build_scop(p)
    tree = scop.initial_tree
    for _ in range(data.draw(st.integers(1, 6))):
        step = data.draw(steps(tree, scop))
        try:
            tree = PRIMITIVES[step.primitive](tree, scop, step)
        except ScheduleError:
            continue
    assert is_normal(tree)
    for s in scop.statements:
        names = [m.name for m in loops_of(tree, s.name)]
        assert len(set(names)) == len(names)
    assert to_isl(tree, scop).schedule is not None
