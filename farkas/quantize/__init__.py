"""Networks in 8 bits: calibration, errors and gains of nodes, and the choice of what stays float32.

The quantiser itself is ONNX Runtime's, loaded when it is needed.  How Farkas compiles quantised
networks is in `frontends.onnx.ops` and `poly.graph_passes`; the command is in `farkas.cli`.
"""
