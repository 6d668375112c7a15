"""Data sets by name. Each offers ``training_stream``, ``evaluation_clips``, ``sigma_x`` and ``check``."""

from vdenoise.datasets.base import VideoSet
from vdenoise.datasets.open import OpenClips

DATASETS: dict[str, VideoSet] = {s.name: s for s in (OpenClips(),)}

__all__ = ["DATASETS", "VideoSet"]
