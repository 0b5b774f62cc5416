"""Neighbours that a thread copies to shared memory at once, see `Copy.together`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from codegen.linear import depends_on, replace_var
from codegen.loopir import Buffer, For, Store
from poly.expr import Const, Expr, Index, Read
from poly.linear import linear_form, normal
from poly.promotion import TOGETHER


def neighbours(node: For, buffers: Mapping[str, Buffer]) -> tuple[Read, Read] | None:
    """The first elements of what a loop copies, and where to: whole rows of 16 bytes.

    None where it is no such copy: it may have conditions inside, or other bounds.
    """
    store = node.body
    if (
        node.mark != "together"
        or not isinstance(store, Store)
        or not isinstance(store.value, Read)
        or store.op != "="
        or node.lower != Const(0)
        or node.trip != TOGETHER // store.dtype.bytes
    ):
        return None
    buffer = buffers.get(store.target.tensor)
    if buffer is None or buffer.scope != "shared" or store.value.tensor in buffers:
        return None
    for read in (store.target, store.value):
        *outer, last = read.indices
        form = linear_form(last)
        rest = form.without(Index(node.var))
        moves = any(depends_on(e, node.var) for e in (*outer, *(a for a, _ in rest.terms)))
        if moves or form.coefficient(Index(node.var)) != 1:
            return None
    first = [
        replace(r, indices=tuple(normal(replace_var(i, node.var, Const(0))) for i in r.indices))
        for r in (store.target, store.value)
    ]
    count = TOGETHER // store.dtype.bytes
    whole = _multiple(first[0].indices[-1], count) and buffer.shape[-1] % count == 0
    return (first[0], first[1]) if whole else None


def _multiple(e: Expr, count: int) -> bool:
    form = linear_form(e)
    return form.constant % count == 0 and all(c % count == 0 for _, c in form.terms)
