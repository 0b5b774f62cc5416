"""docs/gpu.md: its examples run, and its trees, texts and refusals are what comes out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import farkas as fk
from codegen.gpu.emit import generate_gpu
from poly.machine.gpu import NAMED, SHARED_BYTES
from poly.schedule.schedule import Schedule
from poly.strategy.gpu.auto_schedule import gpu_schedule

DOCS = Path(__file__).parents[2] / "docs" / "gpu.md"
TEXT = DOCS.read_text(encoding="utf-8")
BLOCK = re.compile(r"^```([a-z -]+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
BLOCKS = BLOCK.findall(TEXT)
MATMUL = "def f(float32 A[I,K], float32 B[K,J]) -> (C) { C[i,j] +=! A[i,k] * B[k,j] }"
EDGE = """def f(float16 A[I,1024], float16 B[1024,1024]) -> (float32 C[I,1024]) {
    C[i,j] +=! A[i,k] * B[k,j] }"""


def block(kind: str) -> str:
    (found,) = (body for k, body in BLOCKS if k == kind)
    return str(found)


def refused(text: str, script: str) -> str:
    with pytest.raises(fk.IllegalScheduleError) as caught:
        Schedule.of(fk.parse(text)).replay(script)
    return str(caught.value)


def heart(text: str) -> str:
    """The innermost loop of a kernel, with the first and the last of its lines."""
    lines = text.splitlines()
    first = next(n for n, line in enumerate(lines) if "for (int64_t k_i" in line)
    body = [n for n, line in enumerate(lines) if n > first and " += " in line]
    indent = len(lines[first]) - len(lines[first].lstrip())
    dots = " " * (indent + 2) + "…"
    kept = [*lines[first - 1 : body[0] + 3], dots, *lines[body[-1] : body[-1] + 2]]
    return "\n".join(line[indent:] for line in kept)


def wide() -> tuple[str, str]:
    """The automatic schedule of what is done with neighbours, and its kernel."""
    schedule = gpu_schedule(Schedule.of(fk.parse(block("farkas wide"))))
    return str(schedule), kernel_of(schedule)


def kernel_of(schedule: Schedule) -> str:
    """The CUDA text of a schedule without what stands above its kernel."""
    text = generate_gpu(schedule, "cuda").text
    return text[text.index('extern "C"') :]


def part(text: str, first: str, last: str, end: int = 0) -> str:
    """The lines from one that begins with something to the next with something else, and more."""
    lines = text.splitlines()
    start = next(n for n, line in enumerate(lines) if line.strip().startswith(first))
    stop = next(n for n, line in enumerate(lines) if n > start and line.strip().startswith(last))
    indent = len(lines[start]) - len(lines[start].lstrip())
    return "\n".join(line[indent:] for line in lines[start : stop + end + 1])


def outputs() -> dict[str, str]:
    """What stands in the documentation, as it follows from the code."""
    automatic = gpu_schedule(Schedule.of(fk.parse(MATMUL)))
    own = Schedule.of(fk.parse(block("farkas"))).replay(block("script own"))
    edges = generate_gpu(gpu_schedule(Schedule.of(fk.parse(EDGE)), NAMED["sm_90"]), "cuda").text
    found = {
        "text auto-tree": automatic.show,
        "c auto-cuda": heart(generate_gpu(automatic, "cuda").text),
        "text wide-script": wide()[0],
        "c wide-cuda": wide()[1],
        "c edge-in": part(edges, "if (64*block_y + A_s_in_row", "A_s[", end=2),
        "c edge-out": next(
            line.strip() for line in edges.splitlines() if "_within_row_global(&C[" in line
        ),
        "text own-tree": own.show,
        "c own-cuda": kernel_of(own),
        "text refusal": refused(block("farkas"), block("script refused")),
        "text refusal-stencil": refused(block("farkas stencil"), block("script refused-stencil")),
    }
    return {kind: f"{text.rstrip()}\n" for kind, text in found.items()}


def renewed() -> str:
    """The documentation with all outputs as they are now."""
    made = outputs()
    return BLOCK.sub(lambda m: f"```{m[1]}\n{made.get(m[1], m[2])}```", TEXT)


def test_outputs_are_those_of_the_code() -> None:
    assert renewed() == TEXT


def test_examples_run() -> None:
    names: dict[str, Any] = {}
    for body in (b for k, b in BLOCKS if k == "python" and ".onnx" not in b):  # needs a file
        exec(compile(body.replace('"cuda"', '"cuda-emulator"'), str(DOCS), "exec"), names)
    assert names["c"].shape == (40, 30)


def test_what_is_said_of_the_example() -> None:
    kernel = fk.compile(block("farkas"), schedule=block("script own"), target="cuda-emulator")
    assert kernel.verify().close(1e-5)
    assert kernel.source.count("__syncthreads();") == block("c own-cuda").count("sync") == 2
    assert f"{SHARED_BYTES >> 10} KiB" in TEXT
