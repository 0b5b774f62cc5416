"""A model with a valid structure, and what is known about it before shapes are."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from typing import ParamSpec, TypeVar

import numpy as np
import onnx
from onnx import ModelProto, TensorProto

from frontends.onnx.core.graph_names import names_within
from frontends.onnx.core.identifiers import printable
from frontends.onnx.core.node import find_operator
from frontends.onnx.core.own_models import DOMAIN
from frontends.onnx.core.schemas import added_operators
from frontends.onnx.core.serialise import serialised
from frontends.onnx.core.stages import Given, Pending
from frontends.onnx.core.tensors import ELEMENT_TYPES, tensor_array
from frontends.onnx.core.value_types import (
    Claim,
    Shapes,
    check_shapes,
    claim_of,
    claims,
    input_shape,
    open_port,
)
from frontends.onnx.model.attributes import schema_of
from frontends.onnx.model.functions import has_function, key_of, own_functions
from frontends.onnx.model.loading import (
    Loaded,
    check_structure,
    check_text,
    domain_of,
    external_files,
    live_nodes,
    load,
    opset_versions,
    opsets_of,
    shown_name,
    shown_operator,
)
from poly.errors import ArgumentError, ModelError, SavedFileError, UnsupportedNode
from poly.ir.dtypes import DType
from poly.ir.port import Port

_P = ParamSpec("_P")
_R = TypeVar("_R")


def reported(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Turns every exception into an error for the user."""

    @wraps(function)
    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except (ModelError, ArgumentError, SavedFileError):
            raise
        except UnicodeDecodeError as error:
            raise ModelError("the model is broken: a name is not UTF-8") from error
        except MemoryError as error:
            raise ModelError("there is not enough memory for the model") from error
        except Exception as error:  # a defect, but a user of a broken file should read a message
            raise ModelError(
                f"the model cannot be imported; this is a defect of Farkas, please report it: "
                f"{type(error).__name__}: {printable(str(error), 200)}"
            ) from error

    return guarded


@dataclass(frozen=True)
class Maker:
    """The node of the model that computes a value: its name, operator and opset."""

    name: str
    operator: str
    opset: int

    def __str__(self) -> str:
        return f"{self.operator} '{self.name}' (opset {self.opset})"


