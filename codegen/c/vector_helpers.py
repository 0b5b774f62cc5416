"""Vector helpers for generated code, and the text of those that a kernel uses.

A helper is called ``fk_FUNCTION_TYPExLANES``, as in ``fk_max_f32x16``.  Its text is made from its
name alone, together with the helpers it calls; all of it is GCC vector C, which clang accepts as
well.  Operations without a vector form are loops over the lanes, which compilers unroll.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from codegen.c.dot_helpers import DOT_HELPERS
from codegen.c.half_helpers import VECTOR_HELPERS
from codegen.c.helper_text import VectorShape, alternatives, either, inline_function
from codegen.c.masked_instructions import MaskedInstructions, masked_instructions
from codegen.c.operator_text import apply
from codegen.c.type_names import LANE_TYPES, UNROLLED
from codegen.c.vector_math import MVEC_PROBE, OWN_TEXT, mvec_name, own_helper
from codegen.c.widen_helpers import WIDEN_HELPERS
from poly.ir.operators import OPS

_HELPER = re.compile(r"\bfk_([a-z_][a-z0-9_]*?)_([fiu]\d+)x(\d+)\b(?=\()")
_TYPE = re.compile(r"\bfk_([fiu]\d+)x(\d+)(?:_u)?\b")


def lane_prelude(code: str) -> list[str]:
    """Vector types and helpers that `code` uses, each after those it needs."""
    helpers: dict[str, str] = {}

    def add(text: str) -> None:
        for fn, element, lanes in dict.fromkeys(_HELPER.findall(text)):
            name = f"{fn}_{element}x{lanes}"
            # Programs and tensors may have the names of helpers.
            if name in helpers or not _is_vector(element, lanes) or not _is_helper(fn):
                continue
            made = _helper(fn, VectorShape(element, int(lanes)))
            helpers[name] = ""  # in progress
            add(made)
            del helpers[name]
            helpers[name] = made

    add(code)
    whole = "\n".join([code, *helpers.values()])
    types = {(e, int(n)) for e, n in _TYPE.findall(whole) if _is_vector(e, n)}
    parts = []
    if "FK_MVEC" in whole:
        parts.append(MVEC_PROBE)
    if "FK_SHUFFLE" in whole:
        parts.append(_SHUFFLE)
    parts += [_typedefs(VectorShape(e, n)) for e, n in sorted(types, key=lambda t: (t[1], t[0]))]
    return [*parts, *helpers.values()]


def _is_vector(element: str, lanes: str) -> bool:
    return element in LANE_TYPES and len(lanes) < 4 and int(lanes).bit_count() == 1


def _is_helper(fn: str) -> bool:
    return fn in _TEXTS or fn.removeprefix("near_") in OPS


_SHUFFLE = """\
/* Elements of two vectors, by their places in both; `mask` is the type of the list of places. */
#if defined(__clang__) || __GNUC__ >= 12
#define FK_SHUFFLE(mask, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define FK_SHUFFLE(mask, a, b, ...) __builtin_shuffle(a, b, (mask){__VA_ARGS__})
#endif"""


def _typedefs(s: VectorShape) -> str:
    size = s.bits // 8 * s.lanes
    return (
        f"typedef {s.c} {s.v} __attribute__((vector_size({size})));\n"
        f"typedef {s.c} {s.v}_u "
        f"__attribute__((vector_size({size}), aligned({s.bits // 8}), may_alias));"
    )


def _helper(fn: str, s: VectorShape) -> str:
    """The text of one helper."""
    if fn in _TEXTS:
        return _TEXTS[fn](s)
    if fn.startswith("near_"):
        return _near(fn.removeprefix("near_"), s)
    return _each_lane(fn, fn, s, exact=True)


def _each_lane(name: str, fn: str, s: VectorShape, exact: bool) -> str:
    """A helper that calls a scalar function for each lane."""
    names = "ab"[: OPS[fn].arity]
    text = apply(fn, s.dtype, [f"{n}[k]" for n in names], exact)
    parameters = ", ".join(f"{s.v} {n}" for n in names)
    return inline_function(s.v, f"{name}_{s.name}", parameters, _filled(s.v, s.lanes, text))


