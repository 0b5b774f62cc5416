"""Random small programs and random steps, for comparison with enumeration."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from poly.deps.scop import Scop
from poly.ir.dtypes import FLOAT32, INT64
from poly.ir.expr import Const, Expr, Index, Op, Read, Size
from poly.ir.program import Program, Range, Statement, Tensor, verify_program
from poly.schedule.primitives import PRIMITIVES
from poly.tree.nodes import Node, loops_of
from poly.tree.steps import Step

N = Size("N")
RANKS = {"A": 1, "B": 2, "s": 0}
_TENSORS = tuple(Tensor(n, FLOAT32, (N,) * rank) for n, rank in RANKS.items())
_INPUTS = (Tensor("I", INT64, (N,)),)


def _op(fn: str, a: Expr, b: Expr | int) -> Op:
    return Op(fn, (a, b if isinstance(b, Expr) else Const(b)))


@st.composite
def places(draw: st.DrawFn, indices: tuple[str, ...], data: bool = False) -> Expr:
    """A quasi-affine index; bounds play no role for dependences."""
    if not indices:
        return draw(st.sampled_from([Const(0), Const(1), _op("sub", N, 1)]))
    i: Expr = Index(draw(st.sampled_from(indices)))
    shape = draw(st.sampled_from("iiiiccpp2/%mrn" + ("d" if data else "")))
    if shape == "c":
        return _op("add", i, draw(st.integers(-2, 3)))
    if shape == "p":
        return _op(draw(st.sampled_from(["add", "sub"])), i, Index(draw(st.sampled_from(indices))))
    if shape == "2":
        return _op("add", _op("mul", i, 2), draw(st.integers(0, 1)))
    if shape == "/":
        return _op("floordiv", i, draw(st.integers(2, 3)))
    if shape == "%":
        return _op("mod", i, draw(st.integers(2, 3)))
    if shape == "m":
        return _op("sub", _op("sub", N, 1), i)
    if shape == "r":
        return Const(draw(st.integers(0, 2)))
    if shape == "n":
        return _op("sub", N, draw(st.integers(1, 2)))
    return Read("I", (i,)) if shape == "d" else i


@st.composite
def reads(draw: st.DrawFn, indices: tuple[str, ...], data: bool = False) -> Read:
    tensor = draw(st.sampled_from(sorted(RANKS)))
    return Read(tensor, tuple(draw(places(indices, data)) for _ in range(RANKS[tensor])))


@st.composite
def statements(draw: st.DrawFn, name: str) -> Statement:
    indices = tuple("ijk"[: draw(st.sampled_from([0, 1, 1, 1, 2, 2, 2, 3]))])
    op = draw(st.sampled_from(["=", "=", "=", "+=", "+=", "max="]))
    free = indices if op == "=" else indices[: draw(st.integers(0, len(indices)))]
    init = op != "=" and draw(st.booleans())
    ranges = []
    for i in indices:
        lo = draw(st.sampled_from([0, 0, 0, 1, 2]))
        hi: Expr = draw(st.sampled_from([N, N, N, _op("sub", N, 1), Const(3)]))
        ranges.append(Range(i, Const(lo), hi))
    guards: list[Expr] = []
    if indices and draw(st.integers(0, 3)) == 0:
        left = Index(draw(st.sampled_from(indices)))
        right = draw(places(indices))
        guards.append(
            draw(
                st.sampled_from(
                    [
                        _op("lt", left, right),
                        _op("ge", left, right),
                        _op("eq", _op("mod", left, 2), 0),
                    ]
                )
            )
        )
    value: Expr = draw(reads(indices, data=True))
    if draw(st.booleans()):
        value = _op("add", value, draw(reads(indices)))
    return Statement(
        name, draw(reads(free)), op, init, value, tuple(ranges),
        indices[len(free) :] if op != "=" else (), tuple(guards),
    )  # fmt: skip


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """One to three statements over three tensors that are all read and written."""
    count = draw(st.sampled_from([1, 2, 2, 3]))
    found = tuple(draw(statements(name)) for name in "STU"[:count])
    if draw(st.integers(0, 2)) == 0:
        found = _in_a_block(found)
    written = {s.target.tensor for s in found}
    outputs = tuple(t for t in _TENSORS if t.name in written)
    return verify_program(Program("f", ("N",), (*_TENSORS, *_INPUTS), outputs, (), found))


def _in_a_block(found: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """The statements, of which the first neighbours that can run step by step do."""
    start = next((n for n, s in enumerate(found) if s.free), len(found))
    end = next((n for n in range(start, len(found)) if not found[n].free), len(found))
    step = Range("i", Const(0), N)
    block = (replace(s, ranges=(step, *s.ranges[1:]), block=1) for s in found[start:end])
    return (*found[:start], *block, *found[end:])


#: Primitives that are not drawn: buffers, tensor cores, and what changes no order or all of it.
NOT_DRAWN = {"promote", "tensorize", "isolate", "reschedule"}


@st.composite
def steps(draw: st.DrawFn, tree: Node, scop: Scop) -> Step:
    """A step that may or may not make sense on a tree."""
    names = [s.name for s in scop.statements]
    primitive = draw(st.sampled_from(sorted(set(PRIMITIVES) - NOT_DRAWN) + ["fuse"] * 4))
    if primitive == "fuse":
        first = draw(st.integers(0, len(names) - 1))
        second = draw(st.integers(0, len(names) - 1))
        pair = (names[min(first, second)], names[max(first, second)])
        loops = [m.name for m in loops_of(tree, pair[0])]
        return Step("fuse", pair, tuple(loops[: draw(st.integers(1, max(1, len(loops))))]))
    name = draw(st.sampled_from(names))
    loops = [m.name for m in loops_of(tree, name)] or ["i"]
    one = draw(st.sampled_from(loops))
    small = draw(st.integers(2, 3))
    if primitive in ("split", "vectorize", "unroll"):
        by = (small,) if primitive == "split" or draw(st.booleans()) else ()
        return Step(primitive, (name,), (one,), by)
    if primitive == "tile":
        start = loops.index(one)
        chosen = tuple(loops[start : start + draw(st.integers(1, 2))])
        return Step("tile", (name,), chosen, (small,) * len(chosen))
    if primitive in ("interchange", "reorder", "skew"):
        order = tuple(draw(st.permutations(loops)))
        chosen = order if primitive == "reorder" else order[:2]
        by = (draw(st.sampled_from([-1, 1, 2])),) if primitive == "skew" else ()
        return Step(primitive, (name,), chosen, by)
    by = (draw(st.integers(-2, 2)),) if primitive == "shift" else ()
    return Step(primitive, (name,), (one,), by)
