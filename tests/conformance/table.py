"""``docs/onnx-support.md`` from the outcomes of the official suite and of the gradients.

``python -m tests.conformance.table --suite FILE --gradients FILE docs/onnx-support.md``; without
one of the two files, its part of the page stays as it is.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import onnx

from tests.conformance.gradient_cases import WITHOUT
from tests.conformance.official import cases

_HEAD = """\
# ONNX: what is supported

Written by `python -m tests.conformance.table` from a run of `python -m tests.conformance`, the
official test suite of the onnx package {version}, through `farkas.backend`. Do not edit.

{total} tests, {inside} of them in scope: not strings, sequences, optionals, training, random
numbers, images, operators of the preview domain, or types below 16 bits other than 8-bit integers
and bool. **{passed} of the {inside} pass**, {pure} of them without an opaque operator; of the
others, {outside} pass as well.

## Operators

An operator is a *comprehension* where no test needed a routine or numpy for it, else *opaque*.

| operator | tests in scope | passed | how |
|---|---|---|---|
"""

_GRADIENTS_TITLE = "\n## Gradients\n"
_GRADIENTS = """\

Written from a run of `python -m tests.conformance.gradients`. What is differentiated is the sum of
an operator's outputs, each element times a fixed number, with respect to all operands that are
floats. The judge is `torch.autograd` of torch {version} in float64, or, where torch has no such
operator, central differences of what the operator computes in float64. An element may differ by
1e-7 of the largest one of its gradient, and by 1e-4 where ONNX has no float64.

{total} cases of {operators} operators: {right} are right, {refused} are refused with a
`GradientError`, {wrong} are wrong.

| operator | cases | judge | result |
|---|---|---|---|
"""


def table(outcomes: list[dict[str, Any]]) -> str:
    """The page for the outcomes of all cases."""
    operators = {}
    for case in cases():
        node = case.model.graph.node[0] if case.model.graph.node else None
        domain = f"{node.domain}." if node is not None and node.domain else ""
        operators[case.name] = "" if node is None else domain + node.op_type
    inside = [o for o in outcomes if not o["scope"]]
    passed = [o for o in inside if not o["reason"]]
    text = _HEAD.format(
        version=onnx.__version__,
        total=len(outcomes),
        inside=len(inside),
        passed=len(passed),
        pure=sum(not o["opaque"] for o in passed),
        outside=sum(bool(o["scope"]) and not o["reason"] for o in outcomes),
    )
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for outcome in inside:
        if not outcome["name"].endswith("_expanded") and "_expanded_" not in outcome["name"]:
            rows[operators.get(outcome["name"], "")].append(outcome)
    for name, own in sorted(rows.items()):
        good = sum(not o["reason"] for o in own)
        short = name.rpartition(".")[2]
        how = "opaque" if any(short in o["opaque"] for o in own) else "comprehension"
        text += f"| {name} | {len(own)} | {good} | {how if good else '-'} |\n"
    text += "\n## Tests in scope that do not pass\n\n"
    failed = [o for o in inside if o["reason"]]
    text += "".join(f"- `{o['name']}`: {_short(o['reason'])}\n" for o in failed) or "None.\n"
    text += "\n## Tests out of scope, by what they need\n\n"
    groups: dict[str, int] = defaultdict(int)
    for outcome in outcomes:
        if outcome["scope"]:
            groups[outcome["scope"]] += 1
    text += "".join(f"- {name}: {count}\n" for name, count in sorted(groups.items()))
    return text


def gradients_table(found: dict[str, Any]) -> str:
    """The part of the page about gradients, for what `tests.conformance.gradients` kept."""
    outcomes = found["cases"]
    refused = sum(bool(o["refused"]) and not o["reason"] for o in outcomes)
    wrong = [o for o in outcomes if o["reason"]]
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for outcome in outcomes:
        rows[outcome["operator"]].append(outcome)
    text = _GRADIENTS_TITLE + _GRADIENTS.format(
        version=found["torch"],
        total=len(outcomes),
        operators=len(rows),
        right=len(outcomes) - refused - len(wrong),
        refused=refused,
        wrong=len(wrong),
    )
    for name, own in sorted(rows.items()):
        judges = ", ".join(sorted({o["judge"] for o in own} - {""}, reverse=True)) or "-"
        text += f"| {name} | {len(own)} | {judges} | {_result(own)} |\n"
    text += "\n### Gradients that are wrong\n\n"
    text += "".join(f"- {o['name']}: {_short(o['reason'])}\n" for o in wrong) or "None.\n"
    text += "\n### Operators without a gradient\n\n"
    return text + "".join(f"- {reason}: {', '.join(names)}\n" for reason, names in WITHOUT.items())


def _result(outcomes: list[dict[str, Any]]) -> str:
    """What became of the cases of an operator."""
    right = [o for o in outcomes if not o["refused"] and not o["reason"]]
    narrow = ", in float32" if any(o["dtype"] == "float32" for o in right) else ""
    if len(right) == len(outcomes):
        return f"right{narrow}"
    messages = {o["refused"].rpartition("has no gradient: ")[2] for o in outcomes if o["refused"]}
    parts = [f"{len(right)} right{narrow}"] if right else []
    parts += [f"refused: {_short(message)}" for message in sorted(messages)]
    wrong = sum(bool(o["reason"]) for o in outcomes)
    return ", ".join([*parts, f"{wrong} wrong"] if wrong else parts)


def _short(reason: str) -> str:
    """A reason in one line, without what markdown would take for something else."""
    text = " ".join(reason.replace("|", "/").split())
    return text if len(text) <= 160 else text[:157] + "..."


def page_of(old: str, suite: list[dict[str, Any]] | None, gradients: dict[str, Any] | None) -> str:
    """The page, with the parts that there are outcomes for written anew."""
    first, title, second = old.partition(_GRADIENTS_TITLE)
    first = first if suite is None else table(suite)
    return first + (title + second if gradients is None else gradients_table(gradients))


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.table", description=__doc__)
    parser.add_argument("--suite", type=Path, help="what python -m tests.conformance --json kept")
    parser.add_argument(
        "--gradients", type=Path, help="what python -m tests.conformance.gradients --json kept"
    )
    parser.add_argument("page", type=Path, help="the page to write")
    arguments = parser.parse_args()
    if not (arguments.suite or arguments.gradients):
        parser.error("there are no outcomes: --suite or --gradients is needed")
    files = (arguments.suite, arguments.gradients)
    suite, gradients = (None if f is None else json.loads(f.read_text()) for f in files)
    old = arguments.page.read_text() if arguments.page.exists() else ""
    arguments.page.write_text(page_of(old, suite, gradients))


if __name__ == "__main__":
    main()
