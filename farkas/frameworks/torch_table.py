"""Which operators of torch are decomposed, and how: by torch's functions or by ours."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any

from frontends.aten.convert import has_lowering

#: The functions by the operators' names, as torch prints them; `torch_decompositions` and
#: `torch_linalg` fill it.  One returns NotImplemented where the operator is to stay.
TABLE: dict[str, Callable[..., Any]] = {}

#: Decompositions that torch's own kernels are faster than, that draw other random numbers, or that
#: AOTAutograd cannot trace.
_KEPT = (
    "native_dropout", "complex", "polar", "view_as_complex", "lift", "lift_fresh", "bucketize",
)  # fmt: skip


def decomposition(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decomposition of operators, by their names without ``aten.``."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            assert f"aten.{name}" not in TABLE, name
            TABLE[f"aten.{name}"] = function
        return function

    return register


@lru_cache(maxsize=1)
def decompositions() -> dict[Any, Callable[..., Any]]:
    """Decompositions of what has no lowering here: torch's, and ours of what torch has none for."""
    torch = import_module("torch")
    table = import_module("torch._decomp").decomposition_table
    seeded = torch.Tag.nondeterministic_seeded

    def is_wanted(target: Any) -> bool:
        name = str(target)
        if has_lowering(name) or name.startswith("aten.sym_"):
            return False
        if any(name.startswith(f"aten.{kept}.") for kept in _KEPT):
            return False
        return isinstance(target, torch._ops.OpOverload) and seeded not in target.tags

    found = {target: f for target, f in table.items() if is_wanted(target)}
    for module in ("torch_decompositions", "torch_linalg"):  # they need torch, and fill the table
        import_module(f"farkas.frameworks.{module}")
    for name, f in TABLE.items():
        packet, overload = name.removeprefix("aten.").split(".")
        found[getattr(getattr(torch.ops.aten, packet), overload)] = f
    return found
