"""Errors of the public interface, in addition to those of `poly.errors`."""

from __future__ import annotations

from poly.errors import FarkasError


class UntypedError(FarkasError):
    """A kernel was asked for its program, schedule or source before its element types are known.

    A one-liner or einsum string takes them from the arrays of the first call; ``dtypes=…``
    gives them beforehand.
    """
