"""Functions such as exp on vectors of float32, as GCC vector C, and libmvec's vector functions.

`V` stands for the vector type, `M` for the vector of int32 of the same length, `S` for the suffix
of its helpers, and `D` and `Q` for the vectors of float64 and int64.  Polynomials on floats are
minimax fits of our own, those on doubles Taylor series.  The stated errors, in units in the last
place, were measured at every 61st float32, with and without fused multiply-adds.

A helper not defined here calls glibc's vector math (libmvec, 2.35 or later on x86-64, up to
4 units in the last place) if available, else the C library lane by lane.
"""

from __future__ import annotations

#: By function: its text, and the other helpers that it calls.
OWN_TEXT: dict[str, str] = {
    "exp": """\
/* e^x to 1 ulp: x = n ln(2) + r with |r| <= ln(2)/2.  The result is rounded once, also where it
   is tiny: 2^n is no factor of its own, or it comes as two. */
static inline V fk_near_exp_S(V x)
{
#if !(SCALES)
  for (int l = 0; l < LANES; l++) x[l] = x[l] > 89.0f ? 89.0f : x[l];
  for (int l = 0; l < LANES; l++) x[l] = x[l] < -104.0f ? -104.0f : x[l];
#endif
  const V shifted = x * 0x1.715476p+0f + 0x1.8p+23f; /* n in the lowest bits */
  const V n = shifted - 0x1.8p+23f;
  V r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
#if SCALES
  /* Where r means nothing, as x is far too large or no number, any r will do: n decides. */
  const V most = fk_splat_S(0.5f);
  __asm__("vrangeps $2, %2, %1, %0" : "=v"(r) : "v"(r), "v"(most));
#endif
  V q = r * 1.3814599e-03f + 8.368717e-03f;
  q = q * r + 4.166839e-02f;
  q = q * r + 1.6666521e-01f;
  q = q * r + 4.9999994e-01f;
#if SCALES
  q = q * r + 1.0f;
  q = q * r + 1.0f;
  V scaled;
  __asm__("vscalefps %2, %1, %0" : "=v"(scaled) : "v"(q), "v"(n));
  return scaled;
#else
  const V p = (r * r) * q + r + 1.0f;
  const V nan = x - x;                              /* 0, or NaN */
  const M exponent = (M)shifted - 0x4b400000, half = exponent >> 1;
  const V first = (V)((M)p + half * 0x800000);
  const V second = (V)((exponent - half + 127) * 0x800000);
  return first * second + nan;
#endif
}""",
    "log": """\
/* log(x) to 1.3 ulp: x = 2^n (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2). */
static inline V fk_near_log_S(V x)
{
  const M tiny = (M)(x < 0x1p-126f);
  const M bits = (M)fk_select_S(tiny, x * 0x1p+23f, x) - 0x3f3504f3;
  const V n = __builtin_convertvector((bits >> 23) + (tiny & -23), V);
  const V f = (V)((bits & 0x7fffff) + 0x3f3504f3) - 1.0f;
  V q = f * 8.700435e-02f - 1.4267486e-01f;
  q = q * f + 1.4914769e-01f;
  q = q * f - 1.6577585e-01f;
  q = q * f + 1.9963063e-01f;
  q = q * f - 2.5001338e-01f;
  q = q * f + 3.333391e-01f;
  const V r = n * 0x1.62e4p-1f + (f + ((f * f) * (f * q - 0.5f) + n * 0x1.7f7d1cp-20f));
  const V zero = fk_select_S((M)(x == 0.0f), fk_splat_S(-INFINITY), x);
  const V odd = fk_select_S((M)(x < 0.0f), fk_splat_S(NAN), zero);
  return fk_select_S((M)(x > 0.0f) & (M)(x < INFINITY), r, odd);
}""",
    "tanh": """\
/* tanh(x) to 1.4 ulp: a polynomial near 0, else 1 - 2 / (e^2x + 1). */
static inline V fk_near_tanh_S(V x)
{
  const V a = fk_abs_S(x), s = x * x;
  V q = s * -5.7049873e-03f + 2.0639088e-02f;
  q = q * s - 5.3739715e-02f;
  q = q * s + 1.3331442e-01f;
  q = q * s - 3.333328e-01f;
  const V small = (s * x) * q + x;
  const V large = 1.0f - 2.0f / (fk_near_exp_S(a + a) + 1.0f);
  return fk_select_S((M)(a < 0.625f), small, (V)((M)large | ((M)x & INT32_MIN)));
}""",
    "sigmoid": """\
/* 1 / (1 + e^-x) to 2.5 ulp; 0 below -88.8 */
static inline V fk_near_sigmoid_S(V x) { return 1.0f / (1.0f + fk_near_exp_S(-x)); }""",
    "erf": """\
/* erf(x) to 1.4 ulp: a polynomial up to 1, above it 1 - e^G(x). */
static inline V fk_near_erf_S(V x)
{
  const V a = fk_abs_S(x), s = x * x, b = fk_select_S((M)(a > 4.0f), fk_splat_S(4.0f), a);
  V q = s * 7.853892e-05f - 8.0102036e-04f;
  q = q * s + 5.188329e-03f;
  q = q * s - 2.6853813e-02f;
  q = q * s + 1.12835854e-01f;
  q = q * s - 3.7612626e-01f;
  q = q * s + 1.2837917e-01f;
  V g = b * -1.1504192e-03f + 1.4778099e-02f;
  g = g * b - 8.863411e-02f;
  g = g * b - 6.5448904e-01f;
  g = g * b - 1.1174384e+00f;
  g = g * b - 2.6717193e-03f;
  const V large = 1.0f - fk_near_exp_S(g);
  return fk_select_S((M)(a < 1.0f), x * q + x, (V)((M)large | ((M)x & INT32_MIN)));
}""",
    "pow": """\
/* x^y to 0.51 ulp, as 2^(y log2|x|) in doubles, with the sign and the special values of C.  No
   function is passed doubles: of vectors longer than the machine's, gcc would note that. */
static inline V fk_near_pow_S(V x, V y)
{
  /* |x| = 2^n m with sqrt(1/2) <= m < sqrt(2), and log(m) = 2 atanh(s) */
  const D a = __builtin_convertvector(fk_abs_S(x), D);
  const Q bits = (Q)a - 0x3fe6a09e667f3bcd;
  const D n = (D)(((bits + ((int64_t)1024 << 52)) >> 52) | 0x4330000000000000) - (0x1p52 + 1024.0);
  const D m = (D)((bits & 0xfffffffffffff) + 0x3fe6a09e667f3bcd);
  const D s = (m - 1.0) / (m + 1.0), z = s * s;
  D q = z * (1.0 / 13) + 1.0 / 11;
  q = q * z + 1.0 / 9;
  q = q * z + 1.0 / 7;
  q = q * z + 1.0 / 5;
  q = q * z + 1.0 / 3;
  const D log2 = n + ((s * z) * q + s) * 0x1.71547652b82fep+1;
  /* 2^t with t = k + r and |r| <= 1/2 */
  const D t = __builtin_convertvector(y, D) * log2;
  const D shifted = t + 0x1.8p+52; /* k in the lowest bits */
  const D r = (t - (shifted - 0x1.8p+52)) * 0x1.62e42fefa39efp-1;
  D p = r * (1.0 / 40320) + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  V w = __builtin_convertvector((D)((Q)p + ((Q)shifted << 52)), V);
  /* infinite or 0 where t is large, or x is infinite or 0; and no number where one is none */
  const V rough = __builtin_convertvector(t, V);
  const M zero = (M)(x == 0.0f), infinite = (M)(fk_abs_S(x) == INFINITY);
  const M plain = ~zero & ~infinite, up = (M)(y > 0.0f), down = (M)(y < 0.0f);
  const M most = (plain & (M)(rough > 200.0f)) | (zero & down) | (infinite & up);
  const M least = (plain & (M)(rough < -200.0f)) | (zero & up) | (infinite & down);
  w = fk_select_S(most, fk_splat_S(INFINITY), w);
  w = fk_select_S(least, fk_splat_S(0.0f), w);
  w = fk_select_S((M)(x == x) & (M)(y == y), w, x + y);
  /* floats from 2^24 on are even */
  const M large = (M)(fk_abs_S(y) >= 0x1p+24f);
  const M number = __builtin_convertvector((V)((M)y & ~large & (M)(y == y)), M);
  const M whole = large | (M)(__builtin_convertvector(number, V) == y);
  w = (V)((M)w | ((M)x & whole & ((number & 1) << 31)));
  w = fk_select_S((M)(x < 0.0f) & (M)(x > -INFINITY) & ~whole, fk_splat_S(NAN), w);
  const M one = (M)(x == -1.0f) & (M)(fk_abs_S(y) == INFINITY);
  return fk_select_S(one | (M)(x == 1.0f) | (M)(y == 0.0f), fk_splat_S(1.0f), w);
}""",
}