@dataclass(frozen=True, eq=False)
class Source:
    """A model with a valid structure, from which stages are imported.

    inputs : those that have to be passed; claims : of the model, about other values; nodes :
    those on which the outputs depend, in order
    running : statistics that training changes, with the outputs that they become
    step : the input for the number of a training step, "" if nothing is random
    """

    loaded: Loaded
    inputs: tuple[onnx.ValueInfoProto, ...]
    outputs: tuple[str, ...]
    claims: Mapping[str, Claim]
    initializers: Mapping[str, TensorProto]
    nodes: tuple[Pending, ...]
    running: Mapping[str, str] = field(default_factory=dict)
    step: str = ""

    @property
    def model(self) -> ModelProto:
        return self.loaded.model

    @cached_property
    def separator(self) -> str:
        """A separator that no name of the model contains, for prefixes of names in bodies."""
        names = {n for p in self.nodes for n in names_within(p.node)}
        found = "::"
        while any(found in name for name in names):
            found += ":"
        return found

    @property
    def external_files(self) -> tuple[str, ...]:
        """The names of the files of external tensors."""
        return external_files(self.model)

    def input_ports(self, shapes: Shapes) -> tuple[Port, ...]:
        """The inputs, as far as the model and `shapes` describe them.

        Raises
        ------
        ModelError : an input of a type that cannot be passed.
        ArgumentError : `shapes` that do not fit the model.
        """
        check_shapes(shapes, self.inputs)
        ports = []
        for info in self.inputs:
            claim = self.claim(info)
            if claim is None:
                raise ModelError(f"input '{printable(info.name)}' has a type that cannot be passed")
            ports.append(open_port(info, claim, shapes))
        return tuple(ports)

    @cached_property
    def output_ports(self) -> tuple[Port, ...]:
        """The outputs, as far as the model describes them."""
        infos = {info.name: info for info in reversed(self.model.graph.output)}
        return tuple(open_port(infos[n], claim_of(infos[n]), {}) for n in self.outputs)

    def giving(self, names: Sequence[str]) -> Source:
        """The model with these values as further outputs."""
        if not names:
            return self
        model = ModelProto()
        model.CopyFrom(self.model)
        model.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names)
        outputs = (*self.outputs, *names)
        return replace(self, loaded=replace(self.loaded, model=model), outputs=outputs)

    @property
    def defaults(self) -> tuple[onnx.ValueInfoProto, ...]:
        """The inputs that need not be passed, because there are initializers of their names."""
        return tuple(i for i in self.model.graph.input if i.name in self.initializers)

    def taking(self, names: Collection[str]) -> Source:
        """The model with some of `defaults` passed, too."""
        if not names:
            return self
        taken = tuple(i for i in self.defaults if i.name in names)
        left = {n: t for n, t in self.initializers.items() if n not in names}
        return replace(self, inputs=(*self.inputs, *taken), initializers=left)

    def weights(self) -> dict[str, np.ndarray]:
        """The initializers of floats, as arrays.  Raises `ModelError` if one cannot be read."""
        floats = {
            n: t
            for n, t in self.initializers.items()
            if t.data_type in ELEMENT_TYPES and ELEMENT_TYPES[t.data_type].is_float
        }
        return {n: self._array(t) for n, t in floats.items()}

    def _array(self, tensor: TensorProto) -> np.ndarray:
        what = f"initializer '{printable(tensor.name)}'"
        return tensor_array(tensor, what, self.loaded.folder)

    def file_with(self, arrays: Mapping[str, np.ndarray]) -> bytes:
        """The model as a file, with other elements of some initializers, and with all that it has
        stored in other files.

        Raises
        ------
        ModelError : that is too much for a file, or cannot be read.
        """
        model = ModelProto()
        model.CopyFrom(self.model)
        for tensor in model.graph.initializer:
            if tensor.name in arrays:
                new = onnx.numpy_helper.from_array(arrays[tensor.name], tensor.name)
                tensor.CopyFrom(new)
            elif tensor.data_location == TensorProto.EXTERNAL:
                stored = onnx.numpy_helper.from_array(self._array(tensor), tensor.name)
                tensor.CopyFrom(stored)
        return serialised(model)

    def training(self, names: Collection[str], seed: int = 0) -> Source:
        """The model with some initializers passed like inputs, and as it is trained: batches are
        normalised by their own statistics, and what these make of the running ones are further
        outputs; Dropout drops, by random numbers of a seed and of the step, which is an input.
        """
        self._check_functions()
        step = f"step{self.separator}"
        nodes, running, is_random = [], dict[str, str](), False
        for number, pending in enumerate(self.nodes):
            node = pending.node
            kind = "" if domain_of(node.domain) else node.op_type
            if kind == "BatchNormalization":
                moments = self._moments(node, pending.versions)
                node, new = _in_training(node, number, [running.get(n, n) for n in moments])
                running |= dict(zip(moments, new, strict=True))
            elif kind == "Dropout":
                node = _dropping(node, self._dropped(node), step, _number_of(seed, number))
                pending = replace(pending, versions={**pending.versions, DOMAIN: 1})
                is_random = is_random or node.op_type == "Dropout"
            nodes.append(replace(pending, node=node))
        passed = {*names, *(n for n in running if n in self.initializers)}
        left = {n: t for n, t in self.initializers.items() if n not in passed}
        taken = tuple(
            onnx.helper.make_tensor_value_info(n, t.data_type, list(t.dims))
            for n, t in self.initializers.items()
            if n in passed
        )
        if is_random:
            counter = onnx.helper.make_tensor_value_info(step, TensorProto.INT64, [])
            taken = (*taken, counter)
        return replace(
            self, inputs=(*self.inputs, *taken), initializers=left, nodes=tuple(nodes),
            outputs=(*self.outputs, *running.values()), running=running,
            step=step if is_random else "",
        )  # fmt: skip

    def _check_functions(self) -> None:
        """Raise `ModelError` if a function of the model has what is trained otherwise than run."""
        for function in self.model.functions:
            for node in function.node:
                kind = "" if domain_of(node.domain) else node.op_type
                if kind in ("BatchNormalization", "Dropout"):
                    raise ModelError(
                        f"{kind} in the function {printable(function.name)} of the model cannot be "
                        "trained; expand the functions, as onnx.inliner does"
                    )

    def _moments(self, node: onnx.NodeProto, versions: Mapping[str, int]) -> Sequence[str]:
        """The names of the running mean and variance of a normalisation of batches.

        Raises
        ------
        ModelError : they are not initializers, so that there is nothing to change; or the operator
            has no training mode.
        """
        name = printable(shown_name(node))
        if versions.get("", 0) < 14:
            raise ModelError(
                f"{name}: BatchNormalization cannot be trained before opset 14; export the network "
                "with a later one"
            )
        for moment in node.input[3:5]:
            if moment not in self.initializers:
                raise ModelError(
                    f"{name}: '{printable(moment)}', a running moment, is not an initializer, and "
                    "cannot be trained; exporters that share equal initializers write an Identity "
                    "there"
                )
        return [*node.input[3:5]]

    def _dropped(self, node: onnx.NodeProto) -> float:
        """The ratio of a Dropout.  Raises `ModelError` unless it is constant."""
        if len(node.input) < 2 or not node.input[1]:
            return next((a.f for a in node.attribute if a.name == "ratio"), 0.5)
        tensor = self.initializers.get(node.input[1])
        for made in (p.node for p in self.nodes if node.input[1] in p.node.output):
            for a in made.attribute if made.op_type == "Constant" else ():
                if a.name == "value_float":
                    return float(a.f)
                tensor = a.t if a.name == "value" else tensor
        if tensor is None:
            raise ModelError(f"{printable(shown_name(node))}: the ratio of Dropout is not known")
        return float(self._array(tensor))

    @cached_property
    def makers(self) -> Mapping[str, Maker]:
        """The node that computes each value on which the outputs depend, in the order of nodes."""
        found: dict[str, Maker] = {}
        for node, versions in ((p.node, p.versions) for p in self.nodes):
            opset = versions.get(domain_of(node.domain), 0)
            maker = Maker(printable(shown_name(node)), printable(shown_operator(node)), opset)
            found |= dict.fromkeys(filter(None, node.output), maker)
        return found

    def claim(self, info: onnx.ValueInfoProto) -> Claim | None:
        """The claim of the model about an input, None unless its type can be passed.

        Raises
        ------
        ModelError : if the model does not give an element type.
        """
        claim = claim_of(info)
        if claim is not None and not claim.element_type:
            raise ModelError(f"input '{printable(info.name)}' has no element type")
        return claim if claim is not None and claim.element_type in ELEMENT_TYPES else None


