"""What goes out is what came in, but for the noise: colours, times, sound, orientation, depth."""

from __future__ import annotations

import os
import resource
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
from vdenoise import VideoError
from vdenoise.video import create, probe
from vdenoise.video.colour import Colour, to_array, to_frame

from video_samples import decode, frames_of, make, picture, planes


def copy(source: Path, target: Path, **options) -> Path:
    """Through the package's own reader and writer, with nothing cleaned."""
    with vdenoise.open(source) as reader, create(target, like=reader, **options) as writer:
        for frame in reader:
            writer.write(frame)
    return target


def smooth(t: int, size: tuple[int, int]) -> np.ndarray:
    """Colours that move, well inside the gamut: what a codec changes little."""
    w, h = size
    x, y = np.meshgrid(np.arange(w) / w, np.arange(h) / h)
    waves = [np.sin(6 * x + 0.3 * t), np.cos(5 * y - 0.2 * t), np.sin(4 * (x + y) + 0.1 * t)]
    return np.stack([128 + 40 * wave for wave in waves], -1).astype(np.uint8)


@pytest.mark.parametrize("matrix", [1, 5, 6, 7, 9, 2])
@pytest.mark.parametrize("span", [1, 2])
@pytest.mark.parametrize("pix_fmt", ["yuv420p", "yuv422p", "yuv444p", "yuv420p10le", "nv12", "yuv422p12le"])
@pytest.mark.parametrize("size", [(64, 48), (63, 47)])
def test_there_and_back_gives_the_same_planes(matrix, span, pix_fmt, size):
    if pix_fmt == "nv12" and size[0] % 2:
        pytest.skip("its two chroma planes are one")
    rgb = av.VideoFrame.from_ndarray(smooth(3, size), format="rgb24")
    frame = rgb.reformat(
        format=pix_fmt, dst_colorspace={2: 5, 6: 5}.get(matrix, matrix), dst_color_range=span
    )
    frame.colorspace, frame.color_range = matrix, span
    colour = Colour.of(frame)
    deep = frame.format.components[0].bits > 8
    back = to_frame(to_array(frame, colour, gray=False, deep=deep), pix_fmt, colour)
    assert (back.colorspace, back.color_range) == (matrix, span)
    for a, b in zip(planes(frame), planes(back), strict=True):
        assert np.abs(a - b).max() <= 1


@pytest.mark.parametrize(
    ("color", "codec", "pix_fmt"),
    [
        ({}, "libx264", "yuv420p"),
        ({"colorspace": 1, "color_range": 1, "color_primaries": 1, "color_trc": 1}, "libx264", "yuv420p"),
        ({"colorspace": 6, "color_range": 1, "color_primaries": 6, "color_trc": 6}, "libx264", "yuv420p"),
        ({"colorspace": 1, "color_range": 2, "color_primaries": 1, "color_trc": 1}, "libx264", "yuv420p"),
        (
            {"colorspace": 9, "color_range": 1, "color_primaries": 9, "color_trc": 16},
            "libx265",
            "yuv420p10le",
        ),
        (
            {"colorspace": 9, "color_range": 1, "color_primaries": 9, "color_trc": 18},
            "libx264",
            "yuv420p10le",
        ),
    ],
)
@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_a_round_trip_changes_no_more_than_the_codec(tmp_path, color, codec, pix_fmt, suffix):
    quiet = {"x265-params": "log-level=error"} if codec == "libx265" else {}
    source = make(
        tmp_path / f"in.{suffix}",
        codec,
        pix_fmt,
        8,
        color=color,
        source=smooth,
        options={"crf": "4", **quiet},
    )
    # Lossless: what differs now, differs by our own conversions alone.
    target = copy(source, tmp_path / "lossless.mkv", codec="ffv1")
    for a, b in zip(frames_of(source), frames_of(target), strict=True):
        for x, y in zip(planes(a), planes(b), strict=True):
            assert np.abs(x - y).max() <= 1
    shown = copy(source, tmp_path / f"out.{suffix}")
    a, b = probe(source), probe(shown)
    assert b.colour == a.colour
    assert b.bits == a.bits
    assert b.pix_fmt == a.pix_fmt
    off = np.abs(decode(source) - decode(shown))
    assert off.mean() < 1
    if color.get("color_trc") in (16, 18):
        assert b.codec == "hevc"  # what HDR players expect


