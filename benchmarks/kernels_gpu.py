"""The kernels on a graphics card: right first, then how fast, against everything that PyTorch has for it.

Times are medians over CUDA events after warming up; bandwidth is the floor's bytes (every input once, every
output once) over the time, as a share of what a plain copy reaches on the same card in the same run.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from vdenoise.models import load
from vdenoise.ops import attention, gaussian_mix

from common import markdown_table
from kernels_static import SHAPES, TYPES, Shape

Result = dict[str, Any]
SDPA = (
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.MATH,
)
FRAMES = {"540p": (540, 960), "1080p": (1080, 1920), "2160p": (2160, 3840)}


def inputs(shape: Shape, n: int, dtype: torch.dtype, device: str) -> dict[str, list[Tensor]]:
    """Leaves for each operation: attention with shared q = k and a bias, DUST's mix, UT's mix."""
    generator = torch.Generator(device).manual_seed(0)

    def randn(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, device=device)

    f, u, bias = randn(n, shape.t, shape.r) / shape.r**0.25, randn(n, shape.t, shape.m), randn(n, shape.t)
    gate, tau0, tau1 = (randn(shape.codes).sigmoid() for _ in range(3))
    h, sigma = torch.tensor(2.0, device=device), torch.tensor([0.1], device=device)
    wide = [x.to(dtype) for x in (f, u, bias)]
    parameters = [h, gate, 0.1 * tau0, tau1, sigma]
    return {
        "attention": [wide[0], wide[1], wide[2]],
        "DUST mix": [*wide[:2], *(x.to(dtype) for x in parameters)],
        "UT mix": wide[:2],
    }


OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "attention": lambda f, v, bias, backend: attention(f, f, v, bias, backend)[0],
    "DUST mix": lambda f, u, h, gate, tau0, tau1, sigma, backend: gaussian_mix(
        f, u, h, gate, tau0, tau1, sigma, backend
    ),
    "UT mix": lambda f, u, backend: gaussian_mix(f, u, 2.0, 0.9, backend=backend),
}


def wrong(device: str, shapes: dict[str, Shape], types: Sequence[str], n: int = 64) -> list[str]:
    """Where the kernel's root-mean-square error against float64 is more than twice plain PyTorch's.

    Root mean square, since at the soft threshold's kink a rounding may turn a single gradient either way.
    """
    found = []
    for label, shape in shapes.items():
        for kind in types:
            for name, given in inputs(shape, n, TYPES[kind], device).items():
                exact = _with_gradients(OPERATIONS[name], [x.double() for x in given], "torch")
                plain = _with_gradients(OPERATIONS[name], given, "torch")
                kernel = _with_gradients(OPERATIONS[name], given, "triton")
                for i, (e, p, k) in enumerate(zip(exact, plain, kernel, strict=True)):
                    scale = float(e.square().mean().sqrt())
                    floor = 4 * torch.finfo(TYPES[kind]).eps * scale
                    allowed = 2 * _rms(p - e) + floor
                    if not _rms(k - e) <= allowed:
                        found.append(
                            f"{name}, {label}, {kind}, result {i}: {_rms(k - e):.2g} > {allowed:.2g}"
                        )
    return found


def _rms(x: Tensor) -> float:
    return float(x.double().square().mean().sqrt())


def _with_gradients(operation: Callable[..., Tensor], given: list[Tensor], backend: str) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in given]
    out = operation(*leaves, backend=backend)
    weight = torch.linspace(-1, 1, out.numel(), dtype=torch.float64, device=out.device).view(out.shape)
    return [out.detach(), *torch.autograd.grad(out, leaves, weight.to(out.dtype))]


def milliseconds(run: Callable[[], object], repeats: int = 30, warm: int = 5) -> tuple[float, float]:
    """Median and interquartile range of a call on the current CUDA device."""
    for _ in range(warm):
        run()
    events = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)
    ]
    for start, end in events:
        start.record()
        run()
        end.record()
    torch.cuda.synchronize()
    times = [start.elapsed_time(end) for start, end in events]
    low, median, high = statistics.quantiles(times, n=4)
    return median, high - low


def copy_bandwidth(device: str) -> float:
    """Bytes per second of a plain copy, read and written, of 1 GiB."""
    source = torch.empty(2**28, device=device)
    target = torch.empty_like(source)
    ms, _ = milliseconds(lambda: target.copy_(source))
    return 2 * source.nbytes / (1e-3 * ms)


def rivals(name: str) -> dict[str, Callable[..., Tensor]]:
    """Ways to compute an operation: kernel, eager, torch.compile; for attention SDPA and FlexAttention."""
    operation = OPERATIONS[name]
    ways: dict[str, Callable[..., Tensor]] = {
        "kernel": lambda *x: operation(*x, backend="triton"),
        "eager": lambda *x: operation(*x, backend="torch"),
        "torch.compile": torch.compile(lambda *x: operation(*x, backend="torch")),
    }
    if name == "attention":
        ways |= {f"SDPA, {backend.name.lower()}": _sdpa(backend) for backend in SDPA}
        ways["FlexAttention"] = _flex()
    return ways


def _sdpa(backend: SDPBackend) -> Callable[..., Tensor]:
    def run(f: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        q, values = f.unsqueeze(1), v.unsqueeze(1)
        mask = bias[:, None, None].expand(-1, 1, f.shape[1], -1)
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, q, values, attn_mask=mask, scale=1.0).squeeze(1)

    return run


def _flex() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    compiled: Any = torch.compile(flex_attention)

    def run(f: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        def score(s: Tensor, b: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return s + bias[b, j]

        q = f.unsqueeze(1)
        result: Tensor = compiled(q, q, v.unsqueeze(1), score_mod=score, scale=1.0)
        return result.squeeze(1)

    return run


def speed(
    name: str, shape: Shape, kind: str, device: str, copy: float, gigabytes: float = 1.0
) -> list[Result]:
    """Forward and backward of every way on about a gigabyte of values; a way that refuses says so."""
    itemsize = torch.finfo(TYPES[kind]).bits // 8
    n = max(1, int(gigabytes * 1e9 / (shape.t * shape.m * itemsize)))
    rows = []
    for way, run in rivals(name).items():
        given = [x.requires_grad_() for x in inputs(shape, n, TYPES[kind], device)[name]]
        try:
            rows += [{"way": way, **row} for row in _passes(run, given, copy)]
        except (RuntimeError, torch._dynamo.exc.TorchDynamoException) as error:
            rows.append({"way": way, "refused": str(error).splitlines()[0][:160]})
        torch.cuda.empty_cache()
    return rows


def _passes(run: Callable[..., Tensor], given: list[Tensor], copy: float) -> list[Result]:
    large = [x for x in given if x.ndim > 1]
    out_bytes = given[1].nbytes
    with torch.no_grad():
        forward = milliseconds(lambda: run(*given))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = run(*given)
    grad = torch.randn_like(out)
    backward = milliseconds(lambda: torch.autograd.grad(out, given, grad, retain_graph=True))
    peak = torch.cuda.max_memory_allocated() - before
    inputs_bytes = sum(x.nbytes for x in large)
    floors = {"forward": inputs_bytes + out_bytes, "backward": 2 * inputs_bytes + out_bytes}
    return [
        {
            "pass": direction,
            "ms": ms,
            "iqr_ms": spread,
            "of_copy_bandwidth": floors[direction] / (1e-3 * ms) / copy,
            "peak_bytes": peak,
        }
        for direction, (ms, spread) in (("forward", forward), ("backward", backward))
    ]


def whole_layer(device: str, kind: str) -> list[Result]:
    """A DUST layer of the shipped model on a 384×384 tile of colour: kernel, eager, torch.compile."""
    model = load("dust", device).to(TYPES[kind])
    layer = model.steps[1]
    places = 96
    codes = torch.randn(1, places, places, 30, 3, 128, device=device, dtype=TYPES[kind])
    residual = torch.randn(1, places, places, 30, 3, 64, device=device, dtype=TYPES[kind])
    sigma = torch.full((1, 1, 1, 1, 1, 1), 0.1, device=device, dtype=TYPES[kind])
    rows = []
    for way, kernel in (("kernel", True), ("eager", False), ("torch.compile", False)):
        run: Callable[..., Any] = torch.compile(layer) if way == "torch.compile" else layer
        with mock.patch("vdenoise.ops.mix.takes_kernel", lambda *_, k=kernel: k), torch.inference_mode():
            torch.cuda.reset_peak_memory_stats()
            ms, spread = milliseconds(partial(run, codes, residual, sigma))
        rows.append({"way": way, "ms": ms, "iqr_ms": spread, "peak_bytes": torch.cuda.max_memory_allocated()})
    return rows


def whole_model(device: str, kind: str, frames: int = 30) -> list[Result]:
    """Frames per second of the shipped model on colour video, in vdenoise.denoise's tiles, upload apart."""
    from vdenoise.tiling import by_tiles, halo

    model, rows = load("dust", device).to(TYPES[kind]), []
    for size, (height, width) in FRAMES.items():
        clip = torch.rand(frames, 3, height, width, device=device, dtype=TYPES[kind])
        with torch.inference_mode():
            torch.cuda.reset_peak_memory_stats()
            ms, spread = milliseconds(
                partial(by_tiles, lambda x: model(x[None], 0.1)[0], clip, halo(model)), repeats=5, warm=1
            )
        peak = torch.cuda.max_memory_allocated()
        rows.append({"size": size, "fps": 1e3 * frames / ms, "ms": ms, "iqr_ms": spread, "peak_bytes": peak})
    return rows


