"""Windows, crops, lanes, moved stills: what the streams promise."""

import pickle
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vdenoise.datasets.augment import KorniaVideo
from vdenoise.datasets.lanes import LaneStream, Mixture, generator, loader
from vdenoise.datasets.motion import MotionPlan, MovedStills
from vdenoise.datasets.sampling import (
    BOUNDARIES,
    ClipStream,
    CropPlan,
    sequential_windows,
    take_crop,
    windows_of,
)
from vdenoise.datasets.sources import FramesReader, Source


class Held(Source):
    """A source whose frames are made from its name: frame i is a ramp plus 5 i."""

    def open(self):
        count, height, width = (int(x) for x in self.name.split("x"))
        rows, columns = np.mgrid[:height, :width]
        frames = np.stack([rows * 7 + columns * 3 + 5 * i for i in range(count)]).astype(np.uint8)
        return FramesReader(frames[..., None], self.path)


def held(*names: str) -> list[Source]:
    return [Held(name, Path(name)) for name in names]


def stream(**settings) -> ClipStream:
    settings = {"frames": 3, "plan": CropPlan(8, downscale=1.5), "seed": 1, "buffer": 16, **settings}
    return ClipStream(settings.pop("sources", held("9x20x24", "5x16x16", "12x30x20")), **settings)


def digest(samples) -> list[bytes]:
    return [s.numpy().tobytes() for s in samples]


@given(st.integers(0, 30), st.integers(1, 9), st.integers(1, 7), st.sampled_from(sorted(BOUNDARIES)))
def test_windows_have_their_length_and_stay_inside(count, frames, stride, boundary):
    windows = windows_of(count, frames, stride, boundary)
    assert all(len(w) == frames and min(w) >= 0 and max(w) < count for w in windows)
    assert all(abs(a - b) <= 1 for w in windows for a, b in pairwise(w))
    if boundary in ("repeat", "reflect"):
        assert [w[0] for w in windows] == list(range(0, count, stride))
    if boundary == "shift" and count >= frames and stride <= frames:
        assert {i for w in windows for i in w} == set(range(count))


def test_every_boundary_policy_at_the_end_of_a_video():
    assert windows_of(6, 4, 3, "drop") == [(0, 1, 2, 3)]
    assert windows_of(6, 4, 3, "shift") == [(0, 1, 2, 3), (2, 3, 4, 5)]
    assert windows_of(6, 4, 3, "repeat") == [(0, 1, 2, 3), (3, 4, 5, 5)]
    assert windows_of(6, 4, 3, "reflect") == [(0, 1, 2, 3), (3, 4, 5, 4)]
    assert windows_of(2, 5, 1, "reflect") == [(0, 1, 0, 1, 0), (1, 0, 1, 0, 1)]
    assert windows_of(1, 3, 1, "reflect") == [(0, 0, 0)]


def test_unknown_boundary_lists_the_known():
    with pytest.raises(ValueError, match="boundary='loop': expected one of drop, shift, repeat, reflect"):
        stream(boundary="loop")


@given(
    st.integers(1, 25), st.integers(1, 8), st.integers(1, 5), st.sampled_from(sorted(BOUNDARIES)), st.data()
)
@settings(deadline=None)
def test_one_forward_read_gives_the_windows_of_random_access(count, frames, stride, boundary, data):
    windows = windows_of(count, frames, stride, boundary)
    windows = [w for w in windows if data.draw(st.booleans())]
    numbered = [np.array(i) for i in range(count)]
    got = [tuple(int(f) for f in w) for w in sequential_windows(iter(numbered), windows)]
    assert got == windows


def test_a_forward_read_holds_no_more_than_the_window():
    alive: list[int] = []

    class Frame(np.ndarray):
        def __del__(self):
            alive.remove(id(self))

    def frames():
        for _ in range(200):
            frame = np.zeros(1).view(Frame)
            alive.append(id(frame))
            yield frame
            del frame
            assert len(alive) <= 7

    assert sum(1 for _ in sequential_windows(frames(), windows_of(200, 5, 2))) == 99


