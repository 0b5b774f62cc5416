"""`Recipe`: what a kernel is compiled from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from farkas.kernels.source_text import Text, fix_sizes
from farkas.targets.base import Target
from farkas.targets.compile_program import Compiled, ScheduleLike, build
from poly.ir.dtypes import DType


@dataclass(frozen=True)
class Recipe:
    """Everything that determines a kernel, except its element types.

    tune : seconds to tune it for, if it was not tuned before; None: it is not tuned
    """

    source: Text
    sizes: Mapping[str, int]
    exact: bool
    schedule: ScheduleLike
    target: Target
    name: str | None
    tune: float | None = None

    def make(self, dtypes: Mapping[str, DType]) -> Compiled:
        program = fix_sizes(self.source.program(dtypes, self.name), self.sizes)
        if self.tune is not None:
            from farkas.tuning.job import job_of
            from farkas.tuning.tune_program import tune_once

            tune_once(job_of(program, self.exact, {}, self.target), self.tune)
        return build(program, self.schedule, self.exact, self.target)
