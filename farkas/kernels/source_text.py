"""The forms of a user's text: a definition, bare comprehensions, or a numpy einsum string."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from frontends.language.einsum import einsum_program, is_einsum, operand_names
from frontends.language.parse_program import check_text, parse_program, undeclared_inputs
from poly.errors import ArgumentError, ProgramError
from poly.ir.dtypes import FLOAT32, DType, dtype_of
from poly.ir.program import Program, check_program_name, specialise
from poly.ir.size_values import known_sizes

#: One element type: ``"float32"``, ``numpy.float32``, ``numpy.dtype(…)`` or a `DType`.
DTypeLike = str | DType | np.dtype[Any] | type

#: Element types of inputs: one for all, one for each in order, or by name.
DTypes = DTypeLike | Sequence[DTypeLike] | Mapping[str, DTypeLike]

Kind = Literal["definition", "comprehensions", "einsum"]


@dataclass(frozen=True)
class Text:
    """A recognised text, and what it leaves open.

    Attributes
    ----------
    text : str           as written
    kind : str           ``definition``, ``comprehensions`` or ``einsum``
    inputs : tuple       name and rank of each input whose element type the text does not give
    """

    text: str
    kind: Kind
    inputs: tuple[tuple[str, int], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the inputs that need an element type, in order."""
        return tuple(name for name, _ in self.inputs)

    def program(self, dtypes: Mapping[str, DType], name: str | None = None) -> Program:
        """The program, given an element type for each of `names`.

        Raises
        ------
        LanguageError : a mistake in the text.
        ArgumentError : `name` is not a valid program name.
        """
        if name is not None:
            _check_name(name)
        if self.kind == "einsum":
            program = einsum_program(self.text, [dtypes[n] for n in self.names])
            return _renamed(program, name)
        return parse_program(self.text, dtypes, name)

    def check(self, sizes: Mapping[str, int] | None, name: str | None) -> None:
        """Check a text and its sizes as far as possible without element types.

        Raises
        ------
        LanguageError, ArgumentError : see `program` and `fix_sizes`.
        """
        if name is not None:
            _check_name(name)
        if self.kind == "einsum":
            program: Program | None = einsum_program(self.text, [FLOAT32] * len(self.inputs))
        else:
            program = check_text(self.text)
        if program is not None:
            fix_sizes(program, sizes)


def read_text(text: str | Program) -> Text:
    """Recognise a text, or take that of a program; a leading byte-order mark is dropped.

    Raises
    ------
    ArgumentError : it is not a string.
    LanguageError : it cannot be parsed.
    """
    if isinstance(text, Program):
        text = str(text)
    if not isinstance(text, str):
        raise ArgumentError(f"the text is a {type(text).__name__}, expected a string")
    text = text.removeprefix("\ufeff")
    if is_einsum(text):
        names = operand_names(text)
        operands = text.partition("->")[0].split(",")
        ranks = ["".join(o.split()) for o in operands]
        return Text(text, "einsum", tuple(zip(names, map(len, ranks), strict=True)))
    inputs = undeclared_inputs(text)
    return Text(text, "comprehensions" if inputs else "definition", inputs)


def parse(
    text: str,
    dtypes: DTypes | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    name: str | None = None,
) -> Program:
    """The program that a text means.

    Parameters
    ----------
    text : a definition, bare comprehensions such as ``C[i,j] +=! A[i,k] * B[k,j]``, or an einsum
        string such as ``ij,jk->ik``
    dtypes : element types of the inputs, which all but a definition need: one for all, a
        sequence in the order of the inputs, or a mapping by name
    sizes : values for sizes, which are then fixed in the program
    name : the program's name

    Raises
    ------
    LanguageError : a mistake in the text.
    ArgumentError : `dtypes` or `sizes` that do not fit it.
    """
    source = read_text(text)
    return fix_sizes(source.program(match_dtypes(source, dtypes), name), sizes)


def match_dtypes(source: Text, dtypes: DTypes | None) -> dict[str, DType]:
    """Element types by name, from any of the forms in which they may be given.

    Raises
    ------
    ArgumentError : not an element type, an unknown name, or one missing.
    """
    names = source.names
    found: dict[str, DType]
    if isinstance(dtypes, Mapping):
        found = {str(n): one_dtype(d, str(n)) for n, d in dtypes.items()}
    elif dtypes is None:
        found = {}
    elif source.kind == "definition":
        raise ArgumentError("a definition declares the element types of its inputs: omit dtypes=…")
    elif isinstance(dtypes, (str, DType, np.dtype, type)):
        found = dict.fromkeys(names, one_dtype(dtypes, "every input"))
    elif isinstance(dtypes, Sequence):
        if len(dtypes) != len(names):
            raise ArgumentError(
                f"dtypes has {len(dtypes)} entries, but the inputs are {', '.join(names)}"
            )
        found = {n: one_dtype(d, n) for n, d in zip(names, dtypes, strict=True)}
    else:
        raise ArgumentError(f"dtypes is a {type(dtypes).__name__}, expected element types")
    missing = [n for n in names if n not in found]
    if missing:
        raise ArgumentError(
            f"the element type of {', '.join(missing)} is not known: "
            'pass dtypes="float32", say, or dtypes={…} by name'
        )
    unknown = [n for n in found if n not in names]
    if unknown and source.kind == "einsum":
        raise ArgumentError(f"there is no operand {unknown[0]}; there are {', '.join(names)}")
    return found


def one_dtype(value: Any, what: str) -> DType:
    """One element type.

    Raises
    ------
    ArgumentError : naming `what` it was meant for.
    """
    try:
        return dtype_of(value)
    except (ProgramError, TypeError, ValueError) as error:
        reason = error if isinstance(error, ProgramError) else f"{value!r} is not an element type"
        raise ArgumentError(f"{what}: {reason}") from None


def fix_sizes(program: Program, sizes: Mapping[str, int] | None) -> Program:
    """The program for given values of some sizes.

    Raises
    ------
    ArgumentError : an unknown size, a value that is not a non-negative integer, or a precondition
        of the program that does not hold.
    """
    if not sizes:
        return program
    try:
        return specialise(program, known_sizes(program, sizes))
    except ProgramError as error:
        raise ArgumentError(str(error)) from None


def _check_name(name: str) -> None:
    if not isinstance(name, str):
        raise ArgumentError(f"name is a {type(name).__name__}, expected a string")
    try:
        check_program_name(name)
    except ProgramError as error:
        if len(name) > 80:
            raise ArgumentError(
                "name is not a valid program name: letters, digits and _ only"
            ) from None
        raise ArgumentError(str(error)) from None


def _renamed(program: Program, name: str | None) -> Program:
    return replace(program, name=name) if name else program
