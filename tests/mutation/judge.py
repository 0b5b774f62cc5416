"""What becomes of a mutant: refused, equal to ONNX Runtime, or wrong."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.mutation.disputed import reason_of
from tests.mutation.mutants import Mutant
from tests.mutation.sanitize import run_sanitized
from tests.mutation.workers import Worker, run_farkas, run_perturbed, run_reference

#: Relative to the largest value of an output; by bits of the narrowest float type.
TOLERANCE = {16: 3e-2, 32: 1e-3, 64: 1e-3}

#: So many of the elements that were rounded to 8 bits may be off by one, however they were reached.
ROUNDED = 0.01

#: No mutant may do these; the others are good ends.
BAD = ("wrong", "error", "crash", "hang", "unclean")


@dataclass(frozen=True)
class Outcome:
    """How a mutant ended.

    kind : ``refused`` (and ONNX Runtime refuses too), ``refused alone`` (it does not), ``equal``,
    ``unstable`` (as far from ONNX Runtime as that is from itself when inputs move by a rounding
    error), ``unjudged`` (ONNX Runtime does not run it), ``disputed`` (it is ONNX Runtime that
    does not do what ONNX says, see `disputed`), ``clean`` (nothing to report for sanitizers), or
    one of `BAD`
    """

    number: int
    source: str
    mutations: tuple[str, ...]
    kind: str
    reason: str = ""
    opaque: tuple[str, ...] = ()

    def __str__(self) -> str:
        told = "; ".join(self.mutations)
        return f"{self.kind}: {self.number} of {self.source}: {told[:300]}\n    {self.reason}"

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Judge:
    """Tries mutants in processes of its own.

    sanitize : what runs is not compared, but run again under the sanitizers
    """

    def __init__(self, cache: Path, limit: float = 30.0, sanitize: bool = False) -> None:
        self._sanitize = sanitize
        self._farkas = Worker(run_farkas, cache, limit)
        self._reference = Worker(run_reference, cache, limit)
        self._perturbed = Worker(run_perturbed, cache, 4 * limit)
        # AddressSanitizer reserves all of the address space.
        self._sanitized = Worker(run_sanitized, cache, 10 * limit, resource.RLIM_INFINITY)

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in (self._farkas, self._reference, self._perturbed, self._sanitized):
            worker.stop()

    def __call__(self, mutant: Mutant) -> Outcome:
        """What becomes of a mutant."""
        found = self._farkas(mutant.data, mutant.inputs)

        def outcome(kind: str, reason: str) -> Outcome:
            return Outcome(
                mutant.number, mutant.source, mutant.mutations, kind, reason, found.opaque
            )

        if found.how in BAD:
            return outcome(found.how, found.what)
        if self._sanitize and found.how == "ran":
            clean = self._sanitized(mutant.data, mutant.inputs)
            kind = "clean" if clean.how == "ran" else "unclean"
            return outcome(kind, f"{clean.how}: {clean.what}")
        expected = self._reference(mutant.data, mutant.inputs)
        if found.how == "refused":
            alone = expected.how == "ran"
            return outcome("refused alone" if alone else "refused", found.what)
        if expected.how != "ran":
            return outcome("unjudged", f"{expected.how}: {expected.what}"[:400])
        difference = differs(found.arrays, expected.arrays, {})
        if not difference:
            return outcome("equal", "")
        spread = self._perturbed(mutant.data, mutant.inputs, 1e-5, 5).arrays
        if spread and not differs(found.arrays, expected.arrays, spread):
            return outcome("unstable", difference)
        disputed = reason_of(mutant, difference)
        if disputed:
            return outcome("disputed", disputed)
        return outcome("wrong", difference)


def differs(
    found: Mapping[str, Any], expected: Mapping[str, Any], spread: Mapping[str, np.ndarray]
) -> str:
    """How outputs differ; empty if they are equal within the tolerance and ten times `spread`."""
    if list(found) != list(expected):
        return f"outputs {list(found)}, expected {list(expected)}"
    for name, wanted in expected.items():
        got = found[name]
        if not isinstance(wanted, np.ndarray) or wanted.dtype.kind == "O":
            if not _same_object(got, wanted):
                return f"'{name}' is {str(got)[:80]}, expected {str(wanted)[:80]}"
            continue
        if got.dtype != wanted.dtype or got.shape != wanted.shape:
            return (
                f"'{name}' is {got.dtype}{list(got.shape)}, "
                f"expected {wanted.dtype}{list(wanted.shape)}"
            )
        reason = _array_differs(got, wanted, spread.get(name))
        if reason:
            return f"'{name}': {reason}"
    return ""


def _same_object(got: Any, wanted: Any) -> bool:
    try:
        return bool(np.all(np.asarray(got, object) == np.asarray(wanted, object)))
    except ValueError:
        return False


def _array_differs(got: np.ndarray, wanted: np.ndarray, spread: np.ndarray | None) -> str:
    if got.dtype.kind in "iub":
        slack = np.zeros(got.shape)
    else:
        bits = got.dtype.itemsize * 8
        with np.errstate(all="ignore"):
            finite = np.isfinite(wanted.astype(np.float64))
        largest = float(np.abs(wanted[finite].astype(np.float64)).max(initial=0))
        slack = np.full(got.shape, TOLERANCE[bits] * largest + 1e-30)
    if spread is not None:
        slack = slack + 10 * np.minimum(spread, 1e300)
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    with np.errstate(all="ignore"):
        good = (got == wanted) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= slack)
    if spread is not None:
        good |= np.isinf(spread)
        if got.dtype.name in ("int8", "uint8") and np.mean(~good) < ROUNDED:
            good |= np.abs(a - b) == 1
    if bool(good.all()):
        return ""
    bad = np.argwhere(~good)
    place = tuple(int(p) for p in bad[0])
    return f"{len(bad)} of {good.size} elements, at {place} {got[place]}, expected {wanted[place]}"
