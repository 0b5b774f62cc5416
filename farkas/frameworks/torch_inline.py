"""Our operators in graphs of torch: their texts, compiled together with their neighbours."""

from __future__ import annotations

from collections.abc import Sequence

from farkas.frameworks.operation import Operation, extent_value, output_shapes
from frontends.aten.emitter import Emitter
from frontends.aten.registry import Arguments, lowering
from frontends.aten.values import Ref, Unsupported, extent_of
from frontends.onnx.core.own_models import DOMAIN
from poly.errors import ArgumentError
from poly.ir.dtypes import DTYPES
from poly.ir.expr import Size


def register_inline(target: str, operation: Operation) -> None:
    """Let graphs have an operator's text in place of calls of it.

    target : the operator as torch prints it, ``mine.l1.default``
    """

    @lowering(target)
    def lower(e: Emitter, a: Arguments, outs: Sequence[Ref]) -> list[Ref]:
        return _inlined(operation, e, a, outs)


def _inlined(operation: Operation, e: Emitter, a: Arguments, outs: Sequence[Ref]) -> list[Ref]:
    if operation.exact or operation.schedule is not None:
        what = "is exact" if operation.exact else "has a schedule of its own"
        raise Unsupported(f"it {what}, so that it is compiled by itself")
    given = [a[name] for name in operation.inputs]
    try:
        program = operation.program([DTYPES[x.dtype] for x in given])
        asked = {name: extent_of(a[name]) for name in operation.asked}
        _, sizes = output_shapes(program, [x.shape for x in given], asked)
    except ArgumentError as error:
        raise Unsupported(str(error)) from None
    if {t.name for t in program.inputs} & {t.name for t in program.outputs}:
        raise Unsupported("it updates a copy of an input")
    for tensor, x in zip(program.inputs, given, strict=True):
        for extent, found in zip(tensor.shape, x.shape, strict=True):
            if extent_value(extent, sizes) != found:
                raise Unsupported(f"{tensor} has an extent of {found}")
    shown = {x.name for t in program.inputs for x in t.shape if isinstance(x, Size)}
    hidden = [name for name in program.sizes if name not in shown]
    values = [e.size(sizes[name]) for name in hidden]
    extra = {"sizes": hidden} if hidden else {}
    names = e.add(
        "Comprehension", *given, *values, outputs=len(outs), domain=DOMAIN, text=str(program),
        **extra,
    )  # fmt: skip
    return [Ref(name, x.dtype, x.shape) for name, x in zip(names, outs, strict=True)]
