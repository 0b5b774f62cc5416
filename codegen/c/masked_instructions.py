"""AVX-512's instructions on some lanes of a vector, by the names of compilers' built-in functions.

Those of ``immintrin.h`` are longer known; but parsing it takes longer than most kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

#: By element: the C type that instructions have instead, if another, and its letters in the names
#: of loads and stores, and of moves.
_ELEMENTS = {
    "i8": ("char", "dquqi", "dquqi"),
    "u8": ("char", "dquqi", "dquqi"),
    "i16": ("short", "dquhi", "dquhi"),
    "u16": ("short", "dquhi", "dquhi"),
    "f32": ("", "ups", "aps"),
    "f64": ("", "upd", "apd"),
    "i32": ("", "dqusi", "dqa32_"),
    "u32": ("int", "dqusi", "dqa32_"),
    "i64": ("long long", "dqudi", "dqa64_"),
    "u64": ("long long", "dqudi", "dqa64_"),
}


#: With more lanes, every other element would need a mask of more than 64 bits.
MOST_LANES = 16
#: Elements whose instructions came later.
_SHORT = ("i8", "u8", "i16", "u16")


@dataclass(frozen=True)
class MaskedInstructions:
    """Those for one vector type.  Masks have a bit for each lane.

    vector : the name of the type
    """

    vector: str
    element: str
    lanes: int
    bits: int

    @property
    def condition(self) -> str:
        """What the preprocessor is asked about loads and stores."""
        needed = ["__AVX512F__" if self.bits == 512 else "__AVX512VL__"]
        needed += ["__AVX512BW__"] if self.element in _SHORT else []
        return " && ".join(f"defined({feature})" for feature in needed)

    @property
    def moves(self) -> str:
        """What it is asked about moves."""
        return f"{self.condition} && !defined(__clang__)"

    def load(self, pointer: str, mask: str) -> str:
        """Lanes of the mask from memory, 0 in others."""
        own = f"({self._type or self.vector}){{0}}"
        return f"{self._name('load', 1)}((const void *)({pointer}), {own}, {self._mask(mask)})"

    def store(self, pointer: str, mask: str, x: str) -> str:
        """Lanes of the mask to memory."""
        own = self._cast(x)
        return f"{self._name('store', 1)}((void *)({pointer}), {own}, {self._mask(mask)})"

    def move(self, mask: str, x: str, old: str) -> str:
        """Lanes of the mask from `x`, others from `old`."""
        own = f"{self._cast(x)}, {self._cast(old)}"
        return f"{self._name('mov', 2)}({own}, {self._mask(mask)})"

    @property
    def _type(self) -> str:
        """The instructions' type, "" if it is that of the vectors."""
        c = _ELEMENTS[self.element][0]
        return f"{c} __attribute__((vector_size({self.bits // 8})))" if c else ""

    def _cast(self, x: str) -> str:
        return f"({self._type}){x}" if self._type else x

    def _name(self, what: str, letters: int) -> str:
        return f"__builtin_ia32_{what}{_ELEMENTS[self.element][letters]}{self.bits}_mask"

    def _mask(self, bits: str) -> str:
        return f"({'uint16_t' if self.lanes == 16 else 'uint8_t'})({bits})"


def has_masked(element: str) -> bool:
    """Whether there are such instructions for vectors of some element."""
    return element in _ELEMENTS


def masked_instructions(
    vector: str, element: str, lanes: int, bits: int
) -> MaskedInstructions | None:
    """Those for a vector type of some lanes and bits, None if there are none."""
    if not has_masked(element) or bits not in (128, 256, 512) or lanes > MOST_LANES:
        return None
    return MaskedInstructions(vector, element, lanes, bits)
