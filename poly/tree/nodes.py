"""Schedule trees as frozen values, with named loops.

A tree orders statement instances.  Its nodes:

* ``Band``: a perfect nest of loops, outermost first.  Each `Member` has a name and a piecewise
  affine function of every statement instance below it; instances run by increasing value.
* ``Sequence``: children run one after the other; a `Filter` says which statements are in which.
* ``Promote``: below it, accesses to one tensor go to a small buffer (registers or local memory)
  that is filled on entry and written back on exit.
* ``Leaf``: nothing more to order.

isl's own trees are mutable handles without names for loops; these are plain values, and
`to_isl` gives the isl tree (Verdoolaege et al., "Schedule Trees", IMPACT 2014) when one is
needed: to print it, or to generate code from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import islpy as isl

from poly.ir.dtypes import DType
from poly.ir.expr import Read
from poly.ir.layout import Layout
from poly.tree.kinds import LoopMark, Mark, Scope

#: An access: the name of its statement, and the read as in the program.
Access = tuple[str, Read]
#: Some accesses to a tensor; None: all of them.
Accesses = frozenset[Access] | None


@dataclass(frozen=True, eq=False)
class Member:
    """One loop of a band: ``{ S[i,j] -> [(i)]; T[i] -> [(i)] }``.

    With `isolate`, code is generated separately for the values of this and the outer members
    of its band at which the loops below are full, so that these have constant bounds there.
    """

    name: str
    schedule: isl.UnionPwAff
    mark: LoopMark = Mark.SEQ
    isolate: bool = False

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Member)
            and (self.name, self.mark, self.isolate) == (other.name, other.mark, other.isolate)
            and (
                self.schedule.plain_is_equal(other.schedule)
                # A function may or may not have pieces without instances.
                or isl.UnionMap.from_union_pw_aff(self.schedule).is_equal(
                    isl.UnionMap.from_union_pw_aff(other.schedule)
                )
            )
        )


class Node:
    """Base of the tree's nodes."""


@dataclass(frozen=True)
class Leaf(Node):
    pass


@dataclass(frozen=True)
class Band(Node):
    members: tuple[Member, ...]
    child: Node

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(m.name for m in self.members)


@dataclass(frozen=True)
class Filter:
    """One child of a sequence: the statements that it contains, by name."""

    statements: tuple[str, ...]
    child: Node


@dataclass(frozen=True)
class Sequence(Node):
    children: tuple[Filter, ...]


@dataclass(frozen=True)
class Promote(Node):
    """Accesses to `tensor` below go to `buffer`, which holds what one iteration above touches.

    layout : the layout of the part in the buffer.
    ahead : double-buffered: while one buffer is used the other is filled for the next iteration
    of the loop above; only of shared ones.
    accesses : the reads that go to the buffer, see `poly.deps.reference_groups`; None: all accesses
    dtype : of the buffer's elements, if not that of the tensor
    padded : it has zeros beyond what is read of the tensor, as far as instructions below reach, see
    `poly.buffers.pad_tiles`; only of shared and local ones.
    """

    tensor: str
    buffer: str
    scope: Scope
    layout: Layout
    child: Node
    ahead: bool = False
    padded: bool = False
    accesses: Accesses = None
    dtype: DType | None = None

    @property
    def served(self) -> str:
        """The reads that go to the buffer, or the tensor if all accesses do."""
        return ", ".join(sorted({str(read) for _, read in self.accesses or ()})) or self.tensor


@dataclass(frozen=True)
class Barrier(Node):
    """All threads of a block wait here for each other; a child of a sequence, without a filter.

    early : also once before the first iteration, when double buffers are filled
    """

    name: str
    early: bool = False


@dataclass(frozen=True)
class KernelLeaf(Node):
    """One launch of a GPU's kernel, in the tree of the host's loops."""

    number: int


_LEAF = Leaf()


def leaf() -> Leaf:
    return _LEAF


