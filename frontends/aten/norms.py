"""Normalisations over dimensions of one tensor; torch decomposes the others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from frontends.aten.emitter import Emitter, converted
from frontends.aten.move import filled
from frontends.aten.pointwise import computed
from frontends.aten.reduce import variance
from frontends.aten.registry import Arguments, lowering
from frontends.aten.values import Ref, Unsupported, indices, is_empty, wide
from frontends.onnx.core.comprehension_text import at


@lowering("native_layer_norm.default")
def layer_norm(e: Emitter, a: Arguments, outs: list[Ref]) -> list[Ref | None]:
    """(x - mean) / sqrt(var + eps) * weight + bias, the means, and 1 / sqrt(var + eps)."""
    x = a["input"]
    _is_float(x)
    axes = [*range(x.rank - len(a["normalized_shape"]), x.rank)]
    thin = Ref("", wide(x.dtype), tuple(1 if n in axes else s for n, s in enumerate(x.shape)))
    spread, mean = _moments(e, x, axes, thin)
    scale = computed(e, "1 / sqrt({v} + {eps})", {"v": spread, "eps": a["eps"]}, thin)
    found = _applied(e, x, mean, scale, a.get("weight"), a.get("bias"))
    return [found, *e.casts([mean, scale], outs[1:])]


@lowering("native_group_norm.default")
def group_norm(e: Emitter, a: Arguments, outs: list[Ref]) -> list[Ref | None]:
    """Each group of channels of each image by its own mean and variance."""
    x, groups = a["input"], a["group"]
    _is_float(x)
    batch, channels = x.shape[0], x.shape[1]
    if not isinstance(channels, int):
        raise Unsupported("an open number of channels")
    shape = (batch, groups, channels // groups, *x.shape[2:])
    split = e.reshape(x, shape)
    axes = [*range(2, len(shape))]
    thin = Ref("", wide(x.dtype), (batch, groups, *(1 for _ in axes)))
    spread, mean = _moments(e, split, axes, thin)
    scale = computed(e, "1 / sqrt({v} + {eps})", {"v": spread, "eps": a["eps"]}, thin)
    per_channel = (1, groups, channels // groups, *(1 for _ in shape[3:]))
    own = [
        None if a.get(name) is None else e.reshape(a[name], per_channel)
        for name in ("weight", "bias")
    ]
    found = e.reshape(_applied(e, split, mean, scale, *own), x.shape)
    each = [e.reshape(v, (batch, groups)) for v in (mean, scale)]
    return [found, *e.casts(each, outs[1:])]


def _is_float(x: Ref) -> None:
    if not x.is_float or is_empty(x.shape):
        raise Unsupported(f"a normalisation of {x.dtype} {list(x.shape)}")


def _moments(e: Emitter, x: Ref, axes: list[int], thin: Ref) -> tuple[Ref, Ref]:
    """The variance and the mean, in dimensions of 1."""
    found = variance(e, {"self": x, "dim": axes, "correction": 0}, [thin, thin])
    assert isinstance(found, list)
    spread, mean = found
    assert spread is not None and mean is not None
    return spread, mean


def _applied(
    e: Emitter, x: Ref, mean: Ref, scale: Ref, weight: Ref | None, bias: Ref | None
) -> Ref:
    given = {"x": x, "m": mean, "s": scale, "w": weight, "b": bias}
    text = "({x} - {m}) * {s}" + (" * {w}" if weight else "") + (" + {b}" if bias else "")
    return computed(e, text, {n: v for n, v in given.items() if v is not None}, x, wide(x.dtype))


# --- batches --------------------------------------------------------------------------------------


def _per_channel(x: Ref) -> tuple[list[int], Ref]:
    """The dimensions but that of channels, and a tensor with one element for each channel."""
    _is_float(x)
    return [n for n in range(x.rank) if n != 1], Ref("", wide(x.dtype), (x.shape[1],))


def _factor(given: Mapping[str, Any]) -> str:
    """By what each channel is multiplied, as a template."""
    return "{weight} * {scale}" if "weight" in given else "{scale}"


def _scaled(e: Emitter, x: Ref, factor: Ref, shift: Ref) -> Ref:
    """x * factor + shift, both by channel."""
    own = indices(x.rank)
    read = converted(at("X", own), x.dtype, factor.dtype)
    value = f"{x.dtype}({read} * F[{own[1]}] + S[{own[1]}])"
    return e.each(x.dtype, x.shape, value, {"X": x, "F": factor, "S": shift})


@lowering("_native_batch_norm_legit_no_training.default")
def batch_norm(e: Emitter, a: Arguments, outs: list[Ref]) -> list[Ref | None]:
    """Normalised by the running means and variances: one factor and one summand a channel."""
    x = a["input"]
    _, channel = _per_channel(x)
    given = {n: v for n, v in a.items() if v is not None}
    factor = computed(
        e, ("{weight}" if "weight" in given else "1") + " / sqrt({running_var} + {eps})",
        given, channel,
    )  # fmt: skip
    with_factor = {**given, "factor": factor}
    bias = "{bias}" if "bias" in given else "0"
    shift = computed(e, f"{bias} - {{running_mean}} * {{factor}}", with_factor, channel)
    rest = [filled(e, out, 0) for out in outs[1:]]
    return [_scaled(e, x, factor, shift), *rest]


@lowering("_native_batch_norm_legit_functional.default")
def batch_norm_training(e: Emitter, a: Arguments, outs: list[Ref]) -> list[Ref | None]:
    """Normalised by the batch's own moments, which also move the running ones."""
    x = a["input"]
    if not a["training"]:
        found = batch_norm(e, a, outs[:1])
        return [*found, *(filled(e, o, 0) for o in outs[1:3]), a["running_mean"], a["running_var"]]
    axes, channel = _per_channel(x)
    made = variance(e, {"self": x, "dim": axes, "correction": 0}, [channel, channel])
    assert isinstance(made, list)
    spread, mean = made
    assert spread is not None and mean is not None
    given: dict[str, Any] = {n: v for n, v in a.items() if v is not None}
    given |= {"v": spread, "m": mean}
    given["scale"] = computed(e, "1 / sqrt({v} + {eps})", given, channel)
    given["factor"] = computed(e, _factor(given), given, channel)
    bias = "{bias}" if "bias" in given else "0"
    shift = computed(e, f"{bias} - {{m}} * {{factor}}", given, channel)
    extents = [x.shape[n] for n in axes]
    if not all(isinstance(s, int) for s in extents):
        raise Unsupported("running moments of a batch of open size")
    count = math.prod(extents)
    given["unbiased"] = count / max(count - 1, 1)
    kept = "(1 - {momentum}) *"
    moved = [
        computed(e, f"{kept} {{running_mean}} + {{momentum}} * {{m}}", given, channel),
        computed(
            e, f"{kept} {{running_var}} + {{momentum}} * {{v}} * {{unbiased}}", given, channel
        ),
    ]
    moments = e.casts([mean, given["scale"], *moved], outs[1:])
    return [_scaled(e, x, given["factor"], shift), *moments]


