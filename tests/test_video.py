"""Reading and writing: the frames of an independent decode, the source's timing and sound, whole files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import pytest

import vdenoise
from vdenoise import Clip, VideoError, Writer
from vdenoise.video import probe

SIZE = (128, 96)


def picture(t: int, size: tuple[int, int] = SIZE) -> np.ndarray:
    """A frame that no other is like: a ramp, and a block whose place and grey tell t."""
    w, h = size
    frame = np.zeros((h, w, 3), np.uint8)
    frame[..., 0] = np.linspace(20, 220, w).astype(np.uint8)
    frame[..., 1] = np.linspace(20, 220, h).astype(np.uint8)[:, None]
    frame[8:40, (5 * t) % (w - 40) : (5 * t) % (w - 40) + 32, 2] = 60 + 9 * t % 190
    return frame


def make(
    path: Path, codec: str, pix_fmt: str, frames: int = 14, size=SIZE, options=None, pts=None, sound=False
) -> Path:
    """A small file, by PyAV alone."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=12)
        stream.width, stream.height = size
        stream.pix_fmt = pix_fmt
        stream.options = options or {}
        if pts is not None:
            stream.codec_context.time_base = Fraction(1, 600)
        audio = container.add_stream("aac", rate=16000) if sound else None
        for t in range(frames):
            frame = av.VideoFrame.from_ndarray(picture(t, size), format="rgb24")
            if pts is not None:
                frame.pts, frame.time_base = pts[t], Fraction(1, 600)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
        if audio is not None:
            tone = (np.sin(np.arange(16000 * frames // 12) / 5) * 8000).astype(np.int16)[None]
            block = av.AudioFrame.from_ndarray(tone, format="s16", layout="mono")
            block.sample_rate, block.pts, block.time_base = 16000, 0, Fraction(1, 16000)
            container.mux(audio.encode(block))
            container.mux(audio.encode(None))
    return path


def decode(path: Path, kind: str = "rgb24") -> np.ndarray:
    """The independent sequential decode."""
    with av.open(str(path)) as container:
        frames = [f.to_ndarray(format=kind) for f in container.decode(video=0)]
    return np.stack([f[..., None] if f.ndim == 2 else f for f in frames])


KINDS = [
    ("a.mp4", "libx264", "yuv420p", {"bf": "2"}),
    ("a.mp4", "libx264", "yuv444p", {"bf": "0"}),
    ("a.mkv", "libx264", "yuv420p", {"bf": "3", "x264-params": "open-gop=1:keyint=5:min-keyint=2"}),
    ("a.mp4", "libx264", "yuv420p10le", {}),
    ("a.mkv", "libx265", "yuv420p", {"x265-params": "log-level=none"}),
    ("a.webm", "libvpx-vp9", "yuv420p", {"deadline": "realtime", "cpu-used": "8"}),
    ("a.avi", "mpeg4", "yuv420p", {}),
    ("a.avi", "mpeg4", "yuv420p", {"bf": "2"}),
    ("a.avi", "mjpeg", "yuvj420p", {}),
    ("a.mkv", "ffv1", "gray", {}),
    ("a.mkv", "ffv1", "yuv444p", {}),
    ("a.avi", "rawvideo", "yuv420p", {}),
    ("a.mpg", "mpeg2video", "yuv420p", {"bf": "2"}),
    ("a.ts", "libx264", "yuv420p", {"bf": "2"}),
    ("a.mp4", "libx264", "yuv420p", {"color_range": "pc"}),
]


def kinds():
    for name, codec, pix_fmt, options in KINDS:
        label = "-".join([name[2:], codec, pix_fmt, *options])
        yield pytest.param(name, codec, pix_fmt, options, id=label)


@pytest.mark.parametrize(("name", "codec", "pix_fmt", "options"), list(kinds()))
def test_frames_are_those_of_an_independent_decode(tmp_path, name, codec, pix_fmt, options):
    if codec == "mpeg2video":
        path = make_mpeg(tmp_path / name, options)
    else:
        path = make(tmp_path / name, codec, pix_fmt, size=(176, 144), options=options)
    expected = decode(path, "gray" if pix_fmt == "gray" else "rgb24")
    with vdenoise.open(path) as reader:
        assert len(reader) == len(expected)
        got = np.stack(list(reader))
        np.testing.assert_array_equal(got, expected)
        for i in (7, 2, -1, 0, len(expected) - 2):
            np.testing.assert_array_equal(reader[i], expected[i])
        np.testing.assert_array_equal(reader.read(3, 6), expected[3:6])
        luma = np.stack(list(vdenoise.open(path, gray=True)))
    np.testing.assert_array_equal(luma, decode(path, "gray"))


def make_mpeg(path: Path, options: dict[str, str]) -> Path:
    with av.open(str(path), "w", format="mpeg") as container:
        stream = container.add_stream("mpeg2video", rate=25)
        stream.width, stream.height, stream.pix_fmt = 176, 144, "yuv420p"
        stream.options = options
        for t in range(14):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture(t, (176, 144)), format="rgb24")))
        container.mux(stream.encode(None))
    return path


