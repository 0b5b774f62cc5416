"""ONNX operators in torch, where torch has no function for them."""

from __future__ import annotations

from typing import Any

from tests.conformance.gradient_check import F, torch


def reversed_rows(x: Any, lengths: Any) -> Any:
    """The first steps of each sequence, as many as it has, in reverse order."""
    if lengths is None:
        return x.flip(0)
    rows = [torch.cat([x[:n, b].flip(0), x[n:, b]]) for b, n in enumerate(lengths.tolist())]
    return torch.stack(rows, 1)


def recurrent(cell: Any, x: Any, w: Any, r: Any, b: Any, lengths: Any, states: Any, p: Any = None,
              backwards: tuple[bool, ...] = (False,)) -> tuple[Any, ...]:  # fmt: skip
    """Y and the last states of a recurrent operator.

    cell : from the products of the input and of the state with their weights, the biases of both,
        the states and the peepholes to the next states
    states : initial ones, None for zeros
    """
    rows, lasts = [], []
    for d, back in enumerate(backwards):
        own = [
            torch.zeros(x.shape[1], r.shape[2], dtype=x.dtype) if s is None else s[d]
            for s in states
        ]
        bias = torch.zeros(2 * w.shape[1], dtype=x.dtype) if b is None else b[d]
        wb, rb = bias.chunk(2)
        inputs = reversed_rows(x, lengths) if back else x
        steps = []
        for t, step in enumerate(inputs):
            new = cell(step @ w[d].T + wb, own, r[d], rb, None if p is None else p[d])
            there = None if lengths is None else (t < lengths)[:, None]
            shown = new[0]
            if there is not None:
                new = [torch.where(there, n, o) for n, o in zip(new, own, strict=True)]
                shown = torch.where(there, shown, torch.zeros_like(shown))
            own = new
            steps.append(shown)
        made = torch.stack(steps)
        rows.append(reversed_rows(made, lengths) if back else made)
        lasts.append(own)
    return torch.stack(rows, 1), *(torch.stack(s) for s in zip(*lasts, strict=True))


def rnn_cell(g: Any, states: Any, r: Any, rb: Any, p: Any) -> list[Any]:
    return [torch.tanh(g + states[0] @ r.T + rb)]


def gru_cell(after: bool) -> Any:
    """after : whether the hidden gate is reset after its product."""

    def cell(g: Any, states: Any, r: Any, rb: Any, p: Any) -> list[Any]:
        (h,) = states
        (gz, gr, gh), (rz, rr, rh), (bz, br, bh) = g.chunk(3, 1), r.chunk(3), rb.chunk(3)
        z, reset = torch.sigmoid(gz + h @ rz.T + bz), torch.sigmoid(gr + h @ rr.T + br)
        own = reset * (h @ rh.T + bh) if after else (reset * h) @ rh.T + bh
        return [(1 - z) * torch.tanh(gh + own) + z * h]

    return cell


def lstm_cell(g: Any, states: Any, r: Any, rb: Any, p: Any) -> list[Any]:
    h, c = states
    gi, go, gf, gc = (g + h @ r.T + rb).chunk(4, 1)
    pi, po, pf = (0, 0, 0) if p is None else p.chunk(3)
    new = torch.sigmoid(gf + pf * c) * c + torch.sigmoid(gi + pi * c) * torch.tanh(gc)
    return [torch.sigmoid(go + po * new) * torch.tanh(new), new]


def heads(x: Any, count: int) -> Any:
    """[B, T, H*D] as [B, H, T, D]."""
    return x.unflatten(2, (count, -1)).transpose(1, 2)


def flat(x: Any) -> Any:
    """[B, H, T, D] as [B, T, H*D]."""
    return x.transpose(1, 2).flatten(2)


def attention(q: Any, k: Any, v: Any, mask: Any = None, causal: bool = False, scale: Any = None,
              cap: float = 0) -> Any:  # fmt: skip
    """Attention over [B, H, T, D], with fewer heads of keys if need be."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = q @ k.transpose(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale)
    if cap:
        scores = cap * torch.tanh(scores / cap)
    if causal:
        ahead = torch.ones(scores.shape[2:], dtype=torch.bool)
        scores = scores.masked_fill(ahead.triu(1 + k.shape[2] - q.shape[2]), -torch.inf)
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -torch.inf)
    elif mask is not None:
        scores = scores + mask
    return scores.softmax(3) @ v


def rotated(x: Any, cos: Any, sin: Any, interleaved: bool, part: int = 0) -> Any:
    """RotaryEmbedding of [B, H, T, D], with angles [B, T, D/2]."""
    size = part or x.shape[3]
    turned, rest = x[..., :size], x[..., size:]
    cos, sin = cos[:, None], sin[:, None]
    if interleaved:
        a, b = turned[..., ::2], turned[..., 1::2]
        made = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(3)
    else:
        a, b = turned.chunk(2, 3)
        made = torch.cat([a * cos - b * sin, a * sin + b * cos], 3)
    return torch.cat([made, rest], 3)


def linear_attention(q: Any, k: Any, v: Any, state: Any, decay: Any, beta: Any, scale: float,
                     queries: int, keys: int) -> tuple[Any, Any]:  # fmt: skip
    """LinearAttention with the rule that its operands imply; heads of keys share a decay."""
    q, k, v = heads(q, queries), heads(k, keys), heads(v, keys)
    rows = []
    for t in range(q.shape[2]):
        kt, vt = k[:, :, t], v[:, :, t]
        if decay is not None:
            state = state * heads(decay, keys)[:, :, t].exp()[..., None]
        if beta is not None:
            vt = (vt - (state * kt[..., None]).sum(2)) * heads(beta, keys)[:, :, t]
        state = state + kt[..., None] * vt[..., None, :]
        shared = state.repeat_interleave(queries // keys, 1)
        rows.append(scale * (q[:, :, t, :, None] * shared).sum(2))
    return flat(torch.stack(rows, 2)), state


def causal_convolution(x: Any, w: Any, b: Any, state: Any, silu: bool) -> tuple[Any, Any]:
    """CausalConvWithState."""
    joined = torch.cat([state, x], 2)
    y = F.conv1d(joined, w, b, groups=x.shape[1])
    return (F.silu(y) if silu else y), joined[:, :, x.shape[2] :]


def norm(x: Any, dims: tuple[int, ...], epsilon: float) -> tuple[Any, Any, Any]:
    """Mean 0 and variance 1 over some dimensions, the mean, and what it was multiplied by."""
    mean, variance = x.mean(dims, keepdim=True), x.var(dims, correction=0, keepdim=True)
    factor = (variance + epsilon).rsqrt()
    return (x - mean) * factor, mean, factor


def nll(logs: Any, target: Any, weights: Any, reduction: str, ignore: int | None = None) -> Any:
    """NegativeLogLikelihoodLoss, also with a gradient with respect to the weights."""
    kept = torch.ones_like(target, dtype=torch.bool) if ignore is None else target != ignore
    safe = torch.where(kept, target, torch.zeros_like(target))
    each = torch.ones_like(logs[:, 0]) if weights is None else weights[safe]
    each = each * kept
    loss = -logs.gather(1, safe[:, None])[:, 0] * each
    if reduction == "none":
        return loss
    return loss.sum() if reduction == "sum" else loss.sum() / each.sum()
