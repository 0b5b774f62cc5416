"""C functions: long bodies are cut into several, and rolled loops come last in an index."""

from __future__ import annotations

import re
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

import codegen.c.function
import codegen.c.kernel_unit
import farkas as fk
from codegen.provenance import trace
from poly.machine.cpu import host_machine

CHAIN = """def chain(float32 A[I,J], float32 B[J,K], float32 C[K,L]) -> (Y) {
    T[i,k] +=! A[i,j] * B[j,k]
    Y[i,l] +=! T[i,k] * C[k,l]
}"""


def test_a_long_body_is_cut_into_functions() -> None:
    with patch.object(codegen.c.function, "MOST_NODES", 60):
        kernel = fk.compile(CHAIN)
        rng = np.random.default_rng(0)
        for i, j, k, n in ((1, 1, 1, 1), (17, 33, 40, 9), (64, 5, 0, 70)):
            a, b, c = (rng.random(s).astype("float32") for s in ((i, j), (j, k), (k, n)))
            np.testing.assert_allclose(kernel(a, b, c), a @ b @ c, rtol=1e-4)
    parts = re.findall(r"^void (\w+_body_\d)\((.*)\)$", kernel.source, re.MULTILINE)
    assert [name[-1] for name, _ in parts] == ["1", "2"]
    # Each takes what it uses, and what only one of them changes is alone in the other.
    assert "float *restrict B" not in parts[1][1] and "const float *restrict C" in parts[1][1]
    for name, _ in parts:
        assert re.search(rf"^  {name}\(.*\);$", kernel.source, re.MULTILINE)
    traced = trace(kernel.source)
    for statement, part in (("S0", 1), ("S1", 2)):
        lines = [x for x in traced.lines if x.statements == (statement,)]
        assert lines and {x.function[-1] for x in lines} == {str(part)}
        assert (lines[0].function, statement) in traced.meanings


def test_a_long_text_is_compiled_in_several_units(tmp_path: Path) -> None:
    """They have the same functions as the whole text, and a result as right."""
    with (
        patch.object(codegen.c.function, "MOST_NODES", 60),
        patch.object(codegen.c.kernel_unit, "LINES_OF_UNIT", 40),
    ):
        source = codegen.c.kernel_unit.generate(fk.auto_schedule(fk.Schedule.of(fk.parse(CHAIN))))
        kernel = fk.compile(CHAIN, cache=tmp_path)
    assert [*source.files] == ["kernel_1.c", "kernel_2.c"]
    named = re.compile(r"^void (\w+_body_\d)\(.*\)$", re.MULTILINE)
    assert sorted(n for unit in source.units for n in named.findall(unit)) == named.findall(
        source.text
    )
    rng = np.random.default_rng(0)
    a, b, c = (rng.random(s).astype("float32") for s in ((17, 33), (33, 40), (40, 9)))
    np.testing.assert_allclose(kernel(a, b, c), a @ b @ c, rtol=1e-4)
    units = sorted(p.name for p in tmp_path.rglob("kernel_*.c"))
    assert units == ["kernel_1.c", "kernel_2.c"]


def test_a_short_body_is_one_function() -> None:
    assert "noinline" not in fk.compile(CHAIN, sizes=dict.fromkeys("IJKL", 8)).source


WIDE = pytest.mark.skipif(host_machine().vector_bytes < 64, reason="for vectors of 64 bytes")


@WIDE
def test_rolled_loops_come_last_in_an_index() -> None:
    text = """def f(float32 X[8,40,64], float32 W[8,3,3]) -> (Y) {
        Y[g,p,q] +=! X[g,p+r-1,q+s-1] * W[g,r,s]
            where g in 0:8, p in 0:40, q in 0:64, r in 0:3, s in 0:3, 0 <= p+r-1 < 40,
                  0 <= q+s-1 < 64
    }"""
    source = fk.compile(text).source
    read = re.findall(r"X\[([^\]]*\bp_i\b[^\]]*)\]", source)
    assert read and all(index.endswith("64*p_i") for index in read)
    # Rows that exist in every tile are apart from the one that does not.
    assert re.search(r"if \(0 < p_o\)\s*\{\s*Y_r\[0\]", source)


@WIDE
def test_a_packed_operand_does_not_widen_vectors() -> None:
    """Tiles of 16 and 8 columns: the accumulators of the second are vectors of 8."""
    text = """def f(float32 A[24,24,24,24], float32 B[24,24,24,24]) -> (Y) {
        Y[a,b,c,d] +=! A[a,e,b,f] * B[d,f,c,e]
    }"""
    source = fk.compile(text).source
    assert "an array, since" not in source
