"""A model and a stream of noisy frames make a stream of clean ones, in bounded memory.

Time is cut into windows that overlap and are cross-faded, frames into tiles with a halo as wide as the
network sees, so that neither leaves a seam. This is the one place where the user's scale (σ and frames on
0–255) meets the inner one ([0, 1]).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from vdenoise.descent.certificate import stein
from vdenoise.descent.observed import Noise
from vdenoise.follow import follow as follow_motion
from vdenoise.models import load
from vdenoise.models.registry import first_layers
from vdenoise.noise import estimate_sigma
from vdenoise.tiling import WINDOW, by_tiles, by_windows, halo

LOOK = 192  # side of the part of the first window from which "auto" layers are told


@dataclass(frozen=True)
class Preset:
    """A network and how it is used; in the order of time per frame.

    Args:
        model: a shipped checkpoint's name.
        follow: denoise once more along the motion.
        about: what to expect of it.
    """

    model: str
    follow: bool
    about: str


PRESETS = {
    "fast": Preset("dust_fast", False, "a small network in one pass"),
    "balanced": Preset("dust", False, "the full network in one pass"),
    "best": Preset("dust", True, "the full network in two passes, the second along the motion"),
}

Frames = TypeVar("Frames", np.ndarray, Tensor)


def denoise(
    frames: Frames,
    model: Any = None,
    sigma: float | str = "auto",
    device: str = "auto",
    *,
    preset: str = "balanced",
    follow: bool | None = None,
    window: int = WINDOW,
    layers: int | str | None = None,
) -> Frames:
    """Clean a clip that is in memory.

    Args:
        frames: numpy (T, H, W) or (T, H, W, C), or torch (T, C, H, W); C is 1 (grey) or 3 (RGB). Integers
            span their type's range (uint8: 0–255), floats 0–1.
        model: a shipped checkpoint's name, a checkpoint's path, or a model; None is the preset's.
        sigma: deviation of the noise on the 0–255 scale, or "auto" to estimate it from the frames.
        device: "auto" (CUDA where there is one), or a torch device.
        preset: a key of ``PRESETS``, "fast", "balanced" or "best"; what ``model`` and ``follow`` leave open.
        follow: denoise once more along the motion (``vdenoise/follow.py``); None is the preset's.
        window: frames the network sees at once.
        layers: leave the network after this many layers, or "auto": where the error is least by Stein's
            estimate on the middle of the first window (0 keeps the input). None runs them all.

    Returns:
        The clean clip: the same type, shape and dtype.

    Raises:
        ValueError: for frames of another shape, dtype or range, a model that can't be found, or an unknown
            preset.

    Example:
        >>> import numpy as np, vdenoise
        >>> noisy = np.random.default_rng(0).integers(0, 255, (4, 32, 32), dtype=np.uint8)
        >>> vdenoise.denoise(noisy, sigma=25).shape
        (4, 32, 32)
    """
    tensor, restore_type = to_tensor(frames)
    model, follow = chosen(preset, model, follow)
    net, device = resolve(model, device)
    cleaner = _Cleaner(net, sigma, device, tensor if sigma == "auto" else None, layers=layers, follow=follow)
    clean = torch.cat(list(by_windows(_singly(tensor), cleaner, window)))
    return cast(Frames, restore_type(clean))


def denoise_stream(
    frames: Iterable[np.ndarray],
    model: Any = None,
    sigma: float | str = "auto",
    device: str = "auto",
    *,
    preset: str = "balanced",
    follow: bool | None = None,
    window: int = WINDOW,
    layers: int | str | None = None,
) -> Iterator[np.ndarray]:
    """Clean frames as they come; memory holds one window, whatever the length.

    Args:
        frames: uint8 or uint16 arrays (H, W, C), C = 1 or 3, all alike.
        model: as in :func:`denoise`.
        sigma: as in :func:`denoise`; "auto" is the median of the estimates of the windows so far.
        device: as in :func:`denoise`.
        preset: as in :func:`denoise`.
        follow: as in :func:`denoise`.
        window: frames the network sees at once; output lags input by at most this many.
        layers: as in :func:`denoise`.

    Yields:
        One clean frame for every frame, of the same shape and dtype, in order.
    """
    model, follow = chosen(preset, model, follow)
    net, device = resolve(model, device)
    cleaner = _Cleaner(net, sigma, device, layers=layers, follow=follow)
    dtypes: deque[np.dtype] = deque()

    def tensors() -> Iterator[Tensor]:
        for frame in frames:
            if frame.ndim != 3:
                raise ValueError(
                    f"a frame must have shape (H, W, C), got {frame.shape}; add the axis by frame[..., None]"
                )
            dtypes.append(frame.dtype)
            yield to_tensor(frame[None])[0]

    for clean in by_windows(tensors(), cleaner, window):
        yield _quantise(clean[0].permute(1, 2, 0).numpy(), dtypes.popleft())


def layer_estimates(frames: np.ndarray, model: Any, sigma: float, device: str = "auto") -> list[np.ndarray]:
    """The estimate after every layer, for pictures of the descent.

    Args:
        frames: one short clip, numpy (T, H, W, C), cleaned as one window.
        model: as in :func:`denoise`.
        sigma: on the 0–255 scale.
        device: as in :func:`denoise`.

    Returns:
        L arrays of ``frames``' shape and float32, on the 0–255 scale, not rounded.
    """
    tensor, _ = to_tensor(frames)
    net, device = resolve(model, device)
    with torch.inference_mode():
        outputs = net.iterates(tensor[None].to(device), sigma / 255)
    return [(x[0].clamp(0, 1) * 255).permute(0, 2, 3, 1).cpu().numpy() for x in outputs]


def chosen(preset: str, model: Any = None, follow: bool | None = None) -> tuple[Any, bool]:
    """The model and whether motion is followed: the preset's, where they are None.

    Raises:
        ValueError: for an unknown preset.
    """
    if preset not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {preset!r}")
    given = PRESETS[preset]
    return given.model if model is None else model, given.follow if follow is None else follow


def resolve(model: Any, device: str) -> tuple[Any, str]:
    """The model itself, on the device that was asked for.

    Raises:
        ValueError: for a device that this machine has not.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"device {device!r} can't be used here ({str(error).splitlines()[0]}); try 'cpu'"
        ) from error
    net = load(model, device) if not isinstance(model, torch.nn.Module) else model.to(device).eval()
    return net, device


