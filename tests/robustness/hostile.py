"""C text without its comments, as a compiler reads it, with and without trigraphs."""

from __future__ import annotations

_TRIGRAPHS = {"=": "#", "/": "\\", "'": "^", "(": "[", ")": "]", "!": "|", "<": "{", ">": "}",
              "-": "~"}  # fmt: skip

#: Each would run something if it were not text in a comment, or break the C around it.
NAMES = (
    "*/ system(\"HOSTILE\"); /*",
    "**//*/ HOSTILE */ /*",
    "??/\nHOSTILE",
    "*??/\n/ HOSTILE",
    "*\\\n/ HOSTILE(); //",
    "HOSTILE\\",
    "\r\n#include \"HOSTILE\"\n",
    "\u2028HOSTILE\u2029\x85\x0b\x0c",
    "*\u200b/ HOSTILE",
    "HOSTILE'\"%s%n{}$(rm)`",
    "\x1b[31mHOSTILE\x07",
    "HOSTILE" * 500,
    "/*/HOSTILE",
    "∀HOSTILE∃",
)  # fmt: skip


def without_comments(text: str, trigraphs: bool) -> str:
    """What is left of C text after its first three phases of translation."""
    if trigraphs:
        out, at = [], 0
        while at < len(text):
            if text.startswith("??", at) and text[at + 2 : at + 3] in _TRIGRAPHS:
                out.append(_TRIGRAPHS[text[at + 2]])
                at += 3
            else:
                out.append(text[at])
                at += 1
        text = "".join(out)
    text = text.replace("\\\r\n", "").replace("\\\n", "")
    out, at = [], 0
    while at < len(text):
        if text.startswith("/*", at):
            end = text.index("*/", at + 2)
            at = end + 2
            out.append(" ")
        elif text.startswith("//", at):
            at = text.find("\n", at)
            at = len(text) if at < 0 else at
        else:
            out.append(text[at])
            at += 1
    return "".join(out)
