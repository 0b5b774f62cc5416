"""Gradients of single ONNX operators beside those of torch, or beside central differences.

The scalar that is differentiated is the sum of the outputs, each element times a fixed number.
"""

from __future__ import annotations

import importlib
import importlib.util
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto

from farkas.training.step_graph import Builder
from farkas.training.train_onnx import whole_graph
from frontends.language.parse_program import parse_program
from frontends.onnx import open_model
from poly.gradients.graph import graph_gradient
from poly.ir.expr import Const
from poly.ir.graph import Graph
from tests.frontends.onnx.onnx_support import run_graph, single

#: None where it is not installed; what follows is then judged by differences alone.
torch: Any = importlib.import_module("torch") if importlib.util.find_spec("torch") else None
F: Any = torch.nn.functional if torch else None

Array = np.ndarray[Any, np.dtype[Any]]

#: The newest opset of most cases.
OPSET = 24
#: How much an element may differ, relative to the largest one of a gradient.
CLOSE = {np.dtype(np.float64): 1e-7, np.dtype(np.float32): 1e-4}
#: Of central differences: nothing that is not smooth is nearer than twice this.
STEP = 1e-3


@dataclass(frozen=True)
class Fixed:
    """A constant of floats."""

    array: Array


@dataclass(frozen=True)
class Passed:
    """An input that is no constant and has no gradient."""

    array: Array


Operand = Array | Fixed | Passed | None


@dataclass(frozen=True)
class Case:
    """An operator at a point where its gradient is compared.

    what : tells the cases of an operator apart
    operands : in the operator's order; None is left out.  Arrays of floats are what the gradient
        is with respect to, other arrays are constants.
    judge : the same in torch, over the same operands; central differences if there is none
    outputs : how many the node has
    refused : a pattern for the message if there is no gradient
    is_smooth : whether central differences are near the gradient
    """

    operator: str
    what: str
    operands: tuple[Operand, ...]
    judge: Callable[..., Any] | None
    attributes: Mapping[str, Any]
    outputs: int = 1
    opset: int = OPSET
    refused: str = ""
    is_smooth: bool = True

    @property
    def name(self) -> str:
        return f"{self.operator} {self.what}".strip()

    @property
    def dtype(self) -> np.dtype[Any]:
        """float64 if the operator has it, else float32."""
        schema = onnx.defs.get_schema(self.operator, self.opset, "")
        known = {t.type_param_str: t.allowed_type_strs for t in schema.type_constraints}
        slot = min(self._floats[0], len(schema.inputs) - 1)
        kind = schema.inputs[slot].type_str
        wide = "tensor(double)" in known.get(kind, (kind,))
        return np.dtype(np.float64 if wide else np.float32)

    @property
    def _floats(self) -> list[int]:
        """The positions of the operands that have gradients."""
        return [
            n for n, a in enumerate(self.operands)
            if isinstance(a, np.ndarray) and a.dtype.kind == "f"
        ]  # fmt: skip

    @property
    def wrt(self) -> dict[str, Array]:
        """The operands that have gradients, by their names."""
        return {f"x{n}": np.asarray(self.operands[n], np.float64) for n in self._floats}

    def model(self, dtype: np.dtype[Any]) -> ModelProto:
        """The operator alone, for floats of a type."""
        inputs, constants, order = {}, {}, []
        for n, operand in enumerate(self.operands):
            order.append("" if operand is None else f"x{n}")
            if n in self._floats:
                inputs[f"x{n}"] = np.asarray(operand, dtype)
            elif isinstance(operand, Passed):
                inputs[f"x{n}"] = operand.array
            elif operand is not None:
                constants[f"x{n}"] = operand.array if isinstance(operand, Fixed) else operand
        return single(
            self.operator, inputs, constants=constants, order=order, outputs=self.outputs,
            opset=self.opset, **self.attributes,
        )  # fmt: skip

    def passed(self, dtype: np.dtype[Any]) -> dict[str, Array]:
        """The inputs of the model."""
        others = {f"x{n}": a.array for n, a in enumerate(self.operands) if isinstance(a, Passed)}
        return {n: a.astype(dtype) for n, a in self.wrt.items()} | others


