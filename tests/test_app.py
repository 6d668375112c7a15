"""The app's functions without a browser: what is shown, what is computed, what is refused."""

from __future__ import annotations

import math
import os
import re
import threading
import time
import zlib
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest
import torch

import app
from vdenoise.metrics import rmse
from vdenoise.models import load
from vdenoise.noise import add_noise
from vdenoise.studio.compare import NOISY, Cell, family, middle_frames, rmse_over_gamma, to_csv, to_png
from vdenoise.studio.filejob import Outcome, Progress, clean_file, watch
from vdenoise.studio.preview import Limits, Noise, errors, look, middle_of, preview, to_tensor
from vdenoise.studio.sessions import ADD_NOISE, AS_IT_IS, BY_HAND, GAMMA, SIGMA, Settings, Studio, sweep
from vdenoise.video import VideoError, Writer, open_video
from vdenoise.web import charts, page

from app_samples import clip_with_sound, edge_clip, tiny_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tiny_checkpoint(tmp_path_factory.mktemp("models") / "tiny.pt")


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    """Two seconds of 64×48 pixels at 10 frames per second."""
    return edge_clip(tmp_path_factory.mktemp("clips") / "edge.mp4")


def test_a_look_tells_what_the_file_is(clip):
    facts = look(clip)
    assert (facts.name, facts.frames, facts.width, facts.height) == ("edge.mp4", 20, 64, 48)
    assert facts.seconds == pytest.approx(2.0)
    assert not facts.sound
    assert facts.first.shape == (48, 64, 3)
    for word in ("edge.mp4", "64 × 48", "2.0 s", "no sound"):
        assert word in page.facts_html(facts)


def test_a_look_measures_the_noise(tmp_path, clip):
    noisy = tmp_path / "noisy.mkv"
    noise = Noise(20.0)
    generator = noise.generator()
    with open_video(clip) as reader, Writer(noisy, fps=10, codec="ffv1", pix_fmt="bgr0") as writer:
        for frame in reader:
            writer.write(noise.put_on(frame[None], generator)[0])
    assert look(noisy).sigma == pytest.approx(20, rel=0.1)


def test_preview_knows_the_error_where_noise_was_added(clip, checkpoint):
    second = preview(clip, str(checkpoint), noise=Noise(30.0), at=1.0)
    assert len(second.before) == 10
    assert second.start == 10
    assert len(second.curve) == 4  # the input and three layers
    assert second.curve[0] == pytest.approx(30, rel=0.05)
    true = np.sqrt(np.mean((second.after.astype(float) - second.clean) ** 2))
    assert second.curve[-1] == pytest.approx(true, abs=0.3)  # of rounding
    assert "RMSE" in page.preview_html(second)
    assert "True error" in page.curve_html(second)


def test_preview_says_that_the_truth_is_unknown(clip, checkpoint):
    second = preview(clip, str(checkpoint), sigma=10)
    assert second.clean is None
    assert second.sigma == 10
    assert len(second.curve) == 4
    assert second.certificate is not None
    assert second.curve == second.certificate.rmse
    assert "unknown" in page.preview_html(second)
    assert "Estimated error" in page.curve_html(second)


def test_the_curve_is_what_it_says():
    before = np.full((1, 2, 2, 1), 10, np.uint8)
    layers = [np.full((1, 2, 2, 1), v, np.float32) for v in (7.0, 6.0)]
    clean = np.full((1, 2, 2, 1), 5, np.uint8)
    assert errors(clean, before, layers) == (5.0, 2.0, 1.0)


def test_large_frames_are_previewed_in_the_middle():
    assert middle_of(1080, 1920) == (360, 720, 360, 480)
    assert middle_of(100, 120) == (0, 0, 100, 120)


