"""Large buffers are not on the caller's stack, which may be small."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

import farkas as fk
from codegen.c.thread_memory import NAME, STACK_LIMIT
from runtime.network import kernel_units

MATMUL = "mm: C[i,j] +=! A[i,k] * B[k,j]"

_IN_A_SMALL_THREAD = """
import threading
import numpy as np
import farkas as fk

kernel = fk.compile("mm: C[i,j] +=! A[i,k] * B[k,j]", dtypes="float32", schedule={schedule!r},
                    sizes={{"I": 600, "J": 512, "K": 512}})
A, B = np.ones((600, 512), np.float32), np.ones((512, 512), np.float32)
results = []

def run():
    results.append(kernel(A, B, threads={threads}))

threading.stack_size({stack})
threads = [threading.Thread(target=run) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(results) == 3 and all((result == 512).all() for result in results)
"""


def run(code: str, stack_limit: int | None = None) -> None:
    def limit() -> None:
        if stack_limit is not None:
            resource.setrlimit(resource.RLIMIT_STACK, (stack_limit, stack_limit))

    done = subprocess.run(
        [sys.executable, "-c", code], preexec_fn=limit, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("schedule", ["auto", "promote mm: i as B, local"])
def test_a_thread_with_a_small_stack(schedule: str, threads: int) -> None:
    run(_IN_A_SMALL_THREAD.format(schedule=schedule, threads=threads, stack=128 << 10))


def test_a_process_with_a_small_stack() -> None:
    code = _IN_A_SMALL_THREAD.format(schedule="promote mm: i as B, local", threads=2, stack=0)
    run(code.replace("thread.start()", "run()").replace("thread.join()", "pass"), 512 << 10)


def source(script: str, **sizes: int) -> str:
    return fk.compile(MATMUL, dtypes="float32", schedule=script, sizes=sizes).source


def test_buffers_are_counted_together() -> None:
    one = "promote mm: i as B, local"
    assert NAME not in source(one, I=2, K=64, J=STACK_LIMIT // (4 * 64))
    assert f"{NAME}[{STACK_LIMIT + 64}]" in source(one, I=2, K=1, J=STACK_LIMIT // 4 + 16)
    # The second one does not fit beside the first.
    both = "promote mm: i as B, local\npromote mm: i as C, local"
    text = source(both, I=2, K=3, J=2048)
    assert "float C_p[1][2048] __attribute__((aligned(64)));" in text
    assert f"float (*restrict B_p)[2064] = fk_pointer({NAME});" in text
    assert "fk_pointer" not in source("promote mm: i as C, local", I=2, K=3, J=2048)


@pytest.mark.parametrize(("lines", "files"), [(1, 2), (9999, 1)])
def test_the_kernels_of_a_network_share_a_thread_s_memory(
    lines: int, files: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_units, "LINES_OF_UNIT", lines)
    shapes = {"x": (600, 512), "a": (512, 512), "b": (512, 300), "y": (600, 300)}
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["h"]),
        helper.make_node("MatMul", ["h", "b"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", infos[:3], infos[3:])
    model = fk.compile_onnx(helper.make_model(graph), cache=tmp_path)
    texts = model.source
    defined = [n for n, t in texts.items() if f"_Thread_local unsigned char {NAME}[" in t
               and f"{NAME}[]" not in t]  # fmt: skip
    assert defined == ["network.c"]
    declared = [t.count(f"extern _Thread_local unsigned char {NAME}[]") for t in texts.values()]
    assert sorted(declared) == [0] + [1] * files
    rng = np.random.default_rng(0)
    given = {n: rng.random(shapes[n], np.float32) for n in "xab"}
    expected = given["x"] @ given["a"] @ given["b"]
    np.testing.assert_allclose(model.run(given)["y"], expected, rtol=1e-4)
    assert len(model.profile(given, repeat=1)) == 2
