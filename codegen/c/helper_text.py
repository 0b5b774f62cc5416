"""Parts of the text of vector helpers: the type that one works on, and a function around a body."""

from __future__ import annotations

from dataclasses import dataclass

from codegen.c.type_names import LANE_TYPES
from poly.ir.dtypes import DTYPES, DType


@dataclass(frozen=True)
class VectorShape:
    """A vector type: the suffix of its elements, and the number of lanes."""

    element: str
    lanes: int

    @property
    def bits(self) -> int:
        return int(self.element[1:])

    @property
    def c(self) -> str:
        return LANE_TYPES[self.element]

    @property
    def dtype(self) -> DType:
        kinds = {"f": "float", "i": "int", "u": "uint"}
        return DTYPES[kinds[self.element[0]] + self.element[1:]]

    @property
    def name(self) -> str:
        return f"{self.element}x{self.lanes}"

    @property
    def v(self) -> str:
        return f"fk_{self.name}"

    @property
    def mask(self) -> str:
        return f"fk_i{self.bits}x{self.lanes}"

    @property
    def is_float(self) -> bool:
        return self.element[0] == "f"

    def numbers(self, *values: int) -> str:
        """A vector of integers as wide as the elements."""
        return f"({self.mask}){{{', '.join(map(str, values))}}}"


def inline_function(result: str, name: str, parameters: str, body: str, comment: str = "") -> str:
    head = f"/* {comment} */\n" if comment else ""
    if len(body) > 92 and "for (" not in body:
        body = "\n  " + ";\n  ".join(body.rstrip(";").split("; ")) + ";\n"
        return f"{head}static inline {result} fk_{name}({parameters})\n{{{body}}}"
    return f"{head}static inline {result} fk_{name}({parameters})\n{{ {body} }}"


def either(condition: str, one: str, other: str) -> str:
    """The body of a helper, as a condition of the preprocessor says."""
    return f"\n#if {condition}\n  {one}\n#else\n  {other}\n#endif\n"


def alternatives(*forms: tuple[str, str], otherwise: str, comment: str = "") -> str:
    """A helper in the first of some forms whose condition of the preprocessor holds."""
    lines = [f"/* {comment} */"] if comment else []
    for n, (condition, text) in enumerate(forms):
        lines += [f"#{'elif' if n else 'if'} {condition}", text]
    return "\n".join([*lines, "#else", otherwise, "#endif"])
