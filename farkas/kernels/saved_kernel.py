"""Kernels as data, and their files: see `Kernel.save`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from codegen.c.kernel_source import KernelSource
from farkas.kernels.recipe import Recipe
from farkas.targets.base import Target
from farkas.targets.compile_program import Compiled
from farkas.targets.cpu import CpuRunner
from farkas.targets.saved_code import check_saved, save_code
from poly.ir.dtypes import DType
from poly.ir.intrinsics import VectorIntrinsic
from poly.ir.program import Program
from poly.strategy.common.tactic import Choice
from runtime.common.cache import Entry
from runtime.common.records import write_record
from runtime.cpu.loaded_kernel import LoadedKernel
from runtime.cpu.openmp_pool import with_team
from runtime.cpu.shared_library import library_key
from runtime.network.saved_models import PROGRAM_CLASSES

KIND = "kernel"


@dataclass(frozen=True, eq=False)
class SavedVariant:
    """A kernel for one combination of element types, as data.

    script : of its schedule; is_prepared : whether that is of the program that `Target.prepare`
    makes of `program`.  The others are those of `Compiled`.
    """

    program: Program
    source: KernelSource
    script: str
    is_prepared: bool
    choices: tuple[Choice, ...]
    fallbacks: tuple[tuple[str, str], ...]


@dataclass(frozen=True, eq=False)
class SavedKernel:
    """A kernel as data: what `Recipe` has, and its variants by their element types."""

    text: str
    sizes: Mapping[str, int]
    exact: bool
    schedule: str | None
    name: str | None
    dtypes: Mapping[str, DType] | None
    variants: Mapping[tuple[DType, ...], SavedVariant]


CLASSES = (
    *PROGRAM_CLASSES, VectorIntrinsic, KernelSource, Choice, SavedVariant, SavedKernel,
)  # fmt: skip


def save_kernel(
    recipe: Recipe,
    dtypes: Mapping[str, DType] | None,
    variants: Mapping[tuple[DType, ...], Compiled],
    path: str | os.PathLike[str],
) -> None:
    """Write a kernel to a file; see `Kernel.save`, also for what is raised."""
    assert recipe.schedule is None or isinstance(recipe.schedule, str)
    check_saved(recipe.target)
    entries: dict[str, Entry] = {}
    saved: dict[tuple[DType, ...], SavedVariant] = {}
    for key, made in variants.items():
        source, loaded, schedule = made.source, made.loaded, made.schedule
        assert isinstance(source, KernelSource) and isinstance(loaded, LoadedKernel)
        entries[library_of(source, recipe.target)] = loaded.entry
        is_prepared = schedule.program != made.program
        saved[key] = SavedVariant(
            made.program, source, str(schedule), is_prepared, made.choices, made.fallbacks
        )
    record = SavedKernel(
        recipe.source.text, recipe.sizes, recipe.exact, recipe.schedule, recipe.name, dtypes, saved
    )
    save_code(Path(path), KIND, recipe.target, write_record(record, CLASSES), entries, {})


def library_of(source: KernelSource, target: Target) -> str:
    """The key under which the library of a kernel is looked for."""
    runner = target.runner
    assert isinstance(runner, CpuRunner)
    return library_key(source.files, source.flags, with_team(runner.toolchain, runner.cache))
