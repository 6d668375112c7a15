"""The denoisers. Each has ``iterates(noisy, sigma)``: the pixel estimate after every layer."""

from vdenoise.models.registry import MODELS, Denoiser, build, load, save

__all__ = ["MODELS", "Denoiser", "build", "load", "save"]
