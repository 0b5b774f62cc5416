"""Kernels of einsum: one for subscripts, a semiring and a kind of elements, for all sizes."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from farkas.kernels.kernel import Kernel, compile
from frontends.language.subscripts import Label, Labels, Subscripts
from poly.errors import ArgumentError

#: How values are combined by name: the sign in a reduction, and the text of a pair of values.
ADD = {"+": "+=!", "*": "*=!", "max": "max=!", "min": "min=!"}
MUL = {"*": "{} * {}", "+": "{} + {}", "max": "max({}, {})", "min": "min({}, {})"}
_BOOL_ADD = {"+": "max=!", "max": "max=!", "*": "min=!", "min": "min=!"}
_BOOL_MUL = {"*": "{} and {}", "min": "{} and {}", "+": "{} or {}", "max": "{} or {}"}
_MOST_KERNELS = 256
#: How many operands a kernel of complex numbers takes: products are written out, with 2^n terms.
MOST_COMPLEX = 4


@dataclass(frozen=True)
class Semiring:
    """What stands for the sum and the product, and of which elements."""

    add: str = "+"
    mul: str = "*"
    elements: Literal["real", "half", "bool", "complex"] = "real"

    @property
    def is_usual(self) -> bool:
        """Whether they are the sum and the product of numbers."""
        return (self.add, self.mul) == ("+", "*")

    def of(self, dtype: np.dtype[np.generic]) -> Semiring:
        """The same for elements of a type.  Raises `ArgumentError`: it has no such operations."""
        if dtype.kind == "c":
            if not self.is_usual:
                raise ArgumentError("complex numbers have the usual sum and product only")
            return replace(self, elements="complex")
        if dtype.kind == "b":
            return replace(self, elements="bool")
        is_half = dtype.itemsize == 2 and dtype.kind not in "iu"
        return replace(self, elements="half") if is_half else self

    @property
    def sign(self) -> str:
        """The sign of a sum."""
        return (_BOOL_ADD if self.elements == "bool" else ADD)[self.add]

    @property
    def sums_first(self) -> bool:
        """Whether factors can be summed before they are multiplied, without more rounding."""
        return self.is_usual and self.elements != "half"


#: Kernels, and the orders in which they take operands.
_kernels: OrderedDict[tuple[Subscripts, Semiring], tuple[Kernel, tuple[int, ...]]] = OrderedDict()
_lock = threading.Lock()


def kernel_of(subscripts: Subscripts, semiring: Semiring) -> tuple[Kernel, tuple[int, ...]]:
    """A kernel for all sizes, and the order in which it takes the operands.

    Complex arrays are given, and results come, as real ones with a last dimension of 2.
    """
    key = subscripts, semiring
    with _lock:
        if key in _kernels:
            _kernels.move_to_end(key)
            return _kernels[key]
        # The operand with the most dimensions that stay comes first: sums run in its order.
        lone = _lone(subscripts, semiring)
        left = [len({*own} - x) for own, x in zip(subscripts.operands, lone, strict=True)]
        widest = sorted(range(len(left)), key=lambda n: -left[n])
        operands = tuple(subscripts.operands[n] for n in widest)
        text, order = einsum_text(numbered(Subscripts(operands, subscripts.result)), semiring)
        made = compile(text, name="einsum"), tuple(widest[n] for n in order)
        _kernels[key] = made
        if len(_kernels) > _MOST_KERNELS:
            _kernels.popitem(last=False)
        return made


def numbered(subscripts: Subscripts) -> Subscripts:
    """The same with numbers for labels, in the order in which they come."""
    numbers: dict[Label, int] = {}
    for labels in (*subscripts.operands, subscripts.result):
        for label in labels:
            numbers.setdefault(label, len(numbers))
    operands = tuple(tuple(numbers[x] for x in labels) for labels in subscripts.operands)
    return Subscripts(operands, tuple(numbers[x] for x in subscripts.result))


def _lone(subscripts: Subscripts, semiring: Semiring) -> list[set[Label]]:
    """For each factor of a product, the labels that it is summed over before it is multiplied: no
    other factor has them, nor has the result.
    """
    operands = subscripts.operands
    if len(operands) < 2 or not semiring.sums_first:
        return [set() for _ in operands]
    count = Counter(x for own in operands for x in {*own})
    return [{x for x in own if count[x] == 1} - {*subscripts.result} for own in operands]


def einsum_text(subscripts: Subscripts, semiring: Semiring) -> tuple[str, tuple[int, ...]]:
    """The comprehension, and the order in which it reads the operands.

    >>> einsum_text(Subscripts(((0, 1), (1, 2)), (0, 2)), Semiring())
    ('result[i0,i2] +=! A0[i0,i1] * A1[i1,i2]', (0, 1))

    Sums of one factor come before products.

    >>> print(einsum_text(Subscripts(((0, 1), (1, 2)), (0,)), Semiring())[0])
    S1[i1] +=! A1[i1,i2];
    result[i0] +=! A0[i0,i1] * S1[i1]

    A sum along one operand runs in the order of its dimensions, and is transposed afterwards.

    >>> print(einsum_text(Subscripts(((0, 1, 2),), (2, 1)), Semiring())[0])
    sums[i1,i2] +=! A0[i0,i1,i2];
    result[i2,i1] = sums[i1,i2]

    What is read again and again with it is transposed before.

    >>> text, order = einsum_text(Subscripts(((0, 1, 2), (2, 1)), (0,)), Semiring())
    >>> print(text)
    B1[i1,i2] = A1[i2,i1];
    result[i0] +=! A0[i0,i1,i2] * B1[i1,i2]
    >>> order
    (1, 0)

    Complex elements have a real part at 0 and an imaginary part at 1.

    >>> print(einsum_text(Subscripts(((0,), (0,)), ()), Semiring(elements="complex"))[0])
    real[] +=! A0[i0,0] * A1[i0,0] - A0[i0,1] * A1[i0,1];
    imaginary[] +=! A0[i0,0] * A1[i0,1] + A0[i0,1] * A1[i0,0];
    result[part] = select(part == 0, real[], imaginary[]) where part in 0:2
    """
    lines, factors, order = _factors(subscripts, semiring)
    labels, whole = {x for _, own in factors for x in own}, subscripts.result
    sign = semiring.sign if labels - {*whole} else "="
    own = _own_order(factors[0][1], whole)
    if semiring.elements == "complex":
        parts = _read("real", own), _read("imaginary", own)
        lines += [
            f"{part} {sign} {value}"
            for part, value in zip(parts, _complex_product(factors), strict=True)
        ]
        result = _read("result", whole, "part")
        lines.append(f"{result} = select(part == 0, {', '.join(parts)}) where part in 0:2")
        return ";\n".join(lines), order
    value = _product([_read(*factor) for factor in factors], semiring)
    if own == whole or sign == "=":
        lines.append(f"{_read('result', whole)} {sign} {value}")
    else:
        lines.append(f"{_read('sums', own)} {sign} {value}")
        lines.append(f"{_read('result', whole)} = {_read('sums', own)}")
    return ";\n".join(lines), order


def _read(name: str, labels: Labels, *more: str) -> str:
    return f"{name}[{','.join((*(f'i{x}' for x in labels), *more))}]"


def _own_order(first: Labels, result: Labels) -> Labels:
    """The order of the result's labels in the first factor, if it has them all."""
    own = tuple(x for x in dict.fromkeys(first) if x in result)
    return own if {*own} == {*result} else result