class _Cleaner:
    """One window in, one clean window out; keeps the noise level that it goes by."""

    def __init__(
        self,
        net: Any,
        sigma: float | str,
        device: str,
        clip: Tensor | None = None,
        *,
        layers: int | str | None = None,
        follow: bool = False,
    ) -> None:
        if isinstance(sigma, str):
            if sigma != "auto":
                raise ValueError(f'sigma must be a number on the 0–255 scale or "auto", got {sigma!r}')
            self.fixed = None if clip is None else estimate_sigma(clip)
        else:
            if not 0 <= sigma <= 255:
                raise ValueError(f"sigma must lie in 0–255, got {sigma}")
            self.fixed = sigma / 255
        if isinstance(layers, str) and layers != "auto":
            raise ValueError(f'layers must be a number, "auto" or None, got {layers!r}')
        if layers is not None and not isinstance(layers, str):
            net = first_layers(net, layers)
        self.layers = None if layers == "auto" else net.config.layers
        self.follow = follow
        self.net, self.device, self.estimates = net, device, list[float]()

    def sigma(self, window: Tensor) -> float:
        if self.fixed is not None:
            return self.fixed
        self.estimates.append(estimate_sigma(window))
        return median(self.estimates)

    @torch.inference_mode()
    def __call__(self, window: Tensor) -> Tensor:
        """(T, C, H, W) to the same, on the CPU."""
        sigma = self.sigma(window)
        if self.layers is None:
            self.layers = least_risk(self.net, window, sigma, self.device)
            self.net = first_layers(self.net, max(1, self.layers))
        if self.layers == 0:
            return window
        margin = halo(self.net)

        def network(frames: Tensor) -> Tensor:
            return by_tiles(lambda x: self.net(x[None].to(self.device), sigma)[0].cpu(), frames, margin)

        clean = network(window)
        return follow_motion(network, window, clean, margin[0]) if self.follow else clean


