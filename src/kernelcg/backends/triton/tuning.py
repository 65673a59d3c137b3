"""Which tiles are fastest on a device: a few are tried for each kind of work, and a file keeps what was found.

The environment variable KERNELCG_TILES names such a file; without it the tiles of `shapes.tile_for` serve. Tiles change
the order of sums and so the last bits of results: that is why nothing is tuned unless it is asked for.
"""

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from kernelcg.backends.triton import launches
from kernelcg.backends.triton.forms import by_feature, fixed_point, step_for
from kernelcg.backends.triton.launches import Tile
from kernelcg.backends.triton.shapes import TRIAL_RADIUS, Shape, key_of, why_wrong

ROWS = 16_384
"""Rows of the product or gradient that is timed: about a millisecond on a large GPU."""

BETTER = 1.05
"""A tile replaces that of the table if it is so many times as fast."""

CANDIDATES = {
    torch.float32: [(64, 32, 4), (64, 64, 4), (64, 128, 4), (128, 32, 4), (128, 64, 4), (128, 64, 8), (128, 128, 8)],
    torch.float64: [(16, 32, 4), (32, 16, 4), (32, 32, 4), (32, 64, 8), (64, 32, 4), (64, 32, 8), (64, 64, 8)],
}
"""Rows, columns and warps of the tiles that are tried, in two and three stages each."""


def candidates(shape: Shape) -> list[Tile]:
    """Return the tiles to try, that of the table first."""
    tried = [Tile(*numbers, stages) for numbers in CANDIDATES[shape.dtype] for stages in (2, 3)]
    return [shape.tile, *(tile for tile in tried if tile != shape.tile)]


def fastest(shape: Shape, device: torch.device, seconds: Callable[[Callable[[], object]], float]) -> dict[Tile, float]:
    """Return the seconds of every tile that is right on the device, the fastest first; ``seconds`` times a call."""
    work, found = _work(shape, device), {}
    for tile in candidates(shape):
        if why_wrong(shape.with_tile(tile), device) is None:
            found[tile] = seconds(lambda tile=tile: work(tile))  # type: ignore[misc]
    return dict(sorted(found.items(), key=lambda pair: pair[1]))


def chosen(shape: Shape, times: dict[Tile, float]) -> Tile:
    """Return the fastest tile, or that of the table if it is nearly as fast."""
    if not times:
        return shape.tile
    best = min(times, key=lambda tile: times[tile])
    return shape.tile if times.get(shape.tile, math.inf) <= BETTER * times[best] else best


def write(path: Path, tiles: Iterable[tuple[Shape, Tile]]) -> None:
    """Write a file that KERNELCG_TILES may name."""
    found = {key_of(shape): [tile.rows, tile.columns, tile.warps, tile.stages] for shape, tile in tiles}
    path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _work(shape: Shape, device: torch.device) -> Callable[[Tile], object]:
    """Return a function that does the work of a shape with a tile."""
    generator = torch.Generator().manual_seed(0)
    Z, V = (
        torch.randn(ROWS, count, generator=generator, dtype=torch.float64).to(device)
        for count in (shape.features, shape.columns)
    )
    Z, V = Z / math.sqrt(shape.features), V / V.abs().max()
    A = fixed_point(Z, step_for(TRIAL_RADIUS)) if shape.fixed else by_feature(Z, shape.dtype)
    if shape.work == "product":
        return lambda tile: launches.product(A, A, V, shape.profile, tile)
    if shape.work == "moments":
        return lambda tile: launches.gradient_by_moments(A, A, (Z, Z), (V, V), shape.profile, tile, TRIAL_RADIUS)
    if shape.work == "gradient":
        return lambda tile: launches.gradient(A, A, (V, V), None, shape.profile, tile, per_feature=True)
    raise ValueError(f"tiles are tuned for products, moments and gradients, not for {shape.work!r}")
