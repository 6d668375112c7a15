"""The shipped checkpoints: small, complete, with a card, and doing what they are for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from vdenoise import denoise, load
from vdenoise.models import build, save
from vdenoise.models.registry import shipped

SHIPPED = sorted(shipped())
ROOT = Path(__file__).parent.parent


def moving_scene(frames: int = 12, side: int = 64) -> np.ndarray:
    """A textured background that stands still and a bright square that crosses it."""
    rng = np.random.default_rng(1)
    rough = torch.from_numpy(rng.uniform(40, 200, (1, 1, side // 8, side // 8)))
    still = torch.nn.functional.interpolate(rough, (side, side), mode="bicubic", align_corners=False)[
        0, 0
    ].numpy()
    clip = np.repeat(still[None], frames, 0)
    for t in range(frames):
        clip[t, 20:36, 2 * t + 6 : 2 * t + 22] = 220
    return np.clip(np.rint(clip), 0, 255).astype(np.uint8)


def noisy_version(clean: np.ndarray, sigma: float) -> np.ndarray:
    noise = np.random.default_rng(0).normal(0, sigma, clean.shape)
    return np.clip(np.rint(clean + noise), 0, 255).astype(np.uint8)


def rmse(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.sqrt(np.mean((a.astype(float) - b.astype(float)) ** 2)))


def test_all_are_there():
    pairs = {f"{model}_{kind}" for model in ("dust", "ut", "vit") for kind in ("constrained", "erm")}
    assert {"dust", *pairs} <= set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_small_and_carded(name):
    path = shipped()[name]
    assert path.stat().st_size < 8 * 2**20
    card = load(name).card
    assert {"command", "data", "config", "steps", "minutes", "sigma_x", "sigma", "validation"} <= set(card)
    assert card["command"].startswith("vdenoise-train ")
    assert card["config"]["constrained"] != name.endswith("_erm")
    assert not any(word in str(card) for word in ("/tmp", "/work", "/home", "/root"))


@pytest.mark.parametrize("name", SHIPPED)
def test_takes_most_of_the_noise_off_a_scene_it_never_saw(name):
    sigma = load(name).card["sigma"][1] if name != "dust" else 25
    clean = moving_scene()
    noisy = noisy_version(clean, sigma)
    assert rmse(denoise(noisy, name, sigma=sigma), clean) < 0.5 * rmse(noisy, clean)


@pytest.mark.parametrize("name", [n for n in SHIPPED if not n.endswith("_erm")])
def test_constrained_models_descend_on_their_validation_clips(name):
    """As their cards say, measured at the end of training on clips held out from it."""
    first, *layers = load(name).card["validation"]["val_rmse"]
    assert layers[-1] < 0.5 * first
    assert layers[-1] == min(layers)


@pytest.mark.parametrize("sigma", [10, 25, 50])
def test_dust_serves_every_noise_level_grey_and_colour(sigma):
    clean = moving_scene()
    grey = noisy_version(clean, sigma)
    assert rmse(denoise(grey, sigma="auto"), clean) < 0.45 * rmse(grey, clean)
    colours = np.stack([clean, clean // 2 + 40, 255 - clean], axis=-1)
    noisy = noisy_version(colours, sigma)
    assert rmse(denoise(noisy, sigma=sigma), colours) < 0.4 * rmse(noisy, colours)


def test_dust_leaves_a_clean_clip_alone():
    clean = moving_scene()
    assert rmse(denoise(clean, sigma="auto"), clean) < 2


def test_a_checkpoint_survives_saving(tmp_path):
    torch.manual_seed(0)
    model = build("dust", layers=2, codes=16, features=4)
    save(model, tmp_path / "mine.pt", {"note": "small"})
    again = load(tmp_path / "mine.pt")
    assert again.card == {"note": "small"}
    assert again.config == model.config
    x = torch.rand(1, 2, 1, 16, 16)
    torch.testing.assert_close(again(x, 0.1), model.eval()(x, 0.1))
    assert [p.name for p in tmp_path.iterdir()] == ["mine.pt"]


def test_a_failed_save_leaves_nothing(tmp_path):
    model = build("dust", layers=1, codes=4, features=1)
    with pytest.raises(Exception, match="pickle"):
        save(model, tmp_path / "mine.pt", {"unsaveable": lambda: None})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "not a vdenoise checkpoint"), (b"PK\x03\x04 no", "not a vdenoise checkpoint")],
)
def test_other_files_are_refused_in_one_line(tmp_path, content, message):
    path = tmp_path / "other.pt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "options", "message"), [("dusty", {}, "one of dust"), ("dust", {"legs": 3}, "no option legs")]
)
def test_unknown_models_and_options(name, options, message):
    with pytest.raises(ValueError, match=message):
        build(name, **options)
