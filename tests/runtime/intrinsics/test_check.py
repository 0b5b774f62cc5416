"""Instructions compared with their meaning: right ones pass, wrong ones have a witness."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from farkas.intrinsics.declare import read_intrinsic
from farkas.intrinsics.intrinsic_file import read_file
from poly.errors import IntrinsicError
from poly.ir.dtypes import DTYPES
from poly.ir.intrinsics import VectorIntrinsic
from poly.ir.program import Program
from poly.machine.cpu import cpu_flags
from runtime.common.cache import Cache
from runtime.cpu.toolchain import Toolchain
from runtime.intrinsics import check as checking
from runtime.intrinsics.cases import cases_for, extremes
from runtime.intrinsics.check import Verdict, check, require
from tests.runtime.intrinsics.wrong import ADD, WRONG, Wrong

X86 = Path(__file__).parent / "x86.toml"
HEADERS = ("immintrin.h",)
PLAIN = "for (int i = 0; i < 16; i++) {z}[i] = {x}[i] + {y}[i];"


def made(wrong: Wrong) -> VectorIntrinsic:
    return read_intrinsic(
        wrong.meaning, wrong.template, wrong.setup, wrong.feature, HEADERS, wrong.reorders
    )


def has(feature: str) -> bool:
    return {*feature.split()} <= cpu_flags()


def test_x86_instructions_pass(toolchain: Toolchain, cache: Cache) -> None:
    """More than twenty, after the names in Exo's list, in one go."""
    found = read_file(X86)
    assert len(found) > 20
    for verdict in check(found, toolchain, cache):
        present = has(verdict.intrinsic.feature)
        assert verdict.passed == present, str(verdict)
        assert bool(verdict.lacks) != present


def test_thirty_wrong_ones_are_refused(
    toolchain: Toolchain, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that compile are compiled at once, which is where the time goes."""
    monkeypatch.setattr(checking, "_SECONDS", 1.0)
    here = {name: w for name, w in WRONG.items() if has(w.feature)}
    if not here:
        pytest.skip("this machine has no AVX-512")
    named = {n: replace(made(w), meaning=renamed(made(w).meaning, n)) for n, w in here.items()}
    apart = [n for n, w in here.items() if w.expected == "does not compile"]
    together = [n for n in here if n not in apart]
    found = dict(zip(together, check([named[n] for n in together], toolchain, cache), strict=True))
    found |= {n: check([named[n]], toolchain, cache)[0] for n in apart}
    problems = [
        f"{name}: {v.refused or 'passes'}"
        for name, v in found.items()
        if here[name].expected not in v.refused
    ]
    assert not problems, "\n".join(problems)
    assert len(found) >= 30


def renamed(program: Program, name: str) -> Program:
    return replace(program, name="".join(c if c.isalnum() else "_" for c in name))


def one(i: VectorIntrinsic, toolchain: Toolchain, cache: Cache) -> Verdict:
    (verdict,) = check([i], toolchain, cache)
    return verdict


def test_what_agrees_is_remembered(toolchain: Toolchain, tmp_path: Path) -> None:
    """For this text, compiler and processor; what is refused is tried again."""
    cache = Cache(tmp_path / "cache")
    i = read_intrinsic(ADD, PLAIN)
    assert not one(i, toolchain, cache).known
    again = one(i, toolchain, Cache(tmp_path / "cache"))
    assert again.passed and again.known and "as found before" in str(again)
    others = (replace(i, template=f"{PLAIN} "), replace(i, setup="/**/"), replace(i, reorders=True))
    assert not any(checking._recall(other, toolchain, cache) for other in others)
    for changed in (
        replace(toolchain, flags=(*toolchain.flags, "-O1")),
        replace(toolchain, cpu="another"),
        replace(toolchain, version=(99,)),
    ):
        assert checking._recall(i, changed, cache) is None
    bad = read_intrinsic(ADD, PLAIN.replace("+ {y}[i]", "- {y}[i]"))
    assert not one(bad, toolchain, cache).passed
    assert not one(bad, toolchain, cache).known


def test_a_feature_that_is_missing(toolchain: Toolchain, cache: Cache) -> None:
    verdict = one(read_intrinsic(ADD, PLAIN, feature="fpu no_such"), toolchain, cache)
    assert not verdict.passed and not verdict.refused and verdict.lacks == ("no_such",)
    assert str(verdict) == "add: not checked, this machine has no no_such"
    with pytest.raises(IntrinsicError, match="this machine has no no_such"):
        require([verdict.intrinsic], toolchain, cache)


def test_a_compiler_without_sanitizers(toolchain: Toolchain, tmp_path: Path) -> None:
    """It is compared all the same, and the verdict says so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checking, "SANITIZERS", ("-fsanitize=no-such-sanitizer",))
        verdict = one(read_intrinsic(ADD, PLAIN), toolchain, Cache(tmp_path / "cache"))
    assert verdict.passed and "without sanitizers" in str(verdict)


def test_one_that_does_not_compile_does_not_spoil_others(
    toolchain: Toolchain, tmp_path: Path
) -> None:
    good = read_intrinsic(ADD, PLAIN)
    bad = read_intrinsic(ADD.replace("add", "bad"), "no_such({x}, {y}, {z});")
    found = check([bad, good], toolchain, Cache(tmp_path / "cache"))
    assert [v.passed for v in found] == [False, True]
    assert "no_such" in found[0].refused


def test_instructions_of_every_type(toolchain: Toolchain, cache: Cache) -> None:
    """Copies, and cases that have the extremes of the type."""
    copies = [
        read_intrinsic(
            f"def copy_{name}({name} x[3]) -> ({name} z[3]) {{ z[i] = x[i] }}",
            "for (int i = 0; i < 3; i++) {z}[i] = {x}[i];",
        )
        for name in DTYPES
    ]
    assert all(v.passed for v in check(copies, toolchain, cache))
    for d, i in zip(DTYPES.values(), copies, strict=True):
        whole = np.dtype(f"uint{max(d.bits, 8)}")
        tried = {*cases_for(i)["x"].view(whole).reshape(-1).tolist()}
        assert {*extremes(d).view(whole).tolist()} <= tried


def test_large_operands_have_fewer_cases() -> None:
    meaning = "def big(float64 x[64,64]) -> (float64 z[64,64]) { z[i,j] = x[i,j] }"
    cases = cases_for(read_intrinsic(meaning, "{z}[0] = {x}[0];"))
    assert sum(a.nbytes for a in cases.values()) < 16 << 20
    assert len(cases["x"]) >= 64
