"""The benchmarks measure what they say, go on where they were stopped, and the README repeats them."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

import picture
import readme_table
from vdenoise.datasets.folder import Folder
from vdenoise.models import build, save

import common
import rmse_cells
import run_quality
import run_rmse
from rmse_report import family

FRAMES, HEIGHT, WIDTH = 6, 40, 48
PNG = b"\x89PNG"


def scene(seed: int) -> np.ndarray:
    """A smooth moving pattern, uint8 (T, H, W)."""
    t, y, x = np.meshgrid(np.arange(FRAMES), np.arange(HEIGHT), np.arange(WIDTH), indexing="ij")
    return (128 + 80 * np.sin(0.2 * x + 0.3 * t + seed) * np.cos(0.15 * y)).astype(np.uint8)


@pytest.fixture(scope="module")
def clips(tmp_path_factory) -> Path:
    """A data set of two test clips, as folders of images."""
    root = tmp_path_factory.mktemp("clips")
    for seed, name in enumerate(("door", "yard")):
        (root / "test" / name).mkdir(parents=True)
        for i, frame in enumerate(scene(seed)):
            cv2.imwrite(str(root / "test" / name / f"{i:03}.png"), frame)
    return root


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> Path:
    """Two tiny untrained networks, as a pair of the comparison."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for name, constrained in (("toy_constrained", True), ("toy_erm", False)):
        torch.manual_seed(constrained)
        card = {
            "command": f"vdenoise-train --out {name}.pt",
            "data": "open",
            "minutes": 1.0,
            "sigma": [25.0, 25.0],
            "sigma_x": 50.0,
            "config": {"constrained": constrained, "gamma": 0.5},
            "validation": {"val_sigma": 25.0, "val_rmse": [25.0, 12.5, 6.25]},
        }
        save(build("dust", layers=2, codes=16, features=4), folder / f"{name}.pt", card)
    return folder


@pytest.fixture
def command(clips, checkpoints, tmp_path) -> list[str]:
    models = [str(checkpoints / f"{name}.pt") for name in ("toy_constrained", "toy_erm")]
    return [
        *("--data", "folder", "--root", str(clips), "--models", *models),
        *("--sigma-x", "50", "--device", "cpu"),
        *("--windows", "2", "--window", "3", "--crop", "32", "--seeds", "2", "--quiet"),
        *("--out", str(tmp_path / "rmse")),
    ]


def without_times(value):
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if k not in ("ms_per_frame", "command")}
    return [without_times(v) for v in value] if isinstance(value, list) else value


