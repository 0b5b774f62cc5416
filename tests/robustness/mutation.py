"""Broken models and broken texts, made from sound ones, reproducibly."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import numpy as np
import onnx

from frontends.onnx.model.light_models import load_light
from tests.frontends.onnx.importer.test_fuzz import MUTATIONS, seeds
from tests.robustness.kernels import CASES, MORE
from tests.robustness.nets import conv_net, dense_net, tiny_net


def broken_bytes(rng: random.Random, data: bytes) -> bytes:
    """A file with some bytes changed, left out or put in."""
    broken = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        position = rng.randrange(len(broken)) if broken else 0
        match rng.randrange(5):
            case 0 if broken:
                broken[position] = rng.randrange(256)
            case 1 if broken:
                broken[position] ^= 1 << rng.randrange(8)
            case 2:
                del broken[position : position + rng.randrange(1, 9)]
            case 3:
                broken[position:position] = rng.randbytes(rng.randrange(1, 9))
            case _:
                del broken[position:]
    return bytes(broken)


def broken_model(rng: random.Random, sound: onnx.ModelProto) -> onnx.ModelProto:
    """A model with some numbers, wires, types or operators exchanged."""
    model = onnx.ModelProto()
    model.CopyFrom(sound)
    for _ in range(rng.choice((1, 1, 2, 3))):
        rng.choice(MUTATIONS)(rng, model)
    if rng.random() < 0.7:  # without claims, mistakes reach the operators
        for output in model.graph.output:
            output.type.tensor_type.ClearField("shape")
    return model


def broken_models(count: int, seed: int) -> Iterator[onnx.ModelProto | bytes]:
    """Mutants of small models, by bytes and by structure, and cut off networks."""
    rng = random.Random(seed)
    sound = [*seeds(), conv_net(), dense_net(), tiny_net()]
    networks = [load_light(name)[0].read_bytes() for name in ("shufflenet", "squeezenet")]
    for number in range(count):
        if number % 10 == 9:
            data = rng.choice(networks)
            yield data[: rng.randrange(len(data))]
        elif number % 3 == 0:
            yield broken_bytes(rng, rng.choice(sound).SerializeToString())
        else:
            yield broken_model(rng, rng.choice(sound))


# --- texts ---------------------------------------------------------------------------------

_TOKEN = re.compile(r"\w+|\s+|->|\+=!|max=!|[-+*/%<>=!&|^]=?|.", re.DOTALL)
_INSERTS = [
    "0", "1", "-1", "2", "7", "65536", "2147483648", "9223372036854775807", "1" * 40, "1e400",
    "0x", "1e-400", "i", "j", "N", "M", "X", "Y", "[", "]", "(", ")", "{", "}", ",", ";", "=",
    "+=!", "max=!", "*=", "//", "%", "<<", ">>", " where ", " in ", ":", "select(", "int8(",
    "bool(", "float16(", "uint64(", "isnan(", "exp(", "not ", " and ", "\n", "\0", "é", "\u2028",
    "\\", "'", '"', "/*", "*/", "#", "->", "def ", "inf", "nan", "true", "?", "$", "@", "~", "&",
    "|", "^", "where i in 0:N", "where i in 0:5", "i//2", "i%3", "-i", "i*j", "X[X[i]]", "[0]",
]  # fmt: skip


def broken_text(rng: random.Random, text: str) -> str:
    """A text with tokens or characters exchanged, left out, doubled or put in."""
    tokens = _TOKEN.findall(text)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        at = rng.randrange(len(tokens)) if tokens else 0
        match rng.randrange(7):
            case 0:
                del tokens[at : at + rng.choice((1, 1, 2, 8))]
            case 1:
                tokens.insert(at, rng.choice(_INSERTS))
            case 2 if tokens:
                tokens[at] = rng.choice(_INSERTS)
            case 3 if tokens:
                tokens[at] = rng.choice(tokens)
            case 4 if tokens:
                other = rng.randrange(len(tokens))
                tokens[at], tokens[other] = tokens[other], tokens[at]
            case 5:
                tokens[at:at] = tokens[at : at + rng.randrange(1, 12)]
            case _ if tokens:
                word = list(tokens[at])
                word[rng.randrange(len(word))] = chr(rng.choice((rng.randrange(128), 0x3B1, 0xA0)))
                tokens[at] = "".join(word)
            case _:
                pass
    return "".join(tokens)


def broken_texts(count: int, seed: int) -> Iterator[tuple[str, str | None]]:
    """Mutants of texts of all kinds, with the element types to compile them for."""
    rng = random.Random(seed)
    cases = [(c.text, c.dtypes) for c in (*CASES, *MORE) if "padded" not in c.text]
    cases += [("ij,jk->ik", "float32"), ("bij,bjk->bik", "int16"), ("ii->i", "float64")]
    for _ in range(count):
        text, dtypes = rng.choice(cases)
        yield broken_text(rng, text), dtypes or rng.choice((None, None, "float32", "int8"))


def random_array(rng: np.random.Generator, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Any values at all, infinities and extreme integers included."""
    raw = rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    array = np.ascontiguousarray(raw).view(dtype).reshape(shape)
    return array.view(np.uint8).astype(bool) if dtype.kind == "b" else array
