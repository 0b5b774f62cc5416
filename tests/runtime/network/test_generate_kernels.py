"""Kernels generated in several processes are those of one, wherever a network is compiled."""

import os
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import farkas as fk
import runtime.network.compile_cpu
from runtime.common.cache import ENVIRONMENT as CACHE
from runtime.common.workers import ENVIRONMENT, Workers

WIDTHS = (8, 12, 16, 20, 24, 28, 32, 36)


def chain() -> onnx.ModelProto:
    """Products of different sizes, each with a maximum after it: no two kernels are alike."""
    nodes, weights, name = [], [], "X"
    draw = np.random.default_rng(0)
    for n, (rows, columns) in enumerate(pairwise(WIDTHS)):
        array = draw.standard_normal((rows, columns)).astype(np.float32)
        weights.append(numpy_helper.from_array(array, f"W{n}"))
        nodes.append(helper.make_node("MatMul", [name, f"W{n}"], [f"P{n}"], f"product {n}"))
        name = f"Y{n}"
        nodes.append(helper.make_node("Relu", [f"P{n}"], [name], f"maximum {n}"))
    shapes = [("X", [4, WIDTHS[0]]), (name, [4, WIDTHS[-1]])]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes]
    graph = helper.make_graph(nodes, "chain", ports[:1], ports[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@pytest.fixture
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv(CACHE, str(folder))
    return folder


def test_the_text_does_not_depend_on_who_generates_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = []
    for count in ("1", "3"):
        monkeypatch.setenv(ENVIRONMENT, count)
        monkeypatch.setenv(CACHE, str(tmp_path / count))
        network = fk.compile_onnx(chain())
        found.append((network.source, network.schedules))
        assert not network.report.from_cache
    assert found[0] == found[1]


def test_a_worker_that_is_killed_names_the_kernel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, empty_cache: Path
) -> None:
    text = "import os\ndef generate_kernel(*arguments):\n    os.kill(os.getpid(), 9)\n"
    (tmp_path / "killed.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    started = []

    def workers(kernels: int) -> Workers:
        started.append(Workers("killed", "generate_kernel", 1))
        return started[-1]

    monkeypatch.setattr(runtime.network.compile_cpu, "kernel_workers", workers)
    with pytest.raises(
        fk.ToolchainError,
        match=r"fk_k\d+_\w+ \(node MatMul 'product \d'.*\) could not be generated: a worker "
        rf"process was killed by SIGKILL \(out of memory, perhaps\); {ENVIRONMENT}=1 starts none",
    ):
        fk.compile_onnx(chain())
    assert all(p.poll() is not None for w in started for p in w._processes)
    assert not [*empty_cache.rglob("meta.json")]
    assert not [*empty_cache.rglob(".farkas-*")]


def test_in_a_thread(empty_cache: Path) -> None:
    found: list[fk.Network] = []
    thread = threading.Thread(target=lambda: found.append(fk.compile_onnx(chain())))
    thread.start()
    thread.join()
    assert len(found) == 1 and not found[0].report.from_cache


SCRIPT = """\
import multiprocessing, os, sys
import numpy as np
import farkas as fk
X = {"X": np.ones((4, 8), np.float32)}

def first(path):
    network = fk.compile_onnx(path)
    return float(next(iter(network.run(X).values())).sum())

if sys.argv[2] == "fork":
    child = os.fork()
    if child == 0:
        print(first(sys.argv[1]), flush=True)
        os._exit(0)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
if sys.argv[2] == "unguarded":  # multiprocessing would run such a script again in each process
    print(first(sys.argv[1]))
if sys.argv[2] == "spawn" and __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(first, [sys.argv[1]])[0])
"""


@pytest.mark.parametrize("way", ["fork", "spawn", "unguarded"])
def test_in_processes_of_other_kinds(tmp_path: Path, way: str, empty_cache: Path) -> None:
    onnx.save(chain(), tmp_path / "chain.onnx")
    (tmp_path / "script.py").write_text(SCRIPT)
    root = Path(fk.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "script.py", "chain.onnx", way],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    expected = fk.compile_onnx(chain()).run({"X": np.ones((4, 8), np.float32)})
    assert float(done.stdout) == pytest.approx(float(next(iter(expected.values())).sum()))
