"""Compare instructions with their meaning on this machine, and remember those that agree.

Each runs in a process of its own, compiled as kernels are, and once more with the address and
undefined-behaviour sanitizers, on the operands of `runtime.intrinsics.cases`.  That is a test and
not a proof; but it runs what can be run of an instruction at the limits of its types and memory.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from codegen.c.instruction_text import definitions
from poly.errors import CacheError, IntrinsicError, ToolchainError
from poly.ir.intrinsics import VectorIntrinsic
from poly.machine.cpu import cpu_flags
from runtime.common.cache import Cache, digest
from runtime.cpu.remembered import at_hand
from runtime.cpu.toolchain import Done, Toolchain, run_command
from runtime.intrinsics.cases import cases_for
from runtime.intrinsics.expected import Expected, expected
from runtime.intrinsics.harness import BEYOND, PLACEMENTS, program_text
from runtime.intrinsics.witness import describe, named, shown
from runtime.reference.scalar_semantics import Array

#: Change it when other cases are tried.
_FORMAT = "1"
_PROOF = "intrinsic.json"
_SECONDS = 20.0
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g1")


@dataclass(frozen=True)
class Verdict:
    """What is known of an instruction on this machine.

    cases : operands that it was run on; `known` : some time before
    refused : why it must not be used, "" if it may; lacks : features that this machine has not
    sanitized : whether it ran under sanitizers, too
    """

    intrinsic: VectorIntrinsic
    cases: int = 0
    known: bool = False
    refused: str = ""
    lacks: tuple[str, ...] = ()
    sanitized: bool = True

    @property
    def passed(self) -> bool:
        return not self.refused and not self.lacks

    def __str__(self) -> str:
        name = self.intrinsic.name
        if self.lacks:
            return f"{name}: not checked, this machine has no {', '.join(self.lacks)}"
        if self.refused:
            return f"{name}: refused: {self.refused}"
        how = "" if self.sanitized else ", without sanitizers, which this compiler lacks"
        known = ", as found before" if self.known else ""
        return f"{name}: agrees with its meaning on {self.cases} cases{known}{how}"


def check(
    intrinsics: Sequence[VectorIntrinsic], toolchain: Toolchain, cache: Cache
) -> list[Verdict]:
    """Compare instructions with their meaning, except those that have been before.

    Raises
    ------
    ToolchainError : the compiler cannot be run, or the check itself failed.
    """
    found: dict[int, Verdict] = {}
    for n, i in enumerate(intrinsics):
        lacks = tuple(f for f in i.feature.split() if f not in cpu_flags())
        known = None if lacks else _recall(i, toolchain, cache)
        if lacks or known is not None:
            found[n] = known or Verdict(i, lacks=lacks)
    left = [n for n in range(len(intrinsics)) if n not in found]
    if left:
        toolchain = at_hand(toolchain)
        with cache.workspace() as folder:
            made = _run_all([intrinsics[n] for n in left], toolchain, folder)
        found.update(zip(left, made, strict=True))
        for n in left:
            if found[n].passed:
                _remember(found[n], toolchain, cache)
    return [found[n] for n in range(len(intrinsics))]


def require(intrinsics: Sequence[VectorIntrinsic], toolchain: Toolchain, cache: Cache) -> None:
    """Refuse instructions that this compiler makes something else of than their meaning.

    Raises
    ------
    IntrinsicError : the first of them.
    """
    for verdict in check(intrinsics, toolchain, cache) if intrinsics else ():
        if not verdict.passed:
            raise refusal(verdict, f" with {toolchain}")


def refusal(verdict: Verdict, where: str = "") -> IntrinsicError:
    """The error for an instruction that must not be used."""
    name = verdict.intrinsic.name
    if verdict.lacks:
        missing = ", ".join(verdict.lacks)
        return IntrinsicError(name, f"it cannot be checked{where}: this machine has no {missing}")
    return IntrinsicError(
        name,
        f"it does something else than `{verdict.intrinsic.statement}`{where}: {verdict.refused}",
        verdict.refused,
    )


# --- what is remembered ----------------------------------------------------------------------


def _key(i: VectorIntrinsic, toolchain: Toolchain) -> str:
    t = toolchain
    by = (t.kind, ".".join(map(str, t.version)), t.target, *t.command, *t.flags, t.cpu)
    text = "\n".join(definitions([i])) or i.template
    return digest("intrinsic", _FORMAT, i.text, text, *by)


def _recall(i: VectorIntrinsic, toolchain: Toolchain, cache: Cache) -> Verdict | None:
    entry = cache.get(_key(i, toolchain))
    if entry is None:
        return None
    try:
        found = json.loads(entry.read(_PROOF))
    except CacheError:
        return None
    return Verdict(i, int(found["cases"]), known=True, sanitized=bool(found["sanitized"]))


def _remember(verdict: Verdict, toolchain: Toolchain, cache: Cache) -> None:
    data = {"name": verdict.intrinsic.name, "cases": verdict.cases, "sanitized": verdict.sanitized}
    cache.keep(_key(verdict.intrinsic, toolchain), {_PROOF: json.dumps(data).encode()})


# --- compiling and running -------------------------------------------------------------------


def _run_all(
    intrinsics: Sequence[VectorIntrinsic], toolchain: Toolchain, folder: Path
) -> list[Verdict]:
    """Compile them together, or one by one if that fails, so that each has its own message."""
    plain = _build(intrinsics, toolchain, (), folder)
    if isinstance(plain, str):
        if len(intrinsics) > 1:
            return [v for i in intrinsics for v in _run_all([i], toolchain, folder)]
        return [Verdict(intrinsics[0], refused=f"its C text does not compile: {plain}")]
    careful = _build(intrinsics, toolchain, SANITIZERS, folder)
    programs = [plain] if isinstance(careful, str) else [plain, careful]
    verdicts = []
    for n, i in enumerate(intrinsics):
        cases = cases_for(i)
        wanted = expected(i, cases)
        count = len(cases[i.target])
        refused = ""
        for program in programs:
            refused = refused or _run(i, n, program, cases, wanted, folder)
        verdicts.append(Verdict(i, count, False, refused, sanitized=len(programs) > 1))
    return verdicts


def _build(
    intrinsics: Sequence[VectorIntrinsic],
    toolchain: Toolchain,
    flags: tuple[str, ...],
    folder: Path,
) -> Path | str:
    """The program, or the compiler's complaint."""
    name = f"check{len(flags)}"
    (folder / f"{name}.c").write_text(program_text(intrinsics), encoding="utf-8")
    line = (*toolchain.command, *toolchain.flags, *flags, f"{name}.c", "-o", name)
    done = run_command((*line, *toolchain.libraries), str(folder), 120)
    return folder / name if done.code == 0 else _complaint(done, name)


