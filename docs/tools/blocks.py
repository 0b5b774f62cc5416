"""Code blocks of the documentation: what they are, and running them.

A fence says what becomes of a block (see docs/contributing.md):

    python            runs, in one namespace for the page
    python refused    runs, and has to end in an error that Farkas raises
    console           lines that begin with `$ ` run; what stands between is their output, and
                      where nothing does, they have to succeed
    text output       what the block before it prints, or the message of its error; as `text output
                      c` it is highlighted as C

Everything else (`text`, `c`, `farkas`, `script`, …) is shown only.  In expected output, `…` stands
for any text, and a line of nothing else for any lines.

    python -m docs.tools.blocks          runs all pages, and rewrites what they print
    python -m docs.tools.blocks PAGE …   the same for some
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import farkas as fk

ROOT = Path(__file__).resolve().parents[2]

#: Kinds of blocks that run.
RUN = ("python", "python refused", "console")
#: Kinds that are shown only, by the first word of the fence.
SHOWN = ("text", "c", "farkas", "script", "ebnf")
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<kind>[^\n`]*)\n(?P<body>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True)
class Block:
    """A fenced block: its kind as the fence says, its text, and where that stands in the page."""

    kind: str
    body: str
    line: int
    start: int
    end: int


def pages() -> list[Path]:
    """The pages with blocks: the README and everything in docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks_of(text: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    return [
        Block(
            m["kind"].strip(), textwrap.dedent(m["body"]), text.count("\n", 0, m.start()) + 2,
            m.start("body"), m.end("body"),
        )
        for m in FENCE.finditer(text)
    ]  # fmt: skip


@dataclass(frozen=True)
class Ran:
    """A block that ran, and what it printed; and the block with what it should print, if any."""

    block: Block
    printed: str
    expected: Block | None

    @property
    def agrees(self) -> bool:
        """Whether it printed what stands in the page."""
        if self.block.kind == "console":
            parts = console_parts(self.block.body, self.printed)
            return all(not e.strip() or matches(e, p) for _, e, p in parts)
        return self.expected is None or matches(self.expected.body, self.printed)


def run_page(path: Path) -> Iterator[Ran]:
    """Run the blocks of a page in an empty folder with a few files.

    Raises
    ------
    AssertionError : a block that should be refused is not.
    Exception : whatever else a block raises.
    """
    text = path.read_text(encoding="utf-8")
    found = blocks_of(text)
    names: dict[str, Any] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        workspace(Path(folder))
        for n, block in enumerate(found):
            if block.kind not in RUN:
                continue
            following = found[n + 1] if n + 1 < len(found) else None
            is_output = following is not None and following.kind.startswith("text output")
            expected = following if is_output else None
            if block.kind == "console":
                told = [e for _, e, _ in console_parts(block.body, "\0" * block.body.count("\n$ "))]
                printed = "\0".join(
                    run_command(c, succeed=not e.strip())
                    for c, e in zip(commands(block.body), told, strict=True)
                )
            else:
                printed = run_python(block, path, names)
            yield Ran(block, printed, expected)


def run_python(block: Block, path: Path, names: dict[str, Any]) -> str:
    """What a block prints; if it is to be refused, the message of the error after that."""
    # No machine has to have a GPU.
    source = block.body.replace('"cuda"', '"cuda-emulator"')
    code = compile("\n" * (block.line - 1) + source, str(path), "exec")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if block.kind == "python":
            exec(code, names)
        else:
            try:
                exec(code, names)
            except fk.FarkasError as error:
                print(error)
            else:
                raise AssertionError(f"{path.name}:{block.line} is not refused")
    return printed.getvalue()


def commands(body: str) -> list[str]:
    """The commands of a console block."""
    return [line[2:] for line in body.splitlines() if line.startswith("$ ")]


def run_command(command: str, succeed: bool = False) -> str:
    """What a command prints, on both streams.

    Raises
    ------
    AssertionError : it fails, and should succeed.
    """
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "FORCE_COLOR": "", "COLUMNS": "200",
    }  # fmt: skip
    script = f'farkas() {{ "{sys.executable}" -m farkas "$@"; }}\n{command}'
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env=environment, timeout=300
    )
    assert not succeed or done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def console_parts(body: str, printed: str) -> list[tuple[str, str, str]]:
    """For each command of a console block, what it should and did print."""
    expected = [part.partition("\n")[2] for part in re.split(r"^\$ ", body, flags=re.M)[1:]]
    return list(zip(commands(body), expected, printed.split("\0"), strict=True))


