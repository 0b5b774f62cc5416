"""Calls of a CPU's instructions in C, and what those that users declare need before.

The template of a user's instruction is the body of an inline function: its names cannot be mixed
up with those of a kernel, and it is the same text where it is checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from codegen.c.type_names import C_TYPES
from poly.ir.intrinsics import PLACEHOLDER, VectorIntrinsic


def call_text(intrinsic: VectorIntrinsic, pointers: Mapping[str, str]) -> str:
    """A C statement that runs an instruction, given a pointer to the first element of each of its
    tensors.
    """
    if intrinsic.by_user:
        return f"{function_name(intrinsic)}({', '.join(pointers[t] for t in _tensors(intrinsic))});"
    return _filled(intrinsic.template, pointers)


def function_name(intrinsic: VectorIntrinsic) -> str:
    """The C name of the function of a user's instruction."""
    return f"fk_user_{intrinsic.name}_{intrinsic.digest}"


def definitions(intrinsics: Iterable[VectorIntrinsic]) -> list[str]:
    """The headers, setups and functions of users' instructions, each once."""
    used = list(dict.fromkeys(i for i in intrinsics if i.by_user))
    if not used:
        return []
    headers = dict.fromkeys(h for i in used for h in i.headers)
    setups = dict.fromkeys(i.setup.strip("\n") for i in used if i.setup.strip())
    functions = map(_function, used)
    return [*(f"#include <{h}>" for h in headers), *setups, *functions, ""]


def _function(intrinsic: VectorIntrinsic) -> str:
    names = {t: f"fk_{t}" for t in _tensors(intrinsic)}
    parameters = ", ".join(f"{c_type(intrinsic, t)} *{name}" for t, name in names.items())
    body = _filled(intrinsic.template, names).strip("\n")
    about = str(intrinsic).replace("*/", "* /").replace("/*", "/ *")
    return (
        f"/* {about} */\nstatic inline __attribute__((always_inline)) void "
        f"{function_name(intrinsic)}({parameters})\n{{\n  {body}\n}}"
    )


def c_type(intrinsic: VectorIntrinsic, tensor: str) -> str:
    """The type of a tensor's elements, constant if the instruction does not set them."""
    name = C_TYPES[intrinsic.meaning.dtypes[tensor].name]
    return name if tensor == intrinsic.target else f"const {name}"


def _tensors(intrinsic: VectorIntrinsic) -> tuple[str, ...]:
    return tuple(intrinsic.meaning.tensors)


def _filled(template: str, pointers: Mapping[str, str]) -> str:
    return re.sub(PLACEHOLDER, lambda found: pointers[found[1]], template)
