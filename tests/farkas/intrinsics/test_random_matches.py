"""Random statements that are an instruction, or nearly: what `tensorize` accepts is right."""

from __future__ import annotations

import random
import re
from collections import Counter

import farkas as fk
from poly.errors import FarkasError

#: Meanings over one or two loops i and j of 4, or of 2 and 4, iterations; and their C text.
INSTRUCTIONS = {
    "copy": ("int32 x[4]", "int32 z[4]", "z[i] = x[i]", "{z}[i] = {x}[i];"),
    "first": ("int32 x[1]", "int32 z[4]", "z[i] = x[0]", "{z}[i] = {x}[0];"),
    "even": ("int32 x[7]", "int32 z[4]", "z[i] = x[2*i]", "{z}[i] = {x}[2*i];"),
    "multiply": (
        "int32 x[1], int32 y[4], int32 z[4]", "z", "z[i] += x[0] * y[i]",
        "{z}[i] += {x}[0] * {y}[i];",
    ),
    "total": ("int32 x[4], int32 z[]", "z", "z[] += x[i]", "*{z} += {x}[i];"),
    "outer": (
        "int32 x[2], int32 y[4], int32 z[2,4]", "z", "z[i,j] += x[i] * y[j]",
        "for (int j = 0; j < 4; j++) {z}[4*i+j] += {x}[i] * {y}[j];",
    ),
    "turn": (
        "int32 x[4,2]", "int32 z[2,4]", "z[i,j] = x[j,i]",
        "for (int j = 0; j < 4; j++) {z}[4*i+j] = {x}[2*j+i];",
    ),
    "diagonals": (
        "int32 x[5]", "int32 z[2,4]", "z[i,j] = x[i+j]",
        "for (int j = 0; j < 4; j++) {z}[4*i+j] = {x}[i+j];",
    ),
}  # fmt: skip
NAMES = {"x": "X", "y": "Y", "z": "Z"}


def is_nested(name: str) -> bool:
    return "[i,j]" in INSTRUCTIONS[name][2]


def declare_all() -> None:
    for name, (inputs, outputs, line, text) in INSTRUCTIONS.items():
        body = f"for (int i = 0; i < {2 if is_nested(name) else 4}; i++) {{ {text} }}"
        fk.intrinsic(f"def {name}({inputs}) -> ({outputs}) {{ {line} }}", body)


def statement(rng: random.Random, name: str) -> str:
    """A program whose accesses are those of an instruction inside of larger tensors, or nearly."""
    inputs, outputs, line, _ = INSTRUCTIONS[name]
    own = dict(re.findall(r"int32 (\w)\[([^]]*)]", f"{inputs}, {outputs}"))
    nested = is_nested(name)
    tight = nested and rng.random() < 0.7  # rows of the tensor are those of the instruction
    turned = nested and rng.random() < 0.5
    names = {"i": "j", "j": "i"} if turned or not nested else {"i": "i", "j": "j"}
    shapes: dict[str, str] = {}

    def access(found: re.Match[str]) -> str:
        tensor = NAMES[found[1]]
        indices = [re.sub("[ij]", lambda x: names[x[0]], p) for p in found[2].split(",") if p]
        extents = [e for e in own[found[1]].split(",") if e]
        extents = [e if tight and n else "40" for n, e in enumerate(extents)]
        if not nested and (tensor == "Z" or rng.random() < 0.5):
            indices, extents = ["i", *indices], ["8", *extents]
        for n, index in enumerate(indices):
            if index == "0":
                indices[n] = rng.choice(["0", "3", "i"])
            elif rng.random() < 0.1:
                near = [
                    f"{index}+1",
                    f"2*({index})",
                    f"9-({index})",
                    f"({index})//2",
                    "0",
                    "i",
                    "j",
                ]
                indices[n] = rng.choice(near)
        shapes[tensor] = f"int32 {tensor}[{','.join(extents)}]"
        return f"{tensor}[{','.join(indices)}]"

    text = re.sub(r"\b([xyz])\[([^]]*)]", access, line)
    ends = {"i": "2", "j": "4"} if tight else {"i": "8", "j": rng.choice(["8", "8", "7"])}
    i, j = (ends[names[x]] for x in "ij") if nested else (ends["i"], ends["j"])
    where = f"where i in 0:{i}, j in 0:{j}"
    return f"def f({', '.join(shapes.values())}) -> (Z) {{ s: {text} {where} }}"


def script(rng: random.Random, name: str, text: str) -> str:
    if is_nested(name):
        turned = rng.random() < 0.5
        steps = [f"tile s: i, j by {'4, 2' if turned else '2, 4'}"]
        loops = "j_i, i_i" if turned else "i_i, j_i"
    else:
        steps, loops = ["split s: j by 4"], "j_i"
    for tensor in "XYZ":
        if f" {tensor}[" in text and rng.random() < 0.35:
            scope = rng.choice(["local", "register"]) if tensor == "Z" else "local"
            steps.append(f"promote s: j_o as {tensor}, {scope}")
    return "\n".join([*steps, f"tensorize s: {loops} as {name}"])


def test_whatever_is_accepted_is_right() -> None:
    declare_all()
    counts: Counter[str] = Counter()
    for seed in range(80):
        rng = random.Random(seed)
        name = rng.choice([*INSTRUCTIONS])
        try:
            text = statement(rng, name)
            steps = script(rng, name, text)
            kernel = fk.compile(text, schedule=steps)
        except FarkasError:
            counts["refused"] += 1
            continue
        counts[name] += 1
        assert f"fk_user_{name}_" in kernel.source
        assert kernel.verify().exact, f"{seed}: {text}\n{steps}\n{kernel.source}"
    assert len(counts) >= 6 and 20 <= counts["refused"] <= 60, counts
