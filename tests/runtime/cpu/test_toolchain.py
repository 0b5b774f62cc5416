from __future__ import annotations

import ctypes
import os
import stat
import time
from dataclasses import replace
from pathlib import Path

import pytest

from poly.errors import ToolchainError
from runtime.cpu import toolchain as module
from runtime.cpu.compile_c import compile_shared
from runtime.cpu.toolchain import Toolchain, find_toolchain, first_lines

ANSWER = "int answer(void);\nint answer(void) { return 42; }\n"


def script(path: Path, text: str) -> Path:
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def test_description(toolchain: Toolchain) -> None:
    assert toolchain.kind in ("gcc", "clang")
    assert toolchain.version[0] >= 4 and len(toolchain.version) == 3
    assert os.path.isabs(toolchain.path) and "-O2" in toolchain.flags
    assert toolchain.target and toolchain.cpu
    assert toolchain.kind in str(toolchain)
    assert find_toolchain(toolchain.path) == replace(toolchain, arguments=())


def test_identity_depends_on_the_processor_and_flags(toolchain: Toolchain) -> None:
    others = [
        replace(toolchain, cpu="another"),
        replace(toolchain, flags=("-O0",)),
        replace(toolchain, version=(1, 2, 3)),
    ]
    assert len({toolchain.identity, *(o.identity for o in others)}) == 4


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(ToolchainError, match=r"install gcc or clang, or pass cc=…"):
        find_toolchain()


def test_the_path_argument_is_used_or_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="does not exist"):
        find_toolchain(str(tmp_path / "nothing"))
    plain = tmp_path / "plain"
    plain.write_text("int x;")
    with pytest.raises(ToolchainError, match="is not executable"):
        find_toolchain(str(plain))
    with pytest.raises(ToolchainError, match="is a directory"):
        find_toolchain(str(tmp_path))


@pytest.mark.parametrize("text", ["exit 0\n", "exit 3\n", "echo '#define __TINYC__ 1'\n"])
def test_neither_gcc_nor_clang(tmp_path: Path, text: str) -> None:
    with pytest.raises(ToolchainError, match="neither gcc nor clang"):
        find_toolchain(str(script(tmp_path / "tcc", text)))


def test_a_program_for_another_machine(tmp_path: Path) -> None:
    broken = tmp_path / "cc"
    broken.write_bytes(b"\x7fELF\x00\x00")
    broken.chmod(0o755)
    with pytest.raises(ToolchainError, match="cannot be run"):
        find_toolchain(str(broken))


def test_the_environment_names_a_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, toolchain: Toolchain
) -> None:
    wrapper = script(tmp_path / "wrap", 'exec "$@"\n')
    monkeypatch.setenv("CC", f"{wrapper} {toolchain.path}")
    found = find_toolchain()
    assert found.command == (str(wrapper), toolchain.path)
    assert found.kind == toolchain.kind
    compile_shared(found, {"a.c": ANSWER}, (), tmp_path / "a.so")
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(ToolchainError, match=r"\$CC: no-such-compiler does not exist"):
        find_toolchain()


def test_a_compiler_below_a_folder_with_a_blank(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, toolchain: Toolchain
) -> None:
    (tmp_path / "a b").mkdir()
    wrapper = script(tmp_path / "a b" / "cc", f'exec {toolchain.path} "$@"\n')
    assert find_toolchain(str(wrapper)).command == (str(wrapper),)
    for given, command in (
        (f"{wrapper}", (str(wrapper),)),
        (f"'{wrapper}'", (str(wrapper),)),
        (f"'{wrapper}' -DX='a b'", (str(wrapper), "-DX=a b")),
        (f"{toolchain.path} -O2", (toolchain.path, "-O2")),
    ):
        monkeypatch.setenv("CC", given)
        found = find_toolchain()
        assert found.command == command
        compile_shared(found, {"a.c": ANSWER}, (), tmp_path / "a b" / "a.so")
    for given, message in (
        (f"{wrapper} -O2", "a does not exist; quote a path with blanks"),
        (f"'{wrapper}", "not valid shell syntax: No closing quotation"),
    ):
        monkeypatch.setenv("CC", given)
        with pytest.raises(ToolchainError, match=message):
            find_toolchain()
    with pytest.raises(ToolchainError, match=r"a compiler with arguments is given in \$CC"):
        find_toolchain(f"{toolchain.path} -O2")


def test_missing_features_are_noted(tmp_path: Path, toolchain: Toolchain) -> None:
    refuse = 'for a in "$@"; do case $a in -march=native|-fopenmp) exit 1;; esac; done\n'
    wrapper = script(tmp_path / "cc", refuse + f'exec {toolchain.path} "$@"\n')
    found = find_toolchain(str(wrapper))
    assert "-march=native" not in found.flags and not found.openmp
    assert len(found.notes) == 2 and "one thread" in found.notes[1]
    text = "void f(int *x);\nvoid f(int *x) {\n#pragma omp parallel\n *x = 1; }\n"
    assert compile_shared(found, {"a.c": text}, (), tmp_path / "a.so") == ""


