"""``python -m tests.conformance.gradients [PATTERN] [--json FILE]``: gradients beside torch's."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from poly.errors import FarkasError, GradientError
from tests.conformance.gradient_cases import CASES
from tests.conformance.gradient_check import Case, check, torch


@dataclass(frozen=True)
class Outcome:
    """What became of a case.

    judge : what it was compared with; empty if there is no gradient
    refused : the message if there is no gradient
    reason : what is wrong; empty if it is right
    """

    name: str
    operator: str
    judge: str
    dtype: str
    refused: str = ""
    reason: str = ""


def judge(case: Case) -> Outcome:
    """Run a case."""
    judge = "differences" if case.judge is None else "torch"
    refused = reason = ""
    try:
        check(case)
    except GradientError as error:
        refused = " ".join(str(error).split())
        if not case.refused or not re.search(case.refused, refused):
            reason = f"refused: {refused}"
    except FarkasError as error:
        reason = f"{type(error).__name__}: {error}"
    except AssertionError as error:
        reason = f"wrong: {error}"
    if case.refused and not refused:
        reason = reason or "expected to be refused"
    by = "" if refused else judge
    return Outcome(case.name, case.operator, by, case.dtype.name, refused, reason)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases, print what is not right and the counts."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.gradients",
                                     description=__doc__)  # fmt: skip
    parser.add_argument("pattern", nargs="?", default="", help="a regular expression for names")
    parser.add_argument("--json", type=Path, help="keep the outcomes")
    given = parser.parse_args(arguments)
    if torch is None:
        parser.error("torch is not installed")
    outcomes = [judge(c) for c in CASES if re.search(given.pattern, c.name)]
    wrong = [o for o in outcomes if o.reason]
    for outcome in wrong:
        print(f"{outcome.name}: {outcome.reason}")
    refused = sum(bool(o.refused) for o in outcomes)
    print(
        f"{len(outcomes)} cases of {len({o.operator for o in outcomes})} operators: "
        f"{len(outcomes) - len(wrong) - refused} right, {refused} refused, {len(wrong)} not as "
        f"expected"
    )
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        version = torch.__version__.partition("+")[0]
        found = {"torch": version, "cases": [asdict(o) for o in outcomes]}
        given.json.write_text(json.dumps(found, indent=1))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
