"""Random recurrences of several states: compiled code equals the reference."""

from __future__ import annotations

from frontends.language.parse_program import parse_program
from poly.ir.expr import indices_of
from poly.ir.program import Statement
from runtime.cpu.toolchain import Toolchain
from tests.differential.blocks import block_text
from tests.differential.harness import Tally, run_batch
from tests.differential.sweep import describe_failures, program_case


def test_recurrences(toolchain: Toolchain) -> None:
    tally = Tally()
    texts = [(seed, block_text(seed)) for seed in range(40)]
    programs = [parse_program(text) for _, text in texts]
    assert all(p.has_blocks for p in programs)
    assert sum(any(map(_overwrites, p.statements)) for p in programs) > 10
    cases = [program_case(seed, tally, text) for seed, text in texts]
    run_batch([c for c in cases if c is not None], toolchain, tally)
    assert tally.counts["programs accepted"] == len(texts)
    assert not tally.failures, describe_failures(tally, toolchain)


def _overwrites(s: Statement) -> bool:
    """Whether each step writes the same elements."""
    return s.step not in {i for e in s.target.indices for i in indices_of(e)} if s.block else False
