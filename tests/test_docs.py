"""The documentation: its examples run, its links lead somewhere, and the site has all pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import farkas as fk
from docs.tools import blocks, links

ROOT = blocks.ROOT
PAGES = blocks.pages()


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_examples_run_and_print_what_is_shown(path: Path) -> None:
    """`python -m docs.tools.blocks PAGE` writes what they print now."""
    for ran in blocks.run_page(path):
        where = f"{path.name}:{ran.block.line} prints"
        assert ran.agrees, f"{where}\n{ran.printed}"


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_every_block_runs_or_says_that_it_does_not(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for block in blocks.blocks_of(text):
        known = block.kind in blocks.RUN or block.kind.split(" ")[0] in blocks.SHOWN
        assert known, f"{path.name}:{block.line}: a block of kind {block.kind!r}"
    # Four blanks would make a block, too: of no kind.
    assert not re.search(r"^(?![ \t]*([*-]|\d+\.) ).*\n\n    \S", blocks.FENCE.sub("", text), re.M)


def test_links_lead_somewhere() -> None:
    assert links.broken(ROOT) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text(
        "# A b\n\n[x](b.md) [y](#a-b) [z](#no) ![p](p.svg)\n"
    )
    page = "docs" + "/page.md"  # not one of this project
    (tmp_path / "README.md").write_text(
        f'[a]({page}#a-b) [b]({page}#c) <img src="q.svg"> [w](https://example.org/x)\n'
        "```text\n[no](link.md)\n```\n"
    )
    assert links.broken(tmp_path) == [
        f"README.md: {page}#c", "README.md: q.svg",
        *(f"{page}: {link}" for link in ("b.md", "#no", "p.svg")),
    ]  # fmt: skip


def test_the_site_has_all_pages() -> None:
    """mkdocs.yml lists every page, and none that is not there."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    nav = text.partition("\nnav:\n")[2].partition("\n\n")[0]
    listed = re.findall(r"([\w/.-]+\.md)$", nav, re.MULTILINE)
    notebooks = {f"notebooks/{p.stem}.md" for p in (ROOT / "notebooks").glob("*.ipynb")}
    written = {str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md")}
    assert len(listed) == len(set(listed))
    assert set(listed) == written | notebooks | {"changes.md"}


@pytest.mark.parametrize(
    ("expected", "printed", "agrees"),
    [
        ("a\nb\n", "a\nb\n", True),
        ("a\nb\n", "a\nc\n", False),
        ("a …\n", "a b c\n", True),
        ("a …\n", "a b\nc\n", False),
        ("a\n…\nd\n", "a\nb\nc\nd\n", True),
        ("a\n…\n", "a\nb\nc\n", True),
        ("a\n…\n", "a\n", True),
        ("a\n…\n", "ab\n", False),
        ("…\nd\n", "a\nd\n", True),
        ("a (b)\n", "a (b)  \n\n", True),
    ],
)
def test_what_dots_stand_for(expected: str, printed: str, agrees: bool) -> None:
    assert blocks.matches(expected, printed) is agrees


def test_the_api_reference_has_all_public_names() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    described = set(re.findall(r"^::: farkas\.(\w+)$", text, re.MULTILINE))
    errors = {n for n in fk.__all__ if n.endswith("Error")}
    assert described == set(fk.__all__) - errors - {"__version__"}
    assert all(f"`{name}`" in text for name in errors)


def test_messages_that_are_explained_exist() -> None:
    """Each has three words in a row that stand in the code, or is the output of an example."""
    page = (ROOT / "docs" / "guides" / "troubleshooting.md").read_text(encoding="utf-8")
    shown = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    packages = ("farkas", "frontends", "poly", "runtime")
    files = [f for package in packages for f in (ROOT / package).rglob("*.py")]
    code = "\n".join(f.read_text(encoding="utf-8") for f in files)
    messages = re.findall(r"`([^`]+)`", "".join(re.findall(r"^\| (`.*?) \| ", page, re.MULTILINE)))
    assert len(messages) > 15
    for message in messages:
        words = [run.split() for run in re.split(r"[^a-z ]+", message)]
        found = (" ".join(w[n : n + 3]) for w in words for n in range(len(w) - 2))
        assert message in shown or any(three in code for three in found), message


def test_the_site_is_built_strictly() -> None:
    """With ``--quiet``, mkdocs does not count the warnings that ``--strict`` makes errors."""
    (command,) = re.findall(r"mkdocs build.*", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert command == "mkdocs build --strict"
