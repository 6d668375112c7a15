"""The fused attention kernels: what they are made of, that they are right, how fast they are.

    python benchmarks/run_kernels.py             on a CUDA card: correctness gate, then speed
    python benchmarks/run_kernels.py --static    anywhere: registers, spills, shared memory, bytes moved
    python benchmarks/run_kernels.py --cpu       the operation's path on a processor against eager PyTorch

Each prints a table and writes ``results/kernels_{gpu,static,cpu}.json``. Without a card the first says so and
writes nothing; with VDENOISE_REQUIRE_CUDA=1 that is a failure.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from vdenoise.ops._dispatch import INSTALLED

import kernels_cpu
import kernels_gpu
import kernels_static
from common import RESULTS, ROOT, markdown_table, provenance, read_json, run, version, write_json

NO_CUDA = (
    "no CUDA device here, so speed, bandwidth, memory and frames per second of the kernels are UNMEASURED;"
    " on a machine with one run: python benchmarks/run_kernels.py"
)


def static(types: Sequence[str], shapes: Sequence[str], path: Path) -> dict[str, Any]:
    """Resources of every configuration and the bytes that it moves.

    Compiling all takes half an hour on one core, so it can be done in parts: what ``path`` holds of other
    shapes and types stays, if it is of the same sources and compiler.
    """
    compiled_from = {"sources": kernels_static.sources_hash(), "triton": version("triton")}
    rows, moved = [], []
    if path.exists():
        before = read_json(path)
        if before["compiled_from"] == compiled_from:
            rows = [r for r in before["kernels"] if not (r["shape"] in shapes and r["dtype"] in types)]
            moved = before["traffic"]
    for label in shapes:
        for kind in types:
            for name, one in kernels_static.launches(
                kernels_static.SHAPES[label], kernels_static.TYPES[kind]
            ):
                for architecture in kernels_static.ARCHITECTURES:
                    found = kernels_static.resources(one, architecture)
                    key = {
                        "kernel": name,
                        "shape": label,
                        "dtype": kind,
                        "architecture": f"sm_{architecture}",
                    }
                    rows.append(key | found)
                    print(*key.values(), found, sep=" | ", file=sys.stderr)
    return {"compiled_from": compiled_from, "kernels": rows, "traffic": moved or traffic()}


def traffic() -> list[dict[str, Any]]:
    """Bytes per sequence, from a process of its own under Triton's interpreter."""
    command = [sys.executable, str(ROOT / "benchmarks" / "kernels_traffic.py")]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"counting bytes failed: {done.stderr.strip()[-300:]}")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def static_table(document: dict[str, Any]) -> str:
    """Markdown: per kernel and shape the most registers and shared memory, and bytes against the floor."""
    rows = []
    for move in document["traffic"]:
        here = [
            row
            for row in document["kernels"]
            if (row["kernel"], row["shape"]) == (move["kernel"], move["shape"])
        ]
        if not here:  # not compiled yet
            continue
        rows.append(
            [
                f"{move['kernel']}, {move['shape']}",
                str(max(row["registers"] for row in here)),
                str(max(row["spill_bytes"] for row in here)),
                f"{max(row['shared_bytes'] for row in here) / 1024:.0f}",
                f"{move['floor_bytes'] / 1024:.1f}",
                f"{move['ratio']:.2f}",
            ]
        )
    header = ["", "registers", "spilled bytes", "shared, KiB", "floor per sequence, KiB", "moved / floor"]
    return markdown_table(header, rows)


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="run_kernels.py", description="The fused attention kernels.")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--static", action="store_true", help="compile for sm_80, sm_90, sm_100; no card needed"
    )
    mode.add_argument("--cpu", action="store_true", help="the path on a processor against eager PyTorch")
    parser.add_argument("--dtypes", nargs="+", choices=list(kernels_static.TYPES), help="(default: all)")
    parser.add_argument(
        "--shapes", nargs="+", choices=list(kernels_static.SHAPES), help="of --static (default: all)"
    )
    parser.add_argument("--repeats", type=int, default=7, help="rounds of --cpu (default: 7)")
    parser.add_argument(
        "--compile", action="store_true", help="--cpu: inductor beside it; needs a C++ compiler"
    )
    parser.add_argument("--out", type=Path, help="JSON (default: results/kernels_{gpu,static,cpu}.json)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; the exit code: 0 done, 1 no card though one is required, 2 bad input, 130 interrupted."""
    args = build_parser().parse_args(argv)
    return run("run_kernels", lambda: job(args, list(argv or [])))


def job(args: argparse.Namespace, argv: list[str]) -> int:
    """Measure, print, write."""
    torch.set_num_threads(1)  # --cpu counts the process's own time
    types = args.dtypes or list(kernels_static.TYPES)
    cuda = torch.cuda.is_available()
    mode = "static" if args.static else "cpu" if args.cpu else "gpu"
    out = args.out or RESULTS / f"kernels_{mode}.json"
    if mode != "cpu" and not INSTALLED:
        raise ValueError(
            "Triton is not installed; it comes with PyTorch for CUDA on Linux: pip install triton"
        )
    if mode == "gpu" and not cuda:
        print(NO_CUDA)
        return 1 if os.environ.get("VDENOISE_REQUIRE_CUDA") == "1" else 0
    document = provenance("benchmarks/run_kernels.py", argv, "cuda" if mode == "gpu" else "cpu")
    document["versions"]["triton"] = version("triton")
    if mode == "static":
        document |= static(types, args.shapes or list(kernels_static.SHAPES), out)
        print(static_table(document))
    elif mode == "cpu":
        if args.compile and not kernels_cpu.has_compiler():
            raise ValueError("--compile needs a C++ compiler, found neither g++ nor clang++; leave it out")
        document["cpu"] = kernels_cpu.measure(args.repeats, args.compile)
        print(kernels_cpu.table(document))
    else:
        document |= kernels_gpu.measure("cuda", types)
        print(kernels_gpu.table(document))
    write_json(out, document)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
