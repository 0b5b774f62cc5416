"""What mutants are made of: public models, light models, and the cases of the official suite.

Of a network only a window is taken, some neighbouring nodes with the arrays that really arrive
there, so that a mutant compiles in a second and still has the wiring and the values of a network.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from benchmarks.public import MODELS, fetched
from frontends.onnx.model.light_models import light_models, load_light, randomised
from frontends.onnx.model.loading import used_names
from tests.conformance.official import Case, cases, opened
from tests.mutation.workers import Arrays, session_options

#: Windows that read or store more are not taken: copying them around would take the time.
MOST_BYTES = 8 << 20
#: What ONNX Runtime reads: the version of the format, and the newest opset.
IR_VERSION, NEWEST = 10, 26


@dataclass(frozen=True)
class Sample:
    """A sound model, and arrays for its inputs; what it is a part of."""

    name: str
    model: ModelProto
    inputs: Arrays


@dataclass(frozen=True)
class Recorded:
    """A network, the values of a run by name, and the names of those that never change."""

    name: str
    model: ModelProto
    values: Arrays
    constant: frozenset[str]


def network_names() -> tuple[str, ...]:
    """All networks of which windows can be taken."""
    public = tuple(f"public:{name}" for name in MODELS)
    return public + tuple(f"light:{name}" for name in light_models())


@lru_cache(maxsize=1)
def recorded(name: str, folder: Path) -> Recorded:
    """A network after one run of ONNX Runtime; `folder` keeps what is downloaded.

    Raises
    ------
    OSError : the package cannot be fetched.
    """
    kind, _, short = name.partition(":")
    if kind == "light":
        path, inputs, _ = load_light(short)
        model = randomised(onnx.load(path))
    else:
        public = MODELS[short]
        model = onnx.load(fetched(public, folder))
        inputs = public.make(np.random.default_rng(5), public.sizes[0])
    values = {**inputs, **_run_all(model, inputs)}
    values |= {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    return Recorded(name, model, values, _constant(model.graph))


def _run_all(model: ModelProto, inputs: Arrays) -> dict[str, np.ndarray]:
    """All values that the nodes of the outermost graph make, those that are tensors."""
    every = ModelProto()
    every.CopyFrom(model)
    shown = {info.name for info in every.graph.output}
    for node in every.graph.node:
        for name in node.output:
            if name and name not in shown:
                every.graph.output.append(onnx.ValueInfoProto(name=name))
    session = onnxruntime.InferenceSession(every.SerializeToString(), session_options())
    names = [o.name for o in session.get_outputs()]
    wanted = {i.name: inputs[i.name] for i in session.get_inputs() if i.name in inputs}
    results = zip(names, session.run(names, wanted), strict=True)
    return {n: a for n, a in results if isinstance(a, np.ndarray) and a.dtype.kind != "O"}


def _constant(graph: GraphProto) -> frozenset[str]:
    """Names of the values that no input reaches."""
    found = {t.name for t in graph.initializer}
    for node in graph.node:
        if all(n in found for n in used_names(node)):
            found.update(filter(None, node.output))
    return frozenset(found)


# --- windows -----------------------------------------------------------------------------------


def window(rng: random.Random, network: Recorded) -> Sample | None:
    """Some neighbouring nodes of a network as a model; None if they are not worth it."""
    graph = network.model.graph
    count = rng.randint(3, 12)
    start = rng.randrange(max(1, len(graph.node) - count))
    nodes = [n for n in graph.node[start : start + count] if n.op_type != "Constant"]
    made = {name for node in nodes for name in node.output if name}
    used = dict.fromkeys(n for node in nodes for n in used_names(node) if n not in made)
    used = {n: None for n in used if n in network.values}
    stored = {n: network.values[n] for n in used if n in network.constant}
    inputs = {n: network.values[n] for n in used if n not in network.constant}
    inside = {n for node in nodes for n in used_names(node)}
    outputs = [n for n in made if n not in inside] or list(made)
    read = sum(a.nbytes for a in (*stored.values(), *inputs.values()))
    if not inputs or read > MOST_BYTES or not all(n in network.values for n in outputs):
        return None
    outputs += rng.sample(sorted(inside & made & network.values.keys()), 1 if made & inside else 0)
    model = ModelProto()
    model.CopyFrom(_frame(network.model))
    model.graph.name = "window"
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in stored.items())
    how = rng.choices(("fixed", "first", "all"), (70, 15, 15))[0]
    model.graph.input.extend(_info(n, a, how) for n, a in inputs.items())
    claimed = rng.random() < 0.3 and how == "fixed"
    for name in sorted(dict.fromkeys(outputs)):
        model.graph.output.append(_info(name, network.values[name], "fixed" if claimed else "none"))
    if claimed:
        rest = sorted((made & network.values.keys()) - set(outputs))
        model.graph.value_info.extend(_info(n, network.values[n], "fixed") for n in rest)
    return Sample(network.name, model, inputs)


def _frame(model: ModelProto) -> ModelProto:
    """A model without its graph."""
    frame = ModelProto(ir_version=IR_VERSION)
    frame.opset_import.extend(model.opset_import)
    frame.functions.extend(model.functions)
    return frame


def _info(name: str, array: np.ndarray, how: str) -> onnx.ValueInfoProto:
    """The type of a value: all extents fixed, the first or all open, or no shape at all."""
    dims: list[int | str] | None = list(array.shape)
    if how == "none":
        dims = None
    elif how == "all":
        dims = [f"{name}_{axis}" for axis in range(array.ndim)]
    elif how == "first" and array.ndim:
        dims[0] = "N" if array.shape[0] != 1 else "B"
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, kind, dims)


# --- the official suite --------------------------------------------------------------------------


@lru_cache(maxsize=1)
def suite() -> tuple[Case, ...]:
    """The cases in scope that ONNX Runtime can judge, without those whose functions are written
    out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        every = [c for c in cases() if not c.scope and "_expanded" not in c.name and c.sets]
    return tuple(c for c in every if all(o.version <= NEWEST for o in c.model.opset_import))


