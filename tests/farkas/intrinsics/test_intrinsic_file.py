"""Instructions from a file: `fk.load_intrinsics`, and ``farkas intrinsic``."""

from __future__ import annotations

from pathlib import Path

import pytest

import farkas as fk
from poly.errors import ArgumentError, FarkasError, IntrinsicError, LanguageError
from poly.ir.instruction_tables import known_intrinsics
from tests.farkas.conftest import Cli

GOOD = """\
[[intrinsic]]
meaning = "def copy4(float32 x[4]) -> (float32 z[4]) { z[i] = x[i] }"
template = "for (int i = 0; i < 4; i++) {z}[i] = {x}[i];"
"""
MORE = """\
[[intrinsic]]
meaning = '''
def add4(float32 x[4], float32 z[4]) -> (z) {
    z[i] += x[i]
}'''
template = "for (int i = 0; i < 4; i++) {z}[i] += {x}[i];"
setup = "typedef int unused_here;"
headers = ["stdio.h"]
feature = ""
reorders = false
"""
BAD = GOOD.replace("{x}[i];", "{x}[0];").replace("copy4", "broken")
MISSING = GOOD.replace("copy4", "far") + 'feature = "no_such"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "mine.toml"


def test_a_file_declares_all_of_its_instructions(file: Path) -> None:
    file.write_text(GOOD + MORE + MISSING)
    made = fk.load_intrinsics(file)
    assert [i.name for i in made] == ["copy4", "add4", "far"]
    assert [i.checked for i in made] == [True, True, False]
    assert made[1].headers == ("stdio.h",) and made[1].setup
    assert {"copy4", "add4", "far"} <= {*known_intrinsics()}


def test_none_is_declared_if_one_is_refused(file: Path) -> None:
    file.write_text(GOOD + BAD)
    with pytest.raises(IntrinsicError, match="broken: it does something else"):
        fk.load_intrinsics(str(file))
    assert "copy4" not in known_intrinsics()


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("", ArgumentError, "has no table"),
        ("intrinsic = 3", ArgumentError, "no list of tables"),
        ("[instruction]", ArgumentError, "has 'instruction'; each instruction is a table"),
        ("[[intrinsic", ArgumentError, "is not valid TOML: Expected"),
        ("[[intrinsic]]\nmeaning = 'x'", ArgumentError, "template is missing"),
        (f"{GOOD}extra = 1", ArgumentError, "no key 'extra'; there are meaning, template"),
        (GOOD + GOOD, ArgumentError, "copy4 is declared twice"),
        (GOOD + GOOD.replace("x[i] }", "y[i }"), LanguageError, "expected"),
        (GOOD.replace("[4]", "[4,"), LanguageError, "expected"),
    ],
)
def test_mistakes_in_a_file(file: Path, text: str, kind: type[FarkasError], message: str) -> None:
    file.write_text(text)
    with pytest.raises(kind, match=message) as caught:
        fk.load_intrinsics(file)
    if GOOD in text or "meaning" in text:
        assert caught.value.__notes__[0].startswith(f"in {file}, intrinsic ")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FarkasError, match="cannot read"):
        fk.load_intrinsics(tmp_path / "none.toml")


def test_the_command_checks_a_file(cli: Cli, file: Path) -> None:
    file.write_text(GOOD + MORE)
    done = cli("intrinsic", "check", str(file))
    assert done.exit_code == 0
    assert done.stdout.splitlines()[0].startswith("copy4: agrees with its meaning on ")
    assert "as found before" in cli("intrinsic", "check", str(file)).stdout
    file.write_text(GOOD + BAD)
    done = cli("intrinsic", "check", str(file))
    assert done.exit_code == 1
    assert (
        "broken: refused: z[1] is 1, expected 2" in done.stdout and "with x[1] = 2" in done.stdout
    )
    file.write_text(MISSING)
    done = cli("intrinsic", "check", str(file))
    assert done.exit_code == 1 and "far: not checked, this machine has no no_such" in done.stdout
    file.write_text(GOOD + GOOD)
    done = cli("intrinsic", "check", str(file))
    assert done.exit_code == 1 and f"in {file}, intrinsic 2" in done.stderr


def test_commands_take_scripts_with_declared_instructions(cli: Cli, tmp_path: Path) -> None:
    program, script, file = (tmp_path / n for n in ("f.fk", "f.sched", "mine.toml"))
    program.write_text("def f(float32 X[8,8]) -> (Y) { S: Y[i,j] = X[i,j] }")
    script.write_text("split S: j by 4\ntensorize S: j_i as copy4\n")
    file.write_text(GOOD)
    refused = cli("check", str(program), str(script))
    assert refused.exit_code == 2 and "there is no instruction copy4" in refused.stderr
    done = cli("check", str(program), str(script), "--intrinsics", str(file))
    assert done.exit_code == 0 and "legal: 2 steps" in done.stdout
    text = cli("compile", str(program), "--using", str(script), "--intrinsics", str(file)).stdout
    assert "fk_user_copy4_" in text


def test_the_list_of_instructions(cli: Cli) -> None:
    lines = cli("intrinsic", "list").stdout.splitlines()
    assert any(x.startswith("vpdpbusd_16_b: C[j] += ") and "[avx512_vnni]" in x for x in lines)
