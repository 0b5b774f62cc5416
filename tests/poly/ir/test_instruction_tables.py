"""The instructions of the tables do what they mean, in every form that they have."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from poly.errors import ProgramError
from poly.ir.expr import Const, Index
from poly.ir.instruction_tables import (
    MATRIX_INTRINSICS,
    VECTOR_INTRINSICS,
    declared_intrinsics,
    dot_products,
    is_ours,
    known_intrinsics,
)
from poly.ir.intrinsics import VectorIntrinsic, wrong_meaning
from runtime.common.cache import Cache
from runtime.cpu.toolchain import Toolchain, find_toolchain
from runtime.intrinsics.check import check

OURS = [*VECTOR_INTRINSICS.values()]


def without_extensions(toolchain: Toolchain) -> Toolchain:
    """The compiler for a processor that has none of the instructions."""
    kept = [f for f in toolchain.flags if not f.startswith(("-march", "-mtune", "-mprefer"))]
    return replace(toolchain, flags=tuple(kept))


@pytest.mark.parametrize("extensions", [True, False], ids=["instructions", "fallbacks"])
@pytest.mark.parametrize("cc", ["gcc", "clang"])
def test_ours_agree_with_their_meaning(cc: str, extensions: bool, cache: Cache) -> None:
    """As users' have to, on this machine; where it lacks an instruction, its other form."""
    if shutil.which(cc) is None:
        pytest.skip(f"there is no {cc}")
    toolchain = find_toolchain(cc)
    if not extensions:
        toolchain = without_extensions(toolchain)
    # All have a form that every machine runs.
    found = check([replace(i, feature="") for i in OURS], toolchain, cache)
    assert not [str(v) for v in found if not v.passed]


def test_names_are_those_of_the_tables() -> None:
    assert {*known_intrinsics()} == {*MATRIX_INTRINSICS, *VECTOR_INTRINSICS}
    assert all(map(is_ours, known_intrinsics())) and not is_ours("mine")
    assert declared_intrinsics() == ()
    assert all(i.checked and not i.by_user for i in OURS)


def test_dot_products_of_a_machine() -> None:
    assert [*dot_products(())] == []
    names = {i.name for i in dot_products(("avx512_vnni",))}
    assert "vpdpbusd_16_b" in names and "vdpbf16ps_16_b" not in names
    assert "vpdpbusd_16_turned" not in names  # needs avx512vbmi, too
    assert "vpdpbusd_16_turned" in {i.name for i in dot_products(("avx512_vnni", "avx512vbmi"))}


def test_what_is_no_meaning() -> None:
    """`poly.buffers` matches accesses by how they move; these would match too much."""
    good = VECTOR_INTRINSICS["vpdpbusd_16_b"]
    meaning = good.meaning
    (s,) = meaning.statements
    guarded = replace(s, guards=(Const(True),))
    later = replace(s, ranges=(replace(s.ranges[0], lo=Const(1)), *s.ranges[1:]))
    reset = replace(s, init=True)
    still = replace(s, target=replace(s.target, indices=(Const(0),)))
    valued = replace(s, value=Index("j"))
    for wrong in (guarded, later, reset, still, valued):
        program = replace(meaning, statements=(wrong,))
        assert wrong_meaning(program)
        with pytest.raises(ProgramError, match="vpdpbusd_16_b: "):
            VectorIntrinsic(program, good.template)
    assert not wrong_meaning(meaning)
    assert wrong_meaning(replace(meaning, statements=(s, s)))
