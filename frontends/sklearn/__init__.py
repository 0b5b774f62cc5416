"""Fitted estimators of scikit-learn to ONNX models; the entry point is `convert`.

A lowering reads the fitted attributes of an estimator, and computes in the element types that
scikit-learn computes in.  scikit-learn itself is not imported.  Which rows a model is run on is
decided in `farkas.frameworks`.
"""