@lowering("native_batch_norm_backward.default")
def batch_norm_backward(e: Emitter, a: Arguments, outs: list[Ref]) -> list[Ref | None]:
    """Gradients of the image, the weights and the bias (Ioffe and Szegedy 2015, section 3)."""
    grad, x, train = a["grad_out"], a["input"], bool(a["train"])
    axes, channel = _per_channel(x)
    given: dict[str, Any] = {n: v for n, v in a.items() if v is not None}
    if train:
        mean, scale = a["save_mean"], a["save_invstd"]
    else:
        mean = a["running_mean"]
        scale = computed(e, "1 / sqrt({running_var} + {eps})", given, channel)
    own = indices(x.rank)
    c = own[1]
    ranges = e.ranges(own, x.shape)
    g, of_x = (converted(at(n, own), x.dtype, channel.dtype) for n in "GX")
    lines = [
        f"Y[{c}] +=! {g} where {ranges}",
        f"Y1[{c}] +=! {g} * ({of_x} - M[{c}]) where {ranges}",
    ]
    both = [(channel.dtype, channel.shape)] * 2
    total, dot = e.program(both, lines, {"G": grad, "X": x, "M": mean}, more=x.shape)
    of_weight = computed(e, "{d} * {s}", {"d": dot, "s": scale}, channel)
    given["scale"] = scale
    factor = computed(e, _factor(given), given, channel)
    if not train:
        value = f"{x.dtype}({g} * F[{c}])"
        moved = e.each(x.dtype, x.shape, value, {"G": grad, "F": factor})
        return [moved, *e.casts([of_weight, total], outs[1:])]
    extents = [x.shape[n] for n in axes]
    if not all(isinstance(s, int) for s in extents):
        raise Unsupported("the gradient of a batch of open size")
    part = {"d": dot, "s": scale, "count": math.prod(extents)}
    slope = computed(e, "{d} * {s} * {s} / {count}", part, channel)
    value = (
        f"{x.dtype}(({g} - T[{c}] / {float(math.prod(extents))!r}"
        f" - ({of_x} - M[{c}]) * D[{c}]) * F[{c}])"
    )
    inputs = {"G": grad, "X": x, "T": total, "M": mean, "D": slope, "F": factor}
    moved = e.each(x.dtype, x.shape, value, inputs)
    return [moved, *e.casts([of_weight, total], outs[1:])]
