"""Kernels compiled ahead of time, without a GPU: registers, spills and shared memory of every configuration.

What would be launched is recorded from the launcher of vdenoise.ops, so tiles, flags and specialisations are
those of a real call. The assembler's report (ptxas -v) tells the rest.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

ARCHITECTURES = (80, 90, 100)  # A100, H100 and H200, B200
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16"}


@dataclass(frozen=True)
class Shape:
    """Sequences of a call: frames, features, values, codes that the channels share."""

    t: int
    r: int
    m: int
    codes: int


SHAPES = {
    "dust, 30 frames, grey": Shape(30, 16, 128, 128),
    "dust, 30 frames, colour": Shape(30, 48, 384, 128),
    "dust, 7 frames": Shape(7, 16, 128, 128),
    "ut, 30 frames, colour": Shape(30, 48, 288, 96),
    "longest and widest": Shape(64, 512, 512, 512),
    "odd": Shape(17, 3, 257, 257),
    "63 frames, odd": Shape(63, 3, 60, 20),
}


@dataclass(frozen=True)
class Launch:
    """One kernel as the launcher would start it."""

    kernel: Any
    arguments: tuple[Any, ...]
    constants: dict[str, Any]
    warps: int


def calls(shape: Shape, dtype: torch.dtype, n: int = 4) -> dict[str, Callable[[], Any]]:
    """Every kernel on n sequences of this shape, forward and backward, with and without DUST's thresholds."""
    from vdenoise.ops._triton import launch

    f, u = torch.zeros(n, shape.t, shape.r, dtype=dtype), torch.zeros(n, shape.t, shape.m, dtype=dtype)
    keys, grad = f.clone(), u.clone()
    bias, norm = (torch.zeros(n, shape.t, dtype=dtype) for _ in range(2))
    h, codes = torch.ones(()), torch.zeros(shape.codes)
    dust, ut = launch.Tail(codes, codes, codes, torch.zeros(1)), launch.Tail(torch.ones(1), None, None, None)
    return {
        "attention forward": lambda: launch.attend(f, keys, u, bias),
        "attention forward, q = k": lambda: launch.attend(f, None, u, bias),
        "attention backward": lambda: launch.attend_backward(f, keys, u, bias, grad, norm),
        "attention backward, q = k": lambda: launch.attend_backward(f, None, u, bias, grad, norm),
        "attention forward, q = k = v": lambda: launch.attend(f, None, None, bias),
        "attention backward, q = k = v": lambda: launch.attend_backward(f, None, None, bias, keys, norm),
        "DUST mix forward": lambda: launch.mix(f, u, h, dust),
        "DUST mix backward": lambda: launch.mix_gradients(f, u, h, dust, grad, True),
        "UT mix forward": lambda: launch.mix(f, u, h, ut),
        "UT mix backward": lambda: launch.mix_gradients(f, u, h, ut, grad, False),
    }


def launches(shape: Shape, dtype: torch.dtype) -> Iterator[tuple[str, Launch]]:
    """What each of the calls would start."""
    from vdenoise.ops._triton import launch

    recorded: list[Launch] = []

    def record(kernel: Any, _: int, arguments: Any, constants: Any, warps: int) -> None:
        recorded.append(Launch(kernel, arguments, constants, warps))

    with mock.patch.object(launch, "launch", record):
        for name, call in calls(shape, dtype).items():
            call()
            yield name, recorded.pop()


def resources(one: Launch, architecture: int) -> dict[str, int]:
    """Compile for an architecture; registers per thread, spilled bytes, shared memory in bytes.

    Raises:
        ValueError: where the assembler's report can't be read.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from vdenoise.ops._triton.launch import REGISTERS

    signature, constants, attributes = specialised(one)
    source = ASTSource(one.kernel, signature, constants, attributes)
    target = GPUTarget("cuda", architecture, 32)
    compiled = triton.compile(source, target=target, options={"num_warps": one.warps, "maxnreg": REGISTERS})
    report = assembler_report(compiled.asm["ptx"], architecture)
    found = re.search(
        r"(\d+) bytes spill stores, (\d+) bytes spill loads[\s\S]*?Used (\d+) registers", report
    )
    if found is None:
        raise ValueError(f"ptxas -v said nothing of registers, but {report.strip()[:200]!r}")
    stores, loads, registers = map(int, found.groups())
    return {
        "registers": registers,
        "spill_bytes": stores + loads,
        "shared_bytes": compiled.metadata.shared,
        "warps": one.warps,
    }


def specialised(one: Launch) -> tuple[dict[str, str], dict[tuple[int], Any], dict[tuple[int], Any]]:
    """Types, constants and divisibility of the arguments, as Triton's launcher derives them."""
    signature: dict[str, str] = {}
    constants: dict[tuple[int], Any] = {}
    attributes: dict[tuple[int], Any] = {}
    values = dict(zip(one.kernel.arg_names, one.arguments, strict=False)) | one.constants
    for i, name in enumerate(one.kernel.arg_names):
        value = values[name]
        is_tensor = isinstance(value, torch.Tensor)
        if value is None or name in one.constants or (not is_tensor and value == 1):
            signature[name], constants[(i,)] = "constexpr", value
            continue
        signature[name] = POINTERS[value.dtype] if is_tensor else "i32" if value < 2**31 else "i64"
        if is_tensor or value % 16 == 0:
            attributes[(i,)] = [["tt.divisibility", 16]]
    return signature, constants, attributes


def assembler_report(ptx: str, architecture: int) -> str:
    """What ``ptxas -v`` says of a kernel."""
    from triton import knobs

    ptxas = knobs.nvidia.ptxas_blackwell if architecture >= 100 else knobs.nvidia.ptxas
    found = re.search(r"^\.target (sm_\w+)", ptx, re.MULTILINE)
    assert found is not None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.ptx")
        path.write_text(ptx)
        command = [
            ptxas.path,
            "-v",
            f"--gpu-name={found[1]}",
            str(path),
            "-o",
            str(path.with_suffix(".cubin")),
        ]
        return subprocess.run(command, capture_output=True, text=True, check=True).stderr


def sources_hash() -> str:
    """Of all kernels and their launcher: a result belongs to the sources that it was made from."""
    from vdenoise.ops import _triton

    folder = Path(_triton.__file__).parent
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py")))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
