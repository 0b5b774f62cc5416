"""Vectors that are stored between each other's lanes: whole vectors in registers, then stored.

An instruction for several terms takes them from adjacent elements, so a packed operand has groups
of a few elements of adjacent rows.  A vector of each row is loaded, and lane l of row n becomes
element ``g*l + n`` of g adjacent vectors.
"""

from __future__ import annotations

from collections.abc import Sequence

from codegen.loops.nodes import LANE_0, Block, Buffer, Interleaved, LoopNode, VectorStore, block
from codegen.loops.traverse import map_children
from codegen.vector.addresses import Addresses
from poly.buffers.copies import GROUPS, INTERLEAVED
from poly.ir.expr import Read, walk
from poly.ir.linear_form import Linear
from poly.ir.program import Program

#: Bytes of the vectors that are interleaved: the last of a row may be half as long.
BYTES = (INTERLEAVED, INTERLEAVED // 2)
#: Bits of the widest elements: matrices of others are transposed.
WIDEST = 16


def interleave_stores(root: LoopNode, program: Program) -> LoopNode:
    """Combine vector stores whose lanes lie between each other's."""
    addresses = Addresses(program.tensors)

    def visit(node: LoopNode) -> LoopNode:
        if isinstance(node, Buffer):
            with addresses.below(node):
                return map_children(node, visit)
        node = map_children(node, visit)
        return block(_combined(node.children, addresses)) if isinstance(node, Block) else node

    return visit(root)


def _combined(nodes: Sequence[LoopNode], addresses: Addresses) -> list[LoopNode]:
    """The nodes, with groups of adjacent vector stores combined."""
    result: list[LoopNode] = []
    at = 0
    while at < len(nodes):
        for count in GROUPS:
            rows = [n for n in nodes[at : at + count] if isinstance(n, VectorStore)]
            if len(rows) == count and _fill_gaps(rows, addresses):
                result.append(Interleaved(tuple(rows)))
                at += count
                break
        else:
            result.append(nodes[at])
            at += 1
    return result


def _fill_gaps(rows: Sequence[VectorStore], addresses: Addresses) -> bool:
    """Whether each of the stores fills the gaps that the others leave."""
    first = addresses.address(rows[0].store.target)
    for number, row in enumerate(rows):
        store, target = row.store, row.store.target
        if row.first != LANE_0 or row.last is not None or store.op != "=":
            return False
        if store.dtype.bits > WIDEST or row.lanes * store.dtype.bytes not in BYTES:
            return False
        if (row.lanes, row.var) != (rows[0].lanes, rows[0].var):
            return False
        if target.tensor != rows[0].store.target.tensor or target.tensor not in addresses:
            return False
        here = addresses.address(target)
        if first is None or here is None or here - first != Linear((), number):
            return False
        if addresses.stride(target, row.var) != len(rows):
            return False
        if any(isinstance(e, Read) and e.tensor == target.tensor for e in walk(store.value)):
            return False
    return True
