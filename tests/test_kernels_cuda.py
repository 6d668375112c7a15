"""The kernels on a CUDA card. Without one these are skipped, and with VDENOISE_REQUIRE_CUDA=1 they fail."""

from __future__ import annotations

import os

import pytest
import torch

from vdenoise.models import build
from vdenoise.ops import gaussian_mix

import kernels_gpu
from kernels_static import SHAPES, TYPES


@pytest.fixture(autouse=True)
def card() -> None:
    if not torch.cuda.is_available():
        if os.environ.get("VDENOISE_REQUIRE_CUDA") == "1":
            pytest.fail("VDENOISE_REQUIRE_CUDA=1, and there is no CUDA device")
        pytest.skip("no CUDA device")


@pytest.mark.parametrize("label", SHAPES)
@pytest.mark.parametrize("kind", TYPES)
def test_right_by_the_twice_the_error_rule(label, kind):
    assert kernels_gpu.wrong("cuda", {label: SHAPES[label]}, [kind]) == []


@pytest.mark.parametrize("name", ["dust", "ut"])
def test_models_on_the_card_are_those_on_the_processor(name):
    torch.manual_seed(0)
    model = build(name)
    noisy = torch.rand(1, 7, 3, 40, 48)
    results = []
    for device in ("cpu", "cuda"):
        model.to(device).zero_grad()
        out = model(noisy.to(device), 0.1)
        out.square().sum().backward()
        results.append([out.cpu(), *(p.grad.cpu() for p in model.parameters())])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3 * float(a.abs().max()))


def test_more_than_two_to_the_31_elements():
    n, t, m = 2**31 // (16 * 256) + 100, 16, 256
    u = torch.randn(n, t, m, device="cuda", dtype=torch.bfloat16)
    f = torch.randn(n, t, 16, device="cuda", dtype=torch.bfloat16)
    z = gaussian_mix(f, u, 2.0, 0.9, backend="triton")
    last = slice(n - 100, n)
    torch.testing.assert_close(z[last], gaussian_mix(f[last], u[last], 2.0, 0.9, backend="triton"))


def test_auto_takes_the_kernel_and_says_where_it_can_not():
    u, f = torch.randn(2, 65, 16, device="cuda"), torch.randn(2, 65, 4, device="cuda")
    with pytest.warns(UserWarning, match="at most 64 frames, got 65"):
        gaussian_mix(f, u, 2.0, 0.9)
    assert torch.equal(
        gaussian_mix(f[:, :9], u[:, :9], 2.0, 0.9),
        gaussian_mix(f[:, :9], u[:, :9], 2.0, 0.9, backend="triton"),
    )
