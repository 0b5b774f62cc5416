"""Values in vector lanes as C text; `codegen.c.expr_text` has the same for scalars.

A value that is the same in all lanes is a scalar until it meets a vector.  Truth values are masks:
signed integers, 0 or -1, of the width their context needs.  Values without a vector form (elements
at data-dependent indices, a loop variable used as a value) are computed lane by lane before the
statement.
"""

from __future__ import annotations

from typing import Protocol

from codegen.c.expr_text import ValueText, index_text, is_moved, literal, rounds_once
from codegen.c.type_names import PATTERNS, lane_suffix, mask_type, suffix, vector_type
from codegen.c.widen_helpers import has_widening
from codegen.loops.index_ranges import depends_on, replace_var
from codegen.loops.nodes import LANE_0
from codegen.vector.vectorise import is_index_value, is_lane_by_lane, lane_stride
from poly.ir.dtypes import BOOL, DTYPES, FLOAT32, FLOAT64, INT32, INT64, UINT8, UINT32, DType
from poly.ir.expr import (
    Cast,
    Const,
    Expr,
    Index,
    Op,
    Read,
    Size,
    dtype_where,
    operand_dtype,
    reads_of,
    simplify,
    substitute_value,
)
from poly.ir.linear_form import Linear, linear_form, normal, render
from poly.ir.operators import INEXACT, OPS

#: How many adjacent lanes may share an element, see `codegen.c.vector_helpers`.
SPREADS = (2, 4, 8)
_INFIX = frozenset(("add", "sub", "mul", "bitand", "bitor", "bitxor"))


class ElementPrinter(Protocol):
    """How a target addresses and names elements."""

    values: ValueText
    dtypes: dict[str, DType]

    @property
    def in_tile(self) -> bool: ...

    def lvalue(self, read: Read) -> str: ...

    def register(self, read: Read, var: str) -> str | None: ...

    def distance(self, read: Read, var: str) -> Expr | None: ...

    def multiple(self, var: str) -> int: ...

    def table_index(self, read: Read) -> Expr | None: ...

    def fresh(self) -> str: ...


