"""Decompositions of operators of torch that torch itself has none for, in others of torch.

Imported where torch is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from farkas.frameworks.torch_grid import sample, sample_backward
from farkas.frameworks.torch_table import decomposition
from frontends.aten.scatter import MOST

torch: Any = import_module("torch")
aten = torch.ops.aten


# --- pads and interpolation -----------------------------------------------------------------------


@decomposition(*(f"replication_pad{n}d_backward.default" for n in (1, 2, 3)))
def replication_pad_backward(grad: Any, x: Any, padding: Sequence[int]) -> Any:
    """The gradients of a border are added to those of the outermost elements."""
    for n in range(len(padding) // 2):
        axis = x.dim() - 1 - n
        grad = _without_border(grad, axis, padding[2 * n], padding[2 * n + 1], x.shape[axis])
    return grad


def _without_border(grad: Any, axis: int, left: int, right: int, size: int) -> Any:
    def padded(part: Any, before: int, after: int) -> Any:
        behind = [0, 0] * (part.dim() - 1 - axis)
        return aten.constant_pad_nd(part, [*behind, before, after])

    if left < 0 or right < 0:  # what was cut off has no gradient
        grad = padded(grad, max(-left, 0), max(-right, 0))
    left, right = max(left, 0), max(right, 0)
    found = grad.narrow(axis, left, size)
    if left:
        found = found + padded(grad.narrow(axis, 0, left).sum(axis, keepdim=True), 0, size - 1)
    if right:
        rest = grad.narrow(axis, left + size, right).sum(axis, keepdim=True)
        found = found + padded(rest, size - 1, 0)
    return found


def _smoothing(size: int, count: int, aligned: bool, scale: float | None, like: Any) -> Any:
    """The matrix that makes `count` elements of `size`, by triangles as wide as the step."""
    if aligned:
        step = (size - 1) / (count - 1) if count > 1 else 0.0
    else:
        step = 1 / scale if scale else size / count
    support = max(step, 1.0)
    kind = {"dtype": like.dtype, "device": like.device}
    places = torch.arange(size, **kind)
    centre = step * (torch.arange(count, **kind) + 0.5)[:, None]
    first = (centre - support + 0.5).trunc().clamp(min=0)
    last = (centre + support + 0.5).trunc().clamp(max=size)
    weights = (1 - ((places - centre + 0.5) / support).abs()).clamp(min=0)
    weights = torch.where((places >= first) & (places < last), weights, 0)
    return weights / weights.sum(1, keepdim=True)


def _both_smoothings(x: Any, sizes: Any, counts: Any, aligned: bool, scales: Any) -> list[Any]:
    four = zip(sizes, counts, scales, strict=True)
    return [_smoothing(size, count, aligned, scale, x) for size, count, scale in four]


@decomposition("_upsample_bilinear2d_aa.default")
def smooth_bilinear(
    x: Any, counts: Any, aligned: bool, scale_h: float | None = None, scale_w: float | None = None
) -> Any:
    """Rows and columns, each by a product of matrices."""
    if x.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    rows, columns = _both_smoothings(x, x.shape[-2:], counts, aligned, (scale_h, scale_w))
    return rows @ x @ columns.T


@decomposition("_upsample_bilinear2d_aa_backward.default")
def smooth_bilinear_backward(
    grad: Any, counts: Any, sizes: Any, aligned: bool,
    scale_h: float | None = None, scale_w: float | None = None,
) -> Any:  # fmt: skip
    """The transposed products."""
    if grad.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    rows, columns = _both_smoothings(grad, sizes[-2:], counts, aligned, (scale_h, scale_w))
    return rows.T @ grad @ columns


@decomposition("grid_sampler_3d.default")
def sample_volume(x: Any, grid: Any, mode: int, border: int, aligned: bool) -> Any:
    """The image at the grid's places."""
    return sample(x, grid, mode, border, aligned)


@decomposition("grid_sampler_2d_backward.default", "grid_sampler_3d_backward.default")
def sampled_backward(
    grad: Any, x: Any, grid: Any, mode: int, border: int, aligned: bool, mask: Sequence[bool]
) -> Any:
    """The gradients of the image and the grid; torch's own kernel is faster for large ones."""
    samples = math.prod(grid.shape[1:-1])
    if mode == 2 or not isinstance(samples, int) or x.numel() * samples > MOST:
        return NotImplemented
    return sample_backward(grad, x, grid, mode, border, aligned)


