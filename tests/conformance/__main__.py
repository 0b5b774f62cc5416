"""``python -m tests.conformance [PATTERN] [--json FILE] [--jobs N]``: run the official suite."""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from tests.conformance.exported import check_exported
from tests.conformance.official import Case, Outcome, cases, judged, run_case

Run = Callable[[Case], Outcome]


def run_part(pattern: str, tenth: int | None, first: int, step: int, file: Path, run: Run) -> None:
    """Run every `step`-th case from `first` on, and write an outcome a line.

    tenth : the seed that chooses a tenth of the cases
    """
    chosen = [c for c in cases() if re.search(pattern, c.name)]
    if tenth is not None:
        chosen = random.Random(tenth).sample(chosen, len(chosen) // 10)
    with file.open("w") as lines:
        for case in chosen[first::step]:
            lines.write(json.dumps(asdict(run(case))) + "\n")
            lines.flush()


def run_parts(pattern: str, jobs: int, options: Sequence[str]) -> list[Outcome]:
    """The outcomes of all cases, run by so many processes, sorted by name."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{n}.jsonl" for n in range(jobs)]
        command = [sys.executable, "-m", "tests.conformance", pattern, *options]
        parts = [
            subprocess.Popen([*command, "--part", str(n), str(jobs), str(file)])
            for n, file in enumerate(files)
        ]
        for part in parts:
            if part.wait():
                raise SystemExit(f"a process of the suite ended with {part.returncode}")
        found = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    outcomes = [Outcome(**{**o, "opaque": tuple(o["opaque"])}) for o in found]
    return sorted(outcomes, key=lambda o: o.name)


def main() -> int:
    """Run the cases, print what did not pass and the counts."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("pattern", nargs="?", default="", help="a regular expression for names")
    parser.add_argument("--json", type=Path, help="keep the outcomes")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--quiet", action="store_true", help="print only the counts")
    parser.add_argument("--open", action="store_true", help="open sizes for all inputs")
    parser.add_argument("--target", default="cpu", help="where they run, as of compile_onnx")
    parser.add_argument(
        "--export", action="append", metavar="CC", default=[],
        help="through exported C, compiled with this compiler; repeatable",
    )  # fmt: skip
    parser.add_argument("--isa", default="x86-64-v3", help="the instruction set of exported C")
    parser.add_argument("--runner", default="", help="what runs programs of another machine")
    parser.add_argument("--tenth", type=int, metavar="SEED", help="a tenth of the cases")
    parser.add_argument("--part", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    options = ["--target", arguments.target, "--isa", arguments.isa]
    options += ["--runner", arguments.runner] if arguments.runner else []
    options += ["--tenth", str(arguments.tenth)] if arguments.tenth is not None else []
    options += ["--open"] if arguments.open else []
    options += [word for cc in arguments.export for word in ("--export", cc)]
    if arguments.part:
        first, step, file = arguments.part
        run = partial(run_case, is_open=arguments.open, target=arguments.target)
        if arguments.export:
            check = partial(
                check_exported, compilers=arguments.export, isa=arguments.isa,
                is_open=arguments.open, runner=arguments.runner.split(),
            )  # fmt: skip
            run = partial(judged, check=check)
        run_part(arguments.pattern, arguments.tenth, int(first), int(step), Path(file), run)
        return 0
    if arguments.json:
        try:
            arguments.json.parent.mkdir(parents=True, exist_ok=True)
            arguments.json.touch()
        except OSError as error:
            parser.error(f"{arguments.json} cannot be written: {error.strerror}")
    outcomes = run_parts(arguments.pattern, arguments.jobs, options)
    inside = [o for o in outcomes if not o.scope]
    passed = [o for o in inside if not o.reason]
    if not arguments.quiet:
        for outcome in inside:
            if outcome.reason:
                print(f"{outcome.name}: {outcome.reason}")
    kinds = Counter(re.split(r"[:(\n]", o.reason)[0] for o in inside if o.reason)
    pure = sum(not o.opaque for o in passed)
    print(
        f"{len(outcomes)} tests, {len(inside)} in scope, {len(passed)} passed, {pure} of them "
        f"without an opaque operator; {sum(not o.reason for o in outcomes)} passed of all"
    )
    print("not passed:", dict(kinds.most_common()))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(o) for o in outcomes], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
