"""Results of a run, and their JSON file, with which runs can be compared."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from runtime.cpu.roofline import Roofline

FORMAT = 1

#: Families that are mostly bound by memory traffic on a device.
BOUND_BY_MEMORY = ("rows", "elementwise", "transpose")
#: Columns of Farkas itself: as a user would call it, with open sizes, with fixed ones; for narrow
#: types, the same on float32, and the comprehension with its weights given in every call.
OURS = ("farkas", "farkas-symbolic", "farkas-fixed", "farkas-float32", "farkas-text")
#: The columns that take part in a suite, if not the first two.
OURS_IN = {
    "symbolic": ("farkas-symbolic", "farkas-fixed"),
    "public": ("farkas", "farkas-fixed"),
    "narrow": ("farkas", "farkas-float32", "farkas-text"),
    "narrow-networks": ("farkas",),
}


@dataclass(frozen=True)
class CopyRate:
    """The copy bandwidth of a device, which bounds memory-bound computations.

    bandwidth : bytes read and written per second
    """

    bandwidth: float

    def seconds(self, flops: int, bytes: int) -> float:
        """The time to read and write this many bytes."""
        return bytes / self.bandwidth

    def __str__(self) -> str:
        return f"copies at {self.bandwidth / 1e9:.4g} GB/s"


@dataclass
class Row:
    """One computation on some number of threads.

    Attributes
    ----------
    times : by contender, the median seconds of one call in each process
    compile : by contender, seconds to prepare it in each process; the first finds empty caches
    failures : by contender, why it has no times
    differences : by contender, the deviation of its result from the reference, relative to the
    maximum
    memory : by contender, peak bytes of a process of its own
    weights : by contender, bytes of the weights in memory, where that is known
    """

    suite: str
    name: str
    family: str
    threads: int
    flops: int
    bytes: int
    times: dict[str, list[float]] = field(default_factory=dict)
    compile: dict[str, list[float]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    differences: dict[str, float] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    weights: dict[str, int] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, int]:
        return self.suite, self.name, self.threads

    def median(self, contender: str) -> float | None:
        """The median over processes; None if there is none."""
        times = self.times.get(contender)
        return statistics.median(times) if times else None

    @property
    def ours(self) -> str:
        """The contender that represents Farkas: the one whose sizes are fixed."""
        return "farkas-fixed" if self.suite == "symbolic" else "farkas"

    @property
    def best_peer(self) -> str | None:
        """The fastest contender that is not Farkas."""
        medians = {n: self.median(n) for n in self.times if n not in OURS}
        found = {n: m for n, m in medians.items() if m is not None}
        return min(found, key=found.__getitem__) if found else None

    @property
    def ratio(self) -> float | None:
        """Farkas's time over that of the best peer: below 1, Farkas is faster."""
        mine, best = self.median(self.ours), self.best_peer
        theirs = self.median(best) if best else None
        return mine / theirs if mine and theirs else None

    @property
    def spread(self) -> tuple[float, float] | None:
        """The least and the greatest ratio to the best peer within one process."""
        best = self.best_peer
        if best is None or not self.times.get(self.ours):
            return None
        ratios = [a / b for a, b in zip(self.times[self.ours], self.times[best], strict=False)]
        return (min(ratios), max(ratios)) if ratios else None

    @property
    def openness(self) -> float | None:
        """The time with open sizes over that with fixed ones; None unless both were measured."""
        own, free, fixed = map(self.median, OURS[:3])
        pair = (free or own, fixed or own) if free or fixed else (None, None)
        return pair[0] / pair[1] if pair[0] and pair[1] else None

    @property
    def narrowness(self) -> float | None:
        """The time on a narrow type over that on float32; None unless both were measured."""
        narrow, wide = self.median("farkas"), self.median("farkas-float32")
        return narrow / wide if narrow and wide else None

    def roof(self, contender: str, roofline: Roofline | CopyRate) -> float | None:
        """The fraction of the roofline, or of a copy's speed, that a contender reaches."""
        time = self.median(contender)
        return roofline.seconds(self.flops, self.bytes) / time if time else None


@dataclass
class Results:
    """A run: the machine, the rooflines by threads, who took part, and the rows.

    about : identifies machine, compiler and commit
    versions : by contender; missing : by contender, why it did not take part
    rooflines : by threads; empty where none was measured, as for GPUs
    """

    about: dict[str, Any]
    versions: dict[str, str]
    missing: dict[str, str]
    rooflines: dict[int, Roofline]
    rows: list[Row] = field(default_factory=list)

    @property
    def copies(self) -> CopyRate | None:
        """The copy bandwidth of the device; None for a CPU, or if an older file lacks it."""
        rate = self.about.get("copy_bandwidth")
        return CopyRate(rate) if rate else None

    def save(self, path: Path) -> None:
        """Write the file; it appears complete or not at all."""
        write_json(path, {"format": FORMAT, **asdict(self)})

    @staticmethod
    def load(path: Path) -> Results:
        """Read a file that `save` wrote.

        Raises
        ------
        ValueError : it is not a results file, or of another format.
        """
        values = json.loads(path.read_text())
        if not isinstance(values, dict) or values.pop("format", None) != FORMAT:
            raise ValueError(f"{path} has no results of format {FORMAT}")
        values["rooflines"] = {int(t): Roofline(**r) for t, r in values["rooflines"].items()}
        values["rows"] = [Row(**r) for r in values["rows"]]
        return Results(**values)


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a file, which appears complete or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(values, indent=1) + "\n")
    os.replace(part, path)


def geomean(values: Iterable[float]) -> float | None:
    """The geometric mean; None if there are no values."""
    found = list(values)
    return statistics.geometric_mean(found) if found else None
