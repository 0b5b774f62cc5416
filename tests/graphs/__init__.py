"""Random ONNX graphs: every kind of value in every role, and what ONNX Runtime makes of them."""
