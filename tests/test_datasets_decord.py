"""Samples through Decord: the pixels of an independent decode, by any number of workers, without a leak."""

import importlib.util
import multiprocessing
from itertools import islice
from pathlib import Path

import av
import numpy as np
import pytest
import torch

from vdenoise.datasets import loader
from vdenoise.datasets.augment import KorniaVideo
from vdenoise.datasets.folder import Folder
from vdenoise.datasets.sampling import ClipStream, CropPlan
from vdenoise.datasets.sources import Source
from vdenoise.video import open_video

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("decord") is None, reason="Decord has no wheel here"),
    pytest.mark.timeout(120),  # a fork of a process that has used Decord hangs
]
SIDE, COUNT = 112, 26


def coded(path: Path, seed: int = 0) -> Path:
    """H.264 with B-frames and few key frames; a texture that moves by two pixels a frame."""
    picture = np.random.default_rng(seed).integers(0, 256, (SIDE // 8, 26, 3), np.uint8)
    picture = picture.repeat(8, axis=0).repeat(8, axis=1)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25, options={"bf": "2", "g": "12"})
        stream.width, stream.height, stream.pix_fmt = SIDE, SIDE, "yuv420p"
        for t in range(COUNT):
            frame = np.ascontiguousarray(picture[:, 2 * t : 2 * t + SIDE])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    with open_video(path, exact=False) as reader:
        assert reader.backend == "decord", reader.reason
    return path


def decoded(path: Path) -> torch.Tensor:
    """(T, C, H, W), in order, by PyAV alone."""
    with av.open(str(path)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    return torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2)


@pytest.mark.parametrize("cache_mb", [0, 10])
def test_a_sample_has_the_pixels_of_an_independent_decode(tmp_path, cache_mb):
    path = coded(tmp_path / "a.mp4")
    truth = decoded(path)
    assert len(truth) == COUNT
    stream = ClipStream(
        [Source("a", path)],
        frames=5,
        plan=CropPlan(SIDE, flips=False, flat=0),
        seed=0,
        stride=3,
        windows=4,
        crops=1,
        passes=6,
        cache_mb=cache_mb,
    )
    starts = set()
    for sample in stream:
        start = next(i for i in range(COUNT) if torch.equal(sample[0], truth[i]))
        assert torch.equal(sample, truth[start : start + 5])
        starts.add(start)
    assert len(starts) > 8


def test_random_access_has_the_pixels_of_sequential_access(tmp_path):
    path = coded(tmp_path / "a.mp4")
    truth = decoded(path).permute(0, 2, 3, 1).numpy()
    order = np.random.default_rng(1).permutation(COUNT)
    with Source("a", path).open() as reader:
        assert all(np.array_equal(reader[int(i)], truth[i]) for i in order)
        assert all(np.array_equal(a, b) for a, b in zip(reader, truth, strict=True))
    assert np.array_equal(Source("a", path).read(7, 12), truth[7:12])


def test_two_workers_give_the_batches_of_one_and_of_none(tmp_path):
    """The parent has used Decord before: its fork would hang."""
    for i in range(3):
        coded(tmp_path / f"{i}.mp4", seed=i)

    def batches(workers: int) -> list[torch.Tensor]:
        settings = {"frames": 3, "crop": 32, "gray": False, "seed": 5, "buffer": 32}
        stream = Folder().training_stream(tmp_path, **settings, augment=KorniaVideo(0.5))
        source, found = loader(stream, 4, workers=workers), []
        children = set()
        for epoch in (0, 1):  # the workers live on, and hear of it
            stream.set_epoch(epoch)
            found += islice(source, 12)
            children |= {child.pid for child in multiprocessing.active_children()}
        assert len(children) == workers
        return found

    alone = batches(0)
    before = len(multiprocessing.active_children())
    assert not torch.equal(alone[0], alone[12])
    for workers in (1, 2):
        assert all(torch.equal(a, b) for a, b in zip(alone, batches(workers), strict=True))
    assert len(multiprocessing.active_children()) == before


def test_visits_leave_no_memory_behind(tmp_path):
    statm = Path("/proc/self/statm")
    if not statm.is_file():
        pytest.skip("reads the memory through /proc")
    coded(tmp_path / "a.mp4")
    coded(tmp_path / "b.mp4", seed=1)
    stream = iter(
        Folder().training_stream(tmp_path, frames=3, crop=32, gray=False, seed=5, buffer=16, windows=1)
    )

    def megabytes_after(samples: int) -> float:
        for _ in islice(stream, samples):
            pass
        return int(statm.read_text().split()[1]) * 4096 / 1e6

    early = megabytes_after(200)  # 50 visits
    # A reader that stays behind keeps its decoder, about 1 MB of frames.
    assert megabytes_after(600) - early < 15
