"""Primal-dual training of a denoiser on streamed clips."""

from vdenoise.training.config import TrainConfig
from vdenoise.training.loop import train

__all__ = ["TrainConfig", "train"]
