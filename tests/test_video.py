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

from video_samples import decode, make, picture

SIZE = (128, 96)


def test_decord_reads_what_is_not_written_again(tmp_path):
    """Its frames are the same but for its rounding: darker by a level on average."""
    path = make(tmp_path / "a.mp4")
    with vdenoise.open(path) as exact, vdenoise.open(path, exact=False) as fast:
        assert (exact.backend, fast.backend) == ("pyav", "decord")
        assert "rounds colours" in exact.reason
        difference = np.stack(list(fast)).astype(float) - decode(path)
    assert -1.6 < difference.mean() < -0.6


def test_the_table_sends_faults_of_decord_to_pyav(tmp_path, caplog):
    chosen = {}
    for name, codec, pix_fmt in [
        ("a.mp4", "libx264", "yuv420p"),
        ("b.mp4", "libx264", "yuv420p10le"),
        ("c.ts", "libx264", "yuv420p"),
        ("d.mkv", "ffv1", "gray"),
    ]:
        with (
            caplog.at_level("INFO"),
            vdenoise.open(make(tmp_path / name, codec, pix_fmt), exact=False) as reader,
        ):
            chosen[name] = reader.backend
            assert f"reading {name} by {reader.backend}: {reader.reason}" in caplog.text
    assert chosen == {"a.mp4": "decord", "b.mp4": "pyav", "c.ts": "pyav", "d.mkv": "pyav"}


def test_a_narrow_video_goes_to_pyav(tmp_path):
    """Decord gives four channels at some small widths."""
    path = make(tmp_path / "a.mp4", "libx264", "yuv420p", size=(48, 32))
    with vdenoise.open(path, exact=False) as reader:
        assert np.abs(np.stack(list(reader)) - decode(path)).max() < 1


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
