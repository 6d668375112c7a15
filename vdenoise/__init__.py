"""Clean noisy video with unrolled transformers whose loss goes down layer after layer.

clean = vdenoise.denoise(frames)          # numpy (T, H, W[, C]) or torch (T, C, H, W)
model = vdenoise.load("dust")             # a shipped checkpoint, or the path of one
with vdenoise.open("noisy.mp4") as clip:  # frames as uint8 (H, W, C)
    for frame in clip: ...
"""

from vdenoise.certificate import Certificate, certify
from vdenoise.clip import Clip
from vdenoise.models import MODELS, load
from vdenoise.restore import denoise, denoise_stream, layer_estimates
from vdenoise.video import Reader, VideoError, Writer
from vdenoise.video import open_video as open

__version__ = "0.1.0"
__all__ = [
    "MODELS",
    "Certificate",
    "Clip",
    "Reader",
    "VideoError",
    "Writer",
    "certify",
    "denoise",
    "denoise_stream",
    "layer_estimates",
    "load",
    "open",
]
