"""ONNX Runtime on the processor."""

from __future__ import annotations

import ctypes
import importlib
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto

from benchmarks.kernel import Array
from benchmarks.peers.base import Peer, Prepared
from benchmarks.sixteen_bits import NUMPY
from benchmarks.task import Task

#: numpy's types of outputs.
_TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(bfloat16)": NUMPY["bfloat16"],
    "tensor(int8)": np.int8,
    "tensor(int32)": np.int32,
}


class OnnxRuntime(Peer):
    """All graph optimisations, inputs and outputs bound once."""

    name = "ort"
    modules = ("onnxruntime",)
    package = "onnxruntime"

    def file(self, task: Task) -> Path:
        """The file to load."""
        return task.path

    def prepare(self, task: Task, threads: int) -> Prepared:
        ort = importlib.import_module("onnxruntime")
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        session = ort.InferenceSession(
            str(self.file(task)), options, providers=["CPUExecutionProvider"]
        )
        binding = session.io_binding()
        for name, array in task.inputs.items():
            binding.bind_ortvalue_input(name, _value(ort, array))
        for info in session.get_outputs():
            if not task.is_translated:
                binding.bind_output(info.name)  # declared shapes may be wrong
                continue
            value = _value(ort, np.empty(info.shape, _TYPES[info.type]))
            binding.bind_ortvalue_output(info.name, value)
        return Prepared(
            lambda: session.run_with_iobinding(binding),
            lambda _: [_shown(value) for value in binding.get_outputs()],
        )


def _value(ort: Any, array: Array) -> Any:
    """A value of ONNX Runtime, which shares memory with an array."""
    if array.dtype != NUMPY["bfloat16"]:
        return ort.OrtValue.ortvalue_from_numpy(array)
    bits, number = array.view(np.uint16), TensorProto.BFLOAT16
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, number)


def _shown(value: Any) -> Array:
    """A copy of a value as an array; ONNX Runtime does not give bfloat16 to numpy itself."""
    if value.element_type() != TensorProto.BFLOAT16:
        return np.asarray(value.numpy().copy())
    count = value.tensor_size_in_bytes()
    memory = (ctypes.c_char * count).from_address(value.data_ptr())
    shape = value.shape()
    return np.frombuffer(bytes(memory), NUMPY["bfloat16"]).reshape(shape)


class OnnxRuntimeFloats(OnnxRuntime):
    """Sums of integers written as sums of floats between DequantizeLinear, which it fuses."""

    name = "ort-qdq"
    form = "qdq"

    def suits(self, task: Task) -> bool:
        return self.form in task.forms

    def file(self, task: Task) -> Path:
        return task.forms[self.form]
