"""`Module`: what a C file that is exported is made of, and its header."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

from codegen.c.function import CFunction
from codegen.c.section_text import is_checked
from codegen.c.type_names import C_TYPES, PATTERNS
from codegen.c.weights_text import ALIGNMENT
from poly.ir.dtypes import DType
from poly.machine.isa import Isa

#: What a run returns, in order from 0, and what it means.
CODES = (
    ("OK", "no error"),
    ("NULL", "a pointer to a tensor that has elements, or to the weights, is null"),
    ("ALIGNMENT", "a pointer is not a multiple of the size of the elements there"),
    ("WORKSPACE", "the workspace is null or too small"),
    ("VALUE", "an input whose elements are fixed has others"),
    ("SIZE", "a size is out of range"),
    ("THREADS", "threads cannot be started, or there are too few or too many"),
    ("ELEMENT", "an input has elements that cannot be used, such as an index out of range"),
    ("MACHINE", "the machine lacks instructions that the code needs"),
)


def _product(shape: Sequence[int | str], width: int = 1) -> int | str:
    """The product of extents and of a number: in C, if there are texts in C among them."""
    known = math.prod(n for n in shape if isinstance(n, int)) * width
    open_ = [n if n.isidentifier() else f"({n})" for n in shape if isinstance(n, str)]
    if not open_ or not known:
        return known
    return " * ".join([*open_, *([str(known)] if known != 1 else [])])


@dataclass(frozen=True)
class Parameter:
    """A tensor that the caller passes: its name in C, what users call it, its type and shape.

    An extent is a number, or an expression in C over the sizes of the module.

    described : the shape for readers, where it differs
    """

    name: str
    label: str
    dtype: DType
    shape: tuple[int | str, ...]
    described: tuple[str, ...] = ()

    @property
    def extents(self) -> tuple[int, ...]:
        """The shape, where it is fixed."""
        return tuple(n for n in self.shape if isinstance(n, int))

    @property
    def count(self) -> int | str:
        """The number of its elements."""
        return _product(self.shape)

    @property
    def kind(self) -> str:
        """The C type of its elements."""
        return "uint16_t" if self.dtype.name in PATTERNS else C_TYPES[self.dtype.name]

    @property
    def shown(self) -> str:
        """What an element is, where its C type does not say so."""
        if self.dtype.name in PATTERNS:
            return f" of {self.dtype.name}, as its bits"
        return " of truth values, 0 or 1" if self.dtype.kind == "b" else ""


@dataclass(frozen=True)
class Declared:
    """A name in C, and what precedes it in its declaration."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}{self.name}"


@dataclass(frozen=True)
class Step:
    """One call of a function, or the copy of some bytes.

    about : what it computes; text : the C statement; is_shared : all threads of a team run it
    may_fail : the text is an expression, which is not 0 where elements cannot be used
    """

    about: str
    text: str
    is_shared: bool = False
    may_fail: bool = False


@dataclass(frozen=True)
class Storage:
    """A tensor in memory: its shape as of a `Parameter`, and the bytes of an element."""

    shape: tuple[int | str, ...]
    width: int

    @property
    def bytes(self) -> str:
        """Its bytes, in C."""
        return str(_product(self.shape, self.width))

    @property
    def fixed_bytes(self) -> int:
        """Its bytes, where its shape is fixed."""
        return math.prod(n for n in self.shape if isinstance(n, int)) * self.width


@dataclass(frozen=True)
class Temporary:
    """A part of the workspace: its name and C type, and the tensors that are in it in turn."""

    name: str
    kind: str
    parts: tuple[Storage, ...]

    @property
    def bytes(self) -> str:
        """Its bytes, in C."""
        return reduce(lambda a, b: f"fk_hi({a}, {b})", (part.bytes for part in self.parts))

    @property
    def fixed_bytes(self) -> int:
        """Its bytes, where all shapes are fixed."""
        return max(part.fixed_bytes for part in self.parts)


