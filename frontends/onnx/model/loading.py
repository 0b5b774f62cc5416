"""From a path, bytes or a message to a model with a valid structure.

Model files are untrusted input.  After `load` and `check_structure`, every name is text, every
value has one definition, which comes before its uses, and nothing has been allocated that the
file did not contain.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from frontends.onnx.core.graph_names import used_names
from frontends.onnx.core.identifiers import printable
from frontends.onnx.core.limits import MAX_FANIN, MAX_MODEL_BYTES, MAX_NODES
from poly.errors import ModelError


@dataclass(frozen=True)
class Loaded:
    """A parsed model, its folder (None unless it came from a file), and its name."""

    model: ModelProto
    folder: Path | None
    source: str


def load(source: str | os.PathLike[str] | bytes | ModelProto) -> Loaded:
    """Parse a model.

    Raises
    ------
    ModelError : if it cannot be read, is too large, or is not a model.
    """
    if isinstance(source, ModelProto):
        return Loaded(source, None, "the model")
    if isinstance(source, (bytes, bytearray, memoryview)):
        data, folder, shown = bytes(source), None, "the model"
    elif isinstance(source, (str, os.PathLike)):
        path = Path(source)
        shown = f"'{printable(str(path), 200)}'"
        data, folder = _read(path, shown), path.parent
    else:
        raise ModelError(f"a model is a path, bytes or a ModelProto, not {type(source).__name__}")
    if not data:
        raise ModelError(f"{shown} is empty")
    if len(data) > MAX_MODEL_BYTES:
        raise ModelError(f"{shown} exceeds 2 GiB; store large weights as external data")
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except (DecodeError, ValueError, RecursionError) as error:
        raise ModelError(f"{shown} is not an ONNX model, or it is truncated") from error
    return Loaded(model, folder, shown)


def _read(path: Path, shown: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ModelError(f"{shown} cannot be read: {reason}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            kind = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise ModelError(f"{shown} is {kind}")
    except BaseException:
        os.close(descriptor)
        raise
    with open(descriptor, "rb") as file:
        if status.st_size > MAX_MODEL_BYTES:
            raise ModelError(f"{shown} exceeds 2 GiB; store large weights as external data")
        try:
            return file.read(MAX_MODEL_BYTES + 1)
        except OSError as error:
            raise ModelError(f"{shown} cannot be read: {error.strerror}") from error


@lru_cache(maxsize=64)
def _fields(descriptor: Any) -> tuple[tuple[tuple[str, bool], ...], tuple[tuple[str, bool], ...]]:
    """Name and whether repeated, of a message type's text fields and of its message fields."""
    texts, messages = [], []
    for field in descriptor.fields:
        if field.type == FieldDescriptor.TYPE_STRING:
            texts.append((field.name, _is_repeated(field)))
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            messages.append((field.name, _is_repeated(field)))
    return tuple(texts), tuple(messages)


def _is_repeated(field: Any) -> bool:
    """Whether a field is a list, in old and new versions of protobuf."""
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    return bool(field.label == FieldDescriptor.LABEL_REPEATED)


def external_files(model: ModelProto) -> tuple[str, ...]:
    """The names of the files of external tensors."""
    found: dict[str, None] = {}
    for message in _messages(model):
        if isinstance(message, TensorProto) and message.data_location == TensorProto.EXTERNAL:
            found |= {e.value: None for e in message.external_data if e.key == "location"}
    return tuple(found)


def check_text(model: ModelProto) -> None:
    """Check all text fields: protobuf gives text that is not UTF-8 as bytes.

    Raises
    ------
    ModelError : for text that is not UTF-8.
    """
    for message in _messages(model):
        for name, repeated in _fields(message.DESCRIPTOR)[0]:
            values = getattr(message, name) if repeated else (getattr(message, name),)
            if not all(isinstance(v, str) for v in values):
                raise ModelError(f"the model is broken: a {name.replace('_', ' ')} is not UTF-8")


def _messages(model: ModelProto) -> Iterator[Any]:
    """A model and all messages in it."""
    pending: list[Any] = [model]
    while pending:
        message = pending.pop()
        yield message
        for name, repeated in _fields(message.DESCRIPTOR)[1]:
            if repeated:
                pending += getattr(message, name)
            elif message.HasField(name):
                pending.append(getattr(message, name))


#: The versions of domains that a model need not import, as for ONNX Runtime.
_IMPLIED = {"ai.onnx.ml": int(onnx.helper.VERSION_TABLE[-1][3]), "com.microsoft": 1}


