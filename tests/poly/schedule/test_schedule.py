"""Schedules: steps, scripts and their round trip, errors, and hostile arguments."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen.c.kernel_unit import generate
from poly.errors import ArgumentError, FarkasError, IllegalScheduleError, ScheduleError
from poly.ir.program import Program
from poly.schedule.primitives import PRIMITIVES
from poly.schedule.schedule import Schedule
from poly.tree.kinds import Mark
from poly.tree.nodes import loops_of
from poly.tree.steps import Step
from runtime.reference.interpret import instances
from tests.poly.oracle import broken_pairs, tree_order
from tests.poly.random_programs import NOT_DRAWN, programs, steps
from tests.poly.texts import MATMUL, SOFTMAX, schedule

SCRIPT = """\
tile mm: i, j, k by 4, 8, 16
interchange mm: i_i, j_i
parallelize mm: i_o
vectorize mm: k_i by 4 as a, b"""


def test_a_schedule_is_a_value() -> None:
    s = schedule(MATMUL)
    t = s.tile("mm", ["i", "j"], [4, 8])
    assert s.steps == () and str(s) == "" and s.loops("mm") == ("i", "j", "k")
    assert t.loops("mm") == ("i_o", "j_o", "i_i", "j_i", "k")
    assert s.statements == ("mm_init", "mm") and not s.exact
    assert s.digest != t.digest != schedule(MATMUL, exact=True).tile("mm", "ij", [4, 8]).digest
    assert t.digest == schedule(MATMUL).replay(str(t)).digest


def test_methods_and_scripts_say_the_same() -> None:
    built = (
        schedule(SOFTMAX)
        .fuse("top_init", "top", ["i"])
        .fuse("top", "e", ["i"])
        .distribute("e", "i")
        .split("e", "j", 4)
        .split("sum", "j", 8, ["outer", "inner"])
        .interchange("e", "j_o", "j_i")
        .reorder("e", ["i", "j_o", "j_i"])
        .skew("norm", "j", "i", 2)
        .shift("norm", "j", -3)
        .reverse("norm", "i")
        .parallelize("norm", "i")
        .vectorize("e", "j_i")
        .unroll("sum", "inner", 2)
        .isolate("sum", "outer")
        .promote("sum", "i", "s", "register", [0])
    )
    script = """\