def matches(expected: str, printed: str) -> bool:
    """Whether output is as expected, but for what `…` stands for; a line of it, for any lines."""
    lines = [re.escape(line.rstrip()) for line in expected.strip("\n").splitlines()]
    pattern = "\n".join("(?:.*\n?)*?" if line == "…" else line.replace("…", ".*") for line in lines)
    pattern = pattern.replace("(?:.*\n?)*?\n", "(?:.*\n)*?")
    if pattern.endswith("\n(?:.*\n?)*?"):  # which may stand for nothing
        pattern = pattern.removesuffix("\n(?:.*\n?)*?") + "(?:\n.*)*"
    shown = "\n".join(line.rstrip() for line in printed.strip("\n").splitlines())
    return re.fullmatch(pattern, shown) is not None


def renewed(path: Path) -> str:
    """A page with the output of its blocks as it is now, where that does not agree."""
    text = path.read_text(encoding="utf-8")
    for ran in reversed(list(run_page(path))):
        if ran.agrees:
            continue
        if ran.block.kind == "console":
            parts = console_parts(ran.block.body, ran.printed)
            body = "".join(
                f"$ {c}\n{e if not e.strip() or matches(e, p) else p}" for c, e, p in parts
            )
            text = text[: ran.block.start] + body + text[ran.block.end :]
        elif ran.expected is not None:
            printed = ran.printed.strip("\n") + "\n"
            text = text[: ran.expected.start] + printed + text[ran.expected.end :]
    return text


def workspace(folder: Path) -> None:
    """The files that examples speak of."""
    (folder / "matmul.fk").write_text(
        "def matmul(float32 A[N,K], float32 B[K,M]) -> (C) { C[i,j] +=! A[i,k] * B[k,j] }\n"
    )
    (folder / "tiles.sched").write_text("tile S0: i, j by 32, 32\nparallelize S0: i_o\n")
    (folder / "wrong.sched").write_text("parallelize S0: k\n")
    network(folder / "resnet50.onnx", 1, 224)
    network(folder / "network.onnx", "batch", 32)
    np.save(folder / "image.npy", np.random.default_rng(0).random((1, 3, 32, 32), np.float32))


def network(path: Path, batch: int | str, pixels: int) -> None:
    """A small network that stands in for a real one."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)

    def weights(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) / 8, name)

    nodes = [
        helper.make_node("Conv", ["data", "w1"], ["a"], "first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], "relu1"),
        helper.make_node("Conv", ["b", "w2"], ["c"], "second", pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c", "b"], ["d"], "skip"),
        helper.make_node("GlobalAveragePool", ["d"], ["e"], "pool"),
        helper.make_node("Flatten", ["e"], ["f"], "flat"),
        helper.make_node("Gemm", ["f", "w3"], ["g"], "classify", transB=1),
        helper.make_node("Softmax", ["g"], ["scores"], "soft"),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("data", TensorProto.FLOAT, [batch, 3, pixels, pixels])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [batch, 10])],
        [weights("w1", 16, 3, 3, 3), weights("w2", 16, 16, 3, 3), weights("w3", 10, 16)],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)


def main(words: list[str]) -> None:
    for path in [Path(w).resolve() for w in words] or pages():
        text = renewed(path)
        if text != path.read_text(encoding="utf-8"):
            path.write_text(text, encoding="utf-8")
            print(f"renewed {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main(sys.argv[1:])
