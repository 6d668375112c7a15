"""The whole DUST network against its formulas, written place by place with PyTorch's own fold."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from vdenoise.models import build
from vdenoise.models.dust import DUST, FEATURE_FLOOR
from vdenoise.models.tokens import OPPONENT


def plain_iterates(model: DUST, noisy: torch.Tensor, sigma: float) -> list[torch.Tensor]:
    """DUST by F.unfold and F.fold on one clip (T, C, H, W): pixels of a patch row by row, not by block."""
    p, s, k = model.grid.patch, model.grid.stride, model.grid.overlap
    (t, c, height, width), rotation = noisy.shape, noisy.new_tensor(OPPONENT)
    x = torch.einsum("ij,tjhw->tihw", rotation, noisy) if c == 3 else noisy
    bottom, right = (p - s + (-size) % s for size in (height, width))
    x = F.pad(x, (p - s, right, p - s, bottom), mode="reflect")
    size = tuple(x.shape[-2:])
    order = torch.arange(p * p).view(k, s, k, s).permute(0, 2, 1, 3).flatten()  # the model's, block by block

    def unfold(frames: torch.Tensor) -> torch.Tensor:  # (T, C, H, W) -> (P, T, C, n)
        patches = F.unfold(frames.reshape(t * c, 1, *size), p, stride=s)
        return patches.view(t, c, p * p, -1).permute(3, 0, 1, 2)[..., order]

    def fold(patches: torch.Tensor) -> torch.Tensor:
        rows = patches[..., order.argsort()].permute(1, 2, 3, 0).reshape(t * c, p * p, -1)
        return F.fold(rows, size, p, stride=s).view(t, c, *size)

    window = model.overlap_add.log_window.exp()
    y = unfold(x)
    mean = y.mean(dim=(1, 3), keepdim=True)
    weight = fold(window.expand_as(y))
    z, estimate, outputs = None, None, []
    for step in model.steps:
        # The first layer starts from Z = 0, whose estimate is the mean; its features are the patch's own.
        residual = mean - y if estimate is None else unfold(estimate - x)
        u = (0 if z is None else z) - residual @ step.analysis
        f = (residual if z is None else z) @ step.to_features
        f = f / (sigma + FEATURE_FLOOR) if model.config.noise_adaptive else f
        g, new = step.gate.sigmoid(), []
        for place in range(len(y)):
            features = f[place].flatten(1)  # channels side by side: one set of weights for all
            distance = (features[:, None] - features[None]).square().sum(-1)
            w = (-distance / step.log_bandwidth.exp()).softmax(-1)
            mixed = g * torch.einsum("ij,jcm->icm", w, u[place]) + (1 - g) * u[place]
            tau = step.threshold.abs().expand_as(mixed)
            if model.config.noise_adaptive:
                tau = tau + step.threshold_per_noise.abs() * sigma * w.norm(dim=-1)[:, None, None]
            new.append(mixed.sign() * (mixed.abs() - tau).clamp(min=0))
        z = torch.stack(new)
        estimate = fold((z @ step.dictionary + mean) * window) / weight
        frames = estimate[..., p - s : p - s + height, p - s : p - s + width]
        outputs.append(torch.einsum("ij,tihw->tjhw", rotation, frames) if c == 3 else frames)
    return outputs


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("stride", [2, 4])
@pytest.mark.parametrize("adaptive", [True, False])
@torch.no_grad()
def test_the_network_is_its_formulas(channels, stride, adaptive):
    torch.manual_seed(0)
    options = {"layers": 3, "codes": 10, "features": 3, "patch": 4, "stride": stride}
    model = build("dust", **options, noise_adaptive=adaptive).double()
    torch.nn.init.normal_(model.overlap_add.log_window, std=0.3)
    noisy = torch.rand(5, channels, 9, 11, dtype=torch.float64)
    expected = plain_iterates(model, noisy, 0.1)
    for got, want in zip(model.iterates(noisy[None], 0.1), expected, strict=True):
        torch.testing.assert_close(got[0], want)
