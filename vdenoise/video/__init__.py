"""Reading and writing video. Nothing else in the package touches Decord or PyAV."""

from vdenoise.video.probe import VideoError, VideoInfo, probe
from vdenoise.video.reader import Reader, open_video
from vdenoise.video.writer import Writer

__all__ = ["Reader", "VideoError", "VideoInfo", "Writer", "open_video", "probe"]
