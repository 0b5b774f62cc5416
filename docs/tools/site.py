"""What mkdocs needs to know of these pages: hooks, see mkdocs.yml.

Fences have more words than mkdocs takes (see `docs.tools.blocks`), lists are indented as GitHub
wants them, and notebooks are pages, too, with the outputs that are stored in them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]

#: How kinds of blocks are highlighted.
_LEXERS = {"": "text", "farkas": "text", "script": "text"}

#: The outputs of notebooks, by page: HTML that Markdown must not touch.
_outputs: dict[str, list[str]] = {}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made: notebooks, and the list of changes."""
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        name = f"notebooks/{path.stem}.md"
        files.append(File.generated(config, name, content=notebook(name, path)))
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "changes.md", content=changes))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """A page as mkdocs reads Markdown."""
    if page.file.src_uri == "index.md":
        page.meta["hide"] = ["navigation"]
    elif page.file.src_uri == "changes.md":
        page.meta["search"] = {"exclude": True}
    elif page.file.src_uri.startswith("guides/"):
        page.meta["search"] = {"boost": 2}
    depth = page.file.src_uri.count("/")
    up = "../" * depth

    def link(match: re.Match[str]) -> str:
        target = match[1]
        found = re.fullmatch(r"(?:\.\./)*notebooks(?:/(\w+)\.ipynb)?", target)
        if found:
            return f"]({up}notebooks/{found[1] or '1_first_steps'}.md)"
        if re.fullmatch(r"(?:\.\./)*README\.md", target):
            return f"]({up}index.md)"
        return match[0]

    parts = re.split(r"(^ *```.*?^ *```$)", markdown, flags=re.DOTALL | re.MULTILINE)
    kind = ""
    for n, part in enumerate(parts):
        if n % 2:
            before, kind = kind, part.split("\n")[0].strip("` ")
            parts[n] = re.sub(r"^( *```)([^\n]*)", _fence, part, count=1)
            if before == "python refused" and kind == "text output":
                parts[n] = parts[n].replace("```text", "```{ .text .wrap }", 1)
        else:
            part = re.sub(r"\]\(([^()\s]+)\)", link, part)
            parts[n] = re.sub(r"^((?:  )+)(?=\* )", lambda m: 2 * m[1], part, flags=re.MULTILINE)
    return _side_by_side("".join(parts))


def _side_by_side(markdown: str) -> str:
    """Loops before and after a step in two columns."""
    block = r"(```text\n.*?^```\n)"
    return re.sub(
        rf"^before:\n\n{block}\nafter:\n\n{block}",
        '<div class="before-after" markdown>\n<div markdown>\nbefore:\n\n\\1\n</div>\n'
        "<div markdown>\nafter:\n\n\\2\n</div>\n</div>\n",
        markdown,
        flags=re.DOTALL | re.MULTILINE,
    )


def _fence(match: re.Match[str]) -> str:
    word, *more = match[2].split(" ")
    if word == "text" and more[1:]:  # as in `text output c`
        word = more[1]
    return match[1] + _LEXERS.get(word, word)


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """A page with the outputs of its notebook."""
    outputs = _outputs.get(page.file.src_uri, [])
    html = html.replace("<code>\\|</code>", "<code>|</code>")  # in a table, it has to be escaped
    # Long names in tables may be broken behind a dot or an underscore.
    html = re.sub(
        r"(?<=<code>)[\w.]{16,}(?=</code>)", lambda m: re.sub(r"([._])", r"\1<wbr>", m[0]), html
    )
    return re.sub(
        r'<div class="nb-output" data-output="(\d+)"></div>',
        lambda m: f'<div class="nb-output" data-search-exclude>{outputs[int(m[1])]}</div>',
        html,
    )


def notebook(name: str, path: Path) -> str:
    """A notebook as Markdown, with marks where its HTML goes."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    found = _outputs[name] = []
    parts: list[str] = []
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source.replace("](../docs/", "](../"))
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            parts.append(_output(output, found))
    return "\n\n".join(parts)


def _output(output: dict[str, Any], found: list[str]) -> str:
    if output["output_type"] == "stream":
        return f"```text\n{''.join(output['text']).rstrip()}\n```"
    data = output["data"]
    for kind in ("text/html", "image/svg+xml"):
        if kind in data:
            found.append("".join(data[kind]))
            return f'<div class="nb-output" data-output="{len(found) - 1}"></div>'
    return f"```text\n{''.join(data['text/plain']).rstrip()}\n```"