def _factors(
    subscripts: Subscripts, semiring: Semiring
) -> tuple[list[str], list[tuple[str, Labels]], tuple[int, ...]]:
    """Statements that prepare operands; the names and labels of what is multiplied; which operand
    is read when.
    """
    part = ("part",) if semiring.elements == "complex" else ()
    lines, factors, order = [], [], []
    pairs = zip(subscripts.operands, _lone(subscripts, semiring), strict=True)
    for n, (labels, lone) in enumerate(pairs):
        factor = f"A{n}", labels
        if lone:
            made = f"S{n}", tuple(x for x in dict.fromkeys(labels) if x not in lone)
            lines.append(f"{_read(*made, *part)} {semiring.sign} {_read(*factor, *part)}")
            order.append(n)
            factor = made
        factors.append(factor)
    for n, own in _turned([labels for _, labels in factors]).items():
        made = f"B{n}", own
        lines.append(f"{_read(*made, *part)} = {_read(*factors[n], *part)}")
        factors[n] = made
        if n not in order:
            order.append(n)
    order += [n for n in range(len(factors)) if n not in order]
    return lines, factors, tuple(order)


def _turned(factors: Sequence[Labels]) -> dict[int, Labels]:
    """The factors that are read again and again with the first, with its order of their labels."""
    found = {}
    for n, labels in enumerate(factors):
        own = tuple(x for x in dict.fromkeys(factors[0]) if x in labels)
        is_part = {*own} == {*labels} < {*factors[0]} and len(own) == len(labels)
        if is_part and own != labels:
            found[n] = own
    return found


def _product(values: Sequence[str], semiring: Semiring) -> str:
    mul = (_BOOL_MUL if semiring.elements == "bool" else MUL)[semiring.mul]
    made = values[0]
    for value in values[1:]:
        made = mul.format(made, value)
    return made


def _complex_product(factors: Sequence[tuple[str, Labels]]) -> tuple[str, str]:
    """The real and the imaginary part."""
    (real, imaginary), *others = ((_read(*f, "0"), _read(*f, "1")) for f in factors)
    for n, (x, y) in enumerate(others):
        if n:
            real, imaginary = f"({real})", f"({imaginary})"
        real, imaginary = f"{real} * {x} - {imaginary} * {y}", f"{real} * {y} + {imaginary} * {x}"
    return real, imaginary
