"""Neighbours and local factors on the workers of a cluster: all that costs O(n q²)."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from kernelcg.backends import cluster_tasks as tasks
from kernelcg.backends.cluster import Cluster
from kernelcg.backends.neighbours import in_rows, level_pieces
from kernelcg.kernels import Kernel

if TYPE_CHECKING:
    from distributed import Future


def neighbours_by_workers(
    cluster: Cluster, blocks: "list[Future[Any]]", kernel: Kernel, order: Tensor, count: int, size: int, budget: int
) -> Tensor:
    """Return what `KernelMatrix.neighbours` does; a task looks up about ``size`` points.

    Every worker gets the coordinates of all points, n c numbers, and trees of them.
    """
    coordinates = cluster.map(tasks.coordinates_of, blocks, kernel=kernel)
    search = cluster.map(tasks.search_in, [coordinates], order=order.numpy(), count=count, budget=budget)
    pieces = level_pieces(len(order), size)
    stops = sorted({piece.stop for piece in pieces})
    trees = dict(zip(stops, cluster.map(tasks.tree_in, search * len(stops), stops), strict=True))
    first, last, stop = zip(*pieces, strict=True)
    found = cluster.map(tasks.looked_up, search * len(pieces), first, last, stop, [trees[end] for end in stop])
    return in_rows([torch.from_numpy(np.array(ranks)) for ranks in cluster.collect(found)], order)


def local_factors_by_workers(
    cluster: Cluster,
    blocks: "list[Future[Any]]",
    K: Any,
    neighbours: Tensor,
    F: Tensor | None,
    scale: Tensor | None,
    diagonal: Tensor,
    size: int,
) -> Tensor:
    """Return what `KernelMatrix.local_factors` does for K on a cluster; a task has about ``size`` rows.

    Rows that are close together are done together, since they share most of their neighbours. As many tasks are under
    way as there are threads, so that this process holds no more copies of rows than that.
    """
    coordinates = cluster.map(tasks.coordinates_of, blocks, kernel=K.kernel)
    [order] = cluster.collect(cluster.map(tasks.close_together, [coordinates]))
    pieces = torch.from_numpy(np.array(order)).split(size)
    together = max(cluster.workforce().threads, 1)
    result = torch.empty(len(neighbours), neighbours.shape[1] + 1, dtype=torch.float64)
    for start in range(0, len(pieces), together):
        some = pieces[start : start + together]
        sent = [_dependent(K.X, rows, neighbours, F, scale, diagonal) for rows in some]
        done = cluster.map(tasks.local_factors_of, *zip(*sent, strict=True), kernel=K.kernel, centre=K.points.centre)
        for rows, values in zip(some, cluster.collect(done), strict=True):
            result[rows] = torch.from_numpy(np.array(values))
    return result


def _dependent(
    X: Tensor, rows: Tensor, neighbours: Tensor, F: Tensor | None, scale: Tensor | None, diagonal: Tensor
) -> tuple[Any, ...]:
    """Return everything that the local factors of some rows depend on, numbered anew, and the places of the rows."""
    J = torch.cat([neighbours[rows], rows[:, None]], 1)
    needed, places = torch.unique(torch.where(J >= 0, J, rows[:, None]), return_inverse=True)
    theirs = torch.full((len(needed), neighbours.shape[1]), -1)
    theirs[places[:, -1]] = torch.where(J >= 0, places, -1)[:, :-1]
    parts = (None if one is None else one[needed].double().numpy() for one in (F, scale, diagonal))
    return (X[needed].double().numpy(), theirs.numpy(), *parts, places[:, -1].numpy())
