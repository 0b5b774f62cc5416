"""Gradients of embeddings: rows that are added at places which depend on elements."""

from __future__ import annotations

import math

from frontends.aten.emitter import Emitter
from frontends.aten.index import integers
from frontends.aten.move import filled
from frontends.aten.registry import Arguments, lowering
from frontends.aten.values import Ref, Unsupported, is_empty

#: The most words, and comparisons of words.
MOST_WORDS, MOST = 1 << 12, 1 << 28


@lowering("embedding_dense_backward.default")
def embedding_dense_backward(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """The gradients of equal words are added.

    Words that are equal form a chain, along which H[t,j] is the sum up to word t; a row of the
    result is that of the last word of its chain.  Sums run in the order of the words, as torch's.
    """
    grad, index, out = a["grad_output"], a["indices"], outs[0]
    integers(index)
    count, width = out.shape
    words = math.prod(index.shape)
    if not all(isinstance(n, int) for n in (count, width, words)):
        raise Unsupported("an open number of words")
    if words > MOST_WORDS or count * words > MOST:
        raise Unsupported(f"over {MOST_WORDS} words, or {MOST} comparisons of words")
    if is_empty(out.shape) or not words:
        return filled(e, out, 0)
    given = {"G": e.reshape(grad, (words, width)), "I": e.reshape(index, (words,))}
    each, all_words, row = f"t in 0:{words}", f"u in 0:{words}", f"j in 0:{width}"
    word, added = "int32(I[t])", "G[t,j]"
    if a["padding_idx"] >= 0:
        word = f"select(I[t] == {a['padding_idx']}, int32(-1), {word})"
    lines = [
        f"W[t] = {word} where {each}",
        f"P[t] max=! select(W[u] == W[t] and u < t, int32(u), int32(-1)) where {each}, {all_words}",
        f"H[t,j] = 0 where {each}, {row}",  # it may be read anywhere, for all that is known
    ]
    temps = [
        ("W", "int32", (words,)), ("P", "int32", (words,)), ("H", grad.dtype, (words, width)),
        ("L", "int32", (count,)),
    ]  # fmt: skip
    if a["scale_grad_by_freq"]:
        lines.append(f"N[t] +=! select(W[u] == W[t], 1, 0) where {each}, {all_words}")
        temps.append(("N", grad.dtype, (words,)))
        added = "G[t,j] / N[t]"
    lines += [
        f"for t in 0:{words} {{",
        f"H[t,j] = {added} + select(P[t] >= 0, H[max(P[t], 0),j], 0) where {row}",
        "}",
        f"L[v] max=! select(W[t] == v, int32(t), int32(-1)) where v in 0:{count}, {each}",
        f"Y[v,j] = select(L[v] >= 0, H[max(L[v], 0),j], 0) where v in 0:{count}, {row}",
    ]
    return e.program([(out.dtype, out.shape)], lines, given, temps)[0]