def test_a_crop_is_the_same_region_of_every_frame():
    window = list(held("6x20x24")[0].open().frames)
    for key in range(40):
        crop = take_crop(window, CropPlan(8, flips=False), generator(key))
        assert crop.shape == (6, 1, 8, 8)
        assert crop.dtype == torch.uint8
        steps = crop[1:].int() - crop[:-1].int()
        assert (steps.remainder(256) == 5).all()  # frames differ by 5 everywhere: no frame was cut elsewhere


def test_flips_keep_the_frames_of_a_window_together_and_reach_all_sixteen():
    window = list(held("3x9x9")[0].open().frames)
    plan = CropPlan(9)
    whole = torch.from_numpy(np.stack(window)).permute(0, 3, 1, 2)
    expected = set()
    for back in (whole, whole.flip(0)):
        for transposed in (back, back.mT):
            for mirrored in (transposed, transposed.flip(-1)):
                expected |= {mirrored.numpy().tobytes(), mirrored.flip(-2).numpy().tobytes()}
    assert len(expected) == 16
    assert {
        s.numpy().tobytes() for s in (take_crop(window, plan, generator(k)) for k in range(300))
    } == expected


def test_downscaling_averages_areas():
    checkers = (np.indices((64, 64)).sum(0) % 2 * 200).astype(np.uint8)[..., None]
    plan = CropPlan(32, downscale=2, native=0, flat=0)
    seen = [take_crop([checkers], plan, generator(k)).float() for k in range(60)]
    assert max(c.std() for c in seen) > 80  # factor near 1
    assert min(c.std() for c in seen) < 15  # factor near 2: black and white average out


def test_a_flat_crop_is_drawn_again():
    frame = np.zeros((40, 40, 1), np.uint8)
    frame[:, 20:] = np.random.default_rng(0).integers(0, 255, (40, 20, 1))
    flat = [
        sum(int(take_crop([frame], CropPlan(8, flat=f), generator(k)).max() == 0) for k in range(300))
        for f in (0, 2)
    ]
    assert flat[0] > 90
    assert flat[1] < flat[0] / 2


def test_a_crop_larger_than_the_frame_is_refused():
    with pytest.raises(ValueError, match="crop=32: expected at most 16 for frames of 16×16"):
        next(iter(stream(plan=CropPlan(32), sources=held("5x16x16"))))


def test_the_same_seed_gives_the_same_bytes_and_another_does_not():
    first = digest(islice(stream(), 60))
    assert digest(islice(stream(), 60)) == first
    assert digest(islice(stream(seed=2), 60)) != first
    later = stream()
    later.set_epoch(1)
    assert digest(islice(later, 60)) != first
    later.set_epoch(0)
    assert digest(islice(later, 60)) == first


@pytest.mark.parametrize("cache_mb", [0, 0.006, 10])
def test_the_cache_changes_no_sample(cache_mb):
    cached = stream(cache_mb=cache_mb)
    assert digest(islice(cached, 200)) == digest(islice(stream(), 200))
    assert sum(f.nbytes for f in cached._cache.frames.values()) <= cache_mb * 1e6
    assert len(cached._cache.frames) == {0: 0, 0.006: 2, 10: 3}[cache_mb]


def simulated(made: LaneStream, workers: int, batch: int, batches: int, monkeypatch) -> list[bytes]:
    """What a DataLoader gives with this many workers, without the processes: batch k from worker k mod n."""
    made.block = batch
    iterators = []
    for worker in range(workers):
        info = type("Info", (), {"id": worker, "num_workers": workers})
        monkeypatch.setattr("vdenoise.datasets.lanes.get_worker_info", lambda info=info: info)
        iterator = iter(made)
        iterators.append((iterator, [next(iterator)]))  # the generator asks who it is at its first sample
    out: list[bytes] = []
    for k in range(batches):
        iterator, pending = iterators[k % workers]
        samples = pending + list(islice(iterator, batch - len(pending)))
        pending.clear()
        out += digest(samples)
    return out


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_batches_do_not_depend_on_the_number_of_workers(workers, monkeypatch):
    for shard in ({}, {"rank": 1, "world": 2}):
        alone = simulated(stream(**shard), 1, 3, 40, monkeypatch)
        assert simulated(stream(**shard), workers, 3, 40, monkeypatch) == alone