def opset_versions(model: ModelProto) -> dict[str, int]:
    """The opset of each domain; the default domain is "".

    Raises
    ------
    ModelError : if a domain has two, or that of the default domain is newer than the onnx package.
    """
    versions: dict[str, int] = {}
    for entry in model.opset_import:
        domain = domain_of(entry.domain)
        if versions.setdefault(domain, entry.version) != entry.version:
            raise ModelError(f"two opsets are imported for domain '{printable(domain)}'")
    if "" not in versions and model.ir_version < 3:
        versions[""] = 1  # before IR version 3 there was nothing to import
    versions = {**_IMPLIED, **versions}
    newest = onnx.defs.onnx_opset_version()
    if "" in versions and not 1 <= versions[""] <= newest:
        raise ModelError(
            f"the model uses opset {versions['']}; the installed onnx package knows 1 to {newest}"
        )
    return versions


def check_structure(model: ModelProto) -> list[NodeProto]:
    """Check that the graph is well formed, and sort its nodes topologically.

    Raises
    ------
    ModelError : duplicate definitions, undefined values, cycles, no graph, no output.
    """
    if not model.HasField("graph"):
        raise ModelError("this is not an ONNX model: it has no graph")
    graph = model.graph
    if len(graph.node) > MAX_NODES:
        raise ModelError(f"the model has {len(graph.node)} nodes; at most {MAX_NODES} are possible")
    if not graph.output:
        raise ModelError("the model has no output")
    _check_distinct([v.name for v in graph.input], "input")
    stored = [t.name for t in graph.initializer] + [s.values.name for s in graph.sparse_initializer]
    _check_distinct(stored, "initializer")
    producer: dict[str, int] = {}
    outside = {v.name for v in graph.input} | set(stored)
    for position, node in enumerate(graph.node):
        if len(node.input) > MAX_FANIN or len(node.output) > MAX_FANIN:
            raise ModelError(f"{describe(node)} has more than {MAX_FANIN} operands")
        for name in node.output:
            if not name:
                continue
            if name in outside or name in producer:
                raise ModelError(f"value '{printable(name)}' is defined twice")
            producer[name] = position
    known = outside | producer.keys()
    uses = [set(used_names(node)) for node in graph.node]
    for node, names in zip(graph.node, uses, strict=True):
        for name in node.input:
            if name and name not in known:
                raise ModelError(f"{describe(node)} uses '{printable(name)}', which is not defined")
        names &= known
    for value in graph.output:
        if value.name not in known:
            raise ModelError(f"output '{printable(value.name)}' is not defined")
    return _ordered(graph, producer, uses)


def _check_distinct(names: Sequence[str], what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if not name:
            raise ModelError(f"an {what} has no name")
        if name in seen:
            raise ModelError(f"two {what}s are named '{printable(name)}'")
        seen.add(name)


def _ordered(
    graph: GraphProto, producer: dict[str, int], uses: Sequence[set[str]]
) -> list[NodeProto]:
    """The nodes sorted topologically, as close to the order of the file as that allows."""
    needs = [{producer[n] for n in names if n in producer} for names in uses]
    if all(max(need, default=-1) < position for position, need in enumerate(needs)):
        return list(graph.node)
    done: set[int] = set()
    order: list[int] = []
    entered: set[int] = set()
    for root in range(len(needs)):
        stack = [root]
        while stack:
            position = stack[-1]
            if position in done:
                stack.pop()
                continue
            missing = sorted(needs[position] - done, reverse=True)
            if not missing:
                done.add(position)
                order.append(position)
                stack.pop()
            elif position in entered:
                raise ModelError(f"{describe(graph.node[position])} depends on its own output")
            else:
                entered.add(position)
                stack += missing
    return [graph.node[p] for p in order]


def live_nodes(nodes: Sequence[NodeProto], outputs: Sequence[str]) -> list[NodeProto]:
    """The nodes, in order, on which the outputs depend."""
    wanted = set(outputs)
    kept = []
    for node in reversed(nodes):
        if any(name and name in wanted for name in node.output):
            wanted.update(used_names(node))
            kept.append(node)
    kept.reverse()
    return kept


def domain_of(name: str) -> str:
    """The domain, with "" for both names of the default one."""
    return "" if name == "ai.onnx" else name


def opsets_of(function: FunctionProto) -> dict[str, int]:
    """The opset of each domain in the body of a function."""
    return {domain_of(o.domain): o.version for o in function.opset_import}


def shown_name(node: NodeProto) -> str:
    """The name of a node or, if it has none, of its first output."""
    return node.name or next(filter(None, node.output), "")


def shown_operator(node: NodeProto) -> str:
    """The operator of a node, with the domain unless it is the default one."""
    domain = domain_of(node.domain)
    return f"{domain}.{node.op_type}" if domain else node.op_type


def describe(node: NodeProto) -> str:
    """For messages: ``Conv 'conv1'``."""
    name = shown_name(node)
    return f"{printable(node.op_type)} '{printable(name)}'"