fuse top_init, top: i
fuse top, e: i
distribute e: i
split e: j by 4
split sum: j by 8 as outer, inner
interchange e: j_o, j_i
reorder e: i, j_o, j_i
skew norm: j, i by 2
shift norm: j by -3
reverse norm: i
parallelize norm: i
vectorize e: j_i
unroll sum: inner by 2
isolate sum: outer
promote sum: i as s, register, 0"""
    assert str(built) == script
    again = schedule(SOFTMAX, script)
    assert again.steps == built.steps and again.show == built.show


@given(programs(), st.booleans(), st.data())
@settings(max_examples=60)
def test_random_schedules(program: Program, exact: bool, data: st.DataObject) -> None:
    """What is accepted breaks no pair, runs every instance once, and replays to the same tree."""
    start = Schedule.of(program, exact)
    s = start
    for _ in range(data.draw(st.integers(1, 6))):
        try:
            s = s.apply(data.draw(steps(s.tree, s.scop)))
        except ScheduleError:
            continue
    for size in (1, 3):
        assert not broken_pairs(s.tree, s.scop, {"N": size}, exact)
        order = tree_order(s.tree, s.scop, {"N": size})
        assert sorted(map(str, order)) == sorted(map(str, instances(program, {"N": size})))
    assert start.replay(str(s)).show == s.show


def test_every_primitive_is_drawn_and_makes_sense_somewhere() -> None:
    """Otherwise no random schedule has it: `steps` gives it no arguments, or wrong ones."""
    start = schedule(
        "def f(float32 X[8,8,8]) -> (Y) { S: Y[i,j] +=! X[i,j,k] }", "fuse S_init, S: i, j"
    )
    done = set(NOT_DRAWN)

    @given(st.data())
    @settings(max_examples=600)
    def walk(data: st.DataObject) -> None:
        tree = start.tree
        for _ in range(data.draw(st.integers(1, 4))):
            step = data.draw(steps(tree, start.scop))
            with suppress(ScheduleError):
                tree = PRIMITIVES[step.primitive](tree, start.scop, step)
                done.add(step.primitive)

    walk()
    assert done == set(PRIMITIVES), "tests/poly/random_programs.py: `steps`, or `NOT_DRAWN`"


def test_a_draft_is_checked_at_its_end() -> None:
    """What breaks a dependence is found whenever it happened, and no code is made before."""
    written = schedule(
        "def f(float32 A[9,9]) -> (A) { S: A[i+1,j] = A[i,j+1] where i in 0:8, j in 0:8 }"
    )
    with pytest.raises(IllegalScheduleError, match="interchange S: i, j"):
        written.interchange("S", "i", "j")
    draft = written.draft().interchange("S", "i", "j")
    assert draft.is_draft and draft.tile("S", ["j", "i"], [4, 4]).is_draft
    with pytest.raises(
        ScheduleError, match=r"a draft: its steps are not checked, call \.checked\(\)"
    ):
        generate(draft)
    with pytest.raises(IllegalScheduleError, match=r"the schedule.*\bS\[") as refused:
        draft.checked()
    assert refused.value.violation is not None
    legal = draft.interchange("S", "j", "i").checked()
    assert not legal.is_draft and legal.loops("S") == ("i", "j")
    assert generate(legal).text
    # A script is what its last tree is; the line is named where that is not legal.
    assert written.replay(str(legal)).steps == legal.steps
    with pytest.raises(IllegalScheduleError, match="interchange S: i, j") as named:
        written.replay("split S: j by 4\n\ninterchange S: i, j_o")
    assert named.value.__notes__ == ["at line 3 of the script: interchange S: i, j_o"]


def test_replay_on_other_sizes() -> None:
    fixed = MATMUL.replace("N,K", "5,7").replace("K,M", "7,9")
    script = "tile mm: i, j, k by 4, 8, 16\nparallelize mm: i_o"
    assert schedule(MATMUL, script).loops("mm") == schedule(fixed, script).loops("mm")


def test_replay_names_the_line() -> None:
    with pytest.raises(
        ScheduleError, match="there is no loop z around mm; there are: i, j, k"
    ) as e:
        schedule(MATMUL, "# first\n\ntile mm: z by 4")
    assert e.value.__notes__ == ["at line 3 of the script: tile mm: z by 4"]
    with pytest.raises(IllegalScheduleError) as e:
        schedule(MATMUL, "split mm: k by 4\n\nparallelize mm: k_i # no")
    assert e.value.__notes__ == ["at line 3 of the script: parallelize mm: k_i"]


def test_comments_are_kept() -> None:
    script = "# A product.\n\nsplit mm: k by 4  # for the cache\n    # and\nparallelize mm: i#!"
    s = schedule(MATMUL, script)
    assert str(s) == script and len(s.steps) == 2
    assert s.digest == schedule(MATMUL, "split mm: k by 4\nparallelize mm: i").digest
    assert str(s.unroll("mm", "j", 2)) == script + "\nunroll mm: j by 2"
    assert str(schedule(MATMUL).replay(str(s))) == script


def test_diff() -> None:
    one = schedule(MATMUL, "split mm: k by 4\nparallelize mm: i")
    other = schedule(MATMUL, "split mm: k by 8\nparallelize mm: i")
    found = one.diff(other)
    assert found and found["program"] == ""
    assert [name for name, _ in found.parts] == ["script", "tree"]
    assert found["script"] == (
        "--- script (one)\n+++ script (other)\n@@ -1,2 +1,2 @@\n"
        "-split mm: k by 4\n+split mm: k by 8\n parallelize mm: i"
    )
    assert "\n-      for k_o: mm[i, j, k] -> [(floor((k)/4))]\n" in found["tree"]
    assert not one.diff(one) and str(one.diff(one)) == ""
    fixed = schedule(MATMUL.replace("N,K", "5,7").replace("K,M", "7,9"), str(one))
    assert [name for name, _ in one.diff(fixed).parts] == ["program"]


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda s: s.tile("mm", ["i", "j"], 8), "8 is not a list of numbers"),
        (lambda s: s.tile("mm", "i, j", [8, 8]), "'i, j' is one string; pass a list of names"),
        (lambda s: s.reorder("mm", 3), "3 is not a list of names"),
        (lambda s: s.replay(["tile mm: i by 4"]), "a script is a text, not a list"),
        (lambda s: s.diff("x"), "expected a Schedule, not a str"),
        (lambda s: Schedule.of("C[i] = A[i]"), "Schedule.of takes a Program, not a str"),
    ],
)
def test_arguments_of_another_type(wrong: Callable[[Any], object], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        wrong(schedule(MATMUL))


def test_an_error_leaves_the_schedule_alone() -> None:
    s = schedule(MATMUL)
    with pytest.raises(IllegalScheduleError):
        s.parallelize("mm", "k")
    assert s.steps == () and s.parallelize("mm", "i").loops("mm") == ("i", "j", "k")


BAD = [
    (Step("nonsense", ("mm",)), "there is no primitive 'nonsense'"),
    (Step("tile", ()), "tile takes one statement, as in `tile C: i, j by 32, 32`"),
    (Step("tile", ("mm", "mm"), ("i",), (2,)), "tile takes one statement"),
    (Step("fuse", ("mm",), ("i",)), "fuse takes two statements, as in `fuse S, T: i`"),
    (Step("reschedule", ("mm",)), "reschedule takes no statement"),
    (Step("split", ("nope",), ("i",), (2,)), "there is no statement nope"),
    (Step("split", ("mm",), ("a b",), (2,)), "'a b' is not a name of a statement or loop"),
    (Step("split", ("mm",), ("",), (2,)), "'' is not a name"),
    (Step("split", ("mm",), ("i",), ()), "1 factors are needed, 0 are given"),
    (Step("split", ("mm",), ("i",), (0,)), "0 is not a usable factor"),
    (Step("split", ("mm",), ("i",), (-4,)), "-4 is not a usable factor"),
    (Step("split", ("mm",), ("i",), (10**30,)), "is too large"),
    (Step("split", ("mm",), ("i",), (2.5,)), "2.5 is not an integer"),  # type: ignore[arg-type]
    (Step("split", ("mm",), ("i", "j"), (2,)), "split takes one loop; tile takes several"),
    (Step("split", ("mm",), ("i",), (2,), ("a",)), "two names for each loop"),
    (Step("split", ("mm",), ("i",), (2,), ("a", "a")), "need different names, not a, a"),
    (Step("split", ("mm",), ("i",), (2,), ("a", "j")), "there is already a loop j"),
    (Step("split", ("mm",), ("i",), (2,), ("a", "b;")), "'b;' is not a name"),
    (Step("split", ("mm",), ("i",), (2,), (1, 2)), "1 is not a name"),  # type: ignore[arg-type]
    (Step("tile", ("mm",), ("i", "i"), (2, 2)), "a loop is named twice"),
    (Step("tile", ("mm",), ("i", "k"), (2, 2)), "the loops must be adjacent"),
    (Step("tile", ("mm",), ("j", "i"), (2, 2)), "outermost first"),
    (Step("tile", ("mm",), (), ()), "at least 1 loops"),
    (Step("interchange", ("mm",), ("i", "j", "k")), "use reorder for more"),
    (Step("interchange", ("mm",), ("i", "j"), (3,)), "interchange takes no numbers"),
    (Step("reorder", ("mm",), ("i",)), "at least 2 loops"),
    (Step("fuse", ("mm", "mm"), ("i",)), "already share all loops"),
    (Step("fuse", ("mm_init", "mm"), ()), "say which loops to share"),
    (Step("fuse", ("mm", "mm_init"), ("i",)), "name the earlier one first"),
    (Step("fuse", ("mm_init", "mm"), ("i", "j", "k")), "3 loops cannot be shared"),
    (Step("fuse", ("mm_init", "mm"), ("j",)), "the outermost loops of mm_init are i"),
    (Step("distribute", ("mm",), ("i",)), "there is only one statement"),
    (Step("sink", ("mm",), ("i",)), "mm_init has a loop i"),
    (Step("sink", ("mm",), ("k",)), "must be the outermost loop of a nest"),
    (Step("distribute", ("mm",), ("i", "j")), "distribute takes one loop"),
    (Step("skew", ("mm",), ("i", "i"), (1,)), "cannot be skewed by itself"),
    (Step("skew", ("mm",), ("i", "j"), ()), "write `skew S: j, i by 2`"),
    (Step("skew", ("mm",), ("i", "j"), (-(10**30),)), "is too large"),
    (Step("shift", ("mm",), ("i",), (1 << 31,)), "is too large"),
    (Step("reverse", ("mm",), ()), "reverse takes one loop, as in `reverse mm: i`"),
    (
        Step("parallelize", ("mm",), ("i", "j")),
        "parallelize takes one loop; write `parallelize mm: i`, then `parallelize mm: j`",
    ),
    (
        Step("parallelize", ("mm_init", "mm"), ("i",)),
        "takes one statement; write `parallelize mm_init: i`, then `parallelize mm: i`; a loop",
    ),
    (
        Step("skew", ("mm",), ("k", "i", "j"), (2,)),
        "skew adds one loop to another; write `skew mm: k, i by 2`, then `skew mm: k, j by 2`",
    ),
    (
        Step("skew", ("mm",), ("k", "i", "j"), (2, 3)),
        "write `skew mm: k, i by 2`, then `skew mm: k, j by 3`",
    ),
    (
        Step("skew", ("mm_init", "mm"), ("j", "i"), (1,)),
        "write `skew mm_init: j, i by 1`, then `skew mm: j, i by 1`",
    ),
    (Step("unroll", ("mm",), ("i", "j", "k", "l")), "then `unroll mm: k`, and so on"),
    (Step("parallelize", ("mm",), ("i",), (4,)), "parallelize takes no numbers"),
    (Step("parallelize", ("mm",), ("i",), (), ("x",)), "parallelize takes no words"),
    (Step("vectorize", ("mm",), ("j",)), None),
    (Step("vectorize", ("mm",), ("j",), (), ("a", "b")), "only with a number"),
    (Step("unroll", ("mm",), ("k",), (2, 3)), "1 factors are needed"),
    (Step("promote", ("mm",), ("i",)), "write `promote S: loop as tensor, register`"),
    (Step("promote", ("mm",), ("i",), (), ("Z", "local")), "there is no tensor Z"),
    (Step("promote", ("mm",), ("i",), (), ("A", "global")), "`shared` or `fragment`, not global"),
    (Step("promote", ("mm",), ("i",), (), ("A", "local", "x", "y")), "each dimension of A once"),
    (Step("promote", ("mm",), ("i",), (), ("A", "local", "9" * 5000)), "each dimension of A once"),
    (Step("promote", ("mm",), ("i",), (), ("A", "local", "1")), "each dimension of A once"),
    (Step("promote", ("mm",), ("i",), (), ("A", "local", "float64")), "is computed in float32, so"),
    (Step("promote", ("mm",), ("i",), (), ("A", "shared", "float32")), "only a `register` or"),
    (Step("promote", ("mm",), ("j",), (), ("C", "local")), None),
    (Step("promote", ("mm",), ("i",), (), ("B", "local")), "no constant bound in dimension 0"),
    (Step("promote", ("mm_init",), ("i",), (), ("B", "local")), "B is not accessed by mm_init"),
]  # fmt: skip


@pytest.mark.parametrize(("step", "message"), BAD, ids=range(len(BAD)))
def test_bad_arguments(step: Step, message: str | None) -> None:
    if message is None:
        schedule(MATMUL).apply(step)
        return
    with pytest.raises(ScheduleError) as caught:
        schedule(MATMUL).apply(step)
    assert not isinstance(caught.value, IllegalScheduleError)
    assert message in str(caught.value)


def test_numbers_may_be_numpy_integers() -> None:
    s = schedule(MATMUL).split("mm", "i", np.int64(4))  # type: ignore[arg-type]
    assert str(s) == "split mm: i by 4" and type(s.steps[0].by[0]) is int


def test_new_names_are_checked_for_every_statement_in_the_nest() -> None:
    """Splitting i for a gives b, which shares it, a second i_o."""
    text = "def f(float32 X[N,M]) -> (Y, Z) { a: Y[i,j] = X[i,j]\n b: Z[p,q] = Y[p,q] }"
    s = schedule(text, "fuse a, b: i\nsplit b: q by 4 as i_o, i_i")
    with pytest.raises(ScheduleError, match="there is already a loop i_o"):
        s.split("a", "i", 4)
    assert s.split("a", "j", 4, ["i_o", "i_i"]).loops("a") == ("i", "i_o", "i_i")


WORDS = ("i", "j", "k", "i_o", "zz", "", "C", "1", "a b", "mm", "-1", "0", "register", "9" * 40)
NUMBERS = (0, 1, 2, 4, -1, 1 << 30, 1 << 31, 1 << 64, 10**30)


@pytest.mark.parametrize("seed", range(3))
def test_any_arguments_give_an_error_of_our_own(seed: int) -> None:
    rng = random.Random(seed)
    texts = [MATMUL, SOFTMAX, "def f(float32 x[], float32 y[]) -> (x) { a: x[] += y[] }"]
    for _ in range(60):
        s = schedule(rng.choice(texts))
        for _ in range(4):
            names = (*s.statements, *s.loops(s.statements[-1]), *WORDS)
            chosen = rng.choices((*s.statements, *WORDS), k=rng.choice([1, 1, 1, 0, 2, 3]))
            step = Step(
                rng.choice([*PRIMITIVES, "no"]),
                tuple(chosen),
                tuple(rng.choices(names, k=rng.randint(0, 3))),
                tuple(rng.choices(NUMBERS, k=rng.choice([0, 0, 1, 2]))),
                tuple(rng.choices(names, k=rng.choice([0, 0, 2, 4]))),
            )
            try:
                s = s.apply(step)
            except FarkasError:
                continue
            assert schedule(str(s.program), str(s)).show == s.show


def test_arguments_that_are_no_schedule_arguments() -> None:
    s = schedule(MATMUL)
    with pytest.raises(ScheduleError, match=r"5 is not a list of numbers, as in \[8, 8\]"):
        s.promote("mm", "j", "A", "local", layout=5)  # type: ignore[arg-type]
    with pytest.raises(ScheduleError, match="expected a Step, not a NoneType"):
        s.apply(None)  # type: ignore[arg-type]
    for sizes, message in (
        ({}, "no value is given for"),
        ([3], "sizes are given by name"),
        ({"Q": 1}, "has no size 'Q'"),
    ):
        with pytest.raises(ArgumentError, match=message):
            s.footprints("mm", sizes)  # type: ignore[arg-type]


def test_fused_loops_on_threads_share_these() -> None:
    """Both have to run on threads, and what one passes to the other stays in an iteration."""
    text = (
        "def f(float32 X[N,M]) -> (Y) {{ T[i,j] = 2 * X[i,j]\n"
        "Y[i,j] = T[{},j] + 1 where i in 0:N-1 }}"
    )
    s = schedule(text.format("i")).parallelize("S0", "i")
    with pytest.raises(ScheduleError, match="i is already marked parallel"):
        s.fuse("S0", "S1", ["i"])
    with pytest.raises(IllegalScheduleError):
        schedule(text.format("i+1")).parallelize("S0", "i").parallelize("S1", "i").fuse(
            "S0", "S1", ["i"]
        )
    fused = s.parallelize("S1", "i").fuse("S0", "S1", ["i"])
    assert [m.mark for m in loops_of(fused.tree, "S1")] == [Mark.PARALLEL, Mark.SEQ]
