"""Fitting a network to a noisy clip makes it better by the truth, never worse, and only where it may."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import vdenoise
from vdenoise.adapt import adapt, adapt_to_file
from vdenoise.cli import denoise as cli
from vdenoise.noise import add_noise


@pytest.fixture(scope="module")
def clean() -> torch.Tensor:
    """A moving pattern, (T, 1, H, W) in [0, 1]."""
    t, y, x = torch.meshgrid(torch.arange(6.0), torch.arange(48.0), torch.arange(96.0), indexing="ij")
    return (0.5 + 0.3 * torch.sin(0.25 * x + 0.2 * t) * torch.cos(0.2 * y)).unsqueeze(1)


def noisy(clean: torch.Tensor, kind: str = "gaussian", sigma: float = 45, **options) -> torch.Tensor:
    return add_noise(clean, kind, level=sigma / 255, generator=torch.Generator().manual_seed(1), **options)


def rmse(model, frames: torch.Tensor, clean: torch.Tensor, sigma: float) -> float:
    with torch.inference_mode():
        return 255 * float((model(frames[None], sigma / 255)[0] - clean).square().mean().sqrt())


def test_it_gains_on_noise_never_trained_on(clean):
    """The plain model knows σ 20 only; at 45 a few seconds without a clean frame help much."""
    model, frames = vdenoise.load("ut_erm"), noisy(clean)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    done = adapt(model, frames, 45, steps=60, lr=1e-3, crop=32)
    assert done.after < done.before
    before, after = rmse(model, frames, clean, 45), rmse(done.model, frames, clean, 45)
    assert after < 0.9 * before
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert not done.model.training
    assert not any(weight.requires_grad for weight in done.model.parameters())


@pytest.mark.parametrize("lr", [0.03, 0.3])
def test_it_never_ends_worse_than_it_began(clean, lr):
    """A rate that ruins the network leaves the very one that was given."""
    model = vdenoise.load("ut_erm")
    done = adapt(model, noisy(clean, sigma=20), 20, steps=40, lr=lr, crop=32)
    assert done.model is model
    assert done.after == done.before
    assert done.reason.startswith("unchanged")


@pytest.mark.parametrize("kind", ["correlated", "h264"])
def test_noise_that_the_estimate_does_not_know_changes_nothing(clean, kind):
    model = vdenoise.load("ut_erm")
    done = adapt(model, noisy(clean, kind, 25, clip=True), seconds=20)
    assert done.model is model
    assert done.steps == 0
    assert done.reason.startswith("unchanged")


def test_poisson_gaussian_with_its_gain(clean):
    model = vdenoise.load("ut_erm")
    frames = noisy(clean, "poisson-gaussian", 45)
    level = 45 / 255
    done = adapt(model, frames, 0.1**0.5 * 45, gain=255 * 1.8 * level**2, steps=40, lr=1e-3, crop=32)
    assert done.after < done.before
    assert rmse(done.model, frames, clean, 45) < rmse(model, frames, clean, 45)


@pytest.mark.parametrize(
    ("frames", "options", "message"),
    [
        (torch.full((1, 1, 64, 64), 0.5), {}, "2 frames"),
        (torch.full((3, 1, 64, 16), 0.5), {}, "pixels"),
        (torch.full((3, 1, 64, 64), 0.5), {"seconds": 0}, "seconds"),
    ],
)
def test_what_is_refused(frames, options, message):
    with pytest.raises(ValueError, match=message):
        adapt("ut_erm", frames, 20, **options)


def test_the_command_line_adapts_and_saves(clean, tmp_path, capsys):
    frames = (255 * noisy(clean, clip=True)).round().byte().permute(0, 2, 3, 1).numpy()
    # Losslessly, since compression would make another noise of it.
    (tmp_path / "clip").mkdir()
    import cv2

    for i, frame in enumerate(frames):
        cv2.imwrite(str(tmp_path / "clip" / f"{i:03}.png"), frame)
    out, weights = tmp_path / "clean.mp4", tmp_path / "mine.pt"
    options = [
        "--model",
        "ut_erm",
        "--sigma",
        "45",
        "--adapt",
        "8",
        "--save-adapted",
        str(weights),
        "--quiet",
    ]
    assert cli.main([str(tmp_path / "clip"), str(out), *options]) == 0
    assert out.is_file()
    if weights.is_file():  # a slow machine may get no better in so short a time
        assert (
            vdenoise.load(weights).card["adapted"]["after"] < vdenoise.load(weights).card["adapted"]["before"]
        )
    assert cli.main([str(tmp_path / "clip"), str(tmp_path / "b.mp4"), "--save-adapted", "x.pt"]) == 2
    assert "needs --adapt" in capsys.readouterr().err


def test_a_file_is_read_in_the_middle(clean, tmp_path):
    path = tmp_path / "clip.mp4"
    with vdenoise.Writer(path, fps=10) as writer:
        for frame in np.full((30, 64, 96, 3), 128, np.uint8):
            writer.write(frame)
    done = adapt_to_file(path, "ut_erm", seconds=5, save_to=tmp_path / "none.pt")
    assert done.reason.startswith("unchanged")
    assert not (tmp_path / "none.pt").exists()
