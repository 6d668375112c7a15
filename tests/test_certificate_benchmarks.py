"""The benchmarks of the certificate, of early exit and of the bound, on small clips and models."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from vdenoise.models import build, save
from vdenoise.training import TrainConfig, loop
from vdenoise.training.loop import train

import run_adapt
import run_bound
import run_certificate
import run_exit
from stripes import Data


def scene(root, clip: str, place) -> np.ndarray:
    t, y, x = np.meshgrid(np.arange(6), np.arange(48), np.arange(56), indexing="ij")
    return (128 + 60 * np.sin(0.2 * x + 0.3 * t + len(clip)) * np.cos(0.15 * y)).astype(np.uint8)


@pytest.fixture
def model(tmp_path, monkeypatch) -> str:
    for module in (run_adapt, run_certificate, run_exit):
        monkeypatch.setattr(module, "read_block", scene)
    torch.manual_seed(0)
    path = tmp_path / "small.pt"
    save(build("ut", layers=2, width=64, features=4), path, {})
    return str(path)


def test_true_and_estimated_errors(model, tmp_path, capsys):
    out = tmp_path / "certificate.json"
    flags = ["--models", model, "--sigmas", "25", "--kinds", "gaussian", "correlated", "--frames", "6"]
    assert run_certificate.main([*flags, "--quiet", "--out", str(out)]) == 0
    document = json.loads(out.read_text())
    raw = {key: cell for key, cell in document["cells"].items() if "/raw/given" in key}
    assert len(raw) == 2
    for cell in raw.values():
        assert len(cell["true"]) == len(cell["estimated"]) == 3
        assert cell["estimated"] == pytest.approx(cell["true"], rel=0.1)
        assert cell["true"][0] == pytest.approx(25, rel=0.05)
    assert {len(errors) for by_step in document["steps"].values() for errors in by_step.values()} == {3}
    text = capsys.readouterr().out
    assert "σ given: " in text
    assert "correlated 25" in text
    # What is there is not measured again.
    document["cells"][next(iter(raw))]["sigma"] = 99.0
    out.write_text(json.dumps(document))
    assert run_certificate.main([*flags, "--quiet", "--out", str(out)]) == 0
    assert json.loads(out.read_text())["cells"][next(iter(raw))]["sigma"] == 99.0


def test_early_exit_is_measured(model, tmp_path, capsys):
    out = tmp_path / "exit.json"
    flags = ["--models", model, "--gammas", "0.5", "--frames", "3", "--repeats", "1", "--quiet"]
    assert run_exit.main([*flags, "--out", str(out)]) == 0
    cells = json.loads(out.read_text())["cells"]
    assert len(cells) == 4
    for cell in cells:
        assert len(cell["rmse"]) == 3
        assert 0 <= cell["left_at"] <= 2
        assert min(cell["ms_per_frame"].values()) > 0
    assert "γ 0.5" in capsys.readouterr().out


def test_adapting_is_measured(model, tmp_path, capsys):
    out = tmp_path / "adapt.json"
    flags = ["--models", model, "--clips", "vtest", "--frames", "4", "--steps", "20", "--quiet"]
    assert run_adapt.main([*flags, "--out", str(out)]) == 0
    cells = json.loads(out.read_text())["cells"]
    assert len(cells) == 3
    for key, cell in cells.items():
        assert cell["estimated_held_out"][1] <= cell["estimated_held_out"][0]
        assert cell["steps"] == (0 if "correlated" in key else 20)
    assert "coarse" in capsys.readouterr().out


def test_the_bound_is_above_what_was_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(loop.DATASETS, "open", Data)
    config = TrainConfig(
        options={"layers": 2, "codes": 16, "features": 4},
        out=str(tmp_path / "small.pt"),
        frames=3,
        crop=16,
        batch=2,
        steps=20,
        segment=20,
        gamma=0.5,
        warmup=2,
        threads=torch.get_num_threads(),
    )
    model, out = train(config, progress=False), tmp_path / "bound.json"
    flags = ["--models", str(model), "--clips", "20", "--stronger", "1.5", "--quiet"]
    assert run_bound.main([*flags, "--out", str(out)]) == 0
    own, shifted = json.loads(out.read_text())["models"]["small"]
    for entry in (own, shifted):
        assert all(a <= b for a, b in zip(entry["measured"], entry["certified"], strict=True))
    assert shifted["measured"][0] == pytest.approx(1.5**2 * own["measured"][0], rel=0.3)
    assert all(value == 0 for value in own["shift"])
    assert min(shifted["shift"]) > 0
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert "certified" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("main", "flags", "message"),
    [
        (run_certificate.main, ["--frames", "1"], "--frames"),
        (run_adapt.main, ["--steps", "0"], "--steps"),
        (run_exit.main, ["--repeats", "0"], "--repeats"),
        (run_bound.main, ["--clips", "1"], "--clips"),
        (run_bound.main, ["--models", "ut_erm"], "without the constraint"),
    ],
)
def test_what_is_refused(main, flags, message, capsys):
    assert main(flags) == 2
    assert message in capsys.readouterr().err
