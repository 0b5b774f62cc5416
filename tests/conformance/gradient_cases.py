"""All cases of gradients, and the operators that have no gradient."""

from __future__ import annotations

from tests.conformance.gradient_cases_elementwise import ELEMENTWISE
from tests.conformance.gradient_cases_layers import LAYERS
from tests.conformance.gradient_cases_tensors import TENSORS
from tests.conformance.gradient_check import Case

CASES: tuple[Case, ...] = (*ELEMENTWISE, *TENSORS, *LAYERS)

#: Operators without a gradient, by the reason.
WITHOUT: dict[str, tuple[str, ...]] = {
    "no result is a float": tuple(
        "And ArgMax ArgMin BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor ConvInteger Equal "
        "Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual MatMulInteger NonMaxSuppression "
        "NonZero Not Or QLinearConv QLinearMatMul QuantizeLinear Shape Size Xor".split()
    ),
    "no operand is a float": tuple(
        "BlackmanWindow Constant ConstantOfShape HammingWindow HannWindow TfIdfVectorizer".split()
    ),
    "the floats are known when it is compiled, or are not read": tuple(
        "EyeLike MelWeightMatrix Range".split()
    ),
    "the nodes of its branch have one": ("If",),
    "the result's shape depends on elements": ("Compress", "Unique"),
    "the bits of a float are read as another type": ("BitCast",),
}
