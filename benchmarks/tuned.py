"""``python -m benchmarks --suite tuned``: what tuning gains over the automatic schedules.

Kernels of suite K and the held-out ones, recurrent networks, two others (``networks``, which need
three minutes), ten stencils and ten einsums that nobody tuned by hand, each for a minute
(``--budget``), on records of their own (``--records``).
With ``--fresh``, nothing is tuned: automatic and recorded schedules are measured anew, in turns, in
new processes; this is the check that none is slower on another day.
With ``--early SECONDS``, everything is tuned for so long, too, on other records, and what both have
found is measured in turns.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

import farkas as fk
from benchmarks import recurrent
from benchmarks.heldout import heldout
from benchmarks.kernel import Kernel
from benchmarks.kernels import suite_k
from benchmarks.measure import Settings, take_turns
from benchmarks.networks import mobilenetv2, swin
from benchmarks.results import geomean
from farkas.console.display import seconds
from farkas.tuning.tune_program import Tuned
from runtime.tuned.record_file import ENVIRONMENT

#: Stencils: sums and maxima around each element, in one to four dimensions; inputs, then text.
STENCILS = {
    "heat1d": (
        "X[64,100002]: "
        "Y[t,i] = 0.25*(X[t,i] + 2*X[t,i+1] + X[t,i+2]) where t in 0:64, i in 0:100000"
    ),
    "jacobi2d": (
        "X[1502,1702]: "
        "Y[i,j] = 0.2*(X[i+1,j+1] + X[i,j+1] + X[i+2,j+1] + X[i+1,j] + X[i+1,j+2]) where i "
        "in 0:1500, j in 0:1700"
    ),
    "blur5x5": (
        "X[1104,1304], float32 W[5,5]: "
        "Y[i,j] +=! X[i+u,j+v] * W[u,v] where i in 0:1100, j in 0:1300, u in 0:5, v in 0:5"
    ),
    "box9": (
        "X[1008,1208]: Y[i,j] +=! X[i+u,j+v] where i in 0:1000, j in 0:1200, u in 0:9, v in 0:9"
    ),
    "dilate3": (
        "X[1502,1502]: Y[i,j] max=! X[i+u,j+v] where i in 0:1500, j in 0:1500, u in 0:3, v in 0:3"
    ),
    "laplace3d": (
        "X[122,132,142]: "
        "Y[i,j,k] = X[i,j+1,k+1] + X[i+2,j+1,k+1] + X[i+1,j,k+1] + X[i+1,j+2,k+1] + "
        "X[i+1,j+1,k] + X[i+1,j+1,k+2] - 6*X[i+1,j+1,k+1] where i in 0:120, j in 0:130, k "
        "in 0:140"
    ),
    "sobel": (
        "X[1202,1302]: "
        "Y[i,j] = abs(X[i,j+2] + 2*X[i+1,j+2] + X[i+2,j+2] - X[i,j] - 2*X[i+1,j] - "
        "X[i+2,j]) where i in 0:1200, j in 0:1300"
    ),
    "fir33": (
        "X[48,20032], float32 W[33]: "
        "Y[c,i] +=! X[c,i+k] * W[k] where c in 0:48, i in 0:20000, k in 0:33"
    ),
    "upwind": (
        "X[900,1101], float32 U[900,1100]: "
        "Y[i,j] = X[i,j+1] - 0.1*max(U[i,j], 0)*(X[i,j+1] - X[i,j]) where i in 0:900, j in "
        "0:1100"
    ),
    "depth4d": (
        "X[2,24,94,104], float32 W[24,3,5]: "
        "Y[n,c,i,j] +=! X[n,c,i+2*u,j+v] * W[c,u,v] where n in 0:2, c in 0:24, i in 0:90, j "
        "in 0:100, u in 0:3, v in 0:5"
    ),
}
#: Einsums, with the extents of their letters.
EINSUMS = {
    "ij,jk->ik": (13, 4099, 37),
    "abc,cd->abd": (17, 29, 83, 71),
    "bij,bkj->bik": (31, 19, 67, 23),
    "abcd,ebd->ace": (11, 23, 37, 13, 29),
    "ij,ij->j": (1777, 901),
    "ab,ac,ad->bcd": (211, 17, 19, 23),
    "ijk,ikl->jl": (61, 43, 53, 47),
    "abc,bcd,de->ae": (41, 17, 19, 31, 37),
    "ij,k->ijk": (107, 109, 53),
    "abij,abjk->aik": (7, 11, 43, 59, 47),
}


@dataclass(frozen=True)
class Compiled:
    """A call without arguments, and the C text behind it, by file."""

    call: Callable[[], object]
    source: dict[str, str]


@dataclass(frozen=True)
class Item:
    """A computation: how it is tuned, and how it is compiled with a schedule of two kinds.

    tune : for so many seconds; compiled : with the automatic (True) or the recorded schedules
    """

    suite: str
    name: str
    tune: Callable[[float], tuple[float, float, float, list[Tuned]]]
    compiled: Callable[[bool], Compiled]


def items() -> Iterator[Item]:
    """Everything that is tuned, by suite."""
    for suite, kernels in (("K", suite_k()), ("heldout", heldout())):
        for kernel in kernels:
            if kernel.flops or kernel.bytes:
                yield _of_kernel(suite, kernel)
    for name in recurrent.names():
        yield _of_model("recurrent", name, partial(_recurrent, name))
    for name, build in (("mobilenetv2", mobilenetv2), ("swin", swin)):
        yield _of_model("networks", name, partial(_serialised, build))
    for name, stencil in STENCILS.items():
        inputs, text = stencil.split(": ")
        yield _of_text("stencils", name, f"def f(float32 {inputs}) -> (Y) {{ {text} }}", {})
    for spec, extents in EINSUMS.items():
        names = fk.parse(spec, dtypes="float32").sizes
        sizes = dict(zip(names, extents, strict=True))
        yield _of_text("einsums", spec, spec, sizes)


def _of_kernel(suite: str, kernel: Kernel) -> Item:
    text = kernel.text
    if kernel.native and text is not None:
        return _of_text(suite, kernel.name, text.text, dict(text.sizes))
    return _of_model(suite, kernel.name, lambda: kernel.model(kernel.draw()).SerializeToString())


def _serialised(build: Callable[[], ModelProto]) -> bytes:
    found: bytes = build().SerializeToString()
    return found


def _recurrent(name: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return recurrent.write(name, Path(folder)).read_bytes()


def _of_text(suite: str, name: str, text: str, sizes: dict[str, int]) -> Item:
    dtypes = None if text.lstrip().startswith("def") else "float32"

    def tune(budget: float) -> tuple[float, float, float, list[Tuned]]:
        made = fk.tune(text, dtypes=dtypes, sizes=sizes, budget=budget)
        return made.winner.automatic, made.winner.seconds, made.winner.spread, [made.found]

    @cache
    def untuned() -> fk.Kernel:
        return fk.compile(text, dtypes=dtypes, sizes=sizes, schedule="auto")

    @cache
    def arrays() -> tuple[list[Any], Any]:
        """Inputs and a result, for both kernels: where they lie may make a tenth."""
        kernel = untuned()
        rng = np.random.default_rng(0)
        shapes = [tuple(int(str(e)) for e in t.shape) for t in kernel.program.inputs]
        given = [rng.standard_normal(s).astype(np.float32) for s in shapes]
        return given, kernel(*given)

    def compiled(automatic: bool) -> Compiled:
        kernel = untuned() if automatic else fk.compile(text, dtypes=dtypes, sizes=sizes)
        given, out = arrays()
        return Compiled(lambda: kernel(*given, out=out), {"": kernel.source})

    return Item(suite, name, tune, compiled)


def _of_model(suite: str, name: str, model: Callable[[], bytes]) -> Item:
    def tune(budget: float) -> tuple[float, float, float, list[Tuned]]:
        made = fk.tune_onnx(model(), budget=budget)
        after = made.after if made.kept else made.before
        return made.before, after, 0.0, [k.found for k in made.kernels]

    @cache
    def untuned() -> fk.Network:
        with _records(os.devnull):
            return fk.compile_onnx(model())

    @cache
    def arrays() -> tuple[dict[str, Any], dict[str, Any]]:
        """Inputs and results, for both networks."""
        network = untuned()
        rng = np.random.default_rng(0)
        given = {
            p.name: rng.standard_normal(p.at({})).astype(p.dtype.numpy) for p in network.inputs
        }
        return given, network.run(given)

    def compiled(automatic: bool) -> Compiled:
        network = untuned() if automatic else fk.compile_onnx(model())
        given, out = arrays()
        return Compiled(lambda: network.run(given, out=out), network.source)

    return Item(suite, name, tune, compiled)


@contextmanager
def _records(folder: str) -> Iterator[None]:
    """Another folder of records for a while."""
    before = os.environ.get(ENVIRONMENT)
    os.environ[ENVIRONMENT] = folder
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(ENVIRONMENT, None)
        else:
            os.environ[ENVIRONMENT] = before


def tune_all(chosen: Sequence[Item], budget: float) -> None:
    """Tune everything, and print a line for each and the mean gain of each suite."""
    gains: dict[str, list[float]] = {}
    for item in chosen:
        before, after, spread, found = item.tune(budget)
        history = [len(t.history) for t in found]
        spent = sum(t.winner.spent for t in found) or math.inf
        gains.setdefault(item.suite, []).append(before / after)
        illegal = sum(t.illegal for t in found) / max(1, len(found))
        print(
            f"{item.suite:<10} {item.name:<28} {seconds(before):>8} {seconds(after):>8} "
            f"{before / after:6.2f}  ±{spread:4.1%}  {sum(history):4} points, "
            f"{sum(history) / spent:4.1f}/s, illegal {illegal:5.1%}",
            flush=True,
        )
    for suite, found_gains in gains.items():
        print(f"{suite}: geomean gain {geomean(found_gains):.3f} of {len(found_gains)}")


def measure_all(chosen: Sequence[Item]) -> int:
    """Measure automatic and recorded schedules anew; returns how many are slower.

    Where nothing better was found, both are the same code: what differs there is noise.
    """
    slower, noise = 0, []
    for item in chosen:
        made = {"automatic": item.compiled(True), "tuned": item.compiled(False)}
        is_same = made["automatic"].source == made["tuned"].source
        calls = {name: c.call for name, c in made.items()}
        ratios = []
        for turn in range(3):
            times = take_turns(calls, Settings(settle=0.02, rounds=4, turn=0.05), first=turn)
            ratios.append(times["tuned"] / times["automatic"])
        ratio = sorted(ratios)[1]
        is_slower = min(ratios) > 1.02 and not is_same
        slower += is_slower
        if is_same:
            noise.append(ratio)
        print(
            f"{item.suite:<10} {item.name:<28} {ratio:6.3f} of the automatic schedule's time "
            f"({min(ratios):.3f} to {max(ratios):.3f})"
            f"{'  slower' if is_slower else '  the same code' if is_same else ''}",
            flush=True,
        )
    other = len(chosen) - len(noise)
    print(f"{slower} of {other} slower by more than 2 % in each of three measurements")
    if noise:
        print(f"{len(noise)} are the same code: {min(noise):.3f} to {max(noise):.3f}")
    return slower


def compare_budgets(chosen: Sequence[Item], budget: float, early: float, records: Path) -> None:
    """Tune each for two budgets, on records of their own, and measure what both have found."""
    ratios = []
    for item in chosen:
        calls, points = {"auto": item.compiled(True).call}, 0
        for name, spent in (("early", early), ("late", budget)):
            with _records(str(records / name)):
                points = sum(len(t.history) for t in item.tune(spent)[-1])
                calls[name] = item.compiled(False).call
        times = take_turns(calls, Settings(settle=0.02, rounds=12, turn=0.05))
        ratios.append(times["late"] / times["early"])
        print(
            f"{item.suite:<10} {item.name:<28} {seconds(times['auto']):>8} automatic "
            f"{seconds(times['early']):>8} after {early:.0f} s {seconds(times['late']):>8} after "
            f"{budget:.0f} s {ratios[-1]:6.3f}  {points:4} points",
            flush=True,
        )
    print(f"late over early: geomean {geomean(ratios):.3f} of {len(ratios)}")


def main(words: Sequence[str] | None = None) -> int:
    args_parser = argparse.ArgumentParser("python -m benchmarks --suite tuned", description=__doc__)
    add = args_parser.add_argument
    add("--budget", type=float, default=60.0, metavar="SECONDS", help="for each")
    add("--only", default="", metavar="RE", help="names or suites that match")
    add("--records", type=Path, default=Path("tuned-records"), help="the folder of the records")
    add("--fresh", action="store_true", help="measure what is recorded, anew")
    add("--early", type=float, metavar="SECONDS", help="compare with this budget")
    args = args_parser.parse_args(words)
    chosen = [i for i in items() if re.search(args.only, f"{i.suite} {i.name}")]
    records = args.records.resolve()
    with _records(str(records)):
        if args.fresh:
            return min(1, measure_all(chosen))
        if args.early is not None:
            compare_budgets(chosen, args.budget, args.early, records)
            return 0
        tune_all(chosen, args.budget)
    return 0


if __name__ == "__main__":
    sys.exit(main())
