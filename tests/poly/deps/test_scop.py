"""Scops: domains, access relations, roles and the printed form."""

from __future__ import annotations

from dataclasses import replace

import islpy as isl
import pytest
from hypothesis import given, settings

from poly.deps.scop import build_scop
from poly.errors import ProgramError
from poly.ir.program import Program
from poly.sets.to_isl import least_point
from runtime.reference.interpret import instances
from tests.poly.oracle import pairs_of, touches
from tests.poly.random_programs import programs
from tests.poly.texts import MATMUL, program


def test_a_scop_prints() -> None:
    sizes = "[N, K, M] ->"
    some = "N >= 0 and K >= 0 and M >= 0 and 0 <= i < N and 0 <= j < M"
    every = f"{some} and 0 <= k < K"
    assert str(build_scop(program(MATMUL))).splitlines() == [
        f"context {sizes} {{  : N >= 0 and K >= 0 and M >= 0 }}",
        "mm_init: init",
        f"  domain {sizes} {{ mm_init[i, j] : {some} }}",
        f"  write  {sizes} {{ mm_init[i, j] -> C[i, j] : {some} }}",
        "mm: update reduction",
        f"  domain {sizes} {{ mm[i, j, k] : {every} }}",
        f"  write  {sizes} {{ mm[i, j, k] -> C[i, j] : {every} }}",
        f"  read   {sizes} {{ mm[i, j, k] -> C[i, j] : {every} }}",
        f"  read   {sizes} {{ mm[i, j, k] -> A[i, k] : {every} }}",
        f"  read   {sizes} {{ mm[i, j, k] -> B[k, j] : {every} }}",
    ]


def test_quasi_affine_accesses_and_guards() -> None:
    scop = build_scop(
        program(
            "def f(float32 X[N], float32 Y[N]) -> (Y) {"
            " w: Y[i//2] = X[i] where i%3 != 1, i in 0:N }"
        )
    )
    (s,) = scop.statements
    assert (s.role, s.is_reduction, s.loops) == ("assign", False, ("i",))
    written = {a[1][0]: b[1][0] for a, b in pairs_of(scop.writes, {"N": 8})}
    assert written == {0: 0, 2: 1, 3: 1, 5: 2, 6: 3}


def test_a_read_at_a_place_that_is_data_may_read_everything() -> None:
    scop = build_scop(program("def f(float32 X[N,3], int64 I[M]) -> (Y) { g: Y[i] = X[I[i],2] }"))
    s = scop.statement("g")
    assert len(s.reads) == len(s.may_reads) == 1 and s.all_reads == (*s.reads, *s.may_reads)
    assert {b for _, b in pairs_of(scop.reads, {"N": 2, "M": 1}) if b[0] == "X"} == {
        ("X", (n, k)) for n in range(2) for k in range(3)
    }


def test_an_update_reads_what_it_updates() -> None:
    scop = build_scop(program("def f(float32 s[], float32 x[N]) -> (s) { a: s[] *= x[i] }"))
    assert [
        str(r).split("->")[-1].split(":")[0].strip(" }") for r in scop.statement("a").reads
    ] == [
        "s[]",
        "x[i]",
    ]


def test_names_may_not_meet() -> None:
    p = program("s: Y[i] +=! X[i]; t: Z[i] = X[i]")
    p = replace(p, statements=(p.statements[0], replace(p.statements[1], name="s_init")))
    with pytest.raises(ProgramError, match="two statements share a name: s_init, s, s_init"):
        build_scop(p)


@given(programs())
@settings(max_examples=60)
def test_domains_and_accesses_are_those_of_the_interpreter(p: Program) -> None:
    scop = build_scop(p)
    for size in (0, 1, 3):
        sizes = {"N": size}
        touched = touches(p, sizes)
        reads = {((t.instance.statement, t.instance.point), e) for t in touched for e in t.reads}
        writes = {((t.instance.statement, t.instance.point), e) for t in touched for e in t.writes}
        assert set(pairs_of(scop.reads, sizes)) == reads
        assert set(pairs_of(scop.writes, sizes)) == writes
        assert {a for a, _ in writes} == {(i.statement, i.point) for i in instances(p, sizes)}


def test_the_least_point() -> None:
    assert least_point(isl.Set("{ [i, j, k] : 3 <= i <= 5 and j = 2i and -k <= i }")) == [3, 6, -3]
    assert least_point(isl.Set("{ [] }")) == []
    union = (
        "{ [N, M, i, j] : i < N and 0 < j <= i and (j < M - N - i or M >= 0 and j >= 2M - N - i) }"
    )
    assert least_point(isl.Set(union)) == [2, 0, 1, 1]
