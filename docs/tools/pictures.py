"""The pictures of the README and of pages, light and dark or on a background of their own.

    python -m docs.tools.pictures      writes docs/pictures/*.svg

One is drawn from the table of networks in docs/performance.md, one from a refusal, for which the
compiler is asked, and one from a recurrence and its gradient.  A test compares.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from html import escape
from pathlib import Path

import farkas as fk

DOCS = Path(__file__).parents[1]
FOLDER = DOCS / "pictures"

SANS = "system-ui,-apple-system,'Segoe UI',Helvetica,Arial,'DejaVu Sans',sans-serif"
MONO = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"

BLUR = """\
def blur(float32 X[H,W], float32 K[3,3]) -> (Y) {
    Y[y,x] +=! X[y+u,x+v] * K[u,v]
}"""
SOFT_DTW = """\
def soft_dtw(float64 X[N], float64 Y[M]) -> (L) {
    C[i,j] = (X[i] - Y[j]) * (X[i] - Y[j])
    R[0,0] = 0
    R[0,j+1] = 1e9 where j in 0:M
    R[i+1,0] = 1e9 where i in 0:N
    R[i+1,j+1] = C[i,j] - log(exp(-R[i,j]) + exp(-R[i,j+1]) + exp(-R[i+1,j]))
    L[] = R[N,M]
}"""
STEP = "parallelize S0: u"


@dataclass(frozen=True)
class Colours:
    """What a picture is drawn in."""

    text: str
    faint: str
    line: str
    bar: str
    best: str
    wrong: str
    fill: str


THEMES = {
    "light": Colours("#1f2328", "#59636e", "#d1d9e0", "#5c6bc0", "#303f9f", "#c62828", "#f6f8fa"),
    "dark": Colours("#e6edf3", "#9198a1", "#3d444d", "#7986cb", "#9fa8da", "#ff8a80", "#161b22"),
}


def networks() -> list[tuple[str, float]]:
    """Each network of docs/performance.md with the ratio for two threads; the mean is the last."""
    page = (DOCS / "performance.md").read_text(encoding="utf-8")
    table = page.partition("## Networks (suite E)")[2].partition("\n\nBefore ")[0]
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| \**(\d+\.\d+)", table, re.MULTILINE)
    return [(name.strip(), float(ratio)) for name, ratio in rows]


def text(
    x: float, y: float, words: str, colour: str, size: int = 13, *, mono: bool = False,
    anchor: str = "start", bold: bool = False,
) -> str:  # fmt: skip
    """A line of text."""
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x:g}" y="{y:g}" fill="{colour}" font-size="{size}" text-anchor="{anchor}"'
        f' font-family="{MONO if mono else SANS}"{weight} xml:space="preserve">'
        f"{escape(words)}</text>"
    )


def page(width: int, height: int, title: str, parts: list[str]) -> str:
    """A picture as a file."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img"><title>{escape(title)}</title>'
    )
    return "\n".join([head, *parts, "</svg>"]) + "\n"


def bars(c: Colours) -> str:
    """The time of each network over that of the faster of the two libraries."""
    found = networks()
    left, right, top, step = 150, 640, 64, 24
    scale = right - left  # of 1.0
    bottom = top + step * len(found) + 6
    parts = [text(0, 18, "Time of one inference, batch 1, two threads", c.text, 15, bold=True)]
    parts.append(text(0, 38, "over that of the faster of ONNX Runtime and OpenVINO: "
                             "a bar that ends before the line is faster", c.faint, 12))  # fmt: skip
    parts.append(
        f'<line x1="{right}" y1="{top - 10}" x2="{right}" y2="{bottom}" stroke="{c.faint}" '
        'stroke-dasharray="4 3"/>'
    )
    for n, (name, ratio) in enumerate(found):
        y = top + step * n
        mean = n == len(found) - 1
        if mean:
            parts.append(
                f'<line x1="0" y1="{y - 2}" x2="{right + 90}" y2="{y - 2}" stroke="{c.line}"/>'
            )
            y += 4
        colour = c.best if mean else c.bar
        parts.append(text(left - 10, y + 13, name, c.text, anchor="end", bold=mean))
        parts.append(
            f'<rect x="{left}" y="{y + 2}" width="{scale * ratio:.1f}" height="15" rx="2" '
            f'fill="{colour}"/>'
        )
        parts.append(text(left + scale * ratio - 8, y + 13.5, f"{ratio:.2f}", "#ffffff" if c is
                          THEMES["light"] else "#10131f", 12, anchor="end", bold=mean))  # fmt: skip
    parts.append(text(right + 8, top + 2, "the faster", c.faint, 12))
    parts.append(text(right + 8, top + 17, "library: 1.0", c.faint, 12))
    return page(740, bottom + 6, "Networks beside ONNX Runtime and OpenVINO", parts)