def _near(fn: str, s: VectorShape) -> str:
    """A function that is not computed exactly: our own, libmvec's, or the C library's."""
    if fn in OWN_TEXT and s.element == "f32":
        return own_helper(fn, s.lanes)
    if fn == "sigmoid":
        body = f"return 1.0 / (1.0 + fk_near_exp_{s.name}(-x));"
        return inline_function(s.v, f"near_sigmoid_{s.name}", f"{s.v} x", body)
    loop = _each_lane(f"near_{fn}", fn, s, exact=False)
    found = mvec_name(fn, s.bits, s.lanes)
    if found is None:
        return loop
    symbol, condition = found
    names = "ab"[: OPS[fn].arity]
    declared, passed = ", ".join([s.v] * len(names)), ", ".join(names)
    parameters = ", ".join(f"{s.v} {n}" for n in names)
    call = inline_function(s.v, f"near_{fn}_{s.name}", parameters, f"return {symbol}({passed});")
    return alternatives((condition, f"{s.v} {symbol}({declared});\n{call}"), otherwise=loop)


# --- one function per helper -----------------------------------------------------------------


def _splat(s: VectorShape) -> str:
    sign = "-" if s.is_float else "+"  # x + 0 would turn -0 into 0
    return inline_function(s.v, f"splat_{s.name}", f"{s.c} x", f"return x {sign} ({s.v}){{0}};")


def _select(s: VectorShape) -> str:
    body = f"return ({s.v})((m & ({s.mask})a) | (~m & ({s.mask})b));"
    return inline_function(
        s.v, f"select_{s.name}", f"{s.mask} m, {s.v} a, {s.v} b", body, "m ? a : b, lane by lane"
    )


#: The feature that an x86 instruction for this many bits needs, and how gcc calls it.
_X86 = {512: ("__AVX512F__", "512"), 256: ("__AVX__", "256"), 128: ("__SSE2__", "")}


def _extremum(fn: str, op: str) -> Callable[[VectorShape], str]:
    def text(s: VectorShape) -> str:
        parameters = f"{s.v} a, {s.v} b"
        if not s.is_float:
            body = f"return fk_select_{s.name}(({s.mask})(a {op} b), a, b);"
            return inline_function(s.v, f"{fn}_{s.name}", parameters, body)
        lane = f"for (int l = 0; l < {s.lanes}; l++)"
        loops = (
            f"{s.v} m; {lane} m[l] = a[l] {op} b[l] ? a[l] : b[l]; "
            f"{lane} m[l] = a[l] != a[l] ? a[l] : m[l]; return m;"
        )
        found = _X86.get(s.bits * s.lanes)
        if found is None:
            return inline_function(s.v, f"{fn}_{s.name}", parameters, loops, "NaN if either is")
        # gcc makes the same of the loops, but takes as long for them as for the rest of a kernel.
        feature, size = found
        kind, every = f"p{'s' if s.bits == 32 else 'd'}", f"(uint{max(8, s.lanes)}_t)-1"
        if size == "512":
            most = f"__builtin_ia32_{fn}{kind}512_mask(a, b, a, {every}, 4)"
            nan = f"__builtin_ia32_cmp{kind}512_mask(a, a, 3, {every}, 4)"
            result = f"__builtin_ia32_mova{kind}512_mask(a, m, {nan})"
        else:
            most = f"__builtin_ia32_{fn}{kind}{size}(a, b)"
            result = f"({s.v})(({s.mask})m | (({s.mask})a & (a != a)))"
        return (
            f"/* NaN if either is; the instruction returns b if one of them is */\n"
            f"static inline {s.v} fk_{fn}_{s.name}({parameters})\n{{\n"
            f"#if defined({feature}) && !defined(__clang__)\n"
            f"  {s.v} m = {most};\n  return {result};\n"
            f"#else\n  {loops}\n#endif\n}}"
        )

    return text


