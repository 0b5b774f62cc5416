"""One fresh process: load one network by one contender, and run it once for each size.

    python measure_one.py JOB.json

Farkas is that of the folder on the path, which may be another checkout, so nothing of the
benchmarks is imported beside it.  The result is one JSON object on standard output.
"""

from __future__ import annotations

import importlib
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Inputs = dict[str, Any]
Run = Callable[[Inputs], Any]


def processor_seconds() -> float:
    """Of this process and of those that it has started and that have ended."""
    used = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def farkas(path: str, threads: int) -> tuple[Run, Callable[[], dict[str, Any]]]:
    fk = importlib.import_module("farkas")
    model = fk.compile_onnx(path, threads=threads)

    def about() -> dict[str, Any]:
        report = model.report
        source: dict[str, str] = getattr(model, "source", {})  # older networks have none
        return {
            "stages": dict(report.stages),
            "kernels": report.kernels,
            "lines": sum(len(text.splitlines()) for text in source.values()),
            "variants": len(getattr(model, "conditions", ())) or 1,
        }

    return model.run, about


def ort(path: str, threads: int) -> tuple[Run, Callable[[], dict[str, Any]]]:
    package = importlib.import_module("onnxruntime")
    options = package.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    session = package.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, inputs), dict


def openvino(path: str, threads: int) -> tuple[Run, Callable[[], dict[str, Any]]]:
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    ov = importlib.import_module("openvino")
    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": str(threads)}
    core = ov.Core()
    compiled = core.compile_model(core.read_model(path), "CPU", settings)
    return lambda inputs: compiled(inputs), dict


def inductor(path: str, threads: int) -> tuple[Run, Callable[[], dict[str, Any]]]:
    """``torch.compile`` of the network as a line of torch calls; the first run compiles it."""
    torch = importlib.import_module("torch")
    network = importlib.import_module("benchmarks.translate.network")
    graph = importlib.import_module("benchmarks.translate.torch_graph")
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    config: Any = importlib.import_module("torch._inductor.config")
    config.freezing = True
    module = torch.compile(graph.torch_module(network.read_network(Path(path))), fullgraph=True)
    return lambda inputs: module(*map(torch.from_numpy, inputs.values())), dict


#: What loads a network, and the package that is imported before the clock starts.
CONTENDERS = {
    "farkas": (farkas, "farkas"),
    "ort": (ort, "onnxruntime"),
    "openvino": (openvino, "openvino"),
    "inductor": (inductor, "torch"),
}


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    load, package = CONTENDERS[job["contender"]]
    if package == "openvino":
        sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    importlib.import_module(package)
    runs = []
    for name in job["runs"]:
        with np.load(name) as arrays:
            runs.append({key: arrays[key] for key in arrays.files})
    begin, used = time.perf_counter(), processor_seconds()
    run, about = load(job["path"], job["threads"])
    seconds = []
    for inputs in runs:
        run(inputs)
        seconds.append(time.perf_counter() - begin)
    found = {"first": seconds[0], "all": seconds[-1], "processor": processor_seconds() - used}
    print(json.dumps({**found, **about()}))


if __name__ == "__main__":
    main()
