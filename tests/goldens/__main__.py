"""``python -m tests.goldens``: what differs from the goldens, and how to renew them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import click

from tests.goldens.cases import groups
from tests.goldens.record import Record, difference, renew, renew_versions


def _examine(folder: Path | None, renewed: bool, group: str) -> str:
    """The difference of a group, which is renewed, or has its texts written, if that is asked."""
    records = groups()[group]()
    found = difference(group, records)
    if renewed:
        renew(group, records)
    if folder is not None:
        _write_texts(folder / group, records)
    return found


def _write_texts(folder: Path, records: Mapping[str, Record]) -> None:
    for case, record in records.items():
        path = folder / case.replace(", ", "_").replace(" ", "_")
        path.mkdir(parents=True, exist_ok=True)
        for name, (text, _) in record.generated.items():
            (path / name.replace(" ", "_")).write_text(text)


_EPILOG = """\b
Examples:
  python -m tests.goldens                       print the differences
  python -m tests.goldens gpu --renew           print them, and record what is generated now
  python -m tests.goldens gpu --texts FOLDER    write the texts, for diff -r
"""


@click.command(epilog=_EPILOG)
@click.argument("names", nargs=-1, metavar="[GROUP]...")
@click.option("--renew", "renewed", is_flag=True, help="Record what is generated now.")
@click.option("--texts", "folder", type=click.Path(path_type=Path), help="Write the texts there.")
@click.option("--jobs", type=int, default=2, show_default=True, help="Processes.")
def main(names: tuple[str, ...], renewed: bool, folder: Path | None, jobs: int) -> None:
    """Print what differs from the goldens of all groups, or of some."""
    unknown = sorted(set(names) - set(groups()))
    if unknown:
        raise click.UsageError(f"there is no group {unknown[0]}; there are {', '.join(groups())}")
    with ProcessPoolExecutor(jobs) as pool:
        chosen = names or tuple(groups())
        found = list(pool.map(partial(_examine, folder, renewed), chosen))
    if renewed and not names:
        renew_versions()
    for text in filter(None, found):
        print(text)
    different = sum(map(bool, found))
    print(f"{len(chosen) - different} groups as recorded, {different} different", file=sys.stderr)
    sys.exit(bool(different) and not renewed)


if __name__ == "__main__":
    main()