@pytest.mark.parametrize("backend", ["decord", "pyav"])
def test_both_backends_give_the_same_where_decord_is_right(tmp_path, backend):
    path = make(tmp_path / "a.mp4", "libx264", "yuv420p")
    with vdenoise.open(path, backend=backend) as reader:
        assert reader.backend == backend
        np.testing.assert_array_equal(np.stack(list(reader)), decode(path))


def test_the_table_sends_faults_of_decord_to_pyav(tmp_path):
    chosen = {}
    for name, codec, pix_fmt in [
        ("a.mp4", "libx264", "yuv420p"),
        ("b.mp4", "libx264", "yuv420p10le"),
        ("c.ts", "libx264", "yuv420p"),
        ("d.mkv", "ffv1", "gray"),
    ]:
        with vdenoise.open(make(tmp_path / name, codec, pix_fmt)) as reader:
            chosen[name] = reader.backend
            assert reader.reason
    assert chosen == {"a.mp4": "decord", "b.mp4": "pyav", "c.ts": "pyav", "d.mkv": "pyav"}


def test_a_narrow_video_goes_to_pyav(tmp_path):
    """Decord gives four channels at some small widths."""
    path = make(tmp_path / "a.mp4", "libx264", "yuv420p", size=(48, 32))
    with vdenoise.open(path) as reader:
        np.testing.assert_array_equal(np.stack(list(reader)), decode(path))


def test_one_frame(tmp_path):
    path = make(tmp_path / "a.mp4", "libx264", "yuv420p", frames=1)
    with vdenoise.open(path) as reader:
        assert len(reader) == len(list(reader)) == 1


