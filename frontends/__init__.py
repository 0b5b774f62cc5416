"""Front ends, from user input to programs and graphs: the language, ONNX, ATen and scikit-learn.

Nothing is scheduled or generated here.
"""
