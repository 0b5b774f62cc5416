"""Ways to break a model.  Each takes a source of chance and a model, which it changes in place,
and says what it did; an empty string says that there was nothing to change.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper
from onnx import numpy_helper as arrays

from tests.mutation.sources import nodes_of

Mutation = Callable[[random.Random, ModelProto], str]

#: Numbers that mean something in most places, and those that overflow something.
SMALL = (-3, -2, -1, 0, 1, 2, 3, 4, 5, 7)
HUGE = (-(2**63), -(2**31), 64, 2**16, 2**31, 2**40, 2**63 - 1)
REALS = (0.0, -1.0, 1e-30, 1e30, float("inf"), float("-inf"), float("nan"), 0.5, 3.0)
WORDS = (
    b"", b"\xff\xfe", b"SAME_UPPER", b"SAME_LOWER", b"VALID", b"edge", b"reflect", b"wrap",
    b"constant", b"linear", b"nearest", b"cubic", b"ij,jk->ik", b"ij,ij->", b"->", b"add", b"mul",
    b"tanh", b"reverse", b"bidirectional", b"floor", b"asymmetric", b"align_corners", b"DCR",
)  # fmt: skip
TYPES = tuple(range(-1, 30))
#: Operators that can stand for one another.
FAMILIES = tuple(
    family.split()
    for family in (
        "Relu Sigmoid Tanh Exp Log Sqrt Abs Neg Floor Ceil Round Sign Erf Softplus Reciprocal Not "
        "Identity Sin Cos Atan HardSwish Elu Selu LeakyRelu Softsign Mish Gelu IsNaN IsInf "
        "BitwiseNot",
        "Add Sub Mul Div Pow Mod PRelu Min Max And Or Xor Equal Greater Less GreaterOrEqual "
        "LessOrEqual BitShift BitwiseAnd BitwiseOr MatMul Gather Expand Reshape Tile",
        "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum "
        "ReduceLogSumExp ReduceSumSquare",
        "ArgMax ArgMin Softmax LogSoftmax Hardmax Flatten Squeeze CumSum TopK Shape Size NonZero",
        "MaxPool AveragePool LpPool GlobalAveragePool GlobalMaxPool GlobalLpPool",
        "Conv ConvTranspose ConvInteger Gemm MatMul MatMulInteger",
        "Squeeze Unsqueeze Reshape Flatten Transpose Identity Expand Tile",
        "Concat Sum Mean Max Min Einsum",
        "Slice Pad Gather GatherElements GatherND Split Compress Where ScatterElements ScatterND",
        "BatchNormalization InstanceNormalization LayerNormalization GroupNormalization LRN "
        "RMSNormalization MeanVarianceNormalization",
        "LSTM GRU RNN",
        "QuantizeLinear DequantizeLinear DynamicQuantizeLinear Cast CastLike Clip",
    )
)


def _pick_node(rng: random.Random, model: ModelProto) -> NodeProto | None:
    nodes = nodes_of(model.graph)
    return rng.choice(nodes) if nodes else None


def _values(graph: GraphProto) -> list[str]:
    """All names of values of the outermost graph."""
    names = [i.name for i in graph.input] + [t.name for t in graph.initializer]
    return names + [name for node in graph.node for name in node.output if name]


def _types(model: ModelProto) -> dict[str, str]:
    """The types of the values as far as they can be inferred."""
    try:
        graph = onnx.shape_inference.infer_shapes(model).graph
    except Exception:  # whatever an earlier mutation did
        return {}
    infos = (*graph.input, *graph.value_info, *graph.output)
    types = {i.name: str(i.type) for i in infos if i.type.tensor_type.HasField("shape")}
    for tensor in graph.initializer:
        info = helper.make_tensor_value_info("", tensor.data_type, tensor.dims)
        types[tensor.name] = str(info.type)
    return types


def _number(rng: random.Random) -> int:
    return rng.choice(SMALL if rng.random() < 0.75 else HUGE)


def _shown(node: NodeProto) -> str:
    return f"{node.op_type} '{node.name or ', '.join(node.output)}'"


# --- wiring --------------------------------------------------------------------------------------


def rewire(rng: random.Random, model: ModelProto) -> str:
    """An input of a node becomes another value."""
    node = _pick_node(rng, model)
    if node is None or not node.input:
        return ""
    position = rng.randrange(len(node.input))
    types = _types(model) if rng.random() < 0.75 else {}
    own = types.get(node.input[position])
    alike = [n for n, kind in types.items() if kind == own and n != node.input[position]]
    node.input[position] = rng.choice(alike or _values(model.graph))
    return f"input {position} of {_shown(node)} becomes {node.input[position]}"


def swap_inputs(rng: random.Random, model: ModelProto) -> str:
    """Two inputs of a node change places."""
    node = _pick_node(rng, model)
    if node is None or len(node.input) < 2:
        return ""
    one, other = rng.sample(range(len(node.input)), 2)
    node.input[one], node.input[other] = node.input[other], node.input[one]
    return f"inputs {one} and {other} of {_shown(node)} swapped"


def input_count(rng: random.Random, model: ModelProto) -> str:
    """An input is left out, emptied or added."""
    node = _pick_node(rng, model)
    if node is None:
        return ""
    names = _values(model.graph)
    what = rng.choice(("drop", "empty", "add"))
    if what == "add" or not node.input:
        node.input.insert(rng.randint(0, len(node.input)), rng.choice(["", *names]))
    elif what == "drop":
        del node.input[rng.randrange(len(node.input))]
    else:
        node.input[rng.randrange(len(node.input))] = ""
    return f"inputs of {_shown(node)}: {what}"


def undefined(rng: random.Random, model: ModelProto) -> str:
    """An initializer or an input is missing."""
    graph = model.graph
    stored = rng.choice((graph.initializer, graph.input))
    if not stored:
        return ""
    position = rng.randrange(len(stored))
    name = stored[position].name
    del stored[position]
    return f"'{name}' is missing"


def cycle(rng: random.Random, model: ModelProto) -> str:
    """A node reads what is made of its result."""
    nodes = model.graph.node
    if not nodes:
        return ""
    first = rng.randrange(len(nodes))
    last = rng.randrange(first, len(nodes))
    if not nodes[first].input or not nodes[last].output:
        return ""
    position = rng.randrange(len(nodes[first].input))
    nodes[first].input[position] = rng.choice(nodes[last].output)
    return f"{_shown(nodes[first])} reads {_shown(nodes[last])}"


def drop_node(rng: random.Random, model: ModelProto) -> str:
    """A node is left out; what read its result reads its first input, or nothing is mended."""
    nodes = model.graph.node
    if not nodes:
        return ""
    gone = nodes.pop(rng.randrange(len(nodes)))
    mended = gone.input and gone.output and rng.random() < 0.8
    if mended:
        for node in nodes_of(model.graph):
            for position, name in enumerate(node.input):
                if name == gone.output[0]:
                    node.input[position] = gone.input[0]
    return f"{_shown(gone)} dropped{', mended' if mended else ''}"


def double_node(rng: random.Random, model: ModelProto) -> str:
    """A node once more: with new outputs, which another node reads, or defining all twice."""
    nodes = model.graph.node
    if not nodes:
        return ""
    node = rng.choice(nodes)
    copy = NodeProto()
    copy.CopyFrom(node)
    renamed = rng.random() < 0.8
    if renamed:
        copy.name += "_again"
        copy.output[:] = [name and f"{name}_again" for name in copy.output]
        reader = rng.choice(nodes)
        for position, name in enumerate(reader.input):
            if name and f"{name}_again" in copy.output:
                reader.input[position] = f"{name}_again"
    nodes.insert(rng.randint(0, len(nodes)), copy)
    return f"{_shown(node)} doubled{', renamed' if renamed else ''}"


def order(rng: random.Random, model: ModelProto) -> str:
    """Nodes in another order."""
    nodes = list(model.graph.node)
    if len(nodes) < 2:
        return ""
    rng.shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return "nodes shuffled"


def outputs(rng: random.Random, model: ModelProto) -> str:
    """An output is doubled, renamed, added, or lost; a result of a node is emptied or renamed."""
    graph = model.graph
    what = rng.choice(("double", "rename", "add", "lose", "empty", "clash"))
    nodes = [n for n in graph.node if n.output]
    if not graph.output or not nodes:
        return ""
    node = rng.choice(nodes)
    place = rng.randrange(len(node.output))
    if what == "double":
        graph.output.append(rng.choice(graph.output))
    elif what == "rename":
        rng.choice(graph.output).name = rng.choice(["", "nowhere", *_values(graph)])
    elif what == "add":
        graph.output.append(onnx.ValueInfoProto(name=rng.choice(_values(graph))))
    elif what == "lose":
        del graph.output[rng.randrange(len(graph.output))]
    elif what == "empty":
        node.output[place] = ""
    else:
        node.output[place] = rng.choice(_values(graph))
    return f"outputs: {what}, {_shown(node)}"


# --- attributes and operators --------------------------------------------------------------------


def attribute_value(rng: random.Random, model: ModelProto) -> str:
    """Another value of the same type, or a list of another length."""
    nodes = [n for n in nodes_of(model.graph) if n.attribute]
    if not nodes:
        return ""
    node = rng.choice(nodes)
    attribute = rng.choice(node.attribute)
    kind = attribute.type
    if kind == AttributeProto.INT:
        attribute.i = _number(rng)
    elif kind == AttributeProto.FLOAT:
        attribute.f = rng.choice(REALS)
    elif kind == AttributeProto.STRING:
        attribute.s = rng.choice(WORDS)
    elif kind == AttributeProto.INTS:
        _change_list(rng, attribute.ints, _number(rng))
    elif kind == AttributeProto.FLOATS:
        _change_list(rng, attribute.floats, rng.choice(REALS))
    elif kind == AttributeProto.STRINGS:
        _change_list(rng, attribute.strings, rng.choice(WORDS))
    elif kind == AttributeProto.TENSOR:
        _change_tensor(rng, attribute.t)
    else:
        return ""
    text = helper.printable_attribute(attribute) if kind != AttributeProto.STRING else attribute.s
    return f"attribute of {_shown(node)}: {text}"


def _change_list(rng: random.Random, values: object, new: object) -> None:
    what = rng.randrange(4)
    if what == 0 or not values:
        values.append(new)
    elif what == 1:
        del values[rng.randrange(len(values))]
    else:
        values[rng.randrange(len(values))] = new


def attribute_set(rng: random.Random, model: ModelProto) -> str:
    """An attribute is left out, is of another type, or comes in: one that exists, or an alien."""
    node = _pick_node(rng, model)
    if node is None:
        return ""
    what = rng.choice(("drop", "type", "add", "alien"))
    if what in ("drop", "type") and not node.attribute:
        what = "add"
    if what == "drop":
        del node.attribute[rng.randrange(len(node.attribute))]
    elif what == "type":
        rng.choice(node.attribute).type = rng.randrange(0, 15)
    else:
        schema = None
        if what == "add" and onnx.defs.has(node.op_type, node.domain):
            schema = onnx.defs.get_schema(node.op_type, node.domain)
        name = rng.choice(sorted(schema.attributes) if schema and schema.attributes else ["alien"])
        value: object = rng.choice((_number(rng), rng.choice(REALS), rng.choice(WORDS)))
        declared = schema.attributes.get(name) if schema else None
        kind = str(declared.type).rpartition(".")[2] if declared is not None else ""
        if kind.endswith("S"):
            value = [value] * rng.randint(1, 4)
        if kind in ("INT", "FLOAT"):
            value = _number(rng) if kind == "INT" else rng.choice(REALS)
        if kind == "INTS":
            value = [_number(rng) for _ in range(rng.randint(1, 4))]
        node.attribute.append(helper.make_attribute(name, value))
    return f"attributes of {_shown(node)}: {what} {node.attribute[-1:]}".replace("\n", " ")


def operator(rng: random.Random, model: ModelProto) -> str:
    """Another operator, mostly one of the same family."""
    node = _pick_node(rng, model)
    if node is None:
        return ""
    before = node.op_type
    families = [f for f in FAMILIES if before in f]
    if families and rng.random() < 0.9:
        node.op_type = rng.choice(rng.choice(families))
    else:
        node.op_type = rng.choice(sorted({s.name for s in onnx.defs.get_all_schemas()}))
    if rng.random() < 0.3:
        del node.attribute[:]
    return f"{before} becomes {_shown(node)}"


def opset(rng: random.Random, model: ModelProto) -> str:
    """Another version of the operators."""
    entry = rng.choice(model.opset_import)
    before = entry.version
    entry.version = rng.choice((*range(1, 28), 10**9, -1))
    return f"opset {before} becomes {entry.version}"


def domain(rng: random.Random, model: ModelProto) -> str:
    """A node of another domain, without a name, or with a strange one."""
    node = _pick_node(rng, model)
    if node is None:
        return ""
    if rng.random() < 0.5:
        node.domain = rng.choice(("ai.onnx", "ai.onnx.ml", "com.microsoft", "nowhere"))
        return f"domain of {_shown(node)} becomes {node.domain}"
    node.name = rng.choice(("", "x" * 5000, "*/ #error\n", "\0"))
    return f"a name becomes {node.name[:20]!r}"


# --- types and extents ---------------------------------------------------------------------------


def dims(rng: random.Random, model: ModelProto) -> str:
    """Another extent or rank of an input, an output or what is claimed of a value."""
    graph = model.graph
    infos = [*graph.input, *graph.output, *graph.value_info]
    infos = [i for i in infos if i.type.tensor_type.HasField("shape")]
    if not infos:
        return ""
    info = rng.choice(infos)
    shape = info.type.tensor_type.shape
    what = rng.choice(("extent", "extent", "extent", "open", "more", "less", "unknown"))
    if what == "more" or not shape.dim:
        shape.dim.add().dim_value = rng.choice(SMALL)
    elif what == "less":
        del shape.dim[rng.randrange(len(shape.dim))]
    elif what == "open":
        rng.choice(shape.dim).dim_param = rng.choice(("", "N", "batch", "a b*/", "int"))
    elif what == "unknown":
        info.type.tensor_type.ClearField("shape")
    else:
        rng.choice(shape.dim).dim_value = _number(rng)
    extents = [d.dim_param or d.dim_value for d in shape.dim]
    return f"shape of '{info.name}' becomes {extents} ({what})"


def element_type(rng: random.Random, model: ModelProto) -> str:
    """Another element type of an input, an output, or what is claimed of a value."""
    graph = model.graph
    infos = [*graph.input, *graph.output, *graph.value_info]
    info = rng.choice(infos)
    common = (1, 2, 3, 5, 6, 7, 9, 10, 11, 12, 13, 16)
    info.type.tensor_type.elem_type = rng.choice(common if rng.random() < 0.8 else TYPES)
    return f"type of '{info.name}' becomes {info.type.tensor_type.elem_type}"


def cast_target(rng: random.Random, model: ModelProto) -> str:
    """A Cast to another type; or one comes in before an input of a node."""
    casts = [n for n in nodes_of(model.graph) if n.op_type == "Cast" and n.attribute]
    target = rng.choice((1, 2, 3, 5, 6, 7, 9, 10, 11, 12, 13, 16))
    if casts and rng.random() < 0.7:
        node = rng.choice(casts)
        node.attribute[0].i = target
        return f"{_shown(node)} to {target}"
    readers = [n for n in model.graph.node if n.input and n.input[0]]
    if not readers:
        return ""
    node = rng.choice(readers)
    position = rng.randrange(len(node.input))
    if not node.input[position]:
        return ""
    cast = helper.make_node("Cast", [node.input[position]], ["mutant_cast"], to=target)
    node.input[position] = "mutant_cast"
    model.graph.node.insert(list(model.graph.node).index(node), cast)
    return f"input {position} of {_shown(node)} cast to {target}"


def _constants(model: ModelProto) -> list[TensorProto]:
    """All stored tensors, those of Constant nodes included."""
    found = list(model.graph.initializer)
    for node in nodes_of(model.graph):
        found += [a.t for a in node.attribute if a.type == AttributeProto.TENSOR]
    return found


def tensor(rng: random.Random, model: ModelProto) -> str:
    """The description of a constant no longer fits its data: extents, type, too little data."""
    found = _constants(model)
    if not found:
        return ""
    chosen = rng.choice(found)
    what = rng.randrange(4)
    if what == 0 and chosen.dims:
        chosen.dims[rng.randrange(len(chosen.dims))] = _number(rng)
    elif what == 1:
        chosen.data_type = rng.choice(TYPES)
    elif what == 2:
        chosen.raw_data = chosen.raw_data[: rng.randrange(len(chosen.raw_data) + 1)]
    else:
        chosen.dims.append(_number(rng))
    return f"constant '{chosen.name}' is {chosen.data_type} {list(chosen.dims)}"


def _change_tensor(rng: random.Random, proto: TensorProto) -> str:
    """A sound constant of other values, another shape or another type."""
    try:
        array = np.array(arrays.to_array(proto))
    except Exception:  # broken by an earlier mutation
        return ""
    what = rng.choice(("value", "value", "values", "type", "shape", "cut", "grow"))
    flat = array.reshape(-1)
    if what in ("value", "values") and flat.size and array.dtype.kind in "fiub":
        pool: Sequence[float] = REALS if array.dtype.kind == "f" else (*SMALL, *SMALL, *HUGE)
        for place in {rng.randrange(flat.size) for _ in range(1 if what == "value" else 4)}:
            new = rng.choice(pool)
            if array.dtype.kind in "iu":
                info = np.iinfo(array.dtype)
                new = min(max(int(new), info.min), info.max)
            with np.errstate(all="ignore"):
                flat[place] = new
        array = flat.reshape(array.shape)
    elif what == "type":
        with np.errstate(all="ignore"):
            array = array.astype(
                rng.choice("float32 float64 float16 int32 int64 int8 bool".split())
            )
    elif what == "shape":
        array = flat.reshape(rng.choice(((-1,), (1, -1), (-1, 1), array.shape[::-1])))
    elif what == "cut" and array.ndim and array.shape[0]:
        array = array[: rng.randrange(array.shape[0])]
    elif array.ndim:
        array = np.concatenate([array, array[:1]])
    name = proto.name
    proto.CopyFrom(arrays.from_array(array, name))
    return f"constant '{name}': {what}, now {array.dtype}{list(array.shape)}"


def constant(rng: random.Random, model: ModelProto) -> str:
    """A constant of other values, another shape or another type, sound in itself."""
    found = _constants(model)
    return _change_tensor(rng, rng.choice(found)) if found else ""


def extents(rng: random.Random, model: ModelProto) -> str:
    """What asks for shapes asks for others: small constants of integers, huge or negative."""
    found = [t for t in _constants(model) if t.data_type in (6, 7) and np.prod(t.dims) <= 16]
    if not found:
        return ""
    chosen = rng.choice(found)
    try:
        array = np.array(arrays.to_array(chosen))
    except Exception:  # broken by an earlier mutation
        return ""
    flat = array.reshape(-1)
    if not flat.size:
        return ""
    info = np.iinfo(array.dtype)
    flat[rng.randrange(flat.size)] = min(max(_number(rng), info.min), info.max)
    name = chosen.name
    chosen.CopyFrom(arrays.from_array(flat.reshape(array.shape), name))
    return f"constant '{name}' becomes {flat.tolist()}"


MUTATIONS: tuple[Mutation, ...] = (
    rewire, rewire, rewire, swap_inputs, input_count, undefined, cycle, drop_node, drop_node,
    double_node, order, outputs, attribute_value, attribute_value, attribute_value, attribute_set,
    operator, operator, operator, opset, opset, domain, dims, dims, element_type, cast_target,
    cast_target, tensor, constant, constant, constant, extents, extents, extents,
)  # fmt: skip


# --- files ---------------------------------------------------------------------------------------


def broken_file(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    """A file that ends early, or some bytes of which are others."""
    if rng.random() < 0.4:
        end = rng.randrange(len(data))
        return data[:end], f"file ends after {end} of {len(data)} bytes"
    broken = bytearray(data)
    # What is not data of constants is at the beginning or at the end of a file.
    near = min(len(broken), 4000)
    places = [rng.randrange(near) for _ in range(rng.choice((1, 1, 2, 4)))]
    places = [p if rng.random() < 0.5 else len(broken) - 1 - p for p in places]
    for place in places:
        broken[place] ^= 1 << rng.randrange(8)
    return bytes(broken), f"bits flipped at {places}"
