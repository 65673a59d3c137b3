"""An order of points in which neighbours are together, where many pairs are too far apart for their values to count."""

import math

import torch
from scipy.spatial import KDTree
from torch import Tensor

LEAST_ROWS = 3000
"""Rows from which on distant pairs are looked for: a product of fewer takes milliseconds."""

WORTHWHILE = 0.7
"""Part of the pairs that may be near for an order to be used: to find out which they are costs a twentieth of a
product."""

BLOCKS = 256
"""Blocks of rows of which all pairs are looked at, to see how many are near."""

LEAF = 32
"""Points that a leaf of the tree holds at most."""


def space_order(points: Tensor, farthest: float) -> Tensor | None:
    """Return an order of points in which pairs of blocks are farther apart than that; None where too few can be.

    Parameters
    ----------
    points : (n, d), in units of the lengthscales
    farthest : distance at which values begin to be negligible

    Returns
    -------
    Tensor or None : (n,) row numbers: the leaves of a k-d tree, one after the other
    """
    if len(points) < LEAST_ROWS or not farthest < float((points.amax(0) - points.amin(0)).norm()) < math.inf:
        return None
    order = leaves(points)
    return order if near_part(points[order], farthest) <= WORTHWHILE else None


def leaves(points: Tensor) -> Tensor:
    """Return the rows of (n, d) points in the order of the leaves of a k-d tree."""
    tree = KDTree(points.detach().numpy(), leafsize=LEAF, compact_nodes=False)
    return torch.from_numpy(tree.indices.astype("int64"))


def near_part(ordered: Tensor, farthest: float) -> float:
    """Return the part of the pairs of blocks of consecutive points that may hold a pair that is nearer than that."""
    blocks = ordered.split(math.ceil(len(ordered) / BLOCKS))
    lower, upper = (torch.stack([end(block) for block in blocks]) for end in (_least, _largest))
    gaps = torch.maximum(lower[:, None] - upper[None], lower[None] - upper[:, None]).clamp_min(0)
    return float((gaps.norm(dim=2) <= farthest).double().mean())


def rows_in(order: Tensor | None, values: Tensor) -> Tensor:
    """Return the rows of values in an order; None leaves them where they are."""
    return values if order is None else values[order]


def rows_back(order: Tensor | None, values: Tensor) -> Tensor:
    """Return the rows where they were before `rows_in`."""
    if order is None:
        return values
    result = torch.empty_like(values)
    result[order] = values
    return result


def _least(block: Tensor) -> Tensor:
    return block.amin(0)


def _largest(block: Tensor) -> Tensor:
    return block.amax(0)
