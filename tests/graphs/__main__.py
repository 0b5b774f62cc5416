"""``python -m tests.graphs START END``: judge the graphs of these seeds."""

from __future__ import annotations

import argparse
import pickle
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

import onnx.printer

from tests.graphs.generate import generate
from tests.graphs.judge import BAD, Judge
from tests.graphs.minimise import minimise


def main() -> int:
    """Print each graph that is refused or ends badly, and the counts."""
    parser = argparse.ArgumentParser(prog="python -m tests.graphs", description=__doc__)
    parser.add_argument("start", type=int)
    parser.add_argument("end", type=int)
    parser.add_argument("--cache", type=Path, help="keep compiled kernels here")
    parser.add_argument("--minimise", action="store_true", help="show a smaller graph as well")
    parser.add_argument("--keep", type=Path, help="write findings as pickled cases to this folder")
    arguments = parser.parse_args()
    kinds: Counter[str] = Counter()
    refusals: Counter[str] = Counter()
    with (
        tempfile.TemporaryDirectory() as temporary,
        Judge(arguments.cache or Path(temporary)) as judge,
    ):
        for seed in range(arguments.start, arguments.end):
            outcome = judge(generate(seed))
            kinds[outcome.kind] += 1
            if kinds.total() % 100 == 0:
                print(f"{kinds.total()} graphs: {dict(kinds.most_common())}", flush=True)
            if outcome.kind == "refused":
                refusals[re.sub(r"\d+", "#", outcome.reason)[:160]] += 1
            if outcome.kind not in (*BAD, "refused", "disputed"):
                continue
            print(outcome, flush=True)
            if arguments.minimise and outcome.kind != "disputed":
                outcome = minimise(outcome, judge)
                print(
                    f"  smaller: {outcome.reason}\n{onnx.printer.to_text(outcome.case.model)}",
                    flush=True,
                )
            if arguments.keep:
                arguments.keep.mkdir(parents=True, exist_ok=True)
                (arguments.keep / f"{seed}.pickle").write_bytes(pickle.dumps(outcome.case))
    print(dict(kinds.most_common()))
    for reason, count in refusals.most_common():
        print(f"{count} refused: {reason}")
    return int(any(kinds[k] for k in BAD))


if __name__ == "__main__":
    sys.exit(main())
