"""Small kernels of a network share a file, whichever of them is ready first."""

from __future__ import annotations

import re
from itertools import permutations

import pytest

from codegen.c.function import CFunction, emit_function
from codegen.pipeline import CPU
from frontends.language.parse_program import parse_program
from poly.machine.cpu import host_machine
from runtime.network import kernel_units
from runtime.network.kernel_units import KernelUnits

TEXTS = (
    "Y[i] = X[i] + {}",
    "Y[i] = exp(X[i]) + {}",
    "Y[i] +=! exp(X[i]) * A[i,j] + {}",
    "Y[i] = max(X[i], {})",
)


class Files:
    """Stands for a compilation."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def add(self, name: str, text: str) -> None:
        assert name not in self.texts
        self.texts[name] = text


@pytest.fixture(scope="module")
def kernels() -> list[CFunction]:
    machine = host_machine()
    inputs = "float32 X[N], float32 A[N,M]"
    programs = [
        parse_program(f"def f{n}({inputs}) -> (Y) {{ {text.format(n)} }}")
        for n, text in enumerate(TEXTS)
    ]
    return [
        emit_function(CPU.automatic(p, machine, False).schedule, f"fk_k{n}", CPU.loop_passes)
        for n, p in enumerate(programs)
    ]


def files(kernels: list[CFunction], order: tuple[int, ...]) -> dict[str, str]:
    made = Files()
    units = KernelUnits(made)  # type: ignore[arg-type]
    for number in order:
        units.add(number, kernels[number], [f"node {number}"])
    units.finish()
    return made.texts


def test_files_do_not_depend_on_the_order(kernels: list[CFunction]) -> None:
    found = [files(kernels, order) for order in permutations(range(len(kernels)))]
    assert all(f == found[0] for f in found) and [*found[0]] == ["kernels_0_to_3.c"]
    text = found[0]["kernels_0_to_3.c"]
    helpers = re.findall(r"static inline \w+ (fk_\w+)\(", text)
    assert helpers and len(helpers) == len({*helpers})
    starts = [text.index(f"Node: node {n}") for n in range(4)]
    ends = [text.index(f"\nvoid fk_k{n}(") for n in range(4)]
    assert sorted((*starts, *ends)) == [x for pair in zip(starts, ends, strict=True) for x in pair]


def test_a_file_ends_with_enough_lines(
    kernels: list[CFunction], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [k.text.count("\n") for k in kernels]
    for least in (1, min(lines) + 1, sum(lines)):
        monkeypatch.setattr(kernel_units, "LINES_OF_UNIT", least)
        found = [
            [lines[int(n)] for n in re.findall(r"Node: node (\d)", text)]
            for text in files(kernels, (1, 0, 3, 2)).values()
        ]
        assert [n for unit in found for n in unit] == lines
        assert all(sum(unit) >= least for unit in found[:-1])
        assert all(sum(unit[:-1]) < least for unit in found)