def test_rmse_over_gamma(command, tmp_path, capsys):
    assert run_rmse.main(command) == 0
    document = json.loads((tmp_path / "rmse.json").read_text())
    assert document["values"] == [0, 0.01, 0.05, 0.1, 0.2, 0.25, 0.5, 0.75, 1.0, 1.5]
    assert [table["name"] for table in document["tables"]] == ["door", "yard", "folder"]
    door, yard, both = ([row["cells"] for row in table["rows"]] for table in document["tables"])
    for gamma, cell in zip(document["values"], both[0], strict=True):
        assert cell["rmse"]["mean"] == pytest.approx(gamma * 50, rel=0.03)
        assert len(cell["rmse"]["values"]) == 2
    assert both[0][0]["psnr"]["mean"] is None  # without noise the PSNR is infinite
    assert both[0][6]["psnr"]["mean"] == pytest.approx(20 * math.log10(255 / 25), abs=0.3)
    # Clips of one size: the pooled square is the mean of their squares, seed by seed.
    for a, b, c in zip(*(cells[1][6]["rmse"]["values"] for cells in (door, yard, both)), strict=True):
        assert c**2 == pytest.approx((a**2 + b**2) / 2)
    cell = both[1][6]
    assert [len(seed) for seed in cell["layers"]["values"]] == [3, 3]
    assert cell["layers"]["mean"][0] == both[0][6]["rmse"]["mean"]
    assert cell["layers"]["mean"][-1] == cell["rmse"]["mean"]
    assert [seed[-1] for seed in cell["layers"]["values"]] == cell["rmse"]["values"]
    assert both[1][6]["rmse"] != both[2][6]["rmse"]
    assert document["models"]["toy_erm"]["constrained"] is False

    printed = capsys.readouterr().out
    assert "| toy_constrained |" in printed
    assert "∞" in printed
    with (tmp_path / "rmse.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 3 * 10 * (1 + 3 + 3)
    assert (tmp_path / "rmse.png").read_bytes().startswith(PNG)
    assert {p.name for p in tmp_path.iterdir()} == {"rmse.json", "rmse.csv", "rmse.png", "rmse.cells.jsonl"}


def test_rmse_under_other_noise(command, tmp_path, capsys):
    short = [*command, "--seeds", "1", "--windows", "1", "--sigma-grid", "20", "--clips", "door"]
    del short[short.index("--sigma-x") : short.index("--sigma-x") + 2]
    found = {}
    for kind in ("gaussian", "rows", "h264"):
        assert run_rmse.main([*short, "--noise", kind]) == 0
        document = json.loads((tmp_path / "rmse.json").read_text())
        assert document["settings"]["noise"] == kind
        found[kind] = document["tables"][-1]["rows"][0]["cells"][0]["rmse"]["mean"]
        assert (f"under {kind} noise" in capsys.readouterr().out) == (kind != "gaussian")
    assert found["rows"] == pytest.approx(20, rel=0.3)  # few rows
    assert found["rows"] != found["gaussian"] == pytest.approx(20, rel=0.03)
    assert 0 < found["h264"] < 20


def test_a_stopped_run_goes_on(command, tmp_path, monkeypatch):
    command = [*command, "--seeds", "1", "--windows", "1"]
    cells_in_all = 2 * 3 * 10  # clips, rows, γ
    warm_ups = 2 * 2  # clips, models
    assert run_rmse.main([*command, "--out", str(tmp_path / "whole")]) == 0
    measured = 0
    measure = run_rmse.measure

    def stopping(*args):
        nonlocal measured
        if measured == 7:
            raise KeyboardInterrupt
        measured += 1
        return measure(*args)

    monkeypatch.setattr(run_rmse, "measure", stopping)
    assert run_rmse.main(command) == 130
    assert not (tmp_path / "rmse.json").exists()
    cells = tmp_path / "rmse.cells.jsonl"
    kept = cells.read_text().count("\n")
    assert kept == 7
    with cells.open("a") as file:
        file.write('{"key": {"cli')  # the line that a killed process leaves

    measured = -1_000
    assert run_rmse.main(command) == 0
    assert measured + 1_000 == cells_in_all - kept + warm_ups
    whole, parts = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("whole", "rmse"))
    assert without_times(whole) == without_times(parts)

    measured = -1_000
    assert run_rmse.main([*command, "--clipped"]) == 0  # other noise: nothing to reuse
    assert measured + 1_000 == cells_in_all + warm_ups


def test_every_model_sees_the_same_noise_at_every_level():
    clip = rmse_cells.Clip("one", [scene(0)[..., None], scene(1)[..., None]], "")
    settings = rmse_cells.Settings()

    class Halves:
        def iterates(self, noisy, sigma):
            seen.append((noisy.clone(), sigma))
            return [noisy, noisy]

    seen: list[tuple[torch.Tensor, float]] = []
    ten, twenty = (rmse_cells.measure(Halves(), clip, sigma, 3, settings, "cpu") for sigma in (10, 20))
    assert twenty["mse"][0] == pytest.approx(4 * ten["mse"][0], rel=1e-4)
    assert rmse_cells.measure(None, clip, 10, 3, settings, "cpu")["mse"] == ten["mse"][:1]
    assert rmse_cells.measure(None, clip, 10, 4, settings, "cpu")["mse"] != ten["mse"][:1]
    assert [sigma for _, sigma in seen] == [10 / 255] * 2 + [20 / 255] * 2
    assert not torch.equal(seen[0][0], seen[1][0])  # the second window has noise of its own
    clean = torch.from_numpy(scene(0)).float()
    first = (seen[0][0][0, :, 0] * 255 - clean).square().mean(dim=(1, 2))
    second = (seen[1][0][0, :, 0] * 255 - torch.from_numpy(scene(1)).float()).square().mean(dim=(1, 2))
    frames = torch.cat([first, second]).double()
    assert ten["mse"][0] == pytest.approx(frames.mean().item(), rel=1e-4)
    assert ten["psnr"][0] == pytest.approx((10 * (255**2 / frames).log10()).mean().item(), rel=1e-5)
    assert ten["values"] == 2 * FRAMES * HEIGHT * WIDTH
    blind = rmse_cells.measure(Halves(), clip, 20, 3, rmse_cells.Settings(blind=True), "cpu")
    assert blind["sigma_given"] == pytest.approx(20, rel=0.15)
    assert blind["sigma_given"] != twenty["sigma_given"] == pytest.approx(20)


