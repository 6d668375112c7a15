"""What every benchmark needs: where a number comes from, its spread, tables, and whole files."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PACKAGES = ("torch", "numpy", "opencv-python", "av", "decord")


def provenance(script: str, argv: Sequence[str], device: str) -> dict[str, Any]:
    """Everything that a number depends on and its table can't show.

    Args:
        script: the benchmark's path from the top of the repository.
        argv: its arguments.
        device: torch device of the computation.
    """
    return {
        "command": shlex.join(["python", script, *argv]),
        "commit": commit(),
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        "versions": {"python": platform.python_version(), **{p: version(p) for p in PACKAGES}},
    }


def commit() -> str:
    """The short commit of this checkout, "+" after it where the code differs; "unknown" outside of git."""
    try:
        head = _git("rev-parse", "--short=10", "HEAD")
        # What a benchmark writes itself does not change what it measures.
        changed = _git(
            "status",
            "--porcelain",
            "--untracked-files=no",
            "--",
            "vdenoise",
            "benchmarks/*.py",
            "checkpoints",
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if changed else "")


def _git(*args: str) -> str:
    done = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def version(package: str) -> str | None:
    """A package's version, None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def device_name(device: str) -> str:
    """The processor or graphics card behind a torch device, in words."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor() or platform.machine()}, {os.cpu_count()} cores"


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Mean, deviation (n − 1; None for a single value), median, quartiles and the values themselves.

    JSON knows no infinity (the PSNR of a clean input), so what is not finite is None.
    """
    array = np.asarray(values, dtype=float)
    if not np.isfinite(array).all():
        same = {"mean": None, "std": None, "median": None, "q1": None, "q3": None}
        return {**same, "values": [finite(v) for v in array]}
    q1, median, q3 = np.percentile(array, [25, 50, 75])
    return {
        "mean": float(array.mean()),
        "std": float(array.std(ddof=1)) if len(array) > 1 else None,
        "median": float(median),
        "q1": float(q1),
        "q3": float(q3),
        "values": array.tolist(),
    }


def finite(value: float) -> float | None:
    """The number, or None for what JSON can't hold."""
    return float(value) if math.isfinite(value) else None


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A GitHub table: first column to the left, all others to the right."""
    lines = [list(header), ["---", *["---:"] * (len(header) - 1)], *[list(row) for row in rows]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def write_atomic(path: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` fill a temporary file in the same folder, then give it its name.

    Args:
        path: the file; its folder is made where it is missing.
        write: called with the temporary path, which has the same suffix.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, content: Any) -> None:
    """Write JSON, whole or not at all; what is not finite is an error. A plain list takes one line."""
    text = json.dumps(rounded(content), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    inner = re.compile(r"\[\s+([^\[\]{}]*?)\s+\]")
    write_text(path, inner.sub(lambda found: "[" + re.sub(r",\n\s*", ", ", found[1]) + "]", text))


def rounded(value: Any) -> Any:
    """The same with floats to 7 significant digits, more than any number here is good for."""
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(inner) for inner in value]
    return float(f"{value:.7g}") if isinstance(value, float) else value


def write_text(path: Path, text: str) -> None:
    """Write text, whole or not at all."""
    write_atomic(path, lambda temporary: _write(temporary, text))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def read_json(path: Path) -> Any:
    """Read a result.

    Raises:
        ValueError: if the file is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON ({error}); write it anew with its benchmark") from error


def pick_device(name: str) -> str:
    """ "auto" is CUDA where there is one.

    Raises:
        ValueError: for a device that this machine has not.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"--device {name} can't be used here ({str(error).splitlines()[0]}); try cpu"
        ) from error
    return name


def wait(device: str) -> None:
    """Wait until the device has done what it was told, so that a clock can be read."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def run(name: str, job: Callable[[], int], stopped: str = "nothing was written") -> int:
    """Run a command; the exit code is the job's, 2 for bad input with one line, 130 when interrupted.

    Args:
        name: of the command, before its messages.
        job: the work.
        stopped: what to say when it is interrupted.
    """
    try:
        return job()
    except (ValueError, OSError) as error:
        print(f"{name}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{name}: stopped; {stopped}", file=sys.stderr)
        return 130