@pytest.mark.parametrize(("codec", "params"), [("hevc", "x265"), ("h264", "x264")])
def test_an_hdr_master_keeps_its_marks(tmp_path, codec, params):
    master = "G(13250,34500)B(7500,3000)R(34000,16000)WP(15635,16450)L(10000000,50)"
    options = {"x265-params": f"log-level=error:hdr10=1:master-display={master}:max-cll=1000,400"}
    color = {"colorspace": 9, "color_range": 1, "color_primaries": 9, "color_trc": 16}
    source = make(tmp_path / "in.mkv", "libx265", "yuv420p10le", 4, options=options, color=color)
    assert probe(source).mastering == master
    target = probe(copy(source, tmp_path / "out.mkv", codec=codec))
    assert (target.mastering, target.light, target.colour) == (master, "1000,400", Colour(1, 9, 9, 16))


@pytest.mark.parametrize("name", ["out.mp4", "out.mkv", "out.mov"])
def test_varying_times_rotation_and_pixel_shape_are_kept(tmp_path, name):
    pts = [0, 50, 75, 150, 151, 300, 330, 400, 460, 500, 560, 600]
    source = make(tmp_path / "in.mp4", frames=12, pts=pts, sound=True, rotation=90, aspect=Fraction(4, 3))
    target = copy(source, tmp_path / name)
    a, b = probe(source), probe(target)
    # Matroska has no times before zero: where sound begins before, as AAC does, all is moved on together.
    moved = b.times[0] - a.times[0] if name.endswith("mkv") else 0
    assert moved < 0.07
    np.testing.assert_allclose(b.times, np.array(a.times) + moved, atol=1e-3 if moved else 1e-9)
    assert (b.rotation, b.aspect, b.width, b.height) == (90, Fraction(4, 3), 128, 96)
    assert sound(target) == sound(source)
    # and its end keeps the padding of the last block of sound, 64 ms, which mp4 cuts off.
    assert abs(length(target) - length(source) - moved) < (0.065 if moved else 0.02)
    with vdenoise.open(source) as x, vdenoise.open(target) as y:
        assert (x.width, x.height) == (y.width, y.height) == (96, 128)
        assert np.abs(np.stack(list(x)).astype(int) - np.stack(list(y))).mean() < 3


def test_a_turned_video_is_stored_upright_where_the_container_can_not_turn(tmp_path):
    source = make(tmp_path / "in.mp4", rotation=90)
    target = copy(source, tmp_path / "out.avi")
    assert (probe(target).width, probe(target).height, probe(target).rotation) == (96, 128, 0)
    assert np.abs(np.rot90(decode(source), 1, axes=(1, 2)) - decode(target)).mean() < 3


def sound(path: Path, track: int = 0) -> list[bytes]:
    with av.open(str(path)) as container:
        return [bytes(p) for p in container.demux(audio=track) if p.size]


def length(path: Path) -> float:
    with av.open(str(path)) as container:
        return (container.duration or 0) / 1e6


def test_several_tracks_titles_and_chapters(tmp_path):
    source = tmp_path / "in.mkv"
    with av.open(str(source), "w") as container:
        container.metadata["title"] = "Two tongues"
        video = container.add_stream("libx264", rate=12)
        video.width, video.height, video.pix_fmt = 128, 96, "yuv420p"
        tracks = [container.add_stream(c, rate=48000) for c in ("aac", "libopus", "pcm_s16le")]
        words = container.add_stream_from_template(_subtitles(tmp_path).streams.subtitles[0])
        for stream, tongue in zip([*tracks, words], ["eng", "deu", "fra", "ita"], strict=True):
            stream.metadata["language"] = tongue
        container.set_chapters(
            [{"id": 1, "start": 0, "end": 500, "time_base": Fraction(1, 1000), "metadata": {"title": "One"}}]
        )
        for t in range(14):
            container.mux(video.encode(av.VideoFrame.from_ndarray(picture(t), format="rgb24")))
        container.mux(video.encode(None))
        for i, track in enumerate(tracks):
            tone = (np.sin(np.arange(48000) / (5 + i)) * 8000).astype(np.int16)[None]
            block = av.AudioFrame.from_ndarray(np.repeat(tone, 2, 1), format="s16", layout="stereo")
            block.sample_rate, block.pts, block.time_base = 48000, 0, Fraction(1, 48000)
            container.mux(track.encode(block))
            container.mux(track.encode(None))
        for packet in _subtitles(tmp_path).demux(subtitles=0):
            if packet.dts is not None:
                packet.stream = words
                container.mux(packet)
    target = copy(source, tmp_path / "out.mkv")
    with av.open(str(source)) as a, av.open(str(target)) as b:
        assert [s.type for s in a.streams] == [s.type for s in b.streams]
        assert [s.language for s in a.streams][1:] == [s.language for s in b.streams][1:]
        assert b.metadata["title"] == "Two tongues"
        assert [c["metadata"]["title"] for c in b.chapters()] == ["One"]
        texts = [[bytes(p) for p in c.demux(subtitles=0) if p.size] for c in (a, b)]
        assert texts[0] == texts[1] != []
    for track in range(3):
        assert sound(target, track) == sound(source, track) != []


