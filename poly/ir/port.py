"""`Port`: an input or output of a network, under its name in the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from poly.errors import ArgumentError
from poly.ir.dtypes import DType


@dataclass(frozen=True)
class Port:
    """An input or output: numbers for fixed sizes, names for named ones, else None.

    `shape` is None if not even the rank is known.
    """

    name: str
    dtype: DType
    shape: tuple[int | str | None, ...] | None

    def __str__(self) -> str:
        if self.shape is None:
            return f"{self.dtype} {self.name}"
        sizes = ",".join("?" if e is None else str(e) for e in self.shape)
        return f"{self.dtype} {self.name}[{sizes}]"

    @property
    def axes(self) -> tuple[str | None, ...] | None:
        """Names for the sizes of open axes, None for fixed ones; None if the rank is unknown.

        Axes of the same name have the same size; unnamed ones get a name of their own.
        """
        if self.shape is None:
            return None
        return tuple(
            None if isinstance(e, int) else e or f"{self.name}.{a}"
            for a, e in enumerate(self.shape)
        )

    def check(self, shape: tuple[int, ...], sizes: dict[str, int]) -> None:
        """Check an array's shape; `sizes` collects those of named dimensions.

        Raises
        ------
        ArgumentError : the shape does not match.
        """
        if self.shape is None:
            return
        if len(shape) != len(self.shape):
            raise ArgumentError(f"{self.name} has shape {shape}, not {self}")
        for axis, (extent, size) in enumerate(zip(self.shape, shape, strict=True)):
            if isinstance(extent, str):
                if sizes.setdefault(extent, size) != size:
                    raise ArgumentError(
                        f"{self.name}: dimension {axis} is {size}, "
                        f"but '{extent}' is {sizes[extent]} in another input"
                    )
            elif extent is not None and extent != size:
                raise ArgumentError(f"{self.name} has shape {shape}, not {self}")

    def at(self, shapes: Mapping[str, Sequence[int] | int]) -> tuple[int, ...]:
        """The shape for given sizes: of this input by its name, or of dimensions by theirs.

        Raises
        ------
        ArgumentError : a size is not given.
        """
        own = shapes.get(self.name)
        if isinstance(own, Sequence):
            return tuple(own)
        if self.shape is None:
            raise ArgumentError(f"the shape of input {self} is not given")
        found = []
        for axis, extent in enumerate(self.shape):
            size = extent if isinstance(extent, int) else shapes.get(extent or "")
            if not isinstance(size, int):
                raise ArgumentError(f"the size of dimension {axis} of input {self} is not given")
            found.append(size)
        return tuple(found)
