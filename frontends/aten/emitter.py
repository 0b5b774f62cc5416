"""`Emitter`: what lowerings write to, the nodes of an ONNX model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from frontends.aten.values import Extent, Ref, Unsupported, indices
from frontends.onnx.core.comprehension_text import at, line
from frontends.onnx.core.own_models import DOMAIN


@dataclass(frozen=True)
class Check:
    """A value of the model that is positive where something is wrong.

    error, message : what torch raises then; the message may depend on the value.  Without an error,
        torch has to compute what is asked for, as the message says
    """

    name: str
    error: type[Exception] | None
    message: str | Callable[[int], str]

    def exception(self, value: int) -> Exception:
        """What is raised for a value."""
        assert self.error is not None
        text = self.message if isinstance(self.message, str) else self.message(value)
        return self.error(text)


class Emitter:
    """A model in the making.

    nodes : ONNX nodes so far
    """

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.checks: list[Check] = []
        #: Where the sizes are that torch left open: the input and the axis.
        self.symbols: dict[Any, tuple[str, int]] = {}
        #: Symbols that are used, but are the size of no input.
        self.missing: dict[Any, None] = {}
        self._extents: dict[Any, str] = {}
        self._sizes: dict[Any, str] = {}
        self._count = 0
        #: Values that are others with the dimensions in another order, by their names.
        self.moved: dict[str, tuple[Ref, list[int]]] = {}
        #: The name of the node that is being lowered.
        self.origin = ""

    # --- nodes ----------------------------------------------------------------------------------

    def fresh(self) -> str:
        """A new name."""
        self._count += 1
        return f"{self.origin}.{self._count}"

    def add(
        self,
        kind: str,
        *inputs: Ref | str | None,
        outputs: int = 1,
        domain: str = "",
        **attributes: Any,
    ) -> list[str]:
        """Add a node; returns the names of its outputs."""
        names = [self.fresh() for _ in range(outputs)]
        given = [i.name if isinstance(i, Ref) else i or "" for i in inputs]
        while given and not given[-1]:
            given.pop()
        made = helper.make_node(kind, given, names, name=self.origin, domain=domain, **attributes)
        self.nodes.append(made)
        return names

    def op(
        self,
        kind: str,
        *inputs: Ref | str | None,
        dtype: str,
        shape: Sequence[Extent],
        **attributes: Any,
    ) -> Ref:
        """Add a node with one output, which has this type and shape."""
        return Ref(self.add(kind, *inputs, **attributes)[0], dtype, tuple(shape))

    def transpose(self, x: Ref, order: Sequence[int]) -> Ref:
        """The dimensions in another order."""
        if x.name in self.moved:
            x, first = self.moved[x.name]
            order = [first[axis] for axis in order]
        if [*order] == [*range(x.rank)]:
            return x
        shape = [x.shape[axis] for axis in order]
        found = self.op("Transpose", x, dtype=x.dtype, shape=shape, perm=[*order])
        self.moved[found.name] = x, [*order]
        return found

    def constant(self, value: Any, dtype: str = "int64") -> str:
        """Add an array."""
        name = self.fresh()
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    # --- sizes ----------------------------------------------------------------------------------

    def extent(self, size: Extent) -> str:
        """An extent as comprehensions of this model write it: a number, or a name."""
        if isinstance(size, int):
            return str(size)
        return self._extents.setdefault(size, f"n{len(self._extents)}")

    def size(self, size: Extent) -> str:
        """The name of the int64 with an extent."""
        key = size if not isinstance(size, int) else ("int", size)
        if key not in self._sizes:
            self._sizes[key] = (
                self.constant(size) if isinstance(size, int) else self._computed(size)
            )
        return self._sizes[key]

    def _computed(self, size: Any) -> str:
        if size.is_Integer:
            return self.size(int(size))
        if size.is_Symbol:
            if size not in self.symbols:
                self.missing[size] = None
                return self.size(1)  # of a trial
            name, axis = self.symbols[size]
            (shape,) = self.add("Shape", name, start=axis, end=axis + 1)
            return self.add("Squeeze", shape)[0]
        kind = {"Add": "Add", "Mul": "Mul", "Max": "Max", "Min": "Min"}.get(type(size).__name__)
        parts = [self.size(int(a) if a.is_Integer else a) for a in size.args]
        if kind is not None:
            total = parts[0]
            for part in parts[1:]:
                (total,) = self.add(kind, total, part)
            return total
        name = type(size).__name__
        if name in ("FloorDiv", "CleanDiv"):
            if name == "FloorDiv" and not size.args[0].is_nonnegative:
                # Div rounds towards 0: -(-n // 4) is n / 4, rounded up.
                (rest,) = self.add("Mod", *parts)
                parts[0] = self.add("Sub", parts[0], rest)[0]
            return self.add("Div", *parts)[0]
        if name in ("Mod", "PythonMod") and getattr(size.args[1], "is_Integer", False):
            return self.add("Mod", *parts)[0]
        raise Unsupported(f"a size of {size}")

    def shape(self, sizes: Sequence[Extent]) -> str:
        """The name of the vector with these extents."""
        if all(isinstance(s, int) for s in sizes):
            return self.constant(list(sizes))
        one = self.constant([0])
        parts = [self.add("Unsqueeze", self.size(s), one)[0] for s in sizes]
        return self.add("Concat", *parts, axis=0)[0]

    # --- comprehensions -------------------------------------------------------------------------

    def ranges(self, names: Sequence[str], shape: Sequence[Extent]) -> str:
        """``i0 in 0:4, i1 in 0:n0``"""
        return ", ".join(f"{i} in 0:{self.extent(e)}" for i, e in zip(names, shape, strict=True))

    def line(
        self,
        assignment: str,
        names: Sequence[str],
        shape: Sequence[Extent],
        guards: Iterable[str] = (),
    ) -> str:
        """A statement, with the ranges of its indices, and guards."""
        ranges: dict[str, Any] = dict(zip(names, map(self.extent, shape), strict=True))
        return line(assignment, ranges, guards)

    def program(
        self,
        outputs: Sequence[tuple[str, Sequence[Extent]]],
        lines: Sequence[str],
        inputs: Mapping[str, Ref],
        temps: Sequence[tuple[str, str, Sequence[Extent]]] = (),
        more: Sequence[Extent] = (),
    ) -> list[Ref]:
        """Add a comprehension.

        outputs : types and shapes of Y, Y1, …; inputs : by their names in `lines`
        temps : name, type and shape; more : extents that `lines` use and no shape shows
        """

        def declared(name: str, dtype: str, shape: Sequence[Extent]) -> str:
            return f"{dtype} {at(name, map(self.extent, shape))}"

        outs = {f"Y{n or ''}": (d, tuple(s)) for n, (d, s) in enumerate(outputs)}
        shown = dict.fromkeys(e for ref in inputs.values() for e in ref.shape)
        wanted = [e for _, s in outs.values() for e in s] + [e for t in temps for e in t[2]]
        asked = dict.fromkeys(
            e for e in (*wanted, *more) if not isinstance(e, int) and e not in shown
        )
        sizes = dict.fromkeys(self.extent(e) for e in (*shown, *asked) if not isinstance(e, int))
        head = f"[{', '.join(sizes)}]" if sizes else ""
        text = "\n".join(
            [
                f"def {identifier(self.origin)}{head}"
                f"({', '.join(declared(n, r.dtype, r.shape) for n, r in inputs.items())}) -> "
                f"({', '.join(declared(n, d, s) for n, (d, s) in outs.items())}) {{",
                *(f"    {declared(*t)}" for t in temps),
                *(f"    {statement}" for statement in lines),
                "}",
            ]
        )
        given: list[Ref | str] = [*inputs.values(), *(self.size(e) for e in asked)]
        extra = {"sizes": [self.extent(e) for e in asked]} if asked else {}
        names = self.add(
            "Comprehension", *given, outputs=len(outs), domain=DOMAIN, text=text, **extra
        )
        return [Ref(n, d, s) for n, (d, s) in zip(names, outs.values(), strict=True)]

    def each(
        self,
        dtype: str,
        shape: Sequence[Extent],
        value: str,
        inputs: Mapping[str, Ref],
        more: Sequence[Extent] = (),
    ) -> Ref:
        """``Y[i0,i1,…] = value``; see `program`."""
        own = indices(len(shape))
        text = self.line(f"{at('Y', own)} = {value}", own, shape)
        return self.program([(dtype, shape)], [text], inputs, more=[*shape, *more])[0]

    # --- shorthands -----------------------------------------------------------------------------

    def cast(self, ref: Ref, dtype: str) -> Ref:
        """The same elements in another type."""
        if ref.dtype == dtype:
            return ref
        read = converted(at("X", indices(ref.rank)), ref.dtype, dtype)
        return self.each(dtype, ref.shape, read, {"X": ref})

    def casts(self, refs: Sequence[Ref], like: Sequence[Ref]) -> list[Ref]:
        """The same elements in the types of others, one by one."""
        return [self.cast(r, other.dtype) for r, other in zip(refs, like, strict=True)]

    def reshape(self, ref: Ref, shape: Sequence[Extent]) -> Ref:
        """The same elements under another shape."""
        if tuple(shape) == ref.shape:
            return ref
        target = self.shape(shape)
        return self.op("Reshape", ref, target, dtype=ref.dtype, shape=shape, allowzero=1)

    def check(self, index: Ref, low: str, high: Extent) -> None:
        """Let the call fail if an element of an index is not in ``low <= index < high``."""
        bad = f"{{0}} < {low} or {{0}} >= {self.extent(high)}"
        self.refuse(index, bad, IndexError, "index out of range in self", [high])

    def leave(self, x: Ref, bad: str, why: str) -> None:
        """Let torch compute the part in calls in which `bad` holds for an element of `x`."""
        self.refuse(x, bad, None, why)

    def refuse(
        self,
        x: Ref,
        bad: str,
        error: type[Exception] | None,
        message: str,
        more: Sequence[Extent] = (),
    ) -> None:
        """Let the call fail if `bad`, a format over an element, holds for any of `x`."""
        own = indices(x.rank)
        text = self.line(f"Y[] max=! select({bad.format(at('X', own))}, 1, 0)", own, x.shape)
        (found,) = self.program([("int32", ())], [text], {"X": x}, more=[*x.shape, *more])
        self.checks.append(Check(found.name, error, message))


def identifier(name: str) -> str:
    """A name that the language takes, from that of a node."""
    clean = "".join(c if c.isalnum() else "_" for c in name)
    return f"aten_{clean}"


def converted(text: str, have: str, want: str) -> str:
    """The text of a value in another type."""
    if have == want:
        return text
    if want == "bool":
        return f"({text} != 0)"
    return f"{want}({text})"
