"""A network fitted to one noisy clip, without a clean frame: the estimated risk as loss, layer descent on it.

Axes: T frames, C channels, H W pixels, L layers (0 is the noisy input). σ and gain are on 0–255.
"""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from vdenoise.certificate import certify
from vdenoise.descent import LayerDescent, Multipliers, PrimalDual
from vdenoise.descent.certificate import FLOOR, STEP, stein
from vdenoise.descent.observed import Noise, unclip
from vdenoise.models import save
from vdenoise.restore import resolve, to_tensor
from vdenoise.tiling import halo
from vdenoise.video import open_video

HELD_OUT = 0.25  # of the width: that part is never trained on and says when to stop
CHECK = 20  # steps between two looks at it
PATIENCE = 4  # looks without a better one before it stops
FRAMES = 24  # of a file that are looked at
REGION = (360, 480)  # height and width of them at most
LEAST = 1e-3  # relative gain on the held-out part that counts


@dataclass(frozen=True)
class Adapted:
    """What an adaptation came to.

    Args:
        model: the fitted network; the very one that was given where nothing was better.
        before, after: estimated RMSE of the last layer on the held-out part, 0–255; ``after`` ≤ ``before``.
        steps: optimiser steps that were taken.
        seconds: that it took.
        reason: why it ended.
    """

    model: Any
    before: float
    after: float
    steps: int
    seconds: float
    reason: str


def adapt(
    model: Any,
    noisy: np.ndarray | Tensor,
    sigma: float | str = "auto",
    *,
    gain: float = 0.0,
    seconds: float = 120.0,
    steps: int = 2000,
    lr: float = 3e-4,
    alpha: float = 0.02,
    dual_lr: float = 0.05,
    frames: int = 12,
    crop: int = 64,
    seed: int = 0,
    device: str = "auto",
    progress: bool = False,
) -> Adapted:
    r"""Fine-tune a network on a noisy clip, by Stein's estimate of its own risk.

    .. math:: \min_\theta \hat R_L \quad \text{such that} \quad
              \hat R_l \le (1 - \alpha)\, \hat R_{l-1}, \qquad
              \hat R_l = \tfrac1N \big[ \lVert y - \Phi_l \rVert^2 - \textstyle\sum v
              + 2\, b^\top V \tfrac{\Phi_l(y + \epsilon b) - \Phi_l(y)}{\epsilon}
              + 2 \sum \beta\, (\Phi_l - m) \big]

    on random crops, one probe b each, by the same primal-dual step as training, the gradient through the
    layer before stopped. m, v and β are the moments of clipped noise where the clip is clipped
    (:func:`vdenoise.descent.certificate.stein`), and β is 0 where not. The right quarter of the frame is
    never trained on; the weights that are best there, by the same estimate with fixed probes, are returned.
    Where the certificate finds the noise to be none that the estimate knows, nothing is changed. All numbers
    of the recipe are ours.

    Args:
        model: a shipped checkpoint's name, a checkpoint's path, or a model, which stays as it is.
        noisy: as in :func:`vdenoise.denoise`; T ≥ 2, wide enough for a crop beside the held-out part.
        sigma: deviation of the noise, or "auto".
        gain: of Poisson noise, as in :func:`vdenoise.certify`.
        seconds: time to train for, at most; the looks at the held-out part count.
        steps: of the optimiser at most.
        lr: of Adam.
        alpha: α of the constraint.
        dual_lr: rate of its multipliers.
        frames: T of a training crop.
        crop: its side in pixels.
        seed: of crops and probes.
        device: as in :func:`vdenoise.denoise`.
        progress: show a bar.

    Returns:
        The outcome.

    Raises:
        ValueError: for frames too small, seconds that are not positive, and as :func:`vdenoise.certify`.
    """
    clip, _ = to_tensor(noisy)
    net, device = resolve(model, device)
    height, width = clip.shape[-2:]
    held = max(int(width * HELD_OUT), 2 * net.grid.patch)
    side = min(crop, height, width - held)
    if side < 2 * net.grid.patch or len(clip) < 2:
        raise ValueError(
            f"a clip to adapt to needs 2 frames of at least {4 * net.grid.patch} pixels, got {len(clip)} of"
            f" {height}×{width}"
        )
    if not 0 < seconds < math.inf:
        raise ValueError(f"seconds must be above 0, got {seconds}")
    started = time.monotonic()
    whole = certify(net, clip, sigma, gain=gain, probes=1, seed=seed, device=device)
    broken = [text for text in whole.failures if "clipped" not in text.split(";")[0]]
    if broken or whole.sigma <= 0:
        why = broken[0] if broken else "there is no noise to be seen"
        return Adapted(
            net, whole.rmse[-1], whole.rmse[-1], 0, time.monotonic() - started, f"unchanged: {why}"
        )
    noise = Noise(whole.sigma / 255, whole.gain / 255, clipped=bool(clip.amin() >= 0 and clip.amax() <= 1))
    task = _Task(clip.to(device), noise, held, frames, side, seed)
    task.learn_clipping(net)
    fitted = copy.deepcopy(net).requires_grad_(True).train()
    constraint = LayerDescent(net.config.layers, alpha=alpha, detach_previous=True)
    primal_dual = PrimalDual(
        constraint,
        Multipliers(constraint, lr=dual_lr),
        torch.optim.Adam(fitted.parameters(), lr=lr),
        clip_norm=0.1,
    )
    left = seconds - (time.monotonic() - started)
    return _descend(net, fitted, primal_dual, task, left, steps, progress)


