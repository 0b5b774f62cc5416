"""Blocks of rows through two contractions: which programs get them, and that they are right."""

from __future__ import annotations

import numpy as np
import pytest

import farkas as fk
from codegen.pipeline import CPU
from farkas.kernels.source_text import fix_sizes
from poly.ir.program import Program
from poly.ir.row_chains import row_chain
from poly.machine.cpu import Machine, host_machine
from poly.strategy.common.apply_tactics import apply_tactics
from poly.strategy.cpu.auto_schedule import CPU_STRATEGY
from runtime.reference.evaluate import run

HEAD = "def f(float32 Q[B,I,D], float32 K[B,J,D], float32 V[B,J,E], float32 W[I,J], float32 k[J])"
SCORES = "S[b,i,j] +=! Q[b,i,d] * K[b,j,d]"
ROWS = "M[b,i] max=! S[b,i,j]; P[b,i,j] = exp(S[b,i,j] - M[b,i]); Z[b,i] +=! P[b,i,j]"
SUMS = "O[b,i,e] +=! P[b,i,j] * V[b,j,e]; Y[b,i,e] = O[b,i,e] / Z[b,i]"
#: Attention, with what may stand between its contractions.
TEXTS = {
    "plain": f"{HEAD} -> (Y) {{ {SCORES}; {ROWS}; {SUMS} }}",
    "scaled and masked": f"{HEAD} -> (Y) {{ R[b,i,j] +=! Q[b,i,d] * K[b,j,d]; "
    f"S[b,i,j] = R[b,i,j] * 0.125 + W[i,j] + k[j]; {ROWS}; {SUMS} }}",
    "chosen": f"{HEAD} -> (Y) {{ R[b,i,j] +=! Q[b,i,d] * K[b,j,d]; "
    f"S[b,i,j] = select(W[i,j] > 0, R[b,i,j], -1e9); {ROWS}; {SUMS} }}",
    "causal": f"{HEAD} -> (Y) {{ R[b,i,j] +=! Q[b,i,d] * K[b,j,d]; "
    f"S[b,i,j] = select(j <= i + 3 and k[j] > -1, R[b,i,j], -1e9) + W[i,j]; {ROWS}; {SUMS} }}",
    "far columns count less": f"{HEAD} -> (Y) {{ R[b,i,j] +=! Q[b,i,d] * K[b,j,d]; "
    f"S[b,i,j] = R[b,i,j] + W[i,j] - float32(j) * k[max(j - 1, 0)]; {ROWS}; {SUMS} }}",
    "divided before": f"{HEAD} -> (Y) {{ {SCORES}; {ROWS}; "
    "N[b,i,j] = P[b,i,j] / Z[b,i]; Y[b,i,e] +=! N[b,i,j] * V[b,j,e] }",
    "turned": f"{HEAD} -> (Y) {{ {SCORES}; {ROWS}; O[b,i,e] +=! P[b,i,j] * V[b,j,e]; "
    "Y[i,b,e] = O[b,i,e] / Z[b,i] }",
    "grouped": "def f(float32 Q[B,2,I,D], float32 K[B,J,D], float32 V[B,J,E]) -> (Y) { "
    "S[b,g,i,j] +=! Q[b,g,i,d] * K[b,j,d]; M[b,g,i] max=! S[b,g,i,j]; "
    "P[b,g,i,j] = exp(S[b,g,i,j] - M[b,g,i]); Z[b,g,i] +=! P[b,g,i,j]; "
    "O[b,g,i,e] +=! P[b,g,i,j] * V[b,j,e]; Y[b,g,i,e] = O[b,g,i,e] / Z[b,g,i] }",
}
SIZES = {"B": 2, "I": 70, "J": 133, "D": 20, "E": 24}


def fixed(text: str, **sizes: int) -> Program:
    program = fk.parse(text)
    return fix_sizes(program, {n: {**SIZES, **sizes}[n] for n in program.sizes})


def agrees(kernel: fk.Kernel, program: Program) -> None:
    """A kernel gives what the reference does."""
    draw = np.random.default_rng(0)
    inputs = {
        t.name: draw.standard_normal([e.value for e in t.shape]).astype(np.float32)
        for t in program.inputs
    }
    expected = run(program, inputs, {}).values["Y"]
    np.testing.assert_allclose(kernel(**inputs), expected, 1e-4, 1e-5)


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("exact", [False, True])
def test_attention(name: str, exact: bool) -> None:
    made = CPU.automatic(fixed(TEXTS[name]), host_machine(), exact)
    assert made.choices[0].tactic == "row blocks"
    assert len(made.choices) == 1 + (name == "turned")
    sizes = {n: SIZES[n] for n in fk.parse(TEXTS[name]).sizes}
    kernel = fk.compile(TEXTS[name], sizes=sizes, exact=exact)
    agrees(kernel, fixed(TEXTS[name]))


