"""Random contractions and stencils: statements that get register tiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.differential.products import follow, product
from tests.differential.program_parts import Extent, Loop, Statement, number, sum_of, weak_literal

if TYPE_CHECKING:
    from tests.differential.generate import ProgramMaker


def stencil(maker: ProgramMaker, role: str) -> None:
    """Taps along rows and across them, on padding or not, for each channel or some."""
    kind = product(maker, ("float32", "float32", "float64"))
    c, d, i = (Loop(n, number(maker.c.integer(1, 5))) for n in "cdi")
    j = Loop("j", number(maker.c.pick((3, 5, 7, 8, 13, 16, 17, 28, 35))))
    r, t = (Loop(n, number(maker.c.integer(1, 4))) for n in "rt")
    free: tuple[Loop, ...] = (c, i, j)
    reductions: tuple[Loop, ...] = (r, t)
    image, taps = [c], [c]
    if maker.c.chance(40):  # groups: d is summed, or has weights of its own
        free, reductions = ((c, i, j), (d, r, t)) if maker.c.chance(50) else ((c, d, i, j), (r, t))
        taps.append(d)
        image += [d] if d in reductions else []
    shape, texts, guards = [x.extent for x in image], [x.name for x in image], []
    for loop, tap in ((i, r), (j, t)):
        step = maker.c.integer(1, 2)
        text = f"{step}*{loop.name} + {tap.name}"
        extent = sum_of(loop.extent.times(step), tap.extent)
        if maker.c.chance(60):
            text, extent = f"{text} - 1", loop.extent.times(step)
            guards.append(f"0 <= {text} < {extent}")
        shape.append(extent)
        texts.append(text)
    a = maker.new("input", kind.left, tuple(shape))
    w = maker.new("input", kind.right, tuple(x.extent for x in (*taps, r, t)))
    target = maker.new(role, kind.dtype, tuple(x.extent for x in free))
    at = f"{target.name}[{', '.join(x.name for x in free)}]"
    weight = f"{w.name}[{', '.join(x.name for x in (*taps, r, t))}]"
    value = kind.text(f"{a.name}[{', '.join(texts)}]", weight)
    maker.statements.append(Statement(at, "+=!", value, (*free, *reductions), tuple(guards)))
    if maker.c.chance(50):
        last = maker.new("output", kind.dtype, tuple(x.extent for x in free))
        value = f"max({target.name}[{', '.join(x.name for x in free)}], 0)"
        maker.statements.append(
            Statement(f"{last.name}[{', '.join(x.name for x in free)}]", "=", value, free)
        )


def contraction(maker: ProgramMaker, role: str) -> None:
    """A sum of products with reuse, in any layout, perhaps windowed, with what follows it."""
    factors = product(maker, ("float32", "float32", "float64", "int32"))
    extents = [_tile_extent(maker) for _ in range(4)]
    i, j, k, b = (Loop(n, e) for n, e in zip("ijkb", extents, strict=True))
    batch = (b,) if maker.c.chance(30) else ()
    free: tuple[Loop, ...] = (*batch, i, j)
    reductions: tuple[Loop, ...] = (k,)
    guards: tuple[str, ...] = ()
    left = [*batch, i, k]
    right = [*(batch if maker.c.chance(60) else ()), k, j]
    if maker.c.chance(30):
        left[-2:] = left[:-3:-1]
    if maker.c.chance(30):
        right[-2:] = right[:-3:-1]
    kind = maker.c.pick(("plain", "plain", "window", "padded", "triangle", "long"))
    if maker.profile.narrow and maker.c.chance(50):
        kind = "plain"
    texts = [x.name for x in left]
    shape = [x.extent for x in left]
    if kind in ("window", "padded"):
        r = Loop("r", number(maker.c.integer(1, 4)))
        reductions = (k, r) if maker.c.chance(50) else (r, k)
        at = texts.index("i")
        texts[at] = maker.c.pick(("i + r", "2*i + r")) if kind == "window" else "i + r - 1"
        if kind == "padded":
            guards = (f"0 <= i + r - 1 < {i.extent}",)
        else:
            shape[at] = sum_of(i.extent.times(2), r.extent)
        right.append(r)
    elif kind == "triangle":
        guards = (maker.c.pick(("k <= i", "k >= j", "k < 7", "i + k < 9")),)
    elif kind == "long":
        m = Loop("m", _tile_extent(maker))
        reductions = (k, m)
        texts.append("m")
        shape.append(m.extent)
        right.append(m)
    a = maker.new("input", factors.left, tuple(shape))
    w = maker.new("input", factors.right, tuple(x.extent for x in right))
    places = ", ".join(texts), ", ".join(x.name for x in right)
    value = factors.text(f"{a.name}[{places[0]}]", f"{w.name}[{places[1]}]")
    if maker.c.chance(5 if maker.profile.narrow else 15):
        value = f"{value} * {weak_literal(maker.c, maker.profile, factors.dtype)}"
    role = "updated" if maker.c.chance(15) else role
    op = "+=" if role == "updated" else "+=!"
    order = free[::-1] if maker.c.chance(10) else free
    target = maker.new(role, factors.dtype, tuple(x.extent for x in order))
    at_ = f"{target.name}[{', '.join(x.name for x in order)}]"
    maker.statements.append(Statement(at_, op, value, (*free, *reductions), guards))
    if maker.c.chance(50):  # an epilogue
        bias = maker.new("input", factors.dtype, (maker.c.pick((i, j)).extent,))
        place = "i" if bias.extents[0] == i.extent else "j"
        value, dtype = follow(maker, at_, factors.dtype, f"{bias.name}[{place}]")
        made = maker.new("output", dtype, tuple(x.extent for x in free))
        place = f"{made.name}[{', '.join(x.name for x in free)}]"
        maker.statements.append(Statement(place, "=", value, free))


def transposed(maker: ProgramMaker, role: str) -> None:
    """An image spread over a larger one: scattered, or gathered from every s-th tap."""
    factors = product(maker, ("float32", "float32", "float64", "int32"))
    b, k, c = (Loop(n, number(maker.c.pick((1, 2, 3, 5, 8, 16, 17)))) for n in "bkc")
    free: tuple[Loop, ...] = (b, k) if maker.c.chance(40) else (k,)
    axes = maker.c.integer(1, 2)
    image = [*free[:-1], c]
    shape, places, taps = [x.extent for x in image], [x.name for x in image], [c, k]
    loops, reductions, target, extents, guards = [], [c], [], [], []
    scattered = maker.c.chance(40)
    for n in range(axes):
        x, p, r = "xy"[n], "pq"[n], Loop("rt"[n], number(maker.c.integer(1, 5)))
        size = number(maker.c.integer(1, 9)) if axes == 2 or maker.concrete else maker.extent()
        stride, dilation = maker.c.pick((1, 2, 2, 3, 4)), maker.c.pick((1, 1, 1, 2, 3))
        full = sum_of(size.times(stride), number(dilation * r.extent.offset))
        shape.append(size)
        taps.append(r)
        extents.append(full)
        if scattered:
            places.append(p)
            target.append(f"{stride}*{p} + {dilation}*{r.name}")
            loops += [Loop(p, size), r]
        else:
            at = f"{x} - {dilation}*{r.name}" + maker.c.pick(("", " + 1", " - 1"))
            places.append(f"({at}) // {stride}")
            guards += [f"({at}) % {stride} == 0"] if stride > 1 else []
            guards += [f"0 <= ({at}) // {stride}", f"({at}) // {stride} < {size}"]
            target.append(x)
            loops.append(Loop(x, full))
            reductions.append(r)
    a = maker.new("input", factors.left, tuple(shape))
    w = maker.new("input", factors.right, tuple(x.extent for x in taps))
    result = maker.new(role, factors.dtype, (*(x.extent for x in free), *extents))
    at = f"{result.name}[{', '.join((*(x.name for x in free), *target))}]"
    weight = f"{w.name}[{', '.join(x.name for x in taps)}]"
    value = factors.text(f"{a.name}[{', '.join(places)}]", weight)
    box = (*free, *(Loop("xy"[n], e) for n, e in enumerate(extents)))
    place = ", ".join(x.name for x in box)
    if scattered and role != "updated":
        maker.statements.append(Statement(f"{result.name}[{place}]", "=", "0", box))
    op = "+=" if scattered or role == "updated" else "+=!"
    maker.statements.append(Statement(at, op, value, (*free, *loops, *reductions), tuple(guards)))
    if maker.c.chance(60):
        last = maker.new("output", factors.dtype, (*(x.extent for x in free), *extents))
        value = f"max({result.name}[{place}], 0)"
        maker.statements.append(Statement(f"{last.name}[{place}]", "=", value, box))


def _tile_extent(maker: ProgramMaker) -> Extent:
    """An extent around those of register tiles, or a size."""
    if maker.profile.narrow and maker.c.chance(60):  # whole groups of 4 factors
        return number(maker.c.pick((4, 8, 12, 16, 20, 32, 48, 64, 68)))
    if maker.concrete or maker.c.chance(60):
        return number(maker.c.pick((1, 3, 7, 8, 12, 16, 17, 24, 31, 32, 33, 48, 64, 65)))
    return maker.extent()