# --- places that depend on elements ---------------------------------------------------------------


def _places_of_true(flat: Any, count: int) -> tuple[Any, Any]:
    """Where the first `count` elements of a vector are true, and whether there are so many."""
    numbers = torch.arange(1, count + 1, device=flat.device)
    sums = flat.cumsum(0)
    found = torch.searchsorted(sums, numbers).clamp(max=flat.shape[0] - 1)
    return found, numbers <= sums[-1]


@decomposition("masked_scatter.default")
def masked_scatter(x: Any, mask: Any, source: Any) -> Any:
    """The n-th true element of a mask takes the n-th element of the source."""
    x, mask = torch.broadcast_tensors(x, mask)
    if not x.numel() or not source.numel():
        return x.clone()
    number = mask.reshape(-1).cumsum(0) - 1
    taken = source.reshape(-1)[number.clamp(min=0)].view(x.shape)
    return torch.where(mask, taken, x)


@decomposition("masked_scatter_backward.default")
def masked_scatter_backward(grad: Any, mask: Any, sizes: Sequence[int]) -> Any:
    """The gradient of the source."""
    grad, mask = torch.broadcast_tensors(grad, mask)
    count = math.prod(sizes)
    if not count or not grad.numel():
        return grad.new_zeros(sizes)
    places, there = _places_of_true(mask.reshape(-1), count)
    return torch.where(there, grad.reshape(-1)[places], 0).view(sizes)


@decomposition("nonzero_static.default")
def nonzero_static(x: Any, *, size: int, fill_value: int = -1) -> Any:
    """The places of the first elements that are not 0, one in each row."""
    if not x.numel() or not size or not x.dim():
        return x.new_full([size, x.dim()], fill_value, dtype=torch.int64)
    places, there = _places_of_true((x != 0).reshape(-1), size)
    columns = []
    for extent in reversed(x.shape):
        columns.append(places % extent)
        places = places // extent
    return torch.where(there[:, None], torch.stack(columns[::-1], 1), fill_value)


@decomposition("take.default")
def take(x: Any, index: Any) -> Any:
    """Elements of a tensor as a vector; an index of one element is no number of Python."""
    return aten.index(x.reshape(-1), [index])


@decomposition("index_reduce.default")
def index_reduce(
    x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True
) -> Any:
    """`scatter_reduce`, with the same index for all rows."""
    if not x.dim():
        flat = (x.reshape(1), 0, index.reshape(-1), source.reshape(-1))
        return index_reduce(*flat, reduce, include_self=include_self).reshape(())
    dim = dim % x.dim()
    shape = [-1 if n == dim else 1 for n in range(x.dim())]
    wide = index.to(torch.int64).reshape(shape).expand(source.shape)
    return torch.scatter_reduce(x, dim, wide, source, reduce, include_self=include_self)


# --- bags and segments ----------------------------------------------------------------------------


def _bags(indices: Any, offsets: Any, padding: int) -> tuple[Any, Any]:
    """The bag of each word, and which words count."""
    places = torch.arange(indices.shape[0], dtype=offsets.dtype, device=offsets.device)
    return torch.searchsorted(offsets, places, right=True) - 1, indices != padding


@decomposition("_embedding_bag.default", "_embedding_bag_forward_only.default")
def embedding_bag(
    weight: Any, indices: Any, offsets: Any, by_frequency: bool = False, mode: int = 0,
    sparse: bool = False, scale: Any = None, has_last: bool = False, padding: int = -1,
) -> Any:  # fmt: skip
    """Sums, means or maxima of rows; each word's bag, the sizes of bags, the words of maxima."""
    bags = offsets.shape[0] - int(has_last)
    width, length = weight.shape[1], indices.shape[0]
    if sparse or not bags or not length or weight.numel() > MOST or length * bags * width > MOST:
        return NotImplemented
    where, counts = _bags(indices, offsets[:bags], padding)
    rows = weight[indices]
    if scale is not None:
        rows = rows * scale[:, None]
    sizes = indices.new_zeros(bags).index_put([where], counts.to(indices.dtype), accumulate=True)
    if mode < 2:
        rows = torch.where(counts[:, None], rows, 0)
        found = weight.new_zeros(bags, width).index_put([where], rows, accumulate=True)
        if mode == 1:
            found = found / sizes.clamp(min=1)[:, None]
        return found, where, sizes, sizes
    rows = torch.where(counts[:, None], rows, -math.inf)
    wide = where[:, None].expand(length, width)
    low = weight.new_full((bags, width), -math.inf)
    best = torch.scatter_reduce(low, 0, wide, rows, "amax")
    places = torch.arange(length, device=weight.device)[:, None].expand(length, width)
    places = torch.where(rows == best[where], places, length - 1)
    last = places.new_full((bags, width), length - 1)
    first = torch.scatter_reduce(last, 0, wide, places, "amin")
    return torch.where(sizes[:, None] > 0, best, 0), where, sizes, indices[first]


