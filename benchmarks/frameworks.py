"""``python -m benchmarks.frameworks [NAME …]``: ``torch.compile`` with Farkas, Inductor, and eager.

Networks are those of `benchmarks.exported`, with random weights.  Each backend compiles in two
processes of its own, first with empty caches, then with those that the first left; the seconds are
from ``torch.compile`` to the first results.  Then one process runs all three in turn, and prints
medians; with ``--dynamic`` for 20 batch sizes, of which the first dimension is marked as dynamic;
with ``--training``, a step of forward, backward and SGD.

    pip install timm transformers
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from benchmarks import exported

#: Of those of `benchmarks.exported`: 15 of timm and 10 of transformers.
IMAGES = [n for n in (m for f in exported.IMAGES.values() for m in f) if n not in (
    "hrnet_w18_small", "inception_v3", "coatnet_0_rw_224", "xcit_tiny_12_p16_224", "ghostnet_100",
)]  # fmt: skip
TRAINED = ("resnet18", "mobilenetv3_large_100", "vit_small_patch16_224", "bert", "gpt2")
BACKENDS = ("farkas", "inductor")
ROUNDS = 15
BATCHES = (2, 3, 5, 4, 7, 21, 6, 8, 9, 11, 10, 13, 12, 14, 16, 15, 17, 19, 18, 20)


def _made(name: str) -> tuple[Any, list[Any]]:
    """A network and its inputs."""
    import_module("torch").manual_seed(0)
    model, inputs = exported.network(name)
    return model, list(inputs.values())


def _first(name: str, backend: str) -> dict[str, Any]:
    """Seconds to the first results, and how far these are from eager torch's."""
    torch = import_module("torch")
    model, inputs = _made(name)
    with torch.no_grad():
        expected = model(*inputs)
        start = time.perf_counter()
        found = torch.compile(model, backend=backend)(*inputs)
        seconds = time.perf_counter() - start
        error = float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-6))
    result: dict[str, Any] = {"seconds": seconds, "error": error}
    if backend == "farkas":
        reports = import_module("farkas.torch").reports
        result["left"] = [f"{n}: {why}" for r in reports for n, why in r.left]
    return result


def _turns(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median milliseconds of each, one after the other in every round."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(t) for name, t in times.items()}


def _run(name: str) -> dict[str, Any]:
    torch = import_module("torch")
    model, inputs = _made(name)
    made = {b: torch.compile(model, backend=b) for b in BACKENDS} | {"eager": model}
    with torch.no_grad():
        return _turns({b: partial(f, *inputs) for b, f in made.items()}, ROUNDS)


def _dynamic(name: str) -> dict[str, Any]:
    """Milliseconds of 20 batch sizes together; how many graphs each backend compiled.

    A batch of 1 is not among them: torch compiles that apart, with every backend.
    """
    torch = import_module("torch")
    counters = import_module("torch._dynamo.utils").counters
    model, inputs = _made(name)
    result: dict[str, Any] = {}
    batches = [[x.repeat(b, *[1] * (x.dim() - 1)) for x in inputs] for b in BATCHES]
    made: dict[str, Any] = {"eager": model}
    for backend in BACKENDS:
        torch._dynamo.reset()
        counters.clear()
        function = torch.compile(model, backend=backend)
        with torch.no_grad():
            for batch in batches:
                for x in batch:
                    torch._dynamo.mark_dynamic(x, 0)
                function(*batch)
        result[f"{backend} graphs"] = counters["stats"]["unique_graphs"]
        made[backend] = function
    with torch.no_grad():
        for batch in batches:
            turns = _turns({b: partial(f, *batch) for b, f in made.items()}, 3)
            result |= {b: result.get(b, 0.0) + t for b, t in turns.items()}
    return result


def _training(name: str) -> dict[str, Any]:
    torch = import_module("torch")
    result = {}
    calls: dict[str, Callable[[], Any]] = {}
    for backend in (*BACKENDS, "eager"):
        model, inputs = _made(name)
        model.train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        function = model if backend == "eager" else torch.compile(model, backend=backend)
        optimiser = torch.optim.SGD(model.parameters(), lr=1e-4)

        def step(f: Any = function, o: Any = optimiser, x: Any = inputs) -> float:
            o.zero_grad()
            loss = f(*x).float().square().mean()
            loss.backward()
            o.step()
            return float(loss)

        start = time.perf_counter()
        result[f"{backend} loss"] = step()
        result[f"{backend} seconds"] = time.perf_counter() - start
        calls[backend] = step
    return result | _turns(calls, ROUNDS)


_KINDS = {"run": _run, "dynamic": _dynamic, "training": _training}


def _child(arguments: Sequence[str], folder: str) -> dict[str, Any] | None:
    """What a process of its own prints."""
    env = os.environ | {
        "FARKAS_CACHE_DIR": f"{folder}/farkas", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.frameworks", *arguments],
        env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        print(done.stderr[-600:], file=sys.stderr)
        return None
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _measured(name: str, options: argparse.Namespace) -> dict[str, float]:
    """One row of the table."""
    row: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        if options.training or options.dynamic:
            kind = "training" if options.training else "dynamic"
            return _child(["--kind", kind, name], folder) or row
        for backend in BACKENDS:
            for which in ("cold", "warm"):
                made = _child(["--kind", "first", "--backend", backend, name], folder) or {}
                row[f"{backend} {which}"] = made.get("seconds", math.nan)
                if which == "cold":
                    row[f"{backend} error"] = made.get("error", math.nan)
                    if made.get("left"):
                        print(f"  {name}: stays with torch: {'; '.join(made['left'])}")
        return row | (_child(["--kind", "run", name], folder) or {})


def _mean(ratios: Sequence[float]) -> float:
    good = [r for r in ratios if r == r and r > 0]
    return math.exp(sum(map(math.log, good)) / len(good)) if good else math.nan


def main(arguments: Sequence[str]) -> int:
    """Print a row for each network, and geometric means."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--kind", default="")
    parser.add_argument("--backend", default="farkas")
    parser.add_argument("--training", action="store_true")
    parser.add_argument("--dynamic", action="store_true")
    options = parser.parse_args(arguments)
    if options.kind:
        (name,) = options.names
        made = (
            _first(name, options.backend) if options.kind == "first" else _KINDS[options.kind](name)
        )
        print(json.dumps(made))
        return 0
    texts = [
        n for n in exported.names() if n not in {m for f in exported.IMAGES.values() for m in f}
    ]
    rows = {}
    for name in options.names or (TRAINED if options.training else [*IMAGES, *texts]):
        rows[name] = row = _measured(name, options)
        shown = ", ".join(f"{k} {v:.3g}" for k, v in row.items())
        print(f"{name}: {shown}", flush=True)
    pairs = [("farkas", "inductor"), ("farkas", "eager")]
    pairs += [("farkas cold", "inductor cold"), ("farkas warm", "inductor warm")]
    for a, b in pairs:
        ratios = [r[a] / r[b] for r in rows.values() if a in r and b in r]
        if ratios:
            print(f"{a} / {b}: {_mean(ratios):.2f} (worst {max(ratios):.2f}) of {len(ratios)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
