"""Trees cut into blocks of at most 32 leaves, all of whose questions are answered at once.

After C. Lucchese et al., QuickScorer, 2015: the leaves of a block are bits, from left to right; a
question that is answered with no clears those on its yes side, and the lowest bit that is left is
the leaf.  No answer depends on another one, so that rows are lanes of a vector: more questions
than on one path down, but no jumps.  A tree of more leaves is a block whose leaves are blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from frontends.onnx.ml.ensembles import Ensemble

#: Leaves of a block: bits of an uint32.
BITS = 32
#: The upper five bits of its product with a power of two identify the power (de Bruijn).
TELLTALE = 0x077CB531
_ALL = (1 << BITS) - 1
#: The number of vectorised answers that take as long as a walk down by one node.
ANSWERS_PER_STEP = 128
#: Blocks whose numbers of questions differ by less are in one group.
STEP = 8


@dataclass(frozen=True, eq=False)
class Group:
    """Blocks of about equally many questions [block, question], padded with idle ones.

    `nan_yes` : where NaN is a yes; `masks` : the bits that are left after a no
    """

    features: np.ndarray
    low: np.ndarray
    high: np.ndarray
    nan_yes: np.ndarray
    masks: np.ndarray


@dataclass(frozen=True, eq=False)
class Blocks:
    """All blocks of all trees, numbered through all groups; the first group has those of roots.

    Attributes
    ----------
    following : for each tree and leaf of its first block the next block; None if all trees are one
        block
    leaves : for each tree and slot the node of the ensemble; slots are leaves of the block or, if
        there are two levels, 32 * leaf of the first + leaf of the second

    Leaves have the numbers that `TELLTALE` gives their bits.
    """

    groups: tuple[Group, ...]
    following: np.ndarray | None
    leaves: np.ndarray


@dataclass(frozen=True, eq=False)
class _Block:
    """The nodes that ask, with the bits that a no clears, and what follows, from left to right."""

    nodes: tuple[int, ...]
    cleared: tuple[int, ...]
    exits: tuple[int, ...]


def blocks_of(trees: Ensemble) -> Blocks | None:
    """The trees in blocks; None if they share nodes, are too large, or a walk is faster."""
    asked = np.flatnonzero(~trees.is_leaf)
    children = np.concatenate([trees.yes[asked], trees.no[asked], trees.roots])
    if len(np.unique(children)) != len(children) or not len(asked):
        return None
    if trees.nan_yes.any() and not (trees.one_sided and np.isfinite(trees.high).all()):
        return None  # programs replace NaN by a number, which needs one-sided questions
    yes, no = trees.yes.tolist(), trees.no.tolist()
    count = np.ones(len(yes), np.int64)
    for here in asked[::-1].tolist():  # children come after their parents
        count[here] = count[yes[here]] + count[no[here]]
    best: list[list[_Block]] = []
    fewest = ANSWERS_PER_STEP * trees.depth * len(trees.roots) + 1
    for limit in (BITS, 3 * BITS // 4, BITS // 2):
        if best and max(map(len, best)) == 1:
            break
        made = _cut(trees, yes, no, count.tolist(), limit)
        if made is None:
            continue
        slots = sum(len(part) * _size(part) for part in _parts(made))
        if slots < fewest:
            best, fewest = made, slots
    return _tables(trees, best) if best else None


def _cut(
    trees: Ensemble, yes: Sequence[int], no: Sequence[int], count: Sequence[int], limit: int
) -> list[list[_Block]] | None:
    """Blocks of at most `limit` leaves below one that holds all larger subtrees."""
    result = []
    one_level = all(count[r] <= limit for r in trees.roots.tolist())
    for root in trees.roots.tolist():
        if one_level:
            result.append([_block(root, yes, no, count, 1)])
            continue
        heavy = _heavy(root, yes, no, count, limit)
        if heavy >= BITS:
            return None
        first = _block(root, yes, no, count, limit)
        result.append([first, *(_block(e, yes, no, count, 1) for e in first.exits if count[e] > 1)])
    return result


def _heavy(
    root: int, yes: Sequence[int], no: Sequence[int], count: Sequence[int], limit: int
) -> int:
    """How many nodes have more than `limit` leaves below them, counted up to `BITS`."""
    found, stack = 0, [root]
    while stack and found < BITS:
        here = stack.pop()
        if count[here] > limit:
            found += 1
            stack += [yes[here], no[here]]
    return found


def _block(
    root: int, yes: Sequence[int], no: Sequence[int], count: Sequence[int], limit: int
) -> _Block:
    """The nodes from a root down that have more than `limit` leaves below them."""
    nodes: list[int] = []
    cleared: list[int] = []
    exits: list[int] = []

    def visit(here: int) -> None:
        if count[here] <= limit:
            exits.append(here)
            return
        index, first = len(nodes), len(exits)
        nodes.append(here)
        cleared.append(0)
        visit(yes[here])
        cleared[index] = (1 << len(exits)) - (1 << first)
        visit(no[here])

    visit(root)
    return _Block(tuple(nodes), tuple(cleared), tuple(exits))


def _parts(cut: list[list[_Block]]) -> list[list[_Block]]:
    """The blocks of the roots, then all others by the number of their questions."""
    others: dict[int, list[_Block]] = {}
    for tree in cut:
        for block in tree[1:]:
            others.setdefault(-(-len(block.nodes) // STEP), []).append(block)
    return [[tree[0] for tree in cut], *(others[size] for size in sorted(others))]


def _size(part: Sequence[_Block]) -> int:
    return max(1, *(len(block.nodes) for block in part))


def _tables(trees: Ensemble, cut: list[list[_Block]]) -> Blocks:
    parts = _parts(cut)
    number = {id(b): n for n, b in enumerate(b for part in parts for b in part)}
    two = len(parts) > 1
    slots = np.array([((TELLTALE << bit) & _ALL) >> 27 for bit in range(BITS)])
    following = np.zeros((len(cut), BITS), np.int32)
    leaves = np.zeros((len(cut), BITS * BITS if two else BITS), np.int64)
    for t, (first, *below) in enumerate(cut):
        if not two:
            leaves[t, slots[: len(first.exits)]] = first.exits
            continue
        rest = iter(below)
        for slot, leaf in zip(slots, first.exits, strict=False):
            start = BITS * slot
            if trees.is_leaf[leaf]:  # whatever the second block answers
                leaves[t, start : start + BITS] = leaf
                continue
            block = next(rest)
            following[t, slot] = number[id(block)]
            leaves[t, start + slots[: len(block.exits)]] = block.exits
    groups = tuple(_group(trees, part) for part in parts)
    return Blocks(groups, following if two else None, leaves)


def _group(trees: Ensemble, part: Sequence[_Block]) -> Group:
    shape = (len(part), _size(part))
    nodes, masks = np.zeros(shape, np.int64), np.full(shape, _ALL, np.uint32)
    for row, block in enumerate(part):
        size = len(block.nodes)
        nodes[row, :size] = block.nodes
        masks[row, :size] = _ALL ^ np.array(block.cleared, np.int64)
    idle = masks == _ALL
    return Group(
        np.where(idle, 0, trees.features[nodes]),
        trees.low[nodes],
        trees.high[nodes],
        trees.nan_yes[nodes] & ~idle,
        masks,
    )
