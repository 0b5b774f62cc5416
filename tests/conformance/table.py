"""``docs/onnx-support.md`` from the outcomes of the official suite.

``python -m tests.conformance.table OUTCOMES.json docs/onnx-support.md``
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import onnx

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

An operator is a *comprehension* where no test needed numpy for it, else *opaque*.

| operator | tests in scope | passed | how |
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


def _short(reason: str) -> str:
    """A reason in one line, without what markdown would take for something else."""
    text = " ".join(reason.replace("|", "/").split())
    return text if len(text) <= 160 else text[:157] + "..."


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.table", description=__doc__)
    parser.add_argument("outcomes", type=Path, help="what python -m tests.conformance --json kept")
    parser.add_argument("page", type=Path, help="the page to write")
    arguments = parser.parse_args()
    arguments.page.write_text(table(json.loads(arguments.outcomes.read_text())))


if __name__ == "__main__":
    main()
