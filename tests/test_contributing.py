"""CONTRIBUTING.md: its examples run, from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path
from unittest.mock import patch

import onnx

import frontends.onnx.core.node
import frontends.onnx.ops.registry  # the operators before the examples, which are restored

PAGE = Path(__file__).resolve().parent.parent / "CONTRIBUTING.md"


def test_the_examples_run() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 7
    names: dict[str, object] = {"__name__": "contributing"}
    try:
        with patch.dict(frontends.onnx.core.node._OPERATORS):
            for number, block in enumerate(blocks):
                where = f"CONTRIBUTING.md, block {number}"
                exec(compile(block, where, "exec", dont_inherit=True), names)
    finally:
        onnx.defs.deregister_schema("ChannelScale", 1, "example.org")