def least_risk(net: Any, frames: Tensor, sigma: float, device: str = "cpu") -> int:
    """The layer of least error by Stein's estimate, from the middle of frames (T, C, H, W); 0 is the input.

    Args:
        net: the network.
        frames: noisy, in [0, 1] plus noise.
        sigma: deviation of the noise, in the same units.
        device: of the network.
    """
    height, width = frames.shape[-2:]
    top, left = max(0, height - LOOK) // 2, max(0, width - LOOK) // 2
    part = frames[..., top : top + LOOK, left : left + LOOK].to(device)
    noise = Noise(sigma, clipped=bool(frames.amin() >= 0 and frames.amax() <= 1))
    generator = torch.Generator().manual_seed(0)
    found = stein(lambda y: [x[0] for x in net.iterates(y[None], sigma)], part, noise, generator, probes=1)
    return int(found.risk.argmin())


def _singly(tensor: Tensor) -> Iterator[Tensor]:
    yield from tensor.split(1)


def to_tensor(frames: Any) -> tuple[Tensor, Callable[[Tensor], Any]]:
    """(T, C, H, W) float32 in [0, 1], and the way back to what the caller gave."""
    if isinstance(frames, np.ndarray):
        if frames.ndim not in (3, 4) or (frames.ndim == 4 and frames.shape[-1] not in (1, 3)):
            raise ValueError(
                f"frames must have shape (T, H, W), (T, H, W, 1) or (T, H, W, 3), got {frames.shape}"
            )
        dtype, gray = frames.dtype, frames.ndim == 3
        array = frames[..., None] if gray else frames
        peak = _peak(dtype)
        tensor = torch.from_numpy(np.ascontiguousarray(np.moveaxis(array, -1, 1)).astype(np.float32)) / peak
        _check(tensor, frames.shape)

        def back(clean: Tensor) -> np.ndarray:
            array = _quantise(np.moveaxis(clean.numpy(), 1, -1), dtype)
            return array[..., 0] if gray else array

        return tensor, back
    if isinstance(frames, Tensor):
        if frames.ndim != 4 or frames.shape[1] not in (1, 3):
            raise ValueError(
                f"frames must have shape (T, C, H, W) with C = 1 or 3, got {tuple(frames.shape)}"
            )
        kind, where = frames.dtype, frames.device
        dtype = torch.empty(0, dtype=kind).numpy().dtype if kind != torch.bfloat16 else np.dtype(np.float32)
        tensor = frames.detach().cpu().float() / _peak(dtype)
        _check(tensor, tuple(frames.shape))
        return tensor, lambda clean: torch.from_numpy(_quantise(clean.numpy(), dtype)).to(where, kind)
    raise ValueError(f"frames must be a numpy array or a torch tensor, got {type(frames).__name__}")


def _check(tensor: Tensor, shape: tuple[int, ...]) -> None:
    if not tensor.numel():
        raise ValueError(f"frames are empty, shape {tuple(shape)}; give at least one frame")
    low, high = tensor.aminmax()
    if not (low >= -2 and high <= 3):  # also catches NaN; noise may well leave [0, 1]
        raise ValueError(
            f"float frames must lie in 0–1 (plus noise) and be finite, got {low:.4g} to {high:.4g};"
            " divide by 255, or give uint8"
        )


def _peak(dtype: np.dtype) -> float:
    if np.issubdtype(dtype, np.floating):
        return 1.0
    if dtype in (np.uint8, np.uint16):
        return float(np.iinfo(dtype).max)
    raise ValueError(f"frames must be uint8, uint16 or float, got {dtype}")


def _quantise(frames: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """[0, 1] to the caller's dtype: integers are rounded and clipped, floats stay as they are."""
    if np.issubdtype(dtype, np.floating):
        return frames.astype(dtype)
    peak = np.iinfo(dtype).max
    return np.clip(np.rint(frames * peak), 0, peak).astype(dtype)
