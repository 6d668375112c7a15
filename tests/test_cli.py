"""``vdenoise noisy.mp4 clean.mp4``, and what it says when it can't."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import vdenoise
from vdenoise.cli import denoise as cli
from vdenoise.models import build, save


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model") / "tiny.pt"
    save(build("dust", layers=2, codes=16, features=4), path, {})
    return path


@pytest.fixture(scope="module")
def video(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("video") / "noisy clip ü.mp4"
    rng = np.random.default_rng(0)
    with vdenoise.Writer(path, fps=12) as writer:
        for t in range(9):
            frame = np.full((96, 128, 3), 90, np.float64)
            frame[20:60, 10 + 4 * t : 40 + 4 * t] = 180
            writer.write(np.clip(frame + rng.normal(0, 20, frame.shape), 0, 255).astype(np.uint8))
    return path


def test_a_file_becomes_a_clean_file(video, model, tmp_path, capsys):
    out = tmp_path / "clean.mp4"
    assert cli.main([str(video), str(out), "--model", str(model), "--sigma", "20", "--quiet"]) == 0
    with vdenoise.open(video) as noisy, vdenoise.open(out) as clean:
        assert len(clean) == len(noisy) == 9
        assert clean.fps == noisy.fps == 12
        np.testing.assert_allclose(clean.times, noisy.times, atol=1e-3)
        assert (clean.width, clean.height) == (128, 96)
        assert np.std(clean[4][:15].astype(float)) < 0.8 * np.std(noisy[4][:15].astype(float))
    assert [p.name for p in tmp_path.iterdir()] == ["clean.mp4"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{nowhere}", "{out}"], "does not exist"),
        (["{text}", "{out}"], "can't be opened"),
        (["{video}", "{video}", "--overwrite"], "is the input"),
        (["{video}", "{text}"], "exists"),
        (["{video}", "{out}", "--model", "nonesuch"], "no checkpoint"),
        (["{video}", "{out}", "--sigma", "999"], "0–255"),
        (["{video}", "{out}", "--device", "abacus"], "abacus"),
        (["{video}", "{out}", "--window", "0"], "window"),
    ],
)
def test_bad_input_ends_with_2_one_line_and_no_output(arguments, message, video, model, tmp_path, capsys):
    text = tmp_path / "text.mp4"
    text.write_text("not a video")
    names = {"nowhere": tmp_path / "nowhere.mp4", "text": text, "video": video, "out": tmp_path / "out.mp4"}
    given = [a.format(**names) for a in arguments]
    if "--model" not in given:
        given += ["--model", str(model)]
    before = sorted(tmp_path.iterdir()), video.stat().st_size
    assert cli.main([*given, "--quiet"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert (sorted(tmp_path.iterdir()), video.stat().st_size) == before


def test_a_bad_sigma_is_a_usage_error(capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["a.mp4", "b.mp4", "--sigma", "much"])
    assert caught.value.code == 2
    assert "0–255" in capsys.readouterr().err