def _clip(s: VectorShape) -> str:
    lanes = f"for (int l = 0; l < {s.lanes}; l++)"
    loops = (
        f"  {lanes} x[l] = x[l] > low[l] ? x[l] : low[l];\n"
        f"  {lanes} x[l] = x[l] < high[l] ? x[l] : high[l];\n  return x;"
    )
    head = (
        "/* between two numbers; a NaN gives one of them */\n"
        f"static inline {s.v} fk_clip_{s.name}({s.v} x, {s.v} low, {s.v} high)\n{{"
    )
    found = _X86.get(s.bits * s.lanes)
    if found is None:
        return f"{head}\n{loops}\n}}"
    feature, size = found
    name = f"ps{size}_mask" if size == "512" else f"ps{size}"
    rest = ", x, (uint16_t)-1, 4)" if size == "512" else ")"
    most, least = (
        f"__builtin_ia32_{fn}{name}(x, {limit}{rest}"
        for fn, limit in (("max", "low"), ("min", "high"))
    )
    own = f"  x = {most};\n  return {least};"
    condition = f"defined({feature}) && !defined(__clang__)"
    return f"{head}\n{alternatives((condition, own), otherwise=loops)}\n}}"


def _nearest(s: VectorShape) -> str:
    number = f"fk_i32x{s.lanes}"
    plain = f"  {_filled(number, s.lanes, '(int32_t)rintf(x[k])')}"
    head = (
        "/* the nearest integer, as floats are rounded */\n"
        f"static inline {number} fk_nearest_{s.name}({s.v} x)\n{{"
    )
    found = _X86.get(s.bits * s.lanes)
    if found is None:
        return f"{head}\n{plain}\n}}"
    feature, size = found
    rest = f"512_mask(x, ({number}){{0}}, (uint16_t)-1, 4)" if size == "512" else f"{size}(x)"
    own = f"  return ({number})__builtin_ia32_cvtps2dq{rest};"
    return f"{head}\n{alternatives((f'defined({feature})', own), otherwise=plain)}\n}}"


def _abs(s: VectorShape) -> str:
    if s.is_float:
        largest = f"INT{s.bits}_MAX"
        body = f"return ({s.v})(({s.mask})x & {largest});"
    elif s.element[0] == "u":
        body = "return x;"
    else:
        body = f"return fk_select_{s.name}(({s.mask})(x < 0), -x, x);"
    return inline_function(s.v, f"abs_{s.name}", f"{s.v} x", body)


def _from(s: VectorShape) -> str:
    body = (
        f"return fk_select_{s.name}({s.numbers(*range(s.lanes))} >= (int{s.bits}_t)first, "
        f"v, fk_splat_{s.name}(rest));"
    )
    return inline_function(
        s.v, f"from_{s.name}", f"int64_t first, {s.v} v, {s.c} rest", body,
        "the lanes from `first` on; `rest` in those before",
    )  # fmt: skip