def test_workers_that_do_not_divide_the_lanes_are_refused():
    with pytest.raises(ValueError, match="workers=3: expected 0 or a divisor of lanes=8"):
        loader(stream(), 4, workers=3)


def test_ranks_share_one_pass_without_overlap():
    whole = Counter(digest(stream(passes=4)))
    parts = [Counter(digest(stream(passes=4, rank=r, world=3))) for r in range(3)]
    assert sum(parts, Counter()) == whole
    assert all(parts)


def test_a_training_of_several_processes_is_sharded_by_itself(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 2)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)
    assert digest(stream(passes=2)) == digest(stream(passes=2, rank=2, world=3))
    with pytest.raises(ValueError, match="rank=3: expected 0 ≤ rank < world=3"):
        stream(rank=3)


def test_a_pass_sees_every_video_once():
    one = stream(passes=1, crops=1, plan=CropPlan(8, flips=False))
    assert sum(1 for _ in one) == 7 + 3 + 10


def test_videos_shorter_than_every_window_are_an_error_and_the_remedy_works():
    with pytest.raises(ValueError, match="frames=20: no window fits any of 3 videos"):
        next(iter(stream(frames=20)))
    assert next(iter(stream(frames=20, boundary="reflect"))).shape == (20, 1, 8, 8)


def test_a_short_video_among_others_is_passed_over():
    samples = list(islice(stream(frames=10), 30))
    assert {s.shape for s in samples} == {(10, 1, 8, 8)}


def test_a_stream_travels_without_its_frames():
    used = stream(cache_mb=10)
    before = digest(islice(used, 50))
    assert len(pickle.dumps(used)) < 3000
    assert digest(islice(pickle.loads(pickle.dumps(used)), 50)) == before


def test_mixture_keeps_its_shares_and_checks_them():
    bright = stream(sources=[Held("9x16x16", Path("a"))])
    mixed = Mixture([stream(), bright], [0.25, 0.75], seed=0)
    first, second = set(digest(islice(stream(), 400))), set(digest(islice(bright, 400)))
    drawn = digest(islice(mixed, 40))
    assert sum(d in first for d in drawn) > 3
    assert all(d in first | second for d in drawn)
    with pytest.raises(ValueError, match=r"shares=\[0.5, 0.6\]"):
        Mixture([stream(), bright], [0.5, 0.6], seed=0)


class Constant(LaneStream):
    def __init__(self, value: int):
        super().__init__(seed=0)
        self.value = value

    def lane(self, index: int):
        while True:
            yield torch.full((1, 1, 1, 1), self.value, dtype=torch.uint8)


def test_mixture_draws_by_share():
    values = [int(s) for s in islice(Mixture([Constant(0), Constant(1)], [0.6, 0.4], seed=3), 4000)]
    assert abs(np.mean(values) - 0.4) < 0.03  # four standard errors


def test_kornia_augmentation_is_seeded_and_equal_on_all_frames():
    still = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16).expand(4, 3, 16, 16).contiguous()
    change = KorniaVideo(light=0.2, degrees=20)
    state = torch.random.get_rng_state()
    once, again, other = change(still, generator(5)), change(still, generator(5)), change(still, generator(6))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(once, again)
    assert not torch.equal(once, other)
    assert not torch.equal(once, still)
    assert all(torch.equal(once[0], f) for f in once[1:])
    augmented = stream(augment=change)
    assert digest(islice(augmented, 10)) == digest(islice(stream(augment=change), 10))
    assert digest(islice(augmented, 10)) != digest(islice(stream(), 10))


