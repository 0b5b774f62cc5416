"""Networks from files that `farkas.networks.saved_network` wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from farkas.networks.compile_onnx import compile_origin
from farkas.networks.executable import Executable, WholeGraph
from farkas.networks.network import Network, Origin
from farkas.networks.network_cache import VariantStore
from farkas.networks.saved_network import CLASSES, SavedNetwork
from farkas.networks.saved_source import SavedSource
from farkas.targets.saved_code import SavedCode
from runtime.common.archive import damaged
from runtime.common.arguments import default_threads
from runtime.common.compile_report import Progress
from runtime.common.records import read_record
from runtime.network.cpu_model import CpuModel
from runtime.network.saved_models import SavedModels

if TYPE_CHECKING:
    from frontends.onnx import Source


def load_network(code: SavedCode, progress: Progress | None) -> Network:
    """The network in a file.

    Raises
    ------
    SavedFileError : something is missing or damaged.
    ToolchainError : a library cannot be loaded.
    """
    path = code.archive.path
    try:
        record = read_record(code.record, CLASSES)
        if not isinstance(record, SavedNetwork):
            raise ValueError("not a network")
        threads = code.runner.threads or default_threads()
        loader = SavedModels(code.archive, code.toolchain, code.runner.cache, threads)
        models = {name: loader.load(saved) for name, saved in record.models.items()}
        source = SavedSource(path.absolute(), code.archive.stamp)
        origin = Origin(
            compile_origin, source, code.target, record.shapes, progress, record.outputs,
            record.passed,
        )  # fmt: skip
        return Network(origin, _executable(record, models, origin))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise damaged(path, str(error)) from error


def _executable(record: SavedNetwork, models: Mapping[str, CpuModel], origin: Origin) -> Executable:
    made = record.made
    if isinstance(made, str):
        return WholeGraph(models[made])

    from farkas.networks.stages import Stages  # networks of fixed sizes do without

    store = _SavedVariants(models, origin)
    return Stages(origin, made.start, made.inputs, made.outputs, keeper=store)


@dataclass(frozen=True, eq=False)
class _SavedVariants(VariantStore):
    """The compiled stages of a file, which is not changed."""

    models: Mapping[str, CpuModel]
    origin: Origin

    def open(self) -> Source:
        return self.origin.open()

    def load(self, key: str) -> CpuModel | None:
        return self.models[key]
