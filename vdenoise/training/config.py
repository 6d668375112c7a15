"""Everything a training run is told, in one place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vdenoise.noise import NOISES


@dataclass(frozen=True)
class TrainConfig:
    """One training run. The command line has one flag for each field.

    Args:
        model: name in ``vdenoise.models.MODELS``.
        options: fields of the model's ``Config`` that differ from their defaults.
        data: name in ``vdenoise.datasets.DATASETS``.
        root: where the data lies; None is the data set's usual place.
        corrupt: what becomes of a frame image that can't be decoded: "skip", "bridge" by the mean of its
            neighbours, or "raise" an error; each is reported once.
        out: file of the trained model.
        frames: T, frames of a training clip.
        short_share: share of the steps on clips cut to a random shorter T, so that a few frames do too.
        crop: side of a training clip in pixels.
        augment: share of the crops of video that kornia changes in light (±10%), turn (±5°) and zoom (up to
            1.2), all frames of a clip alike; moved photographs have their own camera.
        batch: clips per step; half as many in a colour step.
        colour_share: share of the steps on colour clips; the others see luma.
        steps: optimiser steps.
        minutes: time budget; the learning rate follows whichever of steps and minutes is further spent.
        lr: peak learning rate of Adam, after ``warmup`` steps.
        final_lr: learning rate at the end of the cosine.
        warmup: steps of linear warm-up.
        clip_norm: largest gradient norm.
        ema: decay of the average of the weights that is validated and saved.
        noise: kind of the noise, a key of ``vdenoise.noise.NOISES``; the model is told its level σ.
        gamma: train at the one noise deviation γ σ_x; then ``sigma`` is not used.
        sigma: (low, high) noise deviation on the 0–255 scale, uniform per clip.
        clipped: share of the clips whose noisy frames are clipped to [0, 1], as stored video is.
        noise_exponent: q in the loss of a clip, MSE / (σ^q σ_high^(2−q)): 2 counts every clip in units of its
            own noise variance, 0 is the plain mean squared error. It makes no difference at one noise level.
        constrained: layer descent on or off; off is empirical risk minimisation of the last layer.
        alpha: α of the constraint, the share by which every layer must lower the loss.
        dual_lr: η_λ of the projected dual ascent.
        cadence: dual step per "batch" or per "epoch" (one segment).
        detach_previous: stop the gradient through f_{l−1} (an ablation; False is the exact Lagrangian).
        cone: keep λ_l ≥ (1−α) λ_{l+1}, so that no layer is rewarded for getting worse (ours). The price: the
            rays of that cone are the constraints f_l ≤ (1−α)^l f_0: descent from the input only.
        skip_first: no constraint on the first layer.
        resilience: cost a of the slack h(u) = a/2 ‖u‖²; None has no slack.
        segment: steps between two saves; data and noise are seeded anew per segment, so that a resumed run
            and an uninterrupted one see the same.
        seed: of the weights, the data and the noise.
        threads: processor threads of the computation.
        workers: processes that load clips, a divisor of 8; 0 loads between the steps. The clips are the same.
    """

    model: str = "dust"
    options: dict[str, Any] = field(default_factory=dict)
    data: str = "open"
    root: str | None = None
    corrupt: str = "skip"
    out: str = "runs/dust.pt"
    frames: int = 12
    short_share: float = 0.2
    crop: int = 48
    augment: float = 0.25
    batch: int = 3
    colour_share: float = 0.25
    steps: int = 12_000
    minutes: float | None = None
    lr: float = 2e-3
    final_lr: float = 2e-5
    warmup: int = 200
    clip_norm: float = 0.1
    ema: float = 0.998
    noise: str = "gaussian"
    gamma: float | None = None
    sigma: tuple[float, float] = (0.0, 55.0)
    clipped: float = 0.75
    noise_exponent: float = 1.0
    constrained: bool = True
    alpha: float = 0.1
    dual_lr: float = 0.02
    cadence: str = "batch"
    detach_previous: bool = False
    cone: bool = False
    skip_first: bool = False
    resilience: float | None = None
    segment: int = 500
    seed: int = 0
    threads: int = 1
    workers: int = 0

    def __post_init__(self) -> None:
        for name in ("frames", "crop", "batch", "steps", "segment", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} must be at least 1, got {getattr(self, name)}")
        for name in ("augment", "colour_share", "short_share", "clipped"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(
                    f"--{name.replace('_', '-')} is a share and lies in 0–1, got {getattr(self, name)}"
                )
        if self.noise not in NOISES:
            raise ValueError(f"--noise must be one of {', '.join(NOISES)}, got {self.noise!r}")
        if not 0 <= self.sigma[0] <= self.sigma[1]:
            raise ValueError(f"--sigma takes a low and a high value, 0 ≤ low ≤ high, got {self.sigma}")
        if self.sigma[1] == 0 and self.gamma is None:
            raise ValueError("--sigma 0 0 leaves nothing to learn; give a high value above 0 or --gamma")
        if self.gamma is not None and self.gamma <= 0:
            raise ValueError(f"--gamma must be above 0, got {self.gamma}")
        if not 0 <= self.ema < 1:
            raise ValueError(f"--ema must lie in 0 ≤ ema < 1, got {self.ema}")
        if self.minutes is not None and self.minutes <= 0:
            raise ValueError(f"--minutes must be above 0, got {self.minutes}")