def _subtitles(folder: Path) -> av.container.InputContainer:
    path = folder / "words.srt"
    path.write_text("1\n00:00:00,100 --> 00:00:00,600\nHello\n\n2\n00:00:00,700 --> 00:00:01,000\nBye\n")
    return av.open(str(path))


def test_sound_that_does_not_fit_is_encoded_anew_and_said(tmp_path, caplog):
    source = tmp_path / "in.mkv"
    beep_and_flash(source, "pcm_s16le")
    with caplog.at_level("INFO"):
        copy(source, tmp_path / "out.webm")
    assert "encoded anew: pcm_s16le to libopus" in caplog.text
    with av.open(str(tmp_path / "out.webm")) as container:
        assert container.streams.audio[0].codec_context.name == "opus"
    copy(source, tmp_path / "quiet.mp4", sound="none")
    assert probe(tmp_path / "quiet.mp4").audio == 0
    copy(source, tmp_path / "web.mp4", sound="browser")
    with av.open(str(tmp_path / "web.mp4")) as container:
        assert container.streams.audio[0].codec_context.name == "aac"


FLASHES = (1.0, 3.0, 5.0, 7.0)  # seconds


def beep_and_flash(
    path: Path, codec: str = "aac", fps: Fraction = Fraction(30000, 1001), varying=False
) -> Path:
    """White frames and 40 ms of tone, at the same moments."""
    rng = np.random.default_rng(0)
    seconds = np.cumsum(rng.uniform(0.02, 0.06, 200)) if varying else np.arange(240) / float(fps)
    seconds = np.sort(np.append(seconds[seconds < 8], FLASHES) if varying else seconds[seconds < 8])
    with av.open(str(path), "w") as container:
        video = container.add_stream("libx264", rate=fps, options={"preset": "ultrafast"})
        video.width, video.height, video.pix_fmt = 96, 64, "yuv420p"
        video.codec_context.time_base = Fraction(1, 90000)
        audio = container.add_stream(codec, rate=48000)
        samples = np.zeros((1, 48000 * 8), np.int16)
        for flash in FLASHES:
            start = round(flash * 48000)
            samples[:, start : start + 1920] = (np.sin(np.arange(1920) / 6) * 20000).astype(np.int16)
        for second in seconds:
            lit = any(0 <= second - flash < 0.1 for flash in FLASHES)
            image = np.full((64, 96, 3), 230 if lit else 20, np.uint8)
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame.pts, frame.time_base = round(second * 90000), Fraction(1, 90000)
            container.mux(video.encode(frame))
        container.mux(video.encode(None))
        block = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
        block.sample_rate, block.pts, block.time_base = 48000, 0, Fraction(1, 48000)
        container.mux(audio.encode(block))
        container.mux(audio.encode(None))
    return path


def moments(path: Path) -> tuple[list[float], list[float]]:
    """Seconds at which light and sound begin, in the file's own times."""
    with av.open(str(path)) as container:
        light = [(f.time, f.to_ndarray(format="gray").mean() > 120) for f in container.decode(video=0)]
    with av.open(str(path)) as container:
        blocks = [(f.time, f.to_ndarray().astype(float)) for f in container.decode(audio=0)]
    noise = []
    for start, block in blocks:
        loud = np.abs(block.reshape(-1)) / np.abs(np.concatenate([b.reshape(-1) for _, b in blocks])).max()
        noise += [(start + i / 48000, x > 0.3) for i, x in enumerate(loud)]
    return _onsets(light), _onsets(noise)


def _onsets(marks: list[tuple[float, bool]]) -> list[float]:
    found: list[float] = []
    for time_, on in marks:
        if on and (not found or time_ - found[-1] > 0.5):
            found.append(time_)
    return found