@reported
def open_model(source: str | os.PathLike[str] | bytes | ModelProto) -> Source:
    """Read a model and check its structure.

    Raises
    ------
    ModelError : a file that is broken, hostile or inconsistent.
    """
    loaded = load(source)
    model = loaded.model
    check_text(model)
    versions = opset_versions(model)
    ordered = check_structure(model)
    graph = model.graph
    outputs = [*dict.fromkeys(v.name for v in graph.output)]  # one may be listed twice
    initializers = {t.name: t for t in graph.initializer}
    return Source(
        loaded,
        tuple(i for i in graph.input if i.name not in initializers),
        tuple(outputs),
        claims(model),
        initializers,
        tuple(Pending(n, versions) for n in live_nodes(ordered, outputs)),
    )


def _in_training(
    node: onnx.NodeProto, number: int, moments: Sequence[str]
) -> tuple[onnx.NodeProto, list[str]]:
    """A normalisation of batches in training mode, and the running statistics that it returns.

    moments : the names of those before: of another node where two have the same
    """
    made = onnx.NodeProto()
    made.CopyFrom(node)
    made.input[3:5] = moments
    kept = [a for a in made.attribute if a.name != "training_mode"]
    del made.attribute[:]
    made.attribute.extend([*kept, onnx.helper.make_attribute("training_mode", 1)])
    running = [f"{made.output[0]}::running{n}::{number}" for n in range(2)]
    del made.output[1:]
    made.output.extend(running)
    return made, running


def _dropping(node: onnx.NodeProto, ratio: float, step: str, key: int) -> onnx.NodeProto:
    """A Dropout that drops, with a generator of its own, or the identity where it drops nothing."""
    if ratio == 0:
        return onnx.helper.make_node("Identity", node.input[:1], node.output[:1], name=node.name)
    return onnx.helper.make_node(
        "Dropout", [node.input[0], step], [node.output[0]], name=node.name, domain=DOMAIN,
        ratio=ratio, key=key,
    )  # fmt: skip


