"""What runs under an interpreter that has TVM: tune a workload of its own, or time what was tuned.

Nothing of Farkas is imported.  See `benchmarks.tuners`.

    python tvm_worker.py tune NAME NUMBER FOLDER     until it is killed
    python tvm_worker.py build NAME NUMBER FOLDER    the best of FOLDER's records, as a library
    python tvm_worker.py time FOLDER SECONDS         its calls; the seconds of each as JSON
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.testing.te_workload import CONFIGS, create_te_workload

LIBRARY, SHAPES = "best.so", "shapes.json"


def target() -> Any:
    """This processor, with the threads that TVM may use."""
    cpu = tvm.get_global_func("target.llvm_get_system_cpu")()
    threads = int(os.environ["TVM_NUM_THREADS"])
    return tvm.target.Target({"kind": "llvm", "mcpu": str(cpu), "num-cores": threads})


def tune(name: str, number: int, folder: Path) -> None:
    """Measure until the process is killed; records are written as they come."""
    ms.tune_tir(
        create_te_workload(name, number),
        target=target(),
        work_dir=str(folder),
        max_trials_global=100_000,
        num_trials_per_iter=16,
        num_tuning_cores=int(os.environ["TVM_NUM_THREADS"]),
        seed=0,
    )


def build(name: str, number: int, folder: Path) -> None:
    """Compile the best of the records, and say how many there are."""
    database = ms.database.JSONDatabase(work_dir=str(folder))
    function = create_te_workload(name, number)
    schedule = ms.tir_integration.compile_tir(database, function, target())
    if schedule is None:
        print(json.dumps({"trials": 0}))
        return
    with target():
        library = tvm.compile(schedule.mod, target=target())
    library.export_library(str(folder / LIBRARY))
    made, parameters = CONFIGS[name]
    shapes = [[int(e) for e in t.shape] for t in made(*parameters[number])]
    (folder / SHAPES).write_text(json.dumps(shapes))
    print(json.dumps({"trials": len(database.get_all_tuning_records())}))


def measure(folder: Path, seconds: float) -> None:
    """Call the library on the arrays of the folder; the last is the result, which is kept."""
    function = tvm.runtime.load_module(str(folder / LIBRARY))["main"]
    shapes = json.loads((folder / SHAPES).read_text())
    rng = np.random.default_rng(0)
    host = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    arrays = [tvm.runtime.tensor(a) for a in host]
    function(*arrays)
    np.save(folder / "result.npy", arrays[-1].numpy())
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < 5 or time.perf_counter() - began < seconds:
        start = time.perf_counter()
        function(*arrays)
        times.append(time.perf_counter() - start)
    print(json.dumps(times))


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "time":
        measure(Path(rest[0]), float(rest[1]))
    else:
        {"tune": tune, "build": build}[what](rest[0], int(rest[1]), Path(rest[2]))
