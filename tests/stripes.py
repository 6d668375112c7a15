"""A data set small enough for a test: stripes that move, behind the interface of the real ones."""

from __future__ import annotations

import torch


class Stripes(torch.utils.data.IterableDataset):
    """Moving stripes: a data set small enough for a test, seeded per epoch as the real ones are."""

    def __init__(self, frames: int, crop: int) -> None:
        self.frames, self.crop, self.epoch = frames, crop, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.epoch)
        while True:
            phase, speed = (torch.rand(2, generator=generator) * 6).tolist()
            x = torch.arange(self.crop) / 3
            t = torch.arange(self.frames).view(-1, 1, 1, 1)
            frame = 0.5 + 0.4 * torch.sin(x + phase + 0.1 * speed * t)
            yield (frame.expand(-1, 3, self.crop, -1) * 255).byte()


class Clip:
    name = "stripes"

    def load(self, frames):
        return next(iter(Stripes(frames, 32))).float() / 255


class Data:
    @classmethod
    def treating(cls, corrupt):
        return cls

    @staticmethod
    def sigma_x(root):
        return 50.0

    @staticmethod
    def training_stream(root, *, frames, crop, gray, seed, augment):
        return Stripes(frames, crop)

    @staticmethod
    def evaluation_clips(root, split):
        return [Clip()]
