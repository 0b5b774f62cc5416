"""The examples in the README run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

README = Path(__file__).resolve().parent.parent / "README.md"


def test_the_examples_run() -> None:
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    blocks = [b for b in blocks if ".onnx" not in b]  # those need a file
    assert len(blocks) >= 2
    blocks = [b.replace('target="cuda"', 'target="cuda-emulator"') for b in blocks]
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    result = names["evaluate"](names["f"], {"A": names["a"], "B": names["b"]})["C"]
    assert np.array_equal(result, np.full((2, 4), 3, np.float32))
    backwards = names["run_instances"](
        names["f"], {"A": names["a"], "B": names["b"]}, None, reversed(names["order"])
    )
    assert not backwards["C"].any()
