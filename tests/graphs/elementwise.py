"""Operators that compute elements of elements, with broadcasting."""

from __future__ import annotations

import numpy as np

from tests.graphs.draft import TYPES, Draft, Value, element_type

UNARY = {
    "f": "Abs Neg Relu Sigmoid Tanh Exp Sqrt Log Reciprocal Floor Ceil Round Sign Erf Softplus "
    "Softsign LeakyRelu Elu Selu HardSigmoid HardSwish Celu ThresholdedRelu Sin Cos Atan Mish Gelu "
    "IsNaN IsInf Identity Dropout",
    "i": "Abs Neg Sign Relu BitwiseNot Identity",
    "u": "Abs Sign BitwiseNot Identity",
    "b": "Not Not Identity",
}
ARITHMETIC = (
    "Add Sub Mul Div Pow Mod Min Max Sum Mean PRelu BitwiseAnd BitwiseOr BitwiseXor".split()
)
COMPARISONS = "Equal Greater Less GreaterOrEqual LessOrEqual".split()


def unary(draft: Draft) -> None:
    value = draft.pick()
    if value is None:
        return
    operator = draft.rng.choice(UNARY[value.arrays[0].dtype.kind].split())
    both = operator == "Dropout" and draft.rng.random() < 0.5
    draft.add(operator, [value], 2 if both else 1)


def view(draft: Draft) -> None:
    """What moves nothing, of whatever there is."""
    value = draft.pick()
    if value is None:
        return
    axis = draft.rng.randint(-value.rank - 1, value.rank)
    kind = draft.rng.randrange(4)
    if kind == 0:
        draft.add("Identity", [value])
    elif kind == 1:
        draft.add("Unsqueeze", [value, draft.numbers(axis)])
    elif kind == 2:
        draft.add("Reshape", [value, draft.numbers(-1)])
    else:
        draft.add("Flatten", [value], axis=axis)


def partner(draft: Draft, value: Value, dtype: str = "") -> Value:
    """An operand that broadcasts with a value in every trial."""
    wanted = dtype or value.type

    def suits(other: Value) -> bool:
        if other.type != wanted:
            return False
        pairs = zip(value.arrays, other.arrays, strict=True)
        return all(broadcasts(a, b) for a, b in pairs)

    if draft.rng.random() < 0.6:
        found = draft.pick(suits)
        if found is not None:
            return found
    keep = draft.rng.randint(0, value.rank)
    extents = value.shape[value.rank - keep :]
    shape = [e if e is not None and draft.rng.random() < 0.7 else 1 for e in extents]
    return draft.operand(draft.random_array(wanted, shape))


def broadcasts(one: np.ndarray, other: np.ndarray) -> bool:
    pairs = zip(one.shape[::-1], other.shape[::-1], strict=False)
    return all(a == b or 1 in (a, b) for a, b in pairs)


def binary(draft: Draft) -> None:
    value = draft.pick(lambda v: v.type != "bool")
    if value is None:
        return
    other = partner(draft, value)
    operator = draft.rng.choice(ARITHMETIC)
    if operator in ("Div", "Mod", "Pow") and not other.all(lambda a: (a != 0).all()):
        operator = "Mul"  # ONNX Runtime dies of integers that are divided by zero
    if operator == "Pow" and not other.all(lambda a: ((a > 0) & (a < 3)).all()):
        operator = "Max"
    shapes = [(a.shape, b.shape) for a, b in zip(value.arrays, other.arrays, strict=True)]
    if operator == "PRelu" and any(np.broadcast_shapes(a, b) != a for a, b in shapes):
        operator = "Add"  # a slope does not make the result larger
    operands = [value, other]
    if operator not in ("PRelu", "Pow") and draft.rng.random() < 0.4:
        operands.reverse()
        if operator in ("Div", "Mod") and not value.all(lambda a: (a != 0).all()):
            operator = "Sub"
    if operator in ("Min", "Max", "Sum", "Mean") and draft.rng.random() < 0.3:
        operands.append(partner(draft, value))
    attributes = {}
    if operator == "Mod" and (value.is_float or draft.rng.random() < 0.3):
        attributes["fmod"] = 1
    draft.add(operator, operands, **attributes)


def compare(draft: Draft) -> None:
    value = draft.pick()
    if value is None:
        return
    if value.type == "bool":
        operator = draft.rng.choice(("And", "Or", "Xor", "Equal"))
    else:
        operator = draft.rng.choice(COMPARISONS)
    draft.add(operator, [value, partner(draft, value)])


def where(draft: Draft) -> None:
    condition = draft.pick(lambda v: v.type == "bool")
    if condition is None:
        return
    one = partner(draft, condition, draft.rng.choice(TYPES))
    draft.add("Where", [condition, one, partner(draft, one)])


def clip(draft: Draft) -> None:
    value = draft.pick(lambda v: v.type != "bool")
    if value is None:
        return
    bounds = [draft.operand(np.array(b, value.type)) for b in (0, 2)]
    chosen = [b if draft.rng.random() < 0.7 else None for b in bounds]
    draft.add("Clip", [value, *chosen])


def cast(draft: Draft) -> None:
    value = draft.pick()
    if value is None:
        return
    dtype = draft.rng.choice([t for t in TYPES if t != value.type])
    if dtype[0] == "u" and not value.all(lambda a: (a >= 0).all()):
        return  # what becomes of negative floats is open
    if draft.rng.random() < 0.3:
        like = draft.pick(lambda v: v.type == dtype)
        if like is not None:
            draft.add("CastLike", [value, like])
            return
    draft.add("Cast", [value], to=element_type(Value("", (np.zeros(1, dtype),))))


ALL = {unary: 14, view: 8, binary: 16, compare: 3, where: 3, clip: 1, cast: 4}
