"""Tree ensembles as tables: the attributes of the operators on trees, decoded and checked.

The question of a node becomes "is low <= x <= high" in every mode, by exchanging its children
(x >= v is not x < v) and taking the next smaller number (x < v is x <= the number before v).
A set of members becomes a chain of nodes that ask for one member each, with one child for yes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from frontends.onnx.core.limits import MAX_NODES
from frontends.onnx.core.node import Node
from frontends.onnx.ml.common import vector, words
from poly.ir.dtypes import DType

MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER", "LEAF")


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Trees, node after node, without unreachable nodes.

    Attributes
    ----------
    features, low, high : the question of each node; leaves ask for nothing
    yes, no : its children; those of a leaf are itself
    nan_yes : where NaN is a yes
    is_leaf, roots : which nodes are leaves, and the first node of each tree
    depth : questions on the longest path
    leaves, targets, weights : for each weight of a leaf the node, the target, the number
    """

    features: np.ndarray
    low: np.ndarray
    high: np.ndarray
    yes: np.ndarray
    no: np.ndarray
    nan_yes: np.ndarray
    is_leaf: np.ndarray
    roots: np.ndarray
    depth: int
    leaves: np.ndarray
    targets: np.ndarray
    weights: np.ndarray

    @property
    def one_sided(self) -> bool:
        """Whether all questions are x <= high."""
        return bool(np.isneginf(self.low).all())


def _question(mode: str, value: float, kind: type) -> tuple[float, float, bool, bool | None]:
    """Low, high, whether children are exchanged, and where NaN goes (None: as the node says)."""
    low, high = -np.inf, value
    swapped = mode in ("GTE", "GT", "NEQ") and not (np.isnan(value) and mode != "NEQ")
    if mode in ("LT", "GTE"):
        with np.errstate(under="ignore", over="ignore"):
            high = float(np.nextafter(kind(value), kind(-np.inf)))
        if value == -np.inf:
            low = np.inf  # no number is less
    elif mode in ("EQ", "NEQ"):
        low = value
    return low, high, swapped, False if mode == "NEQ" else None


class _Link(NamedTuple):
    """A node that asks for one member of a set: its feature, the member, its children."""

    feature: int
    member: float
    yes: int
    no: int


@dataclass(frozen=True, eq=False)
class _Nodes:
    """All listed nodes, reached or not, as in `Ensemble`; their questions are filled in."""

    features: np.ndarray
    low: np.ndarray
    high: np.ndarray
    yes: np.ndarray
    no: np.ndarray
    nan_yes: np.ndarray
    is_leaf: np.ndarray

    def compare(self, index: int, mode: str, value: float, kind: type) -> None:
        """Set the question of a node by its mode."""
        self.low[index], self.high[index], swapped, lost = _question(mode, value, kind)
        if swapped:
            self.yes[index], self.no[index] = self.no[index], self.yes[index]
            self.nan_yes[index] = not self.nan_yes[index]
        if lost is not None:
            self.nan_yes[index] = lost

    def find_member(self, index: int, members: Sequence[float], start: int) -> list[_Link]:
        """Let a node ask for the first member; gives the nodes, from `start` on, for the others."""
        first = (members[0], members[0]) if members else (np.inf, -np.inf)
        self.low[index], self.high[index] = first
        links: list[_Link] = []
        last = int(self.no[index])
        for other in members[:0:-1]:
            links.append(_Link(int(self.features[index]), other, int(self.yes[index]), last))
            last = start + len(links) - 1
        self.no[index] = last
        return links

    def with_links(self, links: Sequence[_Link]) -> _Nodes:
        """These nodes, and then those of chains."""
        if not links:
            return self
        tail = np.array([e.member for e in links])
        more = np.zeros(len(links), bool)
        return _Nodes(
            np.concatenate([self.features, [e.feature for e in links]]),
            np.concatenate([self.low, tail]),
            np.concatenate([self.high, tail]),
            np.concatenate([self.yes, [e.yes for e in links]]),
            np.concatenate([self.no, [e.no for e in links]]),
            np.concatenate([self.nan_yes, more]),
            np.concatenate([self.is_leaf, more]),
        )


