"""The passes over the loops of C kernels, in order."""

from __future__ import annotations

from codegen.loops.call_intrinsics import call_intrinsics
from codegen.loops.eliminate_dead import eliminate_dead_buffers
from codegen.loops.fold_comparisons import fold_comparisons
from codegen.loops.nodes import LoopNode
from codegen.loops.simplify_in_context import simplify_in_context
from codegen.loops.substitute import simplify_indices
from codegen.loops.unroll import unroll_irregular
from codegen.loops.unswitch import unswitch
from codegen.loops.version_rows import version_rows
from codegen.loops.workshare import workshare
from codegen.vector.interleave import interleave_stores
from codegen.vector.mask_lanes import resolve_masks
from codegen.vector.register_pressure import limit_register_pressure
from codegen.vector.transpose import transpose_stores
from codegen.vector.unroll_sums import unroll_sums
from codegen.vector.vectorise import vectorise
from poly.passes import Pass

C_LOOP_PASSES: tuple[Pass[LoopNode], ...] = (
    Pass(simplify_indices),
    Pass(simplify_in_context, needs=("program",)),
    Pass(call_intrinsics, needs=("program",)),
    Pass(vectorise, needs=("program", "vector_bytes")),
    Pass(version_rows),
    Pass(unroll_irregular),
    Pass(resolve_masks),
    Pass(fold_comparisons, needs=("program",)),
    Pass(simplify_in_context, needs=("program",)),
    Pass(eliminate_dead_buffers),
    Pass(unswitch),
    Pass(interleave_stores, needs=("program",)),
    Pass(transpose_stores, needs=("program",)),
    Pass(limit_register_pressure),
    Pass(unroll_sums),
    Pass(workshare),
)
