"""Unpacking packages into the open set, on tiny packages made here."""

import gzip
import importlib.util
import io
import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import cv2
import numpy as np
import pytest

SCRIPT = Path(__file__).parents[1] / "data" / "fetch_open_clips.py"


@pytest.fixture(scope="module")
def fetch():
    spec = importlib.util.spec_from_file_location("fetch_open_clips", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def photograph(width: int, height: int = 40) -> bytes:
    image = np.random.default_rng(width).integers(0, 255, (height, width, 3), np.uint8)
    return cv2.imencode(".png", image)[1].tobytes()


def clip(tmp_path: Path) -> bytes:
    path = tmp_path / "made.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 10, (32, 24))
    for level in (0, 80, 160):
        writer.write(np.full((24, 32, 3), level, np.uint8))
    writer.release()
    return path.read_bytes()


def tar_of(files: dict[str, bytes], mode: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


def deb_of(files: dict[str, bytes], compression: str = "xz") -> bytes:
    if compression == "zst":
        plain = tar_of(files, "w:")
        data = subprocess.run(["zstd", "-qc"], input=plain, check=True, capture_output=True).stdout
    else:
        data = tar_of(files, f"w:{compression}")
    control = tar_of({"control": b"Package: tiny\n"}, "w:gz")
    parts = {"debian-binary": b"2.0\n", "control.tar.gz": control, f"data.tar.{compression}": data}
    out = b"!<arch>\n"
    for name, body in parts.items():
        out += (
            f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(body):<10}`\n".encode()
            + body
            + b"\n" * (len(body) % 2)
        )
    return out


def tiny(fetch, manager: str = "apt"):
    files = {"test": "clip.avi", "train": "big.png", "val": "small.png"}
    return fetch.Package("tiny-pictures", manager, "CC0-1.0", "usr/share/tiny", files, {"small.png": "MIT"})


@pytest.fixture
def files(tmp_path):
    made = {"clip.avi": clip(tmp_path), "big.png": photograph(3200, 80), "small.png": photograph(60)}
    return {f"usr/share/tiny/{name}": data for name, data in made.items()}


@pytest.mark.parametrize("kind", ["whl", "tar.gz", "deb xz", "deb gz", "deb zst"])
@pytest.mark.parametrize("tool", [True, False])
def test_members_of_every_kind_of_package(fetch, tmp_path, files, monkeypatch, kind, tool):
    suffix, _, compression = kind.partition(" ")
    if compression == "zst" and not shutil.which("zstd"):
        pytest.skip("zstd is not installed")
    if tool and (suffix != "deb" or not shutil.which("dpkg-deb")):
        pytest.skip("dpkg-deb makes no difference here")
    if not tool:
        found = shutil.which
        monkeypatch.setattr(fetch.shutil, "which", lambda name: None if name == "dpkg-deb" else found(name))
    stored = dict(files)
    name = "usr/share/tiny/clip.avi"
    stored[f"{name}.gz"] = gzip.compress(stored.pop(name))
    stored["usr/share/tiny/not-clip.avi"] = b"another"
    archive = tmp_path / f"tiny-1.0.{suffix}"
    if suffix == "whl":
        with zipfile.ZipFile(archive, "w") as z:
            for path, data in stored.items():
                z.writestr(path, data)
    elif suffix == "deb":
        archive.write_bytes(deb_of(stored, compression))
    else:
        archive.write_bytes(tar_of({f"tiny-1.0/{path}": data for path, data in stored.items()}, "w:gz"))
    assert fetch.archive_members(archive, files) == files


def test_a_broken_package_is_unavailable(fetch, tmp_path, monkeypatch):
    monkeypatch.setattr(fetch.shutil, "which", lambda name: None)
    for content in (b"not an archive", b"!<arch>\n"):
        (tmp_path / "x.deb").write_bytes(content)
        with pytest.raises(fetch.Unavailable, match=r"x\.deb"):
            fetch.archive_members(tmp_path / "x.deb", ["a"])


def test_fill_check_and_mend(fetch, tmp_path, files, capsys):
    root, cache = tmp_path / "open", tmp_path / "cache"
    cache.mkdir()
    (cache / "tiny-pictures_2%3a1.0-1_all.deb").write_bytes(deb_of(files))
    entries, missing = fetch.fetch(root, [tiny(fetch)], cache)
    assert not missing
    assert [(e["file"], e["kind"], e["split"], e["licence"]) for e in entries] == [
        ("images/tiny-pictures_big.png", "image", "train", "CC0-1.0"),
        ("images/tiny-pictures_small.png", "image", "val", "MIT"),
        ("videos/clip.avi", "video", "test", "CC0-1.0"),
    ]
    big, small, video = entries
    assert (big["width"], big["height"]) == (1600, 40)
    assert (small["width"], small["height"]) == (60, 40)
    assert (video["width"], video["height"], video["frames"], video["version"]) == (32, 24, 3, "2:1.0-1")
    assert (root / "videos/clip.avi").read_bytes() == files["usr/share/tiny/clip.avi"]
    assert json.loads((root / "manifest.json").read_text()) == entries

    shutil.rmtree(cache)  # from here on nothing can be had: a second run must not need it
    capsys.readouterr()
    assert fetch.fetch(root, [tiny(fetch)], cache) == (entries, [])
    assert "match their sha256" in capsys.readouterr().out

    (cache / "tiny-pictures_2%3a1.0-1_all.deb").write_bytes(deb_of(files))
    (root / "videos/clip.avi").write_bytes(b"spoilt")
    assert fetch.fetch(root, [tiny(fetch)], cache) == (entries, [])
    assert (root / "videos/clip.avi").read_bytes() == files["usr/share/tiny/clip.avi"]
    assert not list(root.rglob("*.part"))


def test_what_a_platform_lacks_is_skipped_with_a_line(fetch, tmp_path, files, monkeypatch, capsys):
    monkeypatch.setattr(fetch.shutil, "which", lambda name: None)
    entries, missing = fetch.fetch(tmp_path / "open", [tiny(fetch)])
    assert entries == []
    assert missing == ["skipped tiny-pictures (apt): there is no apt-get on this system"]
    monkeypatch.setattr(fetch, "PACKAGES", (tiny(fetch),))
    assert fetch.main(["--root", str(tmp_path / "open")]) == 2
    assert "nothing could be fetched" in capsys.readouterr().err


def test_a_file_the_package_does_not_hold_is_named_and_the_rest_kept(fetch, tmp_path, files):
    cache = tmp_path / "cache"
    cache.mkdir()
    del files["usr/share/tiny/big.png"]
    with zipfile.ZipFile(cache / "tiny_pictures-3.1-py3-none-any.whl", "w") as z:
        for path, data in files.items():
            z.writestr(path, data)
    entries, missing = fetch.fetch(tmp_path / "open", [tiny(fetch, "pip")], cache)
    assert [e["file"] for e in entries] == ["images/tiny-pictures_small.png", "videos/clip.avi"]
    assert {e["version"] for e in entries} == {"3.1"}
    assert missing == ["skipped big.png: tiny-pictures 3.1 does not hold it"]


def test_one_package_alone_keeps_the_others_entries(fetch, tmp_path, files):
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "tiny-pictures_1_all.deb").write_bytes(deb_of(files))
    first, _ = fetch.fetch(tmp_path / "open", [tiny(fetch)], cache)
    second, _ = fetch.fetch(tmp_path / "open", [], cache)
    assert second == first


def test_the_table_keeps_test_clips_out_of_training(fetch):
    splits = {}
    for package in fetch.PACKAGES:
        for item in package.items:
            splits[fetch.stored_name(package, item[0])] = item[1]
    assert len(splits) == sum(len(p.items) for p in fetch.PACKAGES)  # no two files share a name
    assert {n for n, s in splits.items() if s == "test"} == {
        "videos/vtest.avi",
        "videos/carphone_pristine.mp4",
    }
    assert set(splits.values()) == {"train", "val", "test"}
    assert not any("Megamind" in n or "muted_b" in n for n in splits)
