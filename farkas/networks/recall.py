"""`recall`: a network that was compiled before, without the compiler and the importer."""

from __future__ import annotations

from dataclasses import replace

from farkas.networks.executable import WholeGraph
from farkas.networks.network import Network
from farkas.networks.network_cache import Content, Keeper


def recall(content: Content) -> Network | None:
    """The network as far as it was compiled before, None if it was not."""
    found = content.record()
    if found is None:
        return None
    origin = replace(content.origin, files=found.files)
    if isinstance(found.made, str):
        model = content.load(found.made)
        return None if model is None else Network(origin, WholeGraph(model))

    from farkas.networks.stages import Stages  # networks of fixed sizes do without

    made, keeper = found.made, Keeper(content, found.files)
    executable = Stages(origin, made.start, made.inputs, made.outputs, keeper=keeper)
    return Network(origin, executable)
