"""Links between the pages: files and headings that are not there.

python -m docs.tools.links      lists them, and exits with 1 if there are some
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

#: Pages that the site makes itself.
MADE = {"changes.md": "CHANGELOG.md"}

_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")
_ATTRIBUTE = re.compile(r'\b(?:src|srcset|href)="([^"]+)"')
_FENCED = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)


def broken(root: Path) -> list[str]:
    """The links of all Markdown that lead nowhere, as ``page: link``."""
    found = []
    for page in sorted([*root.glob("*.md"), *(root / "docs").rglob("*.md")]):
        text = _FENCED.sub("", page.read_text(encoding="utf-8"))
        text = re.sub(r"`[^`\n]*`", "", text)
        # What becomes a page of the site is read there, too.
        places = [page, *([root / "docs" / page.name] if page.name in MADE.values() else [])]
        for link in [*_LINK.findall(text), *_ATTRIBUTE.findall(text)]:
            if re.match(r"[a-z]+:", link):
                continue
            if not all(leads_somewhere(place, link) for place in places):
                found.append(f"{page.relative_to(root)}: {link}")
    return found


def leads_somewhere(page: Path, link: str) -> bool:
    """Whether the file of a link exists, and the heading in it."""
    name, _, anchor = link.partition("#")
    target = page.parent / name if name else page
    if not target.exists():
        return name in MADE
    return not anchor or target.suffix != ".md" or anchor in anchors(target)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    text = page.read_text(encoding="utf-8")
    plain = _FENCED.sub("", text)
    found: set[str] = set(re.findall(r'\bid="([^"]+)"', plain))
    for heading in re.findall(r"^#+ (.*?)(?: \{[^}]*\})?$", plain, re.MULTILINE):
        anchor = slug(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading))
        number = 0
        while anchor + (f"-{number}" if number else "") in found:
            number += 1
        found.add(anchor + (f"-{number}" if number else ""))
    return found


def slug(heading: str) -> str:
    """The anchor of a heading: its words in lower case with hyphens."""
    words = re.sub(r"[^\w\s-]", "", heading.lower())
    return re.sub(r"\s", "-", words.strip())


if __name__ == "__main__":
    lines = broken(Path(__file__).resolve().parents[2])
    print("\n".join(lines) or "no link is broken")
    sys.exit(bool(lines))