def case(
    operator: str, what: str, operands: Sequence[Operand], judge: Callable[..., Any] | None = None,
    *, outputs: int = 1, opset: int = OPSET, refused: str = "", is_smooth: bool = True,
    **attributes: Any,
) -> Case:  # fmt: skip
    """A case; `attributes` are those of the node."""
    return Case(
        operator, what, tuple(operands), judge, attributes, outputs, opset, refused, is_smooth
    )


_RANDOM = np.random.default_rng(24)


def spread(*shape: int, low: float = -1.9, high: float = 1.9) -> Array:
    """Numbers that lie evenly between two, in random order: no two are near each other."""
    count = int(np.prod(shape))
    step = (high - low) / max(1, count)
    places = low + step * (np.arange(count) + _RANDOM.uniform(0.25, 0.75))
    return np.asarray(_RANDOM.permutation(places).reshape(shape))


def _seed(output: int, count: int) -> Array:
    """What the elements of an output are multiplied by, by its number among those of floats."""
    return np.random.default_rng(output).uniform(0.5, 1.5, count)


def gradients(case: Case, dtype: np.dtype[Any]) -> tuple[list[Array], dict[str, Array]]:
    """The outputs of floats, and the gradients with respect to all operands that have one.

    Raises
    ------
    GradientError : there is none.
    """
    graph, seeds, loss = _weighted(case, dtype)
    values = {graph.label(v): v for v in graph.inputs}
    found = graph_gradient(graph, loss, [values[n] for n in case.wrt])
    results = run_graph(found.graph, case.passed(dtype) | seeds)
    outputs = [results[o.removeprefix("seed_")] for o in seeds]
    zeros = {n: np.zeros(a.shape, dtype) for n, a in case.wrt.items()}
    of = {n: found.gradients[values[n]] for n in case.wrt if values[n] in found.gradients}
    return outputs, zeros | {n: results[graph.label(v)] for n, v in of.items()}


def _weighted(case: Case, dtype: np.dtype[Any]) -> tuple[Graph, dict[str, Array], str]:
    """The graph with the scalar, what is to be passed for it, and its name."""
    graph = whole_graph(open_model(case.model(dtype)), {})
    built, seeds, parts = Builder(graph), {}, []
    for output in graph.outputs:
        tensor = graph.values[output]
        if not tensor.dtype.is_float:
            continue
        size = Const(int(np.prod(graph.shape(output))))
        name = f"seed_{graph.label(output)}"
        given = built.input(name, replace(tensor, shape=(size,)))
        weights = _seed(len(seeds), int(size.value))
        seeds[name] = weights.astype(tensor.dtype.numpy)
        text = (
            f"def weigh({tensor.dtype} Y[{size}], {tensor.dtype} S[{size}]) -> (s) "
            f"{{ s[] +=! Y[i] * S[i] }}"
        )
        parts += built.call(parse_program(text), [built.view(output, (size,)), given], "weigh")
    loss = reduce(lambda a, b: _add(built, a, b), parts)
    return built.whole([*graph.outputs, loss]), seeds, loss


def _add(built: Builder, a: str, b: str) -> str:
    kinds = [built.values[v].dtype for v in (a, b)]
    text = f"def add({kinds[0]} a[], {kinds[1]} b[]) -> (c) {{ c[] = a[] + b[] }}"
    (made,) = built.call(parse_program(text), [a, b], "add")
    return made


# --- judges -----------------------------------------------------------------------------------


def torch_gradients(case: Case) -> tuple[list[Array], dict[str, Array]]:
    """Outputs and gradients of the same in torch, in float64."""
    assert case.judge is not None
    given, wrt = [], {}
    for n, operand in enumerate(case.operands):
        if f"x{n}" in case.wrt:
            wrt[f"x{n}"] = torch.tensor(case.wrt[f"x{n}"], requires_grad=True)
            given.append(wrt[f"x{n}"])
        elif operand is None:
            given.append(None)
        else:
            array = operand.array if isinstance(operand, (Fixed, Passed)) else operand
            kind = np.float64 if array.dtype.kind == "f" else array.dtype
            given.append(torch.tensor(array.astype(kind)))
    results = case.judge(*given)
    results = list(results) if isinstance(results, (tuple, list)) else [results]
    real = [r for r in results if r.requires_grad]
    seeds = [torch.tensor(_seed(n, r.numel())) for n, r in enumerate(results)]
    total = sum((r.reshape(-1) * s).sum() for r, s in zip(results, seeds, strict=True))
    found = torch.autograd.grad(total, [*wrt.values()], allow_unused=True) if real else []
    zeros = {n: np.zeros(a.shape) for n, a in case.wrt.items()}
    made = {n: g.numpy() for n, g in zip(wrt, found, strict=False) if g is not None}
    return [r.detach().numpy() for r in results], zeros | made


