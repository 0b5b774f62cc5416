"""Cells of regions of images."""

from __future__ import annotations

from codegen.routines.registry import declare

# Samples on a grid in each cell, each between its four neighbours; their mean, or their maximum.
# The extent of a cell is rounded as ONNX Runtime rounds it: how many samples it has depends on it.
declare(
    "roi_align",
    "int64_t regions, int64_t images, int64_t channels, int64_t height, int64_t width,\n"
    "    int64_t rows, int64_t columns, int64_t ratio, double scale, double shift, int64_t is_max",
    """\
  if (height < 1 || width < 1) return regions > 0;
  for (int64_t n = 0; n < regions; n++) {
    const int64_t image = (int64_t)x2[n] + (x2[n] < 0 ? images : 0);
    if (image < 0 || image >= images) return 1;
    const @1@ factor = (@1@)scale, moved = (@1@)shift;
    const @1@ left = x1[4 * n] * factor - moved, top = x1[4 * n + 1] * factor - moved;
    @1@ w = x1[4 * n + 2] * factor - moved - left, h = x1[4 * n + 3] * factor - moved - top;
    if (shift == 0) {
      w = (@1@)fmax(w, 1);
      h = (@1@)fmax(h, 1);
    }
    if (!(fabs(w) < 1e9 && fabs(h) < 1e9)) return 1;
    const int64_t ys = ratio ? ratio : (int64_t)fmax(ceil((double)(h / (@1@)rows)), 0);
    const int64_t xs = ratio ? ratio : (int64_t)fmax(ceil((double)(w / (@1@)columns)), 0);
    for (int64_t place = 0; place < channels * rows * columns; place++) {
      const int64_t row = place / columns % rows, column = place % columns;
      const @0@ *const from = x0 + (image * channels + place / (rows * columns)) * height * width;
      double sum = 0, most = -INFINITY;
      for (int64_t s = 0; s < ys * xs; s++) {
        const double y = top + (row + (s / xs + 0.5) / ys) * (double)h / rows;
        const double x = left + (column + (s % xs + 0.5) / xs) * (double)w / columns;
        const int inside = y >= -1 && y <= height && x >= -1 && x <= width;
        const double cy = fmin(fmax(y, 0), height - 1), cx = fmin(fmax(x, 0), width - 1);
        const int64_t y0_ = (int64_t)cy, y1_ = y0_ + 1 < height ? y0_ + 1 : height - 1;
        const int64_t x0_ = (int64_t)cx, x1_ = x0_ + 1 < width ? x0_ + 1 : width - 1;
        const double ry = cy - y0_, rx = cx - x0_;
        const double parts[4] = {
          inside ? from[y0_ * width + x0_] * (1 - ry) * (1 - rx) : 0,
          inside ? from[y0_ * width + x1_] * (1 - ry) * rx : 0,
          inside ? from[y1_ * width + x0_] * ry * (1 - rx) : 0,
          inside ? from[y1_ * width + x1_] * ry * rx : 0,
        };
        for (int k = 0; k < 4; k++) {
          sum += parts[k];
          most = parts[k] > most || parts[k] != parts[k] ? parts[k] : most;
        }
      }
      const double found = is_max ? most : sum / (ys * xs);
      y0[n * channels * rows * columns + place] = (@3@)(ys > 0 && xs > 0 ? found : 0);
    }
  }
  return 0;
""",
)

declare(
    "max_roi_pool",
    "int64_t regions, int64_t images, int64_t channels, int64_t height, int64_t width,\n"
    "    int64_t rows, int64_t columns, double scale",
    """\
  for (int64_t n = 0; n < regions; n++) {
    if (!(fabs((double)x1[5 * n]) < 1e9)) return 1;
    int64_t image = (int64_t)x1[5 * n], corners[4];
    if (image < 0) image += images;
    if (image < 0 || image >= images) return 1;
    for (int k = 0; k < 4; k++) {
      const double corner = floor(x1[5 * n + 1 + k] * scale + 0.5);
      if (!(fabs(corner) < 1e9)) return 1;
      corners[k] = (int64_t)corner;
    }
    const int64_t left = corners[0], top = corners[1];
    const int64_t h = fk_hi(corners[3] - top + 1, 1), w = fk_hi(corners[2] - left + 1, 1);
    for (int64_t place = 0; place < channels * rows * columns; place++) {
      const int64_t row = place / columns % rows, column = place % columns;
      const @0@ *const from = x0 + (image * channels + place / (rows * columns)) * height * width;
      const int64_t y0_ = fk_lo(fk_hi(top + row * h / rows, 0), height);
      const int64_t y1_ = fk_lo(fk_hi(top + ((row + 1) * h + rows - 1) / rows, 0), height);
      const int64_t x0_ = fk_lo(fk_hi(left + column * w / columns, 0), width);
      const int64_t x1_ = fk_lo(fk_hi(left + ((column + 1) * w + columns - 1) / columns, 0), width);
      @2@ most = 0;
      for (int64_t y = y0_; y < y1_; y++)
        for (int64_t x = x0_; x < x1_; x++) {
          const @0@ value = from[y * width + x];
          if ((y == y0_ && x == x0_) || value > most || value != value) most = value;
        }
      y0[n * channels * rows * columns + place] = most;
    }
  }
  return 0;
""",
)
