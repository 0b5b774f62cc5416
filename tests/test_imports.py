"""The shape of the house: imports run one way, no file or function grows beyond reading."""

from __future__ import annotations

import ast
import re
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

#: The rooms from the ground up: each may import itself and what stands before it.  A room is a
#: folder without those of its folders that are rooms of their own, or a single module.
ROOMS = (
    "poly.errors",
    "poly.passes",
    "poly.machine",
    "poly.ir",
    "poly.sets",
    "poly.tree",
    "poly.deps",
    "poly.buffers",
    "poly.show",
    "poly.lower",
    "poly.schedule",
    "poly.rewrites",
    "poly.gradients",
    "poly.strategy.common",
    "poly.strategy.cpu",
    "poly.strategy.gpu",
    "poly.space",
    "poly.graph_passes",
    "frontends.language",
    "frontends.onnx.core",
    "frontends.onnx.model",
    "frontends.onnx.ml",
    "frontends.onnx.bodies",
    "frontends.onnx.ops",
    "frontends.onnx.importer",
    "frontends.onnx",
    "frontends.aten",
    "frontends.sklearn",
    "codegen.loops",
    "codegen.vector",
    "codegen.c",
    "codegen.routines",
    "codegen.gpu",
    "codegen.pipeline",
    "codegen.describe_pipeline",
    "codegen.provenance",
    "runtime.common",
    "runtime.reference",
    "runtime.cpu",
    "runtime.tuned",
    "runtime.intrinsics",
    "runtime.gpu",
    "runtime.cuda",
    "runtime.network",
    "runtime.find_device",
    "farkas.check_install",
    "farkas.version",
    "farkas.errors",
    "farkas.console",
    "farkas.targets",
    "farkas.tuning",
    "farkas.intrinsics",
    "farkas.views",
    "farkas.export",
    "farkas.kernels",
    "farkas.networks",
    "farkas.training",
    "farkas.frameworks",
    "farkas.torch",
    "farkas.jax",
    "farkas.sklearn",
    "farkas.quantize",
    "farkas.backend",
    "farkas.cli",
    "farkas",
    "farkas.__main__",
)

#: Which modules, by prefix, may import these libraries.
ONLY_IN: dict[str, tuple[str, ...]] = {
    "islpy": (
        "poly.sets",
        "poly.tree",
        "poly.deps",
        "poly.buffers",
        "poly.lower",
        "poly.schedule",
        "poly.strategy",
        "poly.space",
        "codegen.loops",
        "codegen.gpu",
    ),
    "onnx": (
        "frontends.onnx",
        "frontends.aten",
        "frontends.sklearn",
        "farkas.backend",
        "farkas.quantize",
    ),
    "lark": ("frontends.language",),
    "cgen": ("codegen.c", "codegen.gpu"),
    "opt_einsum": ("poly.rewrites.contraction_path",),
    "pycuda": ("runtime.cuda",),
    "cuda": ("runtime.cuda",),
    "pyopencl": ("runtime.gpu",),
    "click": ("farkas.cli",),
}

MAX_LINES = 600

#: Lines of a function, with its docstring and what is inside.
MAX_FUNCTION = 60

#: Files that may be longer, each with the reason.
LONG_FILES: dict[str, str] = {}

#: Functions that may be longer, as "path:name", each with the reason.
LONG_FUNCTIONS: dict[str, str] = {}


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


def room_of(name: str) -> int | None:
    """The floor of a module's room; None if it has none."""
    prefixes = [r for r in ROOMS if within(name, (r,))]
    return ROOMS.index(max(prefixes, key=len)) if prefixes else None


def upward(name: str, target: str) -> str:
    """What is wrong with an import between two of the project's modules, if anything."""
    here, there = room_of(name), room_of(target)
    if here is None:
        return f"{name} is in none of the rooms"
    if there is None or there <= here:
        return ""
    return f"{ROOMS[here]} must not import {ROOMS[there]}, which is above it"


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
                wrong = upward(name, target)
                if wrong:
                    found.append(f"{place}: {wrong}")
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
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("poly/ir/a.py", "import runtime\n", "poly must not import runtime"),
        ("poly/ir/a.py", "def f():\n    from codegen import c\n", "poly must not import codegen"),
        ("codegen/c/a.py", "from runtime.cpu import x\n", "codegen must not import runtime"),
        ("runtime/cpu/a.py", "import frontends.onnx\n", "runtime must not import frontends"),
        ("frontends/onnx/a.py", "import codegen\n", "frontends must not import codegen"),
        ("runtime/cpu/a.py", "import farkas\n", "runtime must not import farkas"),
        ("runtime/cpu/a.py", "import islpy as isl\n", "may import islpy"),
        ("poly/ir/a.py", "import islpy as isl\n", "may import islpy"),
        ("frontends/language/a.py", "import onnx\n", "may import onnx"),
        ("farkas/cli/a.py", "from onnx import helper\n", "may import onnx"),
        ("poly/ir/a.py", "import cgen\n", "only codegen.c, codegen.gpu may import cgen"),
        ("poly/ir/a.py", "from poly.deps import b\n", "poly.ir must not import poly.deps"),
        ("poly/ir/a.py", "def f():\n    import poly.deps.b\n", "poly.ir must not import poly.deps"),
        ("poly/attic/a.py", "from poly.deps import b\n", "poly.attic.a is in none of the rooms"),
    ],
)
def test_a_planted_violation_is_found(tmp_path: Path, name: str, text: str, message: str) -> None:
    found = violations(plant(tmp_path, {name: text, "poly/deps/b.py": ""}))
    assert any(message in line and line.startswith(f"{name}:") for line in found), found


