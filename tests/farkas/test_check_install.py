"""Importing farkas: quick, lazy, and never with another project's packages."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

import farkas as fk
from farkas.check_install import PACKAGES, ForeignPackageError, check_packages
from tests.farkas.conftest import ROOT, Command

HEAVY = ("onnx", "rich", "numpy", "islpy", "lark", "cgen", "click", "ml_dtypes", "platformdirs")


def loaded(command: Command, code: str) -> set[str]:
    """The top-level modules that are loaded after some code ran in a fresh interpreter."""
    done = command("-c", f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))")
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_import_loads_nothing_heavy(command: Command) -> None:
    assert not loaded(command, "import farkas").intersection(HEAVY)


def test_compiling_a_comprehension_loads_neither_onnx_nor_rich(command: Command) -> None:
    names = loaded(command, "import farkas as fk\nfk.compile('C[i] = A[i]', dtypes='int8')")
    assert "numpy" in names
    assert not names.intersection({"onnx", "rich", "click"})


def test_the_backend_for_torch_loads_no_compiler(command: Command) -> None:
    names = loaded(command, "import farkas.torch; farkas.torch.backend")
    assert {"numpy", "frontends.aten.convert"} <= names
    assert not names & {"islpy", "lark", "cgen", "codegen.c.function", "poly.schedule.schedule"}


def test_import_time(command: Command, record_property: pytest.RecordProperty) -> None:
    code = "import time; t = time.perf_counter(); import farkas; print(time.perf_counter() - t)"
    took = sorted(float(command("-c", code).stdout) for _ in range(3))[1]
    record_property("import_seconds", took)  # measured, not asserted: machines differ
    print(f"import farkas: {took * 1e3:.0f} ms")


def test_every_exported_name_is_there() -> None:
    for name in fk.__all__:
        assert getattr(fk, name) is not None
        assert name in dir(fk)
    assert fk.__version__
    with pytest.raises(AttributeError, match="no attribute 'compil'"):
        fk.compil  # type: ignore[attr-defined]  # noqa: B018


def test_names_that_are_listed_are_public() -> None:
    listed = {name for name in dir(fk) if not name.startswith("__")}
    assert listed == {name for name in fk.__all__ if not name.startswith("__")}
    assert not listed & {"Any", "Path", "house", "sys", "check_packages"}


def test_errors_have_one_base() -> None:
    for name in fk.__all__:
        value = getattr(fk, name)
        if isinstance(value, type) and issubclass(value, Exception):
            assert issubclass(value, (fk.FarkasError, ForeignPackageError, Warning))


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("form", ["{}.py", "{}/__init__.py"])
def test_a_foreign_package_is_named_and_not_run(
    command: Command, tmp_path: Path, package: str, form: str
) -> None:
    file = tmp_path / form.format(package)
    file.parent.mkdir(exist_ok=True)
    file.write_text("print('ran')\n")
    done = command("-c", "import farkas")
    assert done.returncode == 1
    assert "ForeignPackageError" in done.stderr
    assert str(file) in done.stderr and f"'{package}'" in done.stderr
    assert "ran" not in done.stdout


def test_the_command_shows_no_traceback_for_a_foreign_package(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "runtime.py").touch()
    done = command("-m", "farkas", "cache", "info")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ") and str(tmp_path / "runtime.py") in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_without_init_is_not_in_the_way(command: Command, tmp_path: Path) -> None:
    (tmp_path / "runtime").mkdir()
    assert command("-c", "import farkas").returncode == 0


def test_a_foreign_module_that_is_loaded_already(command: Command, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere"
    other.mkdir()
    (other / "codegen.py").touch()
    code = f"import sys; sys.path.insert(0, {str(other)!r}); import codegen; sys.path.pop(0)"
    done = command("-c", f"{code}\ntry:\n    import farkas\nexcept ImportError as e:\n    print(e)")
    assert str(other / "codegen.py") in done.stdout


def test_modules_without_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "poly", ModuleType("poly"))
    with pytest.raises(ForeignPackageError, match="without a file") as caught:
        check_packages(ROOT)
    assert caught.value.name == "poly"


def test_a_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "frontends")
    monkeypatch.setattr(sys, "path", [p for p in sys.path if not (Path(p) / "frontends").is_dir()])
    monkeypatch.setattr(sys, "meta_path", [f for f in sys.meta_path if "ditable" not in repr(f)])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ForeignPackageError, match="'frontends' is missing"):
        check_packages(ROOT)