def test_kornia_changes_every_frame_of_a_moving_clip_alike():
    """Frames in another order give the same frames in that order: no frame has a draw of its own."""
    clip = torch.randint(0, 256, (5, 3, 24, 24), generator=torch.Generator().manual_seed(0)).byte()
    order = torch.tensor([3, 0, 4, 1, 2])
    for key in range(8):
        change = KorniaVideo(light=0.2, degrees=20)
        assert torch.equal(change(clip[order], generator(key)), change(clip, generator(key))[order])


def test_kornia_changes_the_share_it_says():
    clip = torch.randint(0, 256, (2, 1, 16, 16), generator=torch.Generator().manual_seed(0)).byte()
    change = KorniaVideo(share=0.25)
    changed = sum(not torch.equal(change(clip, generator(key)), clip) for key in range(400))
    assert abs(changed / 400 - 0.25) < 0.09  # four standard errors
    with pytest.raises(ValueError, match="share=2: expected a share in"):
        KorniaVideo(share=2)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photographs")
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        rough = rng.integers(0, 256, (24, 32, 3), np.uint8)
        cv2.imwrite(str(folder / f"{name}.png"), cv2.resize(rough, (192, 144), interpolation=cv2.INTER_CUBIC))
    return sorted(folder.iterdir())


def test_frozen_stills_are_frozen_and_moving_ones_move(photographs):
    for share, frozen in ((1.0, True), (0.0, False)):
        plan = MotionPlan(frozen=share)
        made = MovedStills(photographs, frames=5, crop=32, gray=True, seed=0, plan=plan)
        for sample in islice(made, 30):
            assert sample.shape == (5, 1, 32, 32)
            assert bool((sample == sample[:1]).all()) == frozen


def test_stills_are_colour_or_luma_and_seeded(photographs):
    colour = MovedStills(photographs, frames=4, crop=24, gray=False, seed=0)
    assert next(iter(colour)).shape == (4, 3, 24, 24)
    assert digest(islice(colour, 30)) == digest(islice(pickle.loads(pickle.dumps(colour)), 30))


def test_stills_move_as_a_camera_does_at_three_speeds(tmp_path):
    # red is the column and green the row of the photograph, so that every pixel of a sample says where it was
    column, row = np.meshgrid(np.arange(250), np.arange(250))
    cv2.imwrite(str(tmp_path / "map.png"), np.dstack([0 * row, row, column]).astype(np.uint8))
    plan = MotionPlan(frozen=0, foreground=0, drift=0, shake=0, turn=0, zoom=0, shrink=1)
    made = MovedStills([tmp_path / "map.png"], frames=4, crop=32, gray=False, seed=0, plan=plan)
    speeds = []
    for k in range(150):
        clip = made.sample(generator(k)).astype(np.float64)[..., :2]
        steps = np.diff(clip, axis=0)
        middle = steps[:, 8:-8, 8:-8]
        assert np.ptp(middle, axis=(1, 2)).max() <= 2  # every pixel moved alike, up to rounding
        speeds.append(np.hypot(*middle[1].mean(axis=(0, 1))))
    shares = np.histogram(speeds, [0, 0.5, 2, 6.5])[0] / 150
    assert shares.sum() == 1
    assert np.abs(shares - 1 / 3).max() < 0.12  # three standard errors


def test_a_photograph_that_cannot_serve_is_named(photographs, tmp_path):
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no image")
    with pytest.raises(
        ValueError, match=r"bad\.png: got nothing that decodes, expected an image of at least 32×32"
    ):
        next(iter(MovedStills([bad], frames=2, crop=32, gray=True, seed=0)))
    with pytest.raises(ValueError, match="got 192×144, expected an image of at least 160×160"):
        next(iter(MovedStills(photographs, frames=2, crop=160, gray=True, seed=0)))
