"""Simplify bounds and conditions by what the loops and conditions around them imply.

    for i in 0:N: { if (N >= 1) A; for j in 0:min(N - i, 8): B }

needs no condition, and where ``i <= N - 8`` is known, j runs to 8.  What is known at a node is a
set of values of loop variables and sizes; questions about it are answered by isl, and what it
cannot answer stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import islpy as isl

from codegen.loops.conditions import all_of, parts_of
from codegen.loops.nodes import LANE_0, Block, For, If, LoopNode, VectorStore
from codegen.loops.tidy import tidy, tidy_condition
from codegen.loops.traverse import map_children
from poly.ir.expr import (
    KEPT,
    Const,
    Expr,
    Index,
    Op,
    Size,
    evaluate_int,
    reads_of,
    rewrite,
    walk,
)
from poly.ir.linear_form import linear_form
from poly.ir.program import Program
from poly.sets.prove import limited

#: isl operations that one question may take.
EFFORT = 20_000
#: Conditions with more alternatives take longer than they help.
MOST_ALTERNATIVES = 3
_NOTHING = Block(())
_NAME = re.compile(r"\bx\d+\b")
_COMPARE = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "=", "ne": "!="}


def simplify_in_context(root: LoopNode, program: Program) -> LoopNode:
    """Simplify bounds and conditions by what the loops and conditions around them imply."""
    sizes = (Op("le", (Const(0), Size(name))) for name in program.sizes)
    return _visit(root, _Context(_Names(), None, (*sizes, *program.constraints)))


@dataclass(frozen=True)
class _Names:
    """isl's names for variables, sizes, and what is not linear in them; and what was asked."""

    of: dict[Expr, str] = field(default_factory=dict)
    facts: dict[Expr, _Fact | None] = field(default_factory=dict)
    answers: dict[tuple[tuple[_Fact, ...], _Fact], bool | None] = field(default_factory=dict)

    def text(self, e: Expr) -> str | None:
        """isl's text for index arithmetic; None if it depends on data."""
        if isinstance(e, Const):
            whole = type(e.value) is int
            return None if not whole else str(e.value) if int(e.value) >= 0 else f"({e.value})"
        if isinstance(e, (Index, Size)):
            return self._name(e)
        if not isinstance(e, Op) or reads_of(e):
            return None
        args = [self.text(a) for a in e.args]
        if any(a is None for a in args):
            return None
        left, *others = args
        if e.fn == "neg":
            return f"(-{left})"
        right = others[0] if others else ""
        if e.fn in ("add", "sub"):
            return f"({left} {'+' if e.fn == 'add' else '-'} {right})"
        if e.fn in ("min", "max"):
            return f"{e.fn}({left}, {right})"
        if e.fn == "mul":
            # isl takes a literal factor only without parentheses and in front.
            for factor, other in ((e.args[0], right), (e.args[1], left)):
                if isinstance(factor, Const):
                    return f"({factor.value} * {other})"
        # Quotients and remainders written as C's are of values that are not negative.
        if isinstance(e.args[-1], Const) and int(e.args[-1].value) > 0:
            if e.fn in ("floordiv", "div"):
                return f"floor({left}/{right})"
            if e.fn in ("mod", "fmod"):
                return f"({left} mod {right})"
        return self._name(e)

    def condition(self, e: Expr) -> str | None:
        """isl's text for a condition on index arithmetic."""
        if isinstance(e, Const):
            return "true" if e.value else "false"
        if not isinstance(e, Op):
            return None
        if e.fn in ("and", "or", "not"):
            parts = [self.condition(a) for a in e.args]
            if any(p is None for p in parts):
                return None
            return f"(not {parts[0]})" if e.fn == "not" else f"({parts[0]} {e.fn} {parts[1]})"
        if e.fn not in _COMPARE:
            return None
        left, right = (self.text(a) for a in e.args)
        return None if left is None or right is None else f"({left} {_COMPARE[e.fn]} {right})"

    def _name(self, e: Expr) -> str:
        return self.of.setdefault(e, f"x{len(self.of)}")

    def fact(self, condition: Expr) -> _Fact | None:
        """A condition in isl's terms; None if it is not one on index arithmetic."""
        if condition not in self.facts:
            text = self.condition(condition)
            names = frozenset(_NAME.findall(text or ""))
            short = text is not None and text.count(" or ") < MOST_ALTERNATIVES
            self.facts[condition] = _Fact(text, names) if text is not None and short else None
        return self.facts[condition]

    def decide(self, facts: tuple[_Fact, ...], question: _Fact) -> bool | None:
        """Whether the question always holds where the facts do, or never; None if unknown."""
        key = (facts, question)
        if key not in self.answers:
            try:
                with limited(EFFORT):
                    known, holds = _set_of(facts), _set_of((question,))
                    never = (known & holds).is_empty()
                    always = None if never else known.is_subset(holds) or None
                    self.answers[key] = False if never else always
            except isl.Error:
                self.answers[key] = None
        return self.answers[key]


@dataclass(frozen=True)
class _Fact:
    """A condition as isl's text, and the names in it."""

    text: str
    names: frozenset[str]


@lru_cache(maxsize=KEPT)
def _set_of(facts: tuple[_Fact, ...]) -> isl.Set:
    """The values for which all of these hold."""
    names = sorted({name for f in facts for name in f.names})
    return isl.Set(
        f"[{', '.join(names)}] -> {{ : {' and '.join(f.text for f in facts) or 'true'} }}"
    )


