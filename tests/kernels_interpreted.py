"""The kernels under Triton's interpreter, in a process of its own: Triton is told so when it is imported.

Run by tests/test_kernels.py; by hand: TRITON_INTERPRET=1 python -m pytest tests/kernels_interpreted.py

The rule for errors: the kernel and plain PyTorch in the same dtype are held against plain PyTorch in float64,
and the kernel may be off by at most twice as much.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from torch import Tensor
from triton.runtime.interpreter import TensorHandle, interpreter_builder

from vdenoise.ops import attention, gaussian_attention, gaussian_mix
from vdenoise.ops._dispatch import INTERPRETED
from vdenoise.ops._triton import launch
from vdenoise.ops.mix import by_codes, thresholds

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SIZES = list(zip([1, 5, 17, 63], [3, 16, 3, 16], [60, 128, 257, 60], strict=True))
SIZES += [(5, 3, 257), (17, 16, 128), (63, 3, 128), (17, 80, 60)]  # 80 features take two pieces
# A few roundings of the largest value are no error: plain PyTorch may be spared them by luck, and how it sums
# depends on the processor. A gradient of h or σ is one number, the sum of thousands, in which several cancel.
# In float32, every step rounds alike, and exp multiplies its argument's rounding by that argument; in half
# precision the sums are float32's, and only what is stored is rounded.
ROUNDINGS, ROUNDINGS_OF_SUMS, ROUNDINGS_OF_FLOAT32 = 4, 8, 16


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Room that a kernel forgot to write is NaN, and a program adds parameters up over several sequences."""
    assert INTERPRETED
    monkeypatch.setattr(launch, "PROGRAMS", 2)
    torch.use_deterministic_algorithms(True)
    monkeypatch.setattr(interpreter_builder, "create_dot", dot_of_bfloat16(interpreter_builder.create_dot))
    yield
    torch.use_deterministic_algorithms(False)