def measure(device: str, types: Sequence[str]) -> Result:
    """Everything, after the gate.

    Raises:
        ValueError: where a kernel is wrong; a wrong kernel has no speed.
    """
    problems = wrong(device, SHAPES, types)
    if problems:
        raise ValueError(f"{len(problems)} results are wrong, so no speed is measured; first: {problems[0]}")
    copy = copy_bandwidth(device)
    speeds = [
        {"operation": name, "shape": label, "dtype": kind, **row}
        for label in ("dust, 30 frames, colour", "dust, 7 frames", "ut, 30 frames, colour")
        for name in OPERATIONS
        for kind in types
        for row in speed(name, SHAPES[label], kind, device, copy)
    ]
    return {
        "copy_bytes_per_second": copy,
        "operations": speeds,
        "layer": [{"dtype": kind, **row} for kind in types for row in whole_layer(device, kind)],
        "model": [{"dtype": kind, **row} for kind in types for row in whole_model(device, kind)],
    }


def table(found: Result) -> str:
    """Markdown: times and shares of the copy's bandwidth."""
    rows = [
        [
            f"{row['operation']}, {row['shape']}, {row['dtype']}, {row.get('pass', '')}",
            row["way"],
            row.get("refused") or f"{row['ms']:.3f}",
            "" if "refused" in row else f"{100 * row['of_copy_bandwidth']:.0f}%",
        ]
        for row in found["operations"]
    ]
    rows += [[f"DUST layer, {row['dtype']}", row["way"], f"{row['ms']:.3f}", ""] for row in found["layer"]]
    rows += [
        [f"model, {row['size']}, {row['dtype']}", "frames per second", f"{row['fps']:.1f}", ""]
        for row in found["model"]
        if math.isfinite(row["fps"])
    ]
    return markdown_table(["", "", "ms", "of copy bandwidth"], rows)
