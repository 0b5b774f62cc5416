"""Writing to given indices: of two values for one element, the last one is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from codegen.c.type_names import suffix
from codegen.routines.registry import declare
from poly.ir.dtypes import DType


def _update(types: Sequence[DType], mode: str) -> Mapping[str, str]:
    """How an element is updated with a value, by the mode."""
    dtype = types[0]
    if not mode:
        return {"UPDATE": "*to = value"}
    if mode in ("add", "mul") and dtype.is_float:
        return {"UPDATE": f"*to {'+' if mode == 'add' else '*'}= value"}
    return {"UPDATE": f"*to = fk_{mode}_{suffix(dtype)}(*to, value)"}


declare(
    "scatter_elements",
    "int64_t rank, const int64_t *shape, const int64_t *counts, int64_t axis",
    """\
  int64_t size = 1, count = 1, outer = 1, inner = 1;
  int whole = 1, beyond = 0;
  for (int64_t d = 0; d < rank; d++) {
    size *= shape[d];
    count *= counts[d];
    if (d < axis) outer *= shape[d];
    if (d > axis) inner *= shape[d];
    if (d != axis && counts[d] != shape[d]) whole = 0;
    if (d != axis && counts[d] > shape[d]) beyond = 1;
  }
  if (beyond && count) return 1;
  if (size) memcpy(y0, x0, (size_t)size * sizeof *y0);
  if (whole) {
    for (int64_t o = 0, n = 0; o < outer; o++)
      for (int64_t a = 0; a < counts[axis]; a++)
        for (int64_t i = 0; i < inner; i++, n++) {
          int64_t index = (int64_t)x1[n];
          if (index < 0) index += shape[axis];
          if (index < 0 || index >= shape[axis]) return 1;
          @0@ *const to = y0 + (o * shape[axis] + index) * inner + i;
          const @2@ value = x2[n];
          @UPDATE@;
        }
    return 0;
  }
  const int64_t last = rank - 1, width = counts[last];
  for (int64_t row = 0, n = 0; n < count; row++) {
    int64_t rest = row, place = 0, stride = shape[last], step = 1;
    for (int64_t d = last - 1; d >= 0; d--) {
      if (d == axis) step = stride;
      else place += rest % counts[d] * stride;
      stride *= shape[d];
      rest /= counts[d];
    }
    for (int64_t i = 0; i < width; i++, n++) {
      int64_t index = (int64_t)x1[n];
      if (index < 0) index += shape[axis];
      if (index < 0 || index >= shape[axis]) return 1;
      @0@ *const to = y0 + place + index * step + (axis == last ? 0 : i);
      const @2@ value = x2[n];
      @UPDATE@;
    }
  }
  return 0;
""",
    _update,
)

declare(
    "scatter_nd",
    "int64_t count, int64_t depth, int64_t inner, const int64_t *shape",
    """\
  int64_t size = inner;
  for (int64_t d = 0; d < depth; d++) size *= shape[d];
  if (size) memcpy(y0, x0, (size_t)size * sizeof *y0);
  for (int64_t n = 0; n < count; n++) {
    int64_t place = 0;
    for (int64_t d = 0; d < depth; d++) {
      int64_t index = (int64_t)x1[n * depth + d];
      if (index < 0) index += shape[d];
      if (index < 0 || index >= shape[d]) return 1;
      place = place * shape[d] + index;
    }
    for (int64_t k = 0; k < inner; k++) {
      @0@ *const to = y0 + place * inner + k;
      const @2@ value = x2[n * inner + k];
      @UPDATE@;
    }
  }
  return 0;
""",
    _update,
)

# X[b,o,:,i] with U written from W[b] on.
declare(
    "tensor_scatter",
    "int64_t batch, int64_t outer, int64_t size, int64_t count, int64_t inner, int64_t wraps",
    """\
  const int64_t whole = batch * outer * size * inner;
  if (whole) memcpy(y0, x0, (size_t)whole * sizeof *y0);
  for (int64_t b = 0; b < batch; b++) {
    const int64_t start = (int64_t)x2[b];
    if (!wraps && count && (start < 0 || start > size - count)) return 1;
    for (int64_t o = 0; o < outer; o++)
      for (int64_t n = 0; n < count; n++) {
        int64_t at = start + n;
        if (wraps) at = (at % size + size) % size;
        for (int64_t i = 0; i < inner; i++)
          y0[((b * outer + o) * size + at) * inner + i] =
              x1[((b * outer + o) * count + n) * inner + i];
      }
  }
  return 0;
""",
)

# Each element to the flat index that it came from.
declare(
    "max_unpool",
    "int64_t size, int64_t count",
    """\
  if (size) memset(y0, 0, (size_t)size * sizeof *y0);
  for (int64_t n = 0; n < count; n++) {
    int64_t place = (int64_t)x1[n];
    if (place < 0) place += size;
    if (place < 0 || place >= size) return 1;
    y0[place] = x0[n];
  }
  return 0;
""",
)
