"""Every data set in its original and repacked layout, in real files of the real kinds made here."""

import hashlib
import json
import multiprocessing
import shutil
from itertools import islice
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from vdenoise.cli.train import main
from vdenoise.datasets import DATASETS, loader
from vdenoise.datasets.avenue import Avenue
from vdenoise.datasets.folder import Folder
from vdenoise.datasets.frames import FrameFolder, corrupt_frames, decode_image, natural_key
from vdenoise.datasets.measure import loader_speed, opencv_speed
from vdenoise.datasets.published import Published
from vdenoise.datasets.shanghaitech import ShanghaiTech
from vdenoise.datasets.ucsd import UCSD

WIDTH, HEIGHT = 80, 40


def level(index: int) -> np.ndarray:
    """A frame that says its index: textured, its mean close to 10 times the index."""
    texture = np.random.default_rng(7).integers(0, 9, (HEIGHT, WIDTH, 3))
    return (texture + 10 * index).astype(np.uint8)


def index_of(frame: np.ndarray) -> int:
    return round((float(frame.mean()) - 4) / 10)


def avi(path: Path, count: int = 6, fps: float = 25) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), fps, (WIDTH, HEIGHT))
    assert writer.isOpened()
    for i in range(count):
        writer.write(level(i))
    writer.release()


