"""The registry imports every family of operators."""

from __future__ import annotations

import ast
from pathlib import Path

from frontends.onnx.ops import registry

FRONT_END = Path(registry.__file__).parents[1]


def families() -> set[str]:
    """The modules of operators that register something."""
    files = [*(FRONT_END / "ops").glob("*.py"), *(FRONT_END / "ml").glob("*.py")]
    return {f.stem for f in files if registers(ast.parse(f.read_text()))}


def registers(module: ast.Module) -> bool:
    """Whether a module has functions with a decorator that registers them for an operator."""
    functions = (n for n in ast.walk(module) if isinstance(n, ast.FunctionDef))
    calls = (d.func for n in functions for d in n.decorator_list if isinstance(d, ast.Call))
    return any(isinstance(f, ast.Name) and f.id in ("operator", "contrib") for f in calls)


def test_every_family_is_imported() -> None:
    assert families() == set(registry.__all__)
