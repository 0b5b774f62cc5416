"""Reductions, arg-reductions and running sums."""

from __future__ import annotations

from collections.abc import Sequence

from frontends.onnx.core.comprehension_text import (
    Extent,
    at,
    count_text,
    declare,
    function,
    line,
    names,
)
from frontends.onnx.core.limits import checked_shape
from frontends.onnx.core.node import Compute, Node, Result, Same, Value, operator
from poly.ir.dtypes import FLOAT64, INT64, DType

#: name: operator, value of each element, final value ({0} the reduced, {1} their count)
_REDUCTIONS = {
    "ReduceSum": ("+=!", "{0}", "{0}"),
    "ReduceMean": ("+=!", "{0}", "{0} / {1}"),
    "ReduceProd": ("*=!", "{0}", "{0}"),
    "ReduceMax": ("max=!", "{0}", "{0}"),
    "ReduceMin": ("min=!", "{0}", "{0}"),
    "ReduceL1": ("+=!", "abs({0})", "{0}"),
    "ReduceL2": ("+=!", "{0} * {0}", "sqrt({0})"),
    "ReduceSumSquare": ("+=!", "{0} * {0}", "{0}"),
    "ReduceLogSum": ("+=!", "{0}", "log({0})"),
    "ReduceLogSumExp": ("+=!", "exp({0} - {2})", "log({0}) + {2}"),
}


def reduced_axes(node: Node, rank: int, since_input: int) -> tuple[int, ...] | None:
    """The axes to reduce, from the attribute or from input 1; None to do nothing."""
    given = node.known_ints(1, "the axes") if node.opset >= since_input else node.ints("axes")
    if not given:
        if node.flag("noop_with_empty_axes"):
            return None
        return tuple(range(rank))
    return node.axes(given, rank)


