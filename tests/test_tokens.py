"""Where patches lie: what the grid promises of every pixel, beyond what test_models.py asks of the maps."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vdenoise.models.tokens import PatchGrid


@given(st.integers(8, 25), st.integers(8, 25), st.sampled_from([(8, 8), (8, 4), (8, 1), (6, 2), (4, 2)]))
@settings(deadline=None, max_examples=25)
def test_every_pixel_lies_in_as_many_patches(height, width, shape):
    grid = PatchGrid(*shape)
    blocks = torch.ones_like(grid.to_blocks(torch.zeros(1, 1, 1, height, width)))
    count = grid.from_blocks(grid.fold(grid.unfold(blocks)), height, width)
    torch.testing.assert_close(count, torch.full_like(count, grid.overlap**2))


def test_the_border_is_mirrored():
    grid = PatchGrid(4, 2)
    frame = torch.arange(64.0).view(1, 1, 1, 8, 8)
    corner = grid.unfold(grid.to_blocks(frame))[0, 0, 0, 0, 0]
    rows = corner.view(2, 2, 2, 2).permute(0, 2, 1, 3).reshape(4, 4)  # blocks, then pixels of a block
    mirrored = frame[0, 0, 0][[2, 1, 0, 1]][:, [2, 1, 0, 1]]
    torch.testing.assert_close(rows, mirrored)
