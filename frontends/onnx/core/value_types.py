"""The types that a model claims for its values, and the shapes of its inputs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import ModelProto, TensorShapeProto, TypeProto, ValueInfoProto

from frontends.onnx.core.identifiers import printable
from frontends.onnx.core.limits import MAX_RANK, checked_shape
from frontends.onnx.core.narrow_types import NARROW_TYPES
from frontends.onnx.core.stages import TEXT
from frontends.onnx.core.symbolic_dims import hint_of
from frontends.onnx.core.tensors import ELEMENT_TYPES, type_name
from poly.errors import ArgumentError, ModelError, ModelWarning
from poly.ir.dtypes import FLOAT32, DType
from poly.ir.port import Port

Shapes = Mapping[str, Sequence[int] | int]

#: The element types that values may have while a model runs.
_TYPES = {**ELEMENT_TYPES, **NARROW_TYPES, onnx.TensorProto.STRING: TEXT}
#: The same the other way round: the number of a type in the file format.
TYPE_NUMBERS = {dtype: number for number, dtype in _TYPES.items()}


#: What exporters write for a dimension of which they know nothing.
NAMELESS = ("", "?", "-1")


class DynamicShapeError(ModelError):
    """An input has no fixed shape."""


@dataclass(frozen=True)
class Claim:
    """A model's claim about a value: element type number, and extents (None if unknown)."""

    element_type: int
    extents: tuple[int | None, ...] | None

    def check_type(self, dtype: DType, what: str) -> None:
        """Check an inferred element type against the claim.

        Raises
        ------
        ModelError : if they differ.
        """
        if self.element_type and _TYPES.get(self.element_type) != dtype:
            raise ModelError(
                f"{what} is {dtype}, but the model says {type_name(self.element_type)}"
            )

    def check(self, dtype: DType, shape: tuple[int, ...], what: str) -> None:
        """Check an inferred type against the claim; warn of another shape, which changes no result.

        Raises
        ------
        ModelError : another element type.
        """
        self.check_type(dtype, what)
        if self.extents is None:
            return
        # What is ignored is no condition on open sizes, either.
        agrees = len(self.extents) == len(shape) and all(
            e is None or e == hint_of(s) for e, s in zip(self.extents, shape, strict=True)
        )
        if not agrees:
            said = ", ".join("?" if e is None else str(e) for e in self.extents)
            warnings.warn(
                f"{what} has shape {list(shape)}, but the model says [{said}]; that is ignored",
                ModelWarning,
                stacklevel=2,
            )


def claim_of(info: ValueInfoProto) -> Claim | None:
    """The claim that an entry makes, None if it makes none about a dense tensor.

    Raises
    ------
    ModelError : for an element type that does not exist, or a negative extent.
    """
    if not info.type.HasField("tensor_type"):
        return None
    tensor = info.type.tensor_type
    what = f"value '{printable(info.name)}'"
    if tensor.elem_type not in onnx.TensorProto.DataType.values():
        raise ModelError(f"{what} has element type number {tensor.elem_type}, which does not exist")
    if not tensor.HasField("shape"):
        return Claim(tensor.elem_type, None)
    if len(tensor.shape.dim) > MAX_RANK:
        raise ModelError(f"{what} has rank {len(tensor.shape.dim)}; at most {MAX_RANK} is possible")
    extents: list[int | None] = []
    for dim in tensor.shape.dim:
        known = dim.HasField("dim_value") and dim.dim_value != -1
        if known and dim.dim_value < 0:
            raise ModelError(f"{what} has a negative extent: {dim.dim_value}")
        extents.append(dim.dim_value if known else None)
    return Claim(tensor.elem_type, tuple(extents))


def claims(model: ModelProto) -> dict[str, Claim]:
    """All claims about intermediate values and outputs."""
    result = {}
    # The converter of LightGBM claims labels for one row, whatever the number of rows.
    is_vague = any(o.domain == "ai.onnx.ml" for o in model.opset_import)
    outputs = {info.name for info in model.graph.output}
    for info in (*model.graph.value_info, *model.graph.output):
        claim = claim_of(info)
        if claim is not None and is_vague and info.name in outputs:
            claim = Claim(claim.element_type, None)
        if claim is not None:
            result[info.name] = claim
    return result


def name_of(dim: TensorShapeProto.Dimension) -> str:
    """The name of an open dimension; none if it only says that the size is unknown.

    Dimensions of one name have one size, but not all that are called ``?``.
    """
    name = str(dim.dim_param)
    return "" if name.strip() in NAMELESS else name


