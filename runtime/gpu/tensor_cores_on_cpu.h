/* Instructions of tensor cores on a CPU, for `cuda_on_cpu.h`.
 *
 * All 32 threads of a warp have to come to an instruction together; each shows the others what it
 * holds of a matrix.  Which thread holds which element is not said in CUDA either: here a thread
 * loads all of a matrix, so that a sanitizer sees that any of it may be read by any thread, and
 * keeps eight elements that lie apart.
 */
struct fk_sums { float x[8]; };
template <int kind> struct fk_matrix { float x[8]; };
enum { FK_IS_F16, FK_IS_BF16, FK_IS_TF32 };
typedef fk_matrix<FK_IS_F16> fk_f16_matrix;
typedef fk_matrix<FK_IS_BF16> fk_bf16_matrix;
typedef fk_matrix<FK_IS_TF32> fk_tf32_matrix;

template <int kind> static float fk_operand(unsigned short x)
{ return kind == FK_IS_F16 ? fk_f16_load(x) : fk_bf16_load(x); }
/* To nearest with 10 bits behind the point, halves away from zero. */
template <int kind> static float fk_operand(float f)
{
  unsigned u;
  memcpy(&u, &f, 4);
  if ((u & 0x7f800000) != 0x7f800000) u = (u + 0x1000) & ~0x1fffu;
  memcpy(&f, &u, 4);
  return f;
}

/* Element n of a thread is element 8 n' + n of the matrix, with n' a scrambled lane. */
FK_PLAIN static int fk_element(int lane, int n, int count) { return (n * 32 + lane * 5 % 32) % count; }

/* Where threads of a warp wait for each other; no lines of a text. */
enum { FK_SHOWS = -4, FK_HAS_SEEN, FK_LOADS_MATRIX, FK_STORES_MATRIX };
static const unsigned FK_ALL_LANES = 0xffffffffu;

/* The matrix of which the lanes of a warp hold parts. */
template <class M> FK_PLAIN static void fk_gather(const M &own, float *whole, int count) {
  const fk_fiber *warp = fk_now - fk_now->lane;
  const void *shown = &own;
  memcpy(&fk_now->given, &shown, sizeof shown);
  fk_now->from = 0;
  fk_meet(FK_ALL_LANES, FK_SHOWS);
  for (int k = 0; k < warpSize; k++) {
    memcpy(&shown, &warp[k].given, sizeof shown);
    for (int n = 0; n < 8 && n * 32 < count; n++)
      whole[fk_element(k, n, count)] = ((const M *)shown)->x[n];
  }
  fk_meet(FK_ALL_LANES, FK_HAS_SEEN); /* nobody changes what others still look at */
}

/* rows x columns elements, rows (or columns, if `turned`) `stride` apart. */
template <int kind, class M, class T>
static M fk_load_matrix(const T *p, int stride, bool turned, int rows, int columns) {
  float whole[256];
  M m = {};
  fk_meet(FK_ALL_LANES, FK_LOADS_MATRIX);
  for (int r = 0; r < rows; r++)
    for (int c = 0; c < columns; c++) {
      const T *at = &p[turned ? c * stride + r : r * stride + c];
      whole[r * columns + c] = kind < 0 ? (float)*at : fk_operand<kind>(*at);
    }
  for (int n = 0; n * 32 < rows * columns; n++)
    m.x[n] = whole[fk_element((int)fk_now->lane, n, rows * columns)];
  return m;
}

template <class M> FK_PLAIN static void fk_multiply(fk_sums &c, const M &a, const M &b, int depth) {
  float left[256], right[256], sums[256];
  fk_gather(a, left, 16 * depth);
  fk_gather(b, right, 16 * depth);
  fk_gather(c, sums, 256);
  for (int n = 0; n < 8; n++) {
    const int e = fk_element((int)fk_now->lane, n, 256);
    float sum = sums[e];
    for (int k = 0; k < depth; k++) sum += left[e / 16 * depth + k] * right[16 * k + e % 16];
    c.x[n] = sum;
  }
}

static void fk_store_matrix(float *p, int stride, bool turned, const fk_sums &c) {
  fk_meet(FK_ALL_LANES, FK_STORES_MATRIX);
  for (int n = 0; n < 8; n++) {
    const int e = fk_element((int)fk_now->lane, n, 256);
    p[turned ? e % 16 * stride + e / 16 : e / 16 * stride + e % 16] = c.x[n];
  }
}

static inline fk_sums fk_zeros() { return {}; }

