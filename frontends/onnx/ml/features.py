"""Operators of ai.onnx.ml that prepare features."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import helper

from frontends.onnx.core.comprehension_text import at, declare, function, line, literal, names
from frontends.onnx.core.limits import checked_shape
from frontends.onnx.core.node import Compute, Expanded, Node, Result, Same, Unsupported, operator
from frontends.onnx.core.stages import TEXT
from frontends.onnx.core.symbolic_dims import hint_of
from frontends.onnx.ml.common import DOMAIN, Rows, vector, versions_with, words
from poly.ir.dtypes import FLOAT32, FLOAT64, INT64


def _per_feature(node: Node, name: str, kind: type, width: int) -> np.ndarray | None:
    """An attribute with a number for each feature, or one for all of them."""
    found = vector(node, name, kind)
    if found is None or not len(found):
        return None
    if len(found) not in (1, width):
        raise node.fail(f"{name} has {len(found)} entries for {width} features")
    return np.broadcast_to(found, (width,)).copy()


@operator("Scaler", domain=DOMAIN)
def scaler(node: Node) -> Sequence[Result]:
    """Y = (X - offset) * scale, for each feature."""
    x = node.required(0)
    if not x.rank:
        raise node.fail("a scalar has no features")
    offset = _per_feature(node, "offset", np.float32, x.shape[-1])
    scale = _per_feature(node, "scale", np.float32, x.shape[-1])
    if offset is None or scale is None:
        raise node.fail("offset and scale are needed")
    dtype = FLOAT64 if x.dtype == FLOAT64 else FLOAT32
    indices = names(x.rank)
    read, last = at("X", indices), indices[-1]
    number = read if x.dtype == dtype else f"{dtype}({read})"
    program = function(
        "scaler",
        [
            declare("X", x.dtype, x.shape),
            declare("O", FLOAT32, offset.shape),
            declare("S", FLOAT32, scale.shape),
        ],
        [declare("Y", FLOAT32, x.shape)],
        [
            line(
                f"{at('Y', indices)} = float32(({number} - O[{last}]) * S[{last}])",
                dict(zip(indices, x.shape, strict=True)),
            )
        ],
    )
    return [Compute(program, (x, offset, scale))]


@operator("Normalizer", domain=DOMAIN)
def normalizer(node: Node) -> Sequence[Result]:
    """Each row divided by its greatest element, by the sum of magnitudes or by its length."""
    rows = Rows.of(node)
    norm = node.word("norm", "MAX")
    x = rows.number()
    found = {"MAX": ("max=!", x), "L1": ("+=!", f"abs({x})"), "L2": ("+=!", f"{x} * {x}")}
    if norm not in found:
        raise node.fail(f"there is no norm {norm!r}")
    combine, each = found[norm]
    size = "sqrt(T[n])" if norm == "L2" else "T[n]"
    all_ = {"n": rows.count, "c": rows.width}
    is_matrix = rows.value.rank == 2
    each_ = all_ if is_matrix else {"c": rows.width}
    lines = [
        declare("T", rows.dtype, (rows.count,)),
        line(f"T[n] {combine} {each}", all_),
        declare("R", rows.dtype, (rows.count,)),
        line(f"R[n] = select(T[n] == 0, 1, {size})", {"n": rows.count}),
        line(f"{rows.at(name='Y')} = float32({x} / R[{'n' if is_matrix else 0}])", each_),
    ]
    out = declare("Y", FLOAT32, rows.value.shape)
    program = function("normalizer", [rows.declaration()], [out], lines)
    return [Compute(program, (rows.value,))]


@operator("Imputer", domain=DOMAIN)
def imputer(node: Node) -> Sequence[Result]:
    """Missing elements, replaced by a number for their feature."""
    x = node.required(0)
    if not x.rank:
        raise node.fail("a scalar has no features")
    if x.dtype.is_float:
        imputed = _per_feature(node, "imputed_value_floats", np.float32, x.shape[-1])
        missing = float(np.float32(node.number("replaced_value_float", 0.0)))
    else:
        imputed = _per_feature(node, "imputed_value_int64s", np.int64, x.shape[-1])
        missing = node.integer("replaced_value_int64", 0)
        least, most = x.dtype.limits
        if not least <= missing <= most:
            return [Same(x)]  # no element is that number
    if imputed is None:
        raise node.fail(f"there are no imputed values for {x.dtype}")
    imputed = imputed.astype(x.dtype.numpy)
    indices = names(x.rank)
    read = at("X", indices)
    lost = f"isnan({read})" if missing != missing else f"{read} == {literal(missing)}"
    program = function(
        "imputer",
        [declare("X", x.dtype, x.shape), declare("V", x.dtype, imputed.shape)],
        [declare("Y", x.dtype, x.shape)],
        [
            line(
                f"{at('Y', indices)} = select({lost}, V[{indices[-1]}], {read})",
                dict(zip(indices, x.shape, strict=True)),
            )
        ],
    )
    return [Compute(program, (x, imputed))]


@operator("Binarizer", domain=DOMAIN)
def binarizer(node: Node) -> Sequence[Result]:
    """1 where the element is greater than the threshold."""
    x = node.required(0)
    indices = names(x.rank)
    number = at("X", indices) if x.dtype.is_float else f"float32({at('X', indices)})"
    threshold = literal(float(np.float32(node.number("threshold", 0.0))))
    program = function(
        "binarizer",
        [declare("X", x.dtype, x.shape)],
        [declare("Y", x.dtype, x.shape)],
        [
            line(
                f"{at('Y', indices)} = {x.dtype}({number} > {threshold})",
                dict(zip(indices, x.shape, strict=True)),
            )
        ],
    )
    return [Compute(program, (x,))]


@operator("ArrayFeatureExtractor", domain=DOMAIN)
def array_feature_extractor(node: Node) -> Sequence[Result]:
    """The elements at given indices of the last axis."""
    x, y = node.required(0), node.required(1)
    if not x.rank or not x.shape[-1]:
        raise node.fail("there are no features")
    if not y.size:
        raise node.fail("no indices are given")
    if y.array is not None and not 0 <= int(y.array.min()) <= int(y.array.max()) < x.shape[-1]:
        raise node.fail(f"an index is out of range for {x.shape[-1]} features")
    outer = x.shape[:-1] or (1,)
    if x.dtype == TEXT:
        return [_strings_at(node)]
    indices = names(len(outer))
    inner = names(y.rank, ("p", "q", "r", "s"))
    flat, step = "0", y.size
    for index, extent in zip(inner, y.shape, strict=True):
        step //= max(extent, 1)
        flat = f"{flat} + {step}*{index}"
    source = [*(indices if x.rank > 1 else ()), at("P", inner)]
    ranges = dict(zip((*indices, *inner), (*outer, *y.shape), strict=True))
    program = function(
        "extract",
        [declare("X", x.dtype, x.shape), declare("P", INT64, y.shape)],
        [declare("Y", x.dtype, checked_shape((*outer, y.size), x.dtype, node.origin))],
        [line(f"{at('Y', [*indices, flat])} = {at('X', source)}", ranges)],
    )
    return [Compute(program, (x, y))]


def _strings_at(node: Node) -> Expanded:
    """Known strings: their indices are extracted, and then looked up."""
    x, scope = node.required(0), node.surroundings
    if x.array is None:
        raise Unsupported("strings that are computed while the model runs")
    stored, found = f"{scope.prefix}places", f"{scope.prefix}place"
    count = np.arange(x.size, dtype=np.int64).reshape(x.shape)
    proto = scope.proto
    shape = helper.make_tensor("places", 7, count.shape, count.reshape(-1).tolist())
    nodes = (
        helper.make_node("Constant", [], [stored], value=shape),
        helper.make_node("ArrayFeatureExtractor", [stored, proto.input[1]], [found], domain=DOMAIN),
        helper.make_node(
            "LabelEncoder",
            [found],
            [proto.output[0]],
            domain=DOMAIN,
            keys_int64s=count.reshape(-1).tolist(),
            values_strings=x.array.reshape(-1).tolist(),
        ),
    )
    versions = versions_with(scope.versions, 2)
    return Expanded(nodes, {"": 13, **versions})


@operator("FeatureVectorizer", domain=DOMAIN)
def feature_vectorizer(node: Node) -> Sequence[Result]:
    """Features of several operands side by side, as float32."""
    rows = [Rows.of(node, p, double=False) for p in range(len(node.inputs))]
    widths = node.ints("inputdimensions") or tuple(r.width for r in rows)
    if len(widths) != len(rows) or any(w != r.width for w, r in zip(widths, rows, strict=True)):
        given = [hint_of(r.width) for r in rows]
        raise node.fail(f"inputdimensions {list(widths)} do not fit operands of {given} features")
    if any(r.count != rows[0].count for r in rows):
        raise node.fail("the operands have different numbers of rows")
    start, lines, declared = 0, [], []
    for number, part in enumerate(rows):
        declared.append(part.declaration(f"X{number}"))
        read = part.at(name=f"X{number}")
        lines.append(
            line(f"Y[n,{start} + c] = float32({read})", {"n": part.count, "c": part.width})
        )
        start += part.width
    out = declare("Y", FLOAT32, checked_shape((rows[0].count, start), FLOAT32, node.origin))
    program = function("vectorize", declared, [out], lines)
    return [Compute(program, tuple(r.value for r in rows))]


@operator("OneHotEncoder", domain=DOMAIN)
def one_hot_encoder(node: Node) -> Sequence[Result]:
    """A 1 at the index of the category, and only zeros for an unknown one."""
    x = node.required(0)
    if words(node, "cats_strings") or x.dtype == TEXT:
        raise Unsupported("categories that are strings")
    cats = vector(node, "cats_int64s", np.int64)
    if cats is None or not len(cats):
        raise node.fail("there are no categories")
    shape = checked_shape((*x.shape, len(cats)), FLOAT32, node.origin)
    indices = names(x.rank)
    read = at("X", indices)
    number = read if x.dtype == INT64 else f"int64({read})"
    program = function(
        "one_hot_encoder",
        [declare("X", x.dtype, x.shape), declare("C", INT64, (len(cats),))],
        [declare("Y", FLOAT32, shape)],
        [
            line(
                f"{at('Y', [*indices, 'cat'])} = float32({number} == C[cat])",
                {**dict(zip(indices, x.shape, strict=True)), "cat": len(cats)},
            )
        ],
    )
    return [Compute(program, (x, cats))]
