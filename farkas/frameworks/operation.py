"""An operator that a text defines: its inputs, its outputs, their shapes, and its kernels."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from farkas.kernels.gradients import Recomputed, segments_asked
from farkas.kernels.kernel import Kernel, compile
from farkas.kernels.source_text import read_text
from farkas.targets.compile_program import ScheduleLike
from farkas.targets.find_target import CompilerLike
from poly.errors import ArgumentError, GradientError
from poly.ir.dtypes import DTYPES, FLOAT32, DType
from poly.ir.expr import INTEGER_MEANING, Const, Expr, Op, Size, sizes_of
from poly.ir.program import Program
from runtime.common.arguments import undetermined, wrong_dtype

if TYPE_CHECKING:
    from poly.gradients.split import Halves

#: Tensors whose states a gradient computes again, with the steps of their segments, None if open.
Segments = tuple[tuple[str, int | None], ...]


class Operation:
    """What a text computes, for any element types that it leaves open.

    Attributes
    ----------
    text : as written; name : of the program, made of the text if that gives none
    inputs, outputs : names, in order
    asked : the sizes that no input's shape determines, which calls give by name
    exact, schedule : as for `farkas.compile`
    recompute : tensors whose states the gradient computes again, with the steps of their segments
    compiler : gives the C compiler for kernels on the CPU, None for the default
    conversion : how the framework converts an array to an element type, for messages

    Raises
    ------
    LanguageError : a mistake in the text.
    GradientError : no block computes a tensor of `recompute`.
    """

    def __init__(
        self,
        text: str,
        exact: bool = False,
        schedule: ScheduleLike = None,
        compiler: Callable[[], CompilerLike] = lambda: None,
        conversion: str = ".astype('{}')",
        recompute: Recomputed = (),
    ) -> None:
        self.text, self.exact, self.schedule = text, exact, schedule
        self.recompute: Segments = tuple(segments_asked(recompute).items())
        self._compiler, self._conversion = compiler, conversion
        self._source = read_text(text)
        self._programs: dict[tuple[DType, ...], Program] = {}
        self._kernels: dict[str, Kernel] = {}
        self._lock = threading.Lock()
        sample = self.program([FLOAT32] * len(self._source.names))
        self.inputs = tuple(t.name for t in sample.inputs)
        self.outputs = tuple(t.name for t in sample.outputs)
        self.asked = undetermined(sample)
        if self.recompute:
            from poly.gradients.request import blocks_of

            blocks_of(sample, dict(self.recompute))
        named = self._source.kind == "definition"
        self.name = sample.name if named else f"{sample.name}_{sample.digest}"

    def program(self, dtypes: Sequence[DType]) -> Program:
        """The program for inputs of some element types, as far as the text leaves them open."""
        names = self._source.names
        key = tuple(dtypes) if names else ()
        if key not in self._programs:
            self._programs[key] = self._source.program(dict(zip(names, key, strict=False)))
        found = self._programs[key]
        for tensor, dtype in zip(found.inputs, dtypes, strict=False):
            if names or tensor.dtype == dtype:
                continue
            want = tensor.dtype.name
            problem = wrong_dtype(dtype.name, want, self._conversion.format(want))
            raise ArgumentError(f"{tensor.name} {problem}")
        return found

    def check_given(self, sizes: Mapping[str, Any]) -> None:
        """Check that a call is given the sizes that it needs.  Raises `ArgumentError`."""
        if {*sizes} == {*self.asked}:
            return
        call = ", ".join((*self.inputs, *(f"{size}=…" for size in self.asked)))
        example = f"{self.name}({call})"
        if any(name in self.inputs for name in sizes):
            raise ArgumentError(f"{self.name} takes its inputs by position: {example}")
        unknown = [name for name in sizes if name not in self.asked]
        if unknown:
            raise ArgumentError(f"{self.name} takes no size {unknown[0]} by name: {example}")
        missing = [name for name in self.asked if name not in sizes]
        many = "s" if len(missing) > 1 else ""
        raise ArgumentError(f"{self.name} needs the size{many} {', '.join(missing)}: {example}")

    def check_count(self, count: int, what: str) -> None:
        """Check how many arrays, or what they are called, a call is given.

        Raises
        ------
        ArgumentError : another number than there are inputs.
        """
        if count != len(self.inputs):
            takes = f"{len(self.inputs)} {what}{'s' if len(self.inputs) != 1 else ''}"
            raise ArgumentError(
                f"{self.name} takes {takes} ({', '.join(self.inputs)}), but {count} "
                f"{'was' if count == 1 else 'were'} given"
            )

    def is_like(self, other: Operation) -> bool:
        """Whether another one computes the same in the same order."""
        mine = self.text, self.exact, self.schedule, self.recompute
        return mine == (other.text, other.exact, other.schedule, other.recompute)

    def kernel(self, target: str) -> Kernel:
        """The kernel for a target, which is compiled when it is first called."""
        with self._lock:
            if target not in self._kernels:
                self._kernels[target] = compile(
                    self.text,
                    exact=self.exact,
                    schedule=self.schedule,
                    target=target,
                    cc=self._compiler() if target == "cpu" else None,
                )
            return self._kernels[target]


def gradient_of(
    program: Program, wrt: Sequence[str], of: Sequence[str], keep: Collection[str] | None = None,
    recompute: Segments = (),
) -> Halves | None:  # fmt: skip
    """The gradient with respect to those inputs on which some outputs depend; None if to none.

    keep : what is kept, None: what is worth it
    recompute : tensors whose states are computed again, with the steps of their segments

    Raises
    ------
    GradientError : the program cannot be reversed.
    """
    from poly.gradients.request import dependent
    from poly.gradients.split import halves

    inputs, outputs = dependent(program, wrt, of)
    if not inputs:
        return None
    return halves(program, inputs, outputs, keep, unit=False, recompute=dict(recompute))


def whole_gradient_of(program: Program, recompute: Segments = ()) -> Halves | None:
    """The gradient of all outputs with respect to all inputs; None if it is not one that a forward
    pass could help: why is said when it is asked for.
    """
    names = [t.name for t in program.inputs], [t.name for t in program.outputs]
    try:
        return None if program.updated else gradient_of(program, *names, recompute=recompute)
    except GradientError:
        return None


def dtype_called(name: str, what: str) -> DType:
    """The element type that a framework calls so.

    what : its arrays, for the message

    Raises
    ------
    ArgumentError : there is none.
    """
    if name not in DTYPES:
        raise ArgumentError(f"{what} of {name} are not supported; of {', '.join(DTYPES)}")
    return DTYPES[name]


#: What operators of extents do with numbers, or with a framework's symbols.
Meaning = Mapping[str, Callable[..., Any]]


def output_shapes(
    program: Program,
    shapes: Sequence[Sequence[Any]],
    sizes: Mapping[str, Any],
    meaning: Meaning = INTEGER_MEANING,
) -> tuple[list[tuple[Any, ...]], dict[str, Any]]:
    """The shapes of the outputs, and the values of all sizes; either may be symbolic.

    shapes : of the inputs, in order; sizes : those that no shape determines
    meaning : what symbols can do, if it is not all that numbers can

    Raises
    ------
    ArgumentError : an input has another rank; an operator has no meaning for symbols.
    """
    env = dict(sizes)
    for tensor, shape in zip(program.inputs, shapes, strict=True):
        if len(shape) != tensor.rank:
            raise ArgumentError(
                f"{tensor.name} has rank {len(shape)} (shape {tuple(shape)}), expected rank "
                f"{tensor.rank}: {tensor}"
            )
        for extent, value in zip(tensor.shape, shape, strict=True):
            if isinstance(extent, Size):
                env.setdefault(extent.name, value)
    _solve(program, shapes, env, meaning)
    return [tuple(extent_value(e, env, meaning) for e in t.shape) for t in program.outputs], env


def _solve(
    program: Program, shapes: Sequence[Sequence[Any]], env: dict[str, Any], meaning: Meaning
) -> None:
    """Find sizes that are in extents such as ``2*N + 1`` only."""
    found = True
    while found:
        found = False
        for tensor, shape in zip(program.inputs, shapes, strict=True):
            for extent, value in zip(tensor.shape, shape, strict=True):
                unknown = [name for name in sizes_of(extent) if name not in env]
                if len(unknown) == 1:
                    zero, one = (
                        extent_value(extent, {**env, unknown[0]: n}, meaning) for n in (0, 1)
                    )
                    if one != zero:
                        env[unknown[0]] = (value - zero) // (one - zero)
                        found = True


def extent_value(expr: Expr, env: Mapping[str, Any], meaning: Meaning = INTEGER_MEANING) -> Any:
    """The value of an extent, of numbers or of what counts like them.

    Raises
    ------
    ArgumentError : an operator has no meaning.
    """
    if isinstance(expr, Const):
        return expr.value
    if isinstance(expr, Size):
        return env[expr.name]
    assert isinstance(expr, Op), expr
    if expr.fn not in meaning:
        raise ArgumentError(f"{expr} cannot be computed from symbolic sizes")
    return meaning[expr.fn](*(extent_value(a, env, meaning) for a in expr.args))
