"""From resolved statements to a program: ranges, shapes and element types, to a fixed point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from frontends.language.draft import Draft, check_types, drafts_of, first_use, typed
from frontends.language.linear import interval
from frontends.language.literals import check_stored
from frontends.language.ranges import Answer, Question, infer_ranges, tightest
from frontends.language.resolve import Scope, did_you_mean
from frontends.language.signature import Entry, Signature, signature_of
from frontends.language.syntax import Source
from poly.errors import LanguageError, ProgramError
from poly.ir.dtypes import DType
from poly.ir.expr import Expr, Read, dtype_of_all, indices_of, reads_of
from poly.ir.linear_form import render
from poly.ir.program import Program, Range, Statement, Tensor


def infer_program(source: Source, dtypes: Mapping[str, DType], name: str | None) -> Program:
    """The program of a parsed text, with every range, shape and element type.

    `dtypes` gives the element types of inputs that are not declared; for other tensors it
    overrides what would be inferred.

    Raises
    ------
    LanguageError : for unknown or misspelt names, ranges and types that cannot be inferred, and
        operands that do not mix.
    """
    signature = _with_dtypes(source, signature_of(source), dtypes)
    drafts = drafts_of(source, signature)
    solved = _solve(source, signature, drafts)
    entries = _infer_dtypes(source, signature.update(solved.entries), drafts)
    statements = tuple(_statement(d, solved.answers[d.name]) for d in drafts)
    chosen = name or (source.name.name if source.name else "f")
    return Program(
        chosen,
        signature.sizes,
        tuple(_tensor(entries[e.name]) for e in signature.inputs),
        tuple(_tensor(entries[e.name]) for e in signature.outputs),
        tuple(_tensor(entries[e.name]) for e in signature.temps),
        statements,
        signature.constraints,
        source.text,
    )


def check_without_types(source: Source) -> None:
    """Find the mistakes of a text that do not depend on element types.

    Raises
    ------
    LanguageError : for unknown or misspelt names, and ranges that cannot be inferred.
    """
    signature = signature_of(source)
    _solve(source, signature, drafts_of(source, signature))


def _with_dtypes(source: Source, signature: Signature, dtypes: Mapping[str, DType]) -> Signature:
    entries = signature.entries
    found = {}
    for tensor, dtype in dtypes.items():
        if tensor not in entries:
            near = did_you_mean(tensor, list(entries))
            raise LanguageError(
                f"there is no tensor {tensor!r} to give the type {dtype}", source.text, None, near
            )
        entry = entries[tensor]
        if entry.dtype not in (None, dtype):
            raise LanguageError(
                f"{tensor} is declared as {entry.dtype}, not {dtype}", source.text, entry.span
            )
        found[tensor] = replace(entry, dtype=dtype)
    signature = signature.update(found)
    missing = [e for e in signature.inputs if e.dtype is None]
    if missing:
        names = ", ".join(e.name for e in missing)
        raise LanguageError(
            f"the element type of {names} is not known",
            source.text,
            missing[0].span,
            "declare it in def f(float32 …) -> (…) { … }, or give dtypes",
        )
    return signature


# --- ranges and shapes ----------------------------------------------------------------------


@dataclass(frozen=True)
class _Solved:
    answers: Mapping[str, Answer]
    entries: Mapping[str, Entry]


def _solve(source: Source, signature: Signature, drafts: tuple[Draft, ...]) -> _Solved:
    entries = dict(signature.entries)
    answers: dict[str, Answer] = {}
    pending = list(drafts)
    while pending:
        # First a statement that reads only tensors of known shape; failing that (a recurrence),
        # the first that can be resolved without them.
        chosen: Draft | None = None
        for patient in (True, False):
            for d in pending:
                unknown = any(
                    entries[r.tensor].shape is None
                    for e in (d.value, *d.guards)
                    for r in reads_of(e)
                )
                if patient and unknown:
                    continue
                answer = infer_ranges(_question(d, signature, entries))
                if not answer.unresolved:
                    answers[d.name], chosen = answer, d
                    break
            if chosen is not None:
                break
        if chosen is None:
            raise _unresolved(source, signature, pending, entries)
        pending.remove(chosen)
        _add_shape(source, signature, chosen.target.tensor, drafts, answers, entries)
    return _Solved(answers, entries)


def _question(d: Draft, signature: Signature, entries: Mapping[str, Entry]) -> Question:
    accesses: list[tuple[Expr, Expr]] = []
    every = (d.value, *d.guards, *d.target.indices)
    reads = (d.target, *(r for e in every for r in reads_of(e)))
    for read in dict.fromkeys(reads):
        shape = entries[read.tensor].shape
        if shape is not None:
            accesses += zip(read.indices, shape, strict=True)
    return Question(
        d.indices,
        {i: (lo, hi) for i, lo, hi in d.explicit},
        d.guards,
        tuple(accesses),
        signature.sizes,
        signature.constraints,
    )


def _unresolved(
    source: Source,
    signature: Signature,
    pending: list[Draft],
    entries: Mapping[str, Entry],
) -> LanguageError:
    """The error for the first statement that cannot be resolved."""
    d = pending[0]
    index = infer_ranges(_question(d, signature, entries)).unresolved[0]
    others = [*(i for i in d.indices if i != index), *signature.sizes]
    near = did_you_mean(index, [o for o in others if len(o) > 1])
    bound = next(((lo, hi) for i, lo, hi in d.explicit if i == index), None)
    if bound is not None:
        message = f"the range of {index}, {bound[0]} to {bound[1]}, is not affine"
        hint = "multiply and divide indices and sizes by literals only"
    elif any(index in indices_of(g) for g in d.guards):
        message = f"the range of {index} cannot be inferred, because its accesses are guarded"
        hint = near or f"add it: where {index} in 0:…"
    else:
        message = f"the range of {index} cannot be inferred"
        hint = near or f"add it: where {index} in 0:…"
        if index[:1].isupper() and index not in d.free and not near:
            hint += f"; or, if {index} is a size, use it in the shape of a tensor"
    return LanguageError(message, source.text, first_use(d.node, index), hint)


def _add_shape(
    source: Source,
    signature: Signature,
    tensor: str,
    drafts: tuple[Draft, ...],
    answers: Mapping[str, Answer],
    entries: dict[str, Entry],
) -> None:
    """Infer the shape of a tensor once all statements that write it are resolved."""
    writers = [d for d in drafts if d.target.tensor == tensor]
    if entries[tensor].shape is not None or any(d.name not in answers for d in writers):
        return
    extents: list[list[Expr]] = [[] for _ in range(entries[tensor].rank)]
    for d in writers:
        for n, index in enumerate(d.target.indices):
            bounds = interval(index, answers[d.name].intervals)
            if reads_of(index) and any(not reads_of(o.target.indices[n]) for o in writers):
                continue  # it is clamped to what others write
            if bounds is None:
                raise LanguageError(
                    f"the extent of {tensor} cannot be inferred from {index}, which is not affine",
                    source.text,
                    d.node.target.indices[n].span,
                    f"declare the shape of {tensor}",
                )
            extents[n].append(render(bounds[1] + 1))
    shape = tuple(tightest("max", e, signature.sizes, signature.constraints) for e in extents)
    entries[tensor] = replace(entries[tensor], shape=shape)


def _statement(d: Draft, answer: Answer) -> Statement:
    ranges: tuple[Range, ...] = tuple(answer.ranges[i] for i in d.indices)
    return Statement(
        d.name, d.target, d.op, d.init, d.value, ranges, d.reductions, answer.guards, d.node.span,
        d.block,
    )  # fmt: skip


# --- element types --------------------------------------------------------------------------


def _infer_dtypes(
    source: Source, signature: Signature, drafts: tuple[Draft, ...]
) -> Mapping[str, Entry]:
    entries = signature.entries
    known = {n: e.dtype for n, e in entries.items() if e.dtype is not None}
    scope = Scope(source.text, signature.sizes, {n: e.rank for n, e in entries.items()})
    open_ = [n for n, e in entries.items() if e.dtype is None]
    # Each round can only widen types, and there are few types, so this ends soon.
    for _ in range(4 * len(open_) + 1):
        before = dict(known)
        for tensor in open_:
            writers = [
                d
                for d in drafts
                if d.target.tensor == tensor and all(r.tensor in known for r in reads_of(d.value))
            ]
            if writers:
                known[tensor] = _joined(writers, known, scope, entries[tensor])
        if known == before:
            break
    for d in drafts:
        for e in (d.value, *d.target.indices):
            for r in reads_of(e):
                _check_known(r, known, source, d)
        value = check_types(d, known, scope)
        target = known[d.target.tensor]
        if (value.kind == "b") != (target.kind == "b"):
            raise scope.fail(
                f"{d.target.tensor} is {target}, but this value is {value}",
                d.node.value.span,
                f"cast it: {target}(…)",
            )
        if target.kind == "b" and d.op in ("+=", "*="):
            raise scope.fail(
                f"{d.op} is not defined on bool",
                d.node.span,
                "'any' is max=!, 'all' is min=!; to count, cast to an integer",
            )
        check_stored(d.node.value, d.value, target, known, scope)
    return {n: replace(e, dtype=known[n]) for n, e in entries.items()}


def _check_known(read: Read, known: Mapping[str, DType], source: Source, d: Draft) -> None:
    if read.tensor not in known:
        raise LanguageError(
            f"the element type of {read.tensor} cannot be inferred",
            source.text,
            d.node.span,
            f"declare it, as in float32 {read.tensor}[…]",
        )


def _joined(writers: list[Draft], known: dict[str, DType], scope: Scope, entry: Entry) -> DType:
    """The type that holds all the values; literals take the type of the other values."""
    for d in writers:
        typed(d.node.value, known, scope)
    try:
        return dtype_of_all([d.value for d in writers], known)
    except ProgramError:
        raise scope.fail(
            f"the statements that write {entry.name} give it types that do not mix",
            entry.span,
            "declare it, or cast the values",
        ) from None


def _tensor(entry: Entry) -> Tensor:
    assert entry.dtype is not None and entry.shape is not None
    return Tensor(entry.name, entry.dtype, entry.shape)
