"""The onnx package's official test suite: its cases, and what becomes of them.

``python -m tests.conformance`` runs it (see `__main__`).
"""

from __future__ import annotations

import signal
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto, TensorProto, numpy_helper

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from onnx.backend.test.loader import load_model_tests
    from onnx.backend.test.runner import Runner

import farkas as fk
import farkas.backend
from poly.ir.graph import Routine

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
#: Element types that programs compute with.
TYPES = frozenset(
    getattr(TensorProto, n)
    for n in "FLOAT UINT8 INT8 UINT16 INT16 INT32 INT64 BOOL FLOAT16 DOUBLE UINT32 UINT64 "
    "BFLOAT16".split()
)
#: Operators of training, random numbers, images and text, which are out of scope.
OUT_OF_SCOPE = frozenset(
    "RandomNormal RandomNormalLike RandomUniform RandomUniformLike Multinomial Bernoulli "
    "ImageDecoder StringNormalizer StringConcat StringSplit RegexFullMatch "
    "LabelEncoder".split()
)


@dataclass(frozen=True)
class Case:
    """One test: its name, model, and pairs of inputs and outputs."""

    name: str
    model: ModelProto
    sets: tuple[tuple[list[Any], list[Any]], ...]
    rtol: float
    atol: float

    @property
    def scope(self) -> str:
        """Why the test is out of scope; empty if it is in scope."""
        return out_of_scope(self.model, self.name)


def cases(pattern: str = "") -> Iterator[Case]:
    """The cases of the suite whose names contain `pattern`, sorted by name."""
    for kind in KINDS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = sorted(load_model_tests(kind=kind), key=lambda c: c.name)
        for case in found:
            if pattern and pattern not in case.name:
                continue
            model = case.model
            if model is None:
                model = onnx.load(Path(case.model_dir) / "model.onnx")
            yield Case(
                case.name, model, tuple(_sets(case, model)), float(case.rtol), float(case.atol)
            )


def _sets(case: Any, model: ModelProto) -> Iterator[tuple[list[Any], list[Any]]]:
    if case.data_sets is not None:
        for inputs, outputs in case.data_sets:
            yield [_array(a) for a in inputs], [_array(a) for a in outputs]
        return
    for folder in sorted(Path(case.model_dir).glob("test_data_set_*")):
        yield (
            _load(folder, "input", model.graph.input),
            _load(folder, "output", model.graph.output),
        )


def _load(folder: Path, what: str, infos: Any) -> list[Any]:
    arrays = []
    for n in range(len(list(folder.glob(f"{what}_*.pb")))):
        tensor = TensorProto()
        tensor.ParseFromString((folder / f"{what}_{n}.pb").read_bytes())
        arrays.append(numpy_helper.to_array(tensor))
    return arrays


def _array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def out_of_scope(model: ModelProto, name: str) -> str:
    """Why a test is out of scope: strings, sequences, optionals, training, random, images,
    preview domain, types below 16 bits that are no integers of 8 bits; else empty."""
    for info in (*model.graph.input, *model.graph.output):
        kind = info.type.WhichOneof("value")
        if kind != "tensor_type":
            return (kind or "untyped").replace("_type", "")
        number = info.type.tensor_type.elem_type
        if number == TensorProto.STRING:
            return "strings"
        if number not in TYPES:
            return f"type {TensorProto.DataType.Name(number).lower()}"
    for node in _nodes(model.graph.node):
        if node.domain.startswith("ai.onnx.preview") or node.domain == "ai.onnx.training":
            return "preview"
        if node.op_type in OUT_OF_SCOPE:
            return f"operator {node.op_type}"
        if node.op_type.startswith(("Sequence", "Optional", "SplitToSequence", "ConcatFromSeq")):
            return "sequences"
        if node.op_type in ("Cast", "QuantizeLinear"):
            for attribute in node.attribute:
                if attribute.name in ("to", "output_dtype") and attribute.i not in (0, *TYPES):
                    if attribute.i == TensorProto.STRING:
                        return "strings"
                    return f"type {TensorProto.DataType.Name(attribute.i).lower()}"
    if "training" in name or "_train_" in name:
        return "training"
    return ""


def _nodes(nodes: Any) -> Iterator[Any]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _nodes(graph.node)


@dataclass(frozen=True)
class Outcome:
    """What became of a case: "" if it passed, else the reason; seconds; opaque operators used, be
    they routines or run by numpy.
    """

    name: str
    scope: str
    reason: str
    seconds: float
    opaque: tuple[str, ...] = ()


def opened(model: ModelProto) -> ModelProto:
    """The model with a size of its own for every axis of every input, and no shapes else."""
    result = ModelProto()
    result.CopyFrom(model)
    for info in result.graph.input:
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            dim.dim_param = f"{info.name}_{axis}"
    for info in (*result.graph.output, *result.graph.value_info):
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")
    return result


class _TooLongError(Exception):
    pass


def run_case(case: Case, limit: int = 60, is_open: bool = False, target: str = "cpu") -> Outcome:
    """Compile and run a case, and compare as the suite's own runner does.

    is_open : with open sizes for all axes of the inputs; target : where it runs
    """

    def check(case: Case) -> tuple[str, ...]:
        model = opened(case.model) if is_open else case.model
        threads = 1 if target == "cpu" else None
        prepared = farkas.backend.prepare(model, target.upper(), threads=threads)
        for inputs, expected in case.sets:
            results = list(prepared.run(inputs))
            Runner.assert_similar_outputs(expected, results, case.rtol, case.atol)
        made = prepared.model
        routines = (n for g in made.graphs for n in g.nodes if isinstance(n, Routine))
        return (*made.opaque_operators, *(n.origin.split()[0] for n in routines))

    return judged(case, check, limit)


def judged(case: Case, check: Callable[[Case], tuple[str, ...]], limit: int = 60) -> Outcome:
    """The outcome of a case that `check` runs; it returns the opaque operators that were used."""

    def stop(*_: object) -> None:
        raise _TooLongError

    start = time.perf_counter()
    reason, opaque = "", ()
    signal.signal(signal.SIGALRM, stop)
    signal.alarm(limit)
    try:
        opaque = check(case)
    except _TooLongError:
        reason = f"longer than {limit} s"
    except fk.FarkasError as error:
        reason = f"{type(error).__name__}: {error}"
    except AssertionError as error:
        reason = f"wrong: {error}"
    except Exception as error:
        reason = f"crash: {type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
    return Outcome(
        case.name, case.scope, " ".join(reason.split())[:300], time.perf_counter() - start, opaque
    )
