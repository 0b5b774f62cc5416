"""`Network.compare`: find the first value of a model that differs from a reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from frontends.onnx import Maker, Source, peer_values
from poly.errors import ArgumentError

Array = np.ndarray
#: Units in the last place of a type by which sums in another order may differ.
ULPS = 16


@dataclass(frozen=True)
class Tolerance:
    """The allowed difference of floats: `atol`, plus `rtol` of the tensor's largest magnitude.

    `rtol` None is 0.001, and more for types of few bits.
    """

    rtol: float | None
    atol: float

    def of(self, dtype: np.dtype[Any], scale: float) -> float:
        """The largest error of an element of a tensor."""
        if dtype.kind in "biu":
            return self.atol
        usual = max(1e-3, ULPS * _epsilon(dtype))
        return self.atol + (usual if self.rtol is None else self.rtol) * scale


@dataclass(frozen=True)
class Compared:
    """A value and its reference.

    maker : the node that it comes from, None for what the model stores or is given; error : the
    largest absolute difference of two elements; scale : the largest magnitude of the reference;
    problem : why the two do not agree, "" if they do
    """

    tensor: str
    maker: Maker | None
    error: float
    scale: float
    problem: str = ""

    @property
    def agrees(self) -> bool:
        return not self.problem

    def __str__(self) -> str:
        made = "" if self.maker is None else f" of {self.maker}"
        return f"'{self.tensor}'{made} {self.problem or f'agrees, error {self.error:.3g}'}"


@dataclass(frozen=True)
class Comparison:
    """All values that were compared, in the order in which the model computes them.

    merged : the calls around `first` are right one by one, but not when they are merged
    """

    values: tuple[Compared, ...]
    merged: Compared | None = None

    @property
    def first(self) -> Compared | None:
        """The first value that diverges."""
        return self.merged or next((v for v in self.values if not v.agrees), None)

    @property
    def agrees(self) -> bool:
        return self.first is None

    def __str__(self) -> str:
        if self.first is not None:
            wrong = sum(not v.agrees for v in self.values)
            return f"{self.first}; of {len(self.values)} values compared, {wrong} diverge"
        if not self.values:
            return "nothing was compared"
        worst = max(self.values, key=lambda v: v.error)
        count = "1 value agrees" if len(self.values) == 1 else f"{len(self.values)} values agree"
        return f"{count}; the largest error is {worst.error:.3g}, of '{worst.tensor}'"


def compare(
    source: Source,
    values: Callable[[tuple[str, ...]], Mapping[str, Any]],
    reference: Any,
    inputs: Mapping[str, Any],
    tolerance: Tolerance,
) -> Comparison:
    """See `Network.compare`.

    values : the outputs and the values of these names, from a model compiled to return them all
    """
    wanted = _reference_values(reference, source, inputs)
    found = values(())
    judge = _Judge(source, tolerance)
    judge.check(wanted)
    whole = judge.all(found, wanted)
    if reference == "onnxruntime" and not whole.agrees:
        wanted |= peer_values(source.giving([n for n in source.makers if n not in found]), inputs)
    inner = [n for n in source.makers if n not in found and isinstance(wanted.get(n), np.ndarray)]
    if not inner:
        return whole
    result = judge.all(values(tuple(inner)), wanted)
    if whole.agrees or not result.agrees:
        return result
    # The fault shows only while some values are not stored: find the last of these.
    outputs = {n: wanted[n] for n in found if n in wanted}
    bad, good = 0, len(inner)
    while good - bad > 1:
        middle = (bad + good) // 2
        if judge.all(values(tuple(inner[:middle])), outputs).agrees:
            good = middle
        else:
            bad = middle
    last = inner[good - 1]
    problem = f"is right, but where it is merged into what reads it, {whole.first}"
    return Comparison(whole.values, Compared(last, source.makers[last], 0.0, 0.0, problem))


@dataclass(frozen=True)
class _Judge:
    """Compares values of one model."""

    source: Source
    tolerance: Tolerance

    def check(self, wanted: Mapping[str, Any]) -> None:
        """Check that a reference names values of the model.

        Raises
        ------
        ArgumentError : it does not.
        """
        for name in wanted:
            if name not in self.source.makers and name not in self.source.outputs:
                raise ArgumentError(
                    f"the reference names '{name}', on which no output of the model depends"
                )

    def all(self, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> Comparison:
        """Compare the values present in both, in the order in which the model computes them."""
        makers = self.source.makers
        names = [*(n for n in found if n not in makers), *(n for n in makers if n in found)]
        return Comparison(tuple(self.one(n, found[n], wanted[n]) for n in names if n in wanted))

    def one(self, name: str, found: Any, wanted: Any) -> Compared:
        maker = self.source.makers.get(name)
        wanted = np.asarray(wanted)
        if not isinstance(found, np.ndarray) or found.dtype.kind in "OSUT":
            same = np.array_equal(np.asarray(found, object), wanted.astype(object))
            return Compared(name, maker, 0.0, 0.0, "" if same else "diverges: other elements")
        for what, mine, other in (
            ("type", found.dtype, wanted.dtype),
            ("shape", found.shape, wanted.shape),
        ):
            if mine != other:
                return Compared(
                    name, maker, np.inf, 0.0, f"diverges: it has {what} {mine}, not {other}"
                )
        error, scale = _distance(found, wanted)
        bound = self.tolerance.of(wanted.dtype, scale)
        problem = f"diverges by {error:.3g}, where values reach {scale:.3g}"
        return Compared(name, maker, error, scale, "" if error <= bound else problem)


def _distance(found: Array, wanted: Array) -> tuple[float, float]:
    """The largest difference of two elements, and the largest magnitude of the reference."""
    wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
    a, b = found.astype(wide), wanted.astype(wide)
    finite = np.isfinite(b)
    with np.errstate(all="ignore"):
        apart = np.where(found == wanted, 0, np.abs(a - b))
    apart[np.isnan(a) & np.isnan(b)] = 0
    apart[np.isnan(apart)] = np.inf
    if wanted.dtype.kind in "biu":  # which a float may not tell apart
        apart[(found != wanted) & (apart == 0)] = 1
    return float(apart.max(initial=0)), float(np.abs(b[finite]).max(initial=0))


def _epsilon(dtype: np.dtype[Any]) -> float:
    if dtype.kind in "fc":
        return float(np.finfo(dtype).eps)
    return float(np.spacing(np.ones((), dtype)))  # types that numpy does not know itself


def _reference_values(reference: Any, source: Source, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """A reference's values of the model, at least of its outputs.

    Raises
    ------
    ArgumentError : the reference is not of a kind that `Network.compare` lists.
    """
    if isinstance(reference, str):
        if reference != "onnxruntime":
            raise ArgumentError(f"there is no reference '{reference}', only 'onnxruntime'")
        return peer_values(source, inputs)
    if isinstance(reference, Mapping):
        return dict(reference)
    if hasattr(reference, "run") and hasattr(reference, "get_outputs"):
        names = [o.name for o in reference.get_outputs()]
        return dict(zip(names, reference.run(None, dict(inputs)), strict=True))
    if callable(reference):
        made = reference(dict(inputs))
        if isinstance(made, Mapping):
            return dict(made)
        if isinstance(made, Sequence) and len(made) == len(source.outputs):
            return dict(zip(source.outputs, made, strict=True))
        raise ArgumentError(
            "the reference must return arrays by name, or the outputs "
            f"{', '.join(source.outputs)} in a list"
        )
    raise ArgumentError(
        f"a reference is 'onnxruntime', a function, a session or a mapping from names to arrays, "
        f"not a {type(reference).__name__}"
    )