def kind_of(proto: TypeProto) -> str:
    """The kind of a type, for messages."""
    kind = proto.WhichOneof("value")
    return (kind or "unknown type").replace("_type", "").replace("_", " ")


def input_shape(
    info: ValueInfoProto, claim: Claim, dtype: DType, shapes: Shapes
) -> tuple[int, ...]:
    """The concrete shape of a graph input.

    Raises
    ------
    DynamicShapeError : for a dynamic extent that `shapes` does not give.
    ArgumentError : if `shapes` contradicts the model.
    """
    shown = printable(info.name)
    given = shapes.get(info.name)
    if isinstance(given, int):
        given = (given,)
    if given is not None:
        given = tuple(int(g) for g in given)
        if any(g < 0 for g in given):
            raise ArgumentError(f"shapes['{shown}'] = {list(given)} has a negative extent")
    if claim.extents is None:
        if given is None:
            raise DynamicShapeError(
                f"input '{shown}' has no shape; pass shapes={{'{shown}': (...)}} to give it one"
            )
        return checked_shape(given, dtype, f"input '{shown}'")
    if given is not None and len(given) != len(claim.extents):
        raise ArgumentError(
            f"shapes['{shown}'] has {len(given)} extents, but the input has {len(claim.extents)}"
        )
    result = []
    for axis, extent in enumerate(claim.extents):
        dim = info.type.tensor_type.shape.dim[axis]
        if given is not None:
            if extent is not None and given[axis] != extent:
                raise ArgumentError(
                    f"shapes['{shown}'][{axis}] is {given[axis]}, "
                    f"but the model fixes it at {extent}"
                )
            extent = given[axis]
        elif extent is None and (size_name := name_of(dim)) in shapes:
            extent = _named(size_name, shapes[size_name])
        if extent is None:
            name = f" '{printable(dim.dim_param)}'" if name_of(dim) else ""
            example = ", ".join(str(1 if e is None else e) for e in claim.extents)
            raise DynamicShapeError(
                f"dimension {axis}{name} of input '{shown}' is dynamic; pass its size, for "
                f"example shapes={{'{shown}': ({example},)}}"
            )
        result.append(extent)
    return checked_shape(result, dtype, f"input '{shown}'")


def open_port(info: ValueInfoProto, claim: Claim | None, shapes: Shapes) -> Port:
    """An input or output, as far as the model and `shapes` describe it.

    Raises
    ------
    ArgumentError : if `shapes` contradicts the model.
    """
    dtype = _TYPES.get(claim.element_type if claim else 0, FLOAT32)
    if info.type.WhichOneof("value") not in (None, "tensor_type"):
        return Port(info.name, DType(kind_of(info.type), "o", 0), None)
    if claim is None or claim.extents is None:
        given = shapes.get(info.name)
        shape = (given,) if isinstance(given, int) else given
        return Port(info.name, dtype, None if shape is None else tuple(shape))
    try:
        return Port(info.name, dtype, input_shape(info, claim, dtype, shapes))
    except DynamicShapeError:
        dims = info.type.tensor_type.shape.dim
        extents: list[int | str | None] = []
        for dim, extent in zip(dims, claim.extents, strict=True):
            name = name_of(dim)
            if extent is None and name in shapes:
                extent = _named(name, shapes[name])
            extents.append(extent if extent is not None else name or None)
        return Port(info.name, dtype, tuple(extents))


def _named(name: str, given: Sequence[int] | int) -> int:
    """The size given for a named dimension."""
    size = given if isinstance(given, int) else int(given[0]) if len(given) == 1 else -1
    if size < 0:
        raise ArgumentError(f"shapes['{printable(name)}'] must be one size, not {given}")
    return size


def check_shapes(shapes: Shapes, inputs: Sequence[ValueInfoProto]) -> None:
    """Check that every key of `shapes` names an input or a dynamic dimension.

    Raises
    ------
    ArgumentError : if one does not.
    """
    names = {i.name for i in inputs}
    sizes = {name_of(d) for i in inputs for d in i.type.tensor_type.shape.dim} - {""}
    for name in shapes:
        if name in names | sizes:
            continue
        listed = ", ".join(f"'{printable(n)}'" for n in sorted(names | sizes)) or "none"
        there = "the inputs and dynamic dimensions are" if sizes else "all sizes are fixed; inputs:"
        raise ArgumentError(f"shapes names '{printable(name)}'; {there} {listed}")
