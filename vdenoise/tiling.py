"""A long clip in windows, a large frame in tiles, and no seam: what bounds memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

WINDOW = 30  # frames the network sees at once: more of them average a still background better
OVERLAP = 6  # frames shared by two windows and cross-faded
TILE = 384  # side of a tile in pixels, without its halo


def halo(net: Any) -> tuple[int, int]:
    """(pixels, step): how far an output pixel looks, and what tile corners must be multiples of.

    Every layer passes patches on to the overlapping ones, p − s pixels further, and so does the readout.
    """
    grid, layers = net.grid, net.config.layers
    reach = layers * (grid.patch - grid.stride) + grid.patch
    return -(-reach // grid.stride) * grid.stride, grid.stride


def by_tiles(
    function: Callable[[Tensor], Tensor], frames: Tensor, margin: tuple[int, int], tile: int = TILE
) -> Tensor:
    """Apply a function of limited reach tile by tile; the result is that of the whole frame.

    Args:
        function: (T, C, h, w) to the same shape.
        frames: (T, C, H, W).
        margin: (halo, step) as :func:`halo` gives it.
        tile: side of a tile without its halo.
    """
    reach, step = margin
    height, width = frames.shape[-2:]
    if height <= tile + 2 * reach and width <= tile + 2 * reach:
        return function(frames)
    tile = max(step, tile // step * step)
    out = torch.empty_like(frames)
    for top in range(0, height, tile):
        for left in range(0, width, tile):
            bottom, right = min(top + tile, height), min(left + tile, width)
            y, x = max(0, top - reach), max(0, left - reach)
            part = function(frames[..., y : bottom + reach, x : right + reach])
            out[..., top:bottom, left:right] = part[..., top - y : bottom - y, left - x : right - x]
    return out


def by_windows(frames: Iterable[Tensor], clean: Callable[[Tensor], Tensor], length: int) -> Iterator[Tensor]:
    """Clean overlapping windows and cross-fade them: yields (1, C, H, W), one for every frame.

    The last window reaches back to its full length, so that the last frames have as many neighbours as any.
    """
    if length < 1:
        raise ValueError(f"window must be at least 1 frame, got {length}")
    overlap = min(OVERLAP, length // 2)
    recent: deque[Tensor] = deque(maxlen=length)
    faded = None  # the end of the last window, waiting for its other half
    fresh = 0  # frames in `recent` that no window has seen
    for frame in frames:
        if recent and frame.shape != recent[-1].shape:
            raise ValueError(
                f"all frames must be alike, got {tuple(frame.shape[1:])} after {tuple(recent[-1].shape[1:])}"
            )
        recent.append(frame)
        fresh += 1
        if fresh == length - (overlap if faded is not None else 0):
            done = crossfade(faded, clean(torch.cat(list(recent))))
            yield from done[: length - overlap].split(1)
            faded, fresh = done[length - overlap :], 0
    if fresh:
        done = clean(torch.cat(list(recent)))
        waiting = fresh + (0 if faded is None else len(faded))
        yield from crossfade(faded, done[len(done) - waiting :]).split(1)
    elif faded is not None and len(faded):
        yield from faded.split(1)


def crossfade(old: Tensor | None, new: Tensor) -> Tensor:
    """Go over from the end of one window to the beginning of the next."""
    if old is None or not len(old):
        return new
    weight = torch.arange(1, len(old) + 1).view(-1, 1, 1, 1) / (len(old) + 1)
    return torch.cat([torch.lerp(old, new[: len(old)], weight), new[len(old) :]])
