"""The benchmarks of descent and of loading, on a small model and data set."""

from __future__ import annotations

import json

import pytest
import torch

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


def test_the_step_that_loading_feeds_is_a_real_one():
    step = run_speed.Step(TrainConfig(frames=2, crop=16, batch=1))
    before = [p.detach().clone() for p in step.model.parameters()]
    step(torch.randint(0, 255, (1, 2, 3, 16, 16), dtype=torch.uint8))
    assert any(not torch.equal(a, b) for a, b in zip(before, step.model.parameters(), strict=True))
