"""For each point its nearest neighbours among the points that come before it in a random order."""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Self

import numpy as np
import torch
from scipy.spatial import KDTree
from torch import Tensor

from kernelcg.threads import allowed

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
    search = Search.of(points, order, count, budget)
    pieces = level_pieces(len(points))
    return in_rows([search.look_up(piece, search.tree(piece.stop)) for piece in pieces], order.to(points.device))


class Piece(NamedTuple):
    """Points ranked [first, last), which are looked up among those ranked [0, stop), where their level ends."""

    first: int
    last: int
    stop: int


def level_pieces(n: int, most: int | None = None) -> list[Piece]:
    """Return the levels, which end at 512, 768, 1152, …, n; in pieces of ``most`` points if that is given."""
    ends = [0, min(FIRST_LEVEL, n)]
    while ends[-1] < n:
        ends.append(min(int(GROWTH * ends[-1]), n))
    return [
        Piece(first, min(first + (most or n), stop), stop)
        for start, stop in pairwise(ends)
        for first in range(start, stop, most or n)
    ]


def in_rows(ranks: list[Tensor], order: Tensor) -> Tensor:
    """Return row numbers for the ranks that pieces, first to last, have found; in the order of the rows."""
    found = torch.cat(ranks) if ranks else order.new_zeros(0, 0)
    result = torch.empty_like(found)
    result[order] = torch.cat([order, order.new_tensor([-1])])[found]
    return result


@dataclass(frozen=True, eq=False)
class Search:
    """Points in their order, among which earlier neighbours are looked up.

    Attributes
    ----------
    points : (n, c) centred coordinates, since passes over all pairs square them and large ones cost digits
    count : neighbours of each point
    tile : distances held at once
    by_tree : whether a k-d tree is used, else a pass over all pairs
    """

    points: Tensor
    count: int
    tile: int
    by_tree: bool

    @classmethod
    def of(cls, points: Tensor, order: Tensor, count: int, budget: int) -> Self:
        """Return the search for so many neighbours within a budget of bytes."""
        on_cpu, n = points.device.type == "cpu", len(points)
        tile = min(TILE if on_cpu else DEVICE_TILE, budget // BYTES_PER_DISTANCE)
        centred = points - points.mean(0)
        ordered = centred[order.to(points.device)] if points.shape[1] else points.new_zeros(n, 1)
        return cls(ordered, min(count, max(n - 1, 0)), tile, on_cpu and _tree_pays(ordered))

    def tree(self, stop: int) -> KDTree | None:
        """Return the tree of the first points, for a level that ends with them and needs one."""
        needed = self.by_tree and stop > FIRST_LEVEL and self.count and self._asked(stop) >= self.count
        return KDTree(self.points[:stop].numpy()) if needed else None

    def look_up(self, piece: Piece, tree: KDTree | None) -> Tensor:
        """Return the ranks of the nearest earlier neighbours of a piece, −1 where there are fewer."""
        if self.count == 0:
            return self.points.new_zeros(piece.last - piece.first, 0, dtype=torch.int64)
        ranks = torch.arange(piece.first, piece.last, device=self.points.device)
        return self._by_pairs(piece, ranks) if tree is None else self._by_tree(piece, ranks, tree)

    def _asked(self, stop: int) -> int:
        """Return how many points a tree is asked for: a third of them may come too late."""
        return min(stop, int(GROWTH * (self.count + 4 * math.sqrt(self.count))) + 1)

    def _by_tree(self, piece: Piece, ranks: Tensor, tree: KDTree) -> Tensor:
        asked = range(1, self._asked(piece.stop) + 1)
        found = tree.query(self.points[ranks].numpy(), k=asked, workers=allowed())[1]
        earlier = found < ranks.numpy()[:, None]
        chosen = np.take_along_axis(found, np.argsort(~earlier, axis=1, kind="stable")[:, : self.count], axis=1)
        short = earlier.sum(1) < self.count
        if short.any():
            chosen[short] = self._by_pairs(piece, ranks[torch.from_numpy(short)]).numpy()
        return torch.from_numpy(chosen)

    def _by_pairs(self, piece: Piece, ranks: Tensor) -> Tensor:
        """Return the same for some of the ranks of a piece by a pass over all pairs."""
        found, (first, _, stop) = [], piece
        perhaps_later = torch.arange(first, stop, device=self.points.device)
        for rows in ranks.split(max(self.tile // stop, 1)):
            distances = torch.cdist(self.points[rows], self.points[:stop])
            distances[:, first:].masked_fill_(perhaps_later[None, :] >= rows[:, None], torch.inf)
            distance, nearest = distances.topk(min(self.count, stop), largest=False)
            nearest[distance == torch.inf] = -1
            found.append(torch.nn.functional.pad(nearest, (0, self.count - nearest.shape[1]), value=-1))
        return torch.cat(found)


def _tree_pays(points: Tensor) -> bool:
    """Say whether the points fill few enough dimensions for a k-d tree."""
    spread = points[: 4 * FIRST_LEVEL].std(0) if len(points) > 1 else points.new_zeros(1)
    return int((spread > 0.1 * spread.max()).sum()) <= TREE_DIMENSIONS