@decomposition("_embedding_bag_backward.default")
def embedding_bag_backward(
    grad: Any, indices: Any, offsets: Any, where: Any, sizes: Any, greatest: Any, count: int,
    by_frequency: bool, mode: int, sparse: bool, scale: Any, padding: int = -1,
) -> Any:  # fmt: skip
    """The gradient of the rows."""
    width = grad.shape[1]
    if sparse or not indices.shape[0] or grad.numel() * count > MOST:
        return NotImplemented
    if mode == 2:
        grad = torch.where(sizes[:, None] > 0, grad, 0)
        columns = torch.arange(width, device=grad.device).expand(grad.shape)
        zeros = grad.new_zeros(count, width)
        return zeros.index_put([greatest, columns], grad, accumulate=True)
    rows = grad[where]
    if mode == 1:
        rows = rows / sizes[where][:, None]
    if scale is not None:
        rows = rows * scale[:, None]
    return aten.embedding_dense_backward(rows, indices, count, padding, by_frequency)


@decomposition("_embedding_bag_per_sample_weights_backward.default")
def embedding_bag_scale_backward(
    grad: Any, weight: Any, indices: Any, offsets: Any, where: Any, mode: int, padding: int = -1
) -> Any:
    """The gradient of the factor of each word."""
    if not indices.shape[0]:
        return NotImplemented
    found = (grad[where] * weight[indices]).sum(1)
    return torch.where(indices != padding, found, 0)


def _segments(data: Any, lengths: Any, offsets: Any, axis: int) -> tuple[Any, Any, int]:
    """The segment of each element, as an index for `scatter`; the lengths of segments; how many."""
    if lengths is None:
        lengths = offsets.diff(dim=-1)
        begin = offsets[..., :-1]
    else:
        begin = lengths.cumsum(-1) - lengths
    count = lengths.shape[-1]
    places = torch.arange(data.shape[axis], dtype=begin.dtype, device=data.device)
    places = places.expand(*lengths.shape[:-1], data.shape[axis]).contiguous()
    where = torch.searchsorted((begin + lengths).contiguous(), places, right=True)
    trailing = [1] * (data.dim() - 1 - axis)
    index = where.reshape(*where.shape, *trailing).expand(data.shape)
    return index, lengths.reshape(*lengths.shape, *trailing), count


_REDUCES = {"sum": "sum", "mean": "sum", "prod": "prod", "max": "amax", "min": "amin"}
_NEUTRAL = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}


def _reduced(data: Any, axis: int, index: Any, count: int, how: str, start: float) -> Any:
    """Elements of a segment combined; what is in none is left out."""
    shape = [count + 1 if n == axis else s for n, s in enumerate(data.shape)]
    held = torch.scatter_reduce(data.new_full(shape, start), axis, index, data, _REDUCES[how])
    return held.narrow(axis, 0, count)


@decomposition("segment_reduce.default")
def segment_reduce(
    data: Any, reduce: str, *, lengths: Any = None, indices: Any = None, offsets: Any = None,
    axis: int = 0, unsafe: bool = False, initial: float | None = None,
) -> Any:  # fmt: skip
    """Combine the elements of each segment."""
    if indices is not None or not data.numel():
        return NotImplemented
    index, lengths, count = _segments(data, lengths, offsets, axis)
    start = _NEUTRAL[reduce] if initial is None else float(initial)
    found = _reduced(data, axis, index, count, reduce, start)
    if reduce == "mean":
        nothing = math.nan if initial is None else float(initial)
        found = torch.where(lengths > 0, found / lengths.clamp(min=1), nothing)
    return found


