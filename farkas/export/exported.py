"""`Exported`: the files of a module, and what they hold."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codegen.c.module_text import Module, code_text, header_text
from farkas.console.files import write_files
from poly.machine.isa import Isa


@dataclass(frozen=True, eq=False)
class Exported:
    """C that was exported.

    Attributes
    ----------
    name : prefix of its names; isa : the instruction set that it is for
    code, header : the texts of the C file and of its header
    weights : the bytes of the weights, if these are passed to each run; else empty
    workspace : bytes that a run needs; bound : the least that any plan needs for its values
    flags : with which to compile it
    inputs, outputs : their names in C, by those in the network
    results : the shape and the numpy type of each output; 16-bit floats are given as their bits
    """

    name: str
    isa: str
    code: str
    header: str
    weights: bytes
    workspace: int
    bound: int
    flags: tuple[str, ...]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    results: tuple[tuple[tuple[int, ...], Any], ...]

    @staticmethod
    def of(module: Module, isa: Isa) -> Exported:
        """The files of a module."""
        return Exported(
            module.name,
            isa.name,
            code_text(module),
            header_text(module),
            module.weights if module.is_separate else b"",
            module.workspace,
            module.bound,
            module.flags,
            {p.label: p.name for p in module.inputs},
            {p.label: p.name for p in module.outputs},
            tuple((p.shape, p.dtype.numpy) for p in module.outputs),
        )

    def write(self, path: Path, weights: Path | None = None) -> None:
        """Write the files, all of them or none.

        path : of the C file; its header has the same name, with the ending ``.h``

        Raises
        ------
        FileError : a file cannot be written.
        """
        files: dict[str | Path, bytes] = {
            path: self.code.encode(),
            path.with_name(f"{self.name}.h"): self.header.encode(),
        }
        if weights is not None:
            files[weights] = self.weights
        write_files(files)

    def __str__(self) -> str:
        text = f"{self.name} for {self.isa}: {len(self.code) / 2**20:.1f} MiB of C"
        if self.weights:
            text += f", {len(self.weights) / 2**20:.1f} MiB of weights"
        return (
            f"{text}, workspace {self.workspace} bytes ({self.bound} are the least of any plan)\n"
            f"compile with: cc -O2 {' '.join(self.flags)} -c {self.name}.c"
        )


def named_after(path: str | os.PathLike[str]) -> str:
    """The name of a module after that of its file."""
    stem = Path(path).stem
    return re.sub(r"\W", "_", stem, flags=re.ASCII)