def band(members: Seq[Member], child: Node) -> Node:
    """A band in normal form: no empty bands, no band directly below a band."""
    if not members:
        return child
    if isinstance(child, Band):
        return Band((*members, *child.members), child.child)
    return Band(tuple(members), child)


def sequence(children: Seq[Filter]) -> Node:
    """A sequence in normal form: no single children, no sequence directly below a sequence."""
    flat: list[Filter] = []
    for f in children:
        if isinstance(f.child, Sequence):
            flat += f.child.children
        else:
            flat.append(f)
    return flat[0].child if len(flat) == 1 else Sequence(tuple(flat))


def band_of(statement: str, loops: Seq[str], domain: isl.Set, child: Node, outer: int = 0) -> Node:
    """The band that runs one statement in lexicographic order of its own dimensions.

    outer : how many of them have loops above
    """
    members = [Member(name, _dimension(statement, loops, name, domain)) for name in loops[outer:]]
    return band(members, child)


def step_of(statements: Seq[tuple[str, Seq[str], isl.Set]]) -> Member:
    """One loop for the first dimension of several statements (name, loops, domain)."""
    name, loops, domain = statements[0]
    schedule = _dimension(name, loops, loops[0], domain)
    for other, own, its in statements[1:]:
        schedule = schedule.union_add(_dimension(other, own, own[0], its))
    return Member(loops[0], schedule)


def _dimension(statement: str, loops: Seq[str], loop: str, domain: isl.Set) -> isl.UnionPwAff:
    params = ", ".join(domain.get_var_names(isl.dim_type.param))
    return isl.UnionPwAff(f"[{params}] -> {{ {statement}[{', '.join(loops)}] -> [({loop})] }}")


def joint(functions: Seq[isl.UnionPwAff]) -> isl.MultiUnionPwAff:
    """Several functions as one multi-dimensional function, the first outermost."""
    result = isl.MultiUnionPwAff.from_union_pw_aff(functions[0])
    for f in functions[1:]:
        result = result.flat_range_product(isl.MultiUnionPwAff.from_union_pw_aff(f))
    return result


def serves(buffer: Accesses, accesses: Accesses) -> bool:
    """Whether a buffer for some accesses contains everything that other accesses read."""
    return buffer is None or (accesses is not None and accesses <= buffer)


# --- walking and rebuilding ---------------------------------------------------------------


def child_nodes(node: Node) -> tuple[Node, ...]:
    if isinstance(node, (Band, Promote)):
        return (node.child,)
    if isinstance(node, Sequence):
        return tuple(f.child for f in node.children)
    return ()


def walk_tree(node: Node) -> Iterator[Node]:
    """The node and everything below, outermost first."""
    yield node
    for child in child_nodes(node):
        yield from walk_tree(child)


def rebuild(node: Node, fn: Callable[[Node], Node]) -> Node:
    """Rebuild in normal form bottom-up, applying `fn` to every node."""
    if isinstance(node, Band):
        node = band(node.members, rebuild(node.child, fn))
    elif isinstance(node, Promote):
        node = replace(node, child=rebuild(node.child, fn))
    elif isinstance(node, Sequence):
        node = sequence([replace(f, child=rebuild(f.child, fn)) for f in node.children])
    return fn(node)


def path_to(root: Node, statement: str) -> list[Node]:
    """The nodes from the root down to the leaf that runs `statement`."""
    path: list[Node] = []
    node = root
    while True:
        path.append(node)
        if isinstance(node, (Band, Promote)):
            node = node.child
        elif isinstance(node, Sequence):
            node = next(f.child for f in node.children if statement in f.statements)
        else:
            return path


def loops_of(root: Node, statement: str) -> tuple[Member, ...]:
    """The loops around `statement`, outermost first."""
    return tuple(m for n in path_to(root, statement) if isinstance(n, Band) for m in n.members)


