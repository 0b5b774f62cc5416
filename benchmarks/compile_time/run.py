"""Suite compile: fresh processes in turns, and the table of what they took."""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.compile_time.networks import Network, networks
from benchmarks.results import write_json
from benchmarks.runner import ROOT, commit
from benchmarks.task import UnavailableError

SCRIPT = Path(__file__).with_name("measure_one.py")
#: Seconds after which a process is killed.
TIMEOUT = 1800.0
#: Contenders without a folder of their own.
PEERS = ("ort", "openvino", "inductor")
FORMAT = 1
#: What a user installs.
PACKAGES = ("poly", "frontends", "codegen", "runtime", "farkas")


@dataclass
class Row:
    """One network.

    Each contender has one result for each round, see `benchmarks.compile_time.measure_one`:
    with an empty cache, and, for Farkas, from the cache.
    """

    name: str
    is_open: bool
    cold: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    cached: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def median(self, contender: str, key: str, cached: bool = False) -> float | None:
        """The median over rounds; None if there is none."""
        found = (self.cached if cached else self.cold).get(contender)
        return statistics.median(r[key] for r in found) if found else None


def measure(
    only: str,
    threads: int,
    rounds: int,
    peers: Sequence[str],
    against: Path | None,
    console: Console,
) -> list[Row]:
    """Measure all networks with matching names.

    against : another checkout, whose Farkas takes part as ``before``
    """
    contenders = {"farkas": ROOT, **({"before": against} if against else {})}
    for code in contenders.values():
        _compile_modules(code)
    contenders |= dict.fromkeys(peers, ROOT)
    rows = []
    with tempfile.TemporaryDirectory(prefix="farkas-bench-") as name:
        folder = Path(name)
        for network in (n for n in networks() if re.search(only, n.name)):
            row = Row(network.name, network.is_open)
            rows.append(row)
            try:
                path, runs = _written(network, folder)
            except UnavailableError as error:
                row.failures["farkas"] = str(error)
                continue
            for number in range(rounds):
                # In turns, the other way round each time.
                order = [*contenders.items()][:: -1 if number % 2 else 1]
                for contender, code in order:
                    if contender not in row.failures:
                        _one(row, contender, code, path, runs, threads, folder)
            console.print(_line(row))
    return rows


def _compile_modules(code: Path) -> None:
    """Write the bytecode of a checkout's modules, which an installed package has."""
    packages = [str(p.parent) for p in code.glob("*/__init__.py") if p.parent.name in PACKAGES]
    subprocess.run([sys.executable, "-m", "compileall", "-q", *packages], check=True)


def _written(network: Network, folder: Path) -> tuple[Path, list[str]]:
    """The files of a network and of its inputs."""
    path = network.write(folder)
    names = []
    for number, inputs in enumerate(network.runs(path)):
        names.append(str(folder / f"{network.name} {number}.npz"))
        arrays: dict[str, Any] = dict(inputs)
        np.savez(names[-1], **arrays)
    return path, names