def test_a_job_writes_every_frame_and_its_score(clip, checkpoint, tmp_path):
    *steps, end = clean_file(clip, tmp_path, str(checkpoint), noise=Noise(25.0))
    assert [step.done for step in steps] == list(range(21))
    assert all(isinstance(step, Progress) for step in steps)
    assert isinstance(end, Outcome)
    assert not end.stopped
    assert end.clean.name == "edge_clean.mp4"
    with open_video(end.clean) as reader:
        assert len(reader) == 20
        assert (reader.info.codec, reader.info.pix_fmt) == ("h264", "yuv420p")
    assert end.rmse[0] == pytest.approx(25, rel=0.05)
    assert end.psnr[0] == pytest.approx(20 * np.log10(255 / end.rmse[0]))


def test_a_stopped_job_keeps_what_is_done(clip, checkpoint, tmp_path):
    stop = threading.Event()
    job = clean_file(clip, tmp_path, str(checkpoint), stop=stop)
    for step in job:
        if isinstance(step, Progress) and step.done == 5:
            stop.set()
    assert isinstance(step, Outcome)
    assert step.stopped
    assert step.progress.done == 5
    with open_video(step.clean) as reader:
        assert len(reader) == 5
    assert list(tmp_path.iterdir()) == [step.clean]  # the source plays as it is: no copy of it


def test_the_sound_ends_with_what_is_done(checkpoint, tmp_path):
    source, stop = clip_with_sound(tmp_path / "tone.mp4"), threading.Event()
    for step in clean_file(source, tmp_path, str(checkpoint), stop=stop):
        if isinstance(step, Progress) and step.done == 10:
            stop.set()
    with av.open(str(step.clean)) as file:
        lengths = {s.type: float(s.duration * s.time_base) for s in file.streams}
    assert lengths["video"] == pytest.approx(1, abs=0.2)
    assert lengths["audio"] == pytest.approx(1, abs=0.3)


def test_odd_sizes_come_out_playable(checkpoint, tmp_path):
    source = tmp_path / "odd.avi"
    with Writer(source, fps=10, codec="ffv1", pix_fmt="bgr0") as writer:
        for _ in range(3):
            writer.write(np.full((33, 41, 3), 90, np.uint8))
    *_, end = clean_file(source, tmp_path, str(checkpoint))
    for path in (end.clean, end.before):
        with open_video(path) as reader:
            assert (reader.width, reader.height, reader.info.pix_fmt) == (42, 34, "yuv420p")


@pytest.mark.parametrize(
    "name", ["empty.mp4", "text.mp4", "sound.m4a", "list.m3u8", "page.html", "picture.svg"]
)
def test_what_is_no_video_is_refused_in_one_line(tmp_path, name):
    path = tmp_path / name
    if name == "text.mp4":
        path.write_bytes(b"PK\x03\x04 and so on")
    elif name == "list.m3u8":
        path.write_text("#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n")
    elif name == "page.html":
        path.write_text("<html><script>alert(1)</script></html>")
    elif name == "picture.svg":
        path.write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    elif name == "sound.m4a":
        with av.open(str(path), "w", format="mp4") as file:
            stream = file.add_stream("aac", rate=8000)
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 4096), np.float32), format="fltp", layout="mono")
            frame.sample_rate, frame.pts = 8000, 0
            file.mux([*stream.encode(frame), *stream.encode(None)])
    else:
        path.write_bytes(b"")
    with pytest.raises(VideoError) as refused:
        look(path)
    said = page.one_line(refused.value)
    assert "\n" not in said
    assert name in said
    assert str(tmp_path) not in said


@pytest.mark.parametrize(
    ("limits", "word"),
    [(Limits(seconds=1), "lasts"), (Limits(megabytes=1e-6), "MB"), (Limits(pixels=9), "pixels")],
)
def test_what_is_beyond_the_limits_is_refused_everywhere(clip, checkpoint, tmp_path, limits, word):
    with pytest.raises(VideoError, match=word):
        look(clip, limits)
    with pytest.raises(VideoError, match=word):
        preview(clip, str(checkpoint), limits=limits)
    with pytest.raises(VideoError, match=word):
        list(clean_file(clip, tmp_path, str(checkpoint), limits=limits))
    assert not list(tmp_path.iterdir())


