"""What all of the ONNX front end shares: nodes and the registry of operators, types, sizes, text.

Nothing here reads a file or knows a particular operator.
"""
