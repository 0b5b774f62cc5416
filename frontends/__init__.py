"""Front ends, from user input to programs and graphs: the language, ONNX, and ATen.

Nothing is scheduled or generated here.
"""
