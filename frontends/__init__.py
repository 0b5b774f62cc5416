"""What users write, as programs and graphs: the language in `language`, ONNX in `onnx`.

Nothing is scheduled or generated here.
"""