def _number_of(seed: int, position: int) -> int:
    """A number of 63 bits for one of many generators of a seed, as irregular as it has to be."""
    digest = hashlib.sha256(f"{seed} {position}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


@reported
def given_inputs(source: Source, shapes: Shapes | None = None) -> dict[str, Given]:
    """The types of the inputs, as far as they can be passed.

    Raises
    ------
    ModelError : a dynamic dimension that `shapes` does not give.
    ArgumentError : `shapes` that do not fit the model.
    """
    shapes = dict(shapes or {})
    check_shapes(shapes, source.inputs)
    given = {}
    for info in source.inputs:
        claim = source.claim(info)
        if claim is not None:
            dtype = ELEMENT_TYPES[claim.element_type]
            given[info.name] = Given(dtype, input_shape(info, claim, dtype, shapes))
    return given


def unknown_operators(source: Source) -> tuple[UnsupportedNode, ...]:
    """The nodes that cannot be compiled for any shapes, also in functions and subgraphs."""
    found: dict[UnsupportedNode, None] = {}
    functions = own_functions(source.model)
    work = [(p.node, p.versions) for p in source.nodes]
    seen: set[tuple[str, str, str]] = set()
    while work:
        node, versions = work.pop()
        domain = domain_of(node.domain)
        key = key_of(node)
        if key in functions:
            if key not in seen:
                seen.add(key)
                own = opsets_of(functions[key])
                work += [(n, own) for n in functions[key].node]
            continue
        for attribute in node.attribute:
            graphs = [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else []
            work += [(n, versions) for g in (*graphs, *attribute.graphs) for n in g.node]
        opset = versions.get(domain, 0)
        schema = schema_of(node.op_type, opset, domain) if opset else None
        if schema is not None and (
            find_operator(node.op_type, opset, domain) or has_function(schema)
        ):
            continue
        shown, operator = printable(shown_name(node)), shown_operator(node)
        reason = (
            why_no_schema(node.op_type, opset, domain)
            if schema is None
            else "there is no comprehension for this operator yet"
        )
        found[UnsupportedNode(shown, printable(operator), opset, reason)] = None
    return tuple(found)


def why_no_schema(operator: str, opset: int, domain: str) -> str:
    """Why there is no schema of an operator at an opset of its domain, 0 if none is imported."""
    where = f"domain '{printable(domain)}'" if domain else "the default domain"
    if not opset:
        return f"no opset of {where} is imported: add one to opset_import"
    names = {s.name for s in onnx.defs.get_all_schemas() if s.domain == domain}
    names |= added_operators(domain)
    if operator not in names and find_operator(operator, opset, domain) is not None:
        return f"it has no schema in {where}: register one with onnx.defs.register_schema"
    if domain and not domain.startswith("ai.onnx"):  # onnx has no schemas of others
        what = (
            f"this operator of {where} is not known: it needs"
            if names
            else f"operators of {where} are not known: each needs"
        )
        return (
            f"{what} a function (frontends.onnx.core.node.operator) and a schema "
            "(onnx.defs.register_schema)"
        )
    return f"there is no such operator in opset {opset}"


def withdrawn(operator: str, domain: str) -> bool:
    """Whether an operator was removed, and not only replaced by a newer version."""
    if domain:
        return False
    newest = schema_of(operator, onnx.defs.onnx_opset_version())
    return newest is None or bool(newest.deprecated)


def infer_types(model: ModelProto) -> dict[str, tuple[DType, tuple[int, ...]]]:
    """Types by onnx's own shape inference, so that a report covers the rest of the model."""
    slim = ModelProto()
    slim.CopyFrom(model)
    for tensor in slim.graph.initializer:
        if len(tensor.raw_data) > 1 << 16:
            tensor.raw_data = b""
    try:
        inferred = onnx.shape_inference.infer_shapes(slim, data_prop=True)
    except Exception:  # the report only becomes shorter
        return {}
    result = {}
    for info in (*inferred.graph.value_info, *inferred.graph.output):
        try:
            claim = claim_of(info)
        except ModelError:
            continue
        if claim is None or claim.extents is None or claim.element_type not in ELEMENT_TYPES:
            continue
        extents = [e for e in claim.extents if e is not None]
        if len(extents) == len(claim.extents):
            result[info.name] = (ELEMENT_TYPES[claim.element_type], tuple(extents))
    return result
