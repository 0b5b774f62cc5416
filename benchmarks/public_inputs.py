"""The inputs of the models of suite public, for a size."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

Arrays = dict[str, np.ndarray]
#: Inputs for one or more sizes; omitted ones default to the first.
Make = Callable[..., Arrays]
Random = np.random.Generator


def _normal(rng: Random, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


def noise(*shapes: tuple[str, tuple[int, ...]]) -> Make:
    """Normal floats for named inputs; -1 in a shape stands for the size."""

    def make(rng: Random, size: int) -> Arrays:
        return {n: _normal(rng, *(size if s < 0 else s for s in shape)) for n, shape in shapes}

    return make


def tokens(name: str, count: int, batch: int = 1) -> Make:
    """Sequences of as many tokens as the size, of which there are `count`."""

    def make(rng: Random, size: int) -> Arrays:
        return {name: rng.integers(1, count, (batch, size))}

    return make


def content(rng: Random, size: int) -> Arrays:
    """The bytes of files."""
    return {"bytes": rng.integers(0, 256, (size, 2048)).astype(np.int32)}


def music(rng: Random, size: int) -> Arrays:
    """Windows of a tone."""
    wave = (
        np.sin(np.arange(43844) * 0.13)[None, :, None] + rng.standard_normal((size, 43844, 1)) / 9
    )
    return {"serving_default_input_2:0": wave.astype(np.float32)}


def _wave(rng: Random, size: int) -> np.ndarray:
    wave = np.sin(np.arange(576) * 0.1) / 2 + rng.standard_normal((size, 576)) / 20
    return np.asarray(wave, np.float32)


def speech(rng: Random, size: int) -> Arrays:
    """Windows of a voice, the state before them, and the rate."""
    return {**unrated(rng, size), "sr": np.array(16000)}


def unrated(rng: Random, size: int) -> Arrays:
    """Windows of a voice, and the state before them."""
    return {"input": _wave(rng, size), "state": np.zeros((2, size, 128), np.float32)}


def windows(rng: Random, size: int) -> Arrays:
    """Windows of one voice that follow each other."""
    state = np.zeros((1, 1, 128), np.float32)
    return {"input": _wave(rng, size), "h": state, "c": state}


def voices(rng: Random, size: int) -> Arrays:
    """Spectra of voices, and the one to be heard."""
    state = np.zeros((3, 2, 512), np.float32)
    voice = _normal(rng, 2, 256) / 16
    return {"stacked_logmel": _normal(rng, 2, size, 512), "dvec": voice, "h0": state, "c0": state}


def spectra(rng: Random, size: int) -> Arrays:
    """Spectra of voices, whose loudness changes slowly."""
    time, band = np.arange(80)[:, None] / 9, np.arange(40) / 6
    phase = rng.random((2, size, 1, 1)) * 6
    loud = np.sin(time + phase[0]) * np.cos(band + phase[1]) * 2 - 4
    return {"mel_window": (loud + _normal(rng, size, 80, 40) / 5).astype(np.float32)}


def page(rng: Random, size: int, width: int | None = None) -> Arrays:
    """Dark strokes on white in the middle, which resemble a line of text."""
    wide = width or size + 32
    x = np.full((1, 3, size, wide), 2, np.float32)
    for column in range(8, wide - 8, 10):
        x[:, :, size // 2 - 8 : size // 2 + 8, column : column + 5] = -2
        x[:, :, size // 2 - 1 : size // 2 + 1, column : column + 8] = -2
    return {"x": x + rng.standard_normal(x.shape).astype(np.float32) / 20}


def line(rng: Random, size: int) -> Arrays:
    """A line of text as wide as the size."""
    return {"x": page(rng, 48, size)["x"] / 2}


def lines(rng: Random, size: int) -> Arrays:
    """As many lines of text as the size."""
    return {"x": np.concatenate([line(rng, 192)["x"] for _ in range(size)])}


def picture(rng: Random, size: int) -> Arrays:
    """A square image of smooth colours."""
    return {"images": _smooth(rng, 3, size, size)}


def bright(rng: Random, size: int) -> Arrays:
    """An image of one size, the brighter the greater the size."""
    return {"images": _smooth(rng, 3, 416, 416) * np.float32(size)}


def _smooth(rng: Random, maps: int, height: int, width: int) -> np.ndarray:
    down, across = np.mgrid[:height, :width] / 30
    waves = np.sin(down + rng.random((maps, 1, 1)) * 9) * np.cos(across * 1.3 + 1)
    return np.asarray(0.5 + waves[None] / 3 + rng.random((1, maps, height, width)) / 9, np.float32)


def captcha(rng: Random, size: int) -> Arrays:
    """Grey strokes on an image as wide as the size."""
    return {"input1": page(rng, 64, size)["x"][:, :1] / 2}


def sentence(rng: Random, size: int, batch: int = 3) -> Arrays:
    """Sequences of letters, none padded."""
    letters = rng.integers(1, 30, (batch, size))
    return {"src": letters, "src_mask": np.ones((batch, size), bool)}


def step(rng: Random, size: int, prefix: int | None = None, batch: int = 3) -> Arrays:
    """What an encoder made of sequences, and the letters decoded so far."""
    return {
        "prefix": rng.integers(1, 20, (batch, prefix or size + 4)),
        "memory": rng.standard_normal((batch, size, 256)).astype(np.float32),
        "src_mask": np.ones((batch, size), bool),
        "hidden": rng.standard_normal((batch, 2, 256)).astype(np.float32),
    }


def pair(rng: Random, size: int, target: int | None = None, batch: int = 3) -> Arrays:
    """Words, and the words made of them."""
    made = ("src", size), ("tgt_in", target or size + 5)
    return {name: rng.integers(1, 30, (batch, extent)) for name, extent in made}


def padded(rng: Random, size: int) -> Arrays:
    """Two sentences, the second shorter by two tokens."""
    mask = np.ones((2, size), np.int64)
    mask[1, -2:] = 0
    return {
        "input_ids": rng.integers(1000, 30000, (2, size)) * mask,
        "attention_mask": mask,
        "token_type_ids": np.zeros_like(mask),
    }


def around(counts: Mapping[str, int]) -> Make:
    """For each letter of a text the 21 around it, as kinds of several sorts, given as floats."""

    def make(rng: Random, size: int) -> Arrays:
        return {
            name: rng.integers(0, count, (size, 21)).astype(np.float32)
            for name, count in counts.items()
        }

    return make


def syllables(rng: Random, size: int) -> Arrays:
    """Letters, and the syllables that they are in."""
    made = rng.integers(1, 139, (1, size)), rng.integers(1, 6227, (1, size))
    return {"input": np.stack(made, axis=1)}


def rows(*most: float) -> Make:
    """As many rows as the size, of columns between 0 and a value each."""

    def make(rng: Random, size: int) -> Arrays:
        return {"input": (rng.random((size, len(most))) * most).astype(np.float32)}

    return make


def reaction(rng: Random, size: int) -> Arrays:
    """The atoms of molecules before and after a reaction, and how far they are apart."""
    half = size // 2
    roles = np.where(np.arange(size) < half, 2, 3)
    apart = np.abs(np.arange(size)[:, None] - np.arange(size)) + 2
    distances = np.where(roles[:, None] == roles, np.minimum(apart, 12), 0)
    return {
        "atoms": rng.integers(3, 20, (1, size)),
        "neighbors": rng.integers(2, 8, (1, size)),
        "distances": distances[None],
        "roles": roles[None],
    }


def protein(rng: Random, size: int) -> Arrays:
    """A chain of residues of eight atoms, each with an edge to those near it."""
    atoms = 8 * size
    place = np.cumsum(_normal(rng, atoms, 3), axis=0)
    normal = _normal(rng, atoms, 3)
    number = np.arange(atoms)
    edges = np.stack(np.nonzero(np.abs(number[:, None] - number) % 40 < 6)).astype(np.int64)
    edges = edges[:, edges[0] != edges[1]]
    residue = edges // 8
    apart = np.linalg.norm(place[edges[0]] - place[edges[1]], axis=1)
    bonded = np.less(rng.random(edges.shape[1]), 0.05).astype(np.float32)
    return {
        "element": rng.integers(0, 7, atoms),
        "amino_acid": np.repeat(rng.integers(0, 20, size), 8),
        "atom_role": rng.integers(0, 14, atoms),
        "bfactor": _normal(rng, atoms),
        "edge_index": edges,
        "edge_dist": np.minimum(apart, 7.9).astype(np.float32),
        "seq_sep": np.minimum(np.abs(residue[0] - residue[1]), 32),
        "same_residue": np.equal(residue[0], residue[1]).astype(np.float32),
        "target_indices": np.arange(size)[:, None] * 8 + np.arange(6),
        "target_mask": np.ones((size, 6), bool),
        "residue_types": rng.integers(0, 20, size),
        "residue_geometry": _normal(rng, size, 52),
        "target_environment": _normal(rng, size, 6, 15),
        "temperature_feature": np.zeros((size, 1), np.float32),
        "target_atom_rsasa": rng.random((size, 6), np.float32),
        "pos": place,
        "node_normal": normal / np.linalg.norm(normal, axis=1, keepdims=True),
        "is_hbond": bonded,
        "hb_cos": bonded * rng.random(edges.shape[1], np.float32),
    }
