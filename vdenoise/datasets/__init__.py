"""Data sets by name. Each offers ``training_stream``, ``evaluation_clips``, ``sigma_x`` and ``check``."""

from vdenoise.datasets.avenue import Avenue
from vdenoise.datasets.base import VideoSet
from vdenoise.datasets.folder import Folder
from vdenoise.datasets.lanes import loader
from vdenoise.datasets.open import OpenClips
from vdenoise.datasets.shanghaitech import ShanghaiTech
from vdenoise.datasets.ucsd import UCSD

_SETS: tuple[VideoSet, ...] = (OpenClips(), Avenue(), UCSD(), UCSD(1), UCSD(2), ShanghaiTech(), Folder())
DATASETS: dict[str, VideoSet] = {s.name: s for s in _SETS}

__all__ = ["DATASETS", "VideoSet", "loader"]