@decomposition("_segment_reduce_backward.default")
def segment_reduce_backward(
    grad: Any, output: Any, data: Any, reduce: str, *, lengths: Any = None, offsets: Any = None,
    axis: int = 0, initial: float | None = None,
) -> Any:  # fmt: skip
    """The gradient of each element; equal extremes share theirs."""
    if not data.numel():
        return NotImplemented
    index, lengths, count = _segments(data, lengths, offsets, axis)
    inside = index < count
    near = index.clamp(max=count - 1)

    def spread(x: Any) -> Any:
        return torch.where(inside, x.expand(grad.shape).gather(axis, near), 0)

    if reduce == "sum":
        return spread(grad)
    if reduce == "mean":
        return spread(grad / lengths.clamp(min=1))
    if reduce in ("max", "min"):
        hit = (data == spread(output)) | data.isnan()
        ties = _reduced(hit.to(data.dtype), axis, index, count, "sum", 0.0)
        return torch.where(hit & inside, spread(grad / ties.clamp(min=1)), 0)
    zero = data == 0
    zeros = spread(_reduced(zero.to(data.dtype), axis, index, count, "sum", 0.0))
    start = 1.0 if initial is None else float(initial)
    others = _reduced(torch.where(zero, 1, data), axis, index, count, "prod", start)
    alone = torch.where(zeros == 1, spread(others), 0)
    quotient = torch.where(zeros > 0, 0, spread(output) / torch.where(zero, 1, data))
    return spread(grad) * torch.where(zero, alone, quotient)


# --- distances and products -----------------------------------------------------------------------


def _slope(rest: Any, distance: Any, p: float) -> Any:
    """How a distance grows with each difference; 0 where it has no slope."""
    if p == 0:
        return torch.zeros_like(rest)
    if p == 1:
        return rest.sign()
    if p == math.inf:
        return rest.sign() * (rest.abs() == distance)
    found = rest.sign() * (rest.abs() / distance) ** (p - 1)
    none = distance == 0
    if p < 2:
        none = none | (rest == 0)
    return torch.where(none, 0, found)


@decomposition("_cdist_backward.default")
def distances_backward(grad: Any, x: Any, y: Any, p: float, distance: Any) -> Any:
    """The gradient of the first points."""
    if not grad.numel() or not x.numel():
        return torch.zeros_like(x)
    rest = x.unsqueeze(-2) - y.unsqueeze(-3)
    found = (grad.unsqueeze(-1) * _slope(rest, distance.unsqueeze(-1), p)).sum(-2)
    return found.sum_to_size(x.shape)


def _pairs(count: int, device: Any) -> tuple[Any, Any]:
    """The number of each pair i < j of points, in a matrix; and where that is one."""
    points = torch.arange(count, device=device)
    i, j = points[:, None], points[None, :]
    number = i * (2 * count - 1 - i) // 2 + j - i - 1
    return torch.where(i < j, number, 0), i < j


@decomposition("_pdist_forward.default")
def distances_of_pairs(x: Any, p: float = 2.0) -> Any:
    """Distances of all pairs i < j of points."""
    count = x.shape[0]
    if count < 2 or not x.shape[1]:
        return x.new_zeros(count * (count - 1) // 2)
    i, j = torch.triu_indices(count, count, 1, device=x.device)
    return aten._cdist_forward(x, x, p, None).reshape(-1)[i * count + j]


@decomposition("_pdist_backward.default")
def distances_of_pairs_backward(grad: Any, x: Any, p: float, distance: Any) -> Any:
    """The gradient of the points."""
    if not grad.numel() or not x.numel():
        return torch.zeros_like(x)
    number, above = _pairs(x.shape[0], x.device)

    def matrix(v: Any) -> Any:
        upper = torch.where(above, v[number], 0)
        return upper + upper.T

    return distances_backward(matrix(grad), x, x, p, matrix(distance))


@decomposition("_trilinear.default")
def trilinear(
    x: Any, y: Any, z: Any, expand1: Any, expand2: Any, expand3: Any, summed: Any, unroll: int = 1
) -> Any:
    """The sum of products of three tensors, after dimensions of one are put in."""
    found = []
    for operand, axes in ((x, expand1), (y, expand2), (z, expand3)):
        for axis in sorted(axes):
            operand = operand.unsqueeze(axis)
        found.append(operand)
    product = found[0] * found[1] * found[2]
    return product.sum(summed) if summed else product


@decomposition("_efficientzerotensor.default")
def zeros(size: Sequence[int], **options: Any) -> Any:
    """Zeros in memory."""
    options.pop("pin_memory", None)
    return torch.zeros(size, **options)
