"""How the rows are cut into blocks."""

import math

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kernelcg.kernels import Kernel
from kernelcg.preconditioners.neighbours import bisected

LAYOUTS = ("spatial", "contiguous")


def row_blocks(kernel: Kernel, X: Tensor, layout: str, size: int | None) -> list[NDArray[np.int64]]:
    """Return sets of rows: close points together ("spatial"), or in file order as in the paper ("contiguous").

    ``size`` is the number of rows in a block; None means about √n blocks. Contiguous blocks of a file that is
    sorted by something and those of a shuffled file are different preconditioners (errata, item 33).
    """
    n = len(X)
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
        raise ValueError(f"block_size must be a positive integer or None, not {size!r}")
    if layout == "contiguous":
        count = math.isqrt(n) if size is None else -(-n // size)
        return [np.asarray(rows) for rows in np.array_split(np.arange(n), count)]
    if layout == "spatial":
        return bisected(kernel.coordinates(X.double()), size or -(-n // math.isqrt(n)))
    raise ValueError(f"blocks must be one of {', '.join(LAYOUTS)}, not {layout!r}")
