"""``python -m benchmarks.rewritten FOLDER TO [NAME …]``: networks after ONNX Runtime's tools.

Each network of suite files in FOLDER is written to TO in five forms: quantised beforehand, as QDQ
and as QOperator, or while it runs, with weights of 4 bits (MatMulNBits), and with the fused
operators of the optimiser for transformers.  Beside each are the inputs, the results that ONNX
Runtime computes node by node, and the difference that is allowed: what the form itself brings, at
least 2 % of the largest value.
"""

from __future__ import annotations

import importlib
import logging
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.kernel import Array
from benchmarks.narrow.forms import FORMS, plain_results, write_quantised
from benchmarks.worker import difference

#: Heads and hidden size that the optimiser for transformers is told, 0: it looks for them.
_UNKNOWN = 0
#: Kinds of networks that the optimiser distinguishes; others are like BERT for it.
_KINDS = ("gpt2", "t5", "vit", "clip")
_LEAST = 0.02
_BLOCK, _BITS = 32, 4


def _inputs(path: Path) -> tuple[dict[str, Array], list[Array]]:
    """The inputs beside a network, and its results."""
    with np.load(path.with_suffix(".npz")) as stored:
        names = [i.name for i in onnx.load(path, load_external_data=False).graph.input]
        count = sum(n.startswith("result") for n in stored)
        results = [stored[f"result{n}"] for n in range(count)]
        return {n: stored[n] for n in names if n in stored}, results


def _seen(path: Path) -> Iterator[dict[str, Array]]:
    """Inputs from which the ranges of values are taken: those beside a network, moved."""
    inputs, _ = _inputs(path)
    for by in (0, 1, 7):
        yield {n: np.roll(a, by, axis=-1) for n, a in inputs.items()}


def _quantised(form: str) -> Callable[[Path, Path], None]:
    return lambda path, to: write_quantised(FORMS[form], path, to, _seen(path))


def _four_bits(path: Path, to: Path) -> None:
    tools = importlib.import_module("onnxruntime.quantization.matmul_nbits_quantizer")
    made = tools.MatMulNBitsQuantizer(onnx.load(path), bits=_BITS, block_size=_BLOCK)
    made.process()
    onnx.save(made.model.model, to)


def _fused(path: Path, to: Path) -> None:
    tools = importlib.import_module("onnxruntime.transformers.optimizer")
    kind = next((k for k in _KINDS if path.stem.startswith(k)), "bert")
    made = tools.optimize_model(
        str(path), model_type=kind, num_heads=_UNKNOWN, hidden_size=_UNKNOWN, opt_level=0
    )
    made.save_model_to_file(str(to))


WAYS: Mapping[str, Callable[[Path, Path], None]] = {
    "qdq": _quantised("qdq"),
    "qoperator": _quantised("qoperator"),
    "dynamic": _quantised("dynamic"),
    "4 bits": _four_bits,
    "fused": _fused,
}


def rewrite(path: Path, way: str, folder: Path) -> Path:
    """Write a network in one form, if it does not exist; returns its path."""
    to = folder / f"{path.stem} {way}.onnx"
    if to.exists():
        return to
    with tempfile.TemporaryDirectory(dir=folder) as work:
        part = Path(work, to.name)
        WAYS[way](path, part)
        _add_results(path, part)
        for suffix in (".npz", ".onnx"):
            part.with_suffix(suffix).rename(to.with_suffix(suffix))
    return to


def _add_results(path: Path, to: Path) -> None:
    """Save arrays beside a form of a network."""
    inputs, exact = _inputs(path)
    expected = plain_results(to, inputs)
    apart = difference(expected, exact)
    if not np.isfinite(apart):
        raise ValueError("its results are not finite, or have other shapes")
    arrays: dict[str, Any] = {f"result{n}": a for n, a in enumerate(expected)} | inputs
    np.savez(to.with_suffix(".npz"), tolerance=max(_LEAST, apart), **arrays)


def main(arguments: Sequence[str]) -> int:
    """Rewrite the named networks, or all; returns how many files could not be written."""
    if len(arguments) < 2:
        print(__doc__)
        return 2
    source, folder = Path(arguments[0]), Path(arguments[1])
    folder.mkdir(parents=True, exist_ok=True)
    logging.getLogger().setLevel(logging.ERROR)
    failed = 0
    for name in arguments[2:] or sorted(p.stem for p in source.glob("*.onnx")):
        for way in WAYS:
            try:
                print(rewrite(source / f"{name}.onnx", way, folder), flush=True)
            except Exception as error:
                # The tools fail with any type of exception; the next form is another matter.
                print(f"{name} {way}: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr)
                failed += 1
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