def test_names_do_not_become_markup():
    assert page.one_line(ValueError("<img src=x onerror=alert(1)> is bad")).startswith("&lt;img")
    assert "<script>" not in page.cards([("<script>", "<script>")])


def test_one_session_stops_its_own_job_only(tmp_path):
    studio = Studio({}, Limits(), Path(tmp_path))
    studio.stops = {"mine": threading.Event(), "yours": threading.Event()}
    studio.stop("mine")
    studio.stop("nobody")
    assert studio.stops["mine"].is_set()
    assert not studio.stops["yours"].is_set()


def test_gamma_is_a_share_of_the_models_sigma_x(checkpoint, tmp_path):
    studio = Studio({"tiny": checkpoint}, Limits(), Path(tmp_path))
    chosen = Settings("x.mp4", "tiny", ADD_NOISE, GAMMA, gamma=0.5, by_hand=10)
    assert studio.noise(chosen).level == pytest.approx(29)
    assert studio.noise(chosen._replace(unit=SIGMA)).level == 25
    assert studio.noise(chosen._replace(mode=AS_IT_IS)) is None
    assert chosen.told == "auto"
    assert chosen._replace(strength=BY_HAND).told == 10


def test_a_model_that_was_not_offered_is_refused(tmp_path):
    with pytest.raises(ValueError, match="model must be one of"):
        Studio({}, Limits(), Path(tmp_path)).load("/etc/passwd")


@pytest.mark.parametrize("wrong", [["--auth", "nobody"], ["--max-mb", "0"]])
def test_wrong_options_end_in_one_line(wrong, capsys):
    assert app.main(wrong) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1


def test_the_example_is_there_and_small():
    assert app.EXAMPLE.stat().st_size < 1e6
    assert look(app.EXAMPLE).frames == 64


