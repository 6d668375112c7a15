"""Memory over a long video: what is held must not depend on its length.

    python benchmarks/run_memory.py                  10 minutes of 720p
    python benchmarks/run_memory.py --minutes 1

Makes a video of the asked length out of one encoded group of pictures, and in a process of its own each
reads it by every backend, and copies it by reader and writer. Prints a table and writes
``results/memory.json``: resident memory after the first second of video, its peak over all the rest, and
frames per second. Ends with 1 if a frame is missing or memory grows by 200 MB.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np

from common import RESULTS, markdown_table, provenance, run, write_json

FPS, GROUP = 25, 100
LIMIT = 200  # MB of growth over the first second's

# Peak and present resident memory, from the kernel; the peak is set back after the first second.
CHILD = r"""
import sys, time, vdenoise
from vdenoise.video import create
path, how, target = sys.argv[1:]
def status(key):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(key))
options = {"backend": how} if how in ("decord", "pyav") else {}
count, start = 0, time.perf_counter()
with vdenoise.open(path, **options) as reader:
    writer = create(target, like=reader, codec="mjpeg", overwrite=True) if how == "copy" else None
    for frame in reader:
        if writer: writer.write(frame)
        count += 1
        if count == 25:
            first = status("VmRSS")
            with open("/proc/self/clear_refs", "w") as file: file.write("5")
    if writer: writer.discard()
print(count, first, status("VmHWM"), count / (time.perf_counter() - start))
"""


def long_video(path: Path, minutes: float, size: tuple[int, int] = (1280, 720)) -> int:
    """Write a video of one group of pictures over and over; returns its frames."""
    width, height = size
    encoder: Any = av.CodecContext.create("libx264", "w")
    encoder.width, encoder.height, encoder.pix_fmt = width, height, "yuv420p"
    encoder.time_base, encoder.framerate = Fraction(1, FPS), Fraction(FPS)
    encoder.options = {"preset": "ultrafast", "crf": "28", "g": str(GROUP), "bf": "0"}
    rng = np.random.default_rng(0)
    scene: Any = cv2.GaussianBlur(rng.integers(0, 255, (height, width + GROUP, 3), np.uint8), (0, 0), 8)
    packets: list[Any] = []
    for t in range(GROUP):
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(scene[:, t : t + width]), format="rgb24")
        frame.pts = t
        packets += encoder.encode(frame)
    packets += encoder.encode(None)
    groups = max(1, round(minutes * 60 * FPS / GROUP))
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=FPS)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.extradata = encoder.extradata
        for group in range(groups):
            for packet in packets:
                copy = av.Packet(bytes(packet))
                copy.pts, copy.dts = packet.pts + group * GROUP, packet.dts + group * GROUP
                copy.time_base, copy.stream = Fraction(1, FPS), stream
                copy.is_keyframe = packet.is_keyframe
                container.mux(copy)
    return groups * GROUP


def measure(path: Path, how: str, folder: Path) -> dict[str, float]:
    """One way through the file, in a process of its own."""
    command = [sys.executable, "-c", CHILD, str(path), how, str(folder / "copy.mkv")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    count, first, peak, rate = (float(x) for x in done.stdout.split())
    return {"frames": count, "first_mb": first, "peak_mb": peak, "growth_mb": peak - first, "fps": rate}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10, help="of video (default: 10)")
    parser.add_argument("--out", type=Path, default=RESULTS / "memory.json", help="where the numbers go")
    args = parser.parse_args(argv)

    def job() -> int:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "long.mp4"
            frames = long_video(path, args.minutes)
            rows = {how: measure(path, how, Path(folder)) for how in ("pyav", "decord", "copy")}
        content = {
            "provenance": provenance("benchmarks/run_memory.py", list(argv or sys.argv[1:]), "cpu"),
            "video": {"frames": frames, "width": 1280, "height": 720, "fps": FPS},
            "limit_mb": LIMIT,
            "ways": rows,
        }
        write_json(args.out, content)
        names = {"pyav": "read by PyAV", "decord": "read by Decord", "copy": "read and written"}
        keys = ("frames", "first_mb", "peak_mb", "growth_mb", "fps")
        table = [[names[how], *(f"{row[key]:.0f}" for key in keys)] for how, row in rows.items()]
        header = ["", "frames", "MB after 1 s", "peak MB", "growth MB", "frames/s"]
        print(markdown_table(header, table))
        return int(any(row["growth_mb"] >= LIMIT or row["frames"] != frames for row in rows.values()))

    return run("run_memory", job)


if __name__ == "__main__":
    raise SystemExit(main())
