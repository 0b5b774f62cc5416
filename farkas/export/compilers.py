"""Compilers of exported C: this machine's for processors of its kind, zig's for all others.

zig is a C compiler (clang) with the C libraries of many platforms, which PyPI has as ``ziglang``.
"""

from __future__ import annotations

import importlib.util
import platform
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from poly.errors import ArgumentError, ToolchainError
from poly.machine.isa import Isa
from runtime.cpu.toolchain import find_toolchain, first_lines, run_command

#: The choice of zig, instead of the path of a compiler.
ZIG = "zig"
#: For how many seconds a compiler may run.
SECONDS = 1800.0

#: By architecture, as `Isa.architecture`: what it is called in names of platforms, and zig's name
#: of the platform, with the oldest glibc that is worth having.
_PLATFORMS: Mapping[str, tuple[str, str]] = {
    "__x86_64__": ("x86_64", "x86_64-linux-gnu.2.17"),
    "__aarch64__": ("aarch64", "aarch64-linux-gnu.2.17"),
    "__riscv": ("riscv64", "riscv64-linux-gnu.2.31"),
    "__wasm_simd128__": ("wasm32", "wasm32-wasi"),
}
_SAME: Mapping[str, str] = {"amd64": "x86_64", "arm64": "aarch64"}


@dataclass(frozen=True)
class LibraryCompiler:
    """A compiler of libraries for one kind of processor.

    command : its first words; archiver : those of what makes static libraries
    processor : what it compiles for, as names of platforms have it
    """

    command: tuple[str, ...]
    archiver: tuple[str, ...]
    processor: str

    @property
    def is_zig(self) -> bool:
        """Whether it is zig."""
        return "ziglang" in self.command

    def compile(self, words: Sequence[str], folder: Path) -> None:
        """Run it.

        Raises
        ------
        ToolchainError : it fails.
        """
        _run((*self.command, *words), folder)

    def archive(self, library: str, objects: Sequence[str], folder: Path) -> None:
        """Make a static library, the same one each time.

        Raises
        ------
        ToolchainError : there is nothing that makes any, or it fails.
        """
        _run((*self.archiver, "rcsD", library, *objects), folder)


def _run(line: tuple[str, ...], folder: Path) -> None:
    done = run_command(line, str(folder), SECONDS)
    if done.code is None:
        raise ToolchainError(f"{' '.join(line[:4])}: no end after {SECONDS:.0f} seconds")
    if done.code != 0:
        raise ToolchainError(f"{' '.join(line[:4])} failed:\n{first_lines(done.errors)}")


def find_compiler(isas: Sequence[Isa], cc: str | None = None) -> LibraryCompiler:
    """The compiler of a library for some instruction sets.

    cc : the path of a compiler, or ``zig``; by default this machine's if it has such a processor

    Raises
    ------
    ArgumentError : the instruction sets belong to several architectures.
    ToolchainError : no compiler; see `runtime.cpu.toolchain.find_toolchain`.
    """
    processors = {_PLATFORMS[isa.architecture] for isa in isas if isa.architecture}
    if len(processors) > 1:
        raise ArgumentError(
            f"a library is for processors of one kind, and {', '.join(x.name for x in isas)} are "
            "for several: export one for each"
        )
    here = _host()
    processor, target = next(iter(processors), (here, ""))
    if cc != ZIG and (cc is not None or processor == here):
        command = find_toolchain(cc).command
        return LibraryCompiler(command, (shutil.which("ar") or "ar",), processor)
    if not target:
        target = next((t for name, t in _PLATFORMS.values() if name == here), "native")
    zig = _zig(processor)
    return LibraryCompiler((*zig, "cc", "-target", target), (*zig, "ar"), processor)


def compiler_name(isas: Sequence[Isa]) -> str:
    """What a C compiler for some instruction sets is called here: ``cc``, or GNU's for others."""
    processors = {_PLATFORMS[isa.architecture][0] for isa in isas if isa.architecture}
    if len(processors) != 1 or processors == {_host()}:
        return "cc"
    (processor,) = processors
    return "clang --target=wasm32" if processor == "wasm32" else f"{processor}-linux-gnu-gcc"


def _host() -> str:
    name = platform.machine().lower()
    return _SAME.get(name, name)


def _zig(processor: str) -> tuple[str, ...]:
    if importlib.util.find_spec("ziglang") is None:
        raise ToolchainError(
            f"compiling for {processor} needs a compiler for it, such as zig, which is not "
            "installed: pip install '.[cross]' in a clone of Farkas; or name one with cc=, on the "
            "command line --cc"
        )
    return (sys.executable, "-m", "ziglang")
