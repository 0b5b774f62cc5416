"""Trees cut into blocks of at most 32 leaves, all of whose questions are answered at once.

After C. Lucchese et al., QuickScorer, 2015: the leaves of a block are bits, from left to right; a
question that is answered with no clears those on its yes side, and the lowest bit that is left is
the leaf.  No answer depends on another one, so that rows are lanes of a vector: more questions
than on one way down, but no jumps.  A tree of more leaves is a block whose leaves are blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from frontends.onnx.ml_ensembles import Ensemble

#: Leaves of a block: bits of an uint32.
BITS = 32
#: The upper five bits of its product with a power of two tell which one that is (de Bruijn).
TELLTALE = 0x077CB531
_ALL = (1 << BITS) - 1
#: A walk goes down one node in the time of so many answers in lanes.
ANSWERS_PER_STEP = 128


@dataclass(frozen=True, eq=False)
class Blocks:
    """Questions of all blocks of all trees [tree, block, question], filled up with idle ones.

    Attributes
    ----------
    masks : the bits that are left after a no
    following : for each tree and leaf of its first block the block where it goes on; None if all
        trees are one block
    leaves : for each tree and place the node of the ensemble; places are leaves of the block or,
        if there are two levels, 32 * leaf of the first + leaf of the second

    Leaves have the numbers that `TELLTALE` gives their bits.
    """

    features: np.ndarray
    low: np.ndarray
    high: np.ndarray
    nan_yes: np.ndarray
    masks: np.ndarray
    following: np.ndarray | None
    leaves: np.ndarray

    @property
    def shape(self) -> tuple[int, int, int]:
        """Trees, blocks of a tree, questions of a block."""
        trees, blocks, questions = self.masks.shape
        return trees, blocks, questions


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
        return None  # see `Blocks.nan_yes` in programs: NaN becomes a number for it
    yes, no = trees.yes.tolist(), trees.no.tolist()
    count = np.ones(len(yes), np.int64)
    for here in asked[::-1].tolist():  # children stand behind their parents
        count[here] = count[yes[here]] + count[no[here]]
    best: list[list[_Block]] = []
    fewest = ANSWERS_PER_STEP * trees.depth * len(trees.roots) + 1
    for limit in (BITS, 3 * BITS // 4, BITS // 2):
        if limit < BITS and len(best) and max(map(len, best)) == 1:
            break
        made = _cut(trees, yes, no, count.tolist(), limit)
        if made is None:
            continue
        slots = max(map(len, made)) * max(len(b.nodes) for tree in made for b in tree)
        if slots * len(made) < fewest:
            best, fewest = made, slots * len(made)
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
    """How many nodes have more than `limit` leaves below them, as far as that matters."""
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
        place, first = len(nodes), len(exits)
        nodes.append(here)
        cleared.append(0)
        visit(yes[here])
        cleared[place] = (1 << len(exits)) - (1 << first)
        visit(no[here])

    visit(root)
    return _Block(tuple(nodes), tuple(cleared), tuple(exits))


def _tables(trees: Ensemble, cut: list[list[_Block]]) -> Blocks:
    number, blocks = len(cut), max(map(len, cut))
    shape = (number, blocks, max(1, *(len(b.nodes) for tree in cut for b in tree)))
    nodes = np.zeros(shape, np.int64)
    masks = np.full(shape, _ALL, np.uint32)
    two = blocks > 1
    told = np.array([((TELLTALE << bit) & _ALL) >> 27 for bit in range(BITS)])
    following = np.zeros((number, BITS), np.int32)
    leaves = np.zeros((number, BITS * BITS if two else BITS), np.int64)
    for t, tree in enumerate(cut):
        for q, block in enumerate(tree):
            size = len(block.nodes)
            nodes[t, q, :size] = block.nodes
            masks[t, q, :size] = _ALL ^ np.array(block.cleared, np.int64)
        exits = tree[0].exits
        if not two:
            leaves[t, told[: len(exits)]] = exits
            continue
        used = 0
        for place, leaf in enumerate(exits):
            start = BITS * told[place]
            if trees.is_leaf[leaf]:  # whatever another block says
                leaves[t, start : start + BITS] = leaf
                continue
            used += 1
            following[t, told[place]] = used
            below = tree[used].exits
            leaves[t, start + told[: len(below)]] = below
    idle = masks == _ALL
    return Blocks(
        np.where(idle, 0, trees.features[nodes]),
        trees.low[nodes],
        trees.high[nodes],
        trees.nan_yes[nodes] & ~idle,
        masks,
        following if two else None,
        leaves,
    )