def test_bad_files_are_told_in_one_line(tmp_path):
    (tmp_path / "zero.mp4").touch()
    (tmp_path / "text.mp4").write_text("not a video " * 100)
    (tmp_path / "list.mp4").write_text("#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:///etc/passwd\n")
    (tmp_path / "empty").mkdir()
    with av.open(str(tmp_path / "sound.mp4"), "w") as container:
        audio = container.add_stream("aac", rate=16000)
        block = av.AudioFrame.from_ndarray(np.zeros((1, 4096), np.int16), format="s16", layout="mono")
        block.sample_rate = 16000
        container.mux(audio.encode(block))
        container.mux(audio.encode(None))
    for name, message in [
        ("zero.mp4", "empty"),
        ("text.mp4", "can't be opened"),
        ("list.mp4", "kind|can't be opened"),
        ("nowhere.mp4", "does not exist"),
        ("empty", "no image"),
        ("sound.mp4", "no video stream"),
    ]:
        with pytest.raises(VideoError, match=message) as caught:
            vdenoise.open(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_a_truncated_file_is_an_error_not_a_hang(tmp_path):
    path = make(tmp_path / "a.mp4", "libx264", "yuv420p", frames=40)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(VideoError):
        list(vdenoise.open(path))


def test_timing_and_sound_are_kept(tmp_path):
    pts = [0, 50, 75, 150, 151, 300, 330, 400, 460, 500, 560, 600]
    source = make(tmp_path / "in.mkv", "libx264", "yuv420p", frames=12, pts=pts, sound=True)
    target = tmp_path / "out.mp4"
    with vdenoise.open(source) as reader, Writer(target, like=reader) as writer:
        for frame in reader:
            writer.write(frame)
    with vdenoise.open(source) as a, vdenoise.open(target) as b:
        assert len(a) == len(b) == 12
        np.testing.assert_allclose(b.times, a.times, atol=1e-3)

    def packets(path: Path) -> list[bytes]:
        with av.open(str(path)) as container:
            return [bytes(p) for p in container.demux(audio=0) if p.size]

    assert packets(target) == packets(source)
    assert len(packets(source)) > 5


@pytest.mark.parametrize("size", [(128, 96), (127, 95), (33, 17)])
def test_written_frames_come_back(tmp_path, size):
    path = tmp_path / "out.mp4"
    with Writer(path, fps=12, crf=1) as writer:
        for t in range(6):
            writer.write(picture(t, size))
    with vdenoise.open(path) as reader:
        assert (reader.width, reader.height) == size
        assert reader.fps == 12
        error = np.abs(np.stack(list(reader)).astype(int) - np.stack([picture(t, size) for t in range(6)]))
    assert error.mean() < 3


def test_grey_frames_can_be_written(tmp_path):
    path = tmp_path / "out.mkv"
    with Writer(path, fps=5, codec="ffv1", pix_fmt="gray") as writer:
        frames = [picture(t)[..., :1] for t in range(4)]
        for frame in frames:
            writer.write(frame)
    with vdenoise.open(path) as reader:
        assert reader.channels == 1
        np.testing.assert_array_equal(np.stack(list(reader)), np.stack(frames))


def test_nothing_is_overwritten_or_left_behind(tmp_path):
    source = make(tmp_path / "in.mp4", "libx264", "yuv420p")
    before = source.read_bytes()
    with vdenoise.open(source) as reader:
        with pytest.raises(VideoError, match="is the input"):
            Writer(source, like=reader, overwrite=True)
        (tmp_path / "out.mp4").write_bytes(b"mine")
        with pytest.raises(VideoError, match="exists"):
            Writer(tmp_path / "out.mp4", like=reader)
    writer = Writer(tmp_path / "new.mp4", fps=5)
    writer.write(picture(0))
    writer.__exit__(RuntimeError, RuntimeError("halfway"), None)
    with pytest.raises(VideoError, match="no frame"), Writer(tmp_path / "new.mp4", fps=5):
        pass
    with Writer(tmp_path / "new.mp4", fps=5) as writer:
        with pytest.raises(VideoError, match="uint8"):
            writer.write(picture(0).astype(np.float32))
        writer.write(picture(0))
    (tmp_path / "new.mp4").unlink()
    assert source.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.mp4", "out.mp4"]


def test_a_killed_writer_leaves_no_output(tmp_path):
    code = (
        "import sys, time, numpy as np, vdenoise\n"
        "w = vdenoise.Writer(sys.argv[1], fps=5)\n"
        "w.write(np.zeros((32, 32, 3), np.uint8)); print('written', flush=True); time.sleep(60)\n"
    )
    target = tmp_path / "out.mp4"
    process = subprocess.Popen([sys.executable, "-c", code, str(target)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"written\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert not target.exists()


def test_a_folder_of_images_is_a_video(tmp_path):
    for t in range(11):
        cv2.imwrite(str(tmp_path / f"frame {t}.png"), picture(t)[..., ::-1])
    (tmp_path / ".DS_Store").write_bytes(b"x")
    with vdenoise.open(tmp_path) as reader:
        assert len(reader) == 11
        assert reader.backend == "opencv"
        np.testing.assert_array_equal(np.stack(list(reader)), np.stack([picture(t) for t in range(11)]))
        np.testing.assert_array_equal(reader[10], picture(10))
    (tmp_path / "frame 5.png").write_bytes(b"")
    with pytest.raises(VideoError, match="frame 5"):
        list(vdenoise.open(tmp_path))


def test_memory_stays_flat_over_a_long_video(tmp_path):
    path = make(
        tmp_path / "long.mp4",
        "libx264",
        "yuv420p",
        frames=600,
        size=(640, 360),
        options={"preset": "ultrafast"},
    )
    code = (
        "import resource, sys, vdenoise\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024\n"
        "frames = iter(vdenoise.open(sys.argv[1]))\n"
        "for _ in range(60): next(frames)\n"
        "first = peak()\n"
        "count = 60 + sum(1 for _ in frames)\n"
        "print(count, peak() - first)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    count, growth = done.stdout.split()
    assert int(count) == 600
    assert float(growth) < 60  # MB; the 540 frames themselves are 373


def test_probe_reads_headers_without_decoding(tmp_path):
    path = make(tmp_path / "a b ü.mp4", "libx264", "yuv420p", sound=True)
    started = time.monotonic()
    info = probe(path)
    assert time.monotonic() - started < 5
    assert (info.codec, info.width, info.height, info.fps, info.bits) == ("h264", *SIZE, 12, 8)
    assert info.audio == 1
    assert len(info.times) == 14


def test_a_clip_checks_itself():
    frames = np.zeros((3, 8, 8, 1), np.uint8)
    assert Clip(frames, Fraction(10)).times == (0.0, 0.1, 0.2)
    assert Clip(frames + 255).tensor().shape == (3, 1, 8, 8)
    assert Clip(frames + 255).tensor().max() == 1
    for bad, message in [
        ({"frames": frames[0]}, "shape"),
        ({"frames": frames.astype(float)}, "uint8"),
        ({"frames": frames, "times": (0.0, 1.0)}, "one entry per frame"),
        ({"frames": frames, "times": (0.0, 2.0, 1.0)}, "fall"),
        ({"frames": frames, "fps": Fraction(0)}, "fps"),
    ]:
        with pytest.raises(ValueError, match=message):
            Clip(**bad)
