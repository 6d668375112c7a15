"""Photographs under synthetic camera motion: clean moving samples where open moving video is scarce."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.random import Generator

from vdenoise.datasets.lanes import LaneStream, generator
from vdenoise.datasets.sampling import oriented

# Speeds in pixels of the sample per frame, drawn log-uniformly within one of three equally likely ranges.
SPEEDS = ((0.02, 0.5), (0.5, 2.0), (2.0, 6.0))


@dataclasses.dataclass(frozen=True)
class MotionPlan:
    """What the camera may do; all of it is ours, chosen to resemble hand-held and panning shots.

    Args:
        frozen: Share of samples in which nothing moves.
        foreground: Share with a patch of another photograph moving over the first.
        drift: Share whose brightness drifts, by up to ±10% over the sample.
        shake: Share with hand shake, a random walk of 0.25 px per frame.
        turn: Largest rotation in degrees per frame.
        zoom: Largest relative change of scale per frame.
        shrink: Largest factor from photograph to sample, drawn log-uniformly from 1.
    """

    frozen: float = 1 / 6
    foreground: float = 1 / 3
    drift: float = 0.15
    shake: float = 1 / 3
    turn: float = 0.8
    zoom: float = 0.008
    shrink: float = 4.0


class MovedStills(LaneStream):
    """Samples of T frames from a camera moving over photographs.

    Each sample warps straight to the small crop from the level of an area-averaged pyramid that is nearest in
    scale, by cubic interpolation, so sub-pixel motion does not alias. A third of the samples move slowly
    (under half a pixel per frame), a third up to two and a third up to six pixels per frame.

    Args:
        photographs: Image files.
        frames: Sample length T.
        crop: Side S of the sample in pixels.
        gray: Luma if true, else RGB.
        seed: Everything random follows from it.
        plan: What the camera does.
        block, lanes, rank, world: See :class:`~vdenoise.datasets.lanes.LaneStream`.

    Raises:
        ValueError: No photograph, or one that can't be read or is smaller than the crop.
    """

    def __init__(
        self,
        photographs: Sequence[Path],
        *,
        frames: int,
        crop: int,
        gray: bool,
        seed: int,
        plan: MotionPlan | None = None,
        **lane_settings: Any,
    ):
        super().__init__(seed=seed, **lane_settings)
        self.photographs = list(photographs)
        if not self.photographs:
            raise ValueError("photographs is empty: expected at least one image file")
        self.frames, self.crop, self.gray = frames, crop, gray
        self.plan = plan or MotionPlan()
        self._pyramids: dict[int, list[np.ndarray]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pyramids": {}}  # decoded photographs don't travel to workers

    def lane(self, index: int) -> Iterator[torch.Tensor]:
        """An endless sequence of samples."""
        rng = generator(self.seed, self.epoch, 4, self.rank, index)
        while True:
            yield oriented(self.sample(rng), rng)

    def sample(self, rng: Generator) -> np.ndarray:
        """One sample, uint8 (T, S, S, C)."""
        frozen = bool(rng.random() < self.plan.frozen)
        clip = self._moving(rng, frozen)
        if rng.random() < self.plan.foreground and len(self.photographs) > 1:
            alpha = _moving_blob(self.frames, self.crop, _path(rng, self.frames, self.plan, frozen), rng)
            clip += alpha * (self._moving(rng, frozen) - clip)
        if not frozen and rng.random() < self.plan.drift:
            phase, depth = rng.random() * 2 * np.pi, rng.uniform(-0.1, 0.1)
            clip *= (1 + depth * np.sin(phase + np.linspace(0, np.pi, self.frames, dtype=np.float32)))[
                :, None, None, None
            ]
        return np.rint(clip.clip(0, 255)).astype(np.uint8)

    def _moving(self, rng: Generator, frozen: bool) -> np.ndarray:
        """A photograph under one camera path, float32 (T, S, S, C) in 0–255."""
        pyramid = self._pyramid(int(rng.integers(len(self.photographs))))
        height, width = pyramid[0].shape[:2]
        scale = min(self.plan.shrink, min(height, width) / self.crop) ** rng.random()
        level = min(round(np.log2(scale)), len(pyramid) - 1)
        image, scale = pyramid[level], scale / 2**level
        height, width = image.shape[:2]
        shift = _path(rng, self.frames, self.plan, frozen)  # in sample pixels
        turn = np.deg2rad(rng.uniform(-self.plan.turn, self.plan.turn)) * (rng.random() < 0.5)
        zoom = rng.uniform(-self.plan.zoom, self.plan.zoom) * (rng.random() < 0.5)
        half = self.crop * scale / 2
        reach = half + np.abs(shift).max(axis=0) * scale
        centre = [
            rng.uniform(min(r, n / 2), max(n - r, n / 2)) for r, n in zip(reach, (width, height), strict=True)
        ]
        still = 0.0 if frozen else 1.0
        out = np.empty((self.frames, self.crop, self.crop, image.shape[2]), np.float32)
        for t in range(self.frames):
            s = scale * np.exp(still * zoom * (t - self.frames / 2))
            angle = still * turn * (t - self.frames / 2)
            a = s * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
            middle = centre + shift[t] * scale
            matrix = np.column_stack([a, middle - a.sum(axis=1) * (self.crop - 1) / 2])
            warped = cv2.warpAffine(
                image,
                matrix,
                (self.crop, self.crop),
                flags=cv2.INTER_CUBIC | cv2.WARP_INVERSE_MAP,
                borderMode=cv2.BORDER_REFLECT_101,
            )
            out[t] = warped.reshape(out.shape[1:])
        return out

    def _pyramid(self, which: int) -> list[np.ndarray]:
        """A photograph at full size and halved again and again; kept once made."""
        if which not in self._pyramids:
            path = self.photographs[which]
            # read through numpy: OpenCV's own file reading fails on non-ASCII names on Windows
            data = np.frombuffer(path.read_bytes(), np.uint8)
            image = cv2.imdecode(data, cv2.IMREAD_GRAYSCALE if self.gray else cv2.IMREAD_COLOR)
            if image is None or min(image.shape[:2]) < self.crop:
                got = "nothing that decodes" if image is None else f"{image.shape[1]}×{image.shape[0]}"
                raise ValueError(
                    f"{path}: got {got}, expected an image of at least {self.crop}×{self.crop}; remove it"
                )
            image = image[..., None] if self.gray else np.ascontiguousarray(image[..., ::-1])
            levels = [image]
            while min(levels[-1].shape[:2]) >= 2 * self.crop and 2 ** len(levels) <= self.plan.shrink:
                height, width = (n // 2 for n in levels[-1].shape[:2])
                small = cv2.resize(levels[-1], (width, height), interpolation=cv2.INTER_AREA)
                levels.append(small.reshape(height, width, -1))
            self._pyramids[which] = levels
        return self._pyramids[which]


def _path(rng: Generator, frames: int, plan: MotionPlan, frozen: bool) -> np.ndarray:
    """Displacement of every frame from the middle one, (T, 2) in sample pixels, x first."""
    low, high = SPEEDS[rng.integers(len(SPEEDS))]
    speed, heading = low * (high / low) ** rng.random(), rng.uniform(0, 2 * np.pi)
    bend = rng.uniform(-0.05, 0.05)  # radians per frame
    time = np.arange(frames) - frames // 2
    headings = heading + bend * time
    steps = speed * np.stack([np.cos(headings), np.sin(headings)], axis=1)
    if rng.random() < plan.shake:
        steps += rng.normal(0, 0.25, steps.shape)
    path = np.cumsum(steps, axis=0)
    return np.zeros_like(path) if frozen else path - path[frames // 2]


def _moving_blob(frames: int, crop: int, path: np.ndarray, rng: Generator) -> np.ndarray:
    """Coverage (T, S, S, 1) in [0, 1] of a wavy ellipse moving along ``path``, its edge one pixel soft."""
    radius = crop * rng.uniform(0.12, 0.4)
    stretch, tilt = rng.uniform(0.6, 1.6), rng.uniform(0, np.pi)
    waves, depth, phase = rng.integers(2, 6), rng.uniform(0, 0.25), rng.uniform(0, 2 * np.pi)
    centre = rng.uniform(0.2, 0.8, 2) * crop + path
    grid = np.arange(crop, dtype=np.float32)
    dx = (grid[None, None, :] - centre[:, 0, None, None]).astype(np.float32)
    dy = (grid[None, :, None] - centre[:, 1, None, None]).astype(np.float32)
    u = np.cos(tilt) * dx + np.sin(tilt) * dy
    v = (np.cos(tilt) * dy - np.sin(tilt) * dx) * np.float32(stretch)
    edge = radius * (1 + depth * np.cos(waves * np.arctan2(v, u) + phase))
    return (edge - np.hypot(u, v) + 0.5).clip(0, 1)[..., None].astype(np.float32)