def ensemble_of(
    node: Node,
    dtype: DType,
    width: int,
    *,
    modes: Sequence[str],
    features: np.ndarray,
    values: np.ndarray,
    yes: np.ndarray,
    no: np.ndarray,
    missing: np.ndarray,
    roots: np.ndarray,
    leaf_weights: tuple[np.ndarray, np.ndarray, np.ndarray],
    members: Sequence[Sequence[float]] = (),
    sums: DType | None = None,
) -> Ensemble:
    """The tables of checked trees.

    Parameters
    ----------
    width : how many features there are
    yes, no : indices of children; those of leaves are ignored
    missing : where NaN goes to the child for yes
    leaf_weights : index of the leaf, target, weight
    members : the set of each node of mode MEMBER, in order
    sums : the type of weights, if it is not `dtype`

    Raises
    ------
    ModelError : if the nodes are not trees, or ask for features that do not exist.
    """
    kind = dtype.numpy.type
    count = len(modes)
    if count + sum(map(len, members)) > MAX_NODES * 64:
        raise node.fail(f"{count} tree nodes are too many")
    is_leaf = np.array([m == "LEAF" for m in modes], bool)
    asked = np.flatnonzero(~is_leaf)
    wrong = (features[asked] < 0) | (features[asked] >= width)
    if wrong.any():
        index = asked[wrong.argmax()]
        raise node.fail(f"a tree asks for feature {features[index]}, but there are only {width}")
    low, high, own = np.full(count, -np.inf), np.zeros(count), np.arange(count)
    yes, no = np.where(is_leaf, own, yes), np.where(is_leaf, own, no)
    nodes = _Nodes(features, low, high, yes, no, missing.astype(bool), is_leaf)
    links: list[_Link] = []
    sets = iter(members)
    for index in asked.tolist():
        if modes[index] == "MEMBER":
            links += nodes.find_member(index, list(next(sets)), count + len(links))
        else:
            nodes.compare(index, modes[index], float(values[index]), kind)
    weights = leaf_weights[2].astype((sums or dtype).numpy)
    return _reached(node, nodes.with_links(links), roots, (*leaf_weights[:2], weights), kind)


def _reached(
    node: Node,
    nodes: _Nodes,
    roots: np.ndarray,
    leaf_weights: tuple[np.ndarray, np.ndarray, np.ndarray],
    kind: type,
) -> Ensemble:
    """The nodes that can be reached, renumbered."""
    order, depth = _ordered(node, nodes.yes, nodes.no, nodes.is_leaf, roots)
    new = np.full(len(nodes.yes), -1)
    new[order] = np.arange(len(order))
    at, target, weight = leaf_weights
    kept = nodes.is_leaf[at] & (new[at] >= 0)
    return Ensemble(
        np.where(nodes.is_leaf, 0, nodes.features)[order],
        nodes.low[order].astype(kind),
        nodes.high[order].astype(kind),
        new[nodes.yes[order]],
        new[nodes.no[order]],
        nodes.nan_yes[order],
        nodes.is_leaf[order],
        new[roots],
        depth,
        new[at[kept]],
        target[kept],
        weight[kept],
    )


def _ordered(
    node: Node, yes: np.ndarray, no: np.ndarray, is_leaf: np.ndarray, roots: np.ndarray
) -> tuple[np.ndarray, int]:
    """The nodes that can be reached, tree by tree from the root down, and the depth.

    Raises
    ------
    ModelError : if the nodes of a tree form a cycle.
    """
    level = [-1] * len(yes)  # questions on the longest path down from a node, -1 while unknown
    is_open = [False] * len(yes)
    left, right, leaf = yes.tolist(), no.tolist(), is_leaf.tolist()
    order: list[int] = []
    for root in roots.tolist():
        stack, done = [root], []
        while stack:
            here = stack[-1]
            if level[here] < 0 and not leaf[here] and not is_open[here]:
                is_open[here] = True
                for child in (right[here], left[here]):
                    if level[child] < 0:
                        if is_open[child]:
                            raise node.fail("the nodes of a tree form a cycle")
                        stack.append(child)
                continue
            if level[here] < 0:
                level[here] = 0 if leaf[here] else 1 + max(level[left[here]], level[right[here]])
                done.append(here)
            stack.pop()
        order += reversed(done)
    return np.array(order, np.int64), max((level[r] for r in roots.tolist()), default=0)