def differences(case: Case) -> dict[str, Array]:
    """The gradients by central differences of what the graph computes in float64."""
    at = along(case)
    made = {n: np.zeros(a.shape) for n, a in case.wrt.items()}
    for name, array in made.items():
        for n in range(array.size):
            change = {m: np.zeros(a.shape) for m, a in made.items()}
            change[name].flat[n] = 1
            array.flat[n] = at(change)
    return made


def along(case: Case) -> Callable[[Mapping[str, Array]], float]:
    """The derivative along a change of all inputs, by central differences in float64."""
    wide = np.dtype(np.float64)
    graph, seeds, loss = _weighted(case, wide)
    inputs = case.passed(wide) | seeds

    def value(change: Mapping[str, Array], step: float) -> float:
        moved = {n: inputs[n] + step * change[n] for n in case.wrt}
        return float(run_graph(graph, inputs | moved)[graph.label(loss)])

    def derivative(change: Mapping[str, Array]) -> float:
        near = value(change, STEP) - value(change, -STEP)
        far = value(change, 2 * STEP) - value(change, -2 * STEP)
        return (8 * near - far) / (12 * STEP)

    return derivative


def directions(case: Case, count: int) -> Iterator[dict[str, Array]]:
    """Changes of all inputs, none of an element by more than 1."""
    rng = np.random.default_rng(zlib.crc32(case.name.encode()))
    for _ in range(count):
        yield {n: rng.uniform(-1, 1, a.shape) for n, a in case.wrt.items()}


# --- comparing --------------------------------------------------------------------------------


def error(found: Array, expected: Array) -> float:
    """The largest difference, relative to the largest element; infinite if there are NaNs."""
    if found.shape != expected.shape:
        return float("inf")
    if not expected.size:
        return 0.0
    scale = max(float(np.abs(expected).max()), 1e-3)
    largest = float(np.abs(found.astype(np.float64) - expected).max()) / scale
    return largest if np.isfinite(largest) else float("inf")


def check(case: Case) -> None:
    """Compare a case with its judge.

    Raises
    ------
    GradientError : there is no gradient.
    AssertionError : a gradient, or an output, that is not the judge's.
    """
    outputs, found = gradients(case, case.dtype)
    if case.judge is None:
        expected = differences(case)
    else:
        values, expected = torch_gradients(case)
        assert len(values) == len(outputs), f"{len(outputs)} outputs, but {len(values)} of torch"
        for n, (output, value) in enumerate(zip(outputs, values, strict=True)):
            assert error(output, value) <= CLOSE[case.dtype], f"output {n} is not torch's"
    for name, gradient in expected.items():
        wrong = error(found[name], gradient)
        assert wrong <= CLOSE[case.dtype], f"the gradient of {name} differs by {wrong:.1e}"


def check_along(case: Case, count: int = 2) -> None:
    """Compare the gradient in float64 with differences along a few directions.

    Raises
    ------
    GradientError : there is no gradient.
    AssertionError : they differ.
    """
    wide = np.dtype(np.float64)
    _, found = gradients(case, wide)
    derivative = along(case)
    for change in directions(case, count):
        terms = [found[n] * change[n] for n in change]
        by_gradient, by_difference = sum(float(t.sum()) for t in terms), derivative(change)
        scale = max(sum(float(np.abs(t).sum()) for t in terms), 1e-3)
        wrong = abs(by_gradient - by_difference) / scale
        assert wrong <= CLOSE[wide], f"the derivative differs by {wrong:.1e}"
