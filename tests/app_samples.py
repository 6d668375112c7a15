"""For the app's tests: an untrained model, moving edges with and without sound, and a running app."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import av
import numpy as np
import torch

from vdenoise.models import build, save
from vdenoise.video import Writer


def tiny_checkpoint(path: Path) -> Path:
    """A small untrained model, saved as any other."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build("dust", layers=3, codes=8, features=4)
    save(model, path, {"sigma_x": 58.0})
    return path


def edge(t: int, width: int = 64, height: int = 48) -> np.ndarray:
    """A bright half that moves to the right."""
    row = np.where(np.arange(width) < 16 + t, 70, 180).astype(np.uint8)
    return np.broadcast_to(row[None, :, None], (height, width, 3)).copy()


def edge_clip(path: Path, frames: int = 20, width: int = 64, height: int = 48) -> Path:
    """Moving edge at 10 frames per second, without sound."""
    with Writer(path, fps=10, crf=10) as writer:
        for t in range(frames):
            writer.write(edge(t, width, height))
    return path


def clip_with_sound(path: Path, frames: int = 40) -> Path:
    """The same with an AAC tone."""
    rate = 8000
    with av.open(str(path), "w") as file:
        video = file.add_stream("libx264", rate=10)
        video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
        audio = file.add_stream("aac", rate=rate)
        for t in range(frames):
            picture = av.VideoFrame.from_ndarray(edge(t), format="rgb24")
            picture.pts = t
            file.mux(video.encode(picture))
        file.mux(video.encode(None))
        tone = 0.2 * np.sin(2 * np.pi * 440 * np.arange(rate * frames // 10) / rate).astype(np.float32)
        sound = av.AudioFrame.from_ndarray(tone[None], format="fltp", layout="mono")
        sound.sample_rate, sound.pts = rate, 0
        file.mux([*audio.encode(sound), *audio.encode(None)])
    return path


@contextmanager
def running_app(home: Path, *options: str) -> Iterator[tuple[str, Path]]:
    """``python app.py`` in a process of its own; gives its address and the folder that it works in.

    Args:
        home: an empty folder for its temporary files and its log.
        options: of the command line.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    app = Path(__file__).resolve().parent.parent / "app.py"
    url = f"http://127.0.0.1:{port}/"
    with (home / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, str(app), "--port", str(port), *options],
            env={**os.environ, "TMPDIR": str(home), "OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=log,
        )
        try:
            _wait_for(url, process, home / "log")
            yield url, next(home.glob("vdenoise-*"))
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise
    left = list(home.glob("vdenoise-*"))
    assert not left, f"the app left {left} behind"


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise AssertionError(f"the app did not start: {log.read_text()}")
