"""`serialised`: a model as bytes."""

from __future__ import annotations

from google.protobuf.message import EncodeError
from onnx import ModelProto

from poly.errors import ModelError


def serialised(model: ModelProto) -> bytes:
    """A model as bytes.  Raises `ModelError` if it is too large for that."""
    try:
        data: bytes = model.SerializeToString()
    except (ValueError, EncodeError) as error:  # which it is, is protobuf's version
        raise ModelError("the model is larger than 2 GiB, which no single file can be") from error
    return data
