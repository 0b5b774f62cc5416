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
_F = TypeVar("_F", bound=Callable[..., Any])


def lowering(*names: str) -> Callable[[_F], _F]:
    """Register the lowering of operators, by their names without ``aten.``.

    It gets (emitter, arguments, outputs); tensors among the arguments are `Ref`.
    """
    return _registering(LOWERINGS, names)


def complex_lowering(*names: str) -> Callable[[_F], _F]:
    """As `lowering`, for calls in which something is complex."""
    return _registering(COMPLEX, names)


def _registering(table: dict[str, Any], names: tuple[str, ...]) -> Callable[[_F], _F]:
    def register(function: _F) -> _F:
        for name in names:
            assert name not in table, name
            table[name] = function
        return function

    return register


def find_lowering(target: str, is_complex: bool = False) -> Any:
    """The lowering of an operator, which is called as torch prints it; None if there is none."""
    prefix, _, name = target.partition(".")
    table: dict[str, Any] = COMPLEX if is_complex else LOWERINGS
    return table.get(name if prefix == "aten" else target)