class LaneText:
    """Print the values of one statement in `lanes` lanes; `var` is the lane.

    `before` collects the declarations that have to precede the statement.
    part : the first active lane, and the end of the active lanes; only they read memory
    """

    def __init__(
        self, printer: ElementPrinter, var: str, lanes: int, part: tuple[Expr, Expr] | None = None
    ) -> None:
        self.printer, self.var, self.lanes, self.part = printer, var, lanes, part
        self.values = printer.values
        self.before: list[str] = []

    def stored(self, e: Expr, dtype: DType) -> str:
        """A value in all lanes, as stored in a tensor of type `dtype`."""
        if dtype.kind == "b":
            return f"({self._type(dtype)})({self.mask(e, 8)} & 1)"
        if is_moved(e, dtype, self.printer.dtypes) and depends_on(e, self.var):
            return self._load(e, dtype)
        own = dtype_where(e, self.printer.dtypes, dtype)
        have = own if rounds_once(own, dtype) else dtype
        return self.rounded(self.vector(e, have), dtype, have)

    def rounded(self, text: str, dtype: DType, have: DType | None = None) -> str:
        """Round a vector to the storage type of `dtype`; it is in the compute type of `have`, by
        default that of `dtype`.
        """
        if dtype.name in PATTERNS:
            return f"fk_store_{PATTERNS[dtype.name]}_{self._name(have or dtype)}({text})"
        return text

    # --- numbers -----------------------------------------------------------------------------

    def vector(self, e: Expr, want: DType) -> str:
        """A number in the compute type of `want`, as a vector."""
        if not depends_on(e, self.var):
            return f"fk_splat_{self._name(want)}({self.values.text(e, want)})"
        own = dtype_where(e, self.printer.dtypes, want)
        if is_lane_by_lane(e, self.var):
            return self._lane_by_lane(e, want)
        if isinstance(e, Read):
            text = self.load(e)
        elif isinstance(e, Cast):
            text = self._cast(e)
        else:
            assert isinstance(e, Op)
            text = self._operation(e, want, own)
        return self.convert(text, own, want)

    def operand(self, e: Expr, want: DType) -> str:
        """As `vector`, but a value equal in all lanes stays a scalar where C allows it."""
        simple = want.compute.bits >= 32 and not depends_on(e, self.var)
        return self.values.text(e, want) if simple else self.vector(e, want)

    def convert(self, text: str, have: DType, want: DType) -> str:
        """Convert a vector of numbers to another type, in steps for which instructions exist."""
        have, want = have.compute, want.compute
        if have == want:
            return text
        steps: list[DType] = []
        if have.is_integer and not want.is_integer and have.bits < min(want.bits, 32):
            # Through int32, which all values of fewer bits fit into.
            steps.append(_integer("i", 32))
        if have.is_float and want.is_integer and want.bits < 32:
            steps.append(_integer("i", 32))
        is_wide = want.bits == 64 or want == UINT32
        if have.is_float and have.bits == 32 and want.is_integer and is_wide:
            steps.append(FLOAT64)
        if have.is_float and want == UINT32:
            steps.append(INT64)  # int32 does not hold 2^31 and more
        current = have
        for step in (*steps, want):
            if step == current:
                continue
            if step.is_integer and current.is_integer and step.bits == current.bits:
                text = f"({self._type(step)}){text}"
            elif step == INT32 and has_widening(suffix(current), self.lanes):
                text = f"fk_wide_{suffix(current)}_i32x{self.lanes}({text})"
            else:
                text = f"__builtin_convertvector({text}, {self._type(step)})"
            current = step
        return text

    def _cast(self, e: Cast) -> str:
        own = dtype_where(e.arg, self.printer.dtypes, e.dtype)
        compute = e.dtype.compute
        if own.kind == "b":
            ones = f"({self.mask(e.arg, compute.bits)} & 1)"
            return self.convert(ones, _integer("i", compute.bits), compute)
        fits = compute.is_integer and compute.bits <= 32 and compute != UINT32
        if own.compute == FLOAT32 and fits:
            text = self._to_integer(e.arg, own)
            return self.convert(text, _integer("i", 32), compute)
        have = own if rounds_once(own, e.dtype) else compute
        text = self.convert(self.vector(e.arg, own), own, have)
        return self.widened(self.rounded(text, e.dtype, have), e.dtype)

    def _to_integer(self, e: Expr, own: DType) -> str:
        """A float32 as an int32.  A NaN, and what is beyond an int32, give any number."""
        name, rounds = self._name(own), isinstance(e, Op) and e.fn == "round"
        value = e.args[0] if isinstance(e, Op) and rounds else e
        text = self._clipped(value, own) or self.vector(value, own)
        if rounds:
            return f"fk_nearest_{name}({text})"
        return f"__builtin_convertvector({text}, {self._type(_integer('i', 32))})"

    def _clipped(self, e: Expr, own: DType) -> str:
        """A value between two others, without what makes NaN of NaN; "" if it has another form."""
        if not isinstance(e, Op) or e.fn != "min" or not isinstance(e.args[0], Op):
            return ""
        (inner, high), low = e.args, e.args[0].args[-1]
        if (
            not isinstance(inner, Op)
            or inner.fn != "max"
            or not depends_on(inner.args[0], self.var)
        ):
            return ""
        parts = (self.vector(x, own) for x in (inner.args[0], low, high))
        return f"fk_clip_{self._name(own)}({', '.join(parts)})"

    def _operation(self, e: Op, want: DType, own: DType) -> str:
        met = operand_dtype(e, self.printer.dtypes, want)
        if e.fn == "select":
            first, second = (self.vector(a, met) for a in e.args[1:])
            mask = self.mask(e.args[0], met.compute.bits)
            return f"fk_select_{self._name(met.compute)}({mask}, {first}, {second})"
        if e.fn == "pow" and not self.values.exact and isinstance(e.args[1], Const):
            exponent = e.args[1].value
            if exponent in (2, 3):
                name = self._name(own.compute)
                return f"fk_power{int(exponent)}_{name}({self.vector(e.args[0], own)})"
        infix = e.fn in _INFIX or (e.fn == "div" and own.is_float)
        take = self.operand if infix else self.vector
        return self.apply(e.fn, own, [take(a, met) for a in e.args])

    def apply(self, fn: str, dtype: DType, args: list[str]) -> str:
        """An operator on vectors (or one vector and a scalar) of the compute type of `dtype`."""
        d = dtype.compute
        if fn in _INFIX or (fn == "div" and d.is_float):
            symbol = {"div": "/"}.get(fn, OPS[fn].symbol)
            return f"({args[0]} {symbol} {args[1]})"
        if fn in ("neg", "bitnot"):
            return f"({OPS[fn].symbol}{args[0]})"
        near = "near_" if fn in INEXACT and not self.values.exact else ""
        return f"fk_{near}{fn}_{self._name(d)}({', '.join(args)})"

    # --- truth values --------------------------------------------------------------------------

    def mask(self, e: Expr, bits: int) -> str:
        """A truth value as a vector of 0 and -1 with elements of `bits` bits."""
        if not depends_on(e, self.var):
            scalar = f"-(int{bits}_t){self.values.text(e, BOOL)}"
            return f"fk_splat_i{bits}x{self.lanes}({scalar})"
        if isinstance(e, Read):
            return self._resized(f"({self.load(e)} != 0)", 8, bits)
        if isinstance(e, Cast):
            own = dtype_where(e.arg, self.printer.dtypes, e.dtype)
            if own.kind == "b":
                return self.mask(e.arg, bits)
            if is_index_value(e, self.var):
                return self._mask_by_lane(e, bits)
            return self._resized(f"({self.vector(e.arg, own)} != 0)", own.compute.bits, bits)
        assert isinstance(e, Op)
        if is_index_value(e, self.var) and OPS[e.fn].rule == "compare":
            return self._index_comparison(e, bits)
        if e.fn == "not" or e.fn == "bitnot":
            return f"(~{self.mask(e.args[0], bits)})"
        if e.fn == "select":
            cond, first, second = (self.mask(x, bits) for x in e.args)
            return f"(({cond} & {first}) | (~{cond} & {second}))"
        symbol = {"and": "&", "or": "|", "bitand": "&", "bitor": "|", "bitxor": "^",
                  "min": "&", "max": "|"}.get(e.fn)  # fmt: skip
        if symbol is not None:
            return f"({self.mask(e.args[0], bits)} {symbol} {self.mask(e.args[1], bits)})"
        met = operand_dtype(e, self.printer.dtypes, BOOL)
        if met.kind == "b":
            return self._truth_comparison(e, bits)
        if OPS[e.fn].rule == "test":
            return self._test(e, met, bits)
        a, b = e.args
        # At least one side varies with the lane, and so is a vector.
        text = f"({self.operand(a, met)} {OPS[e.fn].symbol} {self.operand(b, met)})"
        return self._resized(text, met.compute.bits, bits)

    def _test(self, e: Op, met: DType, bits: int) -> str:
        if not met.is_float and (e.fn != "signbit" or met.kind != "i"):
            return f"fk_splat_i{bits}x{self.lanes}(0)"
        own = met.compute.bits
        x = self.vector(e.args[0], met)
        if e.fn == "signbit":
            return self._resized(f"((fk_i{own}x{self.lanes})({x}) < 0)", own, bits)
        if e.fn == "isnan":
            name = self.named(x, vector_type(met.compute, self.lanes))
            return self._resized(f"({name} != {name})", own, bits)
        infinite = literal(float("inf"), met.compute)
        return self._resized(f"(fk_abs_{self._name(met.compute)}({x}) == {infinite})", own, bits)

    def _truth_comparison(self, e: Op, bits: int) -> str:
        """A comparison of truth values, where false < true."""
        a, b = (self.mask(x, bits) for x in e.args)
        return {
            "eq": f"(~({a} ^ {b}))", "ne": f"({a} ^ {b})",
            "lt": f"(~{a} & {b})", "le": f"(~{a} | {b})",
            "gt": f"({a} & ~{b})", "ge": f"({a} | ~{b})",
        }[e.fn]  # fmt: skip

    def _index_comparison(self, e: Op, bits: int) -> str:
        """A comparison of loop variables: of the lane number with a bound."""
        sides = [linear_form(x) for x in e.args] if all(map(_is_plain, e.args)) else []
        if not sides or not all(map(_fits, sides)):
            return self._mask_by_lane(e, bits)
        form = sides[0] - sides[1]
        factor = form.coefficient(Index(self.var))
        rest = form.without(Index(self.var))
        if any(depends_on(a, self.var) for a, _ in rest.terms) or not 0 < abs(factor) < 1 << 20:
            return self._mask_by_lane(e, bits)
        # Only the order matters, so clamping the bound to 32 bits is safe.
        text = index_text(simplify(render(rest)), self.values.names)
        bound = f"(int32_t)fk_hi(fk_lo({text}, 1 << 30), -(1 << 30))"
        numbers = ", ".join(str(factor * k) for k in range(self.lanes))
        vector = f"({mask_type(32, self.lanes)}){{{numbers}}}"
        return self._resized(f"({vector} + {bound} {OPS[e.fn].symbol} 0)", 32, bits)

    def _resized(self, text: str, have: int, bits: int) -> str:
        kind = mask_type(bits, self.lanes)
        if have == bits:
            return f"({kind}){text}"
        while have < bits and 2 * have <= bits:
            have *= 2
            text = f"__builtin_convertvector({text}, {mask_type(have, self.lanes)})"
        return text if have == bits else f"__builtin_convertvector({text}, {kind})"

    # --- elements ------------------------------------------------------------------------------

    def load(self, read: Read) -> str:
        """An element in each lane, in its compute type (bool: its storage type)."""
        dtype = self.printer.dtypes[read.tensor]
        return self.widened(self._load(read, dtype), dtype)

    def widened(self, text: str, dtype: DType) -> str:
        """Convert a vector in the storage type of `dtype` to its compute type."""
        if dtype.name in PATTERNS:
            return f"fk_load_{PATTERNS[dtype.name]}_{self._name(dtype)}({text})"
        return text

    def _load(self, read: Read, dtype: DType) -> str:
        register = self.printer.register(read, self.var)
        if register is not None:
            return register
        table = self._table(read)
        if table:
            return table
        name = f"{lane_suffix(dtype)}x{self.lanes}"
        # A data-dependent index is like any other if all lanes read the same data.
        data = any(depends_on(inner, self.var) for i in read.indices for inner in reads_of(i))
        stride = None if data else lane_stride(read, self.var)
        first = self.first(read)
        if self.part is not None and stride in (1, 2):
            even = "" if stride == 1 else "_even"
            if self.printer.in_tile:
                # Adjacent filter taps, which begin at other lanes, then share the address.
                begin, end = (index_text(e, self.values.names) for e in self.part)
                return f"fk_some{even}_{name}(&{self.printer.lvalue(first)}, {begin}, {end})"
            return f"fk_take{even}_{name}({self.active_lanes(read)})"
        if self.part is not None:
            return self._stored_by_lane(read, dtype)
        if stride == 1:
            return f"*(const fk_{name}_u *)&{self.printer.lvalue(first)}"
        if stride == 2 and self.lanes > 2:
            return f"fk_even_{name}(&{self.printer.lvalue(first)})"
        if stride == -1 and self.lanes > 2:
            return f"fk_backwards_{name}(&{self.printer.lvalue(first)})"
        repeated = None if data else self._repeated(read)
        if repeated is not None:
            return f"fk_spread{repeated}_{name}(&{self.printer.lvalue(first)})"
        distance = None if data else self.printer.distance(read, self.var)
        if distance is None:
            return self._stored_by_lane(read, dtype)
        text = index_text(distance, self.values.names)
        return f"fk_gather_{name}(&{self.printer.lvalue(first)}, {text})"

    def _table(self, read: Read) -> str:
        """A lookup in a table of 256 elements of 8 bits; "" for any other read."""
        index = self.printer.table_index(read)
        if self.part is not None or index is None or not depends_on(index, self.var):
            return ""
        dtype = self.printer.dtypes[read.tensor]
        name = f"{lane_suffix(dtype)}x{self.lanes}"
        first = self.printer.lvalue(Read(read.tensor, (Const(0),)))
        return f"fk_table_{name}(&{first}, {self.vector(index, UINT8)})"

    def active_lanes(self, read: Read) -> str:
        """The address of the first active lane, its number, and the end of the active lanes."""
        begin, end = (index_text(e, self.values.names) for e in self._active)
        return f"&{self.printer.lvalue(self.first(read, self._active[0]))}, {begin}, {end}"

    def _repeated(self, read: Read) -> int | None:
        """k, if the first k lanes share an element, the next k the next one, and so on."""
        if not read.indices or any(depends_on(i, self.var) for i in read.indices[:-1]):
            return None
        moving = [t for t in linear_form(read.indices[-1]).terms if depends_on(t[0], self.var)]
        if len(moving) != 1 or moving[0][1] != 1:
            return None
        quotient = moving[0][0]
        if not isinstance(quotient, Op) or quotient.fn != "floordiv":
            return None
        value, divisor = quotient.args
        if not isinstance(divisor, Const) or int(divisor.value) not in SPREADS:
            return None
        count, form = int(divisor.value), linear_form(value)
        rest = form.without(Index(self.var))
        if form.coefficient(Index(self.var)) != 1 or rest.constant % count:
            return None
        for atom, factor in rest.terms:
            known = self.printer.multiple(atom.name) if isinstance(atom, Index) else 1
            if depends_on(atom, self.var) or factor * known % count:
                return None
        return count if self.lanes >= 2 * count else None

    def first(self, read: Read, number: Expr = LANE_0) -> Read:
        """The element in lane 0, or in another lane."""

        def placed(index: Expr) -> Expr:
            if reads_of(index):  # a value, in which 3/2 may be a float
                return substitute_value(index, {self.var: number})
            return normal(simplify(replace_var(index, self.var, number)))

        return Read(read.tensor, tuple(map(placed, read.indices)))

    # --- lane by lane ----------------------------------------------------------------------------

    def _lane_by_lane(self, e: Expr, want: DType) -> str:
        kind = vector_type(want.compute, self.lanes)
        return self._filled(kind, self.values.text(e, want))

    def _mask_by_lane(self, e: Expr, bits: int) -> str:
        return self._filled(
            mask_type(bits, self.lanes), f"-(int{bits}_t){self.values.text(e, BOOL)}"
        )

    def _stored_by_lane(self, read: Read, dtype: DType) -> str:
        return self._filled(vector_type(dtype, self.lanes), self.printer.lvalue(read))

    def _filled(self, kind: str, text: str) -> str:
        name = self.printer.fresh()
        self.before.append(f"{kind} {name}{'' if self.part is None else ' = {0}'};")
        head, lane = self.each_lane(), self.values.names.loops[self.var]
        self.before.append(f"{head} {name}[{lane}] = {text};")
        return name

    def each_lane(self) -> str:
        """The head of a loop over the active lanes."""
        lane = self.values.names.loops[self.var]
        begin, end = self._active
        first, last = index_text(begin, self.values.names), index_text(end, self.values.names, 5)
        return f"for (int64_t {lane} = {first}; {lane} < {last}; {lane}++)"

    @property
    def _active(self) -> tuple[Expr, Expr]:
        return self.part or (LANE_0, Const(self.lanes))

    def named(self, text: str, kind: str) -> str:
        """A variable for a value that is used twice."""
        name = self.printer.fresh()
        self.before.append(f"const {kind} {name} = {text};")
        return name

    def _name(self, dtype: DType) -> str:
        return f"{suffix(dtype.compute)}x{self.lanes}"

    def _type(self, dtype: DType) -> str:
        return vector_type(dtype, self.lanes)


def _integer(kind: str, bits: int) -> DType:
    return DTYPES[f"{'u' if kind == 'u' else ''}int{bits}"]


def _fits(form: Linear) -> bool:
    """Whether int64 holds the values of a form, and differences of two such forms, for any loop
    variables and sizes, which are at most 2^38.
    """
    if not all(isinstance(a, (Index, Size)) for a, _ in form.terms):
        return False
    return abs(form.constant) < 1 << 60 and sum(abs(c) for _, c in form.terms) <= 1 << 22


def _is_plain(e: Expr) -> bool:
    """Whether a value is index arithmetic without casts to other types."""
    if isinstance(e, Op):
        return e.fn in ("add", "sub", "neg", "mul") and all(_is_plain(a) for a in e.args)
    if isinstance(e, Cast):
        return e.dtype.name == "int64" and _is_plain(e.arg)
    return not isinstance(e, Read) and not (isinstance(e, Const) and not isinstance(e.value, int))
