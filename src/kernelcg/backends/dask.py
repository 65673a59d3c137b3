"""Dask backend: products with K and their gradients on the workers of a cluster, in fixed blocks of rows."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from torch import Tensor

from kernelcg.backends.base import Answer, Backend, KernelMatrix, Points
from kernelcg.backends.cluster import Cluster, Workforce, missing
from kernelcg.backends.dask_matrix import DaskMatrix, DaskPoints
from kernelcg.backends.references import Reference
from kernelcg.backends.registry import default
from kernelcg.backends.rounding import centre_of
from kernelcg.kernels import Kernel

if TYPE_CHECKING:
    from distributed import Client

STORED_SHARE = 0.5
"""Part of the memory of all workers that the entries of K may take, if they are stored: Dask pauses fuller workers."""

LEAST_BLOCK = 5000
"""Rows of a block at least. The tile of two such blocks takes a hundredth of a second, sending it a thousandth."""

BLOCK_GROWTH = 29.0
"""Blocks have this times √n rows. With n both the tiles grow more numerous, so that there is work for more workers, and
each of them larger, so that less is sent for each pair."""


def number_of_blocks(n: int, block_rows: int | None = None) -> int:
    """Return into how many blocks n rows are cut, by default as many as n alone asks for."""
    most = block_rows or max(LEAST_BLOCK, math.ceil(BLOCK_GROWTH * math.sqrt(n)))
    return max(math.ceil(n / most), 1)


@dataclass(frozen=True, eq=False)
class Dask(Backend):
    """Products and gradients on the workers of a Dask cluster, each with its own best backend.

    The rows are cut into blocks whose number depends on n alone, and what workers return is added in the order of
    the blocks: results have the same bits whatever the number of workers and whichever of them is lost, as long as all
    workers have the same kind of processor. Fewer rows than a block are treated here. So are single entries of K of few
    features, which take less time to compute than to send. Once the connection is closed, everything is done here.

    Parameters
    ----------
    memory, threads, work : as in `Backend`, of this machine
    client : a connection to the cluster
    block_rows : rows of a block; None leaves them to n
    reference : from where workers read X, if that is mapped from a file; other data are sent to them
    patience : seconds without any worker after which an operation raises `kernelcg.errors.ClusterFailed`

    Examples
    --------
    >>> import torch
    >>> from kernelcg.backends import Dask
    >>> from kernelcg.kernels import RBF
    >>> from distributed import Client
    >>> with Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=":0") as client:
    ...     K = Dask(client=client).bind(RBF(1.0), torch.zeros(3, 2))
    ...     print(K.product(torch.ones(3, 1)).T)
    tensor([[3., 3., 3.]])
    """

    client: "Client | None" = field(default=None, kw_only=True, repr=False)
    block_rows: int | None = field(default=None, kw_only=True)
    reference: Reference | None = field(default=None, kw_only=True, repr=False)
    patience: float = field(default=60.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.client is None:
            raise ValueError(
                "the dask backend needs a connection to a cluster: use GPRegressor(cluster=...), or "
                "kernelcg.backends.Dask(client=distributed.Client(...))"
            )

    @classmethod
    def why_not(cls) -> str | None:
        return missing()

    @classmethod
    def preference(cls, device: str) -> int | None:
        return None

    @property
    def cluster(self) -> Cluster:
        """Return the connection."""
        return Cluster(self.client, self.patience)  # type: ignore[arg-type]  # __post_init__ has refused None

    @property
    def here(self) -> Backend:
        """Return the backend for what is done in this process."""
        return default(self.memory, self.threads)

    @property
    def copies(self) -> int:
        return super().copies if self.reference is None else 0

    def each_worker(self, ask: Callable[[], Answer]) -> list[tuple[int, Answer]] | None:
        return self.cluster.each(ask) if self.cluster.is_open else None

    def memory_of_all_workers(self) -> int:
        return self._workforce.memory

    def memory_of_workers(self) -> int:
        return int(STORED_SHARE * self._workforce.memory)

    @cached_property
    def _workforce(self) -> Workforce:
        """Return who could work at first: what is decided by it stays decided when a worker is lost."""
        return self.cluster.workforce()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle no connection: a model that was fitted on a cluster is unpickled for the machine it gets to."""
        return default, (self.memory, self.threads)

    def computes(self, kernel: Kernel, X: Tensor) -> bool:
        return True

    def place(self, X: Tensor, centre: Tensor | None = None) -> Points:
        """Return the data, which are sent to the workers when a product needs them there."""
        X = X.detach().cpu()
        return DaskPoints(X, self, centre_of(X) if centre is None else centre, X[:0].double(), self)

    def matrix(self, kernel: Kernel, points: Points) -> KernelMatrix:
        if not isinstance(points, DaskPoints):
            raise TypeError("the dask backend has no kernel matrix at points that another backend has placed")
        return points.here.bind(kernel) if len(points.slices) < 2 else DaskMatrix(kernel, points, self, points)

    def slices(self, n: int) -> tuple[slice, ...]:
        """Return the rows of each block, as equal as whole numbers allow."""
        count = number_of_blocks(n, self.block_rows)
        ends = [n * number // count for number in range(count + 1)]
        return tuple(slice(start, stop) for start, stop in pairwise(ends))
