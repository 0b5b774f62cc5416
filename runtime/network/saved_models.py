"""Compiled graphs in files of `save`: data without code, besides the libraries themselves."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from poly.errors import Span
from poly.ir.dtypes import DTYPES, DType, dtype_of
from poly.ir.expr import Cast, Const, Expr, Index, Op, Read, Size
from poly.ir.graph import Call, Graph, Routine, View
from poly.ir.port import Port
from poly.ir.program import Program, Range, Statement, Tensor
from runtime.common.archive import Archive, Member
from runtime.common.arguments import Array, Shape
from runtime.common.cache import Cache
from runtime.common.compile_report import CompileReport
from runtime.cpu.shared_library import LIBRARY
from runtime.cpu.toolchain import Toolchain
from runtime.network.built import Built
from runtime.network.cpu_model import CpuModel
from runtime.network.memory_plan import Life, MemoryPlan, Sharing
from runtime.network.model_store import block_of, empty_block, parts_of, views_of

#: The classes of programs, which records consist of.
PROGRAM_CLASSES = (
    Const, Index, Size, Read, Op, Cast, Tensor, Range, Statement, Program, DType, Span,
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class SavedModel:
    """What `CpuModel` is made from, besides constants and libraries.

    library : the key of its entry, see `runtime.common.saved_cache`; places : the element type,
    shape and offset of each constant in a block; block : its name; block_bytes : its size.  All
    others are those of `Built`.
    """

    graph: Graph
    library: str
    sharing: Sharing
    scratch: Mapping[str, Mapping[str, tuple[int, tuple[Expr, ...]]]]
    sizes: tuple[Expr, ...]
    kernels: int
    plan: MemoryPlan | None
    places: Mapping[str, tuple[str, Shape, int]]
    block: str
    block_bytes: int
    report: CompileReport


#: The classes of compiled graphs.
MODEL_CLASSES = (
    *PROGRAM_CLASSES, Call, View, Routine, Graph, Port, Sharing, MemoryPlan, Life, CompileReport,
    SavedModel,
)  # fmt: skip


def saved_model(model: CpuModel) -> tuple[SavedModel, dict[str, Member]]:
    """A compiled graph as data, and its constants as members of an archive."""
    built, block = model.built, block_of(model.graph.constants)
    saved = SavedModel(
        replace(built.graph, constants={}),
        built.entry.key,
        built.sharing,
        built.scratch,
        built.sizes,
        built.kernels,
        built.plan,
        {n: (dtype_of(t).name, tuple(s), at) for n, (t, s, at) in block.places.items()},
        block.key,
        block.bytes,
        model.report,
    )
    return saved, {_member(block.key, name): data for name, data in block.files.items()}


class SavedModels:
    """The compiled graphs of an archive; those that share constants share memory for them.

    toolchain : with the threads of `runtime.cpu.openmp_pool`; cache : has the libraries
    """

    def __init__(self, archive: Archive, toolchain: Toolchain, cache: Cache, threads: int) -> None:
        self._archive, self._toolchain, self._cache = archive, toolchain, cache
        self._threads = threads
        self._blocks: dict[str, Array] = {}

    def load(self, saved: SavedModel) -> CpuModel:
        """A compiled graph, ready to be called.

        Raises
        ------
        SavedFileError : constants are missing or damaged.
        ValueError : the library is missing.
        ToolchainError : the library cannot be loaded.
        """
        start = time.perf_counter()
        entry = self._cache.get(saved.library)
        if entry is None or LIBRARY not in entry.files:
            raise ValueError(f"there is no library {saved.library}")
        places = {n: (DTYPES[t].numpy, s, at) for n, (t, s, at) in saved.places.items()}
        constants = views_of(self._block(saved), places)
        built = Built(
            replace(saved.graph, constants=constants), entry, saved.sharing, saved.scratch,
            saved.sizes, saved.kernels, True, saved.plan,
        )  # fmt: skip
        model = CpuModel(built, self._threads, self._toolchain, self._cache)
        took = time.perf_counter() - start
        model.report = replace(saved.report, stages=(("load", took),), from_cache=True)
        return model

    def _block(self, saved: SavedModel) -> Array:
        block = self._blocks.get(saved.block)
        if block is None:
            block = empty_block(saved.block_bytes)
            for name, start, end in parts_of(saved.block_bytes):
                self._archive.fill(_member(saved.block, name), block[start:end].data)
            self._blocks[saved.block] = block
        return block


def _member(block: str, part: str) -> str:
    return f"constants/{block}/{part}"
