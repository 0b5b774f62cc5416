"""The weights of exported C: a string of their bytes."""

from __future__ import annotations

import numpy as np

#: Alignment of storage in the workspace and among the weights, in bytes.
ALIGNMENT = 64
#: Bytes of weights in a line.
ROW = 256
#: For each byte, how a string has it.
_OCTAL = np.array([[*f"\\{byte:03o}".encode()] for byte in range(256)], np.uint8)


def weights_text(weights: bytes) -> str:
    """The definition of the weights; "" if there are none."""
    if not weights:
        return ""
    whole = len(weights) // ROW * ROW
    lines = _OCTAL[np.frombuffer(weights[:whole], np.uint8)].reshape(-1, 4 * ROW)
    quotes = np.full((len(lines), 1), ord('"'), np.uint8)
    ends = np.full((len(lines), 1), ord("\n"), np.uint8)
    text = np.hstack([quotes, lines, quotes, ends]).tobytes().decode()
    rest = _OCTAL[np.frombuffer(weights[whole:], np.uint8)].tobytes().decode()
    return f'{weights_declared(weights)} =\n{text}"{rest}";\n'


def weights_declared(weights: bytes) -> str:
    """Their declaration, without an end."""
    return f"static const _Alignas({ALIGNMENT}) unsigned char weights[{len(weights) + 1}]"
