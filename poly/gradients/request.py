"""What is differentiated, with respect to what, and the tensors that lie between."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from poly.errors import GradientError
from poly.gradients.cancelling import cancelling
from poly.gradients.derivatives import ONE, flows
from poly.ir.program import Program, Tensor


def active_tensors(program: Program, wrt: Iterable[str], of: Iterable[str]) -> frozenset[str]:
    """The float tensors that depend on `wrt` and on which `of` depend."""
    dtypes = program.dtypes

    def grown(start: Iterable[str], step: dict[str, set[str]]) -> set[str]:
        found, left = set(start), list(start)
        while left:
            for n in step.get(left.pop(), set()) - found:
                found.add(n)
                left.append(n)
        return found

    uses: dict[str, set[str]] = {}
    sources: dict[str, set[str]] = {}
    for s in program.statements:
        t = s.target.tensor
        if not dtypes[t].is_float:
            continue
        flowing = flows(s.value, ONE, dtypes, frozenset(n for n, d in dtypes.items() if d.is_float))
        for r in flowing:
            uses.setdefault(r.tensor, set()).add(t)
            sources.setdefault(t, set()).add(r.tensor)
    found = grown([n for n in wrt if dtypes[n].is_float], uses) & grown(of, sources)
    return frozenset(found) - cancelling(program, of)


def check_request(program: Program, wrt: Sequence[str], of: Sequence[str]) -> None:
    """Check that tensors may have a derivative.

    Raises
    ------
    GradientError : one is not there, not a float, or named twice.
    """
    _check_names("input", wrt, program.inputs)
    _check_names("output", of, program.outputs)


def _check_names(kind: str, names: Sequence[str], tensors: Sequence[Tensor]) -> None:
    known = {t.name: t for t in tensors}
    if not names:
        raise GradientError(f"a gradient needs an {kind}: there are {', '.join(known)}")
    for n in names:
        if n not in known:
            raise GradientError(f"there is no {kind} {n!r}; there are {', '.join(known)}")
        if not known[n].dtype.is_float:
            raise GradientError(f"{kind} {n} is {known[n].dtype}: only floats have gradients")
        if names.count(n) > 1:
            raise GradientError(f"{kind} {n} is named twice")


def blocks_of(program: Program, recompute: Mapping[str, int | None]) -> dict[int, int | None]:
    """The blocks that write tensors, with the lengths of their segments.

    recompute : tensors whose states are computed again, with the steps of a segment or None

    Raises
    ------
    GradientError : no block writes one of them.
    """
    found: dict[int, int | None] = {}
    for name, length in recompute.items():
        blocks = {s.block for s in program.statements if s.target.tensor == name and s.block}
        if not blocks:
            known = dict.fromkeys(s.target.tensor for s in program.statements if s.block)
            there = f"; they compute {', '.join(known)}" if known else ": there are none"
            raise GradientError(f"recompute: no block computes {name!r}{there}")
        found |= dict.fromkeys(blocks, length)
    return found


def check_active(
    wrt: Sequence[str], of: Sequence[str], active: frozenset[str], new: Mapping[str, str]
) -> None:
    """Check that every output depends on an input, and every input counts.

    new : the names that outputs have now

    Raises
    ------
    GradientError : one does not.
    """
    for n in wrt:
        if n not in active:
            raise GradientError(f"{', '.join(of)} does not depend on {n}")
    for n in of:
        if new.get(n, n) not in active:
            raise GradientError(f"{n} does not depend on {', '.join(wrt)}")


def named(
    program: Program, wrt: str | Sequence[str] | None, of: str | Sequence[str] | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The inputs and outputs that a request names; None is all floats that depend on each other.

    Raises
    ------
    GradientError : there are none.
    """
    inputs = _names(wrt, [t.name for t in program.inputs])
    outputs = _names(of, [t.name for t in program.outputs])
    if wrt is not None:
        _check_names("input", inputs, program.inputs)
    if of is not None:
        _check_names("output", outputs, program.outputs)
    if wrt is not None and of is not None:
        return inputs, outputs
    some = dependent(program, inputs, outputs)
    if not all(some):
        given = "an input" if wrt is None else " or ".join(inputs)
        if of is not None:
            raise GradientError(f"{' or '.join(outputs)} does not depend on {given} by floats")
        raise GradientError(f"no output of {program.name} depends on {given} by floats")
    return (inputs if wrt is not None else some[0]), (outputs if of is not None else some[1])


def dependent(
    program: Program, wrt: Sequence[str], of: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Those of some inputs on which some outputs depend by floats, and those outputs."""
    dtypes = program.dtypes
    inputs = [n for n in wrt if n in dtypes and dtypes[n].is_float]
    outputs = [n for n in of if n in dtypes and dtypes[n].is_float]
    reached = active_tensors(program, inputs, outputs)
    return tuple(n for n in inputs if n in reached), tuple(n for n in outputs if n in reached)


def _names(names: str | Sequence[str] | None, every: Sequence[str]) -> tuple[str, ...]:
    if names is None or isinstance(names, str):
        return tuple(every) if names is None else (names,)
    if not isinstance(names, Iterable):
        raise GradientError(f"{names!r} names no tensor; there are {', '.join(every)}")
    return tuple(names)
