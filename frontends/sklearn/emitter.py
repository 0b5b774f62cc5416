"""`Emitter`: what lowerings write to, the nodes of an ONNX model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from frontends.onnx.core.own_models import NUMBERS, Declared, model_bytes


class Unsupported(Exception):  # noqa: N818 - a signal: the estimator stays with scikit-learn
    """An estimator, or a use of one, without a lowering; never leaves this package and its user."""


#: From a magnitude of numbers to one of what is computed of them.
Bound = Callable[[np.float64], np.float64]
#: Functions of numbers, and of the features that they are, element by element.
Steps = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class Features:
    """Rows of features: a matrix in the model.

    width, dtype : how many features there are, and their type
    exact : whether they have the same bits as scikit-learn's
    relative, absolute : if not, by how much each of them may differ: `relative` times the length
        of the row, plus `absolute`
    may_miss : whether NaN may be among them
    raw, steps : features of which these are increasing functions, and the functions: they take
        numbers of the type of `raw`, and which features they are, and compute what scikit-learn
        does; None if there are none
    most : how great they are at most, for numbers of the input of a magnitude
    is_input, origin : whether they are columns of the input as they are, and which; all if empty
    """

    name: str
    width: int
    dtype: str
    exact: bool = True
    relative: float = 0.0
    absolute: float = 0.0
    may_miss: bool = False
    raw: Features | None = None
    steps: Steps | None = None
    most: Bound = np.float64
    is_input: bool = False
    origin: tuple[int, ...] = ()

    def column(self, place: int) -> int:
        """The column of the input that a feature is."""
        return self.origin[place] if self.origin else place

    @property
    def eps(self) -> float:
        """The relative error of one rounding."""
        return float(np.finfo(self.dtype).eps)

    def made(self, name: str, **changes: Any) -> Features:
        """Other features, made from these."""
        blank: dict[str, Any] = {"raw": None, "steps": None, "is_input": False, "origin": ()}
        return replace(self, name=name, **(blank | changes))

    def rounded(self, by: float, plus: float = 0.0, times: float = 1.0) -> Features:
        """The same after arithmetic whose order is not scikit-learn's.

        by, plus : the error that this adds, as `relative` and `absolute`; times : by how much it
        stretches the errors that are there
        """
        relative, absolute = self.relative * times + by, self.absolute * times + plus
        return self.made(self.name, exact=False, relative=relative, absolute=absolute)

    def scaled(self, e: Features, steps: Steps) -> Features:
        """Features `e`, which are increasing functions of these, computed by `steps`."""
        if self.exact:
            return replace(e, raw=self, steps=steps)
        if self.raw is None or self.steps is None:
            return e
        first = self.steps
        return replace(e, raw=self.raw, steps=lambda v, at: steps(first(v, at), at))


class Emitter:
    """A model in the making.

    nodes, constants : so far; limit : numbers of greater magnitude stay with scikit-learn
    takes_missing : whether NaN in the input is treated as scikit-learn does
    categories : for columns of strings, what they may be; the model is passed their positions
    """

    def __init__(self, width: int, dtype: str) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.limit = np.inf
        self.takes_missing = True
        self.categories: dict[int, np.ndarray] = {}
        #: The columns that are read as numbers.
        self.numbers: set[int] = set()
        #: Values [N] that are not positive where rounding could change the class of a row.
        self.sure: list[str] = []
        #: Values [N] that are not positive where scikit-learn has to compute a row.
        self.known: list[str] = []
        self.has_trees = False
        self._count = 0
        self.input = Features("X", width, dtype, may_miss=True, is_input=True)

    def bounded(self, x: Features, most: Bound) -> Features:
        """The same, of a magnitude; inputs for which they, or a sum of a few of them, could
        overflow stay with scikit-learn.
        """
        room = np.float64(np.finfo(x.dtype).max) / 4
        limit = np.float64(min(self.limit, float(np.finfo(self.input.dtype).max)))
        with np.errstate(over="ignore"):
            while limit > 1 and not most(limit) <= room:
                limit /= 2
        self.limit = float(limit)
        return replace(x, most=most)

    def op(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add a node; returns the name of its output."""
        name = self._fresh()
        self.nodes.append(helper.make_node(kind, inputs, [name], domain=domain, **attributes))
        return name

    def constant(self, value: Any, dtype: str = "int64") -> str:
        """Add an array."""
        name = self._fresh()
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def cast(self, name: str, have: str, want: str) -> str:
        """The same elements in another type."""
        return name if have == want else self.op("Cast", name, to=NUMBERS[want])

    def in_type(self, x: Features, dtype: str) -> Features:
        """Features in another type."""
        if x.dtype == dtype:
            return x
        made = x.made(self.cast(x.name, x.dtype, dtype), dtype=dtype)
        return x.scaled(made, lambda v, at: v.astype(dtype))

    def numbers_of(self, x: Features) -> Features:
        """Features that are read as numbers, none of which may be missing."""
        if x.may_miss:
            self.takes_missing = False
        return self.read(x)

    def read(self, x: Features) -> Features:
        """Features that are read as numbers."""
        if x.is_input:
            self.numbers.update(map(x.column, range(x.width)))
        return x

    def columns(self, x: Features, indices: Any) -> Features:
        """Some of the features."""
        places = np.array([int(i) for i in indices])
        if x.is_input:
            self.numbers.update(map(x.column, places.tolist()))
        if places.tolist() == [*range(x.width)]:
            return x
        name = self.op("Gather", x.name, self.constant(places), axis=1)
        made = x.made(name, width=len(places))
        if x.raw is None or x.steps is None:
            return made
        steps = x.steps
        return replace(
            made, raw=self.columns(x.raw, places), steps=lambda v, at: steps(v, places[at])
        )

    def each(self, kind: str, x: Features, numbers: Any) -> Features:
        """An operation with one number for each feature, in the type of the features."""
        return x.made(self.op(kind, x.name, self.constant(np.ravel(numbers), x.dtype)))

    def length(self, x: Features) -> str:
        """The length of each row [N], as float64."""
        wide = self.cast(x.name, x.dtype, "float64")
        axes = self.constant([1])
        return self.op("Sqrt", self.op("ReduceSum", self.op("Mul", wide, wide), axes, keepdims=0))

    def scaled(self, name: str, by: float, plus: float) -> str:
        """A value of float64, times a number, plus another."""
        made = self.op("Mul", name, self.constant(by, "float64"))
        return self.op("Add", made, self.constant(plus, "float64"))

    def model(self, outputs: dict[str, tuple[str, str, int]]) -> bytes:
        """The bytes of the model.  outputs : by their names the value, its type and its rank"""
        ends = [self.op_named("Identity", value, name) for name, (value, _, _) in outputs.items()]
        infos: list[Declared] = [
            (n, d, ["N", *[None] * (r - 1)]) for n, (_, d, r) in outputs.items()
        ]
        rows = ("X", self.input.dtype, ["N", self.input.width])
        return model_bytes("estimator", [*self.nodes, *ends], [rows], infos, self.constants)

    @staticmethod
    def op_named(kind: str, value: str, name: str) -> Any:
        """A node of one operand whose output has a given name."""
        return helper.make_node(kind, [value], [name])

    def _fresh(self) -> str:
        self._count += 1
        return f"v{self._count}"
