"""The training loop: clips in, noise on, every layer decoded, one primal-dual step."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from vdenoise.datasets import DATASETS
from vdenoise.datasets.augment import KorniaVideo
from vdenoise.datasets.lanes import LaneStream, loader
from vdenoise.descent import LayerDescent, Multipliers, PrimalDual
from vdenoise.models import build, save
from vdenoise.noise import add_noise
from vdenoise.training.config import TrainConfig
from vdenoise.training.log import RunLog
from vdenoise.training.state import load_state, save_state
from vdenoise.training.validate import Validation

LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601, as grey video carries it
logger = logging.getLogger(__name__)


def train(config: TrainConfig, command: str = "", progress: bool = True) -> Path:
    """Train one model and write it to ``config.out``; a run that was stopped goes on where it was saved.

    Beside ``out`` lie, while it runs and after, ``<out>.state`` (everything needed to go on) and
    ``<out>.jsonl`` (one line per segment: losses, slacks and multipliers of every layer, validation).

    Args:
        config: what to do.
        command: the command line, for the model's card.
        progress: show a progress bar.

    Returns:
        The path of the trained model.
    """
    torch.set_num_threads(config.threads)
    torch.manual_seed(config.seed)
    dataset = DATASETS[config.data].treating(config.corrupt)
    sigma_x = dataset.sigma_x(config.root)
    sigma = (config.gamma * sigma_x,) * 2 if config.gamma is not None else config.sigma
    stream = training_stream(config)
    samples = loader(stream, config.batch, config.workers)
    model = build(config.model, **config.options)
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=_ema(config.ema))
    optimizer = torch.optim.Adam(model.parameters(), lr=config.lr)
    primal_dual = _primal_dual(config, model.config.layers, optimizer)
    validation = Validation(
        dataset.evaluation_clips(config.root, "val"), (sigma[0] + sigma[1]) / 2, config.noise
    )

    state_path = Path(f"{config.out}.state")
    state_path.parent.mkdir(parents=True, exist_ok=True)
    parts = {"model": model, "average": average, "optimizer": optimizer, "primal_dual": primal_dual}
    step, elapsed = load_state(state_path, config, parts)
    with RunLog(Path(f"{config.out}.jsonl"), config.steps, step, progress) as log:
        while step < config.steps and _spent(config, step, elapsed) < 1:
            started, segment = time.monotonic(), step // config.segment
            generator = torch.Generator().manual_seed(config.seed * 1_000_003 + segment)
            stream.set_epoch(segment)
            model.train()
            for clean in islice(batches(samples, config, generator), config.segment):
                spent = _spent(config, step, elapsed + time.monotonic() - started)
                if step == config.steps or spent >= 1:
                    break
                optimizer.param_groups[0]["lr"] = _learning_rate(config, step, spent)
                noisy, level = add_training_noise(clean, sigma, config.clipped, generator, config.noise)
                losses = layer_losses(
                    model.iterates(noisy, level), noisy, clean, level, sigma[1] / 255, config.noise_exponent
                )
                report = primal_dual.step(losses)
                average.update_parameters(model)
                step += 1
                log.step(report)
            primal_dual.end_epoch()
            elapsed += time.monotonic() - started
            scores = validation(cast(Any, average.module))
            log.segment(step=step, minutes=elapsed / 60, **scores)
            save_state(state_path, config, parts, step, elapsed)
    card = {
        "command": command,
        "data": config.data,
        "config": {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(config).items()},
        "steps": step,
        "minutes": round(elapsed / 60, 1),
        "threads": config.threads,
        "sigma_x": sigma_x,
        "sigma": list(sigma),
        "multipliers": primal_dual.multipliers.values.tolist(),
        "validation": validation(cast(Any, average.module)),
    }
    save(average.module, config.out, card)
    return Path(config.out)


def add_training_noise(
    clean: Tensor,
    sigma: tuple[float, float],
    clipped: float,
    generator: torch.Generator,
    kind: str = "gaussian",
) -> tuple[Tensor, Tensor]:
    """Noise of a level drawn per clip.

    Args:
        clean: (B, T, C, H, W) in [0, 1].
        sigma: (low, high) of the level on the 0–255 scale, uniform.
        clipped: share of the clips clipped to [0, 1] afterwards.
        generator: source of all randomness here.
        kind: a key of ``vdenoise.noise.NOISES``.

    Returns:
        noisy (B, T, C, H, W), and σ (B,) in the units of ``clean``.
    """
    b = len(clean)
    low, high = sigma[0] / 255, sigma[1] / 255
    level = low + (high - low) * torch.rand(b, generator=generator)
    noisy = add_noise(clean, kind, level=level, generator=generator)
    clip = torch.rand(b, generator=generator) < clipped
    return torch.where(clip.view(b, 1, 1, 1, 1), noisy.clamp(0, 1), noisy), level


def layer_losses(
    iterates: list[Tensor], noisy: Tensor, clean: Tensor, sigma: Tensor, high: float, exponent: float
) -> Tensor:
    r"""The loss of the noisy input and of every layer, each the mean over the batch.

    .. math:: f_l = \frac1B \sum_b
              \frac{\lVert \hat x_{l,b} - x_b \rVert^2 / N}{\sigma_b^q\,\sigma_{high}^{2-q}},
              \qquad \hat x_0 = \tilde x

    Args:
        iterates: L tensors (B, T, C, H, W).
        noisy: x̃, the same shape.
        clean: x, the same shape.
        sigma: σ_b (B,), floored at one grey level.
        high: the largest σ of the run.
        exponent: q.

    Returns:
        f_0 … f_L, shape (L + 1,).
    """
    scale = sigma.clamp(min=1 / 255) ** exponent * high ** (2 - exponent)
    errors = [(x - clean).square().mean(dim=(1, 2, 3, 4)) for x in (noisy, *iterates)]
    return (torch.stack(errors) / scale).mean(dim=1)


def training_stream(config: TrainConfig) -> LaneStream:
    """The uint8 RGB samples (T, 3, crop, crop) of a run."""
    return (
        DATASETS[config.data]
        .treating(config.corrupt)
        .training_stream(
            config.root,
            frames=config.frames,
            crop=config.crop,
            gray=False,
            seed=config.seed,
            augment=KorniaVideo(config.augment) if config.augment else None,
        )
    )


def batches(source: Iterable[Tensor], config: TrainConfig, generator: torch.Generator) -> Iterator[Tensor]:
    """The clean clips of a run, (B, T, C, crop, crop) in [0, 1].

    Luma, or every few steps colour in half the number; some cut to fewer frames.

    Args:
        source: uint8 batches (B, T, 3, crop, crop), without end.
        config: batch, shares of colour and of short clips.
        generator: source of all randomness here.
    """
    samples = iter(source)
    every = round(1 / config.colour_share) if config.colour_share else 0
    step = 0
    while True:
        step += 1
        colour = every and step % every == 0
        clips = next(samples).float() / 255
        if colour:  # three channels cost three times as much
            clips = clips[: max(1, config.batch // 2)]
        if torch.rand((), generator=generator) < config.short_share:
            clips = clips[:, : int(torch.randint(1, config.frames + 1, (), generator=generator))]
        if not colour and clips.shape[2] == 3:
            clips = torch.einsum("c,btchw->bthw", clips.new_tensor(LUMA), clips).unsqueeze(2)
        yield clips


def _primal_dual(config: TrainConfig, layers: int, optimizer: torch.optim.Optimizer) -> PrimalDual:
    constraint = LayerDescent(
        layers=layers,
        alpha=config.alpha,
        skip_first=config.skip_first,
        detach_previous=config.detach_previous,
    )
    multipliers = Multipliers(constraint, lr=config.dual_lr, resilience=config.resilience, cone=config.cone)
    return PrimalDual(
        constraint if config.constrained else None,
        multipliers,
        optimizer,
        cadence=config.cadence,
        clip_norm=config.clip_norm,
    )


def _ema(decay: float) -> Any:
    """The average of the weights; young averages forget faster, so that the random start does not linger."""

    def update(averages: Any, weights: Any, count: Tensor) -> None:
        rate = min(decay, (1 + int(count)) / (10 + int(count)))
        torch._foreach_lerp_(averages, weights, 1 - rate)

    return update


def _spent(config: TrainConfig, step: int, seconds: float) -> float:
    """The share of the run that is over, by steps or by minutes, whichever is more."""
    by_time = seconds / (60 * config.minutes) if config.minutes else 0.0
    return max(step / config.steps, by_time)


def _learning_rate(config: TrainConfig, step: int, spent: float) -> float:
    """Linear warm-up, then half a cosine from ``lr`` to ``final_lr``."""
    cosine = 0.5 * (1 + math.cos(math.pi * min(spent, 1.0)))
    return min(1.0, (step + 1) / config.warmup) * (config.final_lr + (config.lr - config.final_lr) * cosine)
