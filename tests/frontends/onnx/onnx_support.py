"""What the tests of the ONNX frontend share: small models, and graphs run with numpy."""

from __future__ import annotations
