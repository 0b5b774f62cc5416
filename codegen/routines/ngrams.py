"""How often each n-gram of a vocabulary occurs."""

from __future__ import annotations

from codegen.routines.registry import declare

# x1 : the grams of one word, then those of two, and so on, each in order; x2 : their columns;
# x3 : factors of columns; starts : of the grams of each length, in x1 and in x2
declare(
    "ngrams",
    "int64_t rows, int64_t width, int64_t least, int64_t most, int64_t skips, int64_t columns,\n"
    "    const int64_t *words, const int64_t *numbers, int64_t caps, int64_t weighs",
    """\
  for (int64_t row = 0; row < rows; row++) {
    const @0@ *const x = x0 + row * width;
    float *const y = y0 + row * columns;
    for (int64_t c = 0; c < columns; c++) y[c] = 0;
    for (int64_t step = 1; step <= skips + 1; step++)
      for (int64_t n = step == 1 ? least : fk_hi(least, 2); n <= most; n++)
        for (int64_t at = 0; at + step * (n - 1) < width; at++) {
          int64_t low = numbers[n - 1], high = numbers[n];
          while (low < high) {
            const int64_t middle = low + (high - low) / 2;
            const int64_t *const gram = x1 + words[n - 1] + (middle - numbers[n - 1]) * n;
            int64_t k = 0;
            while (k < n && gram[k] == x[at + k * step]) k++;
            if (k == n) {
              y[x2[middle]] += 1;
              break;
            }
            if (gram[k] < x[at + k * step]) low = middle + 1;
            else high = middle;
          }
        }
    for (int64_t c = 0; c < columns; c++) {
      if (caps && y[c] > 1) y[c] = 1;
      if (weighs) y[c] *= x3[c];
    }
  }
  return 0;
""",
)
