"""All contenders, in the order of the tables."""

from __future__ import annotations

from benchmarks.peers.base import Peer, Prepared
from benchmarks.peers.blas import Numpy
from benchmarks.peers.ort import OnnxRuntime, OnnxRuntimeFloats
from benchmarks.peers.ours import (
    Farkas,
    FarkasFixed,
    FarkasFloat32,
    FarkasSymbolic,
    FarkasText,
)
from benchmarks.peers.pytorch import (
    TorchChannelsLast,
    TorchEager,
    TorchInductor,
    TorchMaxAutotune,
)
from benchmarks.peers.torch_integers import TorchIntegers
from benchmarks.peers.vino import OpenVino, OpenVinoFloats, OpenVinoQuantised
from benchmarks.peers.xla import Xla

__all__ = ["PEERS", "Peer", "Prepared"]

PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Farkas(),
        FarkasSymbolic(),
        FarkasFixed(),
        FarkasFloat32(),
        FarkasText(),
        OnnxRuntime(),
        OnnxRuntimeFloats(),
        OpenVino(),
        OpenVinoFloats(),
        OpenVinoQuantised(),
        TorchIntegers(),
        TorchEager(),
        TorchChannelsLast(),
        TorchInductor(),
        TorchMaxAutotune(),
        Xla(),
        Numpy(),
    )
}