def test_blocks_that_fall_are_counted():
    # A row is a block, a column a layer: the second block stands still, the third goes up again.
    levels = torch.tensor([[4.0, 3.0, 2.0], [4.0, 4.0, 2.0], [1.0, 0.5, 0.7], [9.0, 8.0, 0.0]])
    squared = []
    for layer in levels.T:
        frame = torch.full((20, 23), 99.0)  # what is left over at the border must not count
        frame[:20, :20] = layer.view(2, 2).repeat_interleave(10, 0).repeat_interleave(10, 1)
        squared.append(frame.expand(3, 1, -1, -1))
    assert rmse_cells.falling_blocks(squared, 10) == (2, 4)
    assert rmse_cells.falling_blocks(squared[:2], 10) == (3, 4)
    assert rmse_cells.falling_blocks(squared, 64)[1] == 1


@pytest.mark.parametrize(
    ("total", "windows", "length", "expected"),
    [
        (100, 2, 15, [(0, 15), (85, 100)]),
        (100, 1, 15, [(42, 57)]),
        (20, 2, 15, [(2, 17)]),
        (7, 2, 15, [(0, 7)]),
        (32, 0, 15, [(0, 15), (15, 30), (30, 32)]),
    ],
)
def test_windows_are_spread_over_the_clip(total, windows, length, expected):
    assert rmse_cells.spans(total, windows, length) == expected


