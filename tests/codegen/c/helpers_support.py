"""Helpers of generated code in a library, by any compiler and for fewer features."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np

#: Flags after those of the compiler, so that each form of the text is taken on some machine.
LEVELS = {"all": (), "no AVX-512": ("-mno-avx512f",), "no AVX": ("-mno-avx",)}

Load = Callable[[str], ctypes.CDLL]


def address(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
