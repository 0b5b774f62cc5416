"""``farkas grad`` on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import farkas as fk
from farkas.cli.grad import grad_command

TEXT = "def f(float64 X[T]) -> (float64 s[]) { s[] = 1\nfor t in 0:T { s[] = sin(s[] * X[t]) } }"


def run(*words: str) -> str:
    done = CliRunner().invoke(grad_command, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_it_prints_the_gradient() -> None:
    assert run("-e", TEXT) == f"{fk.grad(TEXT)}\n"
    assert run("-e", TEXT, "--values") == f"{fk.value_and_grad(TEXT)}\n"
    assert run("-e", TEXT, "--forward") == f"{fk.jvp(TEXT)}\n"
    assert run("-e", TEXT, "--recompute", "s=4") == f"{fk.grad(TEXT, recompute={'s': 4})}\n"


def test_it_writes_a_file(tmp_path: Path) -> None:
    run("-e", "ij,jk->ik", "--dtype", "float32", "--wrt", "A", "-o", str(tmp_path / "g.fk"))
    assert fk.parse((tmp_path / "g.fk").read_text()).outputs[0].name == "dA"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--recompute", "s=x"], "--recompute s=x: expected NAME or NAME=STEPS"),
        (["--recompute", "s", "--forward"], "--forward keeps nothing"),
        (["--values", "--forward"], "--values and --forward do not go together"),
    ],
)
def test_mistakes(words: list[str], message: str) -> None:
    done = CliRunner().invoke(grad_command, ["-e", TEXT, *words])
    assert done.exit_code == 2
    assert message in done.output