def refusal() -> fk.IllegalScheduleError:
    """What the compiler says to a step that would make two threads update one element."""
    try:
        fk.Schedule.of(fk.parse(BLUR)).replay(STEP)
    except fk.IllegalScheduleError as error:
        return error
    raise AssertionError(f"{STEP} is not refused")


def refused(c: Colours) -> str:
    """A refusal: the message, and the two instances with the element that both update."""
    error = refusal()
    lines = textwrap.wrap(f"IllegalScheduleError: {error}", 88)
    parts = [
        f'<rect x="0.5" y="0.5" width="739" height="{74 + 19 * len(lines) + 108}" rx="6" '
        f'fill="{c.fill}" stroke="{c.line}"/>',
        text(18, 32, f'>>> blur.with_schedule("{STEP}")', c.text, mono=True),
    ]
    for n, line in enumerate(lines):
        colour = c.wrong if n == 0 else c.text
        parts.append(text(18, 58 + 19 * n, line, colour, mono=True))
    y = 58 + 19 * len(lines) + 26
    sizes = ", ".join(f"{name}={value}" for name, value in error.sizes.items())
    for n, name in enumerate((error.source, error.sink)):
        x = 18 + 486 * n
        parts.append(
            f'<rect x="{x}" y="{y}" width="200" height="52" rx="4" fill="none" stroke="{c.bar}" '
            'stroke-width="1.5"/>'
        )
        parts.append(text(x + 100, y + 22, name, c.text, mono=True, anchor="middle"))
        parts.append(
            text(x + 100, y + 41, f"on thread {n}, at the same time", c.faint, 12, anchor="middle")
        )
    parts.append(
        f'<rect x="304" y="{y}" width="114" height="52" rx="4" fill="none" stroke="{c.wrong}" '
        'stroke-width="1.5"/>'
    )
    parts.append(text(361, y + 22, error.element, c.text, mono=True, anchor="middle"))
    parts.append(text(361, y + 41, "both update it", c.wrong, 12, anchor="middle"))
    for x1, x2, tip in ((218, 304, -7), (504, 418, 7)):
        parts.append(
            f'<path d="M{x1} {y + 26}H{x2}m{tip} -4l{-tip} 4l{tip} 4" fill="none" '
            f'stroke="{c.wrong}" stroke-width="1.5"/>'
        )
    parts.append(text(361, y + 74, f"first at {sizes}", c.faint, 12, anchor="middle"))
    return page(740, 74 + 19 * len(lines) + 110, "A schedule step that is refused", parts)


def recurrence() -> str:
    """The flow of values in a recurrence and in its gradient."""
    html = fk.dataflow(fk.grad(SOFT_DTW), "R, dR", N=4, M=4).html
    return html[html.index("<svg") : html.index("</svg>")] + "</svg>\n"


def pictures() -> dict[str, str]:
    """Each file of docs/pictures, as it should be."""
    found = {}
    for name, colours in THEMES.items():
        found[f"networks-{name}.svg"] = bars(colours)
        found[f"refusal-{name}.svg"] = refused(colours)
    found["dataflow.svg"] = recurrence()
    return found


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, content in pictures().items():
        (FOLDER / name).write_text(content, encoding="utf-8")
