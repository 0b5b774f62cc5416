"""Check arrays on a device against the program's declarations."""

from __future__ import annotations

from typing import Any

from poly.errors import ArgumentError
from poly.ir.program import Tensor
from runtime.common.arguments import Array, Shape, Span, check_declared, span_of
from runtime.gpu.device import Device, Operand


def checked_operand(
    device: Device, tensor: Tensor, value: Any, what: str, stream: Any, writes: bool = False
) -> Operand:
    """An array on the device that matches a tensor's declaration, see `Device.operand`.

    what : its name in errors

    Raises
    ------
    ArgumentError : another dtype or rank, not contiguous, not aligned, or on another device.
    """
    operand = device.operand(what, value, stream, writes)
    check_declared(tensor, operand.dtype, operand.shape)
    if not operand.contiguous:
        raise ArgumentError(
            f"{what} is not C-contiguous, and arrays on a device are not copied; make it so"
        )
    _, start = device.locate(operand.handle) if operand.nbytes else ("", 0)
    if start % operand.dtype.itemsize:
        raise ArgumentError(f"{what} is not aligned to its elements")
    return operand


def output_operand(
    device: Device, tensor: Tensor, value: Any, shape: Shape, stream: Any
) -> Operand:
    """An array on the device that an output of some shape is written to.

    Raises
    ------
    ArgumentError : see `checked_operand`; or another shape, or read-only, as arrays of JAX are.
    """
    what = f"out {tensor.name}"
    # Their protocols do not say that they are read-only.
    if type(value).__module__.partition(".")[0] in ("jax", "jaxlib"):
        raise ArgumentError(f"{what} is an array of JAX, which is read-only; omit out=")
    operand = checked_operand(device, tensor, value, what, stream, writes=True)
    if operand.shape != shape:
        raise ArgumentError(f"{what} has shape {operand.shape}, expected {shape}")
    if not operand.writeable:
        raise ArgumentError(f"{what} is read-only")
    return operand


def span_on(device: Device, value: Array | Operand) -> Span:
    """The span of memory that an array uses on the host or on the device."""
    if not isinstance(value, Operand):
        return span_of(value)
    if value.nbytes == 0:
        return "nowhere", 0, 0
    memory, start = device.locate(value.handle)
    return memory, start, start + value.nbytes
