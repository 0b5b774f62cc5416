"""TfIdfVectorizer: how often each n-gram of a vocabulary occurs, as numpy computes it."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from frontends.onnx.core.node import InC, Node, Result, Unsupported, operator
from frontends.onnx.core.stages import TEXT, Array, Body
from frontends.onnx.ops.select import opaque, taken
from poly.ir.dtypes import FLOAT32, INT32, INT64

#: n-grams of a vocabulary, each with its column of the result.
Vocabulary = Mapping[tuple[Hashable, ...], int]


@operator("TfIdfVectorizer")
def tf_idf(node: Node) -> Sequence[Result]:
    """Y[..,c] = count of gram c in X[..], 1 if there is any, or count times weight."""
    x = node.required(0)
    if x.dtype not in (INT32, INT64, TEXT) or x.rank > 2:
        raise Unsupported(f"n-grams of {x.dtype} of rank {x.rank}")
    mode = node.word("mode", "")
    if mode not in ("TF", "IDF", "TFIDF"):
        raise node.fail(f"there is no mode {mode!r}")
    least, most = (node.integer(f"{name}_gram_length", 0) for name in ("min", "max"))
    skips, columns = node.integer("max_skip_count", 0), node.ints("ngram_indexes") or ()
    vocabulary = _vocabulary(node, x.dtype == TEXT, columns)
    if not 1 <= least <= most or skips < 0:
        raise node.fail(f"there are no grams of {least} to {most} words with {skips} between them")
    weights = np.array(node.attributes.get("weights") or np.ones(len(columns)), np.float32)
    if len(weights) != len(columns):
        raise node.fail(f"{len(weights)} weights for {len(columns)} grams")
    factors = np.ones(max(columns) + 1, np.float32)
    factors[list(columns)] = weights

    def run(arrays: Sequence[Array | None], _: Sequence[Body]) -> Sequence[Array]:
        rows = taken(arrays, 0)
        found = np.stack([
            _counts(row.tolist(), vocabulary, (least, most), skips, len(factors))
            for row in rows.reshape(-1, rows.shape[-1] if rows.ndim else 1)
        ]) if rows.size else np.zeros((*rows.shape[:-1], len(factors)), np.float32)  # fmt: skip
        if mode != "TF":
            found = (found if mode == "TFIDF" else np.minimum(found, 1)) * factors
        return [found.reshape(*rows.shape[:-1], len(factors)).astype(np.float32)]

    if x.dtype == TEXT:
        return opaque([x], [FLOAT32], run)
    width = x.shape[-1] if x.rank else 1
    shape = (*x.shape[:-1], len(factors))
    words, numbers, tables = _tables(vocabulary, most)
    arguments = (
        math.prod(x.shape[:-1]), width, least, most, skips, len(factors), words, numbers,
        int(mode == "IDF"), int(mode != "TF"),
    )  # fmt: skip
    in_c = InC("ngrams", (shape,), arguments, tables=(*tables, factors))
    return opaque([x], [FLOAT32], run, in_c)


def _tables(
    vocabulary: Vocabulary, most: int
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[Array, Array]]:
    """Where the grams of each length begin among all words, and among all grams; the words of grams
    in order, and their columns.
    """
    grams = sorted(vocabulary, key=lambda g: (len(g), g))
    lengths = [sum(len(g) == n for g in grams) for n in range(1, most + 1)]
    numbers = tuple(accumulate(lengths, initial=0))
    words = tuple(accumulate((n * c for n, c in enumerate(lengths, 1)), initial=0))
    kept = grams[: numbers[-1]]
    flat = [word for gram in kept for word in gram]
    columns = [vocabulary[gram] for gram in kept]
    return words, numbers, (_vector(flat), _vector(columns))


def _vector(elements: Sequence[Any]) -> Array:
    """Integers, at least one so that the array has a place in memory."""
    return np.array(elements or [0], np.int64)


def _vocabulary(node: Node, texts: bool, columns: Sequence[int]) -> Vocabulary:
    """The n-grams: those of one word come first, then those of two, and so on."""
    pool = node.attributes.get("pool_strings" if texts else "pool_int64s") or ()
    assert isinstance(pool, tuple)
    starts = node.ints("ngram_counts") or ()
    ends = (*starts[1:], len(pool))
    grams: list[tuple[Hashable, ...]] = []
    for length, (start, end) in enumerate(zip(starts, ends, strict=True), 1):
        if not 0 <= start <= end <= len(pool) or (end - start) % length:
            raise node.fail(f"{len(pool)} words do not make grams that begin at {list(starts)}")
        grams += [tuple(pool[at : at + length]) for at in range(start, end, length)]
    if not columns or len(columns) != len(grams) or min(columns) < 0:
        raise node.fail(f"{len(columns)} columns for {len(grams)} grams")
    return dict(zip(grams, columns, strict=True))


def _counts(
    words: list[Hashable],
    vocabulary: Vocabulary,
    lengths: tuple[int, int],
    skips: int,
    columns: int,
) -> Array:
    """How often each gram occurs, with up to `skips` words left out between all of its words."""
    found = np.zeros(columns, np.float32)
    for step in range(1, skips + 2):
        for length in range(lengths[0] if step == 1 else max(lengths[0], 2), lengths[1] + 1):
            for start in range(len(words) - step * (length - 1)):
                gram = tuple(words[start : start + step * (length - 1) + 1 : step])
                if gram in vocabulary:
                    found[vocabulary[gram]] += 1
    return found
