"""Shared by the recurrent operators: their attributes, operands and shapes, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from frontends.onnx.core.comprehension_text import literal
from frontends.onnx.core.limits import checked_shape
from frontends.onnx.core.node import Node, Value

#: For each function a format over {0}, {alpha} and {beta}, and the defaults of its parameters.
ACTIVATIONS: dict[str, tuple[str, Mapping[str, float]]] = {
    "relu": ("max({0}, 0)", {}),
    "tanh": ("tanh({0})", {}),
    "sigmoid": ("sigmoid({0})", {}),
    "affine": ("{alpha} * ({0}) + {beta}", {"alpha": 1.0, "beta": 0.0}),
    "leakyrelu": ("select({0} < 0, {alpha} * ({0}), {0})", {"alpha": 0.01}),
    "thresholdedrelu": ("select({0} >= {alpha}, {0}, 0)", {"alpha": 1.0}),
    "scaledtanh": ("{alpha} * tanh({beta} * ({0}))", {"alpha": 1.0, "beta": 1.0}),
    "hardsigmoid": ("max(0, min(1, {alpha} * ({0}) + {beta}))", {"alpha": 0.2, "beta": 0.5}),
    "elu": ("select({0} < 0, {alpha} * (exp({0}) - 1), {0})", {"alpha": 1.0}),
    "softsign": ("({0}) / (1 + abs({0}))", {}),
    "softplus": ("max({0}, 0) + log(1 + exp(-abs({0})))", {}),
}


@dataclass(frozen=True)
class Activation:
    """A function of one value, with the values of its parameters."""

    text: str
    clip: float | None

    def __call__(self, value: str, clips: bool = True) -> str:
        """The text of the function of a value."""
        if clips and self.clip is not None:
            value = f"max({literal(-self.clip)}, min({literal(self.clip)}, {value}))"
        return f"({self.text.format(value)})"


@dataclass(frozen=True, eq=False)
class Recurrence:
    """A recurrent node: operands, sizes and functions.

    steps, batch, inputs, hidden : extents; batch_first : of all operands and results (layout 1)
    reverse : for each direction, whether it runs from the last step to the first
    functions : for each direction its activation functions
    """

    x: Value
    w: Value
    r: Value
    bias: Value | None
    lengths: Value | None
    initial: tuple[Value | None, ...]
    steps: int
    batch: int
    inputs: int
    hidden: int
    batch_first: bool
    reverse: tuple[bool, ...]
    functions: tuple[tuple[Activation, ...], ...]

    @property
    def directions(self) -> int:
        return len(self.reverse)


def recurrence(node: Node, gates: int, defaults: tuple[str, ...], states: int) -> Recurrence:
    """A recurrent node with its operands checked.

    gates : rows of W and R for each hidden unit; defaults : the activation functions of one
    direction; states : how many states have an initial value, from input 5 on

    Raises
    ------
    ModelError : for operands and attributes that do not match.
    """
    x, w, r = node.required(0), node.required(1), node.required(2)
    reverse = _directions(node)
    layout = node.integer("layout", 0) if node.opset >= 14 else 0
    if layout not in (0, 1):
        raise node.fail(f"layout = {layout} does not exist")
    if x.rank != 3 or w.rank != 3 or r.rank != 3:
        raise node.fail("X, W and R must have rank 3")
    hidden = r.shape[2]
    if node.integer("hidden_size", hidden) != hidden:
        raise node.fail(
            f"hidden_size is {node.integer('hidden_size', hidden)}, but R is for {hidden}"
        )
    batch, steps = (x.shape[0], x.shape[1]) if layout else (x.shape[1], x.shape[0])
    count = len(reverse)
    bias, lengths = node.optional(3), node.optional(4)
    initial = tuple(node.optional(5 + n) for n in range(states))
    state = (batch, count, hidden) if layout else (count, batch, hidden)
    for name, value, shape in (
        ("W", w, (count, gates * hidden, x.shape[2])),
        ("R", r, (count, gates * hidden, hidden)),
        ("B", bias, (count, 2 * gates * hidden)),
        ("sequence_lens", lengths, (batch,)),
        *((f"initial_{'hc'[n]}", value, state) for n, value in enumerate(initial)),
    ):
        check_shape(node, name, value, shape)
    checked_shape((count, steps + 1, batch, gates * hidden), x.dtype.compute, node.origin)
    if lengths is not None and lengths.array is not None:
        if ((lengths.array < 0) | (lengths.array > steps)).any():
            raise node.fail(f"sequence_lens are not between 0 and {steps}")
        lengths = None if (lengths.array == steps).all() else lengths
    functions = _functions(node, defaults, count)
    return Recurrence(
        x, w, r, bias, lengths, initial, steps, batch, x.shape[2], hidden, bool(layout),
        reverse, functions,
    )  # fmt: skip


def check_shape(node: Node, name: str, value: Value | None, shape: tuple[int, ...]) -> None:
    """Check the shape of an operand that may be omitted.

    Raises
    ------
    ModelError : if it differs.
    """
    if value is not None and value.shape != shape:
        raise node.fail(f"{name} has shape {list(value.shape)}, expected {list(shape)}")


def _directions(node: Node) -> tuple[bool, ...]:
    word = node.word("direction", "forward")
    known = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
    if word not in known:
        raise node.fail(f"direction = {word!r} does not exist")
    return known[word]


def _functions(
    node: Node, defaults: tuple[str, ...], directions: int
) -> tuple[tuple[Activation, ...], ...]:
    names = _list(node, "activations", str) or defaults * directions
    if len(names) != len(defaults) * directions:
        raise node.fail(
            f"{len(names)} activations, but {len(defaults) * directions} functions are needed"
        )
    clip = node.number("clip", 0.0) if "clip" in node.attributes else None
    if clip is not None and not clip > 0:
        raise node.fail(f"clip = {clip} is not positive")
    # Each function takes as many of the next numbers as it has parameters.
    given = {k: iter(_list(node, f"activation_{k}", float)) for k in ("alpha", "beta")}
    made = []
    for name in names:
        if name.lower() not in ACTIVATIONS:
            raise node.fail(f"there is no activation function {name!r}")
        text, numbers = ACTIVATIONS[name.lower()]
        chosen = {k: literal(float(next(given[k], v))) for k, v in numbers.items()}
        made.append(Activation(text.format("{0}", **chosen), clip))
    size = len(defaults)
    return tuple(tuple(made[k : k + size]) for k in range(0, len(made), size))


def _list(node: Node, name: str, kind: type) -> tuple[Any, ...]:
    values = node.attributes.get(name, ())
    if not isinstance(values, tuple) or not all(isinstance(v, kind) for v in values):
        raise node.fail(f"attribute {name} has the wrong type")
    return values
