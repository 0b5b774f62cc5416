"""Kernels from files that `farkas.kernels.saved_kernel` wrote."""

from __future__ import annotations

from functools import partial

from farkas.kernels.kernel import Kernel
from farkas.kernels.recipe import Recipe
from farkas.kernels.saved_kernel import CLASSES, SavedKernel, SavedVariant, library_of
from farkas.kernels.source_text import read_text
from farkas.targets.base import Target
from farkas.targets.compile_program import Compiled
from farkas.targets.saved_code import SavedCode
from poly.ir.instruction_tables import declare_again
from poly.schedule.schedule import Schedule
from runtime.common.archive import damaged
from runtime.common.records import read_record
from runtime.cpu import loaded_kernel
from runtime.cpu.shared_library import LIBRARY


def load_kernel(code: SavedCode) -> Kernel:
    """The kernel in a file.

    Raises
    ------
    SavedFileError : something is missing or damaged.
    ToolchainError : a library cannot be loaded.
    """
    try:
        record = read_record(code.record, CLASSES)
        if not isinstance(record, SavedKernel):
            raise ValueError("not a kernel")
        recipe = Recipe(
            read_text(record.text), record.sizes, record.exact, record.schedule, code.target,
            record.name,
        )  # fmt: skip
        variants = {key: _loaded(v, code, recipe) for key, v in record.variants.items()}
        return Kernel.made(recipe, record.dtypes, variants)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise damaged(code.archive.path, str(error)) from error


def _loaded(saved: SavedVariant, code: SavedCode, recipe: Recipe) -> Compiled:
    runner = code.runner
    entry = runner.cache.get(library_of(saved.source, code.target))
    if entry is None or LIBRARY not in entry.files:
        raise ValueError(f"there is no library of {saved.program.name}")
    loaded = loaded_kernel.load_kernel(saved.source, runner.toolchain, runner.cache, runner.threads)
    order = partial(_schedule, saved, recipe.exact, code.target)
    return Compiled(
        saved.program, order, saved.source, loaded, code.target, saved.choices, saved.fallbacks
    )


def _schedule(saved: SavedVariant, exact: bool, target: Target) -> Schedule:
    """The schedule of a kernel, from its script.

    Raises
    ------
    IntrinsicError : another instruction of the user's has the name of one that it runs.
    """
    for intrinsic in saved.source.instructions:
        declare_again(intrinsic)
    program = target.prepare(saved.program, exact) if saved.is_prepared else saved.program
    return Schedule.of(program, exact).replay(saved.script)
