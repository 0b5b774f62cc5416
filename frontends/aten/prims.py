"""torch's primitive operators, which its decompositions are written in, as those of ATen."""

from __future__ import annotations

from frontends.aten.emitter import Emitter
from frontends.aten.move import flip, permute
from frontends.aten.pointwise import computed
from frontends.aten.reduce import reduced, variance
from frontends.aten.registry import LOWERINGS, Arguments, lowering
from frontends.aten.values import Ref, indices
from frontends.onnx.core.comprehension_text import at

#: Operators of one and two operands that ATen has under the same name.
_UNARY = (
    "abs acos acosh asin asinh atan atanh bitwise_not ceil cos cosh erf exp exp2 expm1 floor "
    "isfinite log log10 log1p log2 neg reciprocal round sign signbit sin sinh sqrt tan tanh trunc"
)
_BINARY = {
    "add": "add.Tensor", "sub": "sub.Tensor", "mul": "mul.Tensor", "eq": "eq.Tensor",
    "ne": "ne.Tensor", "lt": "lt.Tensor", "le": "le.Tensor", "gt": "gt.Tensor", "ge": "ge.Tensor",
    "maximum": "maximum.default", "minimum": "minimum.default", "fmax": "fmax.default",
    "fmin": "fmin.default", "fmod": "fmod.Tensor", "remainder": "remainder.Tensor",
    "bitwise_and": "bitwise_and.Tensor", "bitwise_or": "bitwise_or.Tensor",
    "bitwise_xor": "bitwise_xor.Tensor", "hypot": "hypot.default", "atan2": "atan2.default",
}  # fmt: skip


def _register(name: str, target: str, names: dict[str, str]) -> None:
    @lowering(f"prims.{name}.default")
    def renamed(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref | list[Ref | None]:
        given = {names.get(n, n): v for n, v in a.items()}
        return LOWERINGS[target](e, given | {"name": target}, outs)


for _name in _UNARY.split():
    if f"{_name}.default" in LOWERINGS:
        _register(_name, f"{_name}.default", {})
for _name, _target in _BINARY.items():
    _register(_name, _target, {})
_register("rsqrt", "rsqrt.default", {})
_register("where", "where.self", {"pred": "condition", "a": "self", "b": "other"})
_register("sum", "sum.dim_IntList", {"inp": "self", "dims": "dim", "output_dtype": "dtype"})
_register("amax", "amax.default", {"inp": "self", "dims": "dim"})
_register("amin", "amin.default", {"inp": "self", "dims": "dim"})
_register("reshape", "view.default", {"a": "self"})
_register("squeeze", "view.default", {"a": "self"})
_register("collapse_view", "view.default", {"a": "self"})
_register("split_dim", "view.default", {"a": "self"})
_register("clone", "clone.default", {})


@lowering("prims.div.default")
def divide(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """The quotient; of integers rounded to zero."""
    mode = None if outs[0].is_float else "trunc"
    found = LOWERINGS["div.Tensor_mode"](e, {**a, "rounding_mode": mode}, outs)
    assert isinstance(found, Ref)
    return found


@lowering("prims.pow.default")
def power(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """self ** other"""
    found = LOWERINGS["pow.Tensor_Tensor"](e, {**a, "exponent": a["other"]}, outs)
    assert isinstance(found, Ref)
    return found


@lowering("prims.prod.default")
def product(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """The product over some dimensions."""
    x = a["inp"]
    axes = range(x.rank) if a.get("dims") is None else a["dims"]
    return reduced(e, x, [*axes], outs[0], "*", outs[0].dtype)


@lowering("prims.var.default")
def spread(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref | list[Ref | None]:
    """sum (x - mean)^2 / (count - correction)"""
    given = {"self": a["inp"], "dim": a["dims"], "correction": a["correction"]}
    return variance(e, given, outs)


@lowering("prims.broadcast_in_dim.default")
def broadcast(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """Dimensions become those that are named, and are repeated."""
    x, out = a["a"], outs[0]
    own = indices(out.rank)
    where = [
        own[axis] if s == out.shape[axis] else "0"
        for axis, s in zip(a["broadcast_dimensions"], x.shape, strict=True)
    ]
    return e.each(out.dtype, out.shape, at("X", where), {"X": x})


@lowering("prims.transpose.default")
def transpose(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """The dimensions in another order."""
    return permute(e, {"self": a["a"], "dims": a["permutation"]}, outs)


@lowering("prims.rev.default")
def reverse(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """Dimensions backwards."""
    return flip(e, {"self": a["a"], "dims": a["dims"]}, outs)


@lowering("isfinite.default", "prims.isfinite.default")
def is_finite(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """Whether an element is a number and not infinite."""
    x = a["self"]
    text = "not (isnan({self}) or isinf({self}))" if x.is_float else "true"
    return computed(e, text, a, outs[0], x.dtype)