def test_a_planted_cycle_is_found(tmp_path: Path) -> None:
    files = {
        "poly/ir/a.py": "from poly.ir import b\n",
        "poly/ir/b.py": "from .c import x\n",
        "poly/ir/c.py": "import poly.ir.a\n",
    }
    assert violations(plant(tmp_path, files)) == [
        "import cycle: poly.ir.a -> poly.ir.b -> poly.ir.c -> poly.ir.a"
    ]


def test_allowed_imports_are_not_reported(tmp_path: Path) -> None:
    files = {
        "poly/sets/a.py": "import islpy\nimport numpy\n",
        "poly/deps/b.py": "from poly.sets.a import x\n",
        "codegen/c/b.py": "import cgen\nfrom poly.sets.a import x\n",
        "runtime/cpu/c.py": "from codegen.c.b import y\nfrom poly.sets import a\n",
        "frontends/onnx/__init__.py": "import onnx\nfrom ..language.text import z\n",
        "frontends/language/text.py": "from poly.sets import a\n",
        "farkas/cli/d.py": "import runtime.cpu.c, frontends.onnx, codegen.c.b, poly.sets.a\n",
    }
    assert violations(plant(tmp_path, files)) == []


def folders() -> list[Path]:
    """Every folder of the project's packages that has code."""
    return sorted({p.parent for p in modules_under(ROOT).values()})


def test_each_folder_says_what_lives_there_and_what_does_not() -> None:
    for folder in folders():
        text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
        sentences = re.findall(r"[.:](?=\s|$)", text)
        assert len(sentences) >= 2, f"{folder.relative_to(ROOT)}: {text!r}"


def test_the_tests_have_the_same_folders() -> None:
    """`tests/` has no folders below those of the packages that the packages do not have."""
    for package in ALLOWED:
        for path in (ROOT / "tests" / package).rglob("test_*.py"):
            assert (ROOT / path.parent.relative_to(ROOT / "tests")).is_dir(), path


def test_the_docs_list_the_rooms() -> None:
    """docs/architecture.md has the docstring of each folder, in the order of the rooms."""
    first = "<!-- rooms: made from the docstrings of the folders; a test compares -->"
    docs = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    shown = docs.partition(first)[2].partition("\n## ")[0]
    assert shown.strip() == rooms_text(), f"should be:\n\n{rooms_text()}"


def rooms_text() -> str:
    """The list of rooms in docs/architecture.md."""
    order = {name: n for n, name in enumerate(ROOMS)}

    def place(folder: Path) -> tuple[int, int]:
        name = ".".join(folder.relative_to(ROOT).parts)
        inside = [n for r, n in order.items() if within(r, (name,))]
        return (min(inside), len(folder.parts))

    lines = []
    for folder in sorted(folders(), key=place):
        text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
        words = " ".join(text.partition(">>>")[0].partition("====")[0].split())
        depth = len(folder.relative_to(ROOT).parts) - 1
        lines.append(f"{'  ' * depth}* `{folder.relative_to(ROOT)}/`: {words}")
    return "\n".join(lines)


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
    root = plant(tmp_path, {"poly/ir/long.py": "x = 1\n" * (MAX_LINES + 1)})
    assert long_files(root) == [f"poly/ir/long.py: {MAX_LINES + 1} lines"]


def long_functions(root: Path) -> list[str]:
    """Functions and methods of the project, tests aside, with more lines than allowed."""
    found = []
    for folder in [*ALLOWED, "benchmarks"]:
        for path in sorted((root / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(), str(path))):
                if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    continue
                name = f"{path.relative_to(root)}:{node.name}"
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MAX_FUNCTION and name not in LONG_FUNCTIONS:
                    found.append(f"{name}: {lines} lines")
    return found


def test_no_function_is_too_long() -> None:
    assert long_functions(ROOT) == []


def test_a_planted_long_function_is_found(tmp_path: Path) -> None:
    """Docstrings and nested functions count; decorators and what fits do not."""
    fits = ["@cache", "def fits():", *["    x = 1"] * (MAX_FUNCTION - 1)]
    method = ["class A:", "    def long(self):", '        """What."""', "        def inner():"]
    method += ["            x = 1"] * (MAX_FUNCTION - 2)
    text = "\n".join([*fits, *method])
    root = plant(tmp_path, {"poly/ir/a.py": text})
    assert long_functions(root) == [f"poly/ir/a.py:long: {MAX_FUNCTION + 1} lines"]
