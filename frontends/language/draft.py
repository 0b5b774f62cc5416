"""One statement between text and program: names resolved, ranges still to be found."""

from __future__ import annotations

from dataclasses import dataclass

from frontends.language.resolve import Scope, check_new_name, comparisons, did_you_mean, resolve
from frontends.language.signature import Signature
from frontends.language.spelling import is_near
from frontends.language.syntax import (
    Access,
    Assignment,
    Chain,
    Loop,
    Name,
    Node,
    Source,
    children,
    walk,
)
from poly.errors import ProgramError, Span
from poly.ir.dtypes import DType
from poly.ir.expr import Expr, Index, Read, dtype_of_expr, indices_of
from poly.ir.program import default_name


@dataclass(frozen=True)
class Draft:
    """A statement whose names are resolved.

    `explicit` has the bounds of ``i in lo:hi`` clauses; `indices` are free indices in order of
    appearance on the left, then `reductions`: those of the value, of the ranges, of the guards.
    In block number `block`, the block's index is the first.
    """

    node: Assignment
    name: str
    target: Read
    op: str
    init: bool
    value: Expr
    explicit: tuple[tuple[str, Expr, Expr], ...]
    guards: tuple[Expr, ...]
    indices: tuple[str, ...]
    reductions: tuple[str, ...]
    block: int = 0

    @property
    def free(self) -> tuple[str, ...]:
        return self.indices[: len(self.indices) - len(self.reductions)]


def drafts_of(source: Source, signature: Signature) -> tuple[Draft, ...]:
    """All statements with their names resolved.

    Raises
    ------
    LanguageError : for names that do not resolve, indices that only appear on the right of a
        plain ``=``, and reduction indices that look like misspellings.
    """
    scope = Scope(source.text, signature.sizes, {n: e.rank for n, e in signature.entries.items()})
    taken: dict[str, Assignment] = {}
    blocks: dict[Span, int] = {}
    result = []
    for position, node in enumerate(source.statements):
        name = default_name(position)
        if node.label is not None:
            name = check_new_name(node.label, "a statement", source.text)
        # The initialisation of a statement has its own name, which must be unique, too.
        for used in (name, f"{name}_init") if node.init else (name,):
            if used in taken:
                raise scope.fail(
                    f"two statements are named {used}", (node.label or node.target).span
                )
            taken[used] = node
        loop = node.loop
        block = 0 if loop is None else blocks.setdefault(loop.span, len(blocks) + 1)
        result.append(_draft(node, name, scope, block))
    return tuple(result)


def _draft(node: Assignment, name: str, scope: Scope, block: int) -> Draft:
    target = resolve(node.target, scope)
    assert isinstance(target, Read)
    _check_target(node, scope)
    value = resolve(node.value, scope)
    explicit = _explicit(node, scope)
    guards: list[Expr] = []
    for clause in node.guards:
        # A chain becomes one guard for each comparison; a guard with `and` stays one.
        found = comparisons(clause, scope) if isinstance(clause, Chain) else ()
        guards += found or (resolve(clause, scope),)
    free = indices_of(target)
    if node.loop is not None:
        free = _along_block(node.loop, node, free, explicit[0], scope)
    right = (value, *(Index(i) for i, _, _ in explicit), *guards)
    right += tuple(e for _, lo, hi in explicit for e in (lo, hi))
    seen = dict.fromkeys(i for e in right for i in indices_of(e))
    reductions = tuple(i for i in seen if i not in free)
    draft = Draft(
        node, name, target, node.op, node.init, value, explicit, tuple(guards),
        (*free, *reductions), reductions, block,
    )  # fmt: skip
    _check_indices(draft, scope)
    return draft


def _along_block(
    loop: Loop,
    node: Assignment,
    free: tuple[str, ...],
    bounds: tuple[str, Expr, Expr],
    scope: Scope,
) -> tuple[str, ...]:
    """The free indices of a statement in a block, with the block's index first."""
    step, *ends = bounds
    for name in (i for e in ends for i in indices_of(e)):
        raise scope.fail(
            f"{name} is not a size: the bounds of a block may use only sizes and integers",
            loop.range.span,
            did_you_mean(name, list(scope.sizes)),
        )
    return (step, *(i for i in free if i != step))


def _check_target(node: Assignment, scope: Scope) -> None:
    """Check that where a statement writes depends on data only if it adds to what is there."""
    name = node.target.tensor.name
    for part in (p for index in node.target.indices for p in walk(index)):
        if not isinstance(part, Access):
            continue
        if node.op == "=":
            raise scope.fail(
                "where '=' writes cannot depend on data, only where +=, *=, max= and min= do",
                part.span,
                "write it as a gather instead: Y[i] = X[I[i]]",
            )
        if node.init:
            raise scope.fail(
                f"which elements {node.op}! initialises cannot depend on data",
                part.span,
                f"write {name} in a statement before it, and use {node.op} here",
            )


