"""Noise put on, seeded, and its level estimated blindly."""

from vdenoise.noise.character import Character, noise_character
from vdenoise.noise.degrade import NOISES, add_noise, gamma_level
from vdenoise.noise.estimate import estimate_sigma, estimate_sigma_per_frame

__all__ = [
    "NOISES",
    "Character",
    "add_noise",
    "estimate_sigma",
    "estimate_sigma_per_frame",
    "gamma_level",
    "noise_character",
]
