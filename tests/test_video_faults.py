"""Files as people have them: cut, torn, turned, edited. The frames that are there, or one clear error."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import av
import numpy as np
import pytest

import vdenoise
from vdenoise import VideoError
from vdenoise.video import probe, watchdog

from video_samples import decode, frames_of, make

CODECS = {"webm": "libvpx-vp9", "avi": "mpeg4", "mpg": "mpeg4"}
SUFFIXES = ["mkv", "ts", "avi", "mp4", "mpg", "webm"]


def remux(source: Path, target: Path, seconds_off: float = 0.0, **options: str) -> Path:
    """The same packets, earlier by some seconds."""
    with av.open(str(source)) as a, av.open(str(target), "w", options=options) as b:
        stream = b.add_stream_from_template(a.streams.video[0])
        for packet in a.demux(video=0):
            if packet.dts is not None:
                assert packet.pts is not None
                assert packet.time_base is not None
                shift = round(seconds_off / packet.time_base)
                packet.pts -= shift
                packet.dts -= shift
                packet.stream = stream
                b.mux(packet)
    return target


def assert_same(got: np.ndarray, expected: np.ndarray) -> None:
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() < 1


def test_an_edit_list_hides_frames(tmp_path):
    source = make(tmp_path / "all.mp4", frames=30, options={"bf": "2"})
    path = remux(source, tmp_path / "edited.mp4", seconds_off=0.75)
    expected = decode(path)
    assert len(expected) == 21  # the file holds 30
    for exact in (True, False):
        with vdenoise.open(path, exact=exact) as reader:
            assert (len(reader), reader.backend, reader.info.edited) == (21, "pyav", True)
            assert_same(np.stack(list(reader)), expected)
            assert_same(reader[20], expected[20])


@pytest.mark.parametrize("degrees", [90, 180, 270])
def test_a_turned_video_is_upright(tmp_path, degrees):
    path = make(tmp_path / "a.mp4", rotation=degrees)
    stored = decode(path)
    turned = next(f.rotation for f in frames_of(path)) % 360
    assert turned == degrees
    with vdenoise.open(path, exact=False) as reader:
        assert (reader.width, reader.height) == ((128, 96) if degrees == 180 else (96, 128))
        assert reader.backend == "pyav"
        assert_same(np.stack(list(reader)), np.rot90(stored, degrees // 90, axes=(1, 2)))


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("harm", ["cut", "garbage"])
def test_a_damaged_file_gives_the_frames_that_are_there(tmp_path, caplog, suffix, harm):
    whole = make(tmp_path / f"whole.{suffix}", CODECS.get(suffix, "libx264"), frames=40, options={"g": "8"})
    data = bytearray(whole.read_bytes())
    middle = len(data) // 2
    if harm == "cut":
        del data[len(data) * 6 // 10 :]
    else:
        data[middle : middle + len(data) // 12] = np.random.default_rng(0).bytes(len(data) // 12)
    path = tmp_path / f"harmed.{suffix}"
    path.write_bytes(bytes(data))
    if suffix == "mp4" and harm == "cut":  # its index lies at the end
        with pytest.raises(VideoError, match="can't be opened") as caught:
            vdenoise.open(path)
        assert "\n" not in str(caught.value)
        return
    expected = decode(path, tolerant=True)
    with vdenoise.open(path) as reader:
        got = np.stack(list(reader))
        assert_same(got, expected)
        assert len(reader) == len(got) < 40  # corrected while reading
        assert len(reader.times) == len(got)
        assert (np.diff(reader.times) > 0).all()
        np.testing.assert_array_equal(reader[len(got) - 1], got[-1])


def test_damage_is_told_once_with_its_place(tmp_path, caplog):
    whole = make(tmp_path / "whole.mp4", frames=40, options={"g": "8"})
    data = bytearray(whole.read_bytes())
    middle = len(data) // 2
    data[middle : middle + len(data) // 12] = np.random.default_rng(0).bytes(len(data) // 12)
    (tmp_path / "harmed.mp4").write_bytes(bytes(data))
    with vdenoise.open(tmp_path / "harmed.mp4") as reader:
        times = reader.times
        assert sum(1 for _ in reader) == len(reader) == 34
        kept = reader.times
    assert "7 frames at 1.750 s can't be decoded and are left out" in caplog.text
    assert "is damaged" in caplog.text
    # The others stay at their time, so that sound and picture stay together; one came late.
    assert len(set(kept) - set(times)) == 1
    assert kept[-1] == times[-1]


def test_a_header_that_promises_more(tmp_path, caplog):
    source = make(tmp_path / "a.mp4", frames=30)
    path = remux(source, tmp_path / "b.mp4", movflags="+faststart")
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 7 // 10])
    expected = decode(path, tolerant=True)
    for exact in (True, False):
        with vdenoise.open(path, exact=exact) as reader:
            assert reader.backend == "pyav"
            assert_same(np.stack(list(reader)), expected)
    assert "promises 30 frames" in caplog.text


def test_decord_gives_up_and_pyav_goes_on(tmp_path, caplog):
    whole = make(tmp_path / "whole.mp4", frames=40, options={"g": "8"})
    data = bytearray(whole.read_bytes())
    middle = len(data) // 2
    data[middle : middle + len(data) // 12] = np.random.default_rng(0).bytes(len(data) // 12)
    path = tmp_path / "harmed.mp4"
    path.write_bytes(bytes(data))
    expected = decode(path, tolerant=True)
    with vdenoise.open(path, exact=False) as reader:
        assert reader.backend == "decord"
        got = np.stack(list(reader))
    assert "Decord gives up" in caplog.text
    assert len(got) == len(expected)
    assert np.abs(got - expected).mean() < 1.6
    with (
        pytest.raises(VideoError, match="--backend pyav") as caught,
        vdenoise.open(path, backend="decord") as r,
    ):
        list(r)
    assert "\n" not in str(caught.value)


def test_no_frame_can_be_decoded(tmp_path):
    path = make(tmp_path / "a.mkv", frames=6, options={"g": "1"})
    data = bytearray(path.read_bytes())
    start = data.find(b"\x1f\x43\xb6\x75")  # the cluster's name in Matroska
    data[start + 12 :] = bytes(len(data) - start - 12)
    path.write_bytes(bytes(data))
    with pytest.raises(VideoError, match=r"without a frame|no frame|can't be decoded"):
        vdenoise.open(path)


@pytest.mark.parametrize("name", ["ä ö 视频.mp4", "a b'c\".mkv", "100% [x].mp4", "-dash.mp4"])
def test_names_of_any_letters(tmp_path, name):
    path = make(tmp_path / name)
    with vdenoise.open(path) as reader:
        assert len(list(reader)) == 14


def test_varying_times_are_read(tmp_path):
    pts = [0, 50, 75, 150, 151, 300, 330, 400, 460, 500, 560, 600]
    for name in ("a.mkv", "a.mp4"):
        with vdenoise.open(make(tmp_path / name, frames=12, pts=pts)) as reader:
            np.testing.assert_allclose(reader.times, np.array(pts) / 600, atol=6e-4)
            assert not reader.info.steady


def test_interlaced_input_is_said(tmp_path, caplog):
    options = {"x264-params": "tff=1"}
    path = make(tmp_path / "a.mp4", options=options)
    with vdenoise.open(path) as reader:
        assert reader.info.interlaced
    assert "interlaced" in caplog.text
    caplog.clear()
    with vdenoise.open(make(tmp_path / "b.mp4")) as reader:
        assert not reader.info.interlaced
    assert "interlaced" not in caplog.text


def test_transparency_is_refused(tmp_path):
    def see_through(t, size):
        return np.zeros((size[1], size[0], 3), np.uint8)

    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=5)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "bgra"
        image = np.full((48, 64, 4), 200, np.uint8)
        image[:, :9, 3] = 100
        container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="bgra")))
        container.mux(stream.encode(None))
    with pytest.raises(VideoError, match="transparent"):
        vdenoise.open(path)


def test_a_change_of_size_is_an_error(tmp_path):
    small, large = make(tmp_path / "s.ts", frames=5), make(tmp_path / "l.ts", frames=5, size=(160, 96))
    path = tmp_path / "both.ts"
    path.write_bytes(small.read_bytes() + large.read_bytes())
    with vdenoise.open(path) as reader, pytest.raises(VideoError, match="changes its size"):
        list(reader)


def test_a_decoder_that_hangs_is_left_alone(tmp_path):
    path = make(tmp_path / "a.mp4")
    code = (
        "import sys, time, decord, vdenoise\n"
        "from vdenoise.video import watchdog\n"
        "watchdog.LIMIT = 1.0\n"
        "class Stuck(decord.VideoReader):\n"
        "    def next(self): time.sleep(600)\n"
        "decord.VideoReader = Stuck\n"
        "try:\n"
        "    list(vdenoise.open(sys.argv[1], exact=False))\n"
        "except vdenoise.VideoError as error:\n"
        "    print(error); raise SystemExit(2)\n"
    )
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "has not answered for 1 s" in done.stdout
    assert time.monotonic() - started < 60


def test_a_slow_reader_is_not_a_hang(monkeypatch, tmp_path):
    monkeypatch.setattr(watchdog, "LIMIT", 0.5)
    frames = iter(vdenoise.open(make(tmp_path / "a.mp4")))
    next(frames)
    time.sleep(1)
    assert sum(1 for _ in frames) == 13


def test_probe_tells_what_a_file_is(tmp_path):
    info = probe(make(tmp_path / "a.mkv", "libx264", "yuv420p10le", color={"colorspace": 9, "color_trc": 16}))
    assert (info.bits, info.colour.matrix, info.colour.transfer, info.colour.hdr) == (10, 9, 16, True)
