"""The tensors and sizes of a text: declared in a definition, derived in a one-liner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from frontends.language.resolve import (
    Scope,
    check_new_name,
    count,
    did_you_mean,
    resolve,
    resolve_dtype,
)
from frontends.language.spelling import is_near
from frontends.language.syntax import (
    Access,
    Declaration,
    Name,
    Node,
    Source,
    accesses,
    names,
)
from poly.errors import LanguageError, ProgramError, Span
from poly.ir.dtypes import DTYPES, DType
from poly.ir.expr import Expr, Size
from poly.ir.operators import FUNCTIONS
from poly.ir.program import check_integer


@dataclass(frozen=True)
class Entry:
    """A tensor as the text declares it; a `dtype` or `shape` of None is to be inferred."""

    name: str
    rank: int
    span: Span
    dtype: DType | None = None
    shape: tuple[Expr, ...] | None = None


@dataclass(frozen=True)
class Signature:
    """The tensors, by role and in order, and the sizes of a text."""

    sizes: tuple[str, ...]
    inputs: tuple[Entry, ...]
    outputs: tuple[Entry, ...]
    temps: tuple[Entry, ...]
    constraints: tuple[Expr, ...] = ()

    @property
    def entries(self) -> dict[str, Entry]:
        """All tensors by name."""
        return {e.name: e for e in (*self.inputs, *self.outputs, *self.temps)}

    def update(self, found: Mapping[str, Entry]) -> Signature:
        """The same roles with other entries."""

        def swap(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
            return tuple(found.get(e.name, e) for e in entries)

        return replace(
            self, inputs=swap(self.inputs), outputs=swap(self.outputs), temps=swap(self.temps)
        )


def signature_of(source: Source) -> Signature:
    """The signature of a definition or a one-liner.

    Raises
    ------
    LanguageError : for names declared twice or not at all, outputs that are never written, and
        names that look like misspellings of others.
    """
    if not source.statements:
        raise LanguageError(
            "there is no statement",
            source.text,
            source.name.span if source.name else None,
            "try C[i,j] +=! A[i,k] * B[k,j]",
        )
    return _definition(source) if source.is_definition else _one_liner(source)


# --- definitions ---------------------------------------------------------------------------


def _definition(source: Source) -> Signature:
    text = source.text
    declared_outputs = [o for o in source.outputs if isinstance(o, Declaration)]
    declarations = [*source.inputs, *declared_outputs, *source.temps]
    sizes = _declared_sizes(source, declarations)
    scope = Scope(
        text, sizes, {d.tensor.name: len(d.shape) for d in declarations}, False, "a shape"
    )
    entries: dict[str, Entry] = {}
    inputs = tuple(_declare(d, scope, entries, ()) for d in source.inputs)
    input_names = tuple(e.name for e in inputs)
    outputs: list[Entry] = []
    written = _written(source)
    for o in source.outputs:
        name = o.tensor if isinstance(o, Declaration) else o
        if any(e.name == name.name for e in outputs):
            raise LanguageError(f"output {name.name} is named twice", text, name.span)
        if isinstance(o, Declaration):
            outputs.append(_declare(o, scope, entries, input_names))
        elif o.name in entries:
            outputs.append(entries[o.name])
        else:
            check_new_name(o, "a tensor", text)
            if o.name in sizes:
                raise LanguageError(f"{o.name} is a size", text, o.span)
            if o.name not in written:
                raise LanguageError(
                    f"output {o.name} is never written",
                    text,
                    o.span,
                    did_you_mean(o.name, list(written)),
                )
            outputs.append(Entry(o.name, len(written[o.name].indices), o.span))
            entries[o.name] = outputs[-1]
    temps = [_declare(d, scope, entries, ()) for d in source.temps]
    for tensor, target in written.items():
        if tensor in sizes:
            raise LanguageError(f"{tensor} is a size", text, target.tensor.span)
        if tensor not in entries:
            check_new_name(target.tensor, "a tensor", text)
            _check_not_misspelt(tensor, [e.name for e in outputs], target, text)
            temps.append(Entry(tensor, len(target.indices), target.tensor.span))
            entries[tensor] = temps[-1]
        elif tensor in input_names and all(e.name != tensor for e in outputs):
            raise LanguageError(
                f"{tensor} is an input and cannot be written",
                text,
                target.span,
                f"list it as an output too, -> ({tensor}), to update it",
            )
    constraint_scope = replace(scope, what="a constraint")
    constraints = tuple(_integer(c, constraint_scope, True) for c in source.constraints)
    return Signature(sizes, inputs, tuple(outputs), tuple(temps), constraints)


def _check_not_misspelt(name: str, outputs: list[str], target: Access, text: str) -> None:
    for other in outputs:
        if is_near(name, other):
            raise LanguageError(
                f"{name} is written, but not declared",
                text,
                target.tensor.span,
                f"did you mean {other!r}? if not, declare {name} as a temporary",
            )


def _declared_sizes(source: Source, declarations: list[Declaration]) -> tuple[str, ...]:
    explicit: dict[str, Name] = {}
    for name in source.sizes:
        check_new_name(name, "a size", source.text)
        if name.name in explicit:
            raise LanguageError(f"size {name.name} is named twice", source.text, name.span)
        explicit[name.name] = name
    tensors = {d.tensor.name for d in declarations}
    found: dict[str, None] = dict.fromkeys(explicit)
    inputs = {n.name for d in source.inputs for e in d.shape for n in names(e)}
    for d in declarations:
        for n in (n for e in d.shape for n in names(e)):
            check_new_name(n, "a size", source.text)
            if n.name in tensors:
                raise LanguageError(f"{n.name} is a tensor, not a size", source.text, n.span)
            if explicit and n.name not in explicit:
                raise LanguageError(
                    f"{n.name} is not among the sizes [{', '.join(explicit)}]",
                    source.text,
                    n.span,
                    did_you_mean(n.name, list(explicit)),
                )
            if n.name not in inputs and not explicit:
                near = [s for s in inputs if is_near(n.name, s)]
                if near:
                    raise LanguageError(
                        f"size {n.name} is not in the shape of any input",
                        source.text,
                        n.span,
                        f"did you mean {near[0]!r}?",
                    )
            found[n.name] = None
    for name in source.sizes:
        if name.name in tensors:
            raise LanguageError(f"{name.name} is a tensor, not a size", source.text, name.span)
    return tuple(found)


def _declare(
    d: Declaration, scope: Scope, entries: dict[str, Entry], updatable: tuple[str, ...]
) -> Entry:
    name = check_new_name(d.tensor, "a tensor", scope.text)
    dtype = resolve_dtype(d.dtype, scope.text)
    shape = tuple(_integer(e, scope) for e in d.shape)
    entry = Entry(name, len(shape), d.span, dtype, shape)
    before = entries.get(name)
    if before is not None:
        if name not in updatable:
            raise LanguageError(f"{name} is declared twice", scope.text, d.span)
        if (before.dtype, before.shape) != (dtype, shape):
            raise LanguageError(
                f"{name} is declared differently as input and as output", scope.text, d.span
            )
        return before
    entries[name] = entry
    return entry


def _integer(node: Node, scope: Scope, condition: bool = False) -> Expr:
    """An extent, or a condition on sizes."""
    expr = resolve(node, scope)
    try:
        return check_integer(expr, condition)
    except ProgramError as error:
        raise scope.fail(str(error), node.span) from None


def _written(source: Source) -> dict[str, Access]:
    """The first write to each tensor, in order."""
    result: dict[str, Access] = {}
    for s in source.statements:
        result.setdefault(s.target.tensor.name, s.target)
    return result


# --- one-liners ----------------------------------------------------------------------------


def undeclared(source: Source) -> tuple[Entry, ...]:
    """The inputs of a one-liner, in order of first appearance on the right.

    Raises
    ------
    LanguageError : for a tensor with two ranks, or one that looks like a misspelt other.
    """
    written = _written(source)
    ranks = {name: len(target.indices) for name, target in written.items()}
    inputs: dict[str, Entry] = {}
    for access in _reads(source):
        name, rank = access.tensor.name, len(access.indices)
        if ranks.setdefault(name, rank) != rank:
            raise LanguageError(
                f"{name} has {count(rank, 'index', 'indices')} here, but {ranks[name]} elsewhere",
                source.text,
                access.span,
            )
        if name in written or name in inputs:
            continue
        if name in FUNCTIONS or name in DTYPES:
            raise LanguageError(
                f"{name} is called with parentheses", source.text, access.span, f"write {name}(…)"
            )
        check_new_name(access.tensor, "a tensor", source.text)
        near = [w for w in written if is_near(name, w)]
        if near:
            raise LanguageError(
                f"{name} is read, but never written",
                source.text,
                access.tensor.span,
                f"did you mean {near[0]!r}? if not, declare {name} as an input",
            )
        inputs[name] = Entry(name, rank, access.tensor.span)
    return tuple(inputs.values())


def _reads(source: Source) -> Iterator[Access]:
    for s in source.statements:
        for node in (s.value, *s.target.indices, *s.guards):
            yield from accesses(node)


def _one_liner(source: Source) -> Signature:
    inputs = undeclared(source)
    shapes = _derived_shapes(source, inputs)
    sizes = tuple(dict.fromkeys(s for shape in shapes.values() for s in shape))
    outputs: list[Entry] = []
    temps: list[Entry] = []
    for name, target in _written(source).items():
        check_new_name(target.tensor, "a tensor", source.text)
        entry = Entry(name, len(target.indices), target.tensor.span)
        if _is_last(source, name):
            outputs.append(entry)
        else:
            temps.append(entry)
    if not outputs:
        raise LanguageError(
            "there is no output: every tensor is read again after it is written",
            source.text,
            None,
            "say which are outputs: def f(…) -> (Y) { … }",
        )
    return Signature(
        sizes,
        tuple(replace(e, shape=tuple(map(Size, shapes[e.name]))) for e in inputs),
        tuple(outputs),
        tuple(temps),
    )


def _is_last(source: Source, name: str) -> bool:
    """Whether no statement reads a tensor after its last write, so that it is an output."""
    last = max(n for n, s in enumerate(source.statements) if s.target.tensor.name == name)
    return not any(
        a.tensor.name == name
        for s in source.statements[last + 1 :]
        for e in (s.value, *s.target.indices, *s.guards)
        for a in accesses(e)
    )


def _derived_shapes(source: Source, inputs: tuple[Entry, ...]) -> dict[str, tuple[str, ...]]:
    """A size for each dimension of each input, named after the index that spans it.

    Dimensions that share an index anywhere in the text share a size.
    """
    spans: dict[tuple[str, int], list[str]] = {}
    for s in source.statements:
        fixed = {r.index.name for r in s.ranges}
        for node in (s.value, *s.target.indices, *s.guards):
            for access in accesses(node):
                for d, index in enumerate(access.indices):
                    if isinstance(index, Name) and index.name not in fixed:
                        spans.setdefault((access.tensor.name, d), []).append(index.name)
    group: dict[str, str] = {}

    def root(letter: str) -> str:
        while group.setdefault(letter, letter) != letter:
            letter = group[letter]
        return letter

    for letters in spans.values():
        for letter in letters[1:]:
            group[root(letter)] = root(letters[0])
    taken = _names_in_use(source) | {e.name for e in inputs}
    chosen: dict[str, str] = {}

    def fresh(base: str) -> str:
        options = (base, f"{base}_size", *(f"{base}_size{n}" for n in range(len(taken) + 1)))
        name = next(o for o in options if o not in taken and not _is_word(o))
        taken.add(name)
        return name

    result: dict[str, tuple[str, ...]] = {}
    for e in inputs:
        shape = []
        for d in range(e.rank):
            spanning = spans.get((e.name, d))
            key = root(spanning[0]) if spanning else f"{e.name} {d}"
            if key not in chosen:
                chosen[key] = fresh(spanning[0].upper() if spanning else f"{e.name}{d}")
            shape.append(chosen[key])
        result[e.name] = tuple(shape)
    return result


def _is_word(name: str) -> bool:
    try:
        check_new_name(Name(Span(0, 0), name), "a size", "")
    except LanguageError:
        return True
    return False


def _names_in_use(source: Source) -> set[str]:
    """The names of tensors and indices, which no size may take."""
    used: set[str] = set()
    for s in source.statements:
        used.update(r.index.name for r in s.ranges)
        used.add(s.target.tensor.name)
        used.update(n.name for i in s.target.indices for n in names(i))
        for node in (s.value, *s.guards):
            for access in accesses(node):
                used.add(access.tensor.name)
                used.update(n.name for i in access.indices for n in names(i))
    return used
