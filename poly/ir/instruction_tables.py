"""The instructions that schedules know by name: those of tensor cores, and those of CPUs.

One table a machine.  A row is the meaning, what /proc/cpuinfo calls the feature, and the C
text; the functions in it are those of `codegen.c.vector_helpers`, which have a form for every
compiler and machine, so that generated code still compiles where the instruction is missing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from poly.errors import IntrinsicError
from poly.ir.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT8, INT16, INT32, UINT8, DType
from poly.ir.expr import Cast, Const, Expr, Index, Op, Read, add, mul
from poly.ir.intrinsics import Intrinsic, MatrixIntrinsic, VectorIntrinsic
from poly.ir.program import Program, Range, Statement, Tensor
from poly.machine.cpu import EXTENSIONS

#: Those of tensor cores, by name.
MATRIX_INTRINSICS: dict[str, MatrixIntrinsic] = {
    i.name: i
    for i in (
        MatrixIntrinsic("wmma_f16", FLOAT16, (16, 16, 16), 32),
        MatrixIntrinsic("wmma_bf16", BFLOAT16, (16, 16, 16), 16),
        MatrixIntrinsic("wmma_tf32", FLOAT32, (16, 16, 8), 16, "rounded to 10 fraction bits"),
    )
}


@dataclass(frozen=True)
class _DotProduct:
    """``C[j] += A[j,k] * B[j,k]`` for `lanes` sums j of `group` products k each.

    name : of the instruction, and `helper` of its function in generated code
    a, b, total : the types of the factors and of the sums
    """

    name: str
    helper: str
    a: DType
    b: DType
    total: DType
    group: int
    feature: str
    reorders: bool = False

    def forms(self, lanes: int) -> Iterator[VectorIntrinsic]:
        """The instruction on vectors of so many sums, with one factor the same in all of them, or
        none.
        """
        for suffix, moving in (("b", "B"), ("a", "A"), ("ab", "AB")):
            yield VectorIntrinsic(
                self._meaning(f"{self.name}_{lanes}_{suffix}", lanes, moving),
                self._template(lanes, moving),
                feature=self.feature,
                reorders=self.reorders,
            )

    def transposed(self, lanes: int) -> VectorIntrinsic:
        """The instruction on bytes ``A[k,j]``: those of a lane lie `lanes` apart."""
        kind = f"{self.total.kind}{self.total.bits}x{lanes}"
        bytes_ = lanes * self.group
        a, b = (f"*(const fk_u8x{bytes_}_u *){{{t}}}" for t in "AB")
        c = f"*(fk_{kind}_u *){{C}}"
        a = f"fk_turned{self.group}_i32x{lanes}({a})"
        text = f"{c} = fk_{self.helper}_{kind}({c}, {a}, (fk_i32x{lanes}){b});"
        name = f"{self.name}_{lanes}_turned"
        meaning = self._meaning(name, lanes, "AB", turned="A")
        return VectorIntrinsic(meaning, text, feature=f"{self.feature} avx512vbmi")

    def windows(self, lanes: int) -> Iterator[VectorIntrinsic]:
        """The instruction on windows of a row: ``C[j] += A[s*j + k] * B[k]``, or with the factors
        exchanged, for s of 1 and 2.
        """
        kind = f"{self.total.kind}{self.total.bits}x{lanes}"
        for moving, suffix in (("A", "a"), ("B", "b")):
            for step in (1, 2):
                row = f"fk_windows{step}_i32x{lanes}((const uint8_t *){{{moving}}})"
                still = "B" if moving == "A" else "A"
                one = f"fk_splat_i32x{lanes}((int32_t)*(const fk_u8x4_u *){{{still}}})"
                a, b = (row, one) if moving == "A" else (one, row)
                c = f"*(fk_{kind}_u *){{C}}"
                name = f"{self.name}_{lanes}_{suffix}_windows{step}"
                meaning = self._meaning(name, lanes, moving, step=step)
                text = f"{c} = fk_{self.helper}_{kind}({c}, {a}, {b});"
                yield VectorIntrinsic(meaning, text, feature=f"{self.feature} avx512vbmi")

    def _meaning(
        self, name: str, lanes: int, moving: str, turned: str = "", step: int = 0
    ) -> Program:
        """moving : the factors that move with j; turned : those stored as ``[k,j]``

        step : of windows in a row, in which a moving factor is stored; 0 if it is not
        """
        factors: list[Expr] = []
        inputs: list[Tensor] = []
        extents = {"j": Const(lanes), "k": Const(self.group)}
        for tensor, dtype in (("A", self.a), ("B", self.b)):
            own = ("j", "k") if tensor in moving else ("k",)
            own = own[::-1] if tensor in turned else own
            at: tuple[Expr, ...] = tuple(map(Index, own))
            shape = tuple(extents[x] for x in own)
            if step and tensor in moving:
                at = (add(mul(Const(step), Index("j")), Index("k")),)
                shape = (Const(step * (lanes - 1) + self.group),)
            factors.append(Cast(self.total, Read(tensor, at)))
            inputs.append(Tensor(tensor, dtype, shape))
        sums = Tensor("C", self.total, (Const(lanes),))
        ranges = Range("j", Const(0), Const(lanes)), Range("k", Const(0), Const(self.group))
        update = Statement(
            "dot", Read("C", (Index("j"),)), "+=", False, Op("mul", tuple(factors)), ranges, ("k",)
        )
        return Program(name, (), (*inputs, sums), (sums,), (), (update,))

    def _template(self, lanes: int, moving: str) -> str:
        kind = f"{self.total.kind}{self.total.bits}x{lanes}"
        bytes_ = lanes * self.group * self.a.bytes
        whole = f"(fk_i32x{lanes})*(const fk_u8x{bytes_}_u *){{T}}"
        one = f"fk_splat_i32x{lanes}((int32_t)*(const fk_u8x4_u *){{T}})"
        a, b = ((whole if t in moving else one).replace("{T}", f"{{{t}}}") for t in ("A", "B"))
        c = f"*(fk_{kind}_u *){{C}}"
        return f"{c} = fk_{self.helper}_{kind}({c}, {a}, {b});"


_VNNI = _DotProduct("vpdpbusd", "dot4", UINT8, INT8, INT32, 4, "avx512_vnni")

#: The dot products of x86, with the numbers of lanes that they have; the better ones first.
_X86: tuple[tuple[_DotProduct, tuple[int, ...]], ...] = (
    (_VNNI, (16, 8, 4)),
    (_DotProduct("vpdpbusd_vex", "dot4", UINT8, INT8, INT32, 4, "avx_vnni"), (8, 4)),
    (_DotProduct("vpdpwssd", "dot2", INT16, INT16, INT32, 2, "avx512_vnni"), (16, 8, 4)),
    (_DotProduct("vpmaddwd", "dot2", INT16, INT16, INT32, 2, "avx512bw"), (16,)),
    (_DotProduct("vpmaddwd", "dot2", INT16, INT16, INT32, 2, "avx2"), (8,)),
    (_DotProduct("pmaddwd", "dot2", INT16, INT16, INT32, 2, "sse2"), (4,)),
    (
        _DotProduct("vdpbf16ps", "dotbf16", BFLOAT16, BFLOAT16, FLOAT32, 2, "avx512_bf16", True),
        (16, 8, 4),
    ),
)

#: Those of ARM.
_ARM: tuple[tuple[_DotProduct, tuple[int, ...]], ...] = (
    (_DotProduct("sdot", "dot4s", INT8, INT8, INT32, 4, "asimddp"), (4,)),
    (_DotProduct("usdot", "dot4", UINT8, INT8, INT32, 4, "i8mm"), (4,)),
    (_DotProduct("bfdot", "dotbf16", BFLOAT16, BFLOAT16, FLOAT32, 2, "bf16", True), (4,)),
)

#: Those of CPUs, by name.
VECTOR_INTRINSICS: dict[str, VectorIntrinsic] = {
    i.name: i
    for i in (
        *(i for row, lanes in (*_X86, *_ARM) for n in lanes for i in row.forms(n)),
        _VNNI.transposed(16),
        *(i for n in (16, 8) for i in _VNNI.windows(n)),
    )
}

_KNOWN: dict[str, Intrinsic] = {**MATRIX_INTRINSICS, **VECTOR_INTRINSICS}


def known_intrinsics() -> Mapping[str, Intrinsic]:
    """All declared instructions by name."""
    return _KNOWN


def dot_products(extensions: Collection[str]) -> Iterator[VectorIntrinsic]:
    """The instructions of a machine with a vector of sums, to each of which they add several terms.

    extensions : those of `poly.machine.cpu.EXTENSIONS` that the machine has
    """
    for i in _KNOWN.values():
        if not isinstance(i, VectorIntrinsic) or not i.checked:
            continue
        # Those of users were run on this machine, which may have what is not listed there.
        needed = {f for f in i.feature.split() if not i.by_user or f in EXTENSIONS}
        if needed <= {*extensions} and i.is_dot_product:
            yield i


def declare_intrinsic(intrinsic: VectorIntrinsic) -> None:
    """Make an instruction of a user known by its name, in place of an earlier one of that name.

    Schedules that were made before keep the earlier one.
    """
    assert intrinsic.by_user and not is_ours(intrinsic.name)
    _KNOWN[intrinsic.name] = intrinsic


def declare_again(intrinsic: VectorIntrinsic) -> None:
    """Make an instruction of a user known that another process has declared.

    Raises
    ------
    IntrinsicError : there is another one of this name.
    """
    known = _KNOWN.get(intrinsic.name)
    if known is None:
        declare_intrinsic(intrinsic)
    elif not isinstance(known, VectorIntrinsic) or known.text != intrinsic.text:
        raise IntrinsicError(intrinsic.name, "another instruction of this name is declared here")


def is_ours(name: str) -> bool:
    """Whether an instruction is in the tables here, and so was not declared by a user."""
    return name in MATRIX_INTRINSICS or name in VECTOR_INTRINSICS


def declared_intrinsics() -> tuple[VectorIntrinsic, ...]:
    """The instructions of users."""
    return tuple(i for i in _KNOWN.values() if isinstance(i, VectorIntrinsic) and i.by_user)