def adapt_to_file(
    path: str | Path,
    model: Any,
    sigma: float | str = "auto",
    *,
    seconds: float = 120.0,
    save_to: str | Path | None = None,
    device: str = "auto",
    progress: bool = False,
) -> Adapted:
    """Fit a network to the middle of a video: at most ``FRAMES`` frames, of them at most ``REGION`` pixels.

    Args:
        path: the video.
        model: as in :func:`adapt`.
        sigma: as in :func:`adapt`.
        seconds: as in :func:`adapt`.
        save_to: where to write the weights, a checkpoint like any other; None writes none. Nothing is written
            where nothing was better.
        device: as in :func:`adapt`.
        progress: show a bar.

    Raises:
        VideoError: if the file can't be read.
        ValueError: as :func:`adapt`.
    """
    with open_video(path) as reader:
        start = max(0, len(reader) - FRAMES) // 2
        frames = reader.read(start, min(len(reader), start + FRAMES))
    top, left = (max(0, size - most) // 2 for size, most in zip(frames.shape[1:3], REGION, strict=True))
    part = np.ascontiguousarray(frames[:, top : top + REGION[0], left : left + REGION[1]])
    done = adapt(model, part, sigma, seconds=seconds, device=device, progress=progress)
    if save_to is not None and done.after < done.before:
        how = {
            "before": done.before,
            "after": done.after,
            "steps": done.steps,
            "seconds": round(done.seconds),
        }
        save(done.model, save_to, {**getattr(done.model, "card", {}), "adapted": how})
    return done


def _descend(
    net: Any, fitted: Any, primal_dual: PrimalDual, task: _Task, seconds: float, most: int, progress: bool
) -> Adapted:
    """The loop: steps on crops, a look at the held-out part now and then."""
    first = best = task.held_out_risk(net)
    kept: dict[str, Tensor] | None = None
    stale, steps, reason = 0, 0, "the time was up"
    started = time.monotonic()
    with tqdm(total=round(seconds), unit="s", disable=not progress, dynamic_ncols=True) as bar:
        while time.monotonic() - started < seconds:
            try:
                primal_dual.step(task.losses(fitted))
            except ValueError:  # not finite any more
                reason = "it diverged; a smaller lr may help"
                break
            steps += 1
            bar.update(min(round(time.monotonic() - started), bar.total) - bar.n)
            if steps % CHECK:
                continue
            risk = task.held_out_risk(fitted.eval())
            fitted.train()
            bar.set_postfix_str(f"RMSE {_rmse(first):.2f} → {_rmse(min(best, risk)):.2f}")
            stale += 1
            if risk < best - LEAST * abs(best):
                best, stale = risk, 0
                kept = {name: value.detach().clone() for name, value in fitted.state_dict().items()}
            if stale == PATIENCE or steps >= most:
                reason = "the held-out part got no better" if stale == PATIENCE else "the steps were done"
                break
    spent = time.monotonic() - started
    if kept is None:
        return Adapted(net, _rmse(first), _rmse(first), steps, spent, f"unchanged: {reason}")
    fitted.load_state_dict(kept)
    fitted.eval().requires_grad_(False)
    return Adapted(fitted, _rmse(first), _rmse(best), steps, spent, reason)


class _Task:
    """The clip, its noise, and where the two parts lie."""

    def __init__(self, clip: Tensor, noise: Noise, held: int, frames: int, side: int, seed: int) -> None:
        self.clip, self.noise, self.held, self.side = clip, noise, held, side
        self.frames = min(frames, len(clip))
        self.level = math.sqrt(max(0.0, noise.gain * float(clip.mean()) + noise.sigma**2))
        self.variance, self.mean, self.bias = noise.variance(clip), clip, torch.zeros_like(clip)
        self.generator = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def learn_clipping(self, net: Any) -> None:
        """Moments of the clipped noise, by what the network makes of the clip before it is changed."""
        if self.noise.clipped:
            estimate = net(self.clip[None], self.level)[0]
            truth = unclip(self.clip, estimate, self.noise)
            self.mean, self.variance = self.noise.clipped_moments(truth)
            self.bias = self.mean - truth

    def losses(self, net: Any) -> Tensor:
        """Estimated risks of the input and of every layer (L + 1,) on a crop, over the noise's variance."""
        t = self._draw(len(self.clip) - self.frames + 1)
        top = self._draw(self.clip.shape[-2] - self.side + 1)
        left = self._draw(self.clip.shape[-1] - self.held - self.side + 1)
        at = (
            slice(t, t + self.frames),
            slice(None),
            slice(top, top + self.side),
            slice(left, left + self.side),
        )
        y, v, m, beta = self.clip[at], self.variance[at], self.mean[at], self.bias[at]
        b = (2 * torch.randint(0, 2, y.shape, generator=self.generator) - 1).to(y)
        epsilon = max(STEP * self.level, FLOOR)
        both = net.iterates(torch.stack([y, y + epsilon * b]), self.level)
        risks = [self.level**2 * torch.ones((), device=y.device)]
        for x in both:
            here, there = x[0], x[1]
            error = (here - y).square() - v + 2 * v * b * (there - here) / epsilon
            risks.append((error + 2 * beta * (here - m) + beta.square()).mean())
        return torch.stack(risks) / self.level**2

    def held_out_risk(self, net: Any) -> float:
        """Estimated squared error of the last layer on the held-out part, always with the same probes."""
        reach, _ = halo(net)
        width = self.clip.shape[-1]
        start = max(0, width - self.held - reach)
        inside = (slice(None), slice(None), slice(None), slice(width - self.held - start, None))
        generator = torch.Generator().manual_seed(1)
        found = stein(
            lambda y: [net(y[None], self.level)[0]],
            self.clip[..., start:],
            self.noise,
            generator,
            inside=inside,
        )
        return float(found.risk[1])

    def _draw(self, count: int) -> int:
        return int(torch.randint(0, max(1, count), (), generator=self.generator))


def _rmse(risk: float) -> float:
    return 255 * math.sqrt(max(0.0, risk))
