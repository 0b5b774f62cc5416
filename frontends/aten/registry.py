"""Which ATen operators have a lowering."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from frontends.aten.emitter import Emitter
from frontends.aten.values import Ref

#: What a lowering gets beside the emitter: the arguments by their names in the schema, and the
#: outputs as torch describes them.
Arguments = dict[str, Any]
Lowering = Callable[[Emitter, Arguments, list[Ref]], "Ref | list[Ref | None]"]

#: The same where an argument or an output is `Complex`.
ComplexLowering = Callable[[Emitter, Arguments, list[Any]], Any]

LOWERINGS: dict[str, Lowering] = {}
COMPLEX: dict[str, ComplexLowering] = {}
_L = TypeVar("_L", bound=Lowering)
_C = TypeVar("_C", bound=ComplexLowering)


def lowering(*names: str) -> Callable[[_L], _L]:
    """Register the lowering of operators, by their names without ``aten.``.

    It gets (emitter, arguments, outputs); tensors among the arguments are `Ref`.
    """

    def register(function: _L) -> _L:
        for name in names:
            assert name not in LOWERINGS, name
            LOWERINGS[name] = function
        return function

    return register


def complex_lowering(*names: str) -> Callable[[_C], _C]:
    """As `lowering`, for calls in which something is complex."""

    def register(function: _C) -> _C:
        for name in names:
            assert name not in COMPLEX, name
            COMPLEX[name] = function
        return function

    return register


def find_lowering(target: str, is_complex: bool = False) -> Any:
    """The lowering of an operator, which is called as torch prints it; None if there is none."""
    prefix, _, name = target.partition(".")
    table: dict[str, Any] = COMPLEX if is_complex else LOWERINGS
    return table.get(name if prefix == "aten" else target)
