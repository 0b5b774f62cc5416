"""Find and describe the C compiler; `runtime.cpu.compile_c` runs it.

Everything that starts a compiler does so with a time limit and, on failure, raises a
`ToolchainError` that says what to do.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from poly.errors import ToolchainError

#: Flags that every supported compiler has; the rest is probed, see `find_toolchain`.
#: Nothing reads errno or floating-point exceptions, and honouring them slows vector code down.
BASE_FLAGS = (
    "-std=gnu11", "-O2", "-fPIC", "-fwrapv", "-fno-math-errno", "-fno-trapping-math",
    "-Wall", "-Wextra", "-Wno-psabi",  # no vector is passed between translation units
)  # fmt: skip
NATIVE = "-march=native"
#: gcc's models of AMD processors treat a vector in memory as cheap as one in a register, and load
#: it again for each use: stencils, whose vectors cross cache lines, then take up to 1.4 times as
#: long.  Its model of Intel's AVX-512 does not, but by default prefers shorter vectors.
TUNE = ("-mtune=skylake-avx512", "-mprefer-vector-width=512")
#: gcc 12 puts arrays of different scopes into the same place on the stack although one of them is
#: still in use, where -fivopts has hidden its address: an LSTM of tests/poly/strategy overwrote its
#: packed operand.
NO_REUSE = ("-fstack-reuse=none",)
OPENMP = "-fopenmp"
#: With these, clang's code calls an OpenMP library, but none is linked.
UNLINKED = ("-Xclang", OPENMP)
#: Without OpenMP, its pragmas are comments.
UNKNOWN_PRAGMAS = "-Wno-unknown-pragmas"
NO_OPENMP = (
    f"{OPENMP} does not work: kernels run on one thread; install the compiler's OpenMP library "
    "(libgomp for gcc, libomp for clang)"
)

_PROBE = """\
#include <math.h>
#include <stdint.h>
#if defined _OPENMP && !defined UNLINKED
#include <omp.h>
#endif
int probe(int32_t n, const float *x);
int probe(int32_t n, const float *x) {
    float s = 0;
#ifdef _OPENMP
#pragma omp parallel for num_threads(n) reduction(+:s)
#endif
    for (int32_t i = 0; i < n; i++) s += x[i];
    return (int)expf(s);
}
"""


@dataclass(frozen=True)
class Toolchain:
    """One C compiler and the flags with which it builds kernels on this machine.

    Attributes
    ----------
    path : str               absolute path of the program that is run
    arguments : tuple        the words after the program in every command (``ccache`` -> ``gcc``)
    kind : str               ``gcc`` or ``clang``
    version : tuple of int   e.g. ``(12, 2, 0)``
    target : str             e.g. ``x86_64-linux-gnu``
    flags : tuple of str     flags to compile a translation unit
    cpu : str                the processor that ``-march=native`` stood for
    unlinked : tuple         flags for code that calls an OpenMP library which is not linked, for
                             the threads of `runtime.cpu.openmp_pool`; empty if there are none
    remembered : str         None if it was found here; else it may not be there, and this is what
                             `runtime.cpu.remembered.at_hand` looks for, a path or ""
    own_threads : bool       whether kernels run on the threads of `runtime.cpu.openmp_pool`, where
                             that is possible, and not on those of the compiler's OpenMP library
    notes : tuple of str     what this compiler lacks, in words, for `farkas show` and messages
    """

    path: str
    kind: str
    version: tuple[int, ...]
    target: str
    flags: tuple[str, ...]
    cpu: str
    arguments: tuple[str, ...] = ()
    link_flags: tuple[str, ...] = ("-shared",)
    libraries: tuple[str, ...] = ("-lm",)
    notes: tuple[str, ...] = ()
    unlinked: tuple[str, ...] = ()
    remembered: str | None = None
    own_threads: bool = True

    @property
    def command(self) -> tuple[str, ...]:
        """The first words of every compiler command."""
        return (self.path, *self.arguments)

    @property
    def openmp(self) -> bool:
        """Whether parallel loops run in parallel with these flags."""
        return OPENMP in self.flags

    @property
    def identity(self) -> str:
        """Everything that affects the machine code made from a source; part of cache keys."""
        parts = (
            self.kind, ".".join(map(str, self.version)), self.target, *self.command, *self.flags,
            *self.link_flags, *self.libraries, self.cpu,
        )  # fmt: skip
        return "\n".join(parts)

    def __str__(self) -> str:
        version = ".".join(map(str, self.version))
        return f"{self.kind} {version} for {self.target} at {' '.join(self.command)}"


def find_toolchain(path: str | None = None) -> Toolchain:
    """Find and describe a C compiler.

    The first of these is used: `path`, the environment variable ``CC`` (a path, or a command with
    arguments, quoted as in a shell), then ``gcc``, ``clang`` and ``cc`` on the search path.  A
    compiler given by `path` or ``CC`` is used or refused, never silently replaced by another.

    Once per process, the compiler is probed for its version and for whether ``-march=native`` and
    ``-fopenmp`` work; one that lacks either still works, and `Toolchain.notes` says so.  With clang
    for Linux, kernels run on several threads whether or not its OpenMP library is installed.

    Raises
    ------
    ToolchainError : no compiler; `path` is not a program; it is neither gcc nor clang; or it
        cannot build a shared library.
    """
    if path is not None:
        return describe_compiler((path,), "cc=")
    words = _words_of_cc()
    if words:
        return describe_compiler(words, "$CC: ")
    for name in ("gcc", "clang", "cc"):
        found = shutil.which(name)
        if found is not None:
            return describe_compiler((found,))
    raise ToolchainError("no C compiler was found: install gcc or clang, or pass cc=…")


def _words_of_cc() -> tuple[str, ...]:
    """The command in ``CC``, which may be just the path of a compiler; empty if not set."""
    given = os.environ.get("CC", "").strip()
    if shutil.which(given) is not None:
        return (given,)
    try:
        words = tuple(shlex.split(given))
    except ValueError as error:
        raise ToolchainError(f"$CC is {given!r}, not valid shell syntax: {error}") from None
    if len(words) > 1 and shutil.which(words[0]) is None:
        raise ToolchainError(
            f"$CC: {words[0]} does not exist; quote a path with blanks, as in CC=\"'a b/gcc' -m64\""
        )
    return words


def _executable(name: str, where: str) -> str:
    found = shutil.which(name)
    if found is not None:
        return os.path.abspath(found)
    advice = "install gcc or clang, or pass cc=…"
    if os.path.isdir(name):
        raise ToolchainError(f"{where}{name} is a directory, not a compiler; {advice}")
    if os.path.exists(name):
        raise ToolchainError(f"{where}{name} is not executable; {advice}")
    first, _, rest = name.strip().partition(" ")
    if rest and shutil.which(first) is not None:
        advice = "a compiler with arguments is given in $CC"
    raise ToolchainError(f"{where}{name} does not exist; {advice}")


def describe_compiler(command: tuple[str, ...], where: str = "") -> Toolchain:
    """The toolchain of a command; `where` says who asked for it.

    Raises
    ------
    ToolchainError : see `find_toolchain`.
    """
    command = (_executable(command[0], where), *command[1:])
    real = os.path.realpath(command[0])
    status = os.stat(real)
    return _describe_cached(command, real, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=16)
def _describe_cached(command: tuple[str, ...], real: str, mtime: int, size: int) -> Toolchain:
    """Describe a compiler; the last three arguments identify the version of the file."""
    macros = _macros((*command, NATIVE)) or _macros(command)
    if "__clang__" in macros:
        kind, prefix = "clang", "__clang_{}__"
        names = ("major", "minor", "patchlevel")
    elif "__GNUC__" in macros:
        kind, prefix = "gcc", "__{}__"
        names = ("GNUC", "GNUC_MINOR", "GNUC_PATCHLEVEL")
    else:
        raise ToolchainError(
            f"{' '.join(command)} is neither gcc nor clang; install one of them, or pass cc=…"
        )
    version = tuple(int(macros.get(prefix.format(n), "0")) for n in names)
    target = run_command((*command, "-dumpmachine"), None, 30).output.strip()
    tune = TUNE if kind == "gcc" and "__AVX512F__" in macros else ()
    tune = (*tune, *NO_REUSE) if kind == "gcc" else tune
    flags, notes = _probe_flags(command, tune)
    unlinked = UNLINKED if kind == "clang" and "linux" in target else ()
    if unlinked and _builds(command, (*flags, *unlinked, "-DUNLINKED")) is not None:
        unlinked = ()
    if OPENMP not in flags and not unlinked:
        notes = (*notes, NO_OPENMP)
    return Toolchain(
        path=command[0],
        arguments=command[1:],
        kind=kind,
        version=version,
        target=target or platform.machine(),
        flags=flags,
        cpu=cpu_identity(),
        notes=notes,
        unlinked=unlinked,
    )


def _macros(command: tuple[str, ...]) -> dict[str, str]:
    """The compiler's predefined macros; empty if it does not behave like a C compiler."""
    done = run_command((*command, "-dM", "-E", "-x", "c", os.devnull), None, 30)
    if done.code != 0:
        return {}
    pairs = re.findall(r"^#define (\w+) (.*)$", done.output, re.MULTILINE)
    return dict(pairs)


