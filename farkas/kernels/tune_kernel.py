"""`tune`: search for a schedule of a text that is faster than the automatic one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from farkas.console.display import seconds
from farkas.kernels.kernel import Kernel
from farkas.kernels.recipe import Recipe
from farkas.kernels.source_text import DTypes, fix_sizes, match_dtypes, read_text
from farkas.targets.base import Target
from farkas.targets.find_target import CacheLike, CompilerLike, target_of
from farkas.tuning.job import Tell, check_budget, check_trials, job_of
from farkas.tuning.tune_program import Tuned, tune_once
from poly.errors import ArgumentError
from poly.ir.program import Program
from poly.ir.size_values import by_name, given_sizes
from poly.schedule.schedule import Schedule
from runtime.common.arguments import check_threads
from runtime.tuned.record import Winner

if TYPE_CHECKING:
    from farkas.views.page import View


@dataclass(frozen=True)
class TunedKernel:
    """A kernel whose schedule was tuned.

    kernel : compiled with the fastest schedule; found : what was measured
    """

    kernel: Kernel
    found: Tuned

    @property
    def winner(self) -> Winner:
        """The record that later compilations find."""
        return self.found.winner

    @property
    def gain(self) -> float:
        """How many times as fast as with the automatic schedule; 1.0 if that was not beaten."""
        return self.winner.gain

    @property
    def schedule(self) -> Schedule:
        """The fastest schedule."""
        return self.kernel.schedule

    @property
    def script(self) -> str:
        """Its steps, as a text that `compile` takes."""
        return str(self.schedule)

    def plot(self, path: str | os.PathLike[str]) -> Path:
        """Write the best time over trials and over seconds to a file, as PNG or SVG.

        Raises
        ------
        ArgumentError : the name ends in neither .png nor .svg, or matplotlib is missing.
        FileError : the file cannot be written.
        """
        from farkas.views.tuning import save_plot

        return save_plot({self.winner.name: self.found}, path)

    def view(self) -> View:
        """The same as a picture for Jupyter.  Raises `ArgumentError` if matplotlib is missing."""
        from farkas.views.tuning import tuning_view

        return tuning_view({self.winner.name: self.found})

    def __str__(self) -> str:
        return describe(self.found)


def describe(found: Tuned) -> str:
    """What tuning found, in two lines: what it was found among, and the outcome."""
    w, failed = found.winner, sum(bool(m.trial.failure) for m in found.history)
    if found.history or not w.when:
        done = "measured" if found.timed else "checked"
        how = (
            f"{len(found.history)} schedules were {done}, {failed} of them failed; "
            f"{found.illegal:.0%} of those drawn were refused before"
        )
    else:
        how = (
            f"recorded on {w.when} after {w.spent:.0f} s of tuning, which again=True (--again) "
            "goes on with"
        )
    if not found.timed:
        outcome = "nothing can be timed on an emulator"
    elif not w.script:
        outcome = f"nothing is faster than the automatic schedule, {seconds(w.automatic)}"
    else:
        outcome = (
            f"{seconds(w.automatic)} to {seconds(w.seconds)}, {w.gain:.2f} times as fast (half of "
            f"the rounds within {w.spread:.1%})"
        )
    return f"{w.name}: {how}\n{w.name}: {outcome}"


def tune(
    text: str,
    *,
    dtypes: DTypes | None = None,
    sizes: Mapping[str, int] | None = None,
    at: Mapping[str, int] | None = None,
    budget: float = 60.0,
    trials: int | None = None,
    threads: int | None = None,
    exact: bool = False,
    again: bool = False,
    seed: int = 0,
    target: str | Target = "cpu",
    cc: CompilerLike = None,
    cache: CacheLike = None,
    name: str | None = None,
    progress: Tell | None = None,
    executor: Executor | None = None,
) -> TunedKernel:
    """Search for a schedule of a comprehension that is faster than the automatic one.

    >>> sizes = {"I": 211, "J": 17, "K": 19, "L": 23}
    >>> tuned = fk.tune("ij,ik,il->jkl", dtypes="float32", sizes=sizes)
    >>> print(tuned.gain, tuned.script)

    Every schedule that is tried is checked against the dependences, as any other is, measured
    beside the automatic one, and its results are compared.  The fastest is recorded if it is not so
    by chance; `compile` finds it from then on.  What was tuned once is not tuned again.

    Parameters
    ----------
    text, dtypes, sizes, threads, exact, target, cc, cache, name : see `compile`; on an emulator of
        a GPU, schedules are checked, but not timed
    at : values of sizes that are not fixed, with which the kernel is measured; it still serves all
    budget : seconds
    trials : schedules that are measured at most
    again : whether to go on with what was tuned before
    seed : of what is drawn; the same seed and the same records give the same answer
    progress : called with `farkas.tuning.job.Progress`
    executor : of `concurrent.futures`, whose workers measure, if they are machines like this one

    Raises
    ------
    LanguageError, ArgumentError, ToolchainError, CacheError : as for `compile`.
    TuningError : a budget or a number of trials that makes no sense.
    """
    budget, trials = check_budget(budget), check_trials(trials)
    threads = None if threads is None else check_threads(threads)
    source, where = read_text(text), target_of(cc, cache, threads, target)
    recipe = Recipe(source, given_sizes(sizes), bool(exact), None, where, name)
    types = match_dtypes(source, dtypes)
    program = fix_sizes(source.program(types, name), recipe.sizes)
    job = job_of(program, recipe.exact, _measured_sizes(program, at), where)
    tell = progress or (lambda _: None)
    found = tune_once(job, budget, seed, trials, tell, again, executor)
    return TunedKernel(Kernel(recipe, types), found)


def _measured_sizes(program: Program, at: Mapping[str, int] | None) -> dict[str, int]:
    """The values of sizes that are not fixed.  Raises `ArgumentError` if one is missing."""
    found = dict(by_name("at", at))
    missing = [n for n in program.sizes if n not in found and n not in program.products]
    if missing:
        raise ArgumentError(
            f"no values for {', '.join(missing)}: pass sizes={{…}} to fix them in the kernel, or "
            "at={…} to measure a kernel that serves all sizes"
        )
    return found
