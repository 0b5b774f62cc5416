"""Products of matrices, convolutions, attention, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from frontends.aten.emitter import Emitter
from frontends.aten.move import filled
from frontends.aten.pointwise import computed
from frontends.aten.reduce import reduced
from frontends.aten.registry import Arguments, lowering
from frontends.aten.values import Extent, Ref, Unsupported, indices, is_empty
from frontends.aten.windows import inside, tapped
from frontends.onnx.core.comprehension_text import at

_FLOATS = ("float32", "float64", "float16", "bfloat16")


def matmul(e: Emitter, a: Ref, b: Ref, shape: Sequence[Extent]) -> Ref:
    """The product of matrices, or of batches of them."""
    if a.dtype != b.dtype or a.dtype not in (*_FLOATS, "int32", "int64"):
        raise Unsupported(f"a product of matrices of {a.dtype} and {b.dtype}")
    if is_empty(a.shape) or is_empty(b.shape):
        return filled(e, Ref("", a.dtype, tuple(shape)), 0)
    if a.rank == b.rank == 2 and (a.name in e.moved or b.name in e.moved):
        # Operands are read in either order; a transposed copy would be another pass over memory.
        flags = {"transA": int(a.name in e.moved), "transB": int(b.name in e.moved)}
        operands = [e.moved[x.name][0] if x.name in e.moved else x for x in (a, b)]
        return e.op("Gemm", *operands, dtype=a.dtype, shape=shape, **flags)
    return e.op("MatMul", a, b, dtype=a.dtype, shape=shape)


def transposed(e: Emitter, x: Ref) -> Ref:
    """The last two dimensions exchanged."""
    return e.transpose(x, [*range(x.rank - 2), x.rank - 1, x.rank - 2])


@lowering("mm.default", "bmm.default", "mv.default", "dot.default")
def mm(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """self times the other operand"""
    other = next(a[n] for n in ("mat2", "vec", "tensor") if n in a)
    return matmul(e, a["self"], other, outs[0].shape)


@lowering("addmm.default", "baddbmm.default", "addmv.default", "addbmm.default")
def addmm(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """beta * self + alpha * (left times right), summed over batches by addbmm"""
    left = next(a[n] for n in ("mat1", "batch1", "mat") if n in a)
    right = next(a[n] for n in ("mat2", "batch2", "vec") if n in a)
    if a["name"] == "addbmm.default":
        batches = matmul(e, left, right, (left.shape[0], *outs[0].shape))
        product = reduced(e, batches, [0], outs[0], "+", outs[0].dtype)
    else:
        product = matmul(e, left, right, outs[0].shape)
    alpha, beta = a.get("alpha", 1), a.get("beta", 1)
    given = {"self": a["self"], "product": product, "alpha": alpha, "beta": beta}
    text = "{product}" if alpha == 1 else "{alpha} * {product}"
    if beta != 0:  # NaN of self does not count then
        text += " + {self}" if beta == 1 else " + {beta} * {self}"
    else:
        del given["self"]
    return computed(e, text, given, outs[0])


@lowering("_cdist_forward.default")
def distances(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """(sum |x - y|^p)^(1/p) for all pairs of rows."""
    x, y, p, out = a["x1"], a["x2"], a["p"], outs[0]
    if is_empty(out.shape) or is_empty(x.shape) or not x.is_float:
        return filled(e, out, 0)  # of vectors without elements, or none
    own = indices(out.rank)

    def read(name: str, ref: Ref, row: str) -> str:
        skip = out.rank - ref.rank
        lead = ["0" if s == 1 and out.shape[skip + n] != 1 else own[skip + n]
                for n, s in enumerate(ref.shape[:-2])]  # fmt: skip
        return at(name, [*lead, row, "k"])

    rest = f"abs({read('A', x, own[-2])} - {read('B', y, own[-1])})"
    terms = {0: f"select({rest} != 0, 1, 0)", 1: rest, 2: f"{rest} * {rest}", math.inf: rest}
    term, op = terms.get(p, f"pow({rest}, {float(p)!r})"), "max" if p == math.inf else "+"
    ranges = f"{e.ranges(own, out.shape)}, k in 0:{e.extent(x.shape[-1])}"
    line = f"{at('Y', own)} {op}=! {term} where {ranges}"
    more = [*x.shape, *y.shape, *out.shape]
    (summed,) = e.program([(out.dtype, out.shape)], [line], {"A": x, "B": y}, more=more)
    if p in (0, 1, math.inf):
        return summed
    return computed(e, "sqrt({s})" if p == 2 else f"pow({{s}}, {1 / p!r})", {"s": summed}, out)


# --- convolutions ---------------------------------------------------------------------------------


def _ints(values: Any, count: int) -> list[int]:
    found = [*values]
    if len(found) == 1:
        found *= count
    if not all(isinstance(v, int) for v in found):
        raise Unsupported("a convolution whose steps are open")
    return found


class Convolution:
    """What a convolution is like.  `weight` is [K,C/groups,…], or transposed [C,K/groups,…]."""

    def __init__(self, a: Arguments, weight: Ref) -> None:
        count = weight.rank - 2
        self.count, self.weight = count, weight
        self.stride = _ints(a["stride"], count)
        self.padding = _ints(a["padding"], count)
        self.dilation = _ints(a["dilation"], count)
        self.extra = _ints(a["output_padding"], count)
        self.transposed, self.groups = bool(a["transposed"]), int(a["groups"])
        if is_empty(weight.shape) or weight.dtype == "bool":
            raise Unsupported("a convolution of nothing, or of bool")
        self.kernel = [*weight.shape[2:]]
        if not all(isinstance(k, int) for k in self.kernel):
            raise Unsupported("a window of open size")

    def attributes(self) -> dict[str, Any]:
        """As those of Conv."""
        return {
            "strides": self.stride,
            "pads": [*self.padding, *self.padding],
            "dilations": self.dilation,
            "group": self.groups,
            "kernel_shape": self.kernel,
        }

    def forward(self, e: Emitter, x: Ref, bias: Ref | None, shape: Sequence[Extent]) -> Ref:
        """The convolution of an image."""
        return self._conv(e, x, bias, shape, self.transposed, self.extra)

    def _conv(
        self,
        e: Emitter,
        x: Ref,
        bias: Ref | None,
        shape: Sequence[Extent],
        back: bool,
        extra: list[int],
    ) -> Ref:
        attributes = self.attributes()
        if back:
            attributes["output_padding"] = extra
        kind = "ConvTranspose" if back else "Conv"
        if is_empty(shape):
            return filled(e, Ref("", x.dtype, tuple(shape)), 0)
        if is_empty(x.shape):
            raise Unsupported("a convolution of nothing")
        if x.dtype not in _FLOATS:
            return self._of_integers(e, x, bias, shape, back)
        return e.op(kind, x, self.weight, bias, dtype=x.dtype, shape=shape, **attributes)

    def _channels(self) -> tuple[int, int]:
        """The first extents of the weight.  Raises `Unsupported` if one is open."""
        outer, inner = self.weight.shape[:2]
        if not isinstance(outer, int) or not isinstance(inner, int):
            raise Unsupported("an open number of channels")
        return outer, inner

    def _taps(self, e: Emitter, image: Ref) -> tuple[list[str], str, str]:
        """The element at tap r of place p, that it is one, and its channel for k and c."""
        outer, inner = self._channels()
        where = tapped(self.stride, self.dilation, self.padding)
        channel = "c" if self.groups == 1 else f"k // {outer // self.groups} * {inner} + c"
        return where, inside(e, where, image.shape[2:]), channel

    def _taps_around(self, e: Emitter, image: Ref) -> tuple[list[str], str, str, list[str]]:
        """The element whose tap r is at place p, that it is one, its channel, and the kernel's."""
        where, guards = [], []
        for n in range(self.count):
            text = f"p{n} + {self.padding[n]} - {self.dilation[n]}*r{n}"
            where.append(f"({text}) // {self.stride[n]}")
            guards.append(f"0 <= {where[n]} < {e.extent(image.shape[2 + n])}")
            guards.append(f"({text}) % {self.stride[n]} == 0")
        outer, inner = self._channels()
        channel = "c" if self.groups == 1 else f"k // {inner} * {outer // self.groups} + c"
        return where, ", ".join(guards), channel, [channel, f"k % {inner}"]

    def _of_integers(
        self, e: Emitter, x: Ref, bias: Ref | None, shape: Sequence[Extent], back: bool
    ) -> Ref:
        """The convolution as a comprehension, since Conv has floats only."""
        taps, places = indices(self.count, "r"), indices(self.count, "p")
        own = ["n", "k", *places]
        if back:
            where, guards, channel, kernel = self._taps_around(e, x)
            channels = self.weight.shape[0] // self.groups
        else:
            where, guards, channel = self._taps(e, x)
            kernel, channels = ["k", "c"], self.weight.shape[1]
        line = (
            f"{at('Y', own)} +=! {at('X', ['n', channel, *where])} * {at('W', [*kernel, *taps])}"
            f" where {e.ranges([*own, 'c', *taps], [*shape, channels, *self.kernel])}, {guards}"
        )
        inputs = {"X": x, "W": self.weight}
        more = [*x.shape, *shape]
        (found,) = e.program([(x.dtype, tuple(shape))], [line], inputs, more=more)
        if bias is None:
            return found
        wide = e.reshape(bias, (1, bias.shape[0], *(1 for _ in range(self.count))))
        return computed(e, "{y} + {b}", {"y": found, "b": wide}, found)

    def input_gradient(self, e: Emitter, grad: Ref, x: Ref) -> Ref:
        """The convolution the other way round."""
        if self.transposed:
            return self._conv(e, grad, None, x.shape, False, [])
        extra = []
        for n in range(self.count):
            size, out = x.shape[2 + n], grad.shape[2 + n]
            if not isinstance(size, int) or not isinstance(out, int):
                raise Unsupported("the gradient of a convolution of an image of open size")
            least = (out - 1) * self.stride[n] - 2 * self.padding[n]
            extra.append(size - least - self.dilation[n] * (self.kernel[n] - 1) - 1)
        return self._conv(e, grad, None, x.shape, True, extra)

    def weight_gradient(self, e: Emitter, grad: Ref, x: Ref) -> Ref:
        """W[k,c,r] = sum over n, p of G[n,k,p] X[n,c,s p + d r - padding]."""
        small, large = (x, grad) if self.transposed else (grad, x)
        taps, places = indices(self.count, "r"), indices(self.count, "p")
        where, guards, channel = self._taps(e, large)
        line = (
            f"{at('Y', ['k', 'c', *taps])} +=! {at('G', ['n', 'k', *places])} * "
            f"{at('X', ['n', channel, *where])} where "
            f"{e.ranges(['k', 'c', *taps], self.weight.shape)}, n in 0:{e.extent(x.shape[0])}, "
            f"{e.ranges(places, small.shape[2:])}, {guards}"
        )
        return e.program(
            [(x.dtype, self.weight.shape)],
            [line],
            {"G": small, "X": large},
            more=[*small.shape, *large.shape],
        )[0]


