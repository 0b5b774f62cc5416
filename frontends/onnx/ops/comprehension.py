"""The operator Comprehension of the domain ``farkas``: a program of the language as a node."""

from __future__ import annotations

import re
from collections.abc import Sequence

from frontends.onnx.core.comprehension_text import function, parsed
from frontends.onnx.core.node import Compute, Node, Result, Value
from frontends.onnx.core.own_models import DOMAIN
from frontends.onnx.core.symbolic_dims import Dim, Extent
from frontends.onnx.core.tensors import ELEMENT_TYPES, SCHEMA_TYPES
from frontends.onnx.ops.contrib_schemas import contrib
from poly.errors import LanguageError, ProgramError
from poly.ir.expr import Const, Size
from poly.ir.program import Program

_TYPES = " ".join(SCHEMA_TYPES.get(t.name, t.name) for t in ELEMENT_TYPES.values())


@contrib(
    "Comprehension", "inputs:T*?", "outputs:T*", {"T": _TYPES}, domain=DOMAIN, text="string!",
    sizes="strings",
)  # fmt: skip
def comprehension(node: Node) -> Sequence[Result]:
    """The definition `text`, whose inputs are those of the node in this order.

    sizes : names of sizes that no shape shows; their values are the last inputs, as int64
    """
    text = node.word("text", "")
    try:
        template = parsed(text)
    except (LanguageError, ProgramError) as error:
        raise node.fail(f"the text is wrong: {error}") from None
    asked = node.attributes.get("sizes", ())
    assert isinstance(asked, tuple)
    count = len(node.inputs) - len(asked)
    if count != len(template.inputs):
        raise node.fail(f"{count} tensors, but the text has {len(template.inputs)} inputs")
    operands = tuple(node.required(p) for p in range(count))
    sizes = _shown(node, template, operands)
    for position, name in enumerate(asked, start=count):
        value = node.known_number(position, f"size {name}")
        if value is None:
            raise node.fail(f"size {name} must be one integer")
        sizes.setdefault(name, value if isinstance(value, Dim) else int(value))
    missing = [s for s in template.sizes if s not in sizes]
    if missing:
        raise node.fail(f"nothing says how large {', '.join(missing)} is")
    return [Compute(_instance(template, sizes), operands)]


def _shown(node: Node, template: Program, operands: Sequence[Value]) -> dict[str, Extent]:
    """The sizes that shapes show; raises `ModelError` for operands that do not match."""
    sizes: dict[str, Extent] = {}
    for tensor, value in zip(template.inputs, operands, strict=True):
        if tensor.dtype != value.dtype or tensor.rank != value.rank:
            raise node.fail(f"{tensor} is given {value.dtype} {list(value.shape)}")
        for e, extent in zip(tensor.shape, value.shape, strict=True):
            if isinstance(e, Size):
                known = sizes.setdefault(e.name, extent)
            elif isinstance(e, Const):
                known = int(e.value)
            else:
                continue
            if known != extent:
                raise node.fail(f"{tensor} is given the shape {list(value.shape)}: {e} is {known}")
    return sizes


def _instance(template: Program, sizes: dict[str, Extent]) -> Program:
    """The program for sizes that are known or open."""
    named = re.compile(rf"\b({'|'.join(sizes)})\b") if sizes else None

    def fixed(text: object) -> str:
        if named is None:
            return str(text)
        return named.sub(lambda found: str(sizes[found.group()]), str(text))

    body = str(template).splitlines()[1:-1]
    return function(
        template.name,
        [fixed(t) for t in template.inputs],
        [fixed(t) for t in template.outputs],
        [fixed(line).strip() for line in body],
    )
