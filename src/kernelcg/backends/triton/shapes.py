"""Which tile serves which work, and whether the kernel compiled for it is right: tried once, before its first use."""

import json
import logging
import math
import os
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from kernelcg.backends.triton import launches
from kernelcg.backends.triton.forms import Coordinates, by_feature, fixed_point, power_of_two, step_for
from kernelcg.backends.triton.launches import Tile

SETTING = "KERNELCG_TILES"
"""Environment variable: the path of a file with tuned tiles."""

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
"""Largest relative error of a compiled kernel on the problem it is tried with."""

TRIAL_ROWS, TRIAL_COLUMNS = 130, 1100
"""Size of that problem: a tile that is not full, and several tiles in a row."""

TRIAL_RADIUS = 8.0
"""Length that no row of it has; they are normal in all features together."""


@dataclass(frozen=True)
class Shape:
    """What a kernel is compiled for: everything but the number of rows.

    Attributes
    ----------
    work : "product", "moments" (a gradient from fixed-point halves), "gradient", "gradient with weights" or "block"
    features : d
    columns : right-hand sides, rounded up to what is compiled
    fixed : whether distances come from fixed-point halves
    per_feature : whether a gradient has an entry for each feature
    """

    work: str
    dtype: torch.dtype
    profile: int
    features: int
    columns: int
    fixed: bool
    per_feature: bool
    tile: Tile

    def with_tile(self, tile: Tile) -> Self:
        """Return the same work with another tile."""
        return replace(self, tile=tile)

    def __str__(self) -> str:
        precision = str(self.dtype).removeprefix("torch.")
        return (
            f"{self.work} in {precision} with {self.features} features and {self.columns} columns "
            f"by tiles of {self.tile.rows} x {self.tile.columns}"
        )


def tile_for(work: str, dtype: torch.dtype, columns: int, *, fixed: bool) -> Tile:
    """Return the tile for some work: the largest that leaves all numbers in the registers of an NVIDIA H200."""
    wide = dtype == torch.float64
    if work == "block":
        return Tile(32, 64)
    if work == "moments":
        return Tile(64, 64) if columns <= 64 else Tile(64, 32)
    if work.startswith("gradient"):
        return Tile(32, 16) if wide else Tile(32, 32)
    if wide:
        return Tile(64, 32) if columns == 16 else Tile(32, 32)
    if fixed and columns <= 32:
        return Tile(128, 64)
    return Tile(32, 64) if columns == 1 else Tile(64, 64)


def shape_for(
    work: str, dtype: torch.dtype, profile: int, features: int, k: int, *, fixed: bool, per_feature: bool = True
) -> Shape:
    """Return the shape of some work with k columns."""
    columns = 1 if k == 1 and work == "product" else power_of_two(k, 16)
    tile = tile_for(work, dtype, columns, fixed=fixed)
    shape = Shape(work, dtype, profile, features, columns, fixed, per_feature, tile)
    path = os.environ.get(SETTING)
    return shape.with_tile(_stored(path).get(key_of(shape), tile)) if path else shape


def key_of(shape: Shape) -> str:
    """Return what a tuned tile is stored under: the work, and the features and columns rounded up to powers of two."""
    form = "fixed point" if shape.fixed else "direct"
    precision, features = str(shape.dtype).removeprefix("torch."), power_of_two(shape.features, 4)
    return f"{shape.work}, {precision}, {form}, {features} features, {shape.columns} columns"


@cache
def _stored(path: str) -> dict[str, Tile]:
    """Return the tiles in a file that `tuning.write` wrote; `ValueError` if it holds something else."""
    try:
        return {key: Tile(*numbers) for key, numbers in json.loads(Path(path).read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{SETTING}={path!r} names no file of tiles: {error}; write one with benchmarks/gpu.py tune"
        ) from None


@cache
def why_wrong(shape: Shape, device: torch.device) -> str | None:
    """Return why the kernel of this shape must not be used on a device, None if it compiles and is right.

    It is compared with torch in float64 on a small problem, once in a process; the reason is logged.
    """
    try:
        error = trial_error(shape, device)
    except Exception as failure:  # whatever compiling and launching can do: tiles serve instead
        reason = f"{type(failure).__name__}: {str(failure).strip().splitlines()[0] if str(failure).strip() else ''}"
    else:
        if error <= TOLERANCE[shape.dtype]:
            return None
        reason = f"its error is {error:.1g} where {TOLERANCE[shape.dtype]:.0g} is allowed"
    logging.getLogger("kernelcg").warning("torch tiles serve in place of the Triton %s: %s", shape, reason)
    return reason


def trial_error(shape: Shape, device: torch.device) -> float:
    """Return the largest relative error of a kernel on a problem with normal data."""
    generator = torch.Generator().manual_seed(0)

    def normal(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=generator, dtype=torch.float64).to(device)

    Z, Y = (normal(rows, shape.features) / math.sqrt(shape.features) for rows in (TRIAL_ROWS, TRIAL_COLUMNS))
    both = (1 + normal(len(rows), shape.columns) for rows in (Z, Y))  # mostly positive: sums that do not cancel
    left, right = (columns / columns.abs().max() for columns in both)
    if shape.work == "gradient with weights":
        Y, right = Z, left.flip(0)
    A, B = coordinates(Z, shape), coordinates(Y, shape)
    K, slopes = exact(Z, Y, shape.profile)
    how = (shape.profile, shape.tile)
    if shape.work == "product":
        return float((launches.product(A, B, right, *how) - K @ right).abs().max() / (K @ right.abs()).max())
    if shape.work == "block":
        one = torch.ones(1, dtype=shape.dtype, device=device)
        return float((launches.block(A, B, one, *how).double() - K).abs().max())
    w, weights = left @ right.T, None
    if shape.work == "gradient with weights":
        given = normal(len(Z), len(Z))
        w, weights = w + given / 2, (given, torch.full((1,), 0.5, dtype=torch.float64, device=device))
    if shape.work == "moments":
        found = launches.gradient_by_moments(A, B, (Z, Y), (left, right), *how, TRIAL_RADIUS)
    else:
        found = launches.gradient(A, B, (left, right), weights, *how, per_feature=shape.per_feature)
    squares = torch.stack([(x[:, None] - y).square() for x, y in zip(Z.T, Y.T, strict=True)])  # (d, n, m)
    truth = torch.cat([(w * slopes * squares).sum((1, 2)), (w * K).sum()[None]])
    size = torch.cat([(w.abs() * (K + slopes * squares)).sum((1, 2)), (w.abs() * K).sum()[None]])
    if len(found) < len(truth):
        truth, size = (torch.stack([value[:-1].sum(), value[-1]]) for value in (truth, size))
    return float(((found - truth).abs() / size).max())


def coordinates(Z: Tensor, shape: Shape) -> Coordinates:
    """Return scaled rows of the trial in the form that a shape reads."""
    return fixed_point(Z, step_for(TRIAL_RADIUS)) if shape.fixed else by_feature(Z, shape.dtype)


def exact(Z: Tensor, Y: Tensor, profile: int) -> tuple[Tensor, Tensor]:
    """Return correlations and slopes as `kernels` describes them, in float64 by torch."""
    q = torch.cdist(Z, Y, compute_mode="donot_use_mm_for_euclid_dist").square()
    if profile == 0:
        k = torch.exp2(-q)
        return k, k
    r = q.sqrt()
    e = torch.exp(-r)
    if profile == 1:
        return e, torch.where(q > 0, e / torch.where(q > 0, r, 1.0), 0.0)
    if profile == 2:
        return (1 + r) * e, e
    return (1 + r + q / 3) * e, (1 + r) * e / 3
