"""Build a shared library from C text: units are compiled as they arrive, then linked."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

from poly.errors import ToolchainError
from runtime.cpu.toolchain import Toolchain, first_lines, run_command

_SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.[ch]\Z")


def compile_shared(
    toolchain: Toolchain,
    sources: Mapping[str, str],
    extra_flags: Sequence[str],
    out: Path,
    timeout: float = 600.0,
) -> str:
    """Build a shared library from C text; returns the compiler's warnings, empty if none.

    Parameters
    ----------
    sources : file name to text; ``.c`` files are translation units, compiled in parallel and
        linked; ``.h`` files are put in the same folder.
    extra_flags : further flags, given to every compilation and to the link.
    out : the library to write; it appears complete or not at all.
    timeout : seconds that one compiler command may take.

    Raises
    ------
    ToolchainError : the compiler failed, was killed or took too long.  The message has the
        first lines of its output, and the folder where the sources were kept for inspection.
    """
    with Compilation(toolchain, extra_flags, out, timeout) as work:
        # Headers first: units are compiled as soon as they are added.
        for name in sorted(sources, key=lambda n: n.endswith(".c")):
            work.add(name, sources[name])
        return work.finish()


class Compilation(AbstractContextManager["Compilation"]):
    """A shared library being built: each unit is compiled while the next ones are generated.

    Arguments as for `compile_shared`.  An unfinished build leaves nothing behind.
    sources : the files added so far, by name
    """

    def __init__(
        self,
        toolchain: Toolchain,
        extra_flags: Sequence[str],
        out: Path,
        timeout: float = 600.0,
    ) -> None:
        self._toolchain, self._out, self._timeout = toolchain, out, timeout
        self._flags = (*toolchain.flags, *extra_flags)
        self.sources: dict[str, str] = {}
        self._first = ""  # a single unit is compiled and linked in one command
        self._units: dict[str, Future[str]] = {}
        out.parent.mkdir(parents=True, exist_ok=True)
        self._folder = tempfile.TemporaryDirectory(prefix=".farkas-", dir=out.parent)
        self._pool = ThreadPoolExecutor(os.cpu_count() or 1)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._folder.cleanup()

    def add(self, name: str, text: str) -> None:
        """Add one more file.

        Raises
        ------
        ToolchainError : the name is not that of a C source file.
        """
        if not _SAFE_NAME.match(name):
            raise ToolchainError(f"{name!r} is not a valid name for a C source file")
        self.sources[name] = text
        Path(self._folder.name, name).write_text(text, encoding="utf-8")
        if not name.endswith(".c"):
            return
        if not self._first:
            self._first = name
            return
        for unit in dict.fromkeys((self._first, name)):
            if unit not in self._units:
                self._units[unit] = self._pool.submit(self._compile, unit)

    def finish(self) -> str:
        """Wait for the units, link them, and move the library into place; returns warnings.

        Raises
        ------
        ToolchainError : see `compile_shared`.
        """
        if not self._first:
            raise ToolchainError("there is no C source file to compile")
        library = Path(self._folder.name, "library.so")
        try:
            warnings = [unit.result() for unit in self._units.values()]
            files = [f"{unit}.o" for unit in self._units] or [self._first]
            line = (*self._flags, *self._toolchain.link_flags, *files, "-o", library.name)
            warnings.append(self._command(*line, *self._toolchain.libraries))
            if not library.is_file():
                raise _CompilerError(f"{self._toolchain} succeeded, but wrote no library")
        except _CompilerError as failure:
            raise ToolchainError(f"{failure}\n{_keep(self.sources)}") from None
        library.chmod(0o700)
        library.replace(self._out)
        return "".join(warnings)

    def _compile(self, unit: str) -> str:
        return self._command(*self._flags, "-c", unit, "-o", f"{unit}.o")

    def _command(self, *words: str) -> str:
        """Run one compiler command; returns its standard error."""
        line = (*self._toolchain.command, *words)
        shown, kind = shlex.join(line), self._toolchain.kind
        done = run_command(line, self._folder.name, self._timeout)
        if done.code == 0:
            return done.errors
        if done.code is None:
            raise _CompilerError(f"{kind} took longer than {self._timeout:g} s: {shown}")
        if done.code < 0:
            name = signal.Signals(-done.code).name
            raise _CompilerError(f"{kind} was killed by {name} (out of memory, perhaps): {shown}")
        raise _CompilerError(
            f"{kind} failed with exit code {done.code}: {shown}\n{first_lines(done.errors)}"
        )


class _CompilerError(Exception):
    """One compiler command that failed; the text is for the user."""


def _keep(sources: Mapping[str, str]) -> str:
    """Keep the sources of a failed compilation for inspection; says where."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="farkas-failed-"))
    except OSError as error:
        return f"the sources could not be kept: {error.strerror}"
    try:
        for name, text in sources.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        return f"the sources could not be kept: {error.strerror}"
    return f"the sources were kept in {folder}"
