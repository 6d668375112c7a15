"""A ViT layer against its formula, head by head, beyond test_models.py."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from vdenoise.models import build
from vdenoise.models.tokens import OPPONENT
from vdenoise.models.vit import ViTConfig, ViTLayer


@torch.no_grad()
def test_a_layer_is_its_formula():
    torch.manual_seed(0)
    layer = ViTLayer(ViTConfig(width=12, heads=3, mlp_ratio=3)).double()
    for norm in (layer.norm_attention, layer.norm_mlp):
        torch.nn.init.normal_(norm.weight, 1, 0.2)
        torch.nn.init.normal_(norm.bias)
    h = torch.randn(2, 5, 12, dtype=torch.float64)
    for got, x in zip(layer(h), h, strict=True):
        q, k, v = layer.qkv(
            F.layer_norm(x, (12,), layer.norm_attention.weight, layer.norm_attention.bias)
        ).chunk(3, dim=-1)
        heads = [slice(4 * i, 4 * i + 4) for i in range(3)]
        mixed = torch.cat([(q[:, e] @ k[:, e].T / 2).softmax(-1) @ v[:, e] for e in heads], dim=-1)
        x = x + layer.out(mixed)
        inner = layer.mlp[0](F.layer_norm(x, (12,), layer.norm_mlp.weight, layer.norm_mlp.bias))
        x = x + layer.mlp[2](inner * 0.5 * (1 + torch.erf(inner / 2**0.5)))
        torch.testing.assert_close(got, x)


@torch.no_grad()
def test_it_predicts_the_change_of_the_noisy_frame():
    """With a readout of zero every layer gives the noisy input back."""
    model = build("vit", layers=2, width=16, heads=2)
    torch.nn.init.zeros_(model.readout.weight)
    noisy = torch.rand(1, 3, 3, 19, 21)
    for estimate in model.iterates(noisy, 0.1):
        torch.testing.assert_close(estimate, noisy, atol=1e-6, rtol=0)


@torch.no_grad()
def test_channels_are_sequences_of_their_own():
    """Colour is luma and two chroma axes, each cleaned as a grey clip."""
    torch.manual_seed(0)
    model = build("vit", layers=2, width=16, heads=2).double()
    noisy = torch.rand(1, 3, 3, 16, 20, dtype=torch.float64)
    rotation = noisy.new_tensor(OPPONENT)
    axes = torch.einsum("ij,btjhw->btihw", rotation, noisy)
    each = torch.cat([model(axes[:, :, i : i + 1], 0.1) for i in range(3)], dim=2)
    torch.testing.assert_close(model(noisy, 0.1), torch.einsum("ij,btihw->btjhw", rotation, each))
