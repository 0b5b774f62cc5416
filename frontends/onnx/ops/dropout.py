"""Dropout of the domain ``farkas``, whose random numbers depend on a key and a counter alone.

Each element has the number of a generator that computes it from where it is: the same on every
machine, for any number of threads and in any order.  Widynski, "Squares: A Fast Counter-Based RNG",
2020, with four rounds: from a counter c and a key k,

    x = c·k;  x = ⟲(x² + x₀);  x = ⟲(x² + x₀ + k);  x = ⟲(x² + x₀);  (x² + x₀ + k) >> 32

where x₀ is the first x and ⟲ exchanges the halves of a word.
"""

from __future__ import annotations

from collections.abc import Sequence

from frontends.onnx.core.comprehension_text import at, declare, function, line, literal, names
from frontends.onnx.core.node import Compute, Node, Result, Unsupported
from frontends.onnx.core.own_models import DOMAIN
from frontends.onnx.ops.contrib_schemas import contrib
from poly.ir.dtypes import INT64, UINT64


@contrib(
    "Dropout", "X:T step:I", "Y:T", {"T": "float double float16 bfloat16", "I": "int64"},
    domain=DOMAIN, ratio="float!", key="int!",
)  # fmt: skip
def dropout(node: Node) -> Sequence[Result]:
    """Elements are 0 with the probability `ratio`, and divided by the rest otherwise.

    step : the number of the run, by which random numbers differ
    """
    x, step = node.required(0), node.required(1)
    ratio, key = node.number("ratio", 0.5), node.integer("key", 1) % (1 << 63) | 1
    if not 0 <= ratio < 1:
        raise node.fail(f"the ratio {ratio} is not from 0 up to 1")
    if not all(isinstance(e, int) for e in x.shape):
        raise Unsupported("Dropout of open sizes in training mode")
    indices = names(x.rank, ("i", "j", "k", "l", "m", "n"))
    ranges = dict(zip(indices, x.shape, strict=True))
    place = "0"
    for i, extent in ranges.items():
        place = f"({place} * {extent} + {i})"
    k = f"uint64({key})"
    stages = {
        "a": f"(uint64({place}) + uint64(step[]) * uint64(4294967296)) * {k}",
        "b": "{a} * {a} + {a}",
        "c": f"{_turned('b')} * {_turned('b')} + {{a}} + {k}",
        "d": f"{_turned('c')} * {_turned('c')} + {{a}}",
        "e": f"({_turned('d')} * {_turned('d')} + {{a}} + {k}) >> uint64(32)",
    }
    own = {s: at(s, indices) for s in stages}
    lines = [declare(s, UINT64, x.shape) for s in stages]
    lines += [line(f"{own[s]} = {text.format(**own)}", ranges) for s, text in stages.items()]
    scale = literal(1 / (1 - ratio))
    kept = f"{own['e']} >= uint64({round(ratio * (1 << 32))})"
    read, made = at("X", indices), at("Y", indices)
    lines.append(line(f"{made} = select({kept}, {read} * {scale}, 0)", ranges))
    inputs = [declare("X", x.dtype, x.shape), declare("step", INT64, ())]
    program = function("dropout", inputs, [declare("Y", x.dtype, x.shape)], lines)
    return [Compute(program, (x, step))]


def _turned(name: str) -> str:
    """The halves of a word exchanged."""
    word = f"{{{name}}}"
    return f"(({word} >> uint64(32)) | ({word} << uint64(32)))"
