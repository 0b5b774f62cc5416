"""Gradients of operators element by element, and of reductions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.conformance.gradient_check import Case, F, Fixed, Passed, case, spread, torch

#: Functions of one operand: the range of the operand, and the same in torch.
FUNCTIONS: dict[str, tuple[float, float, Callable[..., Any]]] = {
    "Abs": (-2, 2, lambda x: x.abs()),
    "Acos": (-0.9, 0.9, lambda x: x.acos()),
    "Acosh": (1.1, 3, lambda x: x.acosh()),
    "Asin": (-0.9, 0.9, lambda x: x.asin()),
    "Asinh": (-2, 2, lambda x: x.asinh()),
    "Atan": (-2, 2, lambda x: x.atan()),
    "Atanh": (-0.9, 0.9, lambda x: x.atanh()),
    "Ceil": (-2, 2, lambda x: x.ceil()),
    "Cos": (-2, 2, lambda x: x.cos()),
    "Cosh": (-2, 2, lambda x: x.cosh()),
    "Erf": (-2, 2, lambda x: x.erf()),
    "Exp": (-2, 2, lambda x: x.exp()),
    "Floor": (-2, 2, lambda x: x.floor()),
    "HardSwish": (-4, 4, lambda x: F.hardswish(x)),
    "Identity": (-2, 2, lambda x: x * 1),
    "Log": (0.2, 3, lambda x: x.log()),
    "Mish": (-2, 2, lambda x: F.mish(x)),
    "Neg": (-2, 2, lambda x: -x),
    "Reciprocal": (0.3, 3, lambda x: 1 / x),
    "Relu": (-2, 2, lambda x: x.relu()),
    "Round": (-2, 2, lambda x: x.round()),
    "Sigmoid": (-3, 3, lambda x: x.sigmoid()),
    "Sign": (-2, 2, lambda x: x.sign()),
    "Sin": (-2, 2, lambda x: x.sin()),
    "Sinh": (-2, 2, lambda x: x.sinh()),
    "Softplus": (-3, 3, lambda x: F.softplus(x, threshold=1000)),
    "Softsign": (-2, 2, lambda x: F.softsign(x)),
    "Sqrt": (0.2, 3, lambda x: x.sqrt()),
    "Tan": (-1.2, 1.2, lambda x: x.tan()),
    "Tanh": (-2, 2, lambda x: x.tanh()),
}


def _functions() -> Iterator[Case]:
    for operator, (low, high, judge) in FUNCTIONS.items():
        yield case(operator, "", [spread(3, 4, low=low, high=high)], judge)
    x = spread(3, 4)
    zero = np.array([-1.0, 0, 1])
    yield case("Relu", "0", [zero], lambda x: x.relu(), is_smooth=False)
    yield case("HardSigmoid", "0", [zero - 1], lambda x: F.hardsigmoid(3 * x), alpha=0.5,
               is_smooth=False)  # fmt: skip
    yield case("Abs", "0", [zero], lambda x: x.abs())
    yield case("Softplus", "0", [zero], lambda x: F.softplus(x))
    yield case("Softplus", "far out", [np.array([-90.0, -40, 40, 90])], FUNCTIONS["Softplus"][2])
    yield case("Sigmoid", "far out", [np.array([-90.0, -40, 40, 90])], lambda x: x.sigmoid())
    yield case("Celu", "", [x], lambda x: F.celu(x, 0.5), alpha=0.5)
    yield case("Elu", "", [x], lambda x: F.elu(x, 0.75), alpha=0.75)
    yield case("Gelu", "", [x], lambda x: F.gelu(x))
    yield case("Gelu", "tanh", [x], lambda x: F.gelu(x, approximate="tanh"), approximate="tanh")
    yield case(
        "HardSigmoid", "", [spread(3, 4, low=-3, high=3)],
        lambda x: (0.25 * x + 0.5).clamp(0, 1), alpha=0.25, beta=0.5,
    )  # fmt: skip
    yield case("LeakyRelu", "", [x], lambda x: F.leaky_relu(x, 0.125), alpha=0.125)
    yield case(
        "Selu", "", [x], lambda x: 1.25 * F.elu(x, 1.5), alpha=1.5, gamma=1.25,
    )  # fmt: skip
    yield case("Shrink", "hard", [x], lambda x: F.hardshrink(x, 0.75), lambd=0.75)
    yield case("Shrink", "soft", [x], lambda x: F.softshrink(x, 0.75), lambd=0.75, bias=0.75)
    yield case("Swish", "", [x], lambda x: x * (0.5 * x).sigmoid(), alpha=0.5)
    yield case("ThresholdedRelu", "", [x], lambda x: F.threshold(x, 0.75, 0), alpha=0.75)
    yield case("Cast", "to float32", [x], lambda x: x.float().double(), to=1,
               is_smooth=False)  # fmt: skip
    yield case("CastLike", "", [x, Fixed(np.zeros(1, np.float64))], lambda x, _: x * 1)
    yield case("Dropout", "in inference", [x], lambda x: x * 1)
    limits = np.array(-0.7), np.array(0.9)
    yield case("Clip", "", [x, *limits], lambda x, a, b: torch.clamp(x, a, b))
    yield case("Clip", "above", [x, None, limits[1]], lambda x, _, b: torch.minimum(x, b))
    yield case("Clip", "constant limits", [x, *map(Fixed, limits)], lambda x, a, b: x.clamp(a, b))
    slope = spread(4, low=0.1, high=0.9)
    yield case("PRelu", "", [x, slope], lambda x, s: torch.where(x > 0, x, s * x))
    yield case("SwiGLU", "", [x, spread(3, 4)],
               lambda a, b: a * (0.5 * a).sigmoid() * b, opset=28, alpha=0.5)  # fmt: skip


def _binary() -> Iterator[Case]:
    a, b, c = spread(2, 3, 4), spread(3, 1, low=0.3, high=2), spread(2, 1, 4)
    yield case("Add", "broadcast", [a, b], lambda a, b: a + b)
    yield case("Add", "both broadcast", [b, c], lambda a, b: a + b)
    yield case("Sub", "broadcast", [b, a], lambda a, b: a - b)
    yield case("Mul", "broadcast", [a, c], lambda a, b: a * b)
    yield case("Mul", "scalar", [a, np.array(1.7)], lambda a, b: a * b)
    yield case("Div", "broadcast", [a, b], lambda a, b: a / b)
    yield case("Div", "both broadcast", [c, b], lambda a, b: a / b)
    positive = spread(2, 3, 4, low=0.3, high=2)
    yield case("Pow", "broadcast", [positive, a[:, :, :1]], lambda a, b: a**b)
    for n in (0.0, 1.0, 2.0, 3.0):
        yield case("Pow", f"constant {n:g}", [a, Fixed(np.array(n))], lambda a, b: a**b)
    yield case("Pow", "constant 0.5", [positive, Fixed(np.array(0.5))], lambda a, b: a**b)
    yield case("Pow", "integers", [a, Passed(np.array([0, 1, 2, 3]))], lambda a, b: a**b)
    yield case("Mod", "fmod", [a, b], lambda a, b: torch.fmod(a, b), fmod=1)
    which = np.arange(12).reshape(3, 4) % 3 > 0
    yield case("Where", "", [Passed(which), a, c], lambda w, a, b: torch.where(w, a, b))
    yield case("Where", "constant", [which, b, np.array(0.3)], lambda w, a, b: torch.where(w, a, b))
    yield case("Sum", "", [a, b, c], lambda a, b, c: a + b + c)
    yield case("Mean", "", [a, b, c], lambda a, b, c: (a + b + c) / 3)
    three = [spread(2, 3, 1), spread(3, 4), spread(2, 1, 4)]
    yield case("Max", "", three, lambda a, b, c: torch.maximum(torch.maximum(a, b), c))
    yield case("Min", "", three, lambda a, b, c: torch.minimum(torch.minimum(a, b), c))
    yield case("Max", "one operand", [a], lambda a: a * 1)
    yield case("Max", "tied", [a, a.copy()], lambda a, b: torch.maximum(a, b))


#: Reductions over dimensions.
REDUCTIONS: dict[str, Callable[..., Any]] = {
    "ReduceL1": lambda x, **over: x.abs().sum(**over),
    "ReduceL2": lambda x, **over: (x * x).sum(**over).sqrt(),
    "ReduceLogSum": lambda x, **over: x.sum(**over).log(),
    "ReduceLogSumExp": lambda x, **over: x.logsumexp(**over),
    "ReduceMax": lambda x, **over: x.amax(**over),
    "ReduceMean": lambda x, **over: x.mean(**over),
    "ReduceMin": lambda x, **over: x.amin(**over),
    "ReduceProd": lambda x, dim, keepdim: _product(x, dim, keepdim),
    "ReduceSum": lambda x, **over: x.sum(**over),
    "ReduceSumSquare": lambda x, **over: (x * x).sum(**over),
}


def _product(x: Any, dim: tuple[int, ...], keepdim: bool) -> Any:
    for d in sorted((d % x.dim() for d in dim), reverse=True):
        x = x.prod(d, keepdim=keepdim)
    return x


def _reductions() -> Iterator[Case]:
    for operator, reduced in REDUCTIONS.items():
        low = 0.3 if operator == "ReduceLogSum" else -1.9
        x = spread(2, 3, 4, low=low, high=2)
        ways = {"": (1,), "two axes": (0, -1), "all": (0, 1, 2)}
        for what, axes in ways.items():
            kept = what == "two axes"
            yield case(
                operator, what, [x, np.array(axes)],
                lambda x, _, reduced=reduced, axes=axes, kept=kept: reduced(
                    x, dim=axes, keepdim=kept
                ),
                keepdims=int(kept),
            )  # fmt: skip
    yield case("ReduceSum", "nothing", [spread(2, 3)], lambda x: x * 1, noop_with_empty_axes=1)
    zero = spread(3, 4)
    zero[0, 1] = zero[1, 0] = zero[1, 2] = 0
    yield case("ReduceProd", "zeros", [zero, np.array([1])], lambda x, _: x.prod(1), keepdims=0)
    yield case("ReduceL2", "zeros", [np.array([[0.0, 0, 0], [0, 1, 2]]), np.array([1])],
               lambda x, _: torch.linalg.vector_norm(x, dim=1), keepdims=0,
               is_smooth=False)  # fmt: skip
    tied = np.array([[1.0, 2, 2], [3, 3, 3]])
    yield case("ReduceMax", "ties", [tied, np.array([1])], lambda x, _: x.amax(1), keepdims=0,
               is_smooth=False)  # fmt: skip


def _along_an_axis() -> Iterator[Case]:
    x, axis = spread(2, 3, 4), np.array(1)

    def exclusive(x: Any) -> Any:
        return torch.cat([torch.zeros_like(x[:, :1]), x.cumsum(1)[:, :-1]], 1)

    yield case("CumSum", "", [x, axis], lambda x, _: x.cumsum(1))
    yield case("CumSum", "reverse", [x, axis], lambda x, _: x.flip(1).cumsum(1).flip(1), reverse=1)
    yield case("CumSum", "exclusive", [x, axis], lambda x, _: exclusive(x), exclusive=1)
    yield case(
        "CumSum", "exclusive and reverse", [x, axis],
        lambda x, _: exclusive(x.flip(1)).flip(1), exclusive=1, reverse=1,
    )  # fmt: skip
    yield case("CumProd", "", [x, axis], lambda x, _: x.cumprod(1), opset=26)
    yield case("CumProd", "exclusive and reverse", [x, axis],
               lambda x, _: torch.cat([torch.ones_like(x[:, :1]), x.flip(1).cumprod(1)[:, :-1]],
                                      1).flip(1), opset=26, exclusive=1, reverse=1)  # fmt: skip
    zero = x.copy()
    zero[0, 0, 0] = zero[1, 1, 2] = 0
    yield case("CumProd", "zeros", [zero, axis], lambda x, _: x.cumprod(1), opset=26)
    for n in (0, 1, -1):
        yield case("Softmax", f"axis {n}", [x], lambda x, n=n: x.softmax(n), axis=n)
        yield case("LogSoftmax", f"axis {n}", [x], lambda x, n=n: x.log_softmax(n), axis=n)
    yield case("Softmax", "opset 11", [x], lambda x: x.flatten(1).softmax(1).view(x.shape),
               opset=11, axis=1)  # fmt: skip
    yield case("Softmax", "far apart", [40 * x], lambda x: x.softmax(1), axis=1)
    yield case(
        "Hardmax", "", [x],
        lambda x: (x == x.amax(1, keepdim=True)).double(), axis=1,
    )  # fmt: skip
    yield case("LpNormalization", "p 1", [x],
               lambda x: x / x.abs().sum(1, keepdim=True), axis=1, p=1)  # fmt: skip
    yield case("LpNormalization", "p 2", [x], lambda x: F.normalize(x, dim=-1), axis=-1, p=2)
    values, largest = (lambda x, _: torch.topk(x, 2, 1)[0]), np.array([2])
    yield case("TopK", "", [x, largest], values, outputs=2, axis=1,
               refused="TopK .* has no gradient: it is no comprehension")  # fmt: skip


ELEMENTWISE = (*_functions(), *_binary(), *_reductions(), *_along_an_axis())
