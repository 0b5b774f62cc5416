"""Random recurrences of several states, in the language."""

from __future__ import annotations

import re

from tests.differential.program_parts import Seeded


def block_text(seed: int) -> str:
    """Two or three states, each made of what the others are now or were a step before, and a sum
    over one of them in between; perhaps for several batches at once.  Some may be overwritten by
    each step, and something may be added to by all.
    """
    c = Seeded(seed)
    batches = c.pick(("", "", "b,"))
    extents = "B," if batches else ""
    steps, hidden = c.pick(("T", "T", "5")), c.pick(("M", "M", "16", "9"))
    dtype = c.pick(("float32", "float32", "float64", "int32", "float16"))
    factor = "" if dtype == "int32" else "0.25 * "
    states = "PQR"[: c.integer(2, 3)]
    place = c.pick((f"t,{batches}", f"{batches}t,"))
    order = (
        f"{steps},{extents}" if place.startswith("t") else f"{extents}{steps},",
        f"{steps}+1,{extents}" if place.startswith("t") else f"{extents}{steps}+1,",
    )
    later, first = place.replace("t,", "t+1,"), place.replace("t,", "0,")
    j = c.pick(("j", "j", f"{hidden}-1-j"))
    lines = [f"{s}[{first}j] = {n}" + _where(batches, hidden) for n, s in enumerate(states)]
    weight = c.pick((f"W[{'b,' if c.chance(30) and batches else ''}j,k]", "W[k,j]"))
    op = c.pick(("+=!", "+=!", "max=!"))
    sources = list(states)
    inside = [f"S[{place}j] {op} {weight} * {c.pick(states)}[{place}k]"]
    made: list[str] = []
    for s in states:
        terms = [f"{c.pick(sources)}[{place}{j}]", f"X[{place}j]", f"S[{place}j]"]
        terms += [f"{m}[{later}{c.pick(('j', j))}]" for m in made]
        joined = c.pick((" + ", " - ")).join(c.pick(terms) for _ in range(c.integer(2, 3)))
        inside.append(f"{s}[{later}j] = {factor}({joined})")
        made.append(s)
    if c.chance(30):
        inside.append(inside.pop(0))  # the sum of a step is for the next one
        lines.append(f"S[{first}j] = 1" + _where(batches, hidden))
        inside[-1] = inside[-1].replace(f"S[{place}", f"S[{later}")
    shape = f"{'B,' if weight.startswith('W[b') else ''}{hidden},{hidden}"
    outputs = c.pick((states, states[:1], states[-1:]))
    extra = f"{order[1] if 'S[' + later in ' '.join(inside) else order[0]}{hidden}"
    tensors = {n: f"{order[1]}{hidden}" for n in states} | {"S": extra}
    if c.chance(40):
        value = f"{c.pick(states)}[{c.pick((place, later))}j] * X[{place}k]"
        tensors["A"] = f"{extents}{hidden},{hidden}"
        lines.append(f"A[{batches}j,k] = 1{_where(batches, hidden)}, k in 0:{hidden}")
        inside.append(f"A[{batches}j,k] {c.pick(('+=', '+=', 'min='))} {value}")
        outputs = (*outputs, "A")
    sizes = [x for x in ("T", "B", "M") if x in f"{order[1]}{hidden}".replace("+1", "")]
    text = "\n".join(
        [
            f"def f{'[' + ', '.join(sizes) + ']' if sizes else ''}"
            f"({dtype} X[{order[0]}{hidden}], {dtype} W[{shape}])"
            f" -> ({', '.join(f'{dtype} {n}[{tensors[n]}]' for n in outputs)}) {{",
            *(f"    {dtype} {n}[{shape}]" for n, shape in tensors.items() if n not in outputs),
            *(f"    {line}" for line in lines),
            f"    for t in 0:{steps} {{",
            *(f"        {line}" for line in inside),
            "    }",
            "}",
        ]
    )
    for name in (*states, "S"):
        if c.chance(15):
            text = re.sub(rf"\b{name}\[(b,|B,)?(?:t\+1|t|0|T\+1|T|5\+1|5),", rf"{name}[\1", text)
    return text


def _where(batches: str, hidden: str) -> str:
    return f" where {'b in 0:B, ' if batches else ''}j in 0:{hidden}"
