"""What the app does, without a page: settings, previews, jobs by session, and its own folder kept small."""

from __future__ import annotations

import functools
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from vdenoise.models import load
from vdenoise.studio.compare import Cell, rmse_over_gamma
from vdenoise.studio.filejob import Outcome, Progress, clean_file, watch
from vdenoise.studio.preview import Facts, Limits, Noise, Preview, look, preview

AS_IT_IS, ADD_NOISE = "Clean it as it is", "Add noise first"
AUTO, BY_HAND = "Automatic", "By hand"
SIGMA, GAMMA = "σ (0–255)", "γ"
MAX_AGE = 6 * 3600.0  # seconds that a file is kept after its last use
MAX_BYTES = 20e9  # of all files together


class Settings(NamedTuple):
    """The page's controls, in their order."""

    video: str | None
    model: str
    mode: str = AS_IT_IS
    unit: str = SIGMA
    sigma: float = 25.0
    gamma: float = 0.25
    strength: str = AUTO
    by_hand: float = 25.0
    kind: str = "gaussian"

    @property
    def told(self) -> float | str:
        """The σ that the network is told."""
        return "auto" if self.strength == AUTO else self.by_hand

    @property
    def path(self) -> str:
        """The video.

        Raises:
            ValueError: if there is none.
        """
        if self.video is None:
            raise ValueError("there is no video yet; drop one in, or use the example clip")
        return self.video


@dataclass
class Studio:
    """The app's work for many sessions.

    Args:
        models: checkpoints by the name that is shown.
        limits: what is taken in.
        folder: where results are written, and nothing else.
    """

    models: dict[str, Path]
    limits: Limits
    folder: Path
    stops: dict[str, threading.Event] = field(default_factory=dict)  # of running jobs, by session
    busy: set[Path] = field(default_factory=set)  # files and folders that running jobs need

    def __post_init__(self) -> None:
        self.load = functools.lru_cache(maxsize=8)(self._load)

    def _load(self, name: str) -> Any:
        if name not in self.models:
            raise ValueError(f"model must be one of {', '.join(self.models) or 'none'}, got {name!r}")
        return load(self.models[name])

    def noise(self, settings: Settings) -> Noise | None:
        """What is put on the clip first."""
        if settings.mode != ADD_NOISE:
            return None
        if settings.unit == SIGMA:
            return Noise(settings.sigma, settings.kind)
        return Noise(settings.gamma * sigma_x(self.load(settings.model)), settings.kind)

    def look(self, video: str) -> Facts:
        """What a file is."""
        sweep(self.folder, {*self.busy, Path(video)})
        return look(video, self.limits)

    def preview(self, settings: Settings, at: float = 0.0) -> Preview:
        """One second, cleaned."""
        net = self.load(settings.model)
        noise = self.noise(settings)
        return preview(settings.path, net, sigma=settings.told, noise=noise, at=at, limits=self.limits)

    def run(self, settings: Settings, session: str) -> Iterator[Progress | Outcome]:
        """The whole file. ``stop(session)``, or leaving the iteration, ends it."""
        source, net, noise = Path(settings.path), self.load(settings.model), self.noise(settings)
        with self._job(session, source) as (stop, folder):
            yield from watch(
                lambda tick: clean_file(
                    source,
                    folder,
                    net,
                    sigma=settings.told,
                    noise=noise,
                    limits=self.limits,
                    stop=stop,
                    tick=tick,
                ),
                stop,
            )

    def measure(
        self,
        clip: str | None,
        models: Sequence[str],
        gammas: Sequence[float],
        session: str,
        kind: str = "gaussian",
    ) -> Iterator[tuple[list[Cell], Path]]:
        """RMSE over γ: after every model's measurement all so far, and the job's folder."""
        if clip is None:
            raise ValueError("there is no video yet; drop one in, or use the example clip")
        if not models or not gammas:
            raise ValueError("nothing to measure; choose at least one model and one noise level")
        share = sigma_x(self.load(models[0]))
        nets = {name: functools.partial(self.load, name) for name in models}
        cells: list[Cell] = []
        with self._job(session, Path(clip)) as (stop, folder):
            for cell in rmse_over_gamma(clip, nets, gammas, sigma_x=share, kind=kind, limits=self.limits):
                cells.append(cell)
                yield cells, folder
                if stop.is_set():
                    return

    @contextmanager
    def _job(self, session: str, source: Path) -> Iterator[tuple[threading.Event, Path]]:
        sweep(self.folder, self.busy)
        folder = Path(tempfile.mkdtemp(dir=self.folder, prefix="job-"))
        stop = self.stops[session] = threading.Event()
        self.busy |= {source, folder}
        try:
            yield stop, folder
        finally:
            self.stops.pop(session, None)
            self.busy -= {source, folder}

    def stop(self, session: str) -> None:
        """Ask the job of one session to end; others go on."""
        if event := self.stops.get(session):
            event.set()


def sigma_x(model: Any) -> float:
    """σₓ of a model's training pixels on the 0–255 scale, which γ is a share of.

    Raises:
        ValueError: if its card does not say.
    """
    value = model.card.get("sigma_x")
    if value is None:
        raise ValueError("this model's card has no sigma_x; give the level as σ")
    return float(value)


def sweep(
    folder: Path, keep: set[Path] | None = None, max_age: float = MAX_AGE, max_bytes: float = MAX_BYTES
) -> list[Path]:
    """Delete what is old, and the oldest of what is too much, inside one folder and without following links.

    Args:
        folder: the app's own.
        keep: files, and folders with all that is in them, that stay.
        max_age: seconds since a file was last written.
        max_bytes: of all files together.

    Returns:
        The files that were deleted.
    """
    found = []
    for top, folders, names in os.walk(folder, topdown=True, followlinks=False):
        folders[:] = [name for name in folders if Path(top, name) not in (keep or ())]
        for name in names:
            path = Path(top, name)
            if path not in (keep or ()):
                status = path.lstat()
                found.append((status.st_mtime, status.st_size, path))
    found.sort()
    total, gone, now = sum(size for _, size, _ in found), [], time.time()
    for written, size, path in found:
        if now - written > max_age or total > max_bytes:
            path.unlink(missing_ok=True)
            gone.append(path)
            total -= size
            if path.parent != folder and not any(path.parent.iterdir()):
                path.parent.rmdir()
    return gone
