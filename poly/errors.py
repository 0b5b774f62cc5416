"""Every error that Farkas raises on purpose, under one base; each says whose mistake it is.

========================  =========================================================
error                     what went wrong
========================  =========================================================
`LanguageError`           the text of a comprehension (carries text and position)
`ProgramError`            a program that is well-formed text but has no meaning
`GradientError`           a gradient that does not exist, or that cannot be computed
`ScheduleError`           a schedule request that makes no sense (no such loop, …)
`UndecidedError`          a step that isl could not decide, or loops that it could not generate
`CapacityError`           something that exceeds a buffer, a block of threads, or 64 bits
`IllegalScheduleError`    a transformation that would break a dependence
`IntrinsicError`          an instruction that does something else than its meaning
`ArgumentError`           an array handed to a kernel (dtype, rank, size, stride)
`ToolchainError`          no C compiler, or the C compiler failed
`CacheError`              the on-disk cache cannot be used
`SavedFileError`          a file of `save` that is damaged, or for another machine or version
`ModelError`              an ONNX file that is broken, hostile or inconsistent
`UnsupportedModelError`   an ONNX file with nodes that Farkas cannot compile yet
========================  =========================================================

There are three warnings: `CacheWarning`, if the on-disk cache cannot be written to, `ModelWarning`,
if a model contradicts itself where that does not matter, or stays with scikit-learn, and
`ThreadsWarning`, if kernels run on one thread although several were asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class FarkasError(Exception):
    """Base of all errors that Farkas raises for its user."""


@dataclass(frozen=True)
class Span:
    """A half-open range ``[start, end)`` of character offsets in a source text."""

    start: int
    end: int


class LanguageError(FarkasError):
    """A mistake in the text of a comprehension, shown with a caret under it.

    `text` and `span` may be None when the mistake has no position (an empty text, say).
    """

    def __init__(
        self, message: str, text: str | None = None, span: Span | None = None, hint: str = ""
    ) -> None:
        self.message, self.text, self.span, self.hint = message, text, span, hint
        super().__init__(self._render())

    def _render(self) -> str:
        lines = [self.message]
        if self.text is not None and self.span is not None:
            start = min(max(self.span.start, 0), len(self.text))
            begin = self.text.rfind("\n", 0, start) + 1
            stop = self.text.find("\n", start)
            line = self.text[begin : len(self.text) if stop < 0 else stop]
            number = self.text.count("\n", 0, begin) + 1
            width = max(1, min(self.span.end, begin + len(line)) - start)
            # Tabs stay tabs, so that the caret stands under its column in any terminal.
            pad = "".join("\t" if c == "\t" else " " for c in line[: start - begin])
            gutter = f"{number:>4} | "
            lines += [gutter + line, " " * (len(gutter) - 2) + "| " + pad + "^" * width]
        if self.hint:
            lines.append(f"hint: {self.hint}")
        return "\n".join(lines)


class ProgramError(FarkasError):
    """A program whose values violate the rules of `poly.ir.program`."""


class ScheduleError(FarkasError):
    """A schedule request that cannot be understood: unknown loop, bad factor, wrong nesting."""


class UndecidedError(ScheduleError):
    """A question that isl could not answer within its budget; undecided steps are refused."""


class CapacityError(ScheduleError):
    """Something that exceeds a buffer, a block of threads, or 64 bits."""


class IllegalScheduleError(ScheduleError):
    """A transformation that would run two dependent instances in the wrong order.

    Attributes
    ----------
    primitive : str        the refused step, as written in a script, e.g. ``parallelize mm: k``
    kind : str             ``flow``, ``anti``, ``output`` or ``reduction``
    source, sink : str     the two statement instances, e.g. ``S[0, 0, 0]``; source must come first
    element : str          the array element through which they depend, e.g. ``C[0, 0]``
    sizes : dict           the smallest sizes at which the order breaks, e.g. ``{"N": 2}``
    violation              the `poly.deps.legality.Violation` with all of this as numbers
    schedule, tree         the `fk.Schedule` that the step was applied to, and the tree that it
                           would have made; None outside of a schedule
    """

    schedule: object = None
    tree: object = None

    def __init__(
        self,
        primitive: str,
        kind: str,
        source: str,
        sink: str,
        element: str,
        sizes: dict[str, int] | None = None,
        reason: str = "",
        violation: object = None,
    ) -> None:
        self.violation = violation
        self.primitive, self.kind, self.source, self.sink = primitive, kind, source, sink
        self.element, self.sizes, self.reason = element, dict(sizes or {}), reason
        at = ", ".join(f"{k}={v}" for k, v in self.sizes.items())
        message = (
            f"{primitive} is illegal: {source} must come before {sink} "
            f"({kind} through {element})"
            + (f", first broken at {at}" if at else "")
            + (f"; {reason}" if reason else "")
        )
        super().__init__(message)

    def __reduce__(self) -> tuple[Any, ...]:
        step = (self.primitive, self.kind, self.source, self.sink)
        about = (self.element, self.sizes, self.reason, self.violation)
        return IllegalScheduleError, (*step, *about), self.__dict__


class IntrinsicError(FarkasError):
    """A declared instruction that cannot be used, or that does something else than its meaning.

    Attributes
    ----------
    name : str        the instruction
    witness : str     operands for which it differs, what was expected and what came; "" if it was
                      not run
    """

    def __init__(self, name: str, message: str, witness: str = "") -> None:
        self.name, self.witness = name, witness
        super().__init__(f"{name}: {message}")

    def __reduce__(self) -> tuple[Any, ...]:
        own = str(self).removeprefix(f"{self.name}: ")
        return IntrinsicError, (self.name, own, self.witness)


class ArgumentError(FarkasError):
    """An argument of a kernel or model call that does not match its declaration."""


class ToolchainError(FarkasError):
    """No usable C compiler, or the compiler rejected or miscompiled generated code."""


class CacheError(FarkasError):
    """The on-disk cache cannot be read, written or cleared."""


class SavedFileError(FarkasError):
    """A file of `save` that cannot be loaded here.

    It is damaged, is not a file of `save`, or was saved for another machine or by another version.
    """


class GradientError(FarkasError):
    """A gradient that does not exist, or of a program whose order cannot be reversed."""


class TuningError(FarkasError):
    """A budget that makes no sense, an invalid record, or a kernel that cannot be measured."""


class TuningWarning(UserWarning):
    """Schedules that were accepted, and tried, gave other results than the automatic one; or none
    could be measured.

    They are left out.  Where a program does not amplify rounding errors, other results are a bug of
    Farkas.
    """


class CacheWarning(UserWarning):
    """The on-disk cache cannot be written to; the run continues without it."""


class ThreadsWarning(UserWarning):
    """Kernels run on one thread, because their compiler has no way to share loops."""


class ModelError(FarkasError):
    """A model file that is broken, hostile or inconsistent."""


class ModelWarning(UserWarning):
    """A model declares a value with another shape than it has, which changes no result.

    Or a method of an estimator of scikit-learn is not compiled, and stays as it is.
    """


@dataclass(frozen=True)
class UnsupportedNode:
    """One node that cannot be compiled: where it is, and why."""

    name: str
    operator: str
    opset: int
    reason: str

    def __str__(self) -> str:
        version = f" (opset {self.opset})" if self.opset else ""  # torch's operators have none
        return f"{self.operator}{version} '{self.name}': {self.reason}"


class UnsupportedModelError(ModelError):
    """A sound model with nodes that Farkas cannot compile; `nodes` lists all of them."""

    def __init__(self, nodes: tuple[UnsupportedNode, ...]) -> None:
        self.nodes = tuple(nodes)
        count = len(self.nodes)
        head = f"{count} node{'s' if count != 1 else ''} cannot be compiled:"
        super().__init__("\n".join([head, *(f"  {n}" for n in self.nodes)]))

    def __reduce__(self) -> tuple[Any, ...]:
        return UnsupportedModelError, (self.nodes,), self.__dict__