def of_suite(rng: random.Random) -> Sample:
    """A case of the suite with its first set of inputs, sometimes with open sizes."""
    case = rng.choice(suite())
    arrays = case.sets[0][0]
    names = [i.name for i in case.model.graph.input]
    pairs = zip(names, arrays, strict=False)
    model = ModelProto()
    model.CopyFrom(opened(case.model) if rng.random() < 0.3 else case.model)
    model.ir_version = min(model.ir_version, IR_VERSION)
    if rng.random() < 0.7:  # without claims, what is wrong reaches the operators
        for info in model.graph.output:
            info.type.tensor_type.ClearField("shape")
    return Sample(case.name, model, {n: a for n, a in pairs if isinstance(a, np.ndarray)})


# --- inputs of mutants ---------------------------------------------------------------------------


def fitted(model: ModelProto, inputs: Arrays) -> dict[str, np.ndarray]:
    """Arrays for the inputs as a mutant declares them, with the values of the given ones.

    Sizes that are open are those of the given array.  What cannot be made is left out.
    """
    stored = {t.name for t in model.graph.initializer}
    result = {}
    sizes: dict[str, int] = {}
    for info in model.graph.input:
        if info.name in stored or not info.type.HasField("tensor_type"):
            continue
        tensor = info.type.tensor_type
        given = inputs.get(info.name, np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4))
        try:
            dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        except (KeyError, ValueError):
            dtype = given.dtype
        shape = list(given.shape)
        if tensor.HasField("shape"):
            dims = tensor.shape.dim
            shape = [_extent(d, axis, given.shape, sizes) for axis, d in enumerate(dims)]
        if dtype.kind == "O" or min(shape, default=0) < 0 or np.prod(shape, dtype=float) > 1 << 24:
            continue
        if given.dtype != dtype or given.shape != tuple(shape):
            with np.errstate(all="ignore"):
                cast = given.astype(dtype)
            given = np.resize(cast, shape) if given.size else np.ones(shape, dtype)
        result[info.name] = given
    return result


def _extent(dim: TensorProto, axis: int, given: Sequence[int], sizes: dict[str, int]) -> int:
    if dim.HasField("dim_value"):
        return dim.dim_value
    usual = given[axis] if axis < len(given) else 2
    return sizes.setdefault(dim.dim_param, usual) if dim.dim_param else usual


def nodes_of(graph: GraphProto) -> list[NodeProto]:
    """All nodes, those of branches and bodies included."""
    found = []
    for node in graph.node:
        found.append(node)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                found += nodes_of(inner)
    return found