def _one(
    row: Row, contender: str, code: Path, path: Path, runs: list[str], threads: int, folder: Path
) -> None:
    cache, job = folder / "cache", folder / "job.json"
    shutil.rmtree(cache, ignore_errors=True)
    cache.mkdir(mode=0o700)
    name = contender if contender in PEERS else "farkas"
    job.write_text(
        json.dumps({"contender": name, "path": str(path), "runs": runs, "threads": threads})
    )
    caches = dict.fromkeys(("FARKAS_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"), str(cache))
    env = {**os.environ, "PYTHONPATH": str(code), **caches}
    for results in (row.cold, row.cached):
        try:
            done = subprocess.run(
                [sys.executable, str(SCRIPT), str(job)],
                cwd=folder, env=env, capture_output=True, text=True, timeout=TIMEOUT,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            row.failures[contender] = f"it took longer than {TIMEOUT:.0f} s"
            return
        if done.returncode:
            row.failures[contender] = done.stderr.strip().splitlines()[-1][:300]
            return
        found = json.loads(done.stdout.splitlines()[-1])
        if results is row.cold:
            found["library"] = sum(p.stat().st_size for p in cache.rglob("*.so"))
        results.setdefault(contender, []).append(found)
        if name in PEERS:
            return


# --- tables --------------------------------------------------------------------------------------


def show(rows: Sequence[Row], earlier: Sequence[Row], console: Console) -> None:
    """Print the table, its sums, and the stages."""
    before = {r.name: r for r in earlier}
    contenders = list(dict.fromkeys(c for r in rows for c in r.cold))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("seconds to the first results", no_wrap=True)
    headings = [c for c in contenders if c != "farkas"]
    earlier_heading = ["earlier"] if before else []
    for heading in ("farkas", *headings, *earlier_heading, "ratio", "processor", "cached",
                    "kernels", "variants", "lines", "kB"):  # fmt: skip
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        other = row.median("before", "all")
        old = before.get(row.name)
        if old is not None:
            other = old.median("farkas", "all")
        mine = row.median("farkas", "all")
        cells = [row.name, _text(mine), *(_text(row.median(c, "all")) for c in headings)]
        if before:
            cells.append(_text(other))
        cells.append(f"{mine / other:.2f}" if mine and other else "-")
        cells += [
            _text(row.median("farkas", "processor")),
            _text(row.median("farkas", "all", True)),
        ]
        for key, factor in (("kernels", 1), ("variants", 1), ("lines", 1), ("library", 1000)):
            value = row.median("farkas", key)
            cells.append("-" if value is None else f"{value / factor:.0f}")
        table.add_row(*cells)
    console.print(table)
    for is_open in (False, True):
        _sums([r for r in rows if r.is_open == is_open], before, is_open, console)
    for row in rows:
        for contender, reason in row.failures.items():
            console.print(f"{row.name}, {contender}: {reason}")


def _sums(rows: Sequence[Row], before: dict[str, Row], is_open: bool, console: Console) -> None:
    """The sums over networks that both have, and the stages of all."""
    pairs = []
    for row in rows:
        old = before.get(row.name)
        other = old.median("farkas", "all") if old else row.median("before", "all")
        mine = row.median("farkas", "all")
        if mine and other:
            pairs.append((mine, other))
    kind = "open" if is_open else "fixed"
    if pairs:
        mine, other = (sum(x) for x in zip(*pairs, strict=True))
        console.print(f"{kind} sizes: {mine:.1f} s, before {other:.1f} s: {mine / other:.2f}")
    stages: dict[str, float] = {}
    for row in rows:
        for result in row.cold.get("farkas", [])[:1]:
            for stage, seconds in result["stages"].items():
                stages[stage] = stages.get(stage, 0.0) + seconds
    if stages:
        listed = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in stages.items())
        console.print(f"{kind} sizes, seconds of all processes by stage: {listed}")


def _line(row: Row) -> str:
    times = {c: row.median(c, "all") for c in row.cold}
    return f"{row.name}: " + ", ".join(f"{c} {_text(t)}" for c, t in times.items())


def _text(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f}"


def save(rows: Sequence[Row], path: Path) -> None:
    """Write a file that `load` reads."""
    values = {"suite": "compile", "format": FORMAT, "commit": commit()}
    write_json(path, {**values, "rows": [asdict(r) for r in rows]})


def load(path: Path) -> list[Row]:
    """Read the results of an earlier run.

    Raises
    ------
    ValueError : it is not a file that `save` wrote.
    """
    values = json.loads(path.read_text())
    if not isinstance(values, dict) or (values.get("suite"), values.get("format")) != (
        "compile",
        FORMAT,
    ):
        raise ValueError(f"{path} has no results of suite compile")
    return [Row(**r) for r in values["rows"]]