def _explicit(node: Assignment, scope: Scope) -> tuple[tuple[str, Expr, Expr], ...]:
    result: dict[str, tuple[str, Expr, Expr]] = {}
    for clause in node.ranges:
        index = clause.index.name
        if index in scope.sizes or index in scope.ranks:
            kind = "size" if index in scope.sizes else "tensor"
            raise scope.fail(f"{index} is a {kind}, not an index", clause.index.span)
        check_new_name(clause.index, "an index", scope.text)
        if index in result:
            raise scope.fail(f"{index} has two ranges", clause.span)
        bounds = resolve(clause.lo, scope), resolve(clause.hi, scope)
        for part, bound in zip((clause.lo, clause.hi), bounds, strict=True):
            if any(isinstance(n, Access) for n in walk(part)):
                raise scope.fail("a range cannot depend on data", part.span)
            if index in indices_of(bound):
                raise scope.fail(f"the range of {index} uses {index} itself", part.span)
        result[index] = (index, *bounds)
    return tuple(result.values())


def _check_indices(draft: Draft, scope: Scope) -> None:
    explicit = {i for i, _, _ in draft.explicit}
    _check_range_bounds(draft, scope, explicit)
    for index in draft.reductions:
        span = first_use(draft.node, index)
        if draft.op == "=":
            near = did_you_mean(index, [*draft.free, *(s for s in scope.sizes if len(s) > 1)])
            note = near or f"sum over it with +=! (or *=, max=, min=), or add {index} on the left"
            if not near and index[:1].isupper():
                note = f"if {index} is meant as a size, use it in the shape of a tensor"
            raise scope.fail(f"{index} appears only on the right of a plain '='", span, note)
        if index in explicit:
            continue
        for other in draft.indices:
            if is_near(index, other) and not _share_an_access(draft.node, index, other):
                raise scope.fail(
                    f"{index} would be a reduction index, but looks like a misspelt {other}",
                    span,
                    f"did you mean {other!r}? if not, give its range: where {index} in 0:…",
                )


def _check_range_bounds(draft: Draft, scope: Scope, explicit: set[str]) -> None:
    """Refuse names that appear only in the bounds of a range: most likely undeclared sizes."""
    used = {
        n.name
        for node in (draft.node.target, draft.node.value, *draft.node.guards)
        for n in walk(node)
        if isinstance(n, Name)
    } | explicit
    for clause in draft.node.ranges:
        for part in walk(clause):
            if isinstance(part, Name) and part.name not in used and part.name not in scope.sizes:
                raise scope.fail(
                    f"{part.name} is neither a declared size nor an index of this statement",
                    part.span,
                    did_you_mean(part.name, [*scope.sizes, *used]),
                )


def _share_an_access(node: Assignment, index: str, other: str) -> bool:
    """Whether one access uses both names: then they are different on purpose."""
    for root in (node.target, node.value):
        for access in walk(root):
            if isinstance(access, Access):
                found = {n.name for i in access.indices for n in walk(i) if isinstance(n, Name)}
                if {index, other} <= found:
                    return True
    return False


def first_use(node: Assignment, name: str) -> Span:
    """The first use of a name in the value, the clauses or the target of a statement."""
    for root in (node.value, *node.clauses, node.target):
        for part in walk(root):
            if isinstance(part, Name) and part.name == name:
                return part.span
    return node.span


def check_types(draft: Draft, dtypes: dict[str, DType], scope: Scope) -> DType:
    """The element type of the value; an error points at the smallest part without one.

    Raises
    ------
    LanguageError : where operands do not mix.
    """
    for clause in draft.node.guards:
        if typed(clause, dtypes, scope).kind != "b":
            raise scope.fail(
                "this clause is not a condition", clause.span, "write a comparison, or i in lo:hi"
            )
    for part in (
        *draft.node.target.indices,
        *(b for r in draft.node.ranges for b in (r.lo, r.hi)),
    ):
        if not typed(part, dtypes, scope).is_integer:
            raise scope.fail("an index or a bound must be an integer", part.span)
    return typed(draft.node.value, dtypes, scope)


def typed(node: Node, dtypes: dict[str, DType], scope: Scope) -> DType:
    """The element type of a surface expression; see `check_types`."""
    if isinstance(node, Access):
        for index in node.indices:
            if not typed(index, dtypes, scope).is_integer:
                raise scope.fail(
                    "an index must be an integer", index.span, "cast it, as in int64(x)"
                )
    else:
        for child in children(node):
            typed(child, dtypes, scope)
    try:
        return dtype_of_expr(resolve(node, scope), dtypes)
    except ProgramError as error:
        raise scope.fail(str(error), node.span) from None
