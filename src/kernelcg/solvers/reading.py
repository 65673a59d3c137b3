"""Copying small results from the device that computed them to the host."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]
"""A NumPy array of floats, in the memory of the host."""

Flags = NDArray[np.bool_]
"""A NumPy array with one truth value for each column, in the memory of the host."""


def read(*tensors: Tensor) -> list[Floats]:
    """Return float64 copies of small tensors on the host, all of them brought there in one transfer.

    A transfer from a GPU waits until the GPU has done everything that it was asked for, so an iteration can afford one.
    Every decision that an iteration takes is based on the numbers returned here. Integers up to 2⁵³ stay exact.
    """
    packed = torch.cat([tensor.reshape(-1).double() for tensor in tensors]).numpy(force=True)
    parts = np.split(packed, np.cumsum([tensor.numel() for tensor in tensors])[:-1])
    return [part.reshape(tuple(tensor.shape)) for part, tensor in zip(parts, tensors, strict=True)]
