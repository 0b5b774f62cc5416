"""The operators and functions of expressions: arity, typing rule, symbol and precedence."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OpInfo:
    """An operator: its arity, typing rule, and infix symbol and precedence.

    rule: ``arith`` combine the operands; ``float`` the same, but integers become float32;
    ``compare`` combine, then bool; ``logic`` bool to bool; ``int`` integers only;
    ``test`` float to bool; ``select`` (bool, T, T) to T.
    """

    arity: int
    rule: str
    symbol: str = ""
    precedence: int = 0


OPS: dict[str, OpInfo] = {
    "or": OpInfo(2, "logic", "or", 1),
    "and": OpInfo(2, "logic", "and", 2),
    "not": OpInfo(1, "logic", "not ", 3),
    "lt": OpInfo(2, "compare", "<", 4),
    "le": OpInfo(2, "compare", "<=", 4),
    "gt": OpInfo(2, "compare", ">", 4),
    "ge": OpInfo(2, "compare", ">=", 4),
    "eq": OpInfo(2, "compare", "==", 4),
    "ne": OpInfo(2, "compare", "!=", 4),
    "bitor": OpInfo(2, "int", "|", 5),
    "bitxor": OpInfo(2, "int", "^", 6),
    "bitand": OpInfo(2, "int", "&", 7),
    "shl": OpInfo(2, "int", "<<", 8),
    "shr": OpInfo(2, "int", ">>", 8),
    "add": OpInfo(2, "arith", "+", 9),
    "sub": OpInfo(2, "arith", "-", 9),
    "mul": OpInfo(2, "arith", "*", 10),
    "div": OpInfo(2, "arith", "/", 10),  # integers: towards zero, and x / 0 = 0
    "floordiv": OpInfo(2, "arith", "//", 10),  # towards minus infinity; integers: x // 0 = 0
    "mod": OpInfo(2, "arith", "%", 10),  # sign of the divisor; integers: x % 0 = 0
    "neg": OpInfo(1, "arith", "-", 11),
    "bitnot": OpInfo(1, "int", "~", 11),
    "fmod": OpInfo(2, "arith"),  # sign of the dividend; integers: fmod(x, 0) = 0
    "min": OpInfo(2, "arith"),  # NaN if either is NaN
    "max": OpInfo(2, "arith"),
    "abs": OpInfo(1, "arith"),
    "sign": OpInfo(1, "arith"),
    "pow": OpInfo(2, "float"),
    "atan2": OpInfo(2, "float"),
    "select": OpInfo(3, "select"),
    "isnan": OpInfo(1, "test"),
    "isinf": OpInfo(1, "test"),
    "signbit": OpInfo(1, "test"),  # also of zeros and NaN
    **{
        name: OpInfo(1, "float")
        for name in (
            "floor",
            "ceil",
            "round",
            "trunc",
            "sqrt",
            "rsqrt",
            "exp",
            "log",
            "sin",
            "cos",
            "tan",
            "asin",
            "acos",
            "atan",
            "sinh",
            "cosh",
            "tanh",
            "asinh",
            "acosh",
            "atanh",
            "erf",
            "sigmoid",
        )
    },
}  # "round" rounds halves to even; "rsqrt" is 1/sqrt(x); "sigmoid" is 1/(1+exp(-x))

FUNCTIONS: tuple[str, ...] = tuple(name for name, info in OPS.items() if not info.symbol)


#: Operators whose operands may be exchanged.
COMMUTATIVE = frozenset("or and bitor bitxor bitand eq ne add mul min max".split())

#: Functions that no two libraries round alike.  In exact mode the C library's are used; otherwise
#: those of `codegen.c.vector_math`, in vector lanes and in scalar code, where it has them.
INEXACT = frozenset(
    "exp log sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf sigmoid "
    "pow atan2".split()
)