def _numbers(node: Node, name: str, count: int, kind: type | np.dtype) -> np.ndarray:
    found = vector(node, name, kind)
    if found is None:
        found = vector(node, f"{name}_as_tensor", kind)
    if found is None or len(found) != count:
        given = 0 if found is None else len(found)
        raise node.fail(f"{name} has {given} entries for {count}")
    return found


def _missing_flags(node: Node, count: int) -> np.ndarray:
    """For each node, whether a missing value takes the branch of a condition that holds."""
    name = "nodes_missing_value_tracks_true"
    flags = vector(node, name, np.int64)
    if flags is None or not len(flags):
        return np.zeros(count, np.int64)
    if len(flags) != count:
        raise node.fail(f"{name} has {len(flags)} entries for {count}")
    return flags


def _checked_modes(node: Node, modes: Sequence[str]) -> list[str]:
    short = [m.removeprefix("BRANCH_") for m in modes]
    for mode in short:
        if mode not in MODES or mode == "MEMBER":
            raise node.fail(f"there is no node mode {mode!r}")
    return short


@dataclass(frozen=True, eq=False)
class _NodeIndex:
    """The indices of nodes that are named by tree and number."""

    node: Node
    indices: Mapping[tuple[int, int], int]

    @staticmethod
    def of(node: Node, trees: np.ndarray, ids: np.ndarray) -> _NodeIndex:
        """Number the nodes in the order of the list.

        Raises
        ------
        ModelError : if a node is listed twice.
        """
        indices: dict[tuple[int, int], int] = {}
        for index, key in enumerate(zip(trees.tolist(), ids.tolist(), strict=True)):
            if indices.setdefault(key, index) != index:
                raise node.fail(f"node {key[1]} of tree {key[0]} is listed twice")
        return _NodeIndex(node, indices)

    def find(self, trees: np.ndarray, ids: np.ndarray, what: str) -> np.ndarray:
        """The indices of these nodes.

        Raises
        ------
        ModelError : if there is no such node; `what` says what it is needed for.
        """
        result = np.empty(len(ids), np.int64)
        for n, key in enumerate(zip(trees.tolist(), ids.tolist(), strict=True)):
            index = self.indices.get(key)
            if index is None:
                raise self.node.fail(f"tree {key[0]} has no node {key[1]}, {what}")
            result[n] = index
        return result


