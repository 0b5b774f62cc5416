"""The greatest or the least elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from codegen.c.type_names import PATTERNS
from codegen.routines.registry import declare
from poly.ir.dtypes import DType


def _compared(types: Sequence[DType], mode: str) -> Mapping[str, str]:
    """How elements are loaded, and whether `a` precedes `b`: NaN is greater than all others, and of
    equals the first one precedes.
    """
    name = types[0].name
    load = f"fk_{PATTERNS[name]}_load" if name in PATTERNS else ""
    nan = " || (p != p && q == q)" if types[0].is_float else ""
    other = " || (q != q && p == p)" if types[0].is_float else ""
    first, second = f"p > q{nan}", f"q > p{other}"
    if mode == "least":
        first, second = second, first
    return {
        "LOAD": load,
        "C": "float" if load else "@0@",
        "FIRST": f"({first})",
        "SECOND": f"({second})",
    }


# The k best so far are a heap with the worst one at its root; then it is sorted in place.
_SIFT = """\
        for (int64_t child; (child = 2 * here + 1) < @END@; here = child) {
          if (child + 1 < @END@) {
            const int64_t a = at[child * inner], b = at[(child + 1) * inner];
            const @C@ p = @LOAD@(x[a * inner]), q = @LOAD@(x[b * inner]);
            if (@FIRST@ || (!@SECOND@ && a < b)) child++;
          }
          const int64_t a = moved, b = at[child * inner];
          const @C@ p = @LOAD@(x[a * inner]), q = @LOAD@(x[b * inner]);
          if (!(@FIRST@ || (!@SECOND@ && a < b))) break;
          at[here * inner] = b;
        }
        at[here * inner] = moved;
"""

declare(
    "top_k",
    "int64_t outer, int64_t size, int64_t inner, int64_t k",
    f"""\
  for (int64_t o = 0; o < outer; o++)
    for (int64_t i = 0; i < inner; i++) {{
      const @0@ *const x = x0 + o * size * inner + i;
      int64_t *const at = y1 + o * k * inner + i;
      for (int64_t n = 0; n < k; n++) at[n * inner] = n;
      for (int64_t root = k / 2 - 1; root >= 0; root--) {{
        int64_t here = root;
        const int64_t moved = at[root * inner];
{_SIFT.replace("@END@", "k")}      }}
      for (int64_t n = k; k && n < size; n++) {{
        const int64_t a = n, b = at[0];
        const @C@ p = @LOAD@(x[a * inner]), q = @LOAD@(x[b * inner]);
        if (!@FIRST@) continue;
        int64_t here = 0;
        const int64_t moved = n;
{_SIFT.replace("@END@", "k")}      }}
      for (int64_t end = k - 1; end > 0; end--) {{
        int64_t here = 0;
        const int64_t moved = at[end * inner];
        at[end * inner] = at[0];
{_SIFT.replace("@END@", "end")}      }}
      for (int64_t n = 0; n < k; n++) y0[(o * k + n) * inner + i] = x[at[n * inner] * inner];
    }}
  return 0;
""",
    _compared,
)
