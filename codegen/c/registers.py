"""Register buffers as C variables: one for each register, or an array that rolled loops index."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from codegen.c.type_names import UNROLLED, suffix
from codegen.loops.nodes import Buffer
from poly.ir.linear_form import Linear, constant
from poly.tree.kinds import Scope

#: How two accumulators are combined, and the lanes of one into a number.
_COMBINE = {"+=": "({a} + {b})", "*=": "({a} * {b})", "max=": "fk_max_{name}({a}, {b})",
            "min=": "fk_min_{name}({a}, {b})"}  # fmt: skip
_ACROSS = {"+=": "fk_sum", "*=": "fk_product", "max=": "fk_greatest", "min=": "fk_least"}


@dataclass(frozen=True)
class Registers:
    """A buffer turned into variables, one for each constant index.

    name : its C name; lanes : of each variable
    indexed : they are elements of one array, along which rolled loops move
    used : those that the code names
    """

    buffer: Buffer
    name: str
    lanes: int
    indexed: bool = False
    used: set[str] = field(default_factory=set)
    #: The array that holds the variables after they have been spilled to memory.
    kept: dict[str, str] = field(default_factory=dict)

    @property
    def is_accumulator(self) -> bool:
        """Whether lanes are parts of one number, which are combined at the end."""
        return self.buffer.scope == Scope.LANES

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of variables along each dimension."""
        if self.is_accumulator:
            return self.buffer.shape[:1]
        *outer, last = self.buffer.shape or (1,)
        return (*outer, -(-last // self.lanes))

    def variable(self, index: Sequence[Linear], text: Callable[[Linear], str]) -> str:
        """The variable at an index; `text` spells an index of an array."""
        if not self.indexed:
            return "_".join([self.name, *(str(form.constant) for form in index)])
        return self.name + self._subscripts(list(map(text, index)))

    @property
    def variables(self) -> list[str]:
        """All variables in order, or only those that are used if each has its own name."""
        indices: list[tuple[Linear, ...]] = [()]
        for extent in self.shape:
            indices = [(*i, constant(k)) for i in indices for k in range(extent)]
        names = [self.variable(i, lambda form: str(form.constant)) for i in indices]
        return [n for n in names if self.indexed or self.is_accumulator or n in self.used]

    def declarations(self, kind: str, read: set[str], start: str) -> list[str]:
        """The lines that declare the variables.

        read : the names that code reads; start : the initialiser
        """
        if self.indexed:
            extents = self._subscripts(list(map(str, self.shape)))
            return [f"{kind} {self.name}{extents}{start};"]
        # Nobody uses some: elements of a temporary that no statement reads.
        unused = {n: "" if n in read else " __attribute__((unused))" for n in self.variables}
        return [f"{kind} {name}{mark}{start};" for name, mark in unused.items()]

    def copied(self, kind: str, name: str, before: str) -> list[str]:
        """The lines that declare another array, and copy the registers of an array to it, as far as
        the text before them may have set them.
        """
        extents = self._named(before)
        subscripts = "".join(f"[fk_{k}]" for k in range(len(extents)))
        loops = [f"for (int fk_{k} = 0; fk_{k} < {n}; fk_{k}++)" for k, n in enumerate(extents)]
        indents = ["  " * k for k in range(len(loops) + 1)]
        lines = [f"{kind} {name}{self._subscripts(list(map(str, self.shape)))};"]
        for indent, loop in zip(indents, loops, strict=False):
            lines += [f"{indent}{UNROLLED}", indent + loop]
        return [*lines, f"{indents[-1]}{name}{subscripts} = {self.name}{subscripts};"]

    def _named(self, text: str) -> list[int]:
        """How many elements of each dimension of the array a text may name."""
        extents = [n for n in self.shape if n > 1] or [1]
        found = re.findall(rf"\b{self.name}((?:\[[^\]]*\]){{{len(extents)}}})", text)
        indices = list(zip(*(re.findall(r"\[([^\]]*)\]", one) for one in found), strict=True))
        if not indices:
            return extents
        return [
            max(map(int, own)) + 1 if all(i.isdigit() for i in own) else extent
            for extent, own in zip(extents, indices, strict=True)
        ]

    def combined(self) -> str:
        """All lanes of an accumulator combined into one number, always in the same order."""
        op = self.buffer.op
        name = f"{suffix(self.buffer.dtype)}x{self.lanes}"
        values = self.variables
        while len(values) > 1:
            pairs = zip(values[::2], values[1::2], strict=False)
            merged = [_COMBINE[op].format(name=name, a=a, b=b) for a, b in pairs]
            values = merged + values[len(merged) * 2 :]
        return f"{_ACROSS[op]}_{name}({values[0]})"

    def _subscripts(self, indices: Sequence[str]) -> str:
        """C subscripts; dimensions of one element are left out."""
        found = [f"[{i}]" for n, i in zip(self.shape, indices, strict=True) if n > 1]
        return "".join(found) or f"[{indices[0]}]"
