"""Where in memory elements of tensors and buffers are, relative to their beginning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from codegen.loops.index_ranges import depends_on
from codegen.loops.nodes import Buffer
from poly.ir.expr import Const, Expr, Index, Read, reads_of
from poly.ir.linear_form import Linear, constant, linear_form
from poly.ir.program import Tensor
from poly.tree.kinds import Scope

#: A stride that depends on sizes.
FAR = 1 << 30


@dataclass(frozen=True)
class _Strided(Expr):
    """A part of an index in dimension `dim`, whose stride depends on unknown sizes."""

    dim: int
    index: Expr


class Addresses:
    """The addresses of what is in memory: tensors, and the buffers around a node."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._shapes = {name: t.shape for name, t in tensors.items()}

    @contextmanager
    def below(self, node: Buffer) -> Iterator[None]:
        """The addresses below a buffer, which has one if it is in memory."""
        before = self._shapes.pop(node.name, None)
        if node.scope == Scope.LOCAL:
            self._shapes[node.name] = tuple(map(Const, node.shape))
        yield
        self._shapes.pop(node.name, None)
        if before is not None:
            self._shapes[node.name] = before

    def __contains__(self, name: str) -> bool:
        return name in self._shapes

    def address(self, read: Read) -> Linear | None:
        """The row-major offset of an element; factors of an unknown extent become terms of a
        dimension (`_Strided`).
        """
        shape = self._shapes.get(read.tensor)
        if shape is None or any(reads_of(i) for i in read.indices):
            return None
        position, stride = constant(0), 1
        for d in reversed(range(len(shape))):
            form = linear_form(read.indices[d])
            if stride:
                position += form.scale(stride)
            else:
                parts = [*form.terms, (Const(1), form.constant)]
                position += Linear(tuple((_Strided(d, a), c) for a, c in parts if c))
            extent = shape[d]
            stride = stride * int(extent.value) if isinstance(extent, Const) else 0
        return position

    def stride(self, read: Read, var: str) -> int | None:
        """The stride between adjacent values of `var`; `FAR` if that depends on sizes."""
        form = self.address(read)
        if form is None:
            return None
        far = [a for a, _ in form.terms if isinstance(a, _Strided) and a.index == Index(var)]
        for a in far:
            form = form.without(a)
        if is_nonlinear(form, var) or (far and form.coefficient(Index(var))):
            return None
        return FAR if far else form.coefficient(Index(var))


def is_nonlinear(form: Linear, var: str) -> bool:
    """Whether an address depends on a variable in another way than by a stride."""
    rest = (a.index if isinstance(a, _Strided) else a for a, _ in form.without(Index(var)).terms)
    return any(depends_on(a, var) for a in rest)
