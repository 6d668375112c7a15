"""What the kernels share: reading and writing tiles of one sequence, and its softmax.

A program holds one sequence at a time. T ≤ 64, so all T×T weights are on the chip at once: the forward pass
needs no running maximum, and the backward pass recomputes the softmax and finds nothing stored, not even row
maxima and sums. Tiles are padded to powers of two, with zeros where t ≥ T or c is beyond the width, and every
offset is int64: n·stride alone passes 2³¹ on long videos. Sequences never share a tile, so that an inf or NaN
(0·NaN = NaN in a matrix product) stays in the sequence that it came from.

Axes: n sequences, t rows of a tile (frames), c columns of values, r columns of features.
"""

import triton
import triton.language as tl


@triton.jit
def load_tile(pointer, stride_t, stride_c, t, c, T: tl.constexpr, WIDTH: tl.constexpr):
    """Rows t < T and columns c < WIDTH of a sequence, zero elsewhere."""
    offsets = t[:, None].to(tl.int64) * stride_t + c[None, :].to(tl.int64) * stride_c
    return tl.load(pointer + offsets, mask=(t < T)[:, None] & (c < WIDTH)[None, :], other=0.0)


@triton.jit
def load_row(pointer, stride, i, LENGTH: tl.constexpr):
    """Entries i < LENGTH as float32, zero elsewhere."""
    return tl.load(pointer + i.to(tl.int64) * stride, mask=i < LENGTH, other=0.0).to(tl.float32)


@triton.jit
def store_tile(pointer, stride_t, stride_c, t, c, T: tl.constexpr, WIDTH: tl.constexpr, value):
    """Write rows t < T and columns c < WIDTH, rounded to the tensor's type."""
    rounded = value.to(pointer.dtype.element_ty)
    mask = (t < T)[:, None] & (c < WIDTH)[None, :]
    tl.store(pointer + t[:, None] * stride_t + c[None, :] * stride_c, rounded, mask=mask)


@triton.jit
def matmul(a, b):
    """A product with float32 sums; float32 factors stay so, as TF32 would cost three digits."""
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def softmax(logits, t, T: tl.constexpr):
    """Weights (BT, BT) over keys t < T; rows beyond T are zero, so that they add nothing to any gradient."""
    masked = tl.where(t[None, :] < T, logits, float("-inf"))
    e = tl.exp(masked - tl.max(masked, 1)[:, None])
    return tl.where(t[:, None] < T, e / tl.sum(e, 1)[:, None], 0.0)


@triton.jit
def softmax_backward(w, dw):
    """Gradient of the logits: ds = w ⊙ (dw − Σ_j w dw)."""
    return w * (dw - tl.sum(w * dw, 1)[:, None])