def images(folder: Path, names: list[str], gray: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for i, name in enumerate(names):
        frame = level(i)
        assert cv2.imwrite(str(folder / name), frame[..., :1] if gray else frame)


def tifs(count: int = 6) -> list[str]:
    return [f"{i:03d}.tif" for i in range(1, count + 1)]


def order_of(source) -> list[int]:
    with source.open() as reader:
        return [index_of(f) for f in reader]


def names(sources) -> list[str]:
    return [s.name for s in sources]


@pytest.fixture(autouse=True)
def _fresh_reports():
    corrupt_frames.cache_clear()


@pytest.fixture
def avenue(tmp_path):
    top = tmp_path / "Avenue Dataset"
    for i in (1, 2, 10):
        avi(top / f"training_videos/{i:02d}.avi")
    for i in (1, 2):
        avi(top / f"testing_videos/{i:02d}.avi")
    avi(top / "ground_truth_demo/testing_videos/01.avi")
    (top / "training_videos/.DS_Store").write_bytes(b"x")
    (top / "training_videos/._01.avi").write_bytes(b"x")
    (top / "training_vol").mkdir()
    return top


@pytest.fixture
def ucsd(tmp_path):
    top = tmp_path / "UCSD_Anomaly_Dataset.v1p2"
    for ped, (train, test) in {1: (3, 2), 2: (2, 2)}.items():
        camera = top / f"UCSDped{ped}"
        for i in range(1, train + 1):
            images(camera / f"Train/Train{i:03d}", tifs(), gray=True)
        for i in range(1, test + 1):
            images(camera / f"Test/Test{i:03d}", tifs(), gray=True)
        images(camera / "Test/Test001_gt", [f"{i:03d}.bmp" for i in range(1, 7)], gray=True)
        (camera / f"Test/UCSDped{ped}.m").write_text("TestVideoFile{1}.gt_frame = [60:152];")
        (camera / "Train/.DS_Store").write_bytes(b"\0\0\0\1Bud1")
        (camera / "Train/Train001/.DS_Store").write_bytes(b"\0\0\0\1Bud1")
        (camera / "Train/Train001/._001.tif").write_bytes(b"\0\5\x16\7")
    (top / "README.txt").write_text("UCSD Anomaly Detection Dataset")
    spoilt = top / "UCSDped1/Test/Test002/003.tif"
    spoilt.write_bytes(spoilt.read_bytes()[:200])
    return top


def test_avenue_is_found_from_its_folder_or_the_one_above(avenue):
    for root in (avenue, avenue.parent):
        assert names(Avenue().training_videos(root)) == ["01", "02", "10"]
        test = Avenue().test_videos(root)
        assert [t.path.parent for t in test] == [avenue / "testing_videos"] * 2  # never the painted demo
    assert order_of(test[1]) == list(range(6))
    shutil.rmtree(avenue / "testing_videos")
    with pytest.raises(ValueError, match=r"testing_videos/\*\.avi"):
        Avenue().test_videos(avenue)


def test_validation_is_held_out_of_training(avenue):
    assert names(Avenue().videos(avenue, "train")) == ["01", "02"]
    assert names(Avenue().videos(avenue, "val")) == ["10"]
    with pytest.raises(ValueError, match="split='dev': expected one of train, val, test"):
        Avenue().videos(avenue, "dev")


def test_a_copy_with_clips_missing_is_used_and_said_to_be_one(avenue, caplog):
    Avenue().training_stream(avenue, frames=3, crop=16, gray=True, seed=0)
    assert "avenue: 3 training clips under" in caplog.text
    assert "published 16" in caplog.text


@pytest.mark.parametrize("made", [Avenue(), ShanghaiTech(), UCSD(1)], ids=lambda s: s.name)
@pytest.mark.parametrize("first", [0, 1])
def test_repacked_copies_count_from_zero_or_one_with_or_without_zeros(tmp_path, made, first):
    top = tmp_path / "ped1" if made.name == "ucsd-ped1" else tmp_path
    images(top / "training/frames/01", [f"{i}.jpg" for i in range(first, first + 12)])
    images(top / "training/frames/02", [f"{i:03d}.jpg" for i in range(first, first + 12)])
    images(top / "testing/frames/01_0014", [f"{i:06d}.jpg" for i in range(first, first + 3)])
    (top / "training/frames/empty").mkdir()
    training = made.training_videos(tmp_path)
    assert [n.removeprefix("ped1-") for n in names(training)] == ["01", "02"]
    assert [order_of(t) for t in training] == [list(range(12))] * 2
    assert order_of(made.test_videos(tmp_path)[0]) == [0, 1, 2]


def test_shanghaitech_original_layout(tmp_path):
    avi(tmp_path / "training/videos/01_002.avi")
    avi(tmp_path / "training/videos/01_010.avi")
    avi(tmp_path / "training/videos/04_001.avi", fps=30)
    images(tmp_path / "testing/frames/01_0014", ["000.jpg", "001.jpg", "003.jpg"])
    images(tmp_path / "testing/frames/12_0175", ["000001.jpg", "000002.jpg"])
    (tmp_path / "testing/test_frame_mask").mkdir()
    np.save(tmp_path / "testing/test_frame_mask/01_0014.npy", np.zeros(3, np.uint8))
    made = ShanghaiTech()
    assert names(made.training_videos(tmp_path)) == ["01_002", "01_010", "04_001"]
    assert names(made.test_videos(tmp_path)) == ["01_0014", "12_0175"]
    assert order_of(made.test_videos(tmp_path)[0]) == [0, 1, 2]  # by position: no frame is called 002
    with made.training_videos(tmp_path)[2].open() as reader:
        assert reader.fps == 30


def test_ucsd_cameras_and_strays(ucsd):
    one, two, both = UCSD(1), UCSD(2), UCSD()
    assert names(one.training_videos(ucsd.parent)) == [f"ped1-Train{i:03d}" for i in (1, 2, 3)]
    assert names(two.test_videos(ucsd)) == ["ped2-Test001", "ped2-Test002"]
    assert len(both.training_videos(ucsd)) == 5
    assert names(both.videos(ucsd, "val")) == ["ped1-Train003", "ped2-Train002"]
    first = one.training_videos(ucsd)[0]
    assert order_of(first) == list(range(6))
    with first.open() as reader:
        assert (reader.fps, reader.channels, len(reader)) == (10, 1, 6)
    shutil.rmtree(ucsd / "UCSDped2/Train")
    with pytest.raises(ValueError, match=r"ucsd-ped2: looked in .* for UCSDped2/Train/Train001"):
        both.training_videos(ucsd)


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        ("cut", "f.jpg"),
        ("cut", "f.png"),
        ("cut", "f.tif"),
        ("empty", "f.tif"),
        ("text", "f.jpg"),
        ("zeros", "f.png"),
    ],
)
def test_every_kind_of_damage_is_noticed(tmp_path, damage, name):
    path = tmp_path / name
    cv2.imwrite(str(path), level(3))
    assert decode_image(path, gray=None).shape == (HEIGHT, WIDTH, 3)
    whole = path.read_bytes()
    path.write_bytes(
        {"cut": whole[: len(whole) // 2], "empty": b"", "text": b"<html>404</html>", "zeros": b"\0" * 500}[
            damage
        ]
    )
    assert decode_image(path, gray=None) is None


def test_a_corrupt_frame_is_reported_once_and_treated_by_policy(ucsd, caplog):
    path = ucsd / "UCSDped1/Test/Test002"
    skip, bridge, strict = (FrameFolder("x", path, corrupt=c) for c in ("skip", "bridge", "raise"))
    with skip.open() as reader:
        assert len(reader) == 5
        assert [index_of(reader[i]) for i in range(5)] == order_of(skip) == [0, 1, 3, 4, 5]
    with bridge.open() as reader:
        assert len(reader) == 6
        mean = (level(1).astype(float)[..., :1] + level(3)[..., :1]) / 2
        assert np.abs(reader[2] - mean).max() <= 0.5
        assert np.array_equal(reader.read(2, 3)[0], reader[2])
    with strict.open() as reader:
        reader[1]
        with pytest.raises(ValueError, match=r"003\.tif: corrupt frame; .*choose corrupt='skip' or 'bridge'"):
            reader[2]
    assert caplog.text.count("003.tif: corrupt frame") == 1
    with pytest.raises(ValueError, match="corrupt='ignore': expected one of skip, bridge, raise"):
        FrameFolder("x", path, corrupt="ignore")


def test_a_frame_of_another_size_counts_as_corrupt(tmp_path, caplog):
    images(tmp_path, ["1.png", "2.png", "3.png"])
    cv2.imwrite(str(tmp_path / "2.png"), np.zeros((8, 8, 3), np.uint8))
    assert order_of(FrameFolder("x", tmp_path)) == [0, 2]
    assert "2.png: corrupt frame, is (8, 8) where the others are (40, 80)" in caplog.text


def test_a_folder_without_a_readable_frame_is_an_error(tmp_path):
    (tmp_path / "1.png").write_bytes(b"")
    with pytest.raises(ValueError, match="no readable frame in this folder"):
        FrameFolder("x", tmp_path).open()


def test_natural_order():
    assert sorted(["10.jpg", "9.jpg", "a2b10", "a2b9", "1"], key=natural_key) == [
        "1",
        "9.jpg",
        "10.jpg",
        "a2b9",
        "a2b10",
    ]


@pytest.mark.parametrize("name", ["avenue", "ucsd", "ucsd-ped2", "shanghaitech", "folder", "open"])
def test_a_missing_root_says_what_to_do(tmp_path, name):
    with pytest.raises(ValueError, match=str(tmp_path)) as missing:
        DATASETS[name].training_stream(tmp_path / "nowhere", frames=3, crop=16, gray=True, seed=0)
    assert "\n" not in str(missing.value)
    assert ("data/README.md" in str(missing.value)) or ("fetch_open_clips" in str(missing.value))
    if name not in ("open",):
        assert "there is no such folder" in str(missing.value)


def test_a_half_unpacked_root_says_what_was_found(tmp_path):
    (tmp_path / "training_videos").mkdir()
    (tmp_path / "Avenue_Dataset.zip").write_bytes(b"PK")
    with pytest.raises(
        ValueError,
        match=r"for training_videos/\*\.avi or training/frames/<clip>/\*\.jpg; "
        r"found Avenue_Dataset\.zip, training_videos/ \(empty\)\. The set is described at http",
    ):
        Avenue().training_videos(tmp_path)


def test_a_half_unpacked_root_says_where_the_unpacking_stopped(tmp_path):
    (tmp_path / "UCSD_Anomaly_Dataset.v1p2/UCSDped1/Train").mkdir(parents=True)
    with pytest.raises(
        ValueError,
        match=r"found UCSD_Anomaly_Dataset\.v1p2/, and in UCSD_\S+v1p2/UCSDped1/Train nothing\.",
    ):
        UCSD().training_videos(tmp_path)


@pytest.mark.parametrize("policy", ["skip", "bridge", "raise"])
def test_the_command_line_chooses_what_becomes_of_corrupt_frames(ucsd, policy, monkeypatch):
    seen = []
    monkeypatch.setattr(UCSD, "check", lambda self, root: seen.append(self.corrupt) or "")
    assert main(["--data", "ucsd-ped1", "--root", str(ucsd), "--corrupt", policy, "--check"]) == 0
    assert seen == [policy]
    for made in (UCSD(1), UCSD()):
        with made.treating(policy).test_videos(ucsd)[1].open() as reader:
            assert len(reader) == (5 if policy == "skip" else 6)


def test_an_unknown_policy_is_told():
    with pytest.raises(ValueError, match="corrupt='ignore': expected one of skip, bridge, raise"):
        Avenue().treating("ignore")


def test_check_on_the_command_line(avenue, ucsd, monkeypatch, capfd):
    monkeypatch.setattr(Avenue, "published", Published((3, 2), (18, 12), (WIDTH, HEIGHT)))
    assert main(["--data", "avenue", "--root", str(avenue), "--check"]) == 0
    assert capfd.readouterr().out.endswith("as published\n")
    assert main(["--data", "ucsd-ped2", "--root", str(ucsd), "--check"]) == 2
    output = capfd.readouterr()
    assert output.out == ""
    assert output.err.startswith("vdenoise-train: ucsd-ped2 under")
    assert "training clips: 2, published 16; " in output.err
    assert output.err.count("\n") == 1


def test_check_tells_every_broken_video(avenue, monkeypatch):
    monkeypatch.setattr(Avenue, "published", Published((3, 2), (18, 12), (WIDTH, HEIGHT)))
    (avenue / "training_videos/02.avi").write_bytes(b"")
    (avenue / "testing_videos/01.avi").write_bytes(b"<html>404</html>" * 9)
    with pytest.raises(ValueError, match=r"02\.avi.*training frames: 12, published 18.*01\.avi") as found:
        Avenue().check(avenue)
    assert "\n" not in str(found.value)


def test_check_compares_with_the_published_numbers(avenue, ucsd, monkeypatch):
    monkeypatch.setattr(Avenue, "published", Published((3, 2), (18, 12), (WIDTH, HEIGHT)))
    report = Avenue().check(avenue)
    assert "training: 3 clips, 18 frames" in report
    assert report.endswith("as published")
    (avenue / "testing_videos/02.avi").unlink()
    avi(avenue / "training_videos/02.avi", count=5)
    with pytest.raises(
        ValueError,
        match="training frames: 17, published 18; test clips: 1, published 2; test frames: 6, published 12",
    ):
        Avenue().check(avenue)
    camera = UCSD(1)
    camera.published = Published((3, 2), (18, 12), (WIDTH, HEIGHT))
    assert "test: 2 clips, 12 frames, 1 of them corrupt (skip)" in camera.check(
        ucsd
    )  # the file counts as published
    camera.published = Published((3, 2), None, (238, 158))
    with pytest.raises(ValueError, match="training size: 80×40, published 238×158"):
        camera.check(ucsd)


def test_the_published_numbers():
    assert Avenue.published == Published((16, 21), (15_328, 15_324), (640, 360))
    assert ShanghaiTech.published.frames == (274_515, 40_791)
    assert UCSD(1).published.clips == (34, 36)
    assert UCSD(2).published.clips == (16, 12)


def test_sigma_x_is_the_deviation_of_all_training_pixels_and_is_kept(tmp_path):
    images(tmp_path / "a", [f"{i}.png" for i in range(4)])
    images(tmp_path / "b", ["0.png", "1.png"])
    pixels = np.concatenate(
        [cv2.imread(str(p), cv2.IMREAD_GRAYSCALE).ravel() for p in sorted(tmp_path.glob("*/*.png"))]
    )
    value = Folder().sigma_x(tmp_path)
    assert value == pytest.approx(pixels.std(), rel=1e-12)
    kept = json.loads((tmp_path / "sigma_x.json").read_text())["folder"]
    assert kept["sigma_x"] == value
    (tmp_path / "sigma_x.json").write_text(json.dumps({"folder": {**kept, "sigma_x": 5.0}}))
    assert Folder().sigma_x(tmp_path) == 5.0  # read, not computed
    images(tmp_path / "b", ["0.png", "1.png", "2.png"])
    assert Folder().sigma_x(tmp_path) not in (5.0, value)  # other files: computed anew
    assert not list(tmp_path.glob(".*part"))


def test_sigma_x_without_a_place_to_keep_it_warns(tmp_path):
    images(tmp_path / "a", ["0.png"])
    (tmp_path / "sigma_x.json").mkdir()  # in the way, for root too
    with pytest.warns(UserWarning, match="computed anew every time"):
        assert Folder().sigma_x(tmp_path) > 0


def test_folder_of_videos_of_images_and_of_both(tmp_path):
    avi(tmp_path / "b.avi")
    images(tmp_path / "a", ["1.png", "2.png"])
    assert names(Folder().training_videos(tmp_path)) == ["b", "a"]
    images(tmp_path / "deep/c", ["1.tif"])
    assert names(Folder().training_videos(tmp_path / "deep")) == ["c"]
    assert names(Folder().training_videos(tmp_path / "a")) == ["a"]
    assert "b.avi: 6 frames, 80×40" in Folder().check(tmp_path)
    parts = tmp_path / "parts"
    for i, split in enumerate(("train", "val", "test")):
        avi(parts / split / f"{i}.avi")
    assert [names(Folder().videos(parts, s)) for s in ("train", "val", "test")] == [["0"], ["1"], ["2"]]
    assert Folder().check(parts).count(".avi: 6 frames") == 3
    shutil.rmtree(parts / "train")
    with pytest.raises(ValueError, match="for train/ or videos beside val/ and test/; found test/, val/"):
        Folder().training_videos(parts)  # never those of the other splits


def test_one_training_video_validates_on_itself_and_says_so(tmp_path):
    avi(tmp_path / "only.avi")
    assert names(Folder().videos(tmp_path, "train")) == ["only"]
    with pytest.warns(UserWarning, match="validation sees it too"):
        assert names(Folder().videos(tmp_path, "val")) == ["only"]


def test_clips_load_as_tensors_from_their_start(tmp_path):
    avi(tmp_path / "a.avi", count=9)
    clip = Folder().training_videos(tmp_path)[0]
    frames = clip.load(4)
    assert frames.shape == (4, 3, HEIGHT, WIDTH)
    assert frames.dtype == torch.float32
    assert 0 <= frames.min() <= frames.max() <= 1
    later = type(clip)(clip.name, clip.path, start=7).load(4)
    assert [index_of(255 * f.numpy()) for f in later] == [7, 8]  # the video ends


def test_two_workers_give_the_batches_of_none_after_the_parent_has_read_video(tmp_path):
    for i in range(3):
        avi(tmp_path / f"{i}.avi", count=8)
    made = Folder()
    made.evaluation_clips(tmp_path, "val")[0].load()  # a decoder has run here: its fork would hang
    settings = {"frames": 3, "crop": 16, "gray": True, "seed": 5, "buffer": 16}
    alone = list(islice(loader(made.training_stream(tmp_path, **settings), 4), 5))
    before = len(multiprocessing.active_children())
    together = iter(loader(made.training_stream(tmp_path, **settings), 4, workers=2))
    assert all(torch.equal(a, b) for a, b in zip(alone, islice(together, 5), strict=True))
    del together  # ends the workers
    assert len(multiprocessing.active_children()) == before


def test_two_workers_and_their_parent_report_a_corrupt_frame_once(tmp_path, capfd, caplog):
    for name in ("a", "b", "c"):
        images(tmp_path / name, [f"{i}.png" for i in range(8)])
    (tmp_path / "a/3.png").write_bytes(b"x")
    made, settings = Folder(), {"frames": 3, "crop": 16, "gray": True, "seed": 5, "buffer": 16}
    list(islice(loader(made.training_stream(tmp_path, **settings), 4, workers=2), 30))
    assert capfd.readouterr().err.count("3.png: corrupt frame") == 1  # both have met it by then
    assert made.sigma_x(tmp_path) > 0
    assert caplog.text.count("3.png: corrupt frame") == 1  # of the parent, whom the workers don't tell
    list(islice(loader(made.training_stream(tmp_path, **settings), 4, workers=2), 30))
    assert "corrupt" not in capfd.readouterr().err  # they know what the parent has said


def test_no_reader_outlives_its_stream(tmp_path):
    for i in range(3):
        avi(tmp_path / f"{i}.avi", count=8)
    descriptors = Path("/proc/self/fd")
    if not descriptors.is_dir():
        pytest.skip("counts open files through /proc")
    stream = Folder().training_stream(tmp_path, frames=3, crop=16, gray=True, seed=5, buffer=16)
    list(islice(stream, 20))
    before = len(list(descriptors.iterdir()))
    for epoch in range(5):
        stream.set_epoch(epoch)
        list(islice(stream, 60))
    assert len(list(descriptors.iterdir())) <= before


def test_speed_is_measured(tmp_path):
    avi(tmp_path / "a.avi", count=12)
    avi(tmp_path / "b.avi", count=12)
    stream = Folder().training_stream(tmp_path, frames=4, crop=16, gray=False, seed=0, buffer=16)
    free = loader_speed(stream, batch=4, batches=5, warm_up=1)
    assert free["clips_per_second"] > 1
    assert free["wait"] > 0.9  # nothing else takes time
    busy = loader_speed(
        stream, batch=4, batches=5, warm_up=1, step=lambda x: [x.float().std() for _ in range(3000)]
    )
    assert busy["wait"] < 0.5
    assert busy["step_ms"] > busy["wait_ms"]
    assert opencv_speed([tmp_path / "a.avi"], frames=4, crop=16, clips=10) > 1
    with pytest.raises(ValueError, match="frames=40: OpenCV reads no such window"):
        opencv_speed([tmp_path / "a.avi"], frames=40, crop=16)


@pytest.fixture
def open_root(tmp_path):
    entries = []
    rng = np.random.default_rng(0)
    for name, split in (("bikes", "train"), ("cup", "train"), ("box", "val"), ("vtest", "test")):
        avi(tmp_path / f"videos/{name}.avi", count=12)
        entries.append((f"videos/{name}.avi", "video", split, 12))
    (tmp_path / "images").mkdir()
    for name, split in (("one", "train"), ("two", "train"), ("three", "val")):
        rough = rng.integers(0, 256, (40, 50, 3), np.uint8)
        cv2.imwrite(str(tmp_path / f"images/{name}.png"), cv2.resize(rough, (400, 320)))
        entries.append((f"images/{name}.png", "image", split, 1))
    manifest = [
        {
            "file": file,
            "kind": kind,
            "split": split,
            "frames": count,
            "sha256": hashlib.sha256((tmp_path / file).read_bytes()).hexdigest(),
        }
        for file, kind, split, count in entries
    ]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    return tmp_path


def test_the_open_set_mixes_train_files_only(open_root):
    made = DATASETS["open"]
    stream = made.training_stream(open_root, frames=4, crop=16, gray=False, seed=0, block=4)
    samples = list(islice(stream, 40))
    assert {(s.shape, s.dtype) for s in samples} == {((4, 3, 16, 16), torch.uint8)}
    again = made.training_stream(open_root, frames=4, crop=16, gray=False, seed=0, block=4)
    assert all(torch.equal(a, b) for a, b in zip(samples, islice(again, 40), strict=True))
    moving, stills = stream.parts
    assert {v.name for v in moving.sources} == {"bikes", "cup"}
    assert names(moving.sources).count("bikes") > names(moving.sources).count("cup")
    assert [p.stem for p in stills.photographs] == ["one", "two"]
    assert stream.shares == [0.6, 0.4]
    grey = made.training_stream(open_root, frames=4, crop=16, gray=True, seed=0, lanes=2, stills=0.0)
    assert next(iter(grey)).shape == (4, 1, 16, 16)


def test_open_evaluation_clips(open_root):
    made = DATASETS["open"]
    assert names(made.evaluation_clips(open_root, "test")) == ["vtest"]
    val = made.evaluation_clips(open_root, "val")
    assert names(val) == ["box@100", "box@300", "three"]
    moved = val[2].load(8)
    assert moved.shape == (8, 3, 256, 256)
    assert torch.equal(moved, val[2].load(8))


def test_open_check_finds_a_changed_file(open_root):
    made = DATASETS["open"]
    report = made.check(open_root)
    assert "train: 2 videos of 24 frames, 2 photographs" in report
    (open_root / "images/one.png").write_bytes(b"x")
    with pytest.raises(
        ValueError, match=r"one\.png: missing or changed; run python data/fetch_open_clips\.py"
    ):
        made.check(open_root)
    (open_root / "videos/cup.avi").unlink()
    with pytest.raises(ValueError, match=r"cup\.avi missing"):
        made.training_stream(open_root, frames=4, crop=16, gray=True, seed=0)
