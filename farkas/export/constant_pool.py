"""`ConstantPool`: the weights of an exported module, which its sections share."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from codegen.c.weights_text import ALIGNMENT


class ConstantPool:
    """Bytes of arrays, one after the other; equal ones are stored once."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._starts: dict[bytes, int] = {}
        self._total = 0

    def add(self, arrays: Mapping[str, np.ndarray]) -> dict[str, int]:
        """Where each array begins."""
        return {name: self._start(arrays[name]) for name in sorted(arrays)}

    def _start(self, array: np.ndarray) -> int:
        data = np.ascontiguousarray(array).tobytes()
        if data not in self._starts:
            padding = -len(data) % ALIGNMENT
            self._starts[data] = self._total
            self._parts += [data, bytes(padding)]
            self._total += len(data) + padding
        return self._starts[data]

    @property
    def bytes(self) -> bytes:
        """All of them."""
        return b"".join(self._parts)
