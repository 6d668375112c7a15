"""The loop: it learns, it descends, it stops and goes on to the same weights."""

from __future__ import annotations

import json
import warnings
from dataclasses import fields, replace
from itertools import islice

import cv2
import numpy as np
import pytest
import torch

from vdenoise import load
from vdenoise.cli import train as cli
from vdenoise.noise import NOISES
from vdenoise.training import TrainConfig, loop, validate
from vdenoise.training.loop import add_training_noise, layer_losses, train

from stripes import Data


@pytest.fixture
def config(tmp_path, monkeypatch) -> TrainConfig:
    monkeypatch.setitem(loop.DATASETS, "open", Data)
    return TrainConfig(
        options={"layers": 3, "codes": 24, "features": 4},
        out=str(tmp_path / "model.pt"),
        frames=4,
        crop=16,
        batch=2,
        steps=8,
        segment=4,
        warmup=2,
        threads=torch.get_num_threads(),
    )


def test_it_learns_and_descends(config):
    path = train(replace(config, steps=90, segment=45, clip_norm=1.0, gamma=0.5), progress=False)
    model = load(path)
    noisy, *layers = model.card["validation"]["val_rmse"]
    assert len(layers) == 3
    assert layers[-1] < 0.6 * noisy
    assert all(a > b for a, b in zip([noisy, *layers], layers, strict=False))
    assert model.card["sigma"] == [25.0, 25.0]
    lines = [json.loads(line) for line in (path.parent / "model.pt.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [45, 90]
    assert len(lines[0]["losses"]) == 4


def test_a_stopped_run_goes_on_to_the_same_weights(config, tmp_path):
    whole = load(train(config, progress=False))
    parts = replace(config, out=str(tmp_path / "parts.pt"))
    train(replace(parts, steps=4), progress=False)
    stopped = load(train(parts, progress=False))
    # The learning rate follows the share of the run that is over, so the first half must know the whole:
    # only a run that was cut at a save, not one told to be shorter, repeats to the bit.
    assert stopped.card["steps"] == whole.card["steps"] == 8

    interrupted = replace(config, out=str(tmp_path / "interrupted.pt"))
    save = loop.save_state

    def save_and_stop(*args):
        save(*args)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "save_state", save_and_stop)
        with pytest.raises(KeyboardInterrupt):
            train(interrupted, progress=False)
    resumed = load(train(interrupted, progress=False))
    for name, weight in whole.state_dict().items():
        assert torch.equal(weight, resumed.state_dict()[name]), name


def test_other_settings_do_not_go_on(config):
    train(config, progress=False)
    with pytest.raises(ValueError, match=r"lr: 0\.002 → 0\.001"):
        train(replace(config, lr=1e-3), progress=False)


def test_unconstrained_training_leaves_the_multipliers_at_zero(config):
    card = load(train(replace(config, constrained=False), progress=False)).card
    assert card["multipliers"] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("model", ["ut", "vit"])
def test_every_model_trains(config, model):
    path = train(replace(config, model=model, options={"layers": 2}, steps=2), progress=False)
    assert load(path).config.layers == 2


def test_noise_has_the_level_it_says():
    clean = torch.full((64, 2, 1, 16, 16), 0.5)
    noisy, level = add_training_noise(clean, (5.0, 55.0), 0.0, torch.Generator().manual_seed(0))
    assert level.min() >= 5 / 255
    assert level.max() <= 55 / 255
    torch.testing.assert_close((noisy - clean).flatten(1).std(dim=1), level, rtol=0.15, atol=0)
    clipped, _ = add_training_noise(
        torch.ones_like(clean), (50.0, 50.0), 1.0, torch.Generator().manual_seed(0)
    )
    assert clipped.max() <= 1


def test_training_noise_of_before_there_were_kinds_is_the_same():
    clean, generator = torch.rand(3, 2, 1, 8, 8), torch.Generator().manual_seed(3)
    noisy, level = add_training_noise(clean, (5.0, 55.0), 0.0, torch.Generator().manual_seed(3))
    torch.testing.assert_close(level, (5 + 50 * torch.rand(3, generator=generator)) / 255)
    white = torch.randn(clean.shape, generator=generator)
    torch.testing.assert_close(noisy, clean + level.view(3, 1, 1, 1, 1) * white)


@pytest.mark.parametrize("kind", NOISES)
def test_a_model_trains_and_validates_under_every_kind_of_noise(config, kind, monkeypatch):
    seen = []

    def add_noise(clean, noise, *, level, generator):
        seen.append(noise)
        return NOISES[noise](clean, level, generator)

    for module in (loop, validate):
        monkeypatch.setattr(module, "add_noise", add_noise)
    card = load(train(replace(config, noise=kind, steps=2), progress=False)).card
    assert card["config"]["noise"] == kind
    assert seen == [kind] * 3  # the validation clip and two steps
    noisy, *layers = card["validation"]["val_rmse"]
    assert noisy > 0.5
    assert len(layers) == 3


def test_an_unknown_kind_of_noise_is_told():
    with pytest.raises(ValueError, match=r"--noise must be one of gaussian, uniform.*got 'rain'"):
        TrainConfig(noise="rain")


def test_losses_are_in_units_of_the_noise():
    clean = torch.rand(3, 2, 1, 8, 8)
    sigma = torch.tensor([0.1, 0.1, 0.1])
    noisy = clean + 0.1
    losses = layer_losses([noisy, clean], noisy, clean, sigma, 0.1, 1.0)
    torch.testing.assert_close(losses, torch.tensor([1.0, 1.0, 0.0]), atol=1e-4, rtol=0)


def test_every_field_has_a_flag_and_a_help():
    helps = cli._field_docs()
    assert {field.name for field in fields(TrainConfig)} == set(helps)
    args = cli.build_parser().parse_args(["--no-constrained", "--sigma", "5", "50", "--option", "layers=3"])
    assert args.constrained is False
    assert args.sigma == [5.0, 50.0]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--steps", "0"], "--steps"),
        (["--sigma", "50", "5"], "--sigma"),
        (["--gamma", "0"], "--gamma"),
        (["--clipped", "2"], "--clipped"),
        (["--option", "layers"], "NAME=VALUE"),
        (["--option", "legs=3"], "no option legs"),
        (["--alpha", "1.5"], "alpha"),
        (["--minutes", "-1"], "--minutes"),
    ],
)
def test_bad_flags_end_with_2_and_one_line(config, flags, message, capsys):
    assert cli.main(["--out", config.out, *flags]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_training_sees_the_augmented_clips(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "clip").mkdir()
    for i in range(8):
        cv2.imwrite(str(tmp_path / f"clip/{i}.png"), rng.integers(0, 256, (40, 40, 3), np.uint8))
    config = TrainConfig(data="folder", root=str(tmp_path), frames=3, crop=16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # one video only
        plain, some = (
            list(islice(loop.training_stream(replace(config, augment=share)), 8)) for share in (0.0, 1.0)
        )
    assert not any(torch.equal(a, b) for a, b in zip(plain, some, strict=True))
    assert all((s.float().std(dim=(2, 3)).amin() > 1) for s in some)
