"""The passes over the loops of CUDA and OpenCL kernels, in order."""

from __future__ import annotations

from codegen.gpu.bank_conflicts import pad_for_banks
from codegen.gpu.conditions import initialise_on_all_threads, split_conditions
from codegen.gpu.match_fragments import group_matrix_products
from codegen.gpu.trip_counts import constant_trip_counts
from codegen.gpu.unobserved_guards import drop_unobserved_guards
from codegen.gpu.vector_access import vectorise_accesses
from codegen.loops.eliminate_dead import eliminate_dead_buffers
from codegen.loops.fold_comparisons import fold_comparisons
from codegen.loops.nodes import LoopNode
from codegen.loops.substitute import simplify_indices
from codegen.loops.unroll import unroll
from poly.passes import Pass

GPU_LOOP_PASSES: tuple[Pass[LoopNode], ...] = (
    Pass(simplify_indices),
    Pass(vectorise_accesses, needs=("program",)),
    Pass(unroll),
    Pass(eliminate_dead_buffers),
    Pass(split_conditions),
    Pass(initialise_on_all_threads),
    Pass(drop_unobserved_guards),
    Pass(constant_trip_counts),
    Pass(fold_comparisons, needs=("program",)),
    Pass(pad_for_banks, needs=("block", "shared_bytes")),
    Pass(group_matrix_products),
)
