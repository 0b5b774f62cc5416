"""Elements whose bits stay what they are."""

from __future__ import annotations

from codegen.routines.registry import declare

declare(
    "bit_cast",
    "int64_t bytes",
    """\
  if (bytes) memcpy(y0, x0, (size_t)bytes);
  return 0;
""",
)
