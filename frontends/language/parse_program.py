"""The language of comprehensions: text in, verified `Program` out.

>>> text = "def f(float32 A[M,K], float32 B[K,N]) -> (C) { C[i,j] +=! A[i,k] * B[k,j] }"
>>> print(parse_program(text))
def f(float32 A[M,K], float32 B[K,N]) -> (float32 C[M,N]) {
    C[i, j] +=! A[i, k] * B[k, j] where i in 0:M, j in 0:N, k in 0:K
}
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from frontends.language.infer import check_without_types, infer_program
from frontends.language.parser import parse
from frontends.language.signature import undeclared
from frontends.language.syntax import Source, accesses
from poly.errors import LanguageError, ProgramError, Span
from poly.ir.dtypes import BOOL, FLOAT32, INT64, DType
from poly.ir.program import Program, verify_program
from poly.sets.check_bounds import BoundsError, check_bounds


def parse_program(
    text: str, dtypes: Mapping[str, DType] | None = None, name: str | None = None
) -> Program:
    """The program of a text: inferred, verified, and proved in bounds.

    `dtypes` gives the element types that the text does not declare, which are those of a
    one-liner's inputs; `name` overrides the program's name.  Conditions on the sizes
    that keep the program in bounds are added to its `constraints`.

    Raises
    ------
    LanguageError : for every mistake, with a caret where its position is known.
    """
    source = parse(text)
    program = infer_program(source, dtypes or {}, name)
    try:
        return check_bounds(verify_program(program))
    except ProgramError as error:
        raise _located(error, source, program) from None


#: Element types to try for inputs whose types are not known yet.
_GUESSES = (FLOAT32, INT64, BOOL)


def check_text(text: str) -> Program | None:
    """Check a one-liner before the element types of its inputs are known.

    Names, ranges and bounds do not depend on types, but a program has types, so the first of a few
    guesses that fits is checked and returned.  None if none fits.

    Raises
    ------
    LanguageError : for mistakes that do not depend on element types.
    """
    source = parse(text)
    check_without_types(source)
    names = [e.name for e in undeclared(source)]
    for guess in _GUESSES:
        try:
            program = infer_program(source, dict.fromkeys(names, guess), None)
        except LanguageError:
            continue
        try:
            return check_bounds(verify_program(program))
        except BoundsError as error:
            raise _located(error, source, program) from None
        except ProgramError:
            continue
    return None


def undeclared_inputs(text: str) -> tuple[tuple[str, int], ...]:
    """Name and rank of each input that a one-liner leaves undeclared, in order of appearance.

    Empty for a definition, which declares all its inputs.

    Raises
    ------
    LanguageError : if the text cannot be parsed, or a tensor is used with two ranks.
    """
    source = parse(text)
    if source.is_definition:
        return ()
    return tuple((e.name, e.rank) for e in undeclared(source))


def _located(error: ProgramError, source: Source, program: Program) -> LanguageError:
    """The same error with a caret under the statement or access that it names."""
    span: Span | None = None
    hint = error.hint if isinstance(error, BoundsError) else ""
    message = str(error.args[0]) if error.args else str(error)
    named = re.search(r"\bstatement ([A-Za-z_]\w*)", message)
    label = error.statement if isinstance(error, BoundsError) else named[1] if named else None
    for statement, node in zip(program.statements, source.statements, strict=True):
        if statement.name != label:
            continue
        span = node.span
        if isinstance(error, BoundsError) and error.access is not None:
            tensor = error.access.tensor
            wanted = str(error.access).replace(" ", "")
            for root in (node.value, node.target, *node.clauses):
                for access in accesses(root):
                    shown = source.text[access.span.start : access.span.end]
                    if access.tensor.name == tensor and re.sub(r"\s", "", shown) == wanted:
                        return LanguageError(message, source.text, access.span, hint)
            for root in (node.value, node.target, *node.clauses):
                for access in accesses(root):
                    if access.tensor.name == tensor:
                        return LanguageError(message, source.text, access.span, hint)
    return LanguageError(message, source.text, span, hint)
