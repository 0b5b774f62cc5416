"""The onnx package's Backend interface, so that its official suite and other tools can use Farkas.

>>> import farkas.backend
>>> prepared = farkas.backend.prepare(model)
>>> outputs = prepared.run([x, w])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import ModelProto
from onnx.backend.base import Backend, BackendRep, namedtupledict

from farkas.networks.compile_onnx import compile_onnx
from farkas.networks.network import Network
from farkas.targets.find_target import target_of
from poly.errors import ArgumentError, ToolchainError

Array = np.ndarray


class FarkasRep(BackendRep):
    """A compiled model: arrays in the order of its inputs in, outputs in order out."""

    def __init__(self, model: Network) -> None:
        self.model = model

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Array, ...]:
        """The outputs, as a named tuple.

        Raises
        ------
        FarkasError : arrays that do not match the model, or a model that cannot be run on them.
        """
        names = [p.name for p in self.model.inputs]
        if not isinstance(inputs, dict):
            given = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
            inputs = dict(zip(names, given, strict=True))
        arrays = {n: np.asarray(a) for n, a in inputs.items()}
        results = self.model.run(arrays, threads=kwargs.get("threads"))
        made: tuple[Array, ...] = namedtupledict("Outputs", list(results))(*results.values())
        return made


class FarkasBackend(Backend):
    """Compiles models with Farkas."""

    @classmethod
    def is_compatible(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether every operator of the model is known."""
        from frontends.onnx import open_model, unknown_operators

        return cls.supports_device(device) and not unknown_operators(open_model(model))

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> FarkasRep:
        """Compile a model.

        device : ``CPU``, or a target of `farkas.compile_onnx` in capitals, as in ``CUDA:1``

        Raises
        ------
        FarkasError : a model that is broken, or has nodes that cannot be compiled.
        """
        target = device.lower()
        return FarkasRep(compile_onnx(model, threads=kwargs.get("threads"), target=target))

    @classmethod
    def run_model(
        cls, model: ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Array, ...]:
        """Compile a model and run it once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: Any,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Array, ...]:
        """Run one node: a model of one node is compiled."""
        from onnx import TensorProto, helper

        names = [n for n in node.input if n]
        arrays = [np.asarray(a) for a in inputs]
        types = [helper.np_dtype_to_tensor_dtype(a.dtype) for a in arrays]
        graph = helper.make_graph(
            [node],
            "node",
            [
                helper.make_tensor_value_info(n, t, a.shape)
                for n, t, a in zip(names, types, arrays, strict=True)
            ],
            [helper.make_tensor_value_info(n, TensorProto.UNDEFINED, None) for n in node.output],
        )
        opset = kwargs.get("opset_version")
        imports = None if opset is None else [helper.make_opsetid(node.domain, opset)]
        return cls.run_model(helper.make_model(graph, opset_imports=imports), arrays, device)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether models can run there."""
        try:
            target_of(None, None, target=device.lower())
        except (ArgumentError, ToolchainError):
            return False
        return True


is_compatible = FarkasBackend.is_compatible
prepare = FarkasBackend.prepare
run_model = FarkasBackend.run_model
run_node = FarkasBackend.run_node
supports_device = FarkasBackend.supports_device