#: Lane counts that AVX-512 can scale by powers of two, and the extension needed for each.
_SCALES = {16: "F", 8: "VL", 4: "VL"}


def own_helper(fn: str, lanes: int) -> str:
    """The helper for one function on `lanes` float32."""
    scales = {n: f"defined(__AVX512{x}__) && defined(__AVX512DQ__)" for n, x in _SCALES.items()}
    names = {
        "V": f"fk_f32x{lanes}",
        "M": f"fk_i32x{lanes}",
        "D": f"fk_f64x{lanes}",
        "Q": f"fk_i64x{lanes}",
        "LANES": str(lanes),
        "SCALES": scales.get(lanes, "0"),
    }
    text = OWN_TEXT[fn]
    for short, name in names.items():
        text = _word(text, short, name)
    return text.replace("_S(", f"_f32x{lanes}(")


def _word(text: str, short: str, name: str) -> str:
    parts = text.split(short)
    result = parts[0]
    for part in parts[1:]:
        before, after = result[-1:], part[:1]
        alone = not (before.isalnum() or before == "_" or after.isalnum() or after == "_")
        result += (name if alone else short) + part
    return result


#: Functions of libmvec, by their C names.
_MVEC = frozenset(
    "exp log sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf pow atan2".split()
)
#: Letter and preprocessor condition of the instruction set for each vector size in bytes.
_ISA = {16: ("b", ""), 32: ("d", " && defined(__AVX2__)"), 64: ("e", " && defined(__AVX512F__)")}


def mvec_name(fn: str, bits: int, lanes: int) -> tuple[str, str] | None:
    """The symbol of a vector function, and the preprocessor condition under which it exists."""
    isa = _ISA.get(bits // 8 * lanes)
    if fn not in _MVEC or isa is None:
        return None
    letter, condition = isa
    arguments = "vv" if fn in ("pow", "atan2") else "v"
    symbol = f"_ZGV{letter}N{lanes}{arguments}_{fn}{'f' if bits == 32 else ''}"
    return symbol, f"defined(FK_MVEC){condition}"


#: Must precede any use of `mvec_name`'s conditions.
MVEC_PROBE = """\
#if defined(__x86_64__) && defined(__GLIBC__)
#if __GLIBC__ > 2 || __GLIBC_MINOR__ >= 35
#define FK_MVEC
#endif
#endif"""
