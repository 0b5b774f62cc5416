"""Instructions compared with their meaning: right ones pass, wrong ones have a witness."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from farkas.intrinsics.declare import read_intrinsic
from farkas.intrinsics.intrinsic_file import read_file
from poly.ir.intrinsics import VectorIntrinsic
from poly.machine.cpu import cpu_flags
from runtime.common.cache import Cache
from runtime.cpu.toolchain import Toolchain, find_toolchain
from runtime.intrinsics import check as checking
from runtime.intrinsics.check import check
from tests.runtime.intrinsics.wrong import WRONG, Wrong

X86 = Path(__file__).parent / "x86.toml"
HEADERS = ("immintrin.h",)


@pytest.fixture(scope="module")
def toolchain() -> Toolchain:
    return find_toolchain()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return Cache(tmp_path_factory.mktemp("cache"))


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
    verdicts = check(found, toolchain, cache)
    for verdict in verdicts:
        present = has(verdict.intrinsic.feature)
        assert verdict.passed == present, str(verdict)
        assert bool(verdict.lacks) != present


def test_twenty_wrong_ones_are_refused(toolchain: Toolchain, cache: Cache) -> None:
    """All that compile are compiled at once, which is where the time goes."""
    here = {name: w for name, w in WRONG.items() if has(w.feature)}
    if not here:
        pytest.skip("this machine has no AVX-512")
    apart = ("does not compile", "a type that there is not")
    named = {n: replace(made(w), meaning=_named(made(w), n)) for n, w in here.items()}
    together = [n for n in here if n not in apart]
    limit = checking._SECONDS
    checking._SECONDS = 1.0
    try:
        verdicts = dict(zip(together, check([named[n] for n in together], toolchain, cache)))
    finally:
        checking._SECONDS = limit
    verdicts |= {n: check([named[n]], toolchain, cache)[0] for n in apart if n in here}
    problems = [
        f"{name}: {v.refused or 'passes'}"
        for name, v in verdicts.items()
        if here[name].expected not in v.refused
    ]
    assert not problems, "\n".join(problems)
    assert len(verdicts) > 20


def _named(i: VectorIntrinsic, name: str):  # type: ignore[no-untyped-def]
    return replace(i.meaning, name="".join(c if c.isalnum() else "_" for c in name))