def _probe_flags(
    command: tuple[str, ...], tune: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The flags that work, and a note if the processor's own instructions are not among them.

    tune : flags that are optional
    """
    wanted = (*BASE_FLAGS, NATIVE, OPENMP, *tune)
    if _builds(command, wanted) is None:
        return wanted, ()
    problem = _builds(command, BASE_FLAGS)
    if problem is not None:
        raise ToolchainError(
            f"{' '.join(command)} cannot build a shared library; "
            f"is the C library's development package installed?\n{problem}"
        )
    flags, notes = list(BASE_FLAGS), []
    if _builds(command, (*flags, NATIVE)) is None:
        flags.append(NATIVE)
        flags += tune if tune and _builds(command, (*flags, *tune)) is None else ()
    else:
        notes.append(f"{NATIVE} is not understood: kernels use the baseline instruction set")
    if _builds(command, (*flags, OPENMP)) is None:
        flags.append(OPENMP)
    else:
        flags.append(UNKNOWN_PRAGMAS)
    return tuple(flags), tuple(notes)


def _builds(command: tuple[str, ...], flags: Sequence[str]) -> str | None:
    """None if a small shared library can be built with these flags, else the compiler's output."""
    try:
        with tempfile.TemporaryDirectory(prefix="farkas-") as folder:
            Path(folder, "probe.c").write_text(_PROBE)
            names = ("probe.c", "-o", "probe.so", "-lm")
            line = (*command, *flags, UNKNOWN_PRAGMAS, "-shared", *names)
            done = run_command(line, folder, 60)
            return None if done.code == 0 else first_lines(done.errors)
    except OSError as error:
        raise ToolchainError(
            f"cannot try {' '.join(command)} in a temporary folder: {error.strerror or error}"
        ) from error


@functools.cache
def cpu_identity() -> str:
    """The processor, by name and features: code built for one must not run on another.

    Virtual machines and clusters give one name to processors with different features, so a hash of
    the features is included.
    """
    name, features = platform.processor(), ""
    with contextlib.suppress(OSError):
        fields: dict[str, str] = {}
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            fields.setdefault(key.strip(), value.strip())
        name = fields.get("model name", name)
        names = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU implementer",
                 "CPU architecture", "CPU variant", "CPU part")  # fmt: skip
        features = "\n".join(" ".join(sorted(fields.get(n, "").split())) for n in names)
    digest = hashlib.sha256(features.encode()).hexdigest()[:16]
    return f"{platform.machine()} {name or 'unknown'} {digest}"


@dataclass(frozen=True)
class Done:
    """A finished command; `code` is None if it timed out."""

    code: int | None
    output: str
    errors: str


def run_command(line: tuple[str, ...], folder: str | None, timeout: float) -> Done:
    """Run a command in its own process group, so that a time-out ends its children too."""
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        process = subprocess.Popen(
            line,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise ToolchainError(f"{line[0]} cannot be run: {error.strerror}") from error
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        _end_group(process)
        return Done(None, "", "")
    except BaseException:
        _end_group(process)
        raise
    return Done(process.returncode, output, errors)


def _end_group(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.communicate()


def first_lines(text: str, count: int = 12) -> str:
    """The first lines of a compiler's output, and how many were left out."""
    lines = text.strip().splitlines()
    if len(lines) <= count:
        return "\n".join(lines)
    return "\n".join([*lines[:count], f"… and {len(lines) - count} more lines"])
