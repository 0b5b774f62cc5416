"""`Exported`: the files of a module, and what they hold."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from codegen.c.convention import THREADS, Convention
from codegen.c.header_text import header_text
from codegen.c.module import Module
from codegen.c.module_text import code_text, command
from farkas.console.files import write_files
from farkas.export.compilers import compiler_name
from poly.errors import ArgumentError


@dataclass(frozen=True, eq=False)
class Exported:
    """C that was exported, or what was made of it.

    Attributes
    ----------
    module : what the C was made of
    examples : the open sizes, by their names in C, for which it was made
    files : the files that were written, with their sizes
    """

    module: Module
    examples: Mapping[str, int] = field(default_factory=dict)
    files: Mapping[Path, int] = field(default_factory=dict)

    @property
    def isa(self) -> str:
        """The instruction sets that it is for."""
        return ", ".join(section.isa.name for section in self.module.sections)

    @cached_property
    def code(self) -> str:
        """The text of the C file."""
        return code_text(self.module)

    @cached_property
    def header(self) -> str:
        """The text of the header."""
        return header_text(self.module)

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

    def write(self, path: Path, weights: Path | None = None, test: str = "") -> Exported:
        """Write the C file and what belongs to it, all of the files or none.

        path : of the C file; its header and, if there is one, its test are beside it
        test : the text of a program that tests it

        Raises
        ------
        FileError : a file cannot be written.
        """
        files: dict[str | Path, bytes] = {path: self.code.encode()}
        if test:
            files[path.with_name(f"{self.name}_test.c")] = test.encode()
        return self.written(files | self.beside(path, weights))

    def beside(self, path: Path, weights: Path | None) -> dict[str | Path, bytes]:
        """The files that code for C needs: the header, and the weights if each run is passed them.

        path : of the code
        """
        files: dict[str | Path, bytes] = {
            path.with_name(f"{self.name}.h"): self.header.encode(),
        }
        return files if weights is None else {**files, weights: self.weights}

    def written(self, files: Mapping[str | Path, bytes]) -> Exported:
        """The same, with its files, which are written; all of them or none.

        Raises
        ------
        FileError : a file cannot be written.
        """
        write_files(files)
        return replace(self, files={Path(path): len(data) for path, data in files.items()})

    def __str__(self) -> str:
        lines = [f"{self.name} for {self.isa}"]
        lines += [f"  {path.name}: {_size(size)}" for path, size in self.files.items()]
        if not self.module.sizes:
            bound = self.module.bound
            lines[0] += f": workspace {self.workspace} bytes ({bound} are the least of any plan)"
        texts = [path.name for path in self.files if path.suffix == ".c"]
        if texts:
            cc = compiler_name([section.isa for section in self.module.sections])
            lines.append(f"compile with: {command(self.module, cc, texts)}")
        return "\n".join(lines)


def _size(count: int) -> str:
    """Bytes, in a unit that fits."""
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.1f} KiB"


def named_after(path: str | os.PathLike[str], form: str = "c") -> str:
    """The name of a module after that of its file, see `farkas.export.forms`."""
    stem = Path(path).stem
    if form in ("shared", "static"):
        stem = stem.removeprefix("lib")
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
