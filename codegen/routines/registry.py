"""`CRoutine`: the C function of a routine of a graph, made for the types of its tensors.

A function is passed its inputs, its outputs, its memory if it needs some, and its arguments.  It
returns 0; or 1 if elements of an input cannot be used, such as an index that is out of range.
Texts are written once for all types, with ``@0@`` for the type of the first tensor and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from codegen.c.type_names import C_TYPES, PATTERNS, suffix
from poly.ir.dtypes import DType
from poly.ir.graph import Graph, Routine

#: Fills the rest of a text: parts in C by their names, from the types of all tensors and the mode.
Parts = Callable[[Sequence[DType], str], Mapping[str, str]]


@dataclass(frozen=True)
class Form:
    """How a kind of routine is written.

    parameters : in C, after the tensors; text : the body; parts : what its names in ``@…@`` are
    """

    parameters: str
    text: str
    parts: Parts


@dataclass(frozen=True)
class CRoutine:
    """A function: its name, and its text."""

    symbol: str
    text: str


_FORMS: dict[str, Form] = {}


def _no_parts(types: Sequence[DType], mode: str) -> Mapping[str, str]:
    return {}


def declare(kind: str, parameters: str, text: str, parts: Parts = _no_parts) -> None:
    """Declare a kind of routine."""
    _FORMS[kind] = Form(parameters, text, parts)


def c_routine(routine: Routine, graph: Graph) -> CRoutine:
    """The function of a routine of a graph."""
    form = _FORMS[routine.kind]
    types = [graph.values[v].dtype for v in (*routine.inputs, *routine.outputs)]
    names = [PATTERNS.get(t.name, suffix(t)) for t in types]
    symbol = "_".join(filter(None, ["fk", routine.kind, routine.mode, *names]))
    given = len(routine.inputs)
    tensors = [f"const {C_TYPES[t.name]} *x{n}" for n, t in enumerate(types[:given])]
    tensors += [f"{C_TYPES[t.name]} *y{n}" for n, t in enumerate(types[given:])]
    parts = {str(n): C_TYPES[t.name] for n, t in enumerate(types)}
    text = form.text
    for name, part in {**form.parts(types, routine.mode), **parts}.items():
        text = text.replace(f"@{name}@", part)
    parameters = ", ".join(filter(None, [*tensors, form.parameters]))
    comment = f"/* {' '.join(filter(None, [routine.kind.replace('_', ' '), routine.mode]))} */"
    return CRoutine(symbol, f"{comment}\nstatic int {symbol}({parameters})\n{{\n{text}}}\n")
