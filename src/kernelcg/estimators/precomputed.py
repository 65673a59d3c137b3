"""A kernel whose matrix the user has computed."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernelcg.kernels import Kernel

CLOSE = 1e-8
"""Difference between the two halves of a symmetric matrix, relative to its largest entry, that is rounding."""


@dataclass(frozen=True, eq=False, repr=False)
class Entries:
    """A matrix of the user; it is no hyperparameter."""

    K: Tensor

    def __repr__(self) -> str:
        return f"a matrix of {len(self.K)} rows"


class Precomputed(Kernel):
    """K(i, j) is the entry of a given matrix; the only feature of a row is its number."""

    entries: Entries

    @classmethod
    def of(cls, K: NDArray[np.float64], device: torch.device) -> "Precomputed":
        """Return the kernel of a given matrix, which must be square and symmetric."""
        n = len(K)
        if K.shape != (n, n):
            raise ValueError(
                f"kernel='precomputed' takes the kernel matrix of the training rows for X, which is square, not "
                f"{K.shape[0]} x {K.shape[1]}"
            )
        gap = np.abs(K - K.T)
        if gap.max() > CLOSE * np.abs(K).max():
            i, j = divmod(int(gap.argmax()), n)
            raise ValueError(f"X is no kernel matrix: X[{i}, {j}] is {K[i, j]:.6g} but X[{j}, {i}] is {K[j, i]:.6g}")
        return cls(Entries(torch.from_numpy(np.array(K)).to(device)))

    @staticmethod
    def rows(n: int) -> NDArray[np.float64]:
        """Return the numbers of the rows, as data with one feature."""
        return np.arange(n, dtype=np.float64)[:, None]

    def covariance(self, X: Tensor, Y: Tensor) -> Tensor:
        return self.entries.K[_numbers(X)][:, _numbers(Y)].to(X)

    def diagonal(self, X: Tensor) -> Tensor:
        return self.entries.K.diagonal()[_numbers(X)].to(X)

    def rounding_lengths(self, X: Tensor) -> Tensor:
        """Return 0: the entries are taken for exact."""
        return torch.zeros(len(X), dtype=torch.float64, device=X.device)


def _numbers(X: Tensor) -> Any:
    return X[:, 0].long()
