"""Expressions as C text: index arithmetic in int64, values in their own types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np

from codegen.c.operator_text import apply
from codegen.c.type_names import C_TYPES, PATTERNS
from poly.ir.dtypes import BOOL, FLOAT16, FLOAT64, DType
from poly.ir.expr import (
    Cast,
    Const,
    Expr,
    Index,
    Op,
    Read,
    Size,
    dtype_of_expr,
    dtype_where,
    operand_dtype,
)
from poly.ir.operators import OPS
from poly.machine.gpu import BLOCK_THREADS

_INT_MAX = 2**31 - 1


@dataclass(frozen=True)
class Names:
    """C identifiers of tensors, sizes and loop variables, and how elements are addressed.

    `value` prints a value that occurs inside an index, computed in its own type.
    `threads` are the loops whose variable is a thread number, an int.
    """

    tensors: Mapping[str, str]
    sizes: Mapping[str, str]
    loops: Mapping[str, str]
    lvalue: Callable[[Read], str]
    value: Callable[[Expr], str]
    threads: frozenset[str] = frozenset()


def index_text(e: Expr, names: Names, outer: int = 0) -> str:
    """Print an integer expression of loop variables and sizes; `outer` is the outer precedence.

    It is computed in 64 bits wherever 32 bits might overflow.
    """
    return _index(e, names, outer)[0]


def _index(e: Expr, names: Names, outer: int = 0) -> tuple[str, int | None]:
    """The text of an index, and the largest magnitude it can have if C computes it in 32 bits;
    None if it is computed in 64 bits.
    """
    if isinstance(e, Const):
        value = int(e.value)
        narrow = abs(value) <= _INT_MAX
        text = str(value) if narrow else f"INT64_C({value})"
        return f"({text})" if value < 0 and outer > 0 else text, abs(value) if narrow else None
    if isinstance(e, Index):
        return names.loops[e.name], BLOCK_THREADS - 1 if e.name in names.threads else None
    if isinstance(e, Size):
        return names.sizes[e.name], None
    if isinstance(e, (Read, Cast)):
        return f"({names.value(e)})", None
    assert isinstance(e, Op)
    if e.fn in ("floordiv", "mod", "min", "max"):
        fn = {"floordiv": "fk_floordiv", "mod": "fk_mod", "min": "fk_lo", "max": "fk_hi"}[e.fn]
        return f"{fn}({', '.join(index_text(a, names) for a in e.args)})", None
    if e.fn == "select":
        c = index_text(e.args[0], names, 2)
        (a, most_a), (b, most_b) = (_index(x, names, 2) for x in e.args[1:])
        narrow = most_a is not None and most_b is not None
        return f"({c} ? {a} : {b})", max(most_a or 0, most_b or 0) if narrow else None
    symbols = {"div": "/", "fmod": "%", "and": "&&", "or": "||", "not": "!"}
    symbol = symbols.get(e.fn, OPS[e.fn].symbol)
    p = OPS[e.fn].precedence or 10
    if len(e.args) == 1:
        inner, most = _index(e.args[0], names, 20)
        return f"{symbol}{inner}", most
    tight = symbol in ("*", "/", "%")
    (left, most_left), (right, most_right) = (_index(a, names, p + n) for n, a in enumerate(e.args))
    most = None
    if most_left is not None and most_right is not None:
        together = most_left + most_right
        # A quotient, remainder or comparison (0 or 1) is at most its left operand in magnitude.
        known = {"*": most_left * most_right, "+": together, "-": together}
        most = known.get(symbol, max(1, most_left))
        if most > _INT_MAX:
            left, most = f"(int64_t){_index(e.args[0], names, 20)[0]}", None
    text = f"{left}{symbol}{right}" if tight else f"{left} {symbol} {right}"
    # C needs no parentheses around && inside || or arithmetic inside comparisons, but compilers
    # warn without them.
    if p < outer or (symbol == "&&" and outer > 0):
        text = f"({text})"
    return text, most


def rounds_once(have: DType, want: DType) -> bool:
    """Whether a value is rounded in one step: double to float16; to bfloat16, it goes through
    float.
    """
    return have == FLOAT64 and want == FLOAT16


def is_moved(value: Expr, dtype: DType, dtypes: Mapping[str, DType]) -> TypeGuard[Read]:
    """Whether a value is stored as it was loaded, with no need to convert it to compute with."""
    return isinstance(value, Read) and dtype.name in PATTERNS and dtypes[value.tensor] == dtype


class ValueText:
    """Print values as C; `dtypes` are the element types of tensors and buffers.

    exact : call the C library for functions such as exp
    """

    #: Whether the compiler assumes that signed integers wrap around.
    wraps = True

    def __init__(self, names: Names, dtypes: Mapping[str, DType], exact: bool = False) -> None:
        self.names, self.dtypes, self.exact = names, dtypes, exact

    def type_of(self, e: Expr) -> DType:
        return dtype_of_expr(e, self.dtypes)

    def text(self, e: Expr, want: DType | None = None) -> str:
        """C text of the value of `e` in the compute type of `want` (by default its own type).

        An expression of weak literals only is evaluated in the wanted type.
        """
        own = dtype_where(e, self.dtypes, want)
        want = own if want is None else want
        if isinstance(e, Const):
            return self._convert(literal(e.value, own, e.dtype is not None), own, want)
        if isinstance(e, (Index, Size)):
            return self._convert(index_text(e, self.names, 20), own, want)
        if isinstance(e, Read):
            return self._convert(self.load(self.names.lvalue(e), own), own, want)
        if isinstance(e, Cast):
            return self._convert(self._cast(e), e.dtype, want)
        assert isinstance(e, Op)
        return self._convert(self._operation(e, own, want), own, want)

    def store(self, target: Read, op: str, value: Expr) -> str:
        """``target = value`` or ``target = target op value`` as a C statement."""
        dtype = self.dtypes[target.tensor]
        lvalue = self.names.lvalue(target)
        if op == "=":
            if is_moved(value, dtype, self.dtypes):
                return f"{lvalue} = {self.names.lvalue(value)};"
            if dtype.name in PATTERNS and str(value) in ("0", "0.0"):
                return f"{lvalue} = 0;"
            direct = rounds_once(dtype_where(value, self.dtypes, dtype), dtype)
            text = self.text(value, FLOAT64 if direct else dtype)
            return f"{lvalue} = {self.stored(text, dtype, direct)};"
        fn = {"+=": "add", "*=": "mul", "max=": "max", "min=": "min"}[op]
        narrow = dtype.bits < 32 or dtype.kind == "b"
        if op in ("+=", "*=") and not narrow and (self.wraps or dtype.kind != "i"):
            return f"{lvalue} {op} {self.text(value, dtype)};"
        combined = self.operation(fn, dtype, [self.load(lvalue, dtype), self.text(value, dtype)])
        return f"{lvalue} = {self.stored(combined, dtype)};"

    def operation(self, fn: str, dtype: DType, args: list[str]) -> str:
        """Apply an operator to arguments in the compute type of `dtype`."""
        return apply(fn, dtype, args, self.exact, self.wraps)

    # --- dialect hooks ---------------------------------------------------------------------------

    def select(self, condition: str, arms: list[str], dtype: DType) -> str:
        """The first of two values where a condition holds, else the second."""
        return f"({condition} ? {arms[0]} : {arms[1]})"

    def load(self, lvalue: str, dtype: DType) -> str:
        """Convert a stored element to its compute type."""
        if dtype.name in PATTERNS:
            return f"fk_{PATTERNS[dtype.name]}_load({lvalue})"
        return f"({lvalue} != 0)" if dtype.kind == "b" else lvalue

    def stored(self, text: str, dtype: DType, wide: bool = False) -> str:
        """Convert a value in its compute type to its storage type.

        wide : the value is a double, to be rounded once
        """
        if dtype.name in PATTERNS:
            return f"fk_{PATTERNS[dtype.name]}_store{'_f64' if wide else ''}({text})"
        return text

    # --- values ------------------------------------------------------------------------------

    def _convert(self, text: str, have: DType, want: DType) -> str:
        if have.compute == want.compute:
            return text
        if want.kind == "b":
            return f"({text} != 0)"
        return f"({C_TYPES[want.compute.name]})({text})"

    def _cast(self, e: Cast) -> str:
        own = dtype_where(e.arg, self.dtypes, e.dtype)
        inner = self.text(e.arg, own)
        if e.dtype.name in PATTERNS:
            once = rounds_once(own, e.dtype)
            value = inner if once else self._convert(inner, own, e.dtype)
            return self.load(self.stored(value, e.dtype, once), e.dtype)
        if e.dtype.kind == "b":
            return f"({inner} != 0)"
        if own == e.dtype:
            return inner
        if own.kind == "b" and e.dtype.is_integer:
            # Make a comparison a number: compilers warn about arithmetic on a comparison.
            inner = f"{inner} ? 1 : 0"
        return f"({C_TYPES[e.dtype.name]})({inner})"

    def _operation(self, e: Op, own: DType, want: DType) -> str:
        info = OPS[e.fn]
        met = operand_dtype(e, self.dtypes, want)
        if e.fn == "select":
            c = self.text(e.args[0], BOOL)
            return self.select(c, [self.text(a, met) for a in e.args[1:]], met)
        args = [self.text(a, met) for a in e.args]
        if e.fn == "not":
            return f"(!{args[0]})"
        if info.rule == "logic":
            return f"({args[0]} {'&&' if e.fn == 'and' else '||'} {args[1]})"
        if info.rule == "compare":
            return f"({args[0]} {info.symbol} {args[1]})"
        if info.rule == "test":
            if not met.is_float:
                return f"({args[0]} < 0)" if e.fn == "signbit" and met.kind == "i" else "0"
            return f"({e.fn}({args[0]}) != 0)"
        return self.operation(e.fn, own, args)


def literal(value: int | float | bool, dtype: DType, typed: bool = False) -> str:
    """Print a number as a C literal of the compute type of `dtype`; round it first if `typed`."""
    d = dtype.compute
    if d.kind == "b":
        return "1" if value else "0"
    if d.is_float:
        with np.errstate(over="ignore"):
            number = np.asarray(value).astype(dtype.numpy if typed else d.numpy).astype(d.numpy)
        f, double = ("f", "") if d.bits == 32 else ("", "(double)")
        if np.isnan(number):
            return f"{double}NAN"
        if np.isinf(number):
            return f"{double}INFINITY" if number > 0 else f"(-{double}INFINITY)"
        # The shortest decimal that reads back as this number.
        text = str(number)
        if not any(ch in text for ch in ".e"):
            text += ".0"
        return f"({text}{f})" if text.startswith("-") else f"{text}{f}"
    bits = d.bits
    number_i = int(value) & ((1 << bits) - 1)
    if d.kind == "i" and number_i >> (bits - 1):
        number_i -= 1 << bits
    if d.kind == "u":
        return f"UINT64_C({number_i})" if bits == 64 else f"{number_i}u"
    if bits == 64:
        if number_i == -(1 << 63):
            return "INT64_MIN"
        return f"INT64_C({number_i})" if number_i >= 0 else f"(-INT64_C({-number_i}))"
    if number_i == -(1 << 31):
        return "INT32_MIN"
    return str(number_i) if number_i >= 0 else f"({number_i})"