@lowering("convolution.default", "_convolution.default")
def convolution(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """Conv or ConvTranspose."""
    return Convolution(a, a["weight"]).forward(e, a["input"], a.get("bias"), outs[0].shape)


@lowering("convolution_backward.default")
def convolution_backward(e: Emitter, a: Arguments, outs: list[Ref]) -> list[Ref | None]:
    """The gradients of the image, the weights and the bias, as far as they are wanted."""
    grad, x = a["grad_output"], a["input"]
    own = Convolution(a, a["weight"])
    wanted = a["output_mask"]
    if is_empty(grad.shape) or is_empty(x.shape):
        raise Unsupported("a convolution of nothing")
    axes = [n for n in range(grad.rank) if n != 1]
    bias = Ref("", grad.dtype, (grad.shape[1],))
    return [
        own.input_gradient(e, grad, x) if wanted[0] else None,
        own.weight_gradient(e, grad, x) if wanted[1] else None,
        reduced(e, grad, axes, bias, "+", grad.dtype) if wanted[2] else None,
    ]


# --- attention ------------------------------------------------------------------------------------


def _weights(e: Emitter, a: Arguments, query: Ref, key: Ref) -> tuple[Ref, float]:
    """scale * Q K^T with masks, and the scale."""
    if a.get("dropout_p", 0.0):
        raise Unsupported("attention with dropout")
    width = query.shape[-1]
    scale = a.get("scale")
    if scale is None:
        if not isinstance(width, int):
            raise Unsupported("an open number of channels")
        scale = 1.0 / math.sqrt(width)
    shape = (*query.shape[:-1], key.shape[-2])
    scores = matmul(e, query, transposed(e, key), shape)
    given: dict[str, Any] = {"scores": scores, "scale": scale}
    text = "{scores} * {scale}"
    if a.get("attn_mask") is not None:
        given["mask"] = a["attn_mask"]
        text += " + {mask}"
    if a.get("is_causal"):
        rows, columns = shape[-2:]
        ranges = e.ranges(["i", "j"], [rows, columns])
        line = f"Y[i,j] = select(j <= i, 0.0, -inf) where {ranges}"
        (given["later"],) = e.program([(query.dtype, (rows, columns))], [line], {}, more=shape)
        text += " + {later}"
    return computed(e, text, given, Ref("", query.dtype, shape)), float(scale)


#: The maximum of a row, or 0 where a mask leaves nothing of it; such a row gives zeros.
_FINITE = "select({t} == -inf, 0, {t})"


@lowering("_scaled_dot_product_flash_attention_for_cpu.default")
def attention(e: Emitter, a: Arguments, outs: list[Ref]) -> list[Ref | None]:
    """softmax(scale Q K^T + mask) V, and the logarithms of the sums."""
    query, key, value = a["query"], a["key"], a["value"]
    scores, _ = _weights(e, a, query, key)
    thin = Ref("", scores.dtype, (*scores.shape[:-1], 1))
    top = reduced(e, scores, [scores.rank - 1], thin, "max", scores.dtype)
    if a.get("attn_mask") is not None:
        top = computed(e, _FINITE, {"t": top}, thin)
    grown = computed(e, "exp({s} - {t})", {"s": scores, "t": top}, scores)
    total = reduced(e, grown, [scores.rank - 1], thin, "+", scores.dtype)
    share = "{g} / {t}" if a.get("attn_mask") is None else "select({t} == 0, 0, {g} / {t})"
    parts = computed(e, share, {"g": grown, "t": total}, scores)
    found = matmul(e, parts, value, outs[0].shape)
    if len(outs) == 1:
        return [found, None]
    sums = computed(e, "log({s}) + {t}", {"s": total, "t": top}, Ref("", outs[1].dtype, thin.shape))
    return [found, e.reshape(sums, outs[1].shape)]


@lowering("_scaled_dot_product_flash_attention_for_cpu_backward.default")
def attention_backward(e: Emitter, a: Arguments, outs: list[Ref]) -> list[Ref | None]:
    """The gradients of query, key and value (Dao et al. 2022, appendix B)."""
    query, key, value = a["query"], a["key"], a["value"]
    grad, out, sums = a["grad_out"], a["out"], a["logsumexp"]
    scores, scale = _weights(e, a, query, key)
    thin = Ref("", scores.dtype, (*scores.shape[:-1], 1))
    sums = e.reshape(e.cast(sums, scores.dtype), thin.shape)
    if a.get("attn_mask") is not None:
        sums = computed(e, _FINITE, {"t": sums}, thin)
    parts = computed(e, "exp({s} - {t})", {"s": scores, "t": sums}, scores)
    of_value = matmul(e, transposed(e, parts), grad, value.shape)
    of_parts = matmul(e, grad, transposed(e, value), scores.shape)
    product = computed(e, "{g} * {o}", {"g": grad, "o": out}, grad)
    rows = reduced(e, product, [grad.rank - 1], thin, "+", scores.dtype)
    given = {"p": parts, "g": of_parts, "r": rows, "scale": scale}
    of_scores = computed(e, "{p} * ({g} - {r}) * {scale}", given, scores)
    of_query = matmul(e, of_scores, key, query.shape)
    of_key = matmul(e, transposed(e, of_scores), query, key.shape)
    return [of_query, of_key, of_value]
