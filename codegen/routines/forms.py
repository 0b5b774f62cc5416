"""All routines in C, by being imported: `c_routine` finds them."""

from codegen.routines import matrices, move, ngrams, regions, scatter, select  # noqa: F401
from codegen.routines.registry import CRoutine, c_routine

__all__ = ["CRoutine", "c_routine"]
