"""Files of ONNX models: reading and checking them, their functions, and the models onnx ships.

What becomes of a model's nodes is decided in `frontends.onnx.importer`.
"""