@dataclass(frozen=True, eq=False)
class Module:
    """What a C file is made of.

    name : prefix of its names; about : what it is, in lines
    sizes : those that each run is passed, in C, and what users call them; conditions : what must
        hold for them, in C and for readers
    functions : each with the nodes that call it; routines : the texts of further functions
    fixed : where in the weights the elements are that an input must have, by its name in C
    steps : in order; they name parameters, temporaries, ``weights`` and ``work``
    arena, bound : bytes that the steps use of ``work``, and the least that any plan would need;
        temporaries : what follows in the workspace
    weights : the bytes of constants; is_separate : whether callers pass these
    has_team : whether a run is passed a team of threads, see `codegen.c.team_text`
    has_openmp : whether it is passed their number instead, see `codegen.c.openmp_text`
    isa : the instruction set that the functions are for
    others : the same for other instruction sets, of fewer features, with the same weights
    """

    name: str
    about: tuple[str, ...]
    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    functions: tuple[tuple[CFunction, tuple[str, ...]], ...]
    steps: tuple[Step, ...]
    isa: Isa
    sizes: Mapping[str, str] = field(default_factory=dict)
    conditions: tuple[tuple[str, str], ...] = ()
    temporaries: tuple[Temporary, ...] = ()
    routines: tuple[str, ...] = ()
    fixed: Mapping[str, int] = field(default_factory=dict)
    arena: int = 0
    bound: int = 0
    weights: bytes = b""
    is_separate: bool = False
    has_team: bool = False
    has_openmp: bool = False
    others: tuple[Module, ...] = ()

    @property
    def sections(self) -> tuple[Module, ...]:
        """For each instruction set, from that of the most features to that of the least."""
        return (replace(self, others=()), *self.others)

    @property
    def is_plain(self) -> bool:
        """Whether there is one section, which every machine of its architecture can run."""
        return not self.others and not is_checked(self.isa)

    @property
    def flags(self) -> tuple[str, ...]:
        """Those with which to compile it."""
        return self.isa.flags if self.is_plain else ()

    @property
    def prefix(self) -> str:
        """Of its macros."""
        return self.name.upper()

    @property
    def memory(self) -> int:
        """The bytes that its functions need in addition, one after the other, in each thread."""
        functions = (f for section in self.sections for f, _ in section.functions)
        return whole_bytes(max((f.thread_memory for f in functions), default=0))

    @property
    def has_workspace(self) -> bool:
        """Whether a run needs any."""
        return any(x.arena or x.temporaries or x.memory for x in self.sections)

    @property
    def workspace(self) -> int:
        """The bytes of the workspace of fixed sizes, wherever it begins.

        The memory of functions is not counted for a team, each thread of which has some.
        """
        needed = []
        for x in self.sections:
            own = 0 if x.has_team else x.memory
            needed.append(
                sum(
                    [
                        whole_bytes(x.arena),
                        own,
                        *(whole_bytes(t.fixed_bytes) for t in x.temporaries),
                    ]
                )
            )
        return max(needed) + ALIGNMENT - 1 if self.has_workspace else 0

    @property
    def tensors(self) -> tuple[Declared, ...]:
        """What a run is passed in any case: sizes, tensors and weights."""
        given = [Declared("int64_t ", size) for size in self.sizes]
        given += [Declared(f"const {p.kind} *", p.name) for p in self.inputs]
        given += [Declared(f"{p.kind} *", p.name) for p in self.outputs]
        if self.is_separate and self.weights:
            given.append(Declared("const void *", "weights"))
        return tuple(given)

    @property
    def parameters(self) -> tuple[Declared, ...]:
        """What a run is passed."""
        team = [Declared(f"{self.name}_team *", "team")] if self.has_team else []
        team = [Declared("int ", "threads")] if self.has_openmp else team
        own = Declared("void *", "workspace"), Declared("size_t ", "workspace_bytes")
        return (*self.tensors, *own, *team)

    @property
    def arguments(self) -> tuple[Declared, ...]:
        """What the threads of a team are passed."""
        return (*self.tensors, Declared("unsigned char *", "work"))

    @property
    def prototype(self) -> str:
        between = ",\n" + " " * len(f"int {self.name}_run(")
        return f"int {self.name}_run({between.join(map(str, self.parameters))})"


def whole_bytes(count: int) -> int:
    """Bytes, rounded up to a multiple of the alignment."""
    return -(-count // ALIGNMENT) * ALIGNMENT
