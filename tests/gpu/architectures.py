"""On which architectures machine code is looked at."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle
from typing import Any

import pytest

import farkas as fk
from runtime.cuda.compile import find_cuda_compiler

ARCHITECTURES = ("sm_80", "sm_90")


def on_one_each(names: Iterable[str]) -> list[Any]:
    """Parameters (name, architecture): names take turns, and the sweep has the other one, too.

    The text is the same for all architectures, and NVIDIA's compiler takes its time for each.
    """
    return [
        pytest.param(name, arch, marks=[] if arch == mine else [pytest.mark.slow])
        for name, mine in zip(names, cycle(ARCHITECTURES), strict=False)
        for arch in ARCHITECTURES
    ]


def needs_compiler(arch: str) -> None:
    """Leaves a test out where nothing compiles for an architecture."""
    try:
        find_cuda_compiler(arch)
    except fk.ToolchainError as error:
        pytest.skip(str(error))