def _complaint(done: Done, name: str) -> str:
    if done.code is None:
        return "the compiler takes longer than two minutes"
    lines = [re.sub(rf"^.*{name}\.[co][^ ]*:", "", x).strip() for x in done.errors.splitlines()]
    telling = [x for x in lines if re.search(r"error:|undefined reference|implicit decl", x)]
    return "\n  ".join((telling or lines)[:3])


def _run(
    i: VectorIntrinsic,
    number: int,
    program: Path,
    cases: Mapping[str, Array],
    wanted: Expected,
    folder: Path,
) -> str:
    """Run one instruction on all cases; returns what is wrong, "" if nothing is."""
    tensors = list(i.meaning.tensors)
    count = len(cases[i.target])
    columns = [np.ascontiguousarray(cases[t]).reshape(count, -1).view(np.uint8) for t in tensors]
    given = np.concatenate(columns, axis=1)
    (folder / "given").write_bytes(given.tobytes())
    words = (str(program), str(number), str(count), "given", "result")
    done = run_command(words, str(folder), _SECONDS)
    row = given.shape[1] + 1
    data = np.frombuffer((folder / "result").read_bytes(), np.uint8)
    rows = data[: len(data) // row * row].reshape(-1, row)
    if done.code in (3, 4):
        raise ToolchainError(f"{i.name}: the check failed: {done.errors.strip()[:200]}")
    problem = _difference(i, cases, wanted, given, rows)
    if problem or (done.code == 0 and len(rows) == count * len(PLACEMENTS)):
        return problem
    return _stopped(i, cases, done, len(rows))


def _stopped(i: VectorIntrinsic, cases: Mapping[str, Array], done: Done, rows: int) -> str:
    """How it ended before it was done, and with which operands."""
    case, placement = divmod(rows, len(PLACEMENTS))
    beyond = re.search(rf"^{BEYOND} (\w+) (\w+)", done.errors, re.MULTILINE)
    sanitizer = re.search(r"runtime error: .*|ERROR: AddressSanitizer: [^(]*", done.errors)
    if done.code is None:
        what = f"it does not end within {_SECONDS:g} s"
    elif beyond is not None and beyond[2] != "inside":
        end = "after its last" if beyond[2] == "after" else "before its first"
        what = f"it accesses {beyond[1]} {end} element"
    elif sanitizer is not None:
        what = sanitizer[0].strip()
    elif done.code < 0:
        name = signal.Signals(-done.code).name
        why = {
            "SIGILL": "an instruction that this processor does not have",
            "SIGFPE": "a division by zero, or one that overflows",
            "SIGSEGV": "memory that it must not access, or operands that are not aligned",
            "SIGABRT": "the C library found an error",
        }.get(name, "a signal")
        what = f"it was stopped by {name}: {why}"
    else:
        what = f"it ended the program with exit code {done.code}"
    if case >= len(cases[i.target]):
        return what
    at = ", ".join(
        f"{named(t, (0,) * (a.ndim - 1))} = {shown(a[case].reshape(-1)[0])}, …"
        for t, a in cases.items()
        if a[case].size
    )
    return f"{what} (operands {PLACEMENTS[placement]})\n  with {at}"


def _difference(
    i: VectorIntrinsic,
    cases: Mapping[str, Array],
    wanted: Expected,
    given: Array,
    rows: Array,
) -> str:
    """The first case in which memory is not what it should be; "" if there is none."""
    whole = len(rows) // len(PLACEMENTS)
    rows = rows[: whole * len(PLACEMENTS)].reshape(whole, len(PLACEMENTS), rows.shape[1])
    tensors = list(i.meaning.tensors)
    wrong = np.zeros(rows.shape[:2], bool)
    parts: dict[str, Array] = {}
    first = 0
    for t in tensors:
        size = i.meaning.dtypes[t].bytes * int(np.prod(i.shape(t)))
        parts[t] = np.ascontiguousarray(rows[:, :, first : first + size])
        if t != i.target:
            wrong |= (parts[t] != given[:whole, None, first : first + size]).any(axis=2)
        first += size
    got = parts[i.target].view(i.meaning.dtypes[i.target].numpy)
    got = got.reshape(*rows.shape[:2], *i.shape(i.target))
    part = wanted.part(whole)
    with np.errstate(all="ignore"):
        agrees = np.stack([part.agrees(got[:, p]) for p in range(len(PLACEMENTS))], axis=1)
    beside = rows[:, :, -1] != 0
    wrong |= beside | ~agrees.all(axis=tuple(range(2, agrees.ndim)))
    if not wrong.any():
        return ""
    case, p = (int(n) for n in np.argwhere(wrong)[0])
    if not agrees[case, p].all():
        element = tuple(int(n) for n in np.argwhere(~agrees[case, p])[0])
        one = {t: a[case] for t, a in cases.items()}
        at = (case, *element)
        right = wanted.values[at].astype(got.dtype)
        return describe(i, one, element, right, got[(case, p, *element)], PLACEMENTS[p])
    if beside[case, p]:
        return f"it writes next to {tensors[int(rows[case, p, -1]) - 1]} ({PLACEMENTS[p]})"
    for t in tensors:
        before = np.ascontiguousarray(cases[t][case])
        after = parts[t][case, p].view(before.dtype).reshape(before.shape)
        changed = (
            np.argwhere(before.view(np.uint8) != after.view(np.uint8)) if t != i.target else ()
        )
        if len(changed):
            return f"it writes to {t}, and only {i.target} may change"
    raise AssertionError("unreachable")
