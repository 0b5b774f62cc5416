"""All operator families; importing this module fills the registry."""

from frontends.onnx import (
    ops_binary,
    ops_control,
    ops_conv,
    ops_elementwise,
    ops_matmul,
    ops_move,
    ops_norm,
    ops_pool,
    ops_quantised,
    ops_reduce,
    ops_resize,
    ops_sample,
    ops_scatter,
    ops_select,
    ops_shape,
    ops_signal,
)

__all__ = [
    "ops_binary",
    "ops_control",
    "ops_conv",
    "ops_elementwise",
    "ops_matmul",
    "ops_move",
    "ops_norm",
    "ops_pool",
    "ops_quantised",
    "ops_reduce",
    "ops_resize",
    "ops_sample",
    "ops_scatter",
    "ops_select",
    "ops_shape",
    "ops_signal",
]
