"""The benchmarks of descent and of loading, on a small model and data set."""

from __future__ import annotations

import json
import time
from functools import partial

import cv2
import numpy as np
import pytest
import torch

from vdenoise.datasets.folder import Folder
from vdenoise.datasets.measure import opencv_speed
from vdenoise.training import TrainConfig, loop
from vdenoise.training.loop import train

import run_descent
import run_speed
from stripes import Data


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setitem(loop.DATASETS, "open", Data)
    config = TrainConfig(
        options={"layers": 3, "codes": 16, "features": 4},
        out=str(tmp_path / "small.pt"),
        frames=4,
        crop=16,
        batch=2,
        steps=60,
        segment=60,
        clip_norm=1.0,
        gamma=0.5,
        warmup=2,
        threads=torch.get_num_threads(),
    )
    return train(config, progress=False)


def test_descent_is_measured_on_the_training_distribution(model, tmp_path, capsys):
    out = tmp_path / "descent.json"
    assert run_descent.main(["--models", str(model), "--clips", "24", "--out", str(out)]) == 0
    entry = json.loads(out.read_text())["models"]["small"]
    first, *layers = entry["losses"]
    assert first == pytest.approx(1, rel=0.2)  # in units of the noise; a quarter is clipped
    assert len(layers) == 3
    assert layers[-1] < 0.7 * first
    assert entry["descends"] == all(a > b for a, b in zip([first, *layers], layers, strict=False))
    assert 0 <= entry["share_of_clips"] <= 1
    assert all(error > 0 for error in entry["standard_error"])
    assert "`small` | on |" in capsys.readouterr().out


def test_bad_numbers_of_clips_are_told(capsys):
    assert run_descent.main(["--clips", "1"]) == 2
    assert "--clips" in capsys.readouterr().err


def test_waiting_and_rates_are_measured_and_written(tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    writer = cv2.VideoWriter(str(tmp_path / "a.avi"), cv2.VideoWriter_fourcc(*"MJPG"), 25, (64, 64))
    for _ in range(30):
        writer.write(rng.integers(0, 256, (64, 64, 3), np.uint8))
    writer.release()
    (tmp_path / "b.avi").write_bytes((tmp_path / "a.avi").read_bytes())
    monkeypatch.setattr(run_speed, "Step", lambda config: lambda batch: time.sleep(0.02))
    monkeypatch.setattr(run_speed, "opencv_speed", partial(opencv_speed, clips=20))
    small = {"frames": 4, "crop": 16, "gray": False, "seed": 0, "buffer": 16}
    monkeypatch.setattr(
        run_speed, "training_stream", lambda config: Folder().training_stream(config.root, **small)
    )
    out = tmp_path / "loader.json"
    flags = ["--loader", "--data", "folder", "--root", str(tmp_path), "--workers", "0", "--out", str(out)]
    assert run_speed.main([*flags, "--repeats", "2", "--batches", "3"]) == 0
    loading = json.loads(out.read_text())["loading"]
    assert set(loading) == {
        "plain OpenCV loop",
        "stream alone, 0 workers",
        "stream and training step, 0 workers",
    }
    assert len(loading["plain OpenCV loop"]["clips_per_second"]["values"]) == 2
    fed = loading["stream and training step, 0 workers"]
    assert fed["step_ms"]["median"] >= 20
    assert 0 < fed["wait"]["median"] < 1
    assert "time waiting" in capsys.readouterr().out
    assert run_speed.main([*flags[:4], str(tmp_path / "none"), "--out", str(out)]) == 2
    assert "looked in" in capsys.readouterr().err


def test_the_step_that_loading_feeds_is_a_real_one():
    step = run_speed.Step(TrainConfig(frames=2, crop=16, batch=1))
    before = [p.detach().clone() for p in step.model.parameters()]
    step(torch.randint(0, 255, (1, 2, 3, 16, 16), dtype=torch.uint8))
    assert any(not torch.equal(a, b) for a, b in zip(before, step.model.parameters(), strict=True))
