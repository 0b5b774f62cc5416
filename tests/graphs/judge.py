"""What becomes of a graph: equal to ONNX Runtime in every trial, refused, or a finding."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

import farkas as fk
from tests.graphs.generate import Case
from tests.mutation.disputed import reason_of
from tests.mutation.judge import differs
from tests.mutation.mutants import Mutant
from tests.mutation.workers import (
    Answer,
    Arrays,
    Worker,
    error_text,
    run_perturbed,
    run_reference,
)

#: Defects; a refusal is listed, but is not one.
BAD = ("wrong", "error", "crash", "hang")


@dataclass(frozen=True)
class Outcome:
    """How a graph ended.

    kind : ``equal``, ``refused``, ``unstable`` (as far from ONNX Runtime as that is from itself
    when inputs move by a rounding error), ``disputed`` (see `tests.mutation.disputed`),
    ``unjudged`` (ONNX Runtime does not run it), or one of `BAD`
    """

    case: Case
    kind: str
    reason: str = ""

    def __str__(self) -> str:
        operators = " ".join(self.case.operators)
        return f"{self.kind}: seed {self.case.seed}: {operators}\n    {self.reason}"


@dataclass(frozen=True)
class Run:
    """One run of a model: on which inputs, in which way, and how it ended."""

    trial: int
    way: str
    answer: Answer


def run_trials(data: bytes, trials: tuple[Arrays, ...], fixed: bool, threads: int = 1) -> list[Run]:
    """Run a model on the inputs of each trial, as far as that goes, and again from the cache.

    fixed : compile it for the sizes of the last trial, too
    """
    runs: list[Run] = []
    numbered = list(enumerate(trials))
    ways = [("first", {}, numbered), ("again", {}, numbered[::-1])]
    if fixed:
        ways.append(("fixed", {n: a.shape for n, a in trials[-1].items()}, numbered[-1:]))
    for way, shapes, chosen in ways:
        trial = chosen[0][0]
        try:
            with np.errstate(all="ignore"):
                model = fk.compile_onnx(data, threads=threads, shapes=shapes)
                for trial, inputs in chosen:
                    found = dict(model.run(dict(inputs)))
                    runs.append(Run(trial, way, Answer("ran", "", found)))
        except fk.FarkasError as error:
            what = f"{type(error).__name__}: {error}"
            honest = isinstance(error, fk.ModelError) and "defect of" not in what
            how = Answer("refused", what) if honest else Answer("error", error_text(error))
            return [*runs, Run(trial, way, how)]
        except BaseException as error:
            return [*runs, Run(trial, way, Answer("error", error_text(error)))]
    return runs


class Judge:
    """Tries graphs in processes of its own."""

    def __init__(self, cache: Path, limit: float = 60.0) -> None:
        self._farkas = Worker(run_trials, cache, limit)
        self._reference = Worker(run_reference, cache, limit)
        self._perturbed = Worker(run_perturbed, cache, limit)

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in (self._farkas, self._reference, self._perturbed):
            worker.stop()

    def __call__(self, case: Case) -> Outcome:
        """What becomes of a graph."""
        expected = [self._reference(case.data, inputs) for inputs in case.trials]
        found = self._farkas(case.data, case.trials, case.seed % 3 == 0, 1 + case.seed % 2)
        if isinstance(found, Answer):
            return Outcome(case, found.how, found.what)
        for answer in expected:
            if answer.how != "ran":
                broken = [r.answer for r in found if r.answer.how in BAD]
                kind = broken[0].how if broken else "unjudged"
                return Outcome(case, kind, (broken or [answer])[0].what)
        for run in found:
            where = f"trial {run.trial}, {run.way}: "
            if run.answer.how != "ran":
                return Outcome(case, run.answer.how, where + run.answer.what)
            wanted = expected[run.trial]
            difference = differs(run.answer.arrays, wanted.arrays, {})
            if difference:
                kind, reason = self._weighed(case, run.trial, run.answer, wanted, difference)
                return Outcome(case, kind, where + reason)
        return Outcome(case, "equal")

    def _weighed(
        self, case: Case, trial: int, found: Answer, expected: Answer, difference: str
    ) -> tuple[str, str]:
        """Whether a difference means anything."""
        inputs = case.trials[trial]
        spread = self._perturbed(case.data, inputs, 1e-5, 5).arrays
        if spread and not differs(found.arrays, expected.arrays, spread):
            return "unstable", difference
        disputed = reason_of(Mutant(case.seed, "", (), case.data, inputs), difference)
        return ("disputed", disputed) if disputed else ("wrong", difference)
