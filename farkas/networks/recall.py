"""`recall`: a network that was compiled before, without the compiler and the importer."""

from __future__ import annotations

from farkas.networks.executable import WholeGraph
from farkas.networks.network import Network
from farkas.networks.network_cache import Content, Keeper


def recall(content: Content) -> Network | None:
    """The network as far as it was compiled before, None if it was not."""
    found = content.record()
    if found is None:
        return None
    if isinstance(found.made, str):
        model = content.load(found.made)
        return None if model is None else Network(content.origin, WholeGraph(model))

    from farkas.networks.stages import Stages  # networks of fixed sizes do without

    made, keeper = found.made, Keeper(content, found.files)
    executable = Stages(content.origin, made.start, made.inputs, made.outputs, keeper=keeper)
    return Network(content.origin, executable)
