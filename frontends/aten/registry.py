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

LOWERINGS: dict[str, Lowering] = {}
_L = TypeVar("_L", bound=Lowering)


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


def find_lowering(target: str) -> Lowering | None:
    """The lowering of an operator, which is called as torch prints it; None if there is none."""
    prefix, _, name = target.partition(".")
    return LOWERINGS.get(name if prefix == "aten" else target)