def test_a_compiler_without_a_c_library(tmp_path: Path, toolchain: Toolchain) -> None:
    text = (
        'for a in "$@"; do case $a in -shared) echo "no stdint.h" >&2; exit 1;; esac; done\n'
        f'exec {toolchain.path} "$@"\n'
    )
    with pytest.raises(ToolchainError, match=r"development package(?s:.*)no stdint\.h"):
        find_toolchain(str(script(tmp_path / "cc", text)))


def test_the_description_is_made_once(
    monkeypatch: pytest.MonkeyPatch, toolchain: Toolchain
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("probed again")

    monkeypatch.setattr(module, "run_command", never)
    assert find_toolchain(toolchain.path).kind == toolchain.kind


def test_compile_and_load(tmp_path: Path, toolchain: Toolchain) -> None:
    out = tmp_path / "deep" / "answer.so"
    assert compile_shared(toolchain, {"answer.c": ANSWER}, (), out) == ""
    assert ctypes.CDLL(str(out)).answer() == 42
    assert [f.name for f in out.parent.iterdir()] == ["answer.so"]
    assert stat.S_IMODE(out.stat().st_mode) == 0o700


def test_units_are_compiled_apart_and_linked(tmp_path: Path, toolchain: Toolchain) -> None:
    sources = {
        f"u{n}.c": f'#include "all.h"\nint f{n}(void) {{ return {n}; }}' for n in range(1, 5)
    }
    header = "".join(f"int f{n}(void);\n" for n in range(1, 5)) + "int sum(void);\n"
    total = '#include "all.h"\nint sum(void) { return f1() + f2() + f3() + f4(); }\n'
    out = tmp_path / "sum.so"
    compile_shared(toolchain, {**sources, "all.h": header, "sum.c": total}, (), out)
    assert ctypes.CDLL(str(out)).sum() == 10


def test_warnings_are_returned(tmp_path: Path, toolchain: Toolchain) -> None:
    text = "int f(int x);\nint f(int x) { int unused; return x; }\n"
    assert "unused" in compile_shared(toolchain, {"a.c": text}, (), tmp_path / "a.so")


@pytest.mark.parametrize("units", [1, 3])
def test_a_compiler_error_keeps_the_source(
    tmp_path: Path, toolchain: Toolchain, units: int
) -> None:
    sources = {f"good{n}.c": ANSWER.replace("answer", f"g{n}") for n in range(units - 1)}
    sources["bad.c"] = "int f(void) { return undeclared; }\n"
    with pytest.raises(ToolchainError) as error:
        compile_shared(toolchain, sources, ("-DX=1",), tmp_path / "a.so")
    message = str(error.value)
    assert "failed with exit code 1" in message and "undeclared" in message and "-DX=1" in message
    kept = Path(message.rpartition("the sources were kept in ")[2])
    assert {f.name: f.read_text() for f in kept.iterdir()} == sources
    assert stat.S_IMODE(kept.stat().st_mode) == 0o700
    assert list(tmp_path.iterdir()) == []
    for path in kept.iterdir():
        path.unlink()
    kept.rmdir()


def test_a_compiler_that_hangs_is_stopped_with_its_children(
    tmp_path: Path, toolchain: Toolchain
) -> None:
    mark = tmp_path / "alive"
    slow = script(tmp_path / "cc", f"(sleep 3; touch {mark}) & wait\n")
    begin = time.monotonic()
    with pytest.raises(ToolchainError, match=r"took longer than 0\.5 s"):
        compile_shared(
            replace(toolchain, path=str(slow)), {"a.c": ANSWER}, (), tmp_path / "a.so", 0.5
        )
    assert time.monotonic() - begin < 2.5
    time.sleep(3)
    assert not mark.exists()


def test_a_compiler_that_is_killed(tmp_path: Path, toolchain: Toolchain) -> None:
    killed = script(tmp_path / "cc", "kill -9 $$\n")
    with pytest.raises(ToolchainError, match="killed by SIGKILL"):
        compile_shared(replace(toolchain, path=str(killed)), {"a.c": ANSWER}, (), tmp_path / "a.so")


@pytest.mark.parametrize("name", ["../a.c", "a b.c", "-o.c", "a.c;x", "a.s", ""])
def test_file_names_are_checked(tmp_path: Path, toolchain: Toolchain, name: str) -> None:
    with pytest.raises(ToolchainError, match="not a valid name for a C source file"):
        compile_shared(toolchain, {name: ANSWER}, (), tmp_path / "a.so")


def test_a_header_alone_is_refused(tmp_path: Path, toolchain: Toolchain) -> None:
    with pytest.raises(ToolchainError, match="no C source file"):
        compile_shared(toolchain, {"a.h": ""}, (), tmp_path / "a.so")


def test_first_lines() -> None:
    assert first_lines("a\nb\n") == "a\nb"
    assert first_lines("x\n" * 20, 2) == "x\nx\n… and 18 more lines"
