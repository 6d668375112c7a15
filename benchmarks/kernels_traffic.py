"""Bytes that the kernels ask memory for, counted load by load and store by store, against the floor.

    TRITON_INTERPRET=1 python benchmarks/kernels_traffic.py

The floor is every sequence's inputs read once and its outputs written once. Parameters (gate, thresholds, h,
σ) and the programs' sums of their gradients are few and stay in a card's cache; they are counted apart. A
process of its own, as Triton takes its mode when it is imported; run_kernels.py --static starts it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch

from kernels_static import SHAPES, Shape, calls

SEQUENCES, PROGRAMS = 3, 2


def traffic(shape: Shape) -> Iterator[dict[str, Any]]:
    """Bytes per sequence of every kernel in float32: floor, asked for, and their ratio."""
    from vdenoise.ops._triton import launch

    run = launch.launch
    for name, call in calls(shape, torch.float32, SEQUENCES).items():
        arguments: tuple[Any, ...] = ()

        def record(kernel: Any, programs: int, given: tuple[Any, ...], constants: Any, warps: int) -> None:
            nonlocal arguments
            arguments = given
            run(kernel, programs, given, constants, warps)

        with mock.patch.multiple(launch, launch=record, PROGRAMS=PROGRAMS), counted() as touched:
            call()
        tensors = {x.data_ptr(): x for x in arguments if isinstance(x, torch.Tensor) and x.numel()}
        large = [x for x in tensors.values() if x.ndim >= 2 and x.shape[0] == SEQUENCES]
        asked = sum(inside(touched, x) for x in large)
        floor = sum(x.nbytes for x in large)
        yield {
            "kernel": name,
            "floor_bytes": floor / SEQUENCES,
            "bytes": asked / SEQUENCES,
            "ratio": asked / floor,
            "cached_bytes": (sum(map(len, touched)) * 4 - asked) / SEQUENCES,
        }


@contextmanager
def counted() -> Iterator[list[np.ndarray]]:
    """The addresses of all elements that the interpreter loads and stores."""
    from triton.runtime.interpreter import interpreter_builder as builder

    touched: list[np.ndarray] = []

    def watch(function: Callable[..., Any], mask_at: int) -> Callable[..., Any]:
        def watched(pointers: Any, *rest: Any) -> Any:
            touched.append(pointers.data[np.broadcast_to(rest[mask_at].data, pointers.data.shape)].ravel())
            return function(pointers, *rest)

        return watched

    load, store = builder.create_masked_load, builder.create_masked_store
    with mock.patch.multiple(builder, create_masked_load=watch(load, 0), create_masked_store=watch(store, 1)):
        yield touched


def inside(touched: list[np.ndarray], x: torch.Tensor) -> int:
    """Bytes of the accesses that fall into a tensor."""
    first, last = np.uint64(x.data_ptr()), np.uint64(x.data_ptr() + x.nbytes)
    return sum(int(((a >= first) & (a < last)).sum()) for a in touched) * x.element_size()


if __name__ == "__main__":
    found = [{"shape": name, **row} for name, shape in SHAPES.items() for row in traffic(shape)]
    json.dump(found, sys.stdout)