@pytest.mark.parametrize("sizes", [
    {"I": 32, "J": 128}, {"I": 33, "J": 129, "E": 1}, {"I": 64, "J": 256, "D": 1, "B": 1},
    {"I": 100, "J": 200, "E": 65}, {"I": 32, "J": 2100},
])  # fmt: skip
def test_all_extents(sizes: dict[str, int]) -> None:
    """Whole blocks and parts of them, and rows that fill the caches."""
    program = fixed(TEXTS["plain"], **sizes)
    assert not isinstance(row_chain(program), str)
    kernel = fk.compile(TEXTS["plain"], sizes={**SIZES, **sizes})
    agrees(kernel, program)


@pytest.mark.parametrize("machine", [
    Machine(16, 16, 32 << 10, 1 << 20, 8 << 20, 2), Machine(32, 16, 32 << 10, 1 << 20, 8 << 20, 4),
    Machine(64, 32, 48 << 10, 2 << 20, 32 << 20, 2),
], ids=["sse", "avx2", "avx512"])  # fmt: skip
@pytest.mark.parametrize("length", [133, 1 << 14])
def test_other_machines(machine: Machine, length: int) -> None:
    start = fk.Schedule.of(fixed(TEXTS["plain"], J=length))
    found = apply_tactics(start, machine, CPU_STRATEGY)
    assert [c.tactic for c in found.choices] == ["row blocks"]


@pytest.mark.parametrize(("text", "sizes", "reason"), [
    (f"{HEAD} -> (S) {{ {SCORES} }}", {}, "there are not two contractions"),
    (TEXTS["plain"], {"J": 100}, "there are 70 rows of 100 elements"),
    (TEXTS["plain"], {"I": 31}, "there are 31 rows of 133"),
    (TEXTS["plain"], {"J": 20000}, "there are 70 rows of 20000"),
    (TEXTS["plain"].replace("float32", "float64"), {}, "its values are not float32"),
    (f"{HEAD} -> (Y, S) {{ {SCORES}; {ROWS}; {SUMS} }}", {}, "its rows are used elsewhere"),
    (f"{HEAD} -> (Y) {{ {SCORES}; P[b,i,j] = max(S[b,i,j], 0); Y[b,i,e] +=! P[b,i,j] * V[b,j,e] }}",
     {}, "nothing is computed of whole rows"),
    (f"{HEAD} -> (Y) {{ R[b,i,j] +=! Q[b,i,d] * K[b,j,d]; "
     f"S[b,i,j] = R[b,i,j] + float32(j - i) * k[j]; {ROWS}; {SUMS} }}", {}, "cannot run in lanes"),
    (f"{HEAD} -> (Y) {{ R[b,i,j] +=! Q[b,i,d] * K[b,j,d]; "
     f"S[b,i,j] = R[b,i,j] + k[int64(W[i,j])]; {ROWS}; {SUMS} }}", {}, "cannot run in lanes"),
    (f"{HEAD} -> (Y) {{ {SCORES}; M[b,i] max=! S[b,i,j] where j <= i; "
     f"P[b,i,j] = exp(S[b,i,j] - M[b,i]); Y[b,i,e] +=! P[b,i,j] * V[b,j,e] }}", {},
     "has loops of its own"),
])  # fmt: skip
def test_what_is_no_chain(text: str, sizes: dict[str, int], reason: str) -> None:
    program = fixed(text, **sizes)
    found = row_chain(program)
    assert isinstance(found, str)
    assert reason in found
    made = apply_tactics(fk.Schedule.of(program), host_machine(), CPU_STRATEGY)
    assert all(c.tactic != "row blocks" for c in made.choices)


@pytest.mark.parametrize("name", TEXTS)
def test_open_sizes(name: str) -> None:
    """How many rows there are need not be known, and rows of unknown length are in parts."""
    known = {"D": 20, "E": 24}
    program = fk.parse(TEXTS[name], sizes=known)
    assert row_chain(program) == "the length of the rows is unknown"
    assert not isinstance(row_chain(fk.parse(TEXTS[name], sizes={"J": 133})), str)
    made = CPU.automatic(CPU.prepare(program, host_machine()), host_machine())
    assert made.choices[0].tactic == "row blocks"
    exact = CPU.automatic(program, host_machine(), exact=True)
    assert all(c.tactic != "row blocks" for c in exact.choices)