@dataclass(frozen=True)
class _Context:
    """What is known at a node.

    outer : at the node around it; conditions : what more is known
    """

    names: _Names
    outer: _Context | None = None
    conditions: tuple[Expr, ...] = ()

    def given(self, *conditions: Expr) -> _Context:
        """With more conditions, as far as these are affine."""
        return _Context(self.names, self, conditions)

    @cached_property
    def facts(self) -> tuple[_Fact, ...]:
        """What is known about variables and sizes."""
        found = () if self.outer is None else self.outer.facts
        parts = (p for condition in self.conditions for p in parts_of(condition))
        # isl would make two disjoint sets of ``x < min(a, b)``.
        made = [self.names.fact(p) for part in parts for p in tidy_condition(part)]
        return (*found, *(f for f in made if f is not None and f not in found))

    def without(self, conditions: Sequence[Expr]) -> _Context:
        """Where some of these does not hold; which one is not known if there are several."""
        return self if len(conditions) > 1 else self.given(Op("not", (all_of(conditions),)))

    def decides(self, condition: Expr) -> bool | None:
        """Whether a condition always holds (True), or never (False); None if unknown."""
        if isinstance(condition, Const):
            return bool(condition.value)
        if all(isinstance(e, (Op, Const)) for e in walk(condition)):
            return bool(evaluate_int(condition, {}))
        question = self.names.fact(condition)
        return None if question is None else self.names.decide(self._about(question), question)

    def _about(self, question: _Fact) -> tuple[_Fact, ...]:
        """What is known about the variables of a question, and about those that these depend on:
        isl takes longer the more it is told.
        """
        names, left, found = question.names, list(self.facts), set[_Fact]()
        while more := [f for f in left if f.names & names]:
            found.update(more)
            left = [f for f in left if f not in found]
            names = names.union(*(f.names for f in more))
        return tuple(f for f in self.facts if f in found)

    def simplified(self, e: Expr) -> Expr:
        """Index arithmetic with extrema decided, see also `codegen.loops.tidy`."""

        def visit(x: Expr) -> Expr:
            if isinstance(x, Op) and x.fn in ("min", "max"):
                low = self._lower_of(*x.args)
                if low is not None:
                    return x.args[low] if x.fn == "min" else x.args[1 - low]
            return x

        return tidy(rewrite(e, visit), self.is_positive)

    def _lower_of(self, first: Expr, second: Expr) -> int | None:
        """The number of the one that is never greater than the other."""
        if self.decides(Op("le", (first, second))):
            return 0
        return 1 if self.decides(Op("le", (second, first))) else None

    def is_positive(self, e: Expr) -> bool:
        """Whether an expression is known not to be negative."""
        form = linear_form(e)
        if form.constant >= 0 and all(isinstance(a, Size) and c > 0 for a, c in form.terms):
            return True
        return bool(self.decides(Op("le", (Const(0), e))))


def _visit(node: LoopNode, at: _Context) -> LoopNode:
    if isinstance(node, For):
        return _loop(node, at)
    if isinstance(node, If):
        return _branch(node, at)
    if isinstance(node, VectorStore):
        return _lanes(node, at)
    return map_children(node, lambda c: _visit(c, at))


def _loop(node: For, at: _Context) -> LoopNode:
    lower, upper = at.simplified(node.lower), at.simplified(node.upper)
    runs = at.decides(Op("lt", (lower, upper)))
    if runs is False:
        return _NOTHING
    var = Index(node.var)
    inside = at.given(Op("le", (lower, var)), Op("lt", (var, upper)))
    body = _visit(node.body, inside)
    if body == _NOTHING:
        return _NOTHING
    return replace(node, lower=lower, upper=upper, body=body, runs=bool(runs))


def _branch(node: If, at: _Context) -> LoopNode:
    kept: list[Expr] = []
    inside = at
    for part in (p for c in parts_of(node.cond) for p in tidy_condition(at.simplified(c))):
        holds = inside.decides(part)
        if holds is False:
            return _NOTHING if node.other is None else _visit(node.other, at)
        if holds is None:
            kept.append(part)
            inside = inside.given(part)
    if not kept:
        return _visit(node.then, at)
    then = _visit(node.then, inside)
    other = _NOTHING if node.other is None else _visit(node.other, at.without(kept))
    if not any(map(reads_of, kept)) and (same := _same(then, other)) is not None:
        return same
    if then == _NOTHING:
        return If(Op("not", (all_of(kept),)), other)
    return replace(node, cond=all_of(kept), then=then, other=None if other == _NOTHING else other)


def _same(one: LoopNode, other: LoopNode) -> LoopNode | None:
    """One for both if they are the same, whether or not their loops are known to run."""
    if one == other:
        return one
    if type(one) is not type(other):
        return None
    plain, rest = _without_runs(one), _without_runs(other)
    return plain if plain == rest else None


def _without_runs(node: LoopNode) -> LoopNode:
    node = map_children(node, _without_runs)
    return replace(node, runs=False) if isinstance(node, For) and node.runs else node


def _lanes(node: VectorStore, at: _Context) -> LoopNode:
    if node.last is None:
        return node
    first, last = at.simplified(node.first), at.simplified(node.last)
    if at.decides(Op("lt", (first, last))) is False:
        return _NOTHING
    lanes = Const(node.lanes)
    if at.decides(Op("le", (first, LANE_0))) and at.decides(Op("le", (lanes, last))):
        return replace(node, first=LANE_0, last=None)
    return replace(node, first=first, last=last)
