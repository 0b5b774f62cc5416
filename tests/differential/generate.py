"""Random programs as text, made so that most of them are accepted.

One generator serves both kinds of random testing: it asks a `Choices` for every decision, which is
either a seeded generator (fast, for the large sweeps) or hypothesis' (which can shrink).
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.differential.program_parts import (
    FLOATS,
    INDICES,
    INTEGERS,
    Array,
    Choices,
    Drawn,
    Extent,
    Loop,
    Profile,
    Seeded,
    Statement,
    number,
    renamed,
    sum_of,
    weak_literal,
    words_of,
)
from tests.differential.tiles import contraction, stencil, transposed


class ProgramMaker:
    """Writes one program."""

    def __init__(self, choices: Choices, profile: Profile | None = None) -> None:
        self.c = choices
        self.profile = profile or Profile()
        self.arrays: dict[str, Array] = {}
        self.statements: list[Statement] = []
        self.sizes: list[str] = []
        self.concrete = choices.chance(15)
        self.family = choices.pick(("float", "float", "float", "integer", "integer", "mixed"))
        self.count = 0

    # --- the whole --------------------------------------------------------------------------

    def text(self) -> str:
        wanted = self.c.integer(1, 4)
        while len(self.statements) < wanted:
            self._step(last=len(self.statements) >= wanted - 1)
        written = [a for a in self.arrays.values() if a.role in ("temp", "output", "updated")]
        if all(a.role == "temp" for a in written):
            written[-1].role = "output"
        ins = [a.declaration() for a in self.arrays.values() if a.role in ("input", "updated")]
        outs = [
            a.declaration() if a.role == "output" else a.name
            for a in written
            if a.role in ("output", "updated")
        ]
        temps = [a.declaration() for a in written if a.role == "temp"]
        sizes = f"[{', '.join(self.sizes)}]" if self.sizes else ""
        lines = [f"def f{sizes}({', '.join(ins)}) -> ({', '.join(outs)}) {{"]
        lines += [f"    {line}" for line in [*temps, *map(str, self.statements)]]
        return "\n".join([*lines, "}"])

    def _step(self, last: bool) -> None:
        if self.profile.contractions and self.c.chance(70):
            kind = self.c.pick((stencil, transposed, *[contraction] * 4))
            kind(self, "output" if last or self.c.chance(30) else "temp")
            return
        kind = self.c.pick(
            ("map", "map", "reduce", "reduce", "reduce", "update", "update",
             "recurrence", "piecewise", "scatter")
        )  # fmt: skip
        role = "output" if last or self.c.chance(30) else "temp"
        getattr(self, f"_{kind}")(role)

    def _map(self, role: str) -> None:
        free = self._loops(self.c.integer(0, self._depth()))
        target = self._written(role, self._dtype(), free)
        self._add(target, self._target(target, free), "=", free, ())

    def _reduce(self, role: str) -> None:
        free = self._loops(self.c.integer(0, min(3, self._depth())))
        reductions = self._loops(self.c.integer(1, 2), taken=free)
        dtype = self._dtype()
        op = self._reduction(dtype)
        target = self._written(role, dtype, free)
        guards = self._guards(reductions, free) if self.c.chance(40) else ()
        self._add(target, self._target(target, free), f"{op}!", (*free, *reductions), guards)

    def _update(self, role: str) -> None:
        """An in/out tensor, or one that was written before, is combined with more values."""
        free = self._loops(self.c.integer(0, min(3, self._depth())))
        reductions = self._loops(self.c.integer(0, 1), taken=free)
        dtype = self._dtype()
        own = self.new("updated", dtype, tuple(x.extent for x in free))
        op = self._reduction(dtype) if reductions or self.c.chance(70) else "="
        loops = (*free, *reductions)
        guards = self._guards(loops, ()) if self.c.chance(50) else ()
        self_read = self.c.chance(30)
        self._add(own, self._target(own, free), op, loops, guards, self_read=self_read)

    def _recurrence(self, role: str) -> None:
        (t,) = self._loops(1)
        free = self._loops(self.c.integer(0, 2), taken=(t,))
        dtype = self._dtype(boolean=False)
        back = self.c.integer(1, 2)
        extents = (Extent(t.extent.size, t.extent.factor, t.extent.offset + back),
                   *(x.extent for x in free))  # fmt: skip
        target = self.new(role, dtype, extents)
        del self.arrays[target.name]
        names = [x.name for x in free]
        for n in range(back):
            place = f"{target.name}[{', '.join([str(n), *names])}]"
            value = self._value(dtype, free, 1)
            self.statements.append(Statement(place, "=", value, free))
        self.arrays[target.name] = target
        before = [f"{target.name}[{', '.join([t.name, *names])}]"]
        if back == 2:
            before.append(f"{target.name}[{', '.join([f'{t.name} + 1', *names])}]")
        if free and self.c.chance(40):
            moved = [f"max({names[0]} - 1, 0)", *names[1:]]
            before.append(f"{target.name}[{', '.join([t.name, *moved])}]")
        value = " + ".join(before) if dtype != "bool" else before[0]
        other = self._value(dtype, (t, *free), 1, avoid=target.name)
        op = self.c.pick(("+", "-", "*"))
        value = self.c.pick((f"{value} {op} {other}", f"max({value}, {other})", value))
        place = f"{target.name}[{', '.join([f'{t.name} + {back}', *names])}]"
        loops = (t, *free)
        if free and self.c.chance(20) and back == 1:
            (r,) = self._loops(1, taken=loops)
            clear = Statement(place, "=", "0", loops)
            first = f"{target.name}[{', '.join([t.name, *names])}]"
            sum_ = Statement(place, "+=", f"{first} * {self._value(dtype, (*loops, r), 0)}",
                             (*loops, r))  # fmt: skip
            self.statements += [clear, sum_]
            return
        self.statements.append(Statement(place, "=", value, loops))

    def _piecewise(self, role: str) -> None:
        """One tensor written in two parts."""
        free = self._loops(self.c.integer(1, 3))
        dtype = self._dtype()
        target = self._written(role, dtype, free)
        place = self._target(target, free)
        i, j = free[0], free[-1]
        condition, other = self.c.pick((
            (f"{i.name} <= {j.name}", f"{i.name} > {j.name}"),
            (f"{i.name} < 2", f"{i.name} >= 2"),
            (f"({i.name} + {j.name}) % 2 == 0", f"({i.name} + {j.name}) % 2 == 1"),
            (f"{i.name} % 3 != 1", f"{i.name} % 3 == 1"),
        ))  # fmt: skip
        del self.arrays[target.name]
        self._statement(target, place, "=", free, (condition,))
        if self.c.chance(70):
            self._statement(target, place, "=", free, (other,))
        else:  # the second part goes over the first
            self._statement(target, place, "=", free, ())
        self.arrays[target.name] = target

    def _scatter(self, role: str) -> None:
        """Places that are hit several times, or in another order: Y[i//2], Y[i%3], Y[2*i+1]."""
        free = self._loops(self.c.integer(1, 2))
        i = free[0]
        dtype = self._dtype()
        e, n = i.extent, i.name
        place, extent = self.c.pick((
            (f"{n}//2", e), (f"{n} % 3", number(3)), (f"2*{n} + 1", e.times(2).plus(number(1))),
            (f"{e} - 1 - {n}", e), (f"{n} + 2", e.plus(number(2))), (n, e),
        ))  # fmt: skip
        assert extent is not None
        rest = free[1:]
        extents, places = [extent], [place]
        for x in rest:
            extents.append(x.extent)
            places.append(x.name)
        if self.c.chance(30):  # diagonal
            extents.append(extent)
            places.append(place)
        target = self.new("updated", dtype, tuple(extents))
        op = self.c.pick(("=", self._reduction(dtype), self._reduction(dtype)))
        guards = self._guards(free, ()) if self.c.chance(30) else ()
        at = f"{target.name}[{', '.join(places)}]"
        self._add(target, at, op, free, guards, self_read=self.c.chance(15))

    # --- pieces -----------------------------------------------------------------------------

    def _add(
        self, target: Array, place: str, op: str, loops: tuple[Loop, ...],
        guards: tuple[str, ...], self_read: bool = False,
    ) -> None:  # fmt: skip
        if not self_read:
            del self.arrays[target.name]
        self._statement(target, place, op, loops, guards)
        self.arrays[target.name] = target

    def _statement(
        self, target: Array, place: str, op: str, loops: tuple[Loop, ...], guards: tuple[str, ...]
    ) -> None:
        value = self._value(target.dtype, loops, self.c.integer(0, 3))
        for x in loops:  # every index that is not on the left has to appear on the right
            if x.name not in words_of(place) and x.name not in words_of(value):
                value = self._with_index(target.dtype, value, x, loops)
        shown = loops
        if not guards and self.c.chance(25):
            plain = [x for x in loops if f"[{x.name}]" in value or f", {x.name}]" in value]
            shown = tuple(x for x in loops if x not in plain)
        lows = {}
        if self.c.chance(8) and shown:  # a range that does not begin at 0
            x, by = self.c.pick(shown), self.c.integer(1, 3)
            sign = self.c.pick(("+", "-"))
            moved = f"({x.name} {sign} {by})"
            place, value, *rest = (renamed(t, x.name, moved) for t in (place, value, *guards))
            guards = tuple(rest)
            shift = number(-by if sign == "+" else by)
            lows[x.name] = shift.offset
            shown = tuple(Loop(y.name, sum_of(y.extent, shift)) if y is x else y for y in shown)
        self.statements.append(Statement(place, op, value, shown, guards, lows))

    def _with_index(self, dtype: str, value: str, x: Loop, loops: tuple[Loop, ...]) -> str:
        read = self._read(dtype, (x, *loops[: self.c.integer(0, 1)]), must=x)
        if dtype == "bool":
            return f"({value}) {self.c.pick(('and', 'or'))} {read}"
        return f"({value}) {self.c.pick(('+', '*', '-'))} {read}"

    def _depth(self) -> int:
        return self.c.pick((1, 2, 2, 3, 3, 4, 5))

    def _dtype(self, boolean: bool = True) -> str:
        if self.family == "float":
            return self.c.pick(FLOATS[:5] if self.profile.functions else FLOATS)
        if self.family == "integer":
            return self.c.pick(INTEGERS)
        pool = (*FLOATS, *INTEGERS, *(("bool", "bool") if boolean else ()))
        return self.c.pick(pool)

    def _reduction(self, dtype: str) -> str:
        if dtype == "bool":
            return self.c.pick(("max=", "min="))
        return self.c.pick(("+=", "+=", "+=", "*=", "max=", "min="))

    def extent(self) -> Extent:
        if self.concrete or self.c.chance(15):
            return number(self.c.pick((1, 2, 3, 4, 5, 7, 8, 16, 17)))
        if len(self.sizes) < 3 and (not self.sizes or self.c.chance(50)):
            self.sizes.append("NMK"[len(self.sizes)])
            return Extent(self.sizes[-1])
        size = self.c.pick(self.sizes)
        return Extent(size) if self.c.chance(85) else Extent(size, 2, self.c.integer(0, 1))

    def _loops(self, count: int, taken: tuple[Loop, ...] = ()) -> tuple[Loop, ...]:
        found: list[Loop] = []
        pool: list[Extent] = [e for a in self.arrays.values() for e in a.extents]
        while len(found) < count:
            name = INDICES[len(found) + len(taken)]
            reuse = pool and self.c.chance(70)
            found.append(Loop(name, self.c.pick(pool) if reuse else self.extent()))
        return tuple(found)

    def new(self, role: str, dtype: str, extents: tuple[Extent, ...]) -> Array:
        letter = {"input": "A", "temp": "T", "output": "Y", "updated": "U"}[role]
        array = Array(f"{letter}{self.count}", dtype, extents, role)
        self.count += 1
        self.arrays[array.name] = array
        return array

    def _written(self, role: str, dtype: str, free: tuple[Loop, ...]) -> Array:
        return self.new(role, dtype, tuple(x.extent for x in free))

    def _target(self, target: Array, free: tuple[Loop, ...]) -> str:
        order = list(free)
        if len(order) > 1 and self.c.chance(15):  # Y[j, i]: the order of loops follows the left
            order = order[::-1]
            target.extents = tuple(x.extent for x in order)
        places = [f"{x.extent} - 1 - {x.name}" if self.c.chance(6) else x.name for x in order]
        return f"{target.name}[{', '.join(places)}]"

    def _guards(self, mine: tuple[Loop, ...], others: tuple[Loop, ...]) -> tuple[str, ...]:
        """Conditions that mention at least one of `mine`."""
        if not mine:
            return ()
        result = []
        for _ in range(self.c.integer(1, 2)):
            x = self.c.pick(mine)
            y = self.c.pick((*mine, *others))
            a, b = x.name, y.name
            result.append(self.c.pick((
                f"{a} <= {b}", f"{a} + {b} < {x.extent}", f"({a} + {b}) % 2 == 0",
                f"{a} % 3 != 1", f"{a} != 2", f"0 <= {a} + {b} - 1 < {x.extent}",
                f"{a} >= 1", f"{a} < 5", f"not {a} == {b}", f"{a} < {b} or {b} < 2",
                f"{a}//2 >= {b} - 1", f"{a} == {b}", f"2*{a} > {b} + 1", f"3*{a} - 2*{b} <= 4",
            )))  # fmt: skip
        return tuple(dict.fromkeys(result))

    # --- values -----------------------------------------------------------------------------

    def _value(self, dtype: str, loops: tuple[Loop, ...], depth: int, avoid: str = "") -> str:
        """A value that may be stored in a tensor of `dtype`."""
        before = self.arrays
        if avoid:
            self.arrays = {n: a for n, a in before.items() if n != avoid}
        try:
            if dtype == "bool":
                return self._bool(loops, depth)
            if self.c.chance(8):
                return weak_literal(self.c, self.profile, dtype)
            kind = dtype
            if self.c.chance(12) and self.family == "mixed":
                kind = self.c.pick((*FLOATS, *INTEGERS))
            value = self._number(kind, loops, depth)
            if kind in FLOATS and dtype not in FLOATS:
                value = self._clamped(value, dtype)
                return value if not avoid and self.c.chance(50) else f"{dtype}({value})"
            return value
        finally:
            if avoid:
                added = {n: a for n, a in self.arrays.items() if n not in before}
                self.arrays = {**before, **added}

    def _clamped(self, value: str, dtype: str) -> str:
        """A float that fits an integer type: other conversions have no meaning."""
        low = "0" if dtype.startswith("u") else "-100"
        return f"min(max(select(isnan({value}), 0.5, {value}), {low}), 100)"

    def _number(self, dtype: str, loops: tuple[Loop, ...], depth: int) -> str:
        if depth <= 0:
            return self._leaf(dtype, loops)
        left = self._number(dtype, loops, depth - 1)
        if self.c.chance(30):
            return self._unary(dtype, left)
        if self.c.chance(12):
            condition = self._condition(loops, depth - 1)
            right = self._operand(dtype, loops, depth - 1)
            return f"select({condition}, {left}, {right})"
        right = self._operand(dtype, loops, depth - 1)
        if self.c.chance(25):
            left, right = right, left
        return self._binary(dtype, left, right)

    def _operand(self, dtype: str, loops: tuple[Loop, ...], depth: int) -> str:
        """A value to meet one of `dtype`: of that type, a weak literal, or a narrower type."""
        if self.c.chance(30):
            return weak_literal(self.c, self.profile, dtype)
        if dtype == "float64" and self.c.chance(15):
            return self._number("float32", loops, depth)
        if dtype == "int64" and self.c.chance(15):
            return self._number("int32", loops, depth)
        if dtype in FLOATS and self.c.chance(6):
            return self._number(self.c.pick(INTEGERS), loops, 0)
        return self._number(dtype, loops, depth)

    def _unary(self, dtype: str, x: str) -> str:
        if dtype in FLOATS:
            if self.profile.functions and self.c.chance(60):
                return self.c.pick((
                    f"exp(min({x}, 2))", f"tanh({x})", f"sigmoid({x})", f"sin({x})", f"cos({x})",
                    f"erf({x})", f"log(abs({x}) + 1)", f"atan({x})", f"asinh({x})",
                    f"atan2({x}, 3)", f"rsqrt(abs({x}) + 1)",
                ))  # fmt: skip
            if self.profile.smooth:
                return self.c.pick((f"-({x})", f"abs({x})"))
            return self.c.pick((
                f"-({x})", f"abs({x})", f"sign({x})", f"floor({x})", f"ceil({x})", f"round({x})",
                f"trunc({x})", f"sqrt(abs({x}))", f"rsqrt(abs({x}) + 1)", f"sqrt({x})",
            ))  # fmt: skip
        choices = [f"-({x})", f"~({x})", f"sign({x})"]
        if not dtype.startswith("u") or self.c.chance(20):
            choices.append(f"abs({x})")
        return self.c.pick(choices)

    def _binary(self, dtype: str, a: str, b: str) -> str:
        if self.profile.smooth and dtype in FLOATS:
            return self.c.pick((f"({a} + {b})", f"({a} - {b})", f"{a} * ({b})",
                                f"max({a}, {b})", f"min({a}, {b})"))  # fmt: skip
        common = [
            f"({a} + {b})", f"({a} - {b})", f"({a}) * ({b})", f"max({a}, {b})", f"min({a}, {b})",
        ]  # fmt: skip
        if self.c.chance(60):
            return self.c.pick(common)
        if dtype in FLOATS:
            return self.c.pick((f"({a}) / ({b})", f"({a}) % ({b})", f"({a}) // ({b})",
                                f"fmod({a}, {b})"))  # fmt: skip
        return self.c.pick((
            f"({a}) / ({b})", f"({a}) // ({b})", f"({a}) % ({b})", f"fmod({a}, {b})",
            f"(({a}) & ({b}))", f"(({a}) | ({b}))", f"(({a}) ^ ({b}))",
            f"(({a}) << ({b}))", f"(({a}) >> ({b}))",
        ))  # fmt: skip

    def _bool(self, loops: tuple[Loop, ...], depth: int) -> str:
        if depth <= 0 and self.c.chance(60):
            return self._read("bool", loops)
        if depth > 0 and self.c.chance(50):
            a, b = self._bool(loops, depth - 1), self._bool(loops, depth - 1)
            return self.c.pick((
                f"({a} and {b})", f"({a} or {b})", f"(not {a})", f"max({a}, {b})",
                f"min({a}, {b})", f"(({a}) ^ ({b}))", f"(({a}) & ({b}))", f"select({a}, {b}, true)",
            ))  # fmt: skip
        return self._condition(loops, depth)

    def _condition(self, loops: tuple[Loop, ...], depth: int) -> str:
        if (self.profile.smooth or self.c.chance(40)) and loops:
            a, b = self.c.pick(loops).name, self.c.pick(loops).name
            return self.c.pick((f"{a} <= {b}", f"{a} % 2 == 0", f"{a} + 1 > {b}", f"{a} < 3"))
        if self.profile.smooth:
            return "1 < 2"
        dtype = self.c.pick((*FLOATS, *INTEGERS))
        x, y = self._number(dtype, loops, depth - 1), self._operand(dtype, loops, depth - 1)
        if dtype in FLOATS and self.c.chance(15):
            return self.c.pick((f"isnan({x})", f"isinf({x})", f"bool({x})"))
        return f"({x} {self.c.pick(('<', '<=', '>', '>=', '==', '!='))} {y})"

    def _leaf(self, dtype: str, loops: tuple[Loop, ...]) -> str:
        roll = self.c.integer(0, 99)
        if roll < 8 and loops:
            x = self.c.pick(loops)
            return f"{dtype}({x.name})" if dtype != "int64" else x.name
        if roll < 12 and self.sizes and dtype in ("int64", "float32", "float64"):
            return self.c.pick(self.sizes) if dtype == "int64" else f"{dtype}({self.sizes[0]})"
        if roll < 16:
            return self._typed(dtype)
        if roll < 24 and not self.profile.smooth:
            other = self.c.pick((*FLOATS, *INTEGERS, "bool"))
            read = self._read(other, loops)
            if other in FLOATS and dtype not in FLOATS:
                return f"{dtype}({self._clamped(read, dtype)})"
            return f"{dtype}({read})"
        return self._read(dtype, loops)

    def _typed(self, dtype: str) -> str:
        if dtype in FLOATS:
            return f"{dtype}({self.c.pick(('0.1', '1', '-2.5', '1/3', '-0.1', '3'))})"
        low = "5" if dtype.startswith("u") else "-5"
        return f"{dtype}({self.c.pick(('1', '7', low, '100', '(2 + 3)'))})"

    # --- reads ------------------------------------------------------------------------------

    def _read(self, dtype: str, loops: tuple[Loop, ...], must: Loop | None = None) -> str:
        candidates = [a for a in self.arrays.values() if a.dtype == dtype]
        if candidates and self.c.chance(65):
            array = self.c.pick(candidates)
            places = [self._place_in(e, loops) for e in array.extents]
            if all(p is not None for p in places):
                text = f"{array.name}[{', '.join(str(p) for p in places)}]"
                if must is None or must.name in words_of(text):
                    return text
        most = min(5, len(loops) + 1)
        rank = max(self.c.integer(0, most), 1 if must else 0)
        if loops and self.c.chance(50):
            rank = max(rank, min(len(loops), 3))
        extents: list[Extent] = []
        texts: list[str] = []
        for n in range(rank):
            x = must if must and n == 0 else self.c.pick(loops) if loops else None
            if x is None:
                extents.append(number(self.c.integer(1, 3)))
                texts.append(str(extents[-1].offset - 1))
                continue
            text, extent = self._new_place(x, loops)
            texts.append(text)
            extents.append(extent)
        array = self.new("input", dtype, tuple(extents))
        return f"{array.name}[{', '.join(texts)}]"

    def _new_place(self, x: Loop, loops: tuple[Loop, ...]) -> tuple[str, Extent]:
        """An index expression over `x` and the extent that it asks for."""
        n, e = x.name, x.extent
        if self.c.chance(50):
            return n, e
        y = self.c.pick(loops)
        both = e.plus(y.extent)
        twice = e.times(2).plus(y.extent)
        options: list[tuple[str, Extent]] = [
            (f"{e} - 1 - {n}", e), (f"{n}//2", e), (f"{n} % 3", number(3)),
            (f"{n} + 2", sum_of(e, number(2))), (f"2*{n}", e.times(2)),
            (f"3*{n} + 1", sum_of(e.times(3), number(1))), (f"max({n} - 1, 0)", e),
            (f"min({n} + 1, {e} - 1)", e), (f"{n}//3 + {n} % 3", sum_of(e, number(3))),
            ("0", number(2)), ("2", number(3)), (f"({n} + 1) % 4", number(4)),
        ]  # fmt: skip
        if both is not None:
            options += [(f"{n} + {y.name}", both), (f"{n} + {y.name}", both),
                        (f"({n} + {y.name})//2", both)]  # fmt: skip
            if y != x:
                options.append((f"{n} - {y.name} + {y.extent}", sum_of(both, number(1))))
        if twice is not None:
            options += [(f"2*{n} + {y.name}", twice)] * 2
        if self.c.chance(12):
            return self._gather(x, loops)
        return self.c.pick(options)

    def _gather(self, x: Loop, loops: tuple[Loop, ...]) -> tuple[str, Extent]:
        index = self.new("input", self.c.pick(("int64", "int32", "int8", "uint8")), (x.extent,))
        return f"{index.name}[{x.name}]", number(self.c.integer(1, 5))

    def _place_in(self, e: Extent, loops: tuple[Loop, ...]) -> str | None:
        """An index expression that stays within 0:e, or None."""
        options: list[str] = []
        for x in loops:
            n = x.name
            if x.extent == e:
                options += [n] * 5
                options += [f"{e} - 1 - {n}", f"{n}//2", f"max({n} - 1, 0)",
                            f"min({n} + 1, {e} - 1)"]  # fmt: skip
            elif not e.size and e.offset > 0:
                options.append(f"{n} % {e.offset}")
            elif e.size and x.extent.size == e.size and x.extent.factor == 1 == e.factor:
                gap = e.offset - x.extent.offset
                if gap > 0:
                    options += [n, f"{n} + {gap}"]
        if not e.size and e.offset > 0:
            options.append(str(self.c.integer(0, e.offset - 1)))
        return self.c.pick(options) if options else None


def random_text(seed: int, profile: Profile | None = None) -> str:
    """A program from a seed."""
    return ProgramMaker(Seeded(seed), profile).text()


@st.composite
def texts(draw: Any, profile: Profile | None = None) -> str:
    """Hypothesis' programs."""
    return ProgramMaker(Drawn(draw), profile).text()