def test_pairs_of_the_comparison_share_a_colour():
    assert family("ut_constrained") == family("ut_erm") != family("vit_erm")
    assert family("dust") != family("dust_erm")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--models", "nothing.pt"], "nothing.pt"),
        (["--clips", "roof"], "there are door, yard"),
        (["--seeds", "0"], "--seeds"),
        (["--sigma-grid", "300"], "--sigma-grid"),
        (["--sigma-grid", "25"], "--sigma-x"),
        (["--sigma-x", "0"], "--sigma-x"),
        (["--root", "nowhere"], "nowhere"),
        (["--device", "abacus"], "abacus"),
    ],
)
def test_bad_input_ends_with_2_and_one_line(command, flags, message, capsys):
    assert run_rmse.main([*command, *flags]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_an_interrupted_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "numbers.json"
    common.write_json(path, {"a": 1})

    def broken(temporary: Path) -> None:
        temporary.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        common.write_atomic(path, broken)
    with pytest.raises(ValueError, match="JSON"):
        common.write_json(path, {"a": math.inf})
    assert common.read_json(path) == {"a": 1}
    content = {"a": [1.5, None, "x, y"], "b": [[1, 2], []], "c": {"d": 1 / 3}}
    common.write_json(path, content)
    assert common.read_json(path) == {**content, "c": {"d": 0.3333333}}
    assert '"a": [1.5, null, "x, y"]' in path.read_text()
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture
def small_blocks(clips, monkeypatch) -> None:
    """Two small blocks in place of those of the open clips."""
    places = {"door": run_quality.Place(1, 5, 32, 40), "yard": run_quality.Place(0, 4, None, None)}
    for module in (run_quality, picture):
        monkeypatch.setattr(module, "BLOCKS", places)
    monkeypatch.setitem(run_quality.DATASETS, "open", Folder())


def test_quality_beside_another_denoiser(small_blocks, clips, checkpoints, tmp_path, capsys):
    out = tmp_path / "quality.json"
    model = str(checkpoints / "toy_erm.pt")
    flags = ["--root", str(clips), "--sigmas", "25", "50", "--repeats", "2", "--quiet", "--device", "cpu"]
    assert run_quality.main([*flags, "--model", model, "--out", str(out)]) == 0
    document = json.loads(out.read_text())
    assert [(b["clip"], b["sigma"], b["shape"]) for b in document["blocks"]] == [
        ("door", 25, [5, 32, 40]),
        ("door", 50, [5, 32, 40]),
        ("yard", 25, [4, HEIGHT, WIDTH]),
        ("yard", 50, [4, HEIGHT, WIDTH]),
    ]
    noisy, given, estimated, rival = document["blocks"][0]["rows"]
    assert [given["method"], estimated["method"]] == ["toy_erm, σ given", "toy_erm, σ estimated"]
    clean = scene(0)[1:, :32, :40]
    expected = clean + np.random.default_rng(0).normal(0, 25, clean.shape)
    expected = np.clip(np.round(expected), 0, 255)
    mse = ((expected - clean) ** 2).mean()
    assert noisy["psnr"] == pytest.approx(10 * math.log10(255**2 / mse))
    assert rival["psnr"] > noisy["psnr"] + 3
    assert len(given["ms_per_frame"]["values"]) == 2
    ours, theirs = (row["ms_per_frame"]["values"] for row in (given, rival))
    shares = [a / b for a, b in zip(ours, theirs, strict=True)]
    assert given["share_of_nl_means"]["values"] == pytest.approx(shares)
    assert "| NlMeansMulti |" in capsys.readouterr().out
    assert run_quality.main([*flags, "--model", "nothing.pt", "--out", str(out)]) == 2


def test_the_rival_is_tuned_in_its_favour():
    clean = scene(0)
    noisy = run_quality.noisy_block(clean, 25)
    strength = run_quality.tune_nl_means(noisy, clean, 25)
    best, lower, higher, start = (
        run_quality.psnr(run_quality.nl_means_multi(noisy, h, [0]), clean[:1])
        for h in (strength, strength - 1.25, strength + 1.25, 22.5)
    )
    assert best >= max(lower, higher, start)


def test_the_readme_repeats_the_results(command, small_blocks, clips, checkpoints, tmp_path, capsys):
    readme, results = tmp_path / "README.md", tmp_path / "results"
    section = "<!-- table:{} -->\n<!-- /table -->\n"
    readme.write_text("Text.\n".join(section.format(name) for name in ("quality", "rmse", "checkpoints")))
    flags = ["--readme", str(readme), "--results", str(results), "--checkpoints", str(checkpoints)]
    empty = [*flags[:-1], str(tmp_path)]
    assert readme_table.main([*empty, "--check"]) == 0  # nothing measured, nothing said
    assert run_rmse.main([*command, "--out", str(results / "rmse-open")]) == 0
    model = str(checkpoints / "toy_constrained.pt")
    quality = ["--root", str(clips), "--sigmas", "25", "--repeats", "1", "--quiet", "--device", "cpu"]
    assert run_quality.main([*quality, "--model", model, "--out", str(results / "quality.json")]) == 0

    assert readme_table.main([*flags, "--check"]) == 1
    assert readme_table.main(flags) == 0
    assert readme_table.main([*flags, "--check"]) == 0
    text = readme.read_text()
    assert "Text." in text
    assert "25.0 → 12.5 → 6.2" in text
    assert "vdenoise-train --out toy_erm.pt" in text
    document = json.loads((results / "rmse-open.json").read_text())
    number = f"{document['tables'][-1]['rows'][1]['cells'][6]['rmse']['mean']:.2f}"
    assert number in text
    readme.write_text(text.replace(number, "0.01"))
    capsys.readouterr()
    assert readme_table.main([*flags, "--check"]) == 1
    assert "rmse" in capsys.readouterr().err
    (results / "rmse-open.json").unlink()  # numbers without a source are a disagreement too
    assert readme_table.main([*flags, "--check"]) == 1
    readme.write_text("<!-- table:speed -->\n<!-- /table -->\n")
    assert readme_table.main([*flags, "--check"]) == 2


@pytest.mark.skipif(
    not all((common.RESULTS / f"{name}.json").is_file() for name in ("quality", "rmse-open")),
    reason="the benchmarks have not been run in this checkout",
)
def test_the_readme_of_this_checkout_says_what_was_measured():
    assert readme_table.main(["--check"]) == 0


PICTURED = {"model": "toy_erm", "constrained": "toy_constrained", "unconstrained": "toy_erm"}


def test_the_picture_is_drawn_from_a_result(small_blocks, clips, checkpoints, tmp_path, capsys):
    out = tmp_path / "docs" / "result.png"
    models = [f"--{flag}={checkpoints / name}.pt" for flag, name in PICTURED.items()]
    flags = ["--clip=door", "--frame=2", f"--root={clips}", f"--out={out}", "--device=cpu", *models]
    assert picture.main([*flags, "--crop", "0", "0", "32", "32"]) == 0
    assert out.read_bytes().startswith(PNG)
    assert out.stat().st_size < picture.LIMIT
    first, second = capsys.readouterr().out.splitlines()
    noisy = [float(line.split(": ")[1].split(" → ")[0]) for line in (first, second)]
    clean = scene(0)[1:, :32, :40]
    error = run_quality.noisy_block(clean, 25).astype(float) - clean
    assert noisy == [pytest.approx(math.sqrt((error**2).mean()), abs=0.01)] * 2
    assert picture.main([*flags, "--crop", "0", "0", "99", "32"]) == 2
    assert "--crop" in capsys.readouterr().err
