"""Scattered sums, rewritten to gather the terms of each element.

    Y[n, 2*p + r] += X[n, p] * W[r]

adds to an element from several instances (scatter): p and r share a dimension of Y.  With the
element x = 2*p + r itself as the loop, p = (x - r)/2 where that is an integer:

    Y[n, x] += X[n, (x - r)//2] * W[r]    where (x - r) mod 2 = 0, 0 <= (x - r)//2 < P

Each element is one sum (gather), which can stay in a register, and elements can be shared among
threads.  The terms of a sum come in another order, so this is for default numerics only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from poly.ir.accesses import loops_as_values
from poly.ir.expr import Const, Expr, Index, Op, Read, indices_of, rewrite
from poly.ir.linear_form import Linear, atom, constant, linear_form, render
from poly.ir.program import Program, Range, Statement


def gather_sums(program: Program) -> Program:
    """Gather the scattered sums of a program whose target indices are linear."""
    made = tuple(gather_sum(program, s) for s in program.statements)
    same = all(a is b for a, b in zip(made, program.statements, strict=True))
    return program if same else replace(program, statements=made, text=None)


def gather_sum(program: Program, s: Statement) -> Statement:
    """The statement with one loop for each dimension of its target that two or more share.

    It initialises all elements of the dimension then, and so has to be the only one that sets any.
    """
    others = {t.target.tensor for t in program.statements if t.name != s.name}
    given = {t.name for t in program.inputs}
    if not s.is_reduction or (s.init and s.target.tensor in others | given):
        return s
    for d, index in enumerate(s.target.indices):
        form = linear_form(index)
        solved = _solved_loop(s, d, form)
        if solved is not None:
            return gather_sum(program, _with_element(program, s, d, form, solved))
    return s


def _solved_loop(s: Statement, d: int, form: Linear) -> str | None:
    """The loop to be replaced by the element; None if elements are written once, or another
    dimension moves with it.

    Of the loops of the longest stride, it is the longest.
    """
    loops = [(a.name, c) for a, c in form.terms if isinstance(a, Index)]
    if len(loops) < 2 or len(loops) < len(form.terms) or any(c <= 0 for _, c in loops):
        return None
    spans = {r.index: _extent(r) for r in s.ranges}
    elsewhere = {i for k, e in enumerate(s.target.indices) if k != d for i in indices_of(e)}
    loop, stride = max(loops, key=lambda x: (x[1], spans[x[0]] or 1 << 62))
    reach = 0
    for name, c in loops:
        if name != loop:
            extent = spans[name]
            if extent is None:
                reach = stride
                break
            reach += c * (extent - 1)
    if reach < stride or loop in elsewhere or loop in loops_as_values(s.value):
        return None
    return loop


def _extent(r: Range) -> int | None:
    if isinstance(r.lo, Const) and isinstance(r.hi, Const):
        return max(0, int(r.hi.value) - int(r.lo.value))
    return None


def _with_element(program: Program, s: Statement, d: int, form: Linear, loop: str) -> Statement:
    """The statement with the element of dimension `d` as a loop in place of `loop`."""
    stride = form.coefficient(Index(loop))
    taken = {*program.tensors, *program.sizes, *s.indices}
    name = next(n for k in range(len(taken) + 1) if (n := f"x{k or ''}") not in taken)
    element = Index(name)
    others = form.without(Index(loop))
    # stride * loop = element - others
    scaled = atom(element) - others

    def eliminated(e: Expr) -> Expr:
        own = linear_form(e)
        c = own.coefficient(Index(loop))
        if not c and not any(loop in indices_of(a) for a, _ in own.terms):
            return e
        rest = own.without(Index(loop))
        if c % stride == 0:
            return render(_inner(rest, eliminated) + scaled.scale(c // stride))
        return render(_inner(rest, eliminated) + scaled.floordiv(stride).scale(c))

    def visit(e: Expr) -> Expr:
        return replace(e, indices=tuple(map(eliminated, e.indices))) if isinstance(e, Read) else e

    def condition(e: Expr) -> Expr:
        if isinstance(e, Op) and e.fn in ("and", "or", "not"):
            return replace(e, args=tuple(map(condition, e.args)))
        if not isinstance(e, Op) or loop not in indices_of(e):
            return e
        left, right = map(linear_form, e.args)
        return replace(e, args=(eliminated(render(left - right)), Const(0)))

    old = next(r for r in s.ranges if r.index == loop)
    solved = render(scaled.floordiv(stride))
    guards = [condition(g) for g in s.guards]
    guards += [Op("le", (old.lo, solved)), Op("lt", (solved, old.hi))]
    if stride > 1:
        guards.append(Op("eq", (Op("mod", (render(scaled), Const(stride))), Const(0))))
    indices = tuple(element if k == d else e for k, e in enumerate(s.target.indices))
    moving = {i for e in indices for i in indices_of(e)}
    own_range = Range(name, Const(0), program.tensors[s.target.tensor].shape[d])
    ranges = [own_range if r.index == loop else r for r in s.ranges]
    free = [r for r in ranges if r.index in moving]
    summed = [r for r in ranges if r.index not in moving]
    return replace(
        s,
        target=replace(s.target, indices=indices),
        value=rewrite(s.value, visit),
        ranges=(*free, *summed),
        reductions=tuple(r.index for r in summed),
        guards=tuple(guards),
    )


def _inner(form: Linear, eliminated: Callable[[Expr], Expr]) -> Linear:
    """A form with the loop variables inside its atoms replaced."""
    total = constant(form.constant)
    for a, c in form.terms:
        if isinstance(a, Op):
            a = replace(a, args=tuple(map(eliminated, a.args)))
        total += linear_form(a).scale(c)
    return total
