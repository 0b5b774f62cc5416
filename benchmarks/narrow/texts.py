"""Comprehensions on float32 as the same on other types, with sums in 32 bits."""

from __future__ import annotations

import re
from collections.abc import Mapping

from benchmarks.kernel import Text

_HEAD = re.compile(r"^(def \w+\()(.*?)(\) -> \(Y\) \{)(.*)\}\s*$", re.DOTALL)
#: A statement that writes Y, up to the end of its expression.
_RESULT = re.compile(r"(?m)^(\s*)Y\[([^\]]*)\] (=|[+*]=!|max=!|min=!) (.*?)(?=\s+where |\s*$)")


def retyped(text: Text, types: Mapping[str, str], result: str) -> Text:
    """The computation with operands of `types`.

    Integers are multiplied and added in int32 and 16-bit floats in float32; copies and maxima are
    left in their type.

    result : the type of the result where it has to be cast to it, else empty
    """
    parts = _HEAD.match(text.text)
    assert parts is not None, text.text
    start, operands, middle, body = parts.groups()
    for name, type_ in types.items():
        operands = re.sub(rf"float32 (?={name}\[)", f"{type_} ", operands)
    body = "\n    " + body.strip() + "\n"
    if _computes(body):
        for name, type_ in types.items():
            if type_ != "float32":
                wide = "int32" if "int" in type_ else "float32"
                body = re.sub(rf"\b{name}\[[^\]]*\]", rf"{wide}(\g<0>)", body)
        if result:
            body = _cast_result(body, result)
    return Text(f"{start}{operands}{middle}{body}}}", text.sizes, text.shapes)


def _computes(body: str) -> bool:
    """Whether anything is computed that a wider type would round otherwise."""
    return "+=!" in body or len(re.findall(r"(?m)^\s*\w+\[[^\]]*\] \S*=", body)) > 1


def _cast_result(body: str, result: str) -> str:
    """The statements, with Y cast to a type; a sum goes to a temporary first."""
    found = _RESULT.search(body)
    assert found is not None, body
    indent, index, operator, value = found.groups()
    before, after = body[: found.start()], body[found.end() :]
    if operator == "=":
        return f"{before}{indent}Y[{index}] = {result}({value}){after}"
    last = f"    Y[{index}] = {result}(total_[{index}])\n"
    return f"{before}{indent}total_[{index}] {operator} {value}{after}{last}"
