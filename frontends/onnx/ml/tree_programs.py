"""Comprehensions that combine, for each row and target, the weights of leaves of trees.

A few rows *walk*: the node that a row has reached in a tree is a recurrence over the depth, and
leaves are their own children, so that all paths are equally long.  A step has to wait for the one
before, so that all trees take a step, or many rows do, before any takes the next one.  Many rows
answer the questions of whole blocks of a tree at once (`frontends.onnx.ml.blocks`), with rows as
lanes of vectors; a few rows do so with trees as lanes, if a tree is one block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from frontends.onnx.core.comprehension_text import declare, line, literal
from frontends.onnx.core.node import Node
from frontends.onnx.core.symbolic_dims import Dim
from frontends.onnx.ml.blocks import BITS, TELLTALE, Blocks, Group, blocks_of
from frontends.onnx.ml.common import Rows
from frontends.onnx.ml.ensembles import Ensemble
from poly.ir.dtypes import INT32, UINT8, UINT32, DType, dtype_of

#: Fewer rows or trees do not fill a vector.
LEAST_LANES = 16
#: Rows whose answers stay in the cache, and blocks of rows that threads can share.
ROWS_AT_ONCE, BLOCKS_TO_SHARE = 128, 2
#: Rows at once of an open number that is not enough for such blocks.
ROWS_IF_OPEN = 32

#: The largest table of weights, nodes times targets.
MAX_WEIGHTS = 1 << 28

COMBINE = {"AVERAGE": "+=!", "SUM": "+=!", "MIN": "min=!", "MAX": "max=!"}


#: An operand: its name, element type and array.
_Table = tuple[str, DType, np.ndarray]


@dataclass(frozen=True, eq=False)
class Sums:
    """Declarations of operands, their arrays, and statements that compute Q[n,k]."""

    operands: list[str]
    arrays: list[np.ndarray]
    lines: list[str]


@dataclass(frozen=True, eq=False)
class _Leaves:
    """Weights of leaves: [node] if each tree votes for one target, else [node, target].

    `order` are the trees, target after target from `first` on, `each` trees for each target, padded
    with -1.  Other targets have the number `nothing`.
    """

    weights: np.ndarray
    order: np.ndarray
    each: int
    first: int
    count: int
    nothing: float

    @property
    def is_grouped(self) -> bool:
        return self.weights.ndim == 1

    @property
    def dtype(self) -> DType:
        """The type that weights are summed in."""
        return dtype_of(self.weights.dtype)


def sums_of(node: Node, rows: Rows, trees: Ensemble, targets: int, aggregate: str) -> Sums:
    """Sums (or what `aggregate` says) over all trees, for each of the targets."""
    if len(trees.targets) and not 0 <= trees.targets.min() <= trees.targets.max() < targets:
        raise node.fail(f"a leaf has a weight for a target that is not among {targets}")
    blocks = blocks_of(trees)
    leaves = _leaves(node, trees, targets, aggregate)
    combine = COMBINE[aggregate]
    if blocks is not None and rows.count >= LEAST_LANES:
        return _answers(rows, trees, blocks, leaves, targets, combine)
    if blocks is not None and blocks.following is None and len(leaves.order) >= LEAST_LANES:
        return _answers_of_trees(rows, trees, blocks, leaves, targets, combine)
    pairs = _pairs(trees)
    if pairs is not None:
        return _walk_in_pairs(rows, trees, pairs, leaves, targets, combine)
    return _walk(rows, trees, leaves, targets, combine)


def _leaves(node: Node, trees: Ensemble, targets: int, aggregate: str) -> _Leaves:
    """Weights by node, one more for an absent tree, and the trees in the order of targets."""
    nothing = {"MIN": np.inf, "MAX": -np.inf}.get(aggregate, 0.0)
    count, number = len(trees.yes), len(trees.roots)
    together = {"MIN": np.minimum, "MAX": np.maximum}.get(aggregate, np.add)
    # The nodes of a tree are contiguous, from its root on, unless trees share nodes.
    tree = np.searchsorted(np.sort(trees.roots), trees.leaves, side="right") - 1
    tree = np.argsort(trees.roots)[tree]
    voted = np.full(number, -1, np.int64)
    voted[tree] = trees.targets
    apart = bool((np.diff(trees.roots) > 0).all()) and not _shares_nodes(trees)
    is_tree = apart and len(trees.targets) > 0
    first, last = (trees.targets.min(), trees.targets.max()) if is_tree else (0, 0)
    is_tree = is_tree and last - first < 2 * number
    groups = [np.flatnonzero(voted == k) for k in range(first, last + 1)] if is_tree else []
    each = max(map(len, groups), default=0)
    if is_tree and (voted[tree] == trees.targets).all() and each * len(groups) <= 2 * number:
        order = np.full((len(groups), each), -1)
        for k, group in enumerate(groups):
            order[k, : len(group)] = group
        weights = np.full(count + 1, nothing, trees.weights.dtype)
        together.at(weights, trees.leaves, trees.weights)
        return _Leaves(weights, order.reshape(-1), each, int(first), len(groups), nothing)
    if (count + 1) * targets > MAX_WEIGHTS:
        raise node.fail(f"{count} nodes for {targets} targets are too many")
    table = np.full((count + 1, targets), nothing, trees.weights.dtype)
    together.at(table, (trees.leaves, trees.targets), trees.weights)
    return _Leaves(table, np.arange(number), number, 0, targets, nothing)


def _shares_nodes(trees: Ensemble) -> bool:
    """Whether a node is reached in two ways, in one tree or in two."""
    asked = ~trees.is_leaf
    reached = np.concatenate([trees.yes[asked], trees.no[asked], trees.roots])
    return len(np.unique(reached)) != len(reached)


def _pairs(trees: Ensemble) -> np.ndarray | None:
    """New indices of the nodes, such that the child for no follows that for yes.

    None if nodes are shared, or ask for more than x <= a finite number.
    """
    asked = np.flatnonzero(~trees.is_leaf)
    if _shares_nodes(trees):
        return None
    if not trees.one_sided or not np.isfinite(trees.high[asked]).all():
        return None
    new = np.zeros(len(trees.yes), np.int64)
    new[trees.roots] = np.arange(len(trees.roots))
    new[trees.yes[asked]] = len(trees.roots) + 2 * np.arange(len(asked))
    new[trees.no[asked]] = new[trees.yes[asked]] + 1
    return new


def _walk_in_pairs(
    rows: Rows,
    trees: Ensemble,
    new: np.ndarray,
    leaves: _Leaves,
    targets: int,
    combine: str,
) -> Sums:
    """Walks whose steps add the answer to the index of the first child, without branches.

    Leaves ask whether a number is greater than infinity, and stay where they are.
    """
    dtype, count, number = rows.dtype, len(new) + 1, len(leaves.order)
    features, high, first = np.zeros(count, np.int64), np.full(count, np.inf), np.arange(count)
    asked = np.flatnonzero(~trees.is_leaf)
    features[new] = np.where(trees.is_leaf, 0, trees.features + rows.width * trees.nan_yes)
    high[new[asked]] = trees.high[asked]
    first[new[asked]] = new[trees.yes[asked]]
    weights = leaves.weights.copy()
    weights[new] = leaves.weights[:-1]
    narrow = UINT8 if 2 * rows.width <= 1 << 8 else INT32
    tables: list[_Table] = [
        ("F", narrow, features),
        ("V", dtype, high),
        ("first", INT32, first),
        ("R", INT32, np.append(new[trees.roots], count - 1)[leaves.order]),
        ("W", leaves.dtype, weights),
    ]
    if rows.count >= LEAST_LANES > number:
        return _sums(rows, tables, _walk_of_rows(rows, trees, leaves, targets, combine))
    each, at = {"n": rows.count, "t": number}, "P[n,d,t]"
    lines = [
        *_columns(rows, nan=True),
        declare("P", INT32, (rows.count, trees.depth + 1, number)),
        line("P[n,0,t] = R[t]", each),
        line(
            f"P[n,d + 1,t] = first[{at}] + int32(cols[n,F[{at}]] > V[{at}])",
            {"n": rows.count, "d": trees.depth, "t": number},
        ),
        *_ends(rows, trees, leaves, targets, combine),
    ]
    return _sums(rows, tables, lines)


def _walk_of_rows(
    rows: Rows, trees: Ensemble, leaves: _Leaves, targets: int, combine: str
) -> list[str]:
    """The same walks for a few trees, with rows side by side."""
    cut, number, depth = _RowBlocks.of(rows), len(leaves.order), trees.depth
    each, at = {"b": cut.outer, "t": number, "r": cut.lanes}, "P[b,d,t,r]"
    lines = [
        *_features(rows, cut, nan=True),
        declare("P", INT32, (cut.outer, depth + 1, number, cut.lanes)),
        line("P[b,0,t,r] = R[t]", each),
        line(
            f"P[b,d + 1,t,r] = first[{at}] + int32(cols[b,F[{at}],r] > V[{at}])",
            {"b": cut.outer, "d": depth, "t": number, "r": cut.lanes},
        ),
    ]
    place = f"P[b,{depth},{{t}},r]"
    return lines + _sums_of_lanes(rows, leaves, targets, combine, cut, place)


def _ends(rows: Rows, trees: Ensemble, leaves: _Leaves, targets: int, combine: str) -> list[str]:
    """Statements that combine the weights of the leaves that rows reach."""
    lines = _others(rows, leaves, targets)
    if leaves.is_grouped:
        end = f"P[n,{trees.depth},{leaves.each}*k + g]"
        ranges = {"n": rows.count, "k": leaves.count, "g": leaves.each}
        return [*lines, line(f"Q[n,k + {leaves.first}] {combine} W[{end}]", ranges)]
    ranges = {"n": rows.count, "k": targets, "t": len(leaves.order)}
    return [*lines, line(f"Q[n,k] {combine} W[P[n,{trees.depth},t],k]", ranges)]


def _walk(rows: Rows, trees: Ensemble, leaves: _Leaves, targets: int, combine: str) -> Sums:
    """One step down all trees at a time."""
    dtype, depth, count = rows.dtype, trees.depth, len(trees.yes) + 1
    number = len(leaves.order)
    x, at = rows.number(feature="F[P[n,d,t]]"), "P[n,d,t]"
    question = f"{x} <= V[{at}]"
    tables: list[_Table] = [
        ("F", INT32, np.append(trees.features, 0)),
        ("V", dtype, np.append(trees.high, 0)),
        ("yes", INT32, np.append(trees.yes, count - 1)),
        ("no", INT32, np.append(trees.no, count - 1)),
        ("R", INT32, np.append(trees.roots, count - 1)[leaves.order]),
        ("W", leaves.dtype, leaves.weights),
    ]
    if not trees.one_sided:
        question = f"U[{at}] <= {x} and {question}"
        tables.append(("U", dtype, np.append(trees.low, 0)))
    if trees.nan_yes.any():
        question = f"({question}) or N[{at}] != 0 and isnan({x})"
        tables.append(("N", INT32, np.append(trees.nan_yes, False)))
    each = {"n": rows.count, "t": number}
    steps = {"n": rows.count, "d": depth, "t": number}
    lines = [
        declare("P", INT32, (rows.count, depth + 1, number)),
        line("P[n,0,t] = R[t]", each),
        line(f"P[n,d + 1,t] = select({question}, yes[{at}], no[{at}])", steps),
        *_ends(rows, trees, leaves, targets, combine),
    ]
    return _sums(rows, tables, lines)


@dataclass(frozen=True)
class _RowBlocks:
    """Row r of block b is row lanes*b + r; the last block may be partly empty."""

    outer: int
    lanes: int

    @staticmethod
    def of(rows: Rows) -> _RowBlocks:
        """Blocks that threads can share and whose answers stay in the cache."""
        share = -(-rows.count // (BLOCKS_TO_SHARE * LEAST_LANES)) * LEAST_LANES
        if isinstance(rows.count, Dim):  # one number for all sizes up to the greatest
            lanes = ROWS_AT_ONCE if share >= ROWS_AT_ONCE else ROWS_IF_OPEN
        else:
            lanes = min(rows.count, share, ROWS_AT_ONCE)
        return _RowBlocks(-(-rows.count // lanes), lanes)

    def is_partial(self, rows: Rows) -> bool:
        """Whether the last block is partly empty; it may be for an open number of rows."""
        return isinstance(rows.count, Dim) or self.outer * self.lanes > rows.count


def _answers(
    rows: Rows, trees: Ensemble, blocks: Blocks, leaves: _Leaves, targets: int, combine: str
) -> Sums:
    """All questions of all blocks, then the leaf of each."""
    order, following, groups = leaves.order, blocks.following, blocks.groups
    if following is None:  # block t is that of tree t
        groups = (_ordered(groups[0], order),)
    cut = _RowBlocks.of(rows)
    nodes = np.where((order < 0)[:, None], len(trees.yes), blocks.leaves[order])
    tables: list[_Table] = [("W", leaves.dtype, leaves.weights[nodes])]
    lines = _features(rows, cut, any(bool(g.nan_yes.any()) for g in groups))
    lines.append(declare("J", UINT8, (cut.outer, sum(len(g.masks) for g in groups), cut.lanes)))
    start = 0
    for number, group in enumerate(groups):
        tables += _group_tables(rows, trees, group, number)
        lines += _group_answers(trees, group, number, start, cut)
        start += len(group.masks)
    place = "{t},J[b,{t},r]"
    if following is not None:
        tables.append(("root", INT32, np.where(order < 0, 0, order)))
        tables.append(("next", INT32, following[order]))
        lines += _second_leaves(len(order), cut)
        place = "{t},H[b,{t},r]"
    lines += _sums_of_lanes(rows, leaves, targets, combine, cut, place)
    return _sums(rows, tables, lines)


def _group_tables(rows: Rows, trees: Ensemble, group: Group, number: int) -> list[_Table]:
    """The questions of a group and the masks of their answers."""
    # In a second copy of the features, NaN is less than every number.
    tables: list[_Table] = [
        (f"F{number}", INT32, group.features + rows.width * group.nan_yes),
        (f"V{number}", rows.dtype, group.high),
        (f"M{number}", UINT32, group.masks),
    ]
    if not trees.one_sided:
        tables.append((f"U{number}", rows.dtype, group.low))
    return tables


def _group_answers(
    trees: Ensemble, group: Group, number: int, start: int, cut: _RowBlocks
) -> list[str]:
    """J[b,start + g,r]: the leaf of each block of a group, for each row."""
    count, questions = group.masks.shape
    f, v, u, m, a = (f"{name}{number}" for name in ("F", "V", "U", "M", "A"))
    asked = []
    for k in range(questions):
        question = f"cols[b,{f}[g,{k}],r] <= {v}[g,{k}]"
        if not trees.one_sided:
            question = f"{u}[g,{k}] <= cols[b,{f}[g,{k}],r] and {question}"
        asked.append(f"select({question}, 0xffffffff, {m}[g,{k}])")
    each = {"b": cut.outer, "g": count, "r": cut.lanes}
    at = f"{a}[b,g,r]"
    return [
        declare(a, UINT32, (cut.outer, count, cut.lanes)),
        line(f"{at} = {' & '.join(asked)}", each),
        line(f"J[b,{start} + g,r] = uint8((({at} & -{at}) * {TELLTALE}) >> 27)", each),
    ]


def _second_leaves(number: int, cut: _RowBlocks) -> list[str]:
    """H[b,t,r]: the leaves of trees of two levels, from those of the first block and the next."""
    first = "J[b,root[t],r]"
    return [
        declare("H", INT32, (cut.outer, number, cut.lanes)),
        line(
            f"H[b,t,r] = {BITS} * int32({first}) + int32(J[b,next[t,{first}],r])",
            {"b": cut.outer, "t": number, "r": cut.lanes},
        ),
    ]


def _sums_of_lanes(
    rows: Rows, leaves: _Leaves, targets: int, combine: str, cut: _RowBlocks, place: str
) -> list[str]:
    """Q[n,k]: the combined weights; `place` is that of the leaf of a tree {t} in W, as text."""
    ranges = {"b": cut.outer, "k": leaves.count, "r": cut.lanes}
    lines = [declare("sums", leaves.dtype, (cut.outer, leaves.count, cut.lanes))]
    if leaves.is_grouped:
        tree = f"{leaves.each}*k + g"
        value = f"W[{place.format(t=tree)}]"
        lines.append(line(f"sums[b,k,r] {combine} {value}", {**ranges, "g": leaves.each}))
    else:
        value = f"W[{place.format(t='t')},k]"
        lines.append(line(f"sums[b,k,r] {combine} {value}", {**ranges, "t": len(leaves.order)}))
    row = f"{cut.lanes}*b + r"
    guards = [f"{row} < {rows.count}"] if cut.is_partial(rows) else []
    return [
        *lines,
        *_others(rows, leaves, targets),
        line(f"Q[{row},k + {leaves.first}] = sums[b,k,r]", ranges, guards),
    ]


def _answers_of_trees(
    rows: Rows, trees: Ensemble, blocks: Blocks, leaves: _Leaves, targets: int, combine: str
) -> Sums:
    """The same for trees of one block, with trees side by side."""
    dtype, order = rows.dtype, leaves.order
    group = _ordered(blocks.groups[0], order)
    number, questions = group.masks.shape
    nan = bool(group.nan_yes.any())
    nodes = np.where((order < 0)[:, None], len(trees.yes), blocks.leaves[order])
    tables: list[_Table] = [
        ("W", leaves.dtype, leaves.weights[nodes]),
        ("F", INT32, (group.features + rows.width * group.nan_yes).T),
        ("V", dtype, group.high.T),
        ("M", UINT32, group.masks.T),
    ]
    if not trees.one_sided:
        tables.append(("U", dtype, group.low.T))
    asked = []
    for k in range(questions):
        question = f"cols[n,F[{k},t]] <= V[{k},t]"
        if not trees.one_sided:
            question = f"U[{k},t] <= cols[n,F[{k},t]] and {question}"
        asked.append(f"select({question}, 0xffffffff, M[{k},t])")
    each = {"n": rows.count, "t": number}
    lines = [
        *_columns(rows, nan),
        declare("A", UINT32, (rows.count, number)),
        line(f"A[n,t] = {' & '.join(asked)}", each),
        declare("J", UINT8, (rows.count, number)),
        line(f"J[n,t] = uint8(((A[n,t] & -A[n,t]) * {TELLTALE}) >> 27)", each),
        *_others(rows, leaves, targets),
    ]
    if leaves.is_grouped:
        tree = f"{leaves.each}*k + g"
        ranges = {"n": rows.count, "k": leaves.count, "g": leaves.each}
        lines.append(line(f"Q[n,k + {leaves.first}] {combine} W[{tree},J[n,{tree}]]", ranges))
    else:
        ranges = {"n": rows.count, "k": targets, "t": number}
        lines.append(line(f"Q[n,k] {combine} W[t,J[n,t],k]", ranges))
    return _sums(rows, tables, lines)


def _columns(rows: Rows, nan: bool) -> list[str]:
    """cols[n,c]: the features; if `nan`, twice, with NaN greater and less than every number."""
    x, each = rows.number(), {"n": rows.count, "c": rows.width}
    if not nan:
        return [
            declare("cols", rows.dtype, (rows.count, rows.width)),
            line(f"cols[n,c] = {x}", each),
        ]
    return [
        declare("cols", rows.dtype, (rows.count, 2 * rows.width)),
        line(f"cols[n,c] = select(isnan({x}), inf, {x})", each),
        line(f"cols[n,{rows.width} + c] = select(isnan({x}), -inf, {x})", each),
    ]


def _ordered(group: Group, order: np.ndarray) -> Group:
    """The blocks of trees in another order; -1 gives a block of idle questions."""
    masks = np.where((order < 0)[:, None], np.uint32(0xFFFFFFFF), group.masks[order])
    return Group(
        group.features[order],
        group.low[order],
        group.high[order],
        group.nan_yes[order],
        masks,
    )


def _others(rows: Rows, leaves: _Leaves, targets: int) -> list[str]:
    """The numbers of targets that no tree votes for."""
    nothing = literal(leaves.nothing)
    lines = [declare("Q", leaves.dtype, (rows.count, targets))]
    for start, end in ((0, leaves.first), (leaves.first + leaves.count, targets)):
        if start < end:
            lines.append(line(f"Q[n,k] = {nothing}", {"n": rows.count, "k": (start, end)}))
    return lines


def _features(rows: Rows, cut: _RowBlocks, nan: bool) -> list[str]:
    """cols[b,c,r]: the features of blocks of rows, with rows as lanes."""
    row = f"{cut.lanes}*b + r"
    if cut.is_partial(rows):
        row = f"min({row}, {rows.count - 1})"
    read = rows.number(row=row)
    ranges = {"b": cut.outer, "c": rows.width, "r": cut.lanes}
    width = (2 if nan else 1) * rows.width
    lines = [declare("cols", rows.dtype, (cut.outer, width, cut.lanes))]
    if not nan:
        return [*lines, line(f"cols[b,c,r] = {read}", ranges)]
    return [
        *lines,
        line(f"cols[b,c,r] = select(isnan({read}), inf, {read})", ranges),
        line(f"cols[b,{rows.width} + c,r] = select(isnan({read}), -inf, {read})", ranges),
    ]


def _sums(rows: Rows, tables: list[_Table], lines: list[str]) -> Sums:
    arrays = [np.ascontiguousarray(a, kind.numpy) for _, kind, a in tables]
    operands = [declare(n, k, a.shape) for (n, k, _), a in zip(tables, arrays, strict=True)]
    return Sums([rows.declaration(), *operands], arrays, lines)
