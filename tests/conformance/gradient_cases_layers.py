"""Gradients of layers: convolutions, pools, normalisations, recurrences, attention and losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tests.conformance import gradient_judges as judges
from tests.conformance.gradient_check import Case, F, Passed, case, spread, torch

_EPSILON = 2.0**-6


def _convolutions() -> Iterator[Case]:
    x, w, b = spread(2, 4, 6, 5), spread(6, 2, 3, 2), spread(6)
    one = spread(2, 3, 7), spread(4, 3, 3), spread(4)
    yield case("Conv", "one dimension", one, lambda x, w, b: F.conv1d(x, w, b))
    yield case("Conv", "strides and pads", [spread(2, 2, 6, 5), w, b],
               lambda x, w, b: F.conv2d(F.pad(x, (0, 1, 1, 2)), w, b, (2, 1)),
               strides=[2, 1], pads=[1, 0, 2, 1])  # fmt: skip
    yield case("Conv", "dilations", [spread(2, 2, 6, 5), w],
               lambda x, w: F.conv2d(x, w, dilation=(2, 3)), dilations=[2, 3])  # fmt: skip
    yield case("Conv", "groups", [x, w, b], lambda x, w, b: F.conv2d(x, w, b, groups=2), group=2)
    yield case("Conv", "depthwise", [x, spread(4, 1, 3, 3)],
               lambda x, w: F.conv2d(x, w, padding=1, groups=4), group=4, pads=[1] * 4)  # fmt: skip
    yield case("Conv", "SAME_UPPER", [spread(2, 2, 6, 5), w],
               lambda x, w: F.conv2d(F.pad(x, (0, 1, 0, 1)), w, stride=2), strides=[2, 2],
               auto_pad="SAME_UPPER")  # fmt: skip
    yield case("Conv", "three dimensions", [spread(1, 2, 3, 4, 3), spread(2, 2, 2, 3, 2)],
               lambda x, w: F.conv3d(x, w, stride=(1, 2, 1), padding=(0, 1, 0)),
               strides=[1, 2, 1], pads=[0, 1, 0, 0, 1, 0])  # fmt: skip
    yield case("ConvTranspose", "one dimension", [spread(2, 3, 5), spread(3, 2, 3), spread(2)],
               lambda x, w, b: F.conv_transpose1d(x, w, b, 2), strides=[2])  # fmt: skip
    yield case("ConvTranspose", "strides and pads", [spread(1, 3, 4, 3), spread(3, 2, 3, 3)],
               lambda x, w: F.conv_transpose2d(x, w, None, 2, (1, 0), (1, 1)), strides=[2, 2],
               pads=[1, 0, 1, 0], output_padding=[1, 1])  # fmt: skip
    yield case("ConvTranspose", "groups and dilations", [spread(1, 4, 3, 3), spread(4, 2, 2, 3)],
               lambda x, w: F.conv_transpose2d(x, w, groups=2, dilation=2), group=2,
               dilations=[2, 2])  # fmt: skip
    yield case("ConvTranspose", "three dimensions", [spread(1, 2, 2, 3, 2), spread(2, 1, 2, 2, 3)],
               lambda x, w: F.conv_transpose3d(x, w, stride=(1, 2, 1)),
               strides=[1, 2, 1])  # fmt: skip
    image, taps = spread(1, 2, 3, 3), spread(2, 2, 2, 2)
    offset, mask = spread(1, 8, 2, 2, low=-0.4, high=0.4), spread(1, 4, 2, 2, low=0.2, high=1)
    yield case("DeformConv", "", [image, taps, offset, spread(2), mask])
    yield case("DeformConv", "groups", [image, spread(2, 1, 2, 2), spread(1, 16, 2, 2)], group=2,
               offset_group=2)  # fmt: skip
    yield case("CausalConvWithState", "", [spread(2, 3, 4), spread(3, 1, 3), spread(3),
               spread(2, 3, 2)], partial(judges.causal_convolution, silu=False), outputs=2,
               opset=27)  # fmt: skip
    yield case("CausalConvWithState", "silu", [spread(2, 3, 4), spread(3, 1, 3), spread(3),
               spread(2, 3, 2)], partial(judges.causal_convolution, silu=True), outputs=2,
               opset=27, activation="silu")  # fmt: skip
    blocks = np.array([4, 5]), np.array([2, 3])
    yield case("Col2Im", "", [spread(1, 12, 9), *blocks],
               lambda x, *_: F.fold(x, (4, 5), (2, 3)))  # fmt: skip
    yield case("Col2Im", "strides, pads and dilations", [spread(1, 12, 6), *blocks],
               lambda x, *_: F.fold(x, (4, 5), (2, 3), (2, 1), 1, 2), strides=[2, 2],
               dilations=[2, 1], pads=[1] * 4)  # fmt: skip


def _means(p: int, *window: Any) -> Callable[..., Any]:
    """The p-norm of windows in two dimensions."""
    size = int(np.prod(window[0]))
    return lambda x: (F.avg_pool2d(x.abs() ** p, *window) * size) ** (1 / p)


def _pools() -> Iterator[Case]:
    x, one = spread(2, 2, 6, 5), spread(1, 2, 7)
    yield case("MaxPool", "", [x], lambda x: F.max_pool2d(x, 2), kernel_shape=[2, 2],
               strides=[2, 2])  # fmt: skip
    yield case("MaxPool", "overlapping, with pads", [x],
               lambda x: F.max_pool2d(x, 3, 2, 1), kernel_shape=[3, 3], strides=[2, 2],
               pads=[1] * 4)  # fmt: skip
    yield case("MaxPool", "dilations and ceil_mode", [x],
               lambda x: F.max_pool2d(x, 2, 2, 0, 2, ceil_mode=True), kernel_shape=[2, 2],
               strides=[2, 2], dilations=[2, 2], ceil_mode=1)  # fmt: skip
    yield case("MaxPool", "with indices", [one], lambda x: F.max_pool1d(x, 3, 2), outputs=2,
               kernel_shape=[3], strides=[2])  # fmt: skip
    yield case("MaxPool", "three dimensions", [spread(1, 1, 4, 3, 4)],
               lambda x: F.max_pool3d(x, 2, 1), kernel_shape=[2, 2, 2])  # fmt: skip
    for count in (0, 1):
        yield case("AveragePool", f"count_include_pad {count}", [x],
                   lambda x, c=count: F.avg_pool2d(x, 3, 2, 1, count_include_pad=bool(c)),
                   kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4,
                   count_include_pad=count)  # fmt: skip
    yield case("AveragePool", "ceil_mode", [one],
               lambda x: F.avg_pool1d(x, 3, 3, ceil_mode=True), kernel_shape=[3], strides=[3],
               ceil_mode=1)  # fmt: skip
    yield case("AveragePool", "dilations", [one], lambda x: (x[..., :-2] + x[..., 2:]) / 2,
               kernel_shape=[2], dilations=[2])  # fmt: skip
    yield case("LpPool", "p 2", [x], _means(2, (2, 2), 2), kernel_shape=[2, 2], strides=[2, 2])
    yield case("LpPool", "p 3", [x], _means(3, (3, 2), 1), kernel_shape=[3, 2], p=3)
    rest = np.array([[[0.0, 0, 0.5, 0]]])
    for p in (2, 3):
        yield case("LpPool", f"zeros, p {p}", [rest], lambda x, p=p: F.lp_pool1d(x, p, 2),
                   kernel_shape=[2], strides=[2], p=p, is_smooth=False)  # fmt: skip
    yield case("GlobalAveragePool", "", [x], lambda x: x.mean((2, 3), keepdim=True))
    yield case("GlobalMaxPool", "", [x], lambda x: x.amax((2, 3), keepdim=True))
    yield case("GlobalLpPool", "", [x],
               lambda x: (x.abs() ** 3).sum((2, 3), keepdim=True) ** (1 / 3), p=3)  # fmt: skip
    yield case("MaxUnpool", "", [spread(1, 1, 2, 2), np.array([[[[0, 3], [9, 14]]]])],
               kernel_shape=[2, 2], strides=[2, 2],
               refused="has no gradient: it is no comprehension")  # fmt: skip


def _batch_norm(x: Any, s: Any, b: Any, m: Any, v: Any) -> Any:
    s, b, m, v = (a[:, None, None] for a in (s, b, m, v))
    return (x - m) * (v + _EPSILON).rsqrt() * s + b


def _batch_norm_in_training(x: Any, s: Any, b: Any, m: Any, v: Any) -> tuple[Any, ...]:
    mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)
    running = m * 0.75 + mean * 0.25, v * 0.75 + variance * 0.25
    return _batch_norm(x, s, b, mean, variance), *running


def _norms() -> Iterator[Case]:
    x, s, b = spread(2, 4, 3, 2), spread(4, low=0.5, high=2), spread(4)
    statistics = [x, s, b, spread(4), spread(4, low=0.5, high=2)]
    norm, epsilon = judges.norm, {"epsilon": _EPSILON}
    yield case("BatchNormalization", "", statistics, _batch_norm, **epsilon)
    yield case("BatchNormalization", "in training", statistics, _batch_norm_in_training,
               outputs=3, training_mode=1, momentum=0.75, **epsilon)  # fmt: skip
    yield case("InstanceNormalization", "", [x, s, b],
               lambda x, s, b: F.instance_norm(x, weight=s, bias=b, eps=_EPSILON),
               **epsilon)  # fmt: skip
    yield case("GroupNormalization", "", [x, s, b],
               lambda x, s, b: F.group_norm(x, 2, s, b, _EPSILON), num_groups=2, stash_type=11,
               **epsilon)  # fmt: skip
    yield case("GroupNormalization", "opset 18", [x, s[:2], b[:2]],
               lambda x, s, b: F.group_norm(x, 2, s.repeat_interleave(2), b.repeat_interleave(2),
                                            _EPSILON), opset=18, num_groups=2,
               **epsilon)  # fmt: skip
    scale, bias = spread(3, 2, low=0.5, high=2), spread(3, 2)
    yield case("LayerNormalization", "", [x, scale, bias],
               lambda x, s, b: F.layer_norm(x, (3, 2), s, b, _EPSILON), axis=2, stash_type=11,
               **epsilon)  # fmt: skip
    yield case("LayerNormalization", "all outputs", [x, scale[0]],
               lambda x, s: (norm(x, (-1,), _EPSILON)[0] * s, *norm(x, (-1,), _EPSILON)[1:]),
               outputs=3, stash_type=11, **epsilon)  # fmt: skip
    yield case("RMSNormalization", "", [x, scale],
               lambda x, s: F.rms_norm(x, (3, 2), s, _EPSILON), axis=2, stash_type=11,
               **epsilon)  # fmt: skip
    yield case("LRN", "", [spread(2, 5, 2, 2)],
               lambda x: F.local_response_norm(x, 3, 0.25, 0.75, 1.5), size=3, alpha=0.25,
               beta=0.75, bias=1.5)  # fmt: skip
    yield case("MeanVarianceNormalization", "", [x], lambda x: norm(x, (0, 2, 3), 0)[0])


def _recurrences() -> Iterator[Case]:
    lengths = Passed(np.array([3, 1], np.int32))

    def weights(gates: int, directions: int = 1) -> list[Any]:
        return [spread(3, 2, 4), spread(directions, gates * 3, 4), spread(directions, gates * 3, 3),
                spread(directions, 2 * gates * 3)]  # fmt: skip

    def judge(cell: Any, count: int = 1, *backwards: bool) -> Callable[..., Any]:
        def run(x: Any, w: Any, r: Any, b: Any = None, n: Any = None, *states: Any) -> Any:
            given = [*states, *[None] * (count + 1)]
            return judges.recurrent(cell, x, w, r, b, n, given[:count], given[count],
                                    backwards or (False,))  # fmt: skip

        return run

    cells = {
        "RNN": (1, 1, judges.rnn_cell), "GRU": (3, 1, judges.gru_cell(False)),
        "LSTM": (4, 2, judges.lstm_cell),
    }  # fmt: skip
    for operator, (gates, count, cell) in cells.items():
        states = [spread(1, 2, 3) for _ in range(count)]
        outputs = 1 + count
        yield case(operator, "", weights(gates)[:3], judge(cell, count), outputs=outputs,
                   hidden_size=3)  # fmt: skip
        yield case(operator, "states", [*weights(gates), None, *states], judge(cell, count),
                   outputs=outputs, hidden_size=3)  # fmt: skip
        yield case(operator, "lengths, backwards", [*weights(gates), lengths, *states],
                   judge(cell, count, True), outputs=outputs, hidden_size=3,
                   direction="reverse")  # fmt: skip
        yield case(operator, "both directions", weights(gates, 2),
                   judge(cell, count, False, True), outputs=outputs, hidden_size=3,
                   direction="bidirectional")  # fmt: skip
    yield case("GRU", "linear_before_reset", weights(3), judge(judges.gru_cell(True)), outputs=2,
               hidden_size=3, linear_before_reset=1)  # fmt: skip
    peepholes = [*weights(4), None, spread(1, 2, 3), spread(1, 2, 3), spread(1, 9)]
    yield case("LSTM", "peepholes", peepholes, judge(judges.lstm_cell, 2), outputs=3,
               hidden_size=3)  # fmt: skip


def _attentions() -> Iterator[Case]:
    q, k, v = spread(2, 4, 3, 4), spread(2, 2, 5, 4), spread(2, 2, 5, 3)
    attend = judges.attention
    yield case("Attention", "", [spread(2, 2, 3, 4), k, v], lambda q, k, v: attend(q, k, v))
    yield case("Attention", "shared keys, mask and scale", [q, k, v, spread(3, 5)],
               lambda q, k, v, m: attend(q, k, v, m, scale=0.75), scale=0.75)  # fmt: skip
    mask = Passed(np.arange(15).reshape(3, 5) % 4 > 0)
    yield case("Attention", "mask of bools", [q, k, v, mask],
               lambda q, k, v, m: attend(q, k, v, m))  # fmt: skip
    yield case("Attention", "causal, softcap", [spread(1, 2, 4, 3), spread(1, 2, 4, 3),
               spread(1, 2, 4, 3)], lambda q, k, v: attend(q, k, v, causal=True, cap=1.5),
               is_causal=1, softcap=1.5)  # fmt: skip
    yield case("Attention", "three dimensions", [spread(2, 3, 8), spread(2, 5, 4), spread(2, 5, 6)],
               lambda q, k, v: judges.flat(attend(judges.heads(q, 4), judges.heads(k, 2),
                                                  judges.heads(v, 2))),
               q_num_heads=4, kv_num_heads=2)  # fmt: skip

    def with_past(q: Any, k: Any, v: Any, _: Any, pk: Any, pv: Any) -> tuple[Any, ...]:
        k, v = torch.cat([pk, k], 2), torch.cat([pv, v], 2)
        return attend(q, k, v), k, v

    past = spread(2, 2, 2, 4), spread(2, 2, 2, 3)
    yield case("Attention", "past", [q, k, v, None, *past], with_past, outputs=3)
    cos, sin = spread(2, 3, 2), spread(2, 3, 2)
    for n in (0, 1):
        yield case("RotaryEmbedding", f"interleaved {n}", [spread(2, 2, 3, 4), cos, sin],
                   lambda x, c, s, n=n: judges.rotated(x, c, s, bool(n)),
                   interleaved=n)  # fmt: skip
    positions = Passed(np.array([[0, 3, 1], [2, 2, 4]]))
    yield case("RotaryEmbedding", "positions, a part",
               [spread(2, 3, 12), spread(5, 2), spread(5, 2), positions],
               lambda x, c, s, p: judges.flat(judges.rotated(judges.heads(x, 2), c[p], s[p], False,
                                                             4)),
               num_heads=2, rotary_embedding_dim=4)  # fmt: skip
    given = [spread(2, 3, 8), spread(2, 3, 4), spread(2, 3, 6), spread(2, 2, 2, 3)]
    decay, beta = spread(2, 3, 4, low=-1, high=-0.1), spread(2, 3, 2, low=0.2, high=0.9)
    rules = {
        "linear": (None, None), "gated": (decay, None), "delta": (None, beta),
        "gated_delta": (decay, beta),
    }  # fmt: skip
    for rule, more in rules.items():
        yield case("LinearAttention", rule, [*given, *more],
                   lambda q, k, v, s, d=None, b=None: judges.linear_attention(
                       q, k, v, s, d, b, 0.5, 4, 2), outputs=2, opset=27, update_rule=rule,
                   q_num_heads=4, kv_num_heads=2, scale=0.5)  # fmt: skip


def _losses() -> Iterator[Case]:
    target = Passed(np.array([[0, 2, 1], [2, 2, 0]]))
    logs, weights = spread(2, 3, 3, low=-3, high=-0.1), spread(3, low=0.5, high=2)
    nll = judges.nll
    for how in ("none", "sum", "mean"):
        yield case("NegativeLogLikelihoodLoss", how, [logs, target, weights],
                   lambda x, t, w, how=how: nll(x, t, w, how), reduction=how)  # fmt: skip
        yield case("SoftmaxCrossEntropyLoss", how, [logs, target, weights],
                   lambda x, t, w, how=how: nll(x.log_softmax(1), t, w, how),
                   reduction=how)  # fmt: skip
    yield case("NegativeLogLikelihoodLoss", "ignored", [logs, target],
               lambda x, t: nll(x, t, None, "mean", 2), ignore_index=2)  # fmt: skip
    yield case("SoftmaxCrossEntropyLoss", "ignored, with logarithms", [logs, target],
               lambda x, t: (nll(x.log_softmax(1), t, None, "mean", 2), x.log_softmax(1)),
               outputs=2, ignore_index=2)  # fmt: skip


def _quantised() -> Iterator[Case]:
    codes = np.arange(-6, 6, dtype=np.int8).reshape(3, 4)
    yield case("DequantizeLinear", "", [codes, np.array(0.25), np.array(3, np.int8)],
               lambda x, s, z: (x.double() - z) * s)  # fmt: skip
    yield case("DequantizeLinear", "axis", [codes, spread(3, low=0.1, high=1)],
               lambda x, s: x * s[:, None], axis=0)  # fmt: skip
    yield case("DynamicQuantizeLinear", "", [spread(3, 4)],
               lambda x: (x.amax() - x.amin()) / 255, outputs=3)  # fmt: skip


def _body(name: str, nodes: list[Any], inputs: list[Any], outputs: list[Any]) -> Any:
    """A graph of float64 values of 3 elements, or of the given kinds."""

    def info(port: Any) -> Any:
        name, kind, shape = (port, TensorProto.DOUBLE, [3]) if isinstance(port, str) else port
        return helper.make_tensor_value_info(name, kind, shape)

    return helper.make_graph(nodes, name, [*map(info, inputs)], [*map(info, outputs)])


def _control() -> Iterator[Case]:
    """Captured values are operands here as everywhere, and so are named x0, x1, …"""
    x = spread(3)
    node = helper.make_node
    steps = [
        node("Tanh", ["h"], ["t"]), node("Add", ["t", "s"], ["new"]),
        node("Mul", ["new", "new"], ["row"]),
    ]  # fmt: skip

    def scanned(h: Any, rows: Any) -> tuple[Any, Any]:
        found = []
        for row in rows:
            h = torch.tanh(h) + row
            found.append(h * h)
        return h, torch.stack(found)

    body = _body("body", steps, ["h", "s"], ["new", "row"])
    yield case("Scan", "", [x, spread(6, 3)], scanned, outputs=2, body=body, num_scan_inputs=1)
    yield case("Scan", "many steps", [x, spread(80, 3)], scanned, outputs=2, body=body,
               num_scan_inputs=1)  # fmt: skip

    def looped(count: int) -> Callable[..., Any]:
        def run(trips: Any, condition: Any, h: Any) -> Any:
            for _ in range(count):
                h = torch.tanh(h) + 0.5
            return h

        return run

    half = helper.make_tensor("half", TensorProto.DOUBLE, [], [0.5])
    steps = [
        node("Tanh", ["h"], ["t"]), node("Identity", ["c"], ["d"]),
        node("Constant", [], ["half"], value=half), node("Add", ["t", "half"], ["new"]),
    ]  # fmt: skip
    ports = [("n", TensorProto.INT64, []), ("c", TensorProto.BOOL, []), "h"]
    body = _body("body", steps, ports, [("d", TensorProto.BOOL, []), "new"])
    for count in (5, 80):
        yield case("Loop", f"{count} trips", [np.array(count), np.array(True), x], looped(count),
                   body=body)  # fmt: skip


LAYERS = (
    *_convolutions(), *_pools(), *_norms(), *_recurrences(), *_attentions(), *_losses(),
    *_quantised(), *_control(),
)  # fmt: skip
