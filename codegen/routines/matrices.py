"""Determinants and inverses of square matrices, in double precision, by elimination with pivots."""

from __future__ import annotations

from codegen.routines.registry import declare

_LOADED = """\
    for (int64_t n = 0; n < size * size; n++) a[n] = (double)x0[matrix * size * size + n];
"""
_PIVOT = """\
      int64_t pivot = c;
      for (int64_t r = c + 1; r < size; r++)
        if (fabs(a[r * size + c]) > fabs(a[pivot * size + c])) pivot = r;
"""

declare(
    "determinant",
    "double *a, int64_t count, int64_t size",
    f"""\
  for (int64_t matrix = 0; matrix < count; matrix++) {{
{_LOADED}    double product = 1;
    for (int64_t c = 0; c < size; c++) {{
{_PIVOT}      if (pivot != c) {{
        product = -product;
        for (int64_t k = 0; k < size; k++) {{
          const double kept = a[c * size + k];
          a[c * size + k] = a[pivot * size + k];
          a[pivot * size + k] = kept;
        }}
      }}
      product *= a[c * size + c];
      if (a[c * size + c] == 0) break;
      for (int64_t r = c + 1; r < size; r++) {{
        const double factor = a[r * size + c] / a[c * size + c];
        for (int64_t k = c; k < size; k++) a[r * size + k] -= factor * a[c * size + k];
      }}
    }}
    y0[matrix] = (@1@)product;
  }}
  return 0;
""",
)

declare(
    "inverse",
    "double *a, int64_t count, int64_t size",
    f"""\
  double *const b = a + size * size;
  for (int64_t matrix = 0; matrix < count; matrix++) {{
{_LOADED}    for (int64_t n = 0; n < size * size; n++) b[n] = n / size == n % size;
    for (int64_t c = 0; c < size; c++) {{
{_PIVOT}      for (int64_t k = 0; pivot != c && k < size; k++) {{
        const double kept = a[c * size + k], other = b[c * size + k];
        a[c * size + k] = a[pivot * size + k];
        b[c * size + k] = b[pivot * size + k];
        a[pivot * size + k] = kept;
        b[pivot * size + k] = other;
      }}
      const double scale = a[c * size + c];
      if (scale == 0) return 1;
      for (int64_t k = 0; k < size; k++) {{
        a[c * size + k] /= scale;
        b[c * size + k] /= scale;
      }}
      for (int64_t r = 0; r < size; r++) {{
        const double factor = a[r * size + c];
        for (int64_t k = 0; r != c && k < size; k++) {{
          a[r * size + k] -= factor * a[c * size + k];
          b[r * size + k] -= factor * b[c * size + k];
        }}
      }}
    }}
    for (int64_t n = 0; n < size * size; n++) y0[matrix * size * size + n] = (@1@)b[n];
  }}
  return 0;
""",
)