def test_progress_is_told_after_every_layer(clip, checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr("vdenoise.models.dust.PLACES", 10_000)  # the whole grid in one piece
    ticks = []
    *_, end = clean_file(clip, tmp_path, str(checkpoint), tick=ticks.append)
    assert isinstance(end, Outcome)
    # All 20 frames are in one window of three layers; during the first the number of calls is unknown.
    assert ticks == pytest.approx([0, 20 * 2 / 3, 20, 0])


def test_progress_gives_rate_and_time_left():
    step = Progress(done=10, total=40, seconds=12, ahead=10, since=2)
    assert step.share == 0.5
    assert step.rate == 2.0
    assert step.left == 8.0  # ten seconds of work less the two that have passed
    assert "8.0 s left" in page.progress_html(step)
    assert "aria-valuenow='50'" in page.progress_html(step)


def test_a_watched_job_reports_at_even_intervals_and_ends_with_its_outcome():
    def job(tick):
        yield Progress(0, 10, 0.0)
        time.sleep(0.2)
        tick(3.0)
        time.sleep(0.2)
        yield Progress(10, 10, 0.4)
        yield Outcome(Path("a"), Path("b"), Progress(10, 10, 0.4), stopped=False)

    *steps, end = watch(job, threading.Event(), every=0.05)
    assert isinstance(end, Outcome)
    assert len(steps) >= 4
    assert {step.ahead for step in steps} == {0.0, 3.0}
    assert all(a.seconds < b.seconds for a, b in pairwise(steps))


def test_leaving_a_watched_job_stops_it():
    ended = threading.Event()

    def job(tick):
        yield Progress(0, 10, 0.0)
        if stop.wait(20):
            ended.set()
        yield Progress(1, 10, 0.0)

    stop = threading.Event()
    watching = watch(job, stop, every=0.01)
    next(watching)
    watching.close()
    assert ended.is_set()


def test_an_error_in_a_watched_job_arrives():
    def job(tick):
        yield Progress(0, 1, 0.0)
        raise VideoError("broken.mp4 is broken")

    with pytest.raises(VideoError, match="broken"):
        list(watch(job, threading.Event(), every=0.01))


def test_a_stop_reaches_the_network_between_layers(clip, checkpoint, tmp_path):
    stop, ticks = threading.Event(), []

    def tick(ahead):
        ticks.append(ahead)
        stop.set()

    with pytest.raises(VideoError, match="nothing is kept"):
        list(clean_file(clip, tmp_path, str(checkpoint), stop=stop, tick=tick))
    assert len(ticks) == 1
    assert not list(tmp_path.iterdir())


def test_tiles_are_counted(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr("vdenoise.tiling.by_tiles.__defaults__", (16,))
    monkeypatch.setattr("vdenoise.studio.filejob.TILE", 16)
    source, ticks = edge_clip(tmp_path / "wide.mp4", frames=4, width=96, height=64), []
    list(clean_file(source, tmp_path, str(checkpoint), tick=ticks.append))
    steps = np.diff([0.0, *ticks])
    assert max(ticks) == pytest.approx(4)
    assert (steps[:-1] >= -1e-9).all()  # it only grows, until the window is done
    assert ticks[-1] == 0


def test_the_folder_is_swept_by_age_and_size(tmp_path):
    own = tmp_path / "own"
    paths = [own / name / "file" for name in ("oldest", "old", "new", "kept")]
    outside = tmp_path / "outside"
    outside.write_bytes(b"x" * 10)
    for age, path in enumerate(paths):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x" * 10)
        os.utime(path, (age * 10 + 1e9, age * 10 + 1e9))
    os.utime(paths[2])
    (own / "link").symlink_to(outside)
    gone = sweep(own, {own / "kept"}, max_age=3600)
    assert gone == paths[:2]
    assert not paths[0].parent.exists()
    assert paths[3].exists()
    assert (own / "link").is_symlink()
    (own / "link").unlink()
    assert sweep(own, max_age=math.inf, max_bytes=15) == [paths[3]]
    assert paths[2].exists()
    assert outside.exists()


def test_rmse_over_gamma_measures_input_and_models(clip, checkpoint, tmp_path):
    loaded = []

    def tiny():
        loaded.append(1)
        return load(checkpoint)

    cells = list(rmse_over_gamma(clip, {"tiny": tiny}, [0.0, 0.5], sigma_x=58.0))
    assert [(c.model, c.gamma) for c in cells] == [(NOISY, 0), ("tiny", 0), (NOISY, 0.5), ("tiny", 0.5)]
    assert cells[0].rmse == 0
    assert cells[2].rmse == pytest.approx(29, rel=0.02)
    clean = to_tensor(middle_frames(clip))
    noisy = add_noise(clean, level=29 / 255, generator=torch.Generator().manual_seed(zlib.crc32(b"gaussian")))
    with torch.inference_mode():
        assert cells[3].rmse == pytest.approx(rmse(tiny()(noisy[None], 29 / 255)[0], clean))
    lines = to_csv(cells).splitlines()
    assert lines[0] == "model,gamma,sigma,rmse,psnr"
    assert len(lines) == 5
    to_png(cells, tmp_path / "curves.png", "edge")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    shown = charts.comparison_html(cells)
    assert shown.count("<polyline") == 2
    assert f"{cells[3].rmse:.2f}" in shown


def test_a_model_without_the_constraint_shares_its_familys_colour():
    assert family("dust_erm") == ("dust", True)
    assert family("dust_constrained") == ("dust", False)
    assert family("dust") == ("dust", False)
    cells = [Cell(m, g, g, 1.0 + g, 30.0) for g in (0.1, 0.5) for m in (NOISY, "ut_constrained", "ut_erm")]
    strokes = re.findall(
        r"<polyline .*?stroke='(.*?)'.*?stroke-dasharray='(.*?)'", charts.comparison_html(cells)
    )
    assert strokes[1][0] == strokes[2][0]
    assert (strokes[1][1], strokes[2][1]) == ("", "6 4")


def test_the_best_model_of_a_column_is_bold():
    cells = [Cell(NOISY, 0.1, 5, 0.5, 40), Cell("a", 0.1, 5, 3.0, 40), Cell("b", 0.1, 5, 2.0, 40)]
    assert re.findall(r"<b>(.*?)</b>", charts.comparison_table(cells)) == ["2.00"]