def _listed_weights(
    node: Node, dtype: DType, prefix: str, listed: _NodeIndex
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each weight of a leaf the index of the leaf, the target and the weight."""
    targets = vector(node, f"{prefix}_ids", np.int64)
    if targets is None or not len(targets):
        none = np.zeros(0, np.int64)
        return none, none, np.zeros(0, dtype.numpy)
    trees, ids = (
        _numbers(node, f"{prefix}_{name}", len(targets), np.int64)
        for name in ("treeids", "nodeids")
    )
    weights = _numbers(node, f"{prefix}_weights", len(targets), dtype.numpy)
    return listed.find(trees, ids, "which has a weight"), targets, weights


def listed_ensemble(node: Node, dtype: DType, width: int, prefix: str) -> Ensemble:
    """The trees of TreeEnsembleClassifier and TreeEnsembleRegressor, listed node by node.

    Parameters
    ----------
    prefix : of the attributes of leaves, "class" or "target"

    Raises
    ------
    ModelError : if they are not trees.
    """
    modes = _checked_modes(node, words(node, "nodes_modes") or ())
    count = len(modes)
    if not count:
        raise node.fail("there are no nodes")
    trees, ids, features, yes, no = (
        _numbers(node, f"nodes_{name}", count, np.int64)
        for name in ("treeids", "nodeids", "featureids", "truenodeids", "falsenodeids")
    )
    values = _numbers(node, "nodes_values", count, dtype.numpy)
    missing = _missing_flags(node, count)
    listed = _NodeIndex.of(node, trees, ids)
    asked = np.array([m != "LEAF" for m in modes])
    children = []
    for ids_of, what in ((yes, "a child for yes"), (no, "a child for no")):
        all_ = np.zeros(count, np.int64)
        all_[asked] = listed.find(trees[asked], ids_of[asked], what)
        children.append(all_)
    return ensemble_of(
        node,
        dtype,
        width,
        modes=modes,
        features=features,
        values=values,
        yes=children[0],
        no=children[1],
        missing=missing,
        roots=np.sort(np.unique(trees, return_index=True)[1]),
        leaf_weights=_listed_weights(node, dtype, prefix, listed),
    )


def linked_ensemble(node: Node, dtype: DType, width: int) -> Ensemble:
    """The trees of TreeEnsemble, whose nodes and leaves are numbered separately.

    Raises
    ------
    ModelError : if they are not trees.
    """
    numbers = vector(node, "nodes_modes", np.int64)
    assert numbers is not None, "a required attribute"
    count = len(numbers)
    if not count or numbers.min() < 0 or numbers.max() >= len(MODES) - 1:
        raise node.fail("nodes_modes are numbers from 0 to 6")
    leaves = vector(node, "leaf_weights", dtype.numpy)
    assert leaves is not None, "a required attribute"
    targets = _numbers(node, "leaf_targetids", len(leaves), np.int64)
    features = _numbers(node, "nodes_featureids", count, np.int64)
    splits = _numbers(node, "nodes_splits", count, dtype.numpy)
    missing = _missing_flags(node, count)
    children = []
    for side in ("true", "false"):
        ids = _numbers(node, f"nodes_{side}nodeids", count, np.int64)
        to_leaf = _numbers(node, f"nodes_{side}leafs", count, np.int64) != 0
        limit = np.where(to_leaf, len(leaves), count)
        if ((ids < 0) | (ids >= limit)).any():
            raise node.fail(f"nodes_{side}nodeids names a node or leaf that does not exist")
        children.append(np.where(to_leaf, ids + count, ids))
    roots = vector(node, "tree_roots", np.int64)
    assert roots is not None, "a required attribute"
    if not len(roots) or roots.min() < 0 or roots.max() >= count:
        raise node.fail("tree_roots names a node that does not exist")
    own = np.arange(count, count + len(leaves))
    filler = np.zeros(len(leaves))
    return ensemble_of(
        node,
        dtype,
        width,
        modes=[*(MODES[m] for m in numbers), *("LEAF" for _ in leaves)],
        features=np.concatenate([features, filler.astype(np.int64)]),
        values=np.concatenate([splits, filler.astype(splits.dtype)]),
        yes=np.concatenate([children[0], own]),
        no=np.concatenate([children[1], own]),
        missing=np.concatenate([missing, filler.astype(np.int64)]),
        roots=roots,
        leaf_weights=(own, targets, leaves),
        members=_member_sets(node, numbers, dtype),
    )


def _member_sets(node: Node, modes: np.ndarray, dtype: DType) -> list[list[float]]:
    """The sets of the nodes that ask for members: numbers, each set ended by NaN."""
    wanted = int((modes == MODES.index("MEMBER")).sum())
    given = vector(node, "membership_values", dtype.numpy)
    sets: list[list[float]] = [[]]
    for value in [] if given is None else given.tolist():
        if value != value:
            sets.append([])
        else:
            sets[-1].append(value)
    if sets and not sets[-1]:
        sets.pop()
    if len(sets) != wanted:
        raise node.fail(f"membership_values has {len(sets)} sets for {wanted} nodes")
    return sets
