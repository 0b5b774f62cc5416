"""Front ends, from user input to programs and graphs: the language, and ONNX.

Nothing is scheduled or generated here.
"""
