"""The shape of the house: imports run one way, and no file grows beyond reading."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

#: Which of the project's packages each one may import, beside itself.
ALLOWED: dict[str, frozenset[str]] = {
    "poly": frozenset(),
    "frontends": frozenset({"poly"}),
    "codegen": frozenset({"poly"}),
    "runtime": frozenset({"codegen", "poly"}),
    "farkas": frozenset({"poly", "frontends", "codegen", "runtime"}),
}

#: Which modules, by prefix, may import these libraries.
ONLY_IN: dict[str, tuple[str, ...]] = {
    "islpy": ("poly", "codegen"),
    "onnx": ("frontends.onnx", "farkas.backend"),
    "cgen": ("codegen",),
    "opt_einsum": ("poly.paths",),
    "pycuda": ("runtime",),
    "cuda": ("runtime",),
    "pyopencl": ("runtime",),
}

MAX_LINES = 600

#: Files that may be longer, each with the reason.
LONG_FILES: dict[str, str] = {}


def modules_under(root: Path) -> dict[str, Path]:
    """Dotted name to file, for all modules of the project's packages."""
    found = {}
    for package in ALLOWED:
        for path in sorted((root / package).rglob("*.py")):
            parts = list(path.relative_to(root).with_suffix("").parts)
            if parts[-1] == "__init__":
                parts.pop()
            found[".".join(parts)] = path
    return found


def imports_of(name: str, path: Path) -> Iterator[tuple[str, int]]:
    """Every dotted name that a module imports, with the line; relative ones made absolute."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*up, *([base] if base else [])])
            yield base, node.lineno
            for alias in node.names:
                yield f"{base}.{alias.name}", node.lineno


def within(name: str, prefixes: Iterable[str]) -> bool:
    return any(name == p or name.startswith(p + ".") for p in prefixes)


def violations(root: Path) -> list[str]:
    """What breaks a rule, one line each."""
    found: list[str] = []
    modules = modules_under(root)
    edges: dict[str, set[str]] = {name: set() for name in modules}
    for name, path in modules.items():
        package = name.split(".")[0]
        for target, line in imports_of(name, path):
            top = target.split(".")[0]
            place = f"{path.relative_to(root)}:{line}"
            if top in ALLOWED and top != package and top not in ALLOWED[package]:
                found.append(f"{place}: {package} must not import {top}")
            if top in ONLY_IN and not within(name, ONLY_IN[top]):
                found.append(f"{place}: only {', '.join(ONLY_IN[top])} may import {top}")
            if target in modules and target != name and not name.startswith(target + "."):
                edges[name].add(target)
    found += [f"import cycle: {' -> '.join(cycle)}" for cycle in cycles(edges)]
    return list(dict.fromkeys(found))


def cycles(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """One import cycle for every edge that closes one, by depth-first search."""
    found: list[list[str]] = []
    state: dict[str, int] = {}

    def visit(name: str, path: list[str]) -> None:
        state[name] = 1
        for target in sorted(edges[name]):
            if state.get(target) == 1:
                found.append([*path[path.index(target) :], target])
            elif target not in state:
                visit(target, [*path, target])
        state[name] = 2

    for name in sorted(edges):
        if name not in state:
            visit(name, [name])
    return found


def test_imports_run_one_way() -> None:
    assert violations(ROOT) == []


def plant(root: Path, files: Mapping[str, str]) -> Path:
    """A small project with these files."""
    for package in ALLOWED:
        (root / package).mkdir()
        (root / package / "__init__.py").touch()
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("poly/a.py", "import runtime\n", "poly must not import runtime"),
        ("poly/a.py", "def f():\n    from codegen import emit\n", "poly must not import codegen"),
        ("codegen/a.py", "from runtime.cache import Cache\n", "codegen must not import runtime"),
        ("runtime/a.py", "import frontends.onnx as o\n", "runtime must not import frontends"),
        ("frontends/a.py", "import codegen\n", "frontends must not import codegen"),
        ("runtime/a.py", "import farkas\n", "runtime must not import farkas"),
        ("runtime/a.py", "import islpy as isl\n", "only poly, codegen may import islpy"),
        ("frontends/a.py", "import onnx\n", "may import onnx"),
        ("farkas/a.py", "from onnx import helper\n", "may import onnx"),
        ("poly/a.py", "import cgen\n", "only codegen may import cgen"),
    ],
)
def test_a_planted_violation_is_found(tmp_path: Path, name: str, text: str, message: str) -> None:
    found = violations(plant(tmp_path, {name: text}))
    assert any(message in line and line.startswith(f"{name}:") for line in found), found


def test_a_planted_cycle_is_found(tmp_path: Path) -> None:
    files = {
        "poly/a.py": "from poly import b\n",
        "poly/b.py": "from .c import x\n",
        "poly/c.py": "import poly.a\n",
    }
    assert violations(plant(tmp_path, files)) == [
        "import cycle: poly.a -> poly.b -> poly.c -> poly.a"
    ]


def test_allowed_imports_are_not_reported(tmp_path: Path) -> None:
    files = {
        "poly/a.py": "import islpy\nimport numpy\n",
        "codegen/b.py": "import islpy, cgen\nfrom poly.a import x\n",
        "runtime/c.py": "from codegen.b import y\nfrom poly import a\n",
        "frontends/onnx/__init__.py": "import onnx\nfrom ..text import z\n",
        "frontends/text.py": "from poly import a\n",
        "farkas/d.py": "import runtime.c, frontends.text, codegen.b, poly.a\n",
    }
    assert violations(plant(tmp_path, files)) == []


def long_files(root: Path) -> list[str]:
    """Python files of the project with more lines than allowed."""
    folders = [*ALLOWED, "tests", "benchmarks"]
    return [
        f"{path.relative_to(root)}: {lines} lines"
        for folder in folders
        for path in sorted((root / folder).rglob("*.py"))
        if (lines := len(path.read_text().splitlines())) > MAX_LINES
        and str(path.relative_to(root)) not in LONG_FILES
    ]


def test_no_file_is_too_long() -> None:
    assert long_files(ROOT) == []


def test_a_planted_long_file_is_found(tmp_path: Path) -> None:
    root = plant(tmp_path, {"poly/long.py": "x = 1\n" * (MAX_LINES + 1)})
    assert long_files(root) == [f"poly/long.py: {MAX_LINES + 1} lines"]
