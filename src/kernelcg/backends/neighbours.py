"""For each point its nearest neighbours among the points that come before it in a random order."""

import math
from itertools import pairwise

import numpy as np
import torch
from scipy.spatial import KDTree
from torch import Tensor

FIRST_LEVEL = 512
"""Points at the start of the order that are compared with one another directly."""

GROWTH = 1.5
"""Size of each level's tree relative to the one before; at most a third of its points come too late."""

TREE_DIMENSIONS = 15
"""Above so many coordinates a k-d tree visits most leaves, and a pass over all pairs is faster."""

TILE, DEVICE_TILE = 2**21, 2**27
"""Distances held at once in a pass over all pairs, at most: what a CPU's cache likes, what keeps a GPU busy."""

BYTES_PER_DISTANCE = 32
"""Memory of each, temporaries included."""


def earlier_neighbours(points: Tensor, order: Tensor, count: int, budget: int = 2**32) -> Tensor:
    """Return (n, count) row numbers of the nearest earlier points, −1 where there are fewer.

    The neighbours are the true nearest among *all* earlier points, the latest ones included; points at distance
    zero count like any other. Points [s, 1.5 s) of the order are looked up together, in a tree of the first 1.5 s
    of which the later ones are dropped, or by a pass over all pairs if there are many coordinates or a GPU.

    Parameters
    ----------
    points : (n, c) coordinates in which close means strongly correlated
    order : (n,) the row numbers from first to last
    budget : bytes that a pass over all pairs may use
    """
    on_cpu = points.device.type == "cpu"
    n, tile = len(points), min(TILE if on_cpu else DEVICE_TILE, budget // BYTES_PER_DISTANCE)
    count = min(count, max(n - 1, 0))
    result = torch.full((n, count), -1, dtype=torch.int64, device=points.device)
    if count:
        centred = points - points.mean(0)  # passes over all pairs square the coordinates: large ones cost digits
        ordered = centred[order.to(points.device)] if points.shape[1] else points.new_zeros(n, 1)
        look_up = _by_tree if on_cpu and _tree_pays(ordered) else _by_pairs
        ranks = torch.cat(
            [_by_pairs(ordered, 0, min(FIRST_LEVEL, n), count, tile)]
            + [look_up(ordered, start, stop, count, tile) for start, stop in pairwise(_levels(n))]
        )
        order = order.to(points.device)
        result[order] = torch.cat([order, order.new_tensor([-1])])[ranks]
    return result


def _levels(n: int) -> list[int]:
    """Return where one level ends and the next begins: 512, 768, 1152, …, n."""
    ends = [min(FIRST_LEVEL, n)]
    while ends[-1] < n:
        ends.append(min(int(GROWTH * ends[-1]), n))
    return ends


def _tree_pays(points: Tensor) -> bool:
    """Say whether the points fill few enough dimensions for a k-d tree."""
    spread = points[: 4 * FIRST_LEVEL].std(0) if len(points) > 1 else points.new_zeros(1)
    return int((spread > 0.1 * spread.max()).sum()) <= TREE_DIMENSIONS


def _by_tree(points: Tensor, start: int, stop: int, count: int, tile: int) -> Tensor:
    """Return the ranks of the nearest earlier neighbours of the points ranked [start, stop), by a k-d tree."""
    coordinates = points[:stop].numpy()
    asked = min(stop, int(GROWTH * (count + 4 * math.sqrt(count))) + 1)
    if asked < count:
        return _by_pairs(points, start, stop, count, tile)
    found = KDTree(coordinates).query(coordinates[start:], k=range(1, asked + 1), workers=-1)[1]
    earlier = found < np.arange(start, stop)[:, None]
    chosen = np.take_along_axis(found, np.argsort(~earlier, axis=1, kind="stable")[:, :count], axis=1)
    short = earlier.sum(1) < count
    if short.any():
        chosen[short] = _by_pairs(points, start, stop, count, tile, torch.from_numpy(short.nonzero()[0])).numpy()
    return torch.from_numpy(chosen)


def _by_pairs(points: Tensor, start: int, stop: int, count: int, tile: int, some: Tensor | None = None) -> Tensor:
    """Return the same by a pass over all pairs; the ranks of ``some`` of the points only, −1 where none is left."""
    ranks = torch.arange(start, stop, device=points.device) if some is None else start + some
    pieces = []
    for rows in ranks.split(max(tile // stop, 1)):
        distances = torch.cdist(points[rows], points[:stop])
        later = torch.arange(start, stop, device=points.device)[None, :] >= rows[:, None]
        distances[:, start:].masked_fill_(later, torch.inf)
        distance, nearest = distances.topk(min(count, stop), largest=False)
        nearest[distance == torch.inf] = -1
        pieces.append(torch.nn.functional.pad(nearest, (0, count - nearest.shape[1]), value=-1))
    return torch.cat(pieces)