def dot_of_bfloat16(dot: Callable[..., Any]) -> Callable[..., Any]:
    """The interpreter keeps bfloat16 as 16-bit integers and multiplies those; a GPU multiplies the numbers.

    Their products are exact in float32, as in a tensor core.
    """

    def widened(x: TensorHandle) -> TensorHandle:
        if x.dtype.scalar != tl.bfloat16:
            return x
        return TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    return lambda a, b, *rest: dot(widened(a), widened(b), *rest)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def results(
    function: Callable[..., object], inputs: Sequence[Tensor], backend: str, keep: Tensor | None = None
) -> list[Tensor]:
    """Outputs, and gradients of all inputs for a random weighting of the outputs (0 where not ``keep``)."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    outputs = function(*inputs, backend=backend)
    outputs = list(outputs) if isinstance(outputs, tuple) else [outputs]
    weights = [randn(*x.shape, seed=i).to(x.dtype) for i, x in enumerate(outputs)]
    if keep is not None:
        weights[0] = weights[0] * keep
    return [*(x.detach() for x in outputs), *torch.autograd.grad(outputs, inputs, weights)]


def assert_twice_as_good(
    function: Callable[..., object], inputs: Sequence[Tensor], dtype: torch.dtype
) -> None:
    """The kernel's largest error, of every output and gradient, is at most twice plain PyTorch's."""
    rounded = [x.to(dtype) for x in inputs]
    keep = None
    if function is mixed:
        keep = off_the_kinks(*(x.double() for x in rounded), margin=8 * torch.finfo(dtype).eps)
    exact = results(function, [x.double() for x in rounded], "torch", keep)
    plain, kernel = (results(function, rounded, backend, keep) for backend in ("torch", "triton"))
    for i, (e, p, k) in enumerate(zip(exact, plain, kernel, strict=True)):
        assert k.dtype == p.dtype == dtype
        assert k.shape == p.shape
        rounding = torch.finfo(dtype).eps * float(e.abs().max())
        roundings = ROUNDINGS if e.numel() > 8 else ROUNDINGS_OF_SUMS
        if dtype == torch.float32:
            roundings = ROUNDINGS_OF_FLOAT32
        allowed = 2 * float((p.double() - e).abs().max()) + rounding * roundings
        error = float((k.double() - e).abs().max())
        assert error <= allowed, (
            f"result {i}: error {error:.3g}, allowed {allowed:.3g}, rounding {rounding:.3g}"
        )


def off_the_kinks(f, u, h, gate, tau0, tau1=None, sigma=None, *, margin: float) -> Tensor:
    """Where |x| is far from τ: at a kink the gradient jumps, and rounding alone decides to which side."""
    z = gaussian_mix(f, u, h, gate, backend="torch")
    norm = gaussian_attention(f, u, h, backend="torch")[1]
    tau = thresholds(norm, tau0, tau1, sigma)
    distance = by_codes(z, gate).abs() - tau
    return (distance.abs() > margin * (1 + z.abs().max())).view(u.shape)


def mixed(f: Tensor, u: Tensor, h: Tensor, gate: Tensor, *rest: Tensor, backend: str) -> object:
    return gaussian_mix(f, u, h, gate, *rest, backend=backend)


def dust_inputs(n: int, t: int, r: int, m: int, codes: int) -> list[Tensor]:
    """f, u, h, gate, τ₀, τ₁, σ: thresholds that cut about half of the values off."""
    gate, tau0, tau1 = (randn(codes, seed=i).sigmoid() for i in (3, 4, 5))
    h = torch.tensor(float(r), dtype=torch.float64)
    return [randn(n, t, r, seed=1), randn(n, t, m, seed=2), h, gate, tau0 * 0.3, tau1, randn(n).abs()]


@pytest.mark.parametrize(("t", "r", "m"), SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_attention(t, r, m, dtype):
    q, k, v = randn(2, t, r, seed=1), randn(2, t, r, seed=2), randn(2, t, m, seed=3)
    assert_twice_as_good(attention, [q / r**0.5, k, v, randn(2, t, seed=4)], dtype)


@pytest.mark.parametrize("shared", [(0, 0, 1), (0, 1, 1), (0, 0, 0)])
@pytest.mark.parametrize("r", [16, 80])
@pytest.mark.parametrize("bias", [True, False])
def test_attention_of_shared_tensors(shared, r, bias):
    def function(*x: Tensor, backend: str) -> object:
        q, k, v = (x[i] for i in shared)
        return attention(q, k, v, x[-1] if bias else None, backend=backend)

    tensors = [randn(2, 17, r, seed=i) / r**0.25 for i in range(1 + max(shared))]
    assert_twice_as_good(function, [*tensors, *([randn(2, 17, seed=9)] if bias else [])], torch.float32)


@pytest.mark.parametrize(("t", "r", "m"), SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_dust(t, r, m, dtype):
    """Three sequences for two programs; m = 60 is three channels of 20 codes."""
    codes = m // 3 if m == 60 else m
    assert_twice_as_good(mixed, dust_inputs(3, t, r, m, codes), dtype)


@pytest.mark.parametrize(("t", "r", "m"), SIZES[:4])
@pytest.mark.parametrize("dtype", DTYPES)
def test_ut(t, r, m, dtype):
    def function(f: Tensor, u: Tensor, *, backend: str) -> object:
        return gaussian_mix(f, u, 2.0, 0.7, backend=backend)

    assert_twice_as_good(function, [randn(2, t, r, seed=1), randn(2, t, m, seed=2)], dtype)


def test_thresholds_without_noise():
    assert_twice_as_good(mixed, dust_inputs(3, 5, 3, 60, 60)[:5], torch.float32)


def test_inputs_and_gradients_of_any_strides():
    n, t, r, m = 3, 5, 3, 20

    def strided(x: Tensor) -> Tensor:
        """The same values: frames outermost, every second column of a wider tensor."""
        wide = torch.full((x.shape[1], x.shape[0], 2 * x.shape[2]), torch.nan, dtype=x.dtype)
        wide[..., ::2] = x.transpose(0, 1)
        return wide[..., ::2].transpose(0, 1)

    f, u, q, k = (x.float() for x in (randn(n, t, r), randn(n, t, m), randn(n, t, r, seed=4), randn(n, t, r)))
    bias = randn(n, t).float()
    plain = dust_inputs(n, t, r, m, m)[2:]
    for case in (
        lambda s: results(attention, [s(q), s(k), s(u), bias.T.contiguous().T], "triton"),
        lambda s: results(mixed, [s(f), s(u), *(x.float() for x in plain)], "triton"),
    ):
        for a, b in zip(case(lambda x: x), case(strided), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)
    x = u.clone().requires_grad_()
    gaussian_mix(f, x, 2.0, 0.7, backend="triton").sum().backward()  # a gradient whose strides are all 0
    y = u.clone().requires_grad_()
    gaussian_mix(f, y, 2.0, 0.7, backend="torch").sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.parametrize("poison", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("where", range(2))
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # NumPy on the poison itself
def test_poison_stays_in_its_sequence(poison, where):
    inputs = [x.float() for x in dust_inputs(3, 5, 3, 20, 20)]
    clean = results(mixed, inputs, "triton")
    inputs[where][1, 2, 1] = poison
    dirty = results(mixed, inputs, "triton")
    for a, b in zip(clean[:3], dirty[:3], strict=True):  # z, df, du: one sequence each
        torch.testing.assert_close(b[::2], a[::2], rtol=0, atol=0)
    assert not dirty[0][1].isfinite().all()
    qkv = [randn(3, 5, 4, seed=i).float() for i in range(3)]
    clean = results(attention, qkv, "triton")
    qkv[1 + where][1, 2, 1] = poison
    for a, b in zip(clean, results(attention, qkv, "triton"), strict=True):
        torch.testing.assert_close(b[::2], a[::2], rtol=0, atol=0)


def test_equal_keys_average():
    v = randn(2, 17, 60).float()
    out, norm = attention(torch.zeros(2, 17, 3), torch.zeros(2, 17, 3), v, backend="triton")
    torch.testing.assert_close(out, v.mean(1, keepdim=True).expand_as(v))
    torch.testing.assert_close(norm, torch.full((2, 17), 17**-0.5))
    z = gaussian_mix(torch.ones(2, 17, 3), v, 1.0, 1.0, backend="triton")
    torch.testing.assert_close(z, v.mean(1, keepdim=True).expand_as(v))


@pytest.mark.parametrize("scale", [1e4, 1e18])
def test_huge_logits_pick_one_key(scale):
    q = torch.eye(5).expand(2, 5, 5)
    v = randn(2, 5, 60).float()
    out, norm = attention(q * scale, q.clone(), v, backend="triton")
    torch.testing.assert_close(out, v)
    torch.testing.assert_close(norm, torch.ones(2, 5))
    inputs = [q.double() * scale, q.double(), v.double()]
    for a, b in zip(
        results(attention, [x.float() for x in inputs], "triton"),
        results(attention, inputs, "torch"),
        strict=True,
    ):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)


def test_huge_logits_that_tie():
    """1,000 + small differences: what is common must not eat the digits of what differs."""
    q, k = randn(2, 17, 3) * 0.1, randn(2, 17, 3)
    assert_twice_as_good(attention, [q, k, randn(2, 17, 60), torch.full((2, 17), 1000.0)], torch.float32)


def test_no_noise_no_thresholds_that_depend_on_it():
    inputs = dust_inputs(3, 5, 3, 60, 60)
    inputs[-1] = torch.zeros(1, dtype=torch.float64)
    assert_twice_as_good(mixed, inputs, torch.float32)
    inputs[4] = torch.zeros_like(inputs[4])  # τ₀ too: nothing is cut off, nothing divides by zero
    assert_twice_as_good(mixed, inputs, torch.float32)


def test_no_sequences():
    for x in results(attention, [torch.zeros(0, 5, 3), torch.zeros(0, 5, 3), torch.zeros(0, 5, 7)], "triton"):
        assert x.numel() == 0


def test_the_sums_of_the_parameters_are_the_same_every_time():
    inputs = [x.float() for x in dust_inputs(6, 5, 3, 20, 20)]
    for a, b in itertools.pairwise(results(mixed, inputs, "triton") for _ in range(2)):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_models_through_the_kernels(monkeypatch):
    """Whole networks and the gradients of all their weights, kernels against formulas."""
    from vdenoise.models import build
    from vdenoise.ops import mix

    for name, options in (("dust", {"codes": 12}), ("ut", {"width": 12, "alpha1": 0.8})):
        torch.manual_seed(0)
        model = build(name, layers=2, features=3, patch=4, stride=4, **options)
        noisy, found = torch.rand(2, 5, 3, 8, 8), []
        for takes in (False, True):
            monkeypatch.setattr(mix, "takes_kernel", lambda *_, takes=takes: takes)
            model.zero_grad()
            out = model(noisy, torch.tensor([0.1, 0.2]))
            out.square().sum().backward()
            found.append([out, *(p.grad for p in model.parameters())])
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("outermost", [0, 1])
def test_addresses_beyond_31_bits(tmp_path, outermost):
    """Three places of two frames 2³⁰ elements apart, and three frames; the file between them is a hole."""
    room = torch.from_file(str(tmp_path / "sparse"), shared=True, size=2 * 2**30 + 1000, dtype=torch.float16)
    strides = [12, 12, 1]
    strides[outermost] = 2**30
    u = room.as_strided((3, 2, 12) if outermost == 0 else (1, 3, 12), strides)
    u.copy_(randn(*u.shape))
    f = randn(*u.shape[:2], 3).half()
    near = gaussian_mix(f, u.contiguous(), 2.0, 0.7, backend="triton")
    assert torch.equal(gaussian_mix(f, u, 2.0, 0.7, backend="triton"), near)
    assert torch.equal(
        attention(f, f, u, backend="triton")[0], attention(f, f, u.clone(), backend="triton")[0]
    )
    leaf, close = u.requires_grad_(), u.detach().clone().requires_grad_()
    for x in (leaf, close):
        gaussian_mix(f, x, 2.0, 0.7, backend="triton").sum().backward()
    assert torch.equal(leaf.grad, close.grad)


def test_the_gate_of_the_benchmark_tells_right_from_wrong(monkeypatch):
    import kernels_gpu
    from kernels_static import Shape

    shapes = {"small": Shape(5, 3, 12, 4)}
    assert kernels_gpu.wrong("cpu", shapes, ["float32"], n=4) == []
    mix = launch.mix
    monkeypatch.setattr(launch, "mix", lambda *x: mix(*x) * 1.001)
    problems = kernels_gpu.wrong("cpu", shapes, ["float32"], n=4)
    assert [p.split(",")[0] for p in problems] == ["DUST mix", "UT mix"]


def test_compiled_as_one_graph():
    """torch.compile meets no break at the kernels, forward or backward."""
    inputs = [x.float() for x in dust_inputs(3, 5, 3, 20, 20)]
    compiled = torch.compile(mixed, backend="aot_eager", fullgraph=True)
    for a, b in zip(results(compiled, inputs, "triton"), results(mixed, inputs, "triton"), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
)  # opcheck's own
def test_registration():
    """torch.library's own checks on the kernels: schema, autograd, shapes without data."""
    f, u, h, gate, tau0, tau1, sigma = (
        x.float().clone().detach().requires_grad_() for x in dust_inputs(3, 5, 3, 20, 20)
    )
    operations = torch.ops.vdenoise
    torch.library.opcheck(operations.gaussian_mix, (f, u, h, gate, tau0, tau1, sigma))
    torch.library.opcheck(operations.attention, (f, None, u, None))