@pytest.mark.parametrize("names", [
    ("in.mp4", "out.mp4"), ("in.mkv", "out.mp4"), ("in.ts", "out.mkv"),
    ("in.mp4", "out.webm"), ("in.mp4", "out.avi"), ("in.ts", "out.ts"),
])  # fmt: skip
def test_beep_and_flash_stay_together(tmp_path, names):
    source = beep_and_flash(tmp_path / names[0])
    target = copy(source, tmp_path / names[1])
    before, after = moments(source), moments(target)
    assert [len(x) for x in (*before, *after)] == [4] * 4
    drift = (np.array(after[0]) - after[1]) - (np.array(before[0]) - before[1])
    assert np.abs(drift).max() < 0.022  # one frame of AAC; it does not grow
    assert abs(drift[-1] - drift[0]) < 0.005


def test_beep_and_flash_stay_together_at_varying_rates(tmp_path):
    source = beep_and_flash(tmp_path / "in.mkv", varying=True)
    before, after = moments(source), moments(copy(source, tmp_path / "out.mp4"))
    np.testing.assert_allclose(after[0], before[0], atol=0.002)
    np.testing.assert_allclose(after[1], before[1], atol=0.002)
    with pytest.raises(VideoError, match="varies"):
        copy(source, tmp_path / "out.avi")


def test_lost_frames_do_not_shift_the_rest(tmp_path, caplog):
    source = beep_and_flash(tmp_path / "in.mkv", "pcm_s16le")
    data = bytearray(source.read_bytes())
    with av.open(str(source)) as container:
        spot = [p.pos for p in container.demux(video=0) if p.size and p.is_keyframe]
    start = (spot[0] or 0) + 40
    data[start : start + 60] = bytes(60)
    source.write_bytes(bytes(data))
    target = copy(source, tmp_path / "out.mkv")
    light, noise = moments(target)
    assert len(noise) == 4
    for flash in light:
        assert min(abs(flash - other) for other in FLASHES) < 0.05


@pytest.mark.parametrize(("codec", "name", "pix_fmt"), [
    ("ffv1", "out.mkv", "auto"), ("ffv1", "out.avi", "auto"), ("hevc", "out.mp4", "auto"),
    ("vp9", "out.webm", "auto"), ("av1", "out.mkv", "auto"), ("mpeg4", "out.avi", "auto"),
    ("mjpeg", "out.avi", "auto"), ("auto", "out.mpg", "auto"), ("h264", "out.mp4", "yuv444p"),
    ("h264", "out.ts", "yuv422p"), ("libx264", "out.mov", "source"),
])  # fmt: skip
def test_codecs(tmp_path, codec, name, pix_fmt):
    source = make(tmp_path / "in.mp4", frames=8, source=smooth, fps=25)
    target = copy(source, tmp_path / name, codec=codec, pix_fmt=pix_fmt)
    got, expected = decode(target), decode(source)
    assert got.shape == expected.shape
    assert np.abs(got - expected).mean() < (0.4 if codec == "ffv1" else 2)
    if pix_fmt not in ("auto", "source"):
        assert probe(target).pix_fmt == pix_fmt


def test_options_are_checked(tmp_path):
    for options, message in [
        ({"codec": "betamax"}, "one of h264"),
        ({"codec": "h264", "crf": 60}, "0–51"),
        ({"codec": "ffv1", "crf": 10}, "lossless"),
        ({"pix_fmt": "pink"}, "takes yuv420p"),
        ({"sound": "loud"}, "keep"),
    ]:
        source = make(tmp_path / "in.mp4", frames=3, sound=True)
        with pytest.raises(VideoError, match=message):
            copy(source, tmp_path / "out.mkv", **options)
    assert [p.name for p in tmp_path.iterdir()] == ["in.mp4"]


def test_lower_crf_is_nearer(tmp_path):
    def noise(t, size):
        return np.random.default_rng(t).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)

    source = make(tmp_path / "in.mkv", "ffv1", "yuv420p", 5, source=noise)
    off = [
        np.abs(decode(copy(source, tmp_path / f"{c}.mp4", crf=c)) - decode(source)).mean() for c in (5, 40)
    ]
    assert off[0] < off[1] / 2


