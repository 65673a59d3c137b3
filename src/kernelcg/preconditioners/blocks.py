"""How rows are divided into blocks."""

import math
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kernelcg.backends import KernelMatrix


class Layout(StrEnum):
    """How rows are divided into blocks; the value is what users type."""

    SPATIAL = "spatial"
    CONTIGUOUS = "contiguous"


def row_blocks(K: KernelMatrix, layout: str, size: int | None) -> list[NDArray[np.int64]]:
    """Return sets of rows: close points together ("spatial"), or in file order as in the paper ("contiguous").

    ``size`` is the number of rows in a block; None means about √n blocks. Contiguous blocks of a file that is
    sorted by something and those of a shuffled file are different preconditioners (errata, item 33).
    """
    n = len(K)
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
        raise ValueError(f"block_size must be a positive integer or None, not {size!r}")
    if layout not in tuple(Layout):
        raise ValueError(f"blocks must be one of {', '.join(Layout)}, not {layout!r}")
    if Layout(layout) is Layout.SPATIAL:
        return bisected(K.kernel.coordinates(K.X.double()), size or -(-n // math.isqrt(n)))
    count = math.isqrt(n) if size is None else -(-n // size)
    return [np.asarray(rows) for rows in np.array_split(np.arange(n), count)]


def bisected(points: Tensor, size: int) -> list[NDArray[np.int64]]:
    """Return row numbers of blocks of at most ``size`` close points: halve the widest direction again and again."""
    coordinates = points.cpu().numpy() if points.shape[1] else np.zeros((len(points), 1))
    blocks: list[NDArray[np.int64]] = []
    queue = [np.arange(len(coordinates))]
    while queue:
        rows = queue.pop()
        if len(rows) <= size:
            blocks.append(rows)
            continue
        widest = np.ptp(coordinates[rows], axis=0).argmax()
        halves = np.argpartition(coordinates[rows, widest], len(rows) // 2)
        queue += [rows[halves[: len(rows) // 2]], rows[halves[len(rows) // 2 :]]]
    return blocks
