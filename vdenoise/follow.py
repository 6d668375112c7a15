r"""Motion followed: the clip is denoised once more in frames whose content stands still.

The networks attend over time at one place, which is all that a still background asks for. Where the picture
moves, a place shows one thing after another, and attention finds little to average. So a second pass moves
the neighbouring frames first. For an *anchor* frame a, cells of the picture are followed along the optical
flow of the first pass's result, corrected by what it shows; S_t picks for every pixel of the anchor the pixel
of frame t that its cell has come to, by whole pixels, so that noise stays white, and

.. math:: z = \Phi\big(S_{t} y_{t}\big)_{|t - a| \le R}, \qquad
          \hat x_t = \frac{\sum_a S_{t}^\top z_{t}}{\sum_a S_{t}^\top 1}

with the frames t next to each anchor put back where they came from. What did not stay (covered, turned, out
of the frame) the attention's weights leave out by themselves. Where nothing moves, where a pixel fits better
in place, and where none is put back, the first pass stands: its window is longer.

Motion-compensated filtering is old (Dubois and Sabri 1984; V-BM4D, Maggioni et al. 2012, filters volumes that
follow the motion); that one network does both passes is ours.

Axes: T frames, C channels, H W pixels, h w cells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import cv2
import numpy as np
import torch
from torch import Tensor

CELL = 16  # pixels: one whole displacement for each
BOX = 24  # pixels: a cell goes by the mean flow over a box of this side around it
EVERY = 6  # frames from one anchor to the next
REACH = 8  # R: frames on either side of those next to the anchor
GRAIN = 4  # pixels: the mean flow is kept at every so many
BETTER = 0.9  # a neighbouring pixel is taken for where a cell went if its error is below this share
NEARBY = 9  # pixels: side of the box whose errors tell whether a pixel has moved with its cell
STAYS = 2.0  # what stays in place: where the error is below the moved one's divided by this
FLOW_SIDE = 16  # pixels; below 12 OpenCV's DIS refuses some shapes and crashes on others

Box = tuple[slice, slice]


def follow(
    network: Callable[[Tensor], Tensor], noisy: Tensor, first: Tensor, margin: int, *, every: int = EVERY
) -> Tensor:
    """Denoise a clip once more along its motion.

    Args:
        network: noisy frames (T, C, h, w) to clean ones.
        noisy: (T, C, H, W) in [0, 1] plus noise.
        first: the same clip after a pass that did not follow it.
        margin: pixels that the network looks beyond an output pixel.
        every: frames from one anchor to the next; fewer cost more time and lose less.

    Returns:
        (T, C, H, W): ``first`` itself where nothing moves.
    """
    length, _, height, width = noisy.shape
    if length < 2 or min(height, width) < FLOW_SIDE:
        return first
    ahead, back = mean_flows(first)
    gray = first.mean(1).cpu().numpy()
    total, count = torch.zeros_like(first), torch.zeros_like(first[:, :1])
    for begin in range(0, length, every):
        near = range(begin, min(begin + every, length))
        seen = range(max(0, near[0] - REACH), min(length, near[-1] + 1 + REACH))
        anchor = near[len(near) // 2]
        moved = displacements(ahead, back, anchor, seen, height, width)
        moved = matched(gray[seen.start : seen.stop], gray[anchor], moved)
        moving = np.any(moved, axis=(0, -1), keepdims=True)[0, ..., 0]
        for box in boxes(moving, height, width, margin):
            source, inside = pixels(moved, box, height, width)
            still = network(pick(noisy[seen.start : seen.stop], source))
            counts = (
                inside
                & enlarge(moving, box)
                & gains(gray[seen.start : seen.stop], anchor - seen.start, source, box)
            )
            for t in near:
                i = t - seen.start
                put_back(total[t], count[t], still[i], source[i], counts[i])
    # An average of one or more anchors' pixels, or of none.
    return torch.where(count > 0, total / count.clamp_min(1), first)


def mean_flows(clip: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Where things go in the next frame, and where they come from in the last one.

    Args:
        clip: (T, C, H, W) in [0, 1], denoised: noise would be followed too.

    Returns:
        Two arrays (T − 1, H / GRAIN, W / GRAIN, 2) of (x, y) pixels, from t to t + 1 and from t + 1 to t: the
        flow of OpenCV's DIS (Kroeger et al., ECCV 2016), averaged over boxes of ``BOX`` pixels.
    """
    gray = (clip.mean(1).clamp(0, 1) * 255).round().byte().cpu().numpy()
    dis = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_FAST)

    def mean_flow(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        flow = dis.calc(a, b, np.zeros((*a.shape, 2), np.float32))
        return cv2.blur(flow, (BOX, BOX), borderType=cv2.BORDER_REPLICATE)[::GRAIN, ::GRAIN]

    pairs = list(pairwise(gray))
    return np.stack([mean_flow(a, b) for a, b in pairs]), np.stack([mean_flow(b, a) for a, b in pairs])


def displacements(
    ahead: np.ndarray, back: np.ndarray, anchor: int, seen: range, height: int, width: int
) -> np.ndarray:
    """How far the cells of the anchor have gone in every frame that is seen, step by step along the flow.

    Returns:
        Whole pixels (y, x), (len(seen), h, w, 2); 0 in the anchor.
    """
    h, w = -(-height // CELL), -(-width // CELL)
    start = np.stack(np.meshgrid(np.arange(h), np.arange(w), indexing="ij"), -1) * CELL + CELL / 2
    most = np.array(ahead.shape[1:3]) - 1
    moved = np.zeros((len(seen), h, w, 2))

    def go(steps: Iterator[tuple[np.ndarray, int]]) -> None:
        at = start.copy()
        for flow, t in steps:
            y, x = np.moveaxis(np.clip(at / GRAIN, 0, most).astype(int), -1, 0)
            at += flow[y, x][..., ::-1]
            moved[t - seen.start] = at - start

    go((ahead[t], t + 1) for t in range(anchor, seen[-1]))
    go((back[t], t) for t in range(anchor - 1, seen[0] - 1, -1))
    return np.rint(moved).astype(np.int64)


def matched(frames: np.ndarray, anchor: np.ndarray, moved: np.ndarray) -> np.ndarray:
    """Correct the cells' ways by what the frames show.

    Flow drifts as it is added up, and near a moving thing the background is taken along. So of each cell's
    place by the flow, the eight places around it, and the cell's own place, the one is taken whose box looks
    most like the anchor's, with some favour for the first.

    Args:
        frames: grey (T, H, W), denoised.
        anchor: (H, W), one of them.
        moved: (T, h, w, 2) by the flow.

    Returns:
        The corrected displacements, same shape.
    """
    best, least = moved, errors(frames, anchor, moved)
    for dy, dx in ((y, x) for y in (-1, 0, 1) for x in (-1, 0, 1) if y or x):
        beside = moved + np.array((dy, dx))
        error = errors(frames, anchor, beside)
        better = error < BETTER * least
        best, least = np.where(better[..., None], beside, best), np.where(better, error, least)
    place = errors(frames, anchor, np.zeros_like(moved))
    return np.where((place * STAYS < least)[..., None] | (place == 0)[..., None], 0, best)


def errors(frames: np.ndarray, anchor: np.ndarray, moved: np.ndarray) -> np.ndarray:
    """Mean squared difference to the anchor over a box around each cell, (T, h, w)."""
    height, width = anchor.shape
    source, _ = pixels(moved, (slice(0, height), slice(0, width)), height, width)
    ys, xs = (
        np.minimum(np.arange(n) * CELL + CELL // 2, size - 1)
        for n, size in zip(moved.shape[1:3], anchor.shape, strict=True)
    )
    found = []
    for frame, where in zip(frames, source.numpy(), strict=True):
        squares = np.square(frame.reshape(-1)[where] - anchor)
        found.append(cv2.blur(squares, (BOX, BOX), borderType=cv2.BORDER_REPLICATE)[ys[:, None], xs])
    return np.stack(found)


def gains(frames: np.ndarray, anchor: int, source: Tensor, box: Box) -> Tensor:
    """Where a pixel has moved with its cell, (rows, columns): not where it clearly fits better in place."""
    here = frames[(slice(None), *box)]
    moved = frames.reshape(len(frames), -1)[np.arange(len(frames))[:, None, None], source.numpy()]
    gain = STAYS * np.square(here - here[anchor]).sum(0) - np.square(moved - here[anchor]).sum(0)
    return torch.from_numpy(cv2.blur(gain, (NEARBY, NEARBY), borderType=cv2.BORDER_REPLICATE) > 0)


def boxes(moving: np.ndarray, height: int, width: int, margin: int) -> list[Box]:
    """Rectangles that hold all moving cells (h, w) and what the network sees around them.

    A fixed camera's few moving things cost no more than themselves; where the rectangles add up to more than
    the frame, it is the frame.
    """
    wide = cv2.dilate(moving.astype(np.uint8), np.ones((2 * (-(-margin // CELL)) + 1,) * 2, np.uint8))
    found, area = [], 0
    for left, top, w, h, _ in cv2.connectedComponentsWithStats(wide)[2][1:]:
        rows = slice(int(top) * CELL, min(height, int(top + h) * CELL))
        columns = slice(int(left) * CELL, min(width, int(left + w) * CELL))
        found.append((rows, columns))
        area += (rows.stop - rows.start) * (columns.stop - columns.start)
    return found if area < height * width else [(slice(0, height), slice(0, width))]


def pixels(moved: np.ndarray, box: Box, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Where each pixel of a box has gone: its index in the flat frame, and whether it is still inside.

    A pixel that has left the frame is answered by the nearest one within.

    Returns:
        Two tensors (T, rows, columns).
    """
    offset = enlarge(moved, box)
    y = torch.arange(box[0].start, box[0].stop)[:, None] + offset[..., 0]
    x = torch.arange(box[1].start, box[1].stop) + offset[..., 1]
    inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
    return y.clamp(0, height - 1) * width + x.clamp(0, width - 1), inside


def enlarge(cells: np.ndarray, box: Box) -> Tensor:
    """Values of the cells, (h, w) or (T, h, w, 2), at the pixels of a box."""
    rows, columns = (np.arange(s.start, s.stop) // CELL for s in box)
    values = cells[..., rows[:, None], columns, :] if cells.ndim == 4 else cells[rows[:, None], columns]
    return torch.from_numpy(values)


def pick(frames: Tensor, source: Tensor) -> Tensor:
    """S: frames (T, C, H, W) at the flat places ``source`` (T, h, w), as (T, C, h, w)."""
    t, c = frames.shape[:2]
    where = source.to(frames.device).view(t, 1, -1).expand(-1, c, -1)
    return frames.flatten(2).gather(2, where).view(t, c, *source.shape[1:])


def put_back(total: Tensor, count: Tensor, frame: Tensor, source: Tensor, counts: Tensor) -> None:
    """Sᵀ: add a frame (C, h, w) to ``total`` (C, H, W) where it came from, and ones to ``count`` (1, H, W).

    ``counts`` (h, w) says which of its pixels are meant.
    """
    kept = counts.flatten().nonzero().squeeze(1)
    where = source.flatten()[kept].to(total.device)
    total.flatten(1).index_add_(1, where, frame.flatten(1)[:, kept.to(frame.device)])
    count.flatten(1).index_add_(1, where, torch.ones(1, len(where), device=count.device))
