"""Models by name, and their files: a checkpoint holds the model's name, shape, weights and card."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from vdenoise.files import whole
from vdenoise.models.dust import DUST
from vdenoise.models.ut import UT
from vdenoise.models.vit import ViT

MODELS: dict[str, Any] = {"dust": DUST, "ut": UT, "vit": ViT}


class Denoiser(Protocol):
    """What every model offers; the constraint, the app's descent plot and early exit read nothing else."""

    config: Any
    card: dict[str, Any]

    def iterates(self, noisy: Tensor, sigma: float | Tensor) -> list[Tensor]:
        """The estimate after every layer: L tensors (B, T, C, H, W)."""
        ...

    def __call__(self, noisy: Tensor, sigma: float | Tensor) -> Tensor:
        """The last of them."""
        ...


def build(name: str, **config: Any) -> Any:
    """A fresh model by name; keyword arguments are fields of its ``Config``.

    Raises:
        ValueError: for a name that is not in ``MODELS`` or a field that the model does not have.
    """
    if name not in MODELS:
        raise ValueError(f"model must be one of {', '.join(MODELS)}, got {name!r}")
    cls = MODELS[name]
    unknown = set(config) - set(cls.Config.__dataclass_fields__)
    if unknown:
        fields = ", ".join(cls.Config.__dataclass_fields__)
        raise ValueError(
            f"model {name!r} has no option {', '.join(sorted(unknown))}; its options are {fields}"
        )
    return cls(cls.Config(**config))


def name_of(model: torch.nn.Module) -> str:
    """The key of a model in ``MODELS``."""
    return next(name for name, cls in MODELS.items() if type(model) is cls)


def first_layers(model: Any, layers: int) -> Any:
    """The same model, left after its first layers; it shares the weights and costs nothing.

    Args:
        model: an instance of a class in ``MODELS``, or of a subclass.
        layers: how many to run, 1 … L.

    Raises:
        ValueError: for another number.
    """
    most = model.config.layers
    if not 1 <= layers <= most:
        raise ValueError(f"layers must lie in 1–{most} for this model, got {layers}")
    short = copy.copy(model)
    short._modules = dict(model._modules)  # else the line below would cut the original
    short.steps = model.steps[:layers]  # tied weights are a single step, which stays
    short.config = replace(model.config, layers=layers)
    return short


def save(model: torch.nn.Module, path: str | Path, card: Mapping[str, Any]) -> None:
    """Write a model and its card to one file, whole or not at all.

    Args:
        model: an instance of a class in ``MODELS``.
        path: where to; the folder must exist.
        card: plain values only: data, command, minutes, σ_x, measured numbers.
    """
    content = {
        "model": name_of(model),
        "config": asdict(cast(Any, model).config),
        "state": {k: v.detach().cpu() for k, v in model.state_dict().items()},
        "card": dict(card),
    }
    with whole(path) as temporary:
        torch.save(content, temporary)


def checkpoint_folders() -> list[Path]:
    """Where shipped checkpoints lie: inside an installed package, or at the top of a clone."""
    package = Path(__file__).resolve().parent.parent
    return [package / "checkpoints", package.parent / "checkpoints"]


def shipped() -> dict[str, Path]:
    """The shipped checkpoints by name."""
    found = (path for folder in checkpoint_folders() for path in sorted(folder.glob("*.pt")))
    by_name: dict[str, Path] = {}
    for path in found:
        by_name.setdefault(path.stem, path)
    return by_name


def load(name_or_path: str | Path, device: str | torch.device = "cpu") -> Any:
    """A trained model, ready to run, with its card as ``model.card``.

    Args:
        name_or_path: the name of a shipped checkpoint ("dust") or the path of a checkpoint file.
        device: where to.

    Raises:
        ValueError: if there is no such checkpoint, or the file is not one of this package's.
    """
    by_name = shipped()
    path = by_name.get(str(name_or_path), Path(name_or_path))
    if not path.is_file():
        raise ValueError(
            f"no checkpoint {str(name_or_path)!r}; give the path of a .pt file or one of: "
            f"{', '.join(by_name)}"
        )
    try:
        # weights_only: a checkpoint is data and never runs code.
        content = torch.load(path, map_location="cpu", weights_only=True)
        model = build(content["model"], **content["config"])
        model.load_state_dict(content["state"])
    except (
        RuntimeError,
        KeyError,
        TypeError,
        EOFError,
        OSError,
        ValueError,
        torch.serialization.pickle.UnpicklingError,
    ) as e:
        reason = str(e).splitlines()[0] if str(e) else type(e).__name__
        raise ValueError(
            f"{path} is not a vdenoise checkpoint ({reason}); write one with vdenoise-train"
        ) from e
    model.card = content["card"]
    return model.to(device).eval().requires_grad_(False)