/* The first lines of a matrix, up to a length, by way of memory of the warp. */
#define FK_PARTS(kind, major)                                                                      \
  static inline fk_sums fk_##kind##_sums_part_##major(const float *p, long long stride,            \
                                                      float *own, long long lines,                 \
                                                      long long length) {                          \
    for (int n = (int)fk_now->lane; n < 256; n += 32)                                              \
      own[n] = n / 16 < lines && n % 16 < length ? p[n / 16 * stride + n % 16] : 0.0f;             \
    __syncwarp();                                                                                  \
    return fk_##kind##_sums_##major##_shared(own, 16);                                             \
  }                                                                                                \
  static inline void fk_##kind##_store_part_##major(float *p, long long stride, const fk_sums &c,  \
                                                    float *own, long long lines,                   \
                                                    long long length) {                            \
    fk_##kind##_store_##major##_shared(own, 16, c);                                                \
    __syncwarp();                                                                                  \
    for (int n = (int)fk_now->lane; n < 256; n += 32)                                              \
      if (n / 16 < lines && n % 16 < length) p[n / 16 * stride + n % 16] = own[n];                 \
    __syncwarp();                                                                                  \
  }                                                                                                \
  FK_WITHIN(kind, major, shared)                                                                   \
  FK_WITHIN(kind, major, global)
#define FK_WITHIN(kind, major, space)                                                              \
  static inline void fk_##kind##_store_within_##major##_##space(                                   \
      float *p, int stride, const fk_sums &c, float *own, long long lines, long long length) {     \
    if (lines >= 16 && length >= 16) fk_##kind##_store_##major##_##space(p, stride, c);            \
    else fk_##kind##_store_part_##major(p, stride, c, own, lines, length);                         \
  }

#define FK_LOADS(kind, tag, T, depth, major, turned, space)                                        \
  static inline fk_##kind##_matrix fk_##kind##_a_##major##_##space(const T *p, int stride)         \
  { return fk_load_matrix<tag, fk_##kind##_matrix>(p, stride, turned, 16, depth); }                \
  static inline fk_##kind##_matrix fk_##kind##_b_##major##_##space(const T *p, int stride)         \
  { return fk_load_matrix<tag, fk_##kind##_matrix>(p, stride, turned, depth, 16); }                \
  static inline fk_sums fk_##kind##_sums_##major##_##space(const float *p, int stride)             \
  {                                                                                                \
    const fk_sums c = fk_load_matrix<-1, fk_sums>(p, stride, turned, 16, 16);                      \
    __syncwarp();                                                                                  \
    return c;                                                                                      \
  }                                                                                                \
  static inline void fk_##kind##_store_##major##_##space(float *p, int stride, const fk_sums &c)   \
  { fk_store_matrix(p, stride, turned, c); }
#define FK_MULTIPLIES(kind, depth, of_a, of_b)                                                     \
  static inline void fk_##kind##_multiply_##of_a##_##of_b(fk_sums &c, const fk_##kind##_matrix &a, \
                                                          const fk_##kind##_matrix &b)             \
  { fk_multiply(c, a, b, depth); }
#define FK_TENSOR_CORES(kind, tag, T, depth)                                                       \
  FK_LOADS(kind, tag, T, depth, row, false, shared)                                                \
  FK_LOADS(kind, tag, T, depth, row, false, global)                                                \
  FK_LOADS(kind, tag, T, depth, col, true, shared)                                                 \
  FK_LOADS(kind, tag, T, depth, col, true, global)                                                 \
  FK_PARTS(kind, row)                                                                              \
  FK_PARTS(kind, col)                                                                              \
  FK_MULTIPLIES(kind, depth, row, row)                                                             \
  FK_MULTIPLIES(kind, depth, row, col)                                                             \
  FK_MULTIPLIES(kind, depth, col, row)                                                             \
  FK_MULTIPLIES(kind, depth, col, col)
FK_TENSOR_CORES(f16, FK_IS_F16, unsigned short, 16)
FK_TENSOR_CORES(bf16, FK_IS_BF16, unsigned short, 16)
FK_TENSOR_CORES(tf32, FK_IS_TF32, float, 8)

#define FK_ROUNDS(kind, major)                                                                     \
  static inline void fk_##kind##_round_part_##major(unsigned short *p, long long stride,           \
                                                    const fk_sums &c, float *own, long long lines, \
                                                    long long length) {                            \
    fk_##kind##_store_##major##_shared(own, 16, c);                                                \
    __syncwarp();                                                                                  \
    for (int n = (int)fk_now->lane; n < 256; n += 32)                                              \
      if (n / 16 < lines && n % 16 < length)                                                       \
        p[n / 16 * stride + n % 16] = fk_##kind##_store(own[n]);                                   \
    __syncwarp();                                                                                  \
  }                                                                                                \
  static inline void fk_##kind##_round_##major(unsigned short *p, long long stride,                \
                                               const fk_sums &c, float *own) {                     \
    fk_##kind##_store_##major##_shared(own, 16, c);                                                \
    __syncwarp();                                                                                  \
    for (int n = 0; n < 8; n++) {                                                                  \
      const int line = (int)fk_now->lane / 2, at = (int)fk_now->lane % 2 * 8 + n;                  \
      p[line * stride + at] = fk_##kind##_store(own[16 * line + at]);                              \
    }                                                                                              \
    __syncwarp();                                                                                  \
  }
FK_ROUNDS(f16, row)
FK_ROUNDS(f16, col)
FK_ROUNDS(bf16, row)
FK_ROUNDS(bf16, col)
