"""The verifier of the loop IR, which runs after every pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from codegen.loops.nodes import Buffer, For, LoopNode, Store, Tile, VectorStore
from codegen.loops.traverse import children_of, own_bounds, own_values
from poly.errors import FarkasError, ProgramError
from poly.ir.dtypes import DType
from poly.ir.expr import Expr, Index, Read, dtype_of_expr, walk
from poly.ir.program import Program
from poly.tree.kinds import Scope


class LoopError(FarkasError):
    """A loop tree that breaks a rule: a bug in Farkas, not a user error."""


@dataclass(frozen=True)
class _Scope:
    """What is known at a node.

    tensors : those of the program; bound : loop variables
    ranks : of tensors and of the enclosing buffers, None: several
    """

    tensors: frozenset[str]
    bound: frozenset[str]
    ranks: Mapping[str, int | None]
    dtypes: Mapping[str, DType]


def verify_loops(root: LoopNode, program: Program) -> LoopNode:
    """Check a tree of loops; returns it.

    Every loop variable is bound where it is used, once on each path; every element is of a tensor
    of the program or of an enclosing buffer, with one index for each dimension; and values have
    types that match their stores and targets.

    Raises
    ------
    LoopError : naming what breaks a rule.
    """
    ranks: dict[str, int | None] = {t.name: t.rank for t in program.tensors.values()}
    _verify(root, _Scope(frozenset(ranks), frozenset(), ranks, program.dtypes))
    return root


def _verify(node: LoopNode, scope: _Scope) -> None:
    for e in (*own_bounds(node), *own_values(node)):
        _check_expr(e, scope)
    if isinstance(node, For):
        if node.step < 1:
            raise LoopError(f"loop {node.var} has step {node.step}")
        scope = _binding(scope, node.var)
    elif isinstance(node, Tile):
        scope = _binding(scope, *(name for name, _ in node.names))
    elif isinstance(node, VectorStore):
        scope = _binding(scope, node.var)
    elif isinstance(node, Buffer):
        scope = _inside(node, scope)
    elif isinstance(node, Store):
        _check_store(node, scope)
    for child in children_of(node):
        _verify(child, scope)


def _binding(scope: _Scope, *names: str) -> _Scope:
    """The scope with more loop variables."""
    twice = [n for n in names if n in scope.bound or names.count(n) > 1]
    if twice:
        raise LoopError(f"loop variable {twice[0]} is bound twice")
    return replace(scope, bound=scope.bound | {*names})


def _inside(node: Buffer, scope: _Scope) -> _Scope:
    """The scope inside a buffer."""
    if node.name in scope.tensors:
        raise LoopError(f"buffer {node.name} has the name of a tensor")
    if any(extent < 1 for extent in node.shape):
        raise LoopError(f"buffer {node.name} has the shape {node.shape}")
    # In lane accumulators, a read without indices combines all lanes.
    rank = None if node.scope == Scope.LANES else len(node.shape)
    return replace(
        scope,
        ranks={**scope.ranks, node.name: rank},
        dtypes={**scope.dtypes, node.name: node.dtype},
    )


def _check_expr(e: Expr, scope: _Scope) -> None:
    for part in walk(e):
        if isinstance(part, Index):
            if part.name not in scope.bound:
                raise LoopError(f"loop variable {part.name} is used outside its loop, in {e}")
        elif isinstance(part, Read):
            if part.tensor not in scope.ranks:
                raise LoopError(f"{part} is in no tensor of the program and no enclosing buffer")
            rank = scope.ranks[part.tensor]
            if rank is not None and len(part.indices) != rank:
                raise LoopError(f"{part} has {len(part.indices)} indices, expected {rank}")


def _check_store(node: Store, scope: _Scope) -> None:
    if scope.dtypes[node.target.tensor] != node.dtype:
        raise LoopError(f"{node}: the target is {scope.dtypes[node.target.tensor]}")
    try:
        dtype_of_expr(node.value, scope.dtypes)
    except ProgramError as error:
        raise LoopError(f"{node}: {error}") from None
