"""The surface syntax of comprehensions: what the parser found, with its position in the text.

Nothing here is resolved: a `Name` may turn out to be an index, a size or a mistake.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from poly.errors import Span


@dataclass(frozen=True)
class Node:
    """Base of all surface nodes; `span` is the node's position in the text."""

    span: Span


@dataclass(frozen=True)
class Name(Node):
    """An identifier."""

    name: str


@dataclass(frozen=True)
class Number(Node):
    """A literal: integer, real, ``inf``, ``nan``, ``true`` or ``false``."""

    value: int | float | bool


@dataclass(frozen=True)
class Access(Node):
    """``tensor[indices]``"""

    tensor: Name
    indices: tuple[Node, ...]


@dataclass(frozen=True)
class Call(Node):
    """``fn(args)``: a function or a cast."""

    fn: Name
    args: tuple[Node, ...]


@dataclass(frozen=True)
class Apply(Node):
    """An infix or prefix operator, named as in `poly.ir.expr.OPS`."""

    fn: str
    args: tuple[Node, ...]


@dataclass(frozen=True)
class Chain(Node):
    """``a <= b < c``: every adjacent pair compared."""

    fns: tuple[str, ...]
    args: tuple[Node, ...]


@dataclass(frozen=True)
class Declaration(Node):
    """``float32 X[N,M]``"""

    dtype: Name
    tensor: Name
    shape: tuple[Node, ...]


@dataclass(frozen=True)
class RangeClause(Node):
    """``i in lo:hi``"""

    index: Name
    lo: Node
    hi: Node


@dataclass(frozen=True)
class Loop(Node):
    """The head of a block, ``for i in lo:hi``; `span` tells blocks apart."""

    range: RangeClause


@dataclass(frozen=True)
class Assignment(Node):
    """``label: target op value where clauses``; a clause that is not a range is a guard.

    loop : the head of the enclosing block, if there is one
    """

    label: Name | None
    target: Access
    op: str
    init: bool
    value: Node
    clauses: tuple[Node, ...]
    loop: Loop | None = None

    @property
    def ranges(self) -> tuple[RangeClause, ...]:
        return tuple(c for c in self.clauses if isinstance(c, RangeClause))

    @property
    def guards(self) -> tuple[Node, ...]:
        return tuple(c for c in self.clauses if not isinstance(c, RangeClause))


@dataclass(frozen=True)
class Source:
    """A whole text: a definition, or statements alone when `name` is None."""

    text: str
    name: Name | None
    sizes: tuple[Name, ...]
    inputs: tuple[Declaration, ...]
    outputs: tuple[Declaration | Name, ...]
    constraints: tuple[Node, ...]
    temps: tuple[Declaration, ...]
    statements: tuple[Assignment, ...]

    @property
    def is_definition(self) -> bool:
        return self.name is not None


def children(node: Node) -> tuple[Node, ...]:
    """The direct parts of an expression, without the name of its tensor or function."""
    if isinstance(node, Access):
        return node.indices
    if isinstance(node, (Call, Apply, Chain)):
        return node.args
    if isinstance(node, RangeClause):
        return (node.index, node.lo, node.hi)
    return ()


def walk(node: Node) -> Iterator[Node]:
    """The node and all its parts, outermost first, in the order of the text."""
    yield node
    for child in children(node):
        yield from walk(child)


def accesses(node: Node) -> Iterator[Access]:
    """All accesses in an expression, in the order of the text."""
    return (n for n in walk(node) if isinstance(n, Access))


def names(node: Node) -> Iterator[Name]:
    """All bare identifiers in an expression, in the order of the text."""
    return (n for n in walk(node) if isinstance(n, Name))