def _horizontal(
    fn: str, combine: Callable[[VectorShape, str, str], str]
) -> Callable[[VectorShape], str]:
    """Combine all lanes, first half with second half, repeatedly.

    Halves smaller than a register stay in place: splitting them would go through memory, and
    the next row waits for the result.
    """

    def text(s: VectorShape) -> str:
        if s.lanes == 1:
            return inline_function(s.c, f"{fn}_{s.name}", f"{s.v} v", "return v[0];")
        if s.bits * s.lanes <= 128:
            steps = ["return v[0]"]
            half = 1
            while half < s.lanes:
                order = ", ".join(str(k + half if k < half else k) for k in range(s.lanes))
                shuffled = f"FK_SHUFFLE({s.mask}, v, v, {order})"
                steps[:0] = [f"w = {shuffled}", f"v = {combine(s, 'v', 'w')}"]
                half *= 2
            steps[0] = f"{s.v} {steps[0]}"
            return inline_function(s.c, f"{fn}_{s.name}", f"{s.v} v", "; ".join(steps) + ";")
        h = VectorShape(s.element, s.lanes // 2)
        body = (
            f"  union {{ {s.v} whole; {h.v} half[2]; }} u = {{v}};\n"
            f"  return fk_{fn}_{h.name}({combine(h, 'u.half[0]', 'u.half[1]')});"
        )
        return f"static inline {s.c} fk_{fn}_{s.name}({s.v} v)\n{{\n{body}\n}}"

    return text


#: The most lanes that are named one by one.
MOST_NAMED = 16


def _gather(s: VectorShape) -> str:
    # gcc joins the elements of a loop over them in registers only if it knows the stride.
    places = ["p[0]", "p[stride]", *(f"p[{k} * stride]" for k in range(2, s.lanes))]
    named = f"  if (!__builtin_constant_p(stride)) return ({s.v}){{{', '.join(places)}}};\n"
    return (
        "/* elements that lie `stride` apart */\n"
        f"static inline {s.v} fk_gather_{s.name}(const {s.c} *p, int64_t stride)\n{{\n"
        f"{named if s.lanes <= MOST_NAMED else ''}"
        f"  {_filled(s.v, s.lanes, 'p[k * stride]')}\n}}"
    )


def _filled(vector: str, lanes: int, element: str) -> str:
    """Statements that return the vector of an expression for each lane k."""
    return f"{vector} r; for (int k = 0; k < {lanes}; k++) r[k] = {element}; return r;"


def _even(s: VectorShape) -> str:
    n = s.lanes
    order = [2 * k if 2 * k < n else 2 * k - (n - 1) + n for k in range(n)]
    body = (
        f"{s.v} a = *(const {s.v}_u *)p, b = *(const {s.v}_u *)(p + {n - 1}); "
        f"return FK_SHUFFLE({s.mask}, a, b, {', '.join(map(str, order))});"
    )
    return inline_function(
        s.v, f"even_{s.name}", f"const {s.c} *p", body,
        "every other element; nothing behind the last of them is read",
    )  # fmt: skip


def _spread(count: int) -> Callable[[VectorShape], str]:
    def text(s: VectorShape) -> str:
        few = f"fk_{s.element}x{s.lanes // count}"
        order = ", ".join(str(k // count) for k in range(s.lanes))
        return (
            f"/* each element {count} times */\n"
            f"static inline {s.v} fk_spread{count}_{s.name}(const {s.c} *p)\n{{\n"
            f"#if defined(__clang__) || __GNUC__ >= 12\n"
            f"  {few} a = *(const {few}_u *)p;\n"
            f"  return __builtin_shufflevector(a, a, {order});\n"
            f"#else\n"
            f"  {_filled(s.v, s.lanes, f'p[k / {count}]')}\n"
            f"#endif\n}}"
        )

    return text


def _backwards(s: VectorShape) -> str:
    n = s.lanes
    body = (
        f"{s.v} a = *(const {s.v}_u *)(p - {n - 1}); "
        f"return FK_SHUFFLE({s.mask}, a, a, {', '.join(str(n - 1 - k) for k in range(n))});"
    )
    return inline_function(
        s.v, f"backwards_{s.name}", f"const {s.c} *p", body, "the elements from p down"
    )


def _converted(fn: str) -> Callable[[VectorShape], str]:
    return lambda s: VECTOR_HELPERS[fn](s.lanes, s.bits == 64)


def _power(exponent: int) -> Callable[[VectorShape], str]:
    def text(s: VectorShape) -> str:
        body = f"return {' * '.join('x' * exponent)};"
        return inline_function(s.v, f"power{exponent}_{s.name}", f"{s.v} x", body)

    return text


def _infix(symbol: str) -> Callable[[VectorShape, str, str], str]:
    return lambda s, a, b: f"{a} {symbol} {b}"


def _call(fn: str) -> Callable[[VectorShape, str, str], str]:
    return lambda s, a, b: f"fk_{fn}_{s.name}({a}, {b})"


def _transpose(s: VectorShape) -> str:
    """Transpose a square matrix by swapping its off-diagonal quarters recursively
    (Eklundh, "A fast computer method for matrix transposing", IEEE Trans. Computers 1972)."""
    if s.bits * s.lanes == 128 and s.bits < 32:
        return _transpose_in_turns(s)
    lines = [f"{s.v} t;"]
    step = 1
    while step < s.lanes:
        low = [s.lanes + k - step if k & step else k for k in range(s.lanes)]
        high = [s.lanes + k if k & step else k + step for k in range(s.lanes)]
        a, b = "r[k]", f"r[k + {step}]"
        pair = f"FK_SHUFFLE({s.mask}, {a}, {b}, "
        lines += [
            UNROLLED,
            f"for (int k = 0; k < {s.lanes}; k++) if (!(k & {step})) {{",
            f"  t = {pair}{', '.join(map(str, low))});",
            f"  {b} = {pair}{', '.join(map(str, high))});",
            f"  {a} = t;",
            "}",
        ]
        step *= 2
    body = "\n  ".join(lines)
    return (
        f"/* element l of row n becomes element n of row l */\n"
        f"static inline __attribute__((always_inline)) void fk_transpose_{s.name}({s.v} *r)\n"
        f"{{\n  {body}\n}}"
    )


def _transpose_in_turns(s: VectorShape) -> str:
    """Transpose a square matrix by taking lanes of rows half the matrix apart in turns, as often as
    its side can be halved: for short vectors of narrow lanes that is one instruction each.
    """
    half, body = s.lanes // 2, []
    source, target = "r", "t"
    for _ in range(s.lanes.bit_length() - 1):
        for n, start in ((0, 0), (1, half)):
            order = ", ".join(f"{k}, {k + s.lanes}" for k in range(start, start + half))
            made = f"FK_SHUFFLE({s.mask}, {source}[k], {source}[k + {half}], {order})"
            place = "2 * k + 1" if n else "2 * k"
            body += [UNROLLED, f"for (int k = 0; k < {half}; k++) {target}[{place}] = {made};"]
        source, target = target, source
    if source == "t":
        body += [UNROLLED, f"for (int k = 0; k < {s.lanes}; k++) r[k] = t[k];"]
    text = "\n  ".join([f"{s.v} t[{s.lanes}];", *body])
    return (
        f"/* element l of row n becomes element n of row l */\n"
        f"static inline __attribute__((always_inline)) void fk_transpose_{s.name}({s.v} *r)\n"
        f"{{\n  {text}\n}}"
    )


def _masked(s: VectorShape) -> MaskedInstructions | None:
    return masked_instructions(s.v, s.element, s.lanes, s.bits * s.lanes)


#: The mask of a helper on some lanes.
_LANES = "(1u << last) - (1u << first)"


def _bytes(s: VectorShape) -> str:
    """The bytes of some lanes, such that gcc sees that they are no more than twice those of all."""
    return f"(size_t)((last - first) & {2 * s.lanes - 1}) * {s.bits // 8}"


def _put(s: VectorShape) -> str:
    body = f"memcpy(p, ({s.c} *)&x + first, {_bytes(s)});"
    found = _masked(s)
    if found is not None:
        body = either(found.condition, f"{found.store('p - first', _LANES, 'x')};", body)
    return (
        f"/* lanes from first to before last go to memory; p is the place of the first */\n"
        f"{_SOME}\nvoid fk_put_{s.name}({s.c} *p, int first, int last, {s.v} x)\n{{ {body} }}"
    )


def _put_even(s: VectorShape) -> str:
    n, found = s.lanes, _masked(s)
    body = "for (int k = first; k < last; k++) p[2 * (k - first)] = x[k];"
    if found is not None:
        mask = f"((1ull << 2 * last) - (1ull << 2 * first)) & {(4**n - 1) // 3}u"
        lines = [f"const uint64_t m = {mask};"]
        for at in (0, n):
            order = ", ".join(str((at + k) // 2) for k in range(n))
            pairs = f"FK_SHUFFLE({s.mask}, x, x, {order})"
            lines.append(f"{found.store(f'p - 2 * first + {at}', f'm >> {at}', pairs)};")
        body = either(found.condition, "\n  ".join(lines), body)
    return (
        f"/* as put, but to every other element */\n"
        f"{_SOME}\nvoid fk_put_even_{s.name}({s.c} *p, int first, int last, {s.v} x)\n{{ {body} }}"
    )


def _take(s: VectorShape) -> str:
    move = f"memcpy(({s.c} *)&x + first, p, {_bytes(s)});"
    body = f"{s.v} x = {{0}}; {move} return x;"
    found = _masked(s)
    if found is not None:
        load = f"return ({s.v}){found.load('p - first', _LANES)};"
        body = either(found.condition, load, body)
    return (
        f"/* lanes from first to before last from memory, else 0; p is the place of the first */\n"
        f"{_SOME}\n{s.v} fk_take_{s.name}(const {s.c} *p, int first, int last)\n{{ {body} }}"
    )


def _take_even(s: VectorShape) -> str:
    each = "for (int k = first; k < last; k++) x[k] = p[2 * (k - first)];"
    body = f"{s.v} x = {{0}}; {each} return x;"
    found = _masked(s)
    if found is not None:
        # Only the first of each pair is read: the last pair may be incomplete.
        mask = "const uint64_t m = ((1ull << (2 * last - 1)) - (1ull << 2 * first));"
        text = f"{mask}\n  {_evens(s, found, 'p - 2 * first')}"
        body = either(found.condition, text, body)
    return (
        f"/* as take, but of every other element */\n"
        f"{_SOME}\n{s.v} fk_take_even_{s.name}(const {s.c} *p, int first, int last)\n{{ {body} }}"
    )


def _evens(s: VectorShape, found: MaskedInstructions, address: str) -> str:
    """Every other element from an address on, where the mask m has bits set."""
    n = s.lanes
    halves = [
        f"const {s.v} {v} = ({s.v}){found.load(f'{address} + {shift}', f'm >> {shift}')};"
        for v, shift in (("a", 0), ("b", n))
    ]
    order = ", ".join(str(2 * k) for k in range(n))
    return f"{halves[0]}\n  {halves[1]}\n  return FK_SHUFFLE({s.mask}, a, b, {order});"


def _some(s: VectorShape) -> str:
    return (
        f"/* as take, but p is the place of lane 0 */\n"
        f"{_SOME}\n{s.v} fk_some_{s.name}(const {s.c} *p, int first, int last)\n"
        f"{{ return fk_take_{s.name}(p + first, first, last); }}"
    )


def _some_even(s: VectorShape) -> str:
    n, found = s.lanes, _masked(s)
    body = f"{s.v} x = {{0}}; for (int k = first; k < last; k++) x[k] = p[2 * k]; return x;"
    if found is not None:
        text = (
            f"const uint64_t m = ((1ull << 2 * last) - (1ull << 2 * first)) & {(4**n - 1) // 3}u;\n"
            f"  {_evens(s, found, 'p')}"
        )
        body = either(found.condition, text, body)
    return (
        f"/* as some, but of every other element; there may be no lane */\n"
        f"{_SOME}\n{s.v} fk_some_even_{s.name}(const {s.c} *p, int first, int last)\n{{ {body} }}"
    )


def _among(s: VectorShape) -> str:
    body = "for (int k = first; k < last; k++) old[k] = x[k];\n  return old;"
    found = _masked(s)
    if found is not None:
        move = f"return ({s.v}){found.move(_LANES, 'x', 'old')};"
        body = either(found.moves, move, body)
    return (
        f"/* x in lanes from first to before last, and what they held in the others */\n"
        f"{_SOME}\n{s.v} fk_among_{s.name}(int first, int last, {s.v} x, {s.v} old)\n{{ {body} }}"
    )


#: Helpers called with literal lane numbers: inlining makes the masks literals as well.
_SOME = "static inline __attribute__((always_inline))"


_TEXTS: dict[str, Callable[[VectorShape], str]] = {
    "splat": _splat,
    "select": _select,
    "max": _extremum("max", ">"),
    "min": _extremum("min", "<"),
    "abs": _abs,
    "clip": _clip,
    "nearest": _nearest,
    "from": _from,
    "sum": _horizontal("sum", _infix("+")),
    "product": _horizontal("product", _infix("*")),
    "greatest": _horizontal("greatest", _call("max")),
    "least": _horizontal("least", _call("min")),
    "gather": _gather,
    **DOT_HELPERS,
    **WIDEN_HELPERS,
    "even": _even,
    "backwards": _backwards,
    "spread2": _spread(2),
    "spread4": _spread(4),
    "spread8": _spread(8),
    "transpose": _transpose,
    "put": _put,
    "put_even": _put_even,
    "take": _take,
    "take_even": _take_even,
    "some": _some,
    "some_even": _some_even,
    "among": _among,
    **{fn: _converted(fn) for fn in VECTOR_HELPERS},
    "power2": _power(2),
    "power3": _power(3),
}
