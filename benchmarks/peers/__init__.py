"""All contenders, in the order of the tables."""

from __future__ import annotations

from benchmarks.peers.base import Peer, Prepared
from benchmarks.peers.blas import Numpy
from benchmarks.peers.ort import OnnxRuntime
from benchmarks.peers.ours import Farkas, FarkasFixed, FarkasSymbolic
from benchmarks.peers.pytorch import TorchChannelsLast, TorchEager, TorchInductor
from benchmarks.peers.vino import OpenVino
from benchmarks.peers.xla import Xla

__all__ = ["PEERS", "Peer", "Prepared"]

PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Farkas(),
        FarkasSymbolic(),
        FarkasFixed(),
        OnnxRuntime(),
        OpenVino(),
        TorchEager(),
        TorchChannelsLast(),
        TorchInductor(),
        Xla(),
        Numpy(),
    )
}
