"""Sliding windows: the shapes and indices that convolutions and pools share.

Padding is never materialised: an element outside the input is outside the reduction domain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from frontends.onnx.core.comprehension_text import affine
from frontends.onnx.core.node import Node
from frontends.onnx.core.symbolic_dims import Extent, certainly_less

#: Index names of output positions, and of filter taps: the elements of a window.
POSITIONS = ("p", "q", "u")
TAPS = ("r", "s", "t")


@dataclass(frozen=True)
class Window:
    """One spatial axis: input element ``stride*p + dilation*r - before`` for output p and tap r."""

    size: Extent
    kernel: int
    stride: int
    dilation: int
    before: int
    after: int
    out: Extent

    @property
    def last(self) -> Extent:
        """The greatest index of an input element that a window reads, in bounds or not."""
        return (self.out - 1) * self.stride + (self.kernel - 1) * self.dilation - self.before

    @property
    def has_taps(self) -> bool:
        """Whether the window needs a reduction index.

        A window of one element needs none, unless it can be in the padding: a guard without a
        reduction index would also restrict the initialisation.
        """
        return self.kernel != 1 or self.before > 0 or not certainly_less(self.last, self.size)

    def index(self, position: str, tap: str) -> str:
        """The index of the input element, as text."""
        terms = [(self.stride, position)]
        if self.has_taps:
            terms.append((self.dilation, tap))
        return affine(terms, -self.before)

    def guards(self, position: str, tap: str) -> list[str]:
        """The guards that keep the input index in bounds, none if it always is."""
        index = self.index(position, tap)
        guards = [f"0 <= {index}"] if self.before > 0 else []
        always = certainly_less(self.last, self.size)
        return guards + ([] if always else [f"{index} < {self.size}"])

    def ranges(self, tap: str) -> dict[str, int]:
        """The range of the tap, none for a window of one element."""
        return {tap: self.kernel} if self.has_taps else {}

    def count(self, position: str, with_padding: bool) -> str:
        """How many taps fall inside the input (or the padded input), as an integer expression; 1 if
        none does, so that an average of nothing is 0.
        """
        low, high = (-self.before, self.size + self.after) if with_padding else (0, self.size)
        if -self.before >= low and certainly_less(self.last, high):
            return str(self.kernel)
        start = affine([(self.stride, position)], -self.before)
        d = self.dilation
        if d == 1:
            end = affine([(self.stride, position)], self.kernel - self.before)
            count = f"(min({end}, {high}) - max({start}, {low}))"
        else:
            first_after = f"min({self.kernel}, ({high} - ({start}) + {d - 1}) // {d})"
            first_inside = f"max(0, ({low} - ({start}) + {d - 1}) // {d})"
            count = f"({first_after} - {first_inside})"
        may_miss = d > 1 or self.before >= self.kernel or self.after >= self.kernel
        return f"max({count}, 1)" if may_miss and not with_padding else count


def weights_kernel(node: Node, weights: Sequence[int]) -> tuple[int, ...]:
    """The extents of a kernel, from the shape of its weights.

    Raises
    ------
    ModelError : for an empty kernel, or a `kernel_shape` that differs from the weights.
    """
    kernel = node.ints("kernel_shape")
    if kernel is not None and kernel != tuple(weights[2:]):
        raise node.fail(f"kernel_shape {list(kernel)} differs from the weights' {weights[2:]}")
    if any(k < 1 for k in weights[2:]):
        raise node.fail("the kernel is empty")
    return tuple(weights[2:])


def spatial(node: Node, name: str, rank: int, default: int) -> tuple[int, ...]:
    """An attribute with one positive number per spatial axis.

    Raises
    ------
    ModelError : for a wrong count, or a number below 1 or above 2**31 - 1.
    """
    values = node.ints(name) or (default,) * rank
    if len(values) != rank:
        raise node.fail(f"{name} has {len(values)} entries for {rank} spatial axes")
    if any(not 1 <= v < 1 << 31 for v in values):
        raise node.fail(f"{name} must be numbers from 1 to 2**31 - 1: {list(values)}")
    return values


def windows(
    node: Node,
    sizes: Sequence[int],
    kernel: Sequence[int],
    dilations: Sequence[int],
    ceil_mode: bool = False,
) -> tuple[Window, ...]:
    """The windows of a node from its strides, pads and auto_pad.

    Raises
    ------
    ModelError : when attributes contradict each other or the window does not fit.
    """
    rank = len(sizes)
    strides = spatial(node, "strides", rank, 1)
    auto = node.word("auto_pad", "NOTSET") or "NOTSET"
    pads = node.ints("pads") or (0,) * (2 * rank)
    if auto not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise node.fail(f"auto_pad {auto!r} does not exist")
    if len(pads) != 2 * rank:
        raise node.fail(f"pads has {len(pads)} entries for {rank} spatial axes")
    if any(not 0 <= p < 1 << 31 for p in pads):
        raise node.fail(f"pads must not be negative: {list(pads)}")
    result = []
    for axis, size in enumerate(sizes):
        k, s, d = kernel[axis], strides[axis], dilations[axis]
        extent = (k - 1) * d + 1
        before, after = pads[axis], pads[axis + rank]
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            total = max(0, (-(-size // s) - 1) * s + extent - size)
            before = total // 2 if auto == "SAME_UPPER" else total - total // 2
            after = total - before
        elif auto == "VALID":
            before = after = 0
        room = size + before + after - extent
        if room < 0:
            raise node.fail(
                f"a window of {extent} does not fit into {size} elements"
                + (f" padded by {before} and {after}" if before or after else "")
            )
        out = (-(-room // s) if ceil_mode else room // s) + 1
        if ceil_mode and (out - 1) * s >= size + before:
            out -= 1  # a window may not start in the padding at the end
        result.append(Window(size, k, s, d, before, after, out))
    return tuple(result)


def axis_names(node: Node, rank: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Index names of the output positions and taps for `rank` spatial axes."""
    if rank <= len(POSITIONS):
        return POSITIONS[:rank], TAPS[:rank]
    return tuple(f"p{a}" for a in range(rank)), tuple(f"r{a}" for a in range(rank))