class Reduction:
    """Names, ranges and reads for a reduction of X over some axes into Y."""

    def __init__(self, x: Value, axes: Sequence[int], keepdims: bool) -> None:
        self.x, self.axes, self.keepdims = x, tuple(axes), keepdims
        self.indices = names(x.rank)
        self.ranges: dict[str, Extent] = dict(zip(self.indices, x.shape, strict=True))
        kept = [a for a in range(x.rank) if a not in self.axes]
        self.kept = [self.indices[a] for a in kept]
        self.outer: dict[str, Extent] = {self.indices[a]: x.shape[a] for a in kept}
        self.inner_shape = tuple(x.shape[a] for a in kept)
        self.source = at("X", self.indices)
        self.declaration = declare("X", x.dtype, x.shape)
        self.count = 1
        for a in self.axes:
            self.count *= x.shape[a]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of Y."""
        if not self.keepdims:
            return self.inner_shape
        return tuple(1 if a in self.axes else e for a, e in enumerate(self.x.shape))

    def target(self, tensor: str = "Y") -> str:
        """The element of the result."""
        if not self.keepdims:
            return at(tensor, self.kept)
        return at(tensor, [0 if a in self.axes else i for a, i in enumerate(self.indices)])

    def inner(self, tensor: str) -> str:
        """The element of a temporary over the kept axes only."""
        return at(tensor, self.kept)


def _register(name: str) -> None:
    op, each, final = _REDUCTIONS[name]
    since_input = 13 if name == "ReduceSum" else 18

    @operator(name)
    def reduction(node: Node) -> Sequence[Result]:
        x = node.required(0)
        axes = reduced_axes(node, x.rank, since_input)
        if axes is None and each == "{0}" and final != "log({0})":
            return [Same(x)]
        r = Reduction(x, axes or (), node.flag("keepdims", True))
        checked_shape(r.shape, x.dtype, node.origin)
        accumulate: DType = x.dtype.compute
        extra, peak = [], ""
        if "{2}" in final:
            # The maximum is subtracted first, so that exp cannot overflow, unless it is infinite.
            peak = r.inner("P")
            extra = [
                declare("M", accumulate, r.inner_shape),
                line(f"{r.inner('M')} max=! {r.source}", r.ranges),
                declare("P", accumulate, r.inner_shape),
                line(f"{peak} = select(isinf({r.inner('M')}), 0, {r.inner('M')})", r.outer),
            ]
            if x.dtype.is_integer:
                accumulate = FLOAT64
                extra[0] = declare("M", accumulate, r.inner_shape)
                extra[1] = line(f"{r.inner('M')} max=! {accumulate}({r.source})", r.ranges)
                extra[2] = declare("P", accumulate, r.inner_shape)
        source = r.source
        if x.dtype.is_integer and peak:
            source = f"{accumulate}({r.source})"
        value = each.format(source, "", peak)
        count = count_text(r.count) if x.dtype.is_float else str(r.count)
        result = final.format(r.inner("T"), count, peak)
        if final in ("sqrt({0})", "log({0})") and x.dtype.is_integer:
            result = final.format(f"float64({r.inner('T')})")
        if final == "sqrt({0})" and x.dtype.is_float:
            # A select, so that the gradient at zeros is 0, not infinity times 0.
            result = f"select({r.inner('T')} == 0, 0, {result})"
        if x.dtype.is_integer and final != "{0}":
            result = f"{x.dtype}({result})"
        if final == "{0}" and accumulate == x.dtype:
            lines = [line(f"{r.target()} {op} {value}", r.ranges)]
        else:
            lines = [
                *extra,
                declare("T", accumulate, r.inner_shape),
                line(f"{r.inner('T')} {op} {value}", r.ranges),
                line(f"{r.target()} = {result}", r.outer),
            ]
        program = function(
            f"reduce_{name[6:].lower()}",
            [r.declaration],
            [declare("Y", x.dtype, r.shape)],
            lines,
        )
        return [Compute(program, (x,))]


for _name in _REDUCTIONS:
    _register(_name)


def first_at(value: str, extreme: str, index: str, never: str, dtype: DType) -> str:
    """The index of a value that is the extreme one, as is any NaN, which equals nothing."""
    found = f"select({value} == {extreme}, {index}, {never})"
    return f"select(isnan({value}), {index}, {found})" if dtype.is_float else found


@operator("ArgMax", "ArgMin")
def arg_reduction(node: Node) -> Sequence[Result]:
    """The least (or with select_last_index the greatest) index of the extreme element."""
    x = node.required(0)
    if x.rank == 0:
        raise node.fail("a scalar has no axis")
    axis = node.axis(node.integer("axis", 0), x.rank)
    if x.shape[axis] == 0:
        raise node.fail("the axis is empty")
    r = Reduction(x, (axis,), node.flag("keepdims", True))
    last = node.flag("select_last_index")
    op, never = ("max=!", "-1") if last else ("min=!", str(x.shape[axis]))
    extreme = "max=!" if node.operator == "ArgMax" else "min=!"
    index = r.indices[axis]
    lines = [
        declare("M", x.dtype, r.inner_shape),
        line(f"{r.inner('M')} {extreme} {r.source}", r.ranges),
        line(
            f"{r.target()} {op} {first_at(r.source, r.inner('M'), index, never, x.dtype)}", r.ranges
        ),
    ]
    program = function(
        node.operator.lower(), [r.declaration], [declare("Y", INT64, r.shape)], lines
    )
    return [Compute(program, (x,))]


@operator("CumSum", "CumProd")
def cumulative(node: Node) -> Sequence[Result]:
    """The running sum or product along an axis, a recurrence."""
    x = node.required(0)
    symbol, neutral = ("+", "0") if node.operator == "CumSum" else ("*", "1")
    given = node.known_ints(1, "the axis")
    if given is None or len(given) != 1 or x.rank == 0:
        raise node.fail("axis must be one number")
    axis = node.axis(given[0], x.rank)
    exclusive, reverse = node.flag("exclusive"), node.flag("reverse")
    size, indices = x.shape[axis], list(names(x.rank))
    i = indices[axis]
    if size == 0:
        return [Same(x)]

    def element(tensor: str, step: int) -> str:
        """The element `step` after the current one, in the direction of the sum."""
        position = (
            (f"{size - 1 - step} - {i}" if reverse else f"{i} + {step}")
            if step
            else (f"{size - 1} - {i}" if reverse else i)
        )
        return at(tensor, [*indices[:axis], position, *indices[axis + 1 :]])

    accumulate = x.dtype.compute
    direct = accumulate == x.dtype
    t = "Y" if direct else "T"
    ranges: dict[str, Extent] = dict(zip(indices, x.shape, strict=True))
    start, rest = ranges | {i: (0, 1)}, ranges | {i: (0, size - 1)}
    added = element("X", 0 if exclusive else 1)
    lines = [] if direct else [declare("T", accumulate, x.shape)]
    lines += [
        line(f"{element(t, 0)} = {neutral if exclusive else element('X', 0)}", start),
        line(f"{element(t, 1)} = {element(t, 0)} {symbol} {added}", rest),
    ]
    if not direct:
        lines.append(line(f"{at('Y', indices)} = {at('T', indices)}", ranges))
    inputs, outputs = [declare("X", x.dtype, x.shape)], [declare("Y", x.dtype, x.shape)]
    program = function(node.operator.lower(), inputs, outputs, lines)
    return [Compute(program, (x,))]