def all_loops(root: Node) -> frozenset[str]:
    """The names of all loops of a tree."""
    bands = (n for n in walk_tree(root) if isinstance(n, Band))
    return frozenset(m.name for n in bands for m in n.members)


def order_of(root: Node, statement: str) -> tuple[Member | int, ...]:
    """The order of instances of `statement` among all: loops, and indices in sequences."""
    found: list[Member | int] = []
    for node in path_to(root, statement):
        if isinstance(node, Band):
            found += node.members
        elif isinstance(node, Sequence):
            found.append(next(n for n, f in enumerate(node.children) if statement in f.statements))
    return tuple(found)


def replace_node(root: Node, old: Node, new: Node) -> Node:
    """The tree with the node `old` (by identity) replaced, in normal form above it."""
    if root is old:
        return new
    if isinstance(root, Band):
        return band(root.members, replace_node(root.child, old, new))
    if isinstance(root, Promote):
        return replace(root, child=replace_node(root.child, old, new))
    if isinstance(root, Sequence):
        return sequence([replace(f, child=replace_node(f.child, old, new)) for f in root.children])
    return root


def statements_below(root: Node, node: Node, all_statements: Seq[str]) -> tuple[str, ...]:
    """Names of the statements that `node` orders."""
    if root is node:
        return tuple(all_statements)
    if isinstance(root, (Band, Promote)):
        return statements_below(root.child, node, all_statements)
    if isinstance(root, Sequence):
        for f in root.children:
            found = statements_below(f.child, node, f.statements)
            if found:
                return found
    return ()


# --- text ---------------------------------------------------------------------------------


def show_tree(node: Node, indent: str = "") -> str:
    """The tree as indented text, one line per node."""
    return "\n".join(_lines(node, indent))


def _lines(node: Node, indent: str) -> Iterator[str]:
    if isinstance(node, Band):
        for m in node.members:
            mark = "" if m.mark == Mark.SEQ else f"  [{m.mark}]"
            yield f"{indent}for {m.name}{mark}: {_short(m.schedule)}"
            indent += "  "
        yield from _lines(node.child, indent)
    elif isinstance(node, Promote):
        more = (", one iteration ahead" if node.ahead else "") + (", padded" if node.padded else "")
        kept = node.scope if node.dtype is None else f"{node.scope} {node.dtype}"
        yield f"{indent}promote {node.served} to {kept} {node.buffer}{more}"
        yield from _lines(node.child, indent + "  ")
    elif isinstance(node, Sequence):
        for f in node.children:
            if isinstance(f.child, Barrier):
                yield f"{indent}- barrier"
                continue
            yield f"{indent}- {', '.join(f.statements)}"
            yield from _lines(f.child, indent + "  ")
    elif isinstance(node, KernelLeaf):
        yield f"{indent}launch {node.number}"


def _short(schedule: isl.UnionPwAff) -> str:
    """``S[i, j] -> [(i)]`` without parameters and domain conditions."""
    return "; ".join(_pieces(schedule))


def _pieces(schedule: isl.UnionPwAff) -> list[str]:
    text = str(schedule)
    text = text[text.index("{") + 1 : text.rindex("}")].strip()
    return sorted(part.split(" : ")[0].strip() for part in text.split("; "))


def short_schedule(member: Member) -> str:
    """The value of a loop in as few words as possible: ``= floor((i)/32)``.

    Values of single statements are given only where they differ; nothing if each is the loop index
    of the same name as the loop.
    """
    values: dict[str, list[str]] = {}
    for piece in _pieces(member.schedule):
        instance, _, value = piece.partition(" -> ")
        found = values.setdefault(value.removeprefix("[(").removesuffix(")]"), [])
        if (name := instance.partition("[")[0]) not in found:
            found.append(name)
    if len(values) == 1:
        (value,) = values
        return "" if value == member.name else f"= {value}"
    return "= " + "; ".join(f"{value} ({', '.join(names)})" for value, names in values.items())
