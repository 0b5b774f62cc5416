"""All operator families; importing this module fills the registry."""

from frontends.onnx import (
    ml_features,
    ml_labels,
    ml_linear,
    ml_svm,
    ml_trees,
    ops_binary,
    ops_control,
    ops_conv,
    ops_elementwise,
    ops_matmul,
    ops_move,
    ops_norm,
    ops_pool,
    ops_reduce,
    ops_resize,
    ops_shape,
)

__all__ = [
    "ml_features",
    "ml_labels",
    "ml_linear",
    "ml_svm",
    "ml_trees",
    "ops_binary",
    "ops_control",
    "ops_conv",
    "ops_elementwise",
    "ops_matmul",
    "ops_move",
    "ops_norm",
    "ops_pool",
    "ops_reduce",
    "ops_resize",
    "ops_shape",
]
