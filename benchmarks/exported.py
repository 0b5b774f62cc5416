"""``python -m benchmarks.exported FOLDER [NAME …]``: networks with random weights, for suite files.

20 architectures of timm and 10 of transformers, each of another family, through torch's exporter
(``pip install timm transformers onnxscript``); torch's own results are saved beside them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

#: Architectures of timm, by family.
IMAGES = {
    "residual": ("resnet18", "resnext50_32x4d", "hrnet_w18_small"),
    "regular": ("regnetx_008", "regnety_016"),
    "mobile": ("efficientnet_b0", "mobilenetv3_large_100", "ghostnet_100"),
    "dense": ("densenet121", "inception_v3", "repvgg_a0"),
    "modern convolutions": ("convnext_tiny", "poolformer_s12"),
    "attention": ("vit_small_patch16_224", "swin_tiny_patch4_window7_224", "xcit_tiny_12_p16_224"),
    "mixed": ("coatnet_0_rw_224", "levit_192", "mobilevit_s"),
    "perceptrons": ("mixer_s16_224",),
}
#: Numbers of layers, where fewer than the original's serve.
_SHORT = {"num_hidden_layers": 6}
_TEXT = ("input_ids", "attention_mask")
_LENGTH, _WORDS = 128, 900


def _texts() -> dict[str, tuple[str, str, dict[str, Any], Sequence[str]]]:
    """Names of a model's class and its configuration's in transformers, changes, and inputs."""
    small = {
        "vocab_size": 2000, "hidden_size": 512, "intermediate_size": 1376,
        "num_attention_heads": 8, "num_key_value_heads": 4, "use_cache": False, **_SHORT,
    }  # fmt: skip
    shared = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, **_SHORT}
    return {
        "bert": ("BertModel", "BertConfig", _SHORT, _TEXT),
        "distilbert": ("DistilBertModel", "DistilBertConfig", {}, _TEXT),
        "gpt2": ("GPT2Model", "GPT2Config", {"n_layer": 6, "use_cache": False}, _TEXT),
        "t5_encoder": ("T5EncoderModel", "T5Config", {}, _TEXT),
        "albert": ("AlbertModel", "AlbertConfig", shared, _TEXT),
        "electra": ("ElectraModel", "ElectraConfig", {}, _TEXT),
        "llama": ("LlamaModel", "LlamaConfig", small, _TEXT),
        "clip_vision": ("CLIPVisionModel", "CLIPVisionConfig", _SHORT, ("pixel_values",)),
        "wav2vec2": (
            "Wav2Vec2Model",
            "Wav2Vec2Config",
            {"num_hidden_layers": 4},
            ("input_values",),
        ),
        "whisper_encoder": ("WhisperModel", "WhisperConfig", {}, ("input_features",)),
    }


def names() -> list[str]:
    """All networks."""
    return [name for family in IMAGES.values() for name in family] + list(_texts())


def _image(name: str) -> tuple[Any, dict[str, Any]]:
    timm, torch = import_module("timm"), import_module("torch")
    model = timm.create_model(name, pretrained=False).eval()
    return model, {"x": torch.rand(1, *model.default_cfg["input_size"])}


def _text(name: str) -> tuple[Any, dict[str, Any]]:
    torch, transformers = import_module("torch"), import_module("transformers")
    cls, config, changes, inputs = _texts()[name]
    settings = getattr(transformers, config)(**changes, attn_implementation="sdpa")
    model = getattr(transformers, cls)(settings).eval()
    if name == "whisper_encoder":
        model = model.get_encoder()
    made: dict[str, Callable[[], Any]] = {
        "input_ids": lambda: torch.randint(5, _WORDS, (1, _LENGTH)),
        "attention_mask": lambda: torch.ones(1, _LENGTH, dtype=torch.int64),
        "pixel_values": lambda: torch.rand(1, 3, 224, 224),
        "input_values": lambda: torch.randn(1, 16000),
        "input_features": lambda: torch.randn(1, 80, 3000),
    }
    return _states(model, inputs), {n: made[n]() for n in inputs}


def network(name: str) -> tuple[Any, dict[str, Any]]:
    """A network and its inputs by name."""
    return (_text if name in _texts() else _image)(name)


def _states(model: Any, inputs: Sequence[str]) -> Any:
    """A module that returns nothing but a model's last states."""

    def forward(self: Any, *arrays: Any) -> Any:
        found = self.model(**dict(zip(inputs, arrays, strict=True)), return_dict=True)
        return found.last_hidden_state

    torch = import_module("torch")
    states: Any = type("States", (torch.nn.Module,), {"forward": forward})()
    states.model = model
    return states.eval()


def export(name: str, folder: Path) -> Path:
    """Write a network and its arrays, if they do not exist; returns its path."""
    torch = import_module("torch")
    path = folder / f"{name}.onnx"
    if path.exists():
        return path
    torch.manual_seed(0)
    model, inputs = network(name)
    part = path.with_suffix(".part")
    with torch.no_grad():
        result = model(*inputs.values())
        torch.onnx.export(
            model, tuple(inputs.values()), part, input_names=list(inputs), dynamo=True,
            external_data=False, verbose=False,
        )  # fmt: skip
    arrays = {n: a.numpy() for n, a in inputs.items()}
    np.savez(path.with_suffix(".npz"), result0=result.numpy(), **arrays)
    part.rename(path)
    return path


def main(arguments: Sequence[str]) -> int:
    """Write the named networks, or all; returns how many failed."""
    if not arguments:
        print(__doc__)
        return 2
    folder, failed = Path(arguments[0]), 0
    folder.mkdir(parents=True, exist_ok=True)
    for name in arguments[1:] or names():
        try:
            print(export(name, folder))
        except Exception as error:
            # An exporter fails with any type of exception; the next network is another matter.
            print(f"{name}: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr)
            failed += 1
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