@pytest.mark.parametrize(
    ("target", "depth"), [("out/*.png", 16), ("out/*.tif", 16), ("out", 16), ("out/*.jpg", 8)]
)
def test_ten_bits_to_images_and_back(tmp_path, target, depth):
    source = make(tmp_path / "in.mkv", "ffv1", "yuv420p10le", 5, source=smooth)
    copy(source, tmp_path / target)
    files = sorted((tmp_path / "out").iterdir())
    assert len(files) == 5
    image = cv2.imread(str(files[3]), cv2.IMREAD_UNCHANGED)
    assert image.dtype == (np.uint16 if depth == 16 else np.uint8)
    shown = image[..., ::-1] / np.iinfo(image.dtype).max * 255
    assert np.abs(shown - decode(source)[3]).max() < (0.6 if depth == 16 else 12)
    with vdenoise.open(tmp_path / "out") as reader:
        assert reader.dtype == image.dtype
        np.testing.assert_array_equal(reader[3], image[..., ::-1])
        if depth == 16:
            film = tmp_path / "film.mp4"
            with create(film, like=reader) as writer:
                for frame in reader:
                    writer.write(frame)
            assert probe(film).bits == 10


def test_an_image_sequence_keeps_its_names_and_is_replaced_on_request(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for t in (9, 10, 11):
        cv2.imwrite(str(folder / f"shot {t}.png"), picture(t)[..., ::-1])
    copy(folder, tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [f"shot {t}.png" for t in (10, 11, 9)]
    np.testing.assert_array_equal(cv2.imread(str(tmp_path / "out" / "shot 9.png"))[..., ::-1], picture(9))
    with pytest.raises(VideoError, match="not empty"):
        copy(folder, tmp_path / "out")
    with pytest.raises(VideoError, match="is the input"):
        copy(folder, folder, overwrite=True)
    (tmp_path / "out" / "diary.txt").write_text("mine")
    with pytest.raises(VideoError, match="more than images"):
        copy(folder, tmp_path / "out", overwrite=True)
    (tmp_path / "out" / "diary.txt").unlink()
    copy(folder, tmp_path / "out", overwrite=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "out"]


WRITE = (
    "import sys, resource, signal, numpy as np, vdenoise\n"
    "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)\n"
    "rng = np.random.default_rng(0)\n"
    "try:\n"
    "    with vdenoise.Writer(sys.argv[1], fps=5, crf=1) as writer:\n"
    "        for _ in range(40): writer.write(rng.integers(0, 255, (96, 128, 3), dtype=np.uint8))\n"
    "except vdenoise.VideoError as error:\n"
    "    print(error); raise SystemExit(2)\n"
)


@pytest.mark.parametrize("name", ["out.mp4", "out.mkv", "out.avi"])
def test_a_full_disk_is_told_and_leaves_nothing(tmp_path, name):
    done = subprocess.run(
        [sys.executable, "-c", WRITE, str(tmp_path / name), "200000"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "can't be written" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_leaves_nothing(tmp_path):
    source = make(tmp_path / "in.mp4", frames=60, size=(320, 240))
    command = [
        sys.executable,
        "-m",
        "vdenoise.cli.denoise",
        str(source),
        str(tmp_path / "out.mp4"),
        "--sigma",
        "20",
    ]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".out.*")):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopped" in told
    assert "Traceback" not in told
    assert [p.name for p in tmp_path.iterdir()] == ["in.mp4"]


def test_memory_does_not_depend_on_length(tmp_path):
    """Reading and writing 1 200 frames of 640×360 takes no more than 240 do."""
    code = (
        "import resource, sys, vdenoise\n"
        "from vdenoise.video import create\n"
        "with vdenoise.open(sys.argv[1]) as r, create(sys.argv[2], like=r, overwrite=True) as w:\n"
        "    for i, frame in enumerate(r):\n"
        "        w.write(frame)\n"
        "        if i == 239: first = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024\n"
        "print(i + 1, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - first)\n"
    )
    source = make(
        tmp_path / "in.mp4", frames=1200, size=(640, 360), options={"preset": "ultrafast"}, source=_still
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(source), str(tmp_path / "out.mp4")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    count, growth = done.stdout.split()
    assert int(count) == 1200
    assert float(growth) < 60  # MB; the frames in between are 663


def _still(t: int, size: tuple[int, int], cache: dict[int, np.ndarray] = {}) -> np.ndarray:  # noqa: B006
    if t % 30 not in cache:
        cache[t % 30] = picture(t % 30, size)
    return cache[t % 30]


assert resource.RLIMIT_FSIZE  # the platform has limits: these tests are for Linux and macOS
