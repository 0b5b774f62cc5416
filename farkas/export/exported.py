"""`Exported`: the files of a module, and what they hold."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from codegen.c.convention import THREADS, Convention
from codegen.c.header_text import header_text
from codegen.c.module import Module
from codegen.c.module_text import code_text, command
from farkas.console.files import write_files
from poly.errors import ArgumentError


@dataclass(frozen=True, eq=False)
class Exported:
    """C that was exported.

    Attributes
    ----------
    module : what it was made of; isa : the instruction sets that it is for
    code, header : the texts of the C file and of its header
    examples : the open sizes, by their names in C, for which it was made
    """

    module: Module
    isa: str
    code: str
    header: str
    examples: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def of(module: Module, examples: Sequence[int] = ()) -> Exported:
        """The files of a module; `examples` are of its sizes, in order."""
        isa = ", ".join(section.isa.name for section in module.sections)
        named = dict(zip(module.sizes, examples, strict=False))
        return Exported(module, isa, code_text(module), header_text(module), named)

    @property
    def name(self) -> str:
        """The prefix of its names."""
        return self.module.name

    @property
    def flags(self) -> tuple[str, ...]:
        """Those with which to compile it, in addition to any others."""
        return self.module.flags

    @property
    def weights(self) -> bytes:
        """The bytes of the weights, if these are passed to each run; else empty."""
        return self.module.weights if self.module.is_separate else b""

    @property
    def workspace(self) -> int:
        """The bytes of workspace that a run needs."""
        return self.module.workspace

    @property
    def inputs(self) -> Mapping[str, str]:
        """The names of the inputs in C, by those in the network, in the order of arguments."""
        return {p.label: p.name for p in self.module.inputs}

    @property
    def outputs(self) -> Mapping[str, str]:
        """The names of the outputs in C, by those in the network, in the order of arguments."""
        return {p.label: p.name for p in self.module.outputs}

    @property
    def sizes(self) -> Mapping[str, str]:
        """The names of open sizes in C, by what users call them, in the order of arguments."""
        return {label: name for name, label in self.module.sizes.items()}

    @property
    def results(self) -> tuple[tuple[tuple[int, ...], Any], ...]:
        """The shape and the numpy type of each output; fixed extents only."""
        return tuple((p.extents, p.dtype.numpy) for p in self.module.outputs)

    def write(self, path: Path, weights: Path | None = None, test: str = "") -> None:
        """Write the files, all of them or none.

        path : of the C file; its header and, if there is one, its test are beside it
        test : the text of a program that tests it

        Raises
        ------
        FileError : a file cannot be written.
        """
        files: dict[str | Path, bytes] = {
            path: self.code.encode(),
            path.with_name(f"{self.name}.h"): self.header.encode(),
        }
        if test:
            files[path.with_name(f"{self.name}_test.c")] = test.encode()
        if weights is not None:
            files[weights] = self.weights
        write_files(files)

    def __str__(self) -> str:
        text = f"{self.name} for {self.isa}: {len(self.code) / 2**20:.1f} MiB of C"
        if self.weights:
            text += f", {len(self.weights) / 2**20:.1f} MiB of weights"
        if not self.module.sizes:
            bound = self.module.bound
            text += f", workspace {self.workspace} bytes ({bound} are the least of any plan)"
        return f"{text}\ncompile with: {command(self.module)}"


def named_after(path: str | os.PathLike[str]) -> str:
    """The name of a module after that of its file."""
    stem = Path(path).stem
    return re.sub(r"\W", "_", stem, flags=re.ASCII)


def convention_of(threads: str) -> Convention:
    """How exported C uses threads.

    Raises
    ------
    ArgumentError : there is no such choice.
    """
    if threads not in THREADS:
        raise ArgumentError(f"threads is {threads!r}; there are {', '.join(THREADS)}")
    return THREADS[threads]
