"""What is seen without solving is so, and for the loops around a contraction nothing is left."""

from __future__ import annotations

import islpy as isl
import pytest

from farkas.targets.find_target import text_target
from frontends.language.parse_program import check_text
from poly.deps.same_iteration import split_by_iteration
from poly.schedule.schedule import Schedule
from poly.tree.nodes import Member, loops_of
from tests.differential.generate import random_text
from tests.poly.texts import MATMUL, schedule


def members(s: Schedule) -> list[Member]:
    found = {m.name: m for name in s.statements for m in loops_of(s.tree, name)}
    return list(found.values())


def inside(pairs: isl.UnionMap, member: Member) -> isl.UnionMap:
    function = isl.MultiUnionPwAff.from_union_pw_aff(member.schedule)
    return pairs.eq_at_multi_union_pw_aff(function)


def check(s: Schedule) -> None:
    pairs = s.dependences.all
    for member in members(s):
        seen, others = split_by_iteration(pairs, member.schedule)
        assert seen.union(others).is_equal(pairs)
        assert inside(seen, member).is_equal(seen)


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_random_programs_as_written_and_as_scheduled(first: int) -> None:
    target = text_target()
    for seed in range(first, first + 10):
        found = check_text(random_text(seed))
        if found is not None:
            check(Schedule.of(found))
            check(target.automatic(found).schedule)


def test_tiles_of_a_contraction_need_no_solving() -> None:
    s = schedule(MATMUL, "fuse mm_init, mm: i, j\ntile mm: i, j by 4, 8\nsplit mm: k by 16")
    pairs = s.dependences.all
    for member in members(s):
        seen, others = split_by_iteration(pairs, member.schedule)
        assert (others.is_empty() and seen is pairs) == (member.name not in ("k_o", "k_i"))


def test_dimensions_of_one_value_are_equal() -> None:
    pairs = isl.UnionMap("[N] -> { S[i, 0] -> T[0, i] : 0 <= i < N }")
    for text in (
        "{ S[i, j] -> [(j)]; T[j, i] -> [(j)] }",
        "{ S[i, j] -> [(i)]; T[j, i] -> [(i)] }",
    ):
        assert split_by_iteration(pairs, isl.UnionPwAff(text))[1].is_empty()
    other = isl.UnionPwAff("{ S[i, j] -> [(i)]; T[j, i] -> [(j)] }")
    assert split_by_iteration(pairs, other)[0].is_empty()


def test_a_sum_of_equal_dimensions_is_not_one_of_them() -> None:
    loop = isl.UnionPwAff("{ S[i] -> [(i)]; T[i, j] -> [(i + j)] }")
    for pairs in ("{ S[i] -> T[i, i] }", "{ S[3] -> T[3, 3] }"):
        assert split_by_iteration(isl.UnionMap(pairs), loop)[0].is_empty()
    quotients = isl.UnionPwAff("{ S[i] -> [floor(i/4)]; T[i, j] -> [floor(i/4) + floor(j/4)] }")
    assert split_by_iteration(isl.UnionMap("{ S[i] -> T[i, i] }"), quotients)[0].is_empty()


def test_a_statement_without_a_function_is_left() -> None:
    pairs = isl.UnionMap("{ S[i] -> T[i] }")
    for text in (
        "{ S[i] -> [(i)] }",
        "{ S[i] -> [(i)] : i > 3; S[i] -> [(0)] : i <= 3; T[i] -> [(i)] }",
    ):
        assert split_by_iteration(pairs, isl.UnionPwAff(text))[0].is_empty()
