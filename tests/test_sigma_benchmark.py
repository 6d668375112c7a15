"""The benchmark of the blind noise level, on a small set, and its promise on the real clips."""

from __future__ import annotations

import json

import cv2
import numpy as np
import pytest
import torch

import run_sigma
from vdenoise.noise import estimate_sigma, estimate_sigma_per_frame

from common import ROOT

OPEN = ROOT / "data" / "open"


@pytest.fixture
def root(tmp_path):
    rng = np.random.default_rng(0)
    entries = []
    for name, count in (("clip", 12), ("still", 1)):
        rough = cv2.resize(
            rng.integers(40, 200, (6, 9, 3), np.uint8), (240, 144), interpolation=cv2.INTER_CUBIC
        )
        kind = "image" if count == 1 else "video"
        folder = tmp_path / name if kind == "video" else tmp_path
        folder.mkdir(exist_ok=True)
        for t in range(count):
            cv2.imwrite(str(folder / f"{name}{t}.png"), np.roll(rough, t, axis=1))
        file = name if kind == "video" else f"{name}0.png"
        entries.append({"file": file, "kind": kind, "split": "train", "frames": count})
    (tmp_path / "manifest.json").write_text(json.dumps(entries))
    return tmp_path


def test_errors_of_all_methods_are_measured_and_misses_told(root, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run_sigma, "SIGMAS", (0, 10, 50))
    for slow in ("wavelet MAD, db2", "temporal MAD, still pixels", "smaller of Haar MADs"):
        monkeypatch.delitem(run_sigma.METHODS, slow)
    monkeypatch.setattr(run_sigma, "LENGTHS", (1, 8))
    monkeypatch.setattr(run_sigma, "OTHERS", ("rows",))
    out = tmp_path / "sigma.json"
    assert run_sigma.main(["--root", str(root), "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    assert {row["group"] for row in found["summary"]} == {"native", "third", "photograph"}
    ten = [r["methods"]["shipped"] for r in found["summary"] if r["sigma"] == 10 and r["group"] == "native"]
    assert all(0 < m["mean_abs"] < 5 for m in ten)
    assert set(found["summary"][0]["methods"]) == set(run_sigma.METHODS)
    assert all(r["mean_abs"] < 20 for r in found["frame_by_frame"] if r["sigma"] == 10)
    assert all(abs(r["found"] / r["sigma"] - 1) >= 0.05 for r in found["misses"])
    # Levels, clipping, colour; two sizes of 1 and 8 frames at one place and of 1 at the other; the still.
    assert found["cases"] == 2 * 2 * 2 * (2 * (2 + 1) + 1)
    assert "| videos, frame by frame | σ 10 |" in capsys.readouterr().out


def test_an_estimate_that_is_wrong_is_told_as_a_miss_worst_first():
    case = {"group": "native", "clip": "a", "colour": False, "frames": 8, "clipped": True}
    rows = [
        {**case, "sigma": sigma, "found": {"shipped": estimate}}
        for sigma, estimate in ((2, 4.0), (5, 5.3), (10, 10.4), (25, 12.0))
    ]
    assert [r["sigma"] for r in run_sigma.misses(rows)] == [25, 5]  # σ 2 is no promise


def test_a_missing_root_is_told(tmp_path, capsys):
    assert run_sigma.main(["--root", str(tmp_path)]) == 2
    assert "fetch_open_clips.py" in capsys.readouterr().err


@pytest.mark.skipif(not (OPEN / "manifest.json").is_file(), reason="needs data/fetch_open_clips.py")
def test_real_clips_of_eight_frames_are_within_five_percent():
    for group, name, frames in run_sigma.clips(OPEN, ["train", "val"]):
        if group != "native":
            continue
        clean = run_sigma.as_tensor(frames[:8], colour=False)
        noise = torch.randn(clean.shape, generator=run_sigma.seeded(name))
        for sigma in (5, 15, 40, 75):
            noisy = run_sigma.stored(clean + sigma / 255 * noise)
            assert 255 * estimate_sigma(noisy) == pytest.approx(sigma, rel=0.05), (name, sigma)
            by_frame = 255 * float(estimate_sigma_per_frame(noisy).mean())
            assert by_frame == pytest.approx(sigma, rel=0.1), (name, sigma)
