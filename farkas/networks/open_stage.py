"""`open_stage`: the import of a model whose open sizes have no values yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from frontends.onnx import Given, Routines, Source, Stage, import_stage, never_supported
from poly.errors import ArgumentError, FarkasError, ModelError, UnsupportedModelError
from poly.ir.port import Port

#: What open sizes are taken to be while a model is read, if the user gives no examples: the first
#: for which it is one graph.  Comparisons of sizes come out as they do for these.
EXAMPLES = (64, 224, 8, 2)


def open_stage(
    source: Source,
    ports: Sequence[Port],
    known: Mapping[str, Given],
    examples: Mapping[str, int],
) -> tuple[Stage, Mapping[str, int]]:
    """The first stage of a model, and the examples for which it was made.

    ports : of the inputs that each run is passed; known : the other inputs; examples : of open
    sizes, by the names of `Port.axes`

    Raises
    ------
    ModelError : an inconsistent model, or an input of unknown rank.
    UnsupportedModelError : nodes that cannot be compiled.
    ArgumentError : `examples` that name no open size, or are less than 2.
    """
    for port in ports:
        if port.shape is None:
            raise ModelError(f"the shape of input {port} is not known: give it in shapes=")
    names = {n: None for p in ports for n in p.axes or () if n is not None}
    for name, size in examples.items():
        if name not in names:
            listed = ", ".join(map(repr, names)) or "none"
            raise ArgumentError(f"examples: {name!r} is not an open size; there are {listed}")
        if size < 2:
            raise ArgumentError(f"examples: {name!r} is {size}; open sizes are at least 2")
    first: Stage | FarkasError | None = None
    for default in EXAMPLES if names.keys() - examples.keys() else EXAMPLES[:1]:
        sizes = {n: examples.get(n, default) for n in names}
        given = {p.name: _given(p, sizes) for p in ports}
        try:
            stage = import_stage(source, {**given, **known}, routines=Routines.ALL)
        except (ModelError, UnsupportedModelError) as error:
            first = first or error
            continue
        if stage.is_whole:
            return stage, sizes
        first = first if isinstance(first, Stage) else stage
    if isinstance(first, Stage):
        return first, {}
    found = never_supported(source, {})
    raise UnsupportedModelError(found) if found else first or AssertionError("nothing was tried")


def _given(port: Port, sizes: Mapping[str, int]) -> Given:
    axes = port.axes or ()
    shape = port.shape or ()
    extents = tuple(
        n if isinstance(n, int) else sizes[axis or ""] for n, axis in zip(shape, axes, strict=True)
    )
    return Given(port.dtype, extents, open=axes if any(axes) else None)
