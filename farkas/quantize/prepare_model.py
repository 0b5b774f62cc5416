"""From a model to the one in float32 that is quantised: optimised, every node with a name."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto, NodeProto, version_converter

from farkas.quantize import onnxruntime_tools
from farkas.quantize.unfit_nodes import with_plain_biases, with_types
from farkas.version import version
from frontends.onnx import Source, open_model
from frontends.onnx.core.graph_names import subgraphs
from frontends.onnx.core.serialise import serialised
from poly.errors import ModelError

#: Scales for each channel came with this version of the operators.
LEAST_OPSET = 13
_NARROW = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QAttention", "QGemm")
_DEFAULT_DOMAINS = ("", "ai.onnx")
#: That of the opset.
_LEAST_IR = 7


def opened(model: str | os.PathLike[str] | bytes | Any) -> Source:
    """A model that may be quantised.

    Raises
    ------
    ModelError : it cannot be read, is broken, or is quantised already.
    """
    source = open_model(model)
    narrow = [n for n in source.model.graph.node if _is_narrow(n)]
    if narrow:
        first = narrow[0]
        more = f" and {len(narrow) - 1} more nodes" if len(narrow) > 1 else ""
        raise ModelError(
            f"the network is quantised already, by {first.op_type} "
            f"'{first.name or next(iter(first.output), '')}'{more}; give the one in float32"
        )
    return source


def prepared(source: Source, folder: Path) -> ModelProto:
    """The model as it is quantised; `folder` is for files on the way.

    Raises
    ------
    ModelError : ONNX Runtime refuses it, or its opset is too old and cannot be raised.
    """
    model = ModelProto()
    model.CopyFrom(source.model)
    del model.graph.input[:]
    model.graph.input.extend(source.inputs)  # without stored values, which are no longer inputs
    if source.external_files:
        if source.loaded.folder is None:
            raise ModelError("weights in files need the path of the model")
        _load_weights(model, source.loaded.folder)
    model = _raised(model)
    before, after = folder / "given.onnx", folder / "prepared.onnx"
    before.write_bytes(serialised(model))
    domains = {n.domain for n in model.graph.node}
    for optimise in (True, False):
        try:
            onnxruntime_tools.prepare(before, after, optimise)
        except ModelError:
            if not optimise:
                raise
            continue
        found = onnx.load(str(after))
        if {n.domain for n in found.graph.node} <= {*domains, *_DEFAULT_DOMAINS}:
            break
    _name_nodes(found, source.model)
    return with_plain_biases(with_types(found, serialised(found)))


def size_of(source: Source) -> int:
    """The size of a model in bytes, with its weights in other files."""
    folder = source.loaded.folder or Path()
    apart = sum((folder / name).stat().st_size for name in source.external_files)
    return int(source.model.ByteSize()) + apart


def cleaned(model: ModelProto, source: Source) -> ModelProto:
    """A model like its source, without what tools leave: unused domains, notes, inner types."""
    used = {_domain(n.domain) for n in _all_nodes(model.graph.node)}
    used |= {_domain(o.domain) for f in model.functions for o in f.opset_import}
    imports = {_domain(o.domain): o.version for o in model.opset_import}
    found, like = ModelProto(), source.model
    found.CopyFrom(model)
    found.ir_version = max(like.ir_version, _LEAST_IR)
    del found.opset_import[:], found.metadata_props[:], found.graph.value_info[:]
    for domain in sorted({"", *used} & {*imports}):
        found.opset_import.add(domain=domain, version=imports[domain])
    found.metadata_props.extend(like.metadata_props)
    del found.graph.input[:], found.graph.output[:]
    found.graph.input.extend(source.inputs)
    found.graph.output.extend(like.graph.output)
    found.graph.name = like.graph.name
    found.producer_name, found.producer_version = "farkas", version()
    return found


def _load_weights(model: ModelProto, folder: Path) -> None:
    """Read the weights in other files.  Raises `ModelError`."""
    try:
        onnx.load_external_data_for_model(model, str(folder))
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        line = next(iter(str(error).splitlines()), type(error).__name__)[:200]
        raise ModelError(f"the weights of the network cannot be read: {line}") from error


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _is_narrow(node: NodeProto) -> bool:
    name = node.op_type
    return name in _NARROW or name.startswith("QLinear") or name.endswith("Integer")


def _raised(model: ModelProto) -> ModelProto:
    """The model with an opset that has a scale for each channel."""
    known = [o.version for o in model.opset_import if o.domain in _DEFAULT_DOMAINS]
    opset = max(known, default=0)
    if opset >= LEAST_OPSET:
        return model
    # In old files weights are inputs, too; the converter knows them by the version of the file.
    model.ir_version = max(model.ir_version, _LEAST_IR)
    try:
        return version_converter.convert_version(model, LEAST_OPSET)
    except Exception as error:  # of several types, from C++
        line = next(iter(str(error).splitlines()), type(error).__name__)[:200]
        raise ModelError(
            f"the network has opset {opset}; quantising needs {LEAST_OPSET}, and onnx cannot "
            f"convert it: {line}.  Export it again with opset {LEAST_OPSET} or later"
        ) from error


def _name_nodes(model: ModelProto, given: ModelProto) -> None:
    """Give every node a name of its own: that of the given node with the same result, if it can."""
    makers = {name: n.name or name for n in given.graph.node for name in n.output if name}
    known = {n.name for n in given.graph.node if n.name}
    seen: set[str] = set()
    for node in model.graph.node:
        result = next(filter(None, node.output), node.op_type)
        base = node.name if node.name in known else makers.get(result, result)
        name, number = base, 1
        while name in seen:
            number += 1
            name = f"{base}_{number}"
        node.name = name
        seen.add(name)


def _all_nodes(nodes: Iterable[NodeProto]) -> Iterable[NodeProto]:
    """Nodes with those of their bodies."""
    for node in nodes:
        yield node
        for body in subgraphs(node):
            yield from _all_nodes(body.node)
