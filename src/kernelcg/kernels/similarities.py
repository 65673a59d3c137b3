"""Kernels of things that are no points: categories, sets and counts."""

from typing import ClassVar

import torch
from torch import Tensor

from kernelcg.kernels.base import Kernel
from kernelcg.kernels.stationary import per_feature


class Hamming(Kernel):
    r"""Kernel of categories, :math:`\sigma^2 \exp(-\sum_r [x_r \ne y_r] / l_r)`.

    Each feature holds the number of a category. If categories are one-hot instead, two features differ where one
    category does, so that the lengthscale has to be twice as long. The kernel is positive semi-definite because each
    of its factors is a positive constant plus a positive multiple of the indicator that two categories are the same.

    Parameters
    ----------
    lengthscale : one number for all features or one for each: the number of differences over which the correlation
        falls by the factor e
    variance : k(x, x), in squared units of the function

    Examples
    --------
    >>> import torch
    >>> from kernelcg.kernels import Hamming
    >>> X = torch.tensor([[2.0, 7.0], [3.0, 7.0]])
    >>> Hamming(1.0)(X, X)
    tensor([[1.0000, 0.3679],
            [0.3679, 1.0000]])
    """

    SCALARS: ClassVar[tuple[str, ...]] = ("variance",)

    lengthscale: Tensor
    variance: Tensor = torch.tensor(1.0, dtype=torch.float64)

    def covariance(self, X: Tensor, Y: Tensor) -> Tensor:
        per_feature(self.lengthscale, X.shape[1], "lengthscale")
        total = X.new_zeros(len(X), len(Y))
        for x, y, scale in zip(X.T, Y.T, self.lengthscale.expand(X.shape[1]), strict=True):
            total = total + (x[:, None] != y).to(X.dtype) / scale
        return self.variance * torch.exp(-total)

    def diagonal(self, X: Tensor) -> Tensor:
        per_feature(self.lengthscale, X.shape[1], "lengthscale")
        return self.variance.to(X).expand(len(X))

    def rounding_lengths(self, X: Tensor) -> Tensor:
        """Return 1: comparing categories needs no rounding, and that of the exponent matters only where it is small."""
        return X.new_ones(len(X))


class Tanimoto(Kernel):
    r"""Kernel of sets and counts, :math:`\sigma^2 \, x^\top y / (\|x\|^2 + \|y\|^2 - x^\top y)`.

    Between empty sets it is σ². For vectors of bits it is the size of the intersection over that of the union
    (Jaccard), the similarity of molecular fingerprints.

    Parameters
    ----------
    variance : k(x, x), in squared units of the function

    References
    ----------
    Ralaivola, Swamidass, Saigo & Baldi (2005), Graph kernels for chemical informatics, Neural Networks 18.

    Examples
    --------
    >>> import torch
    >>> from kernelcg.kernels import Tanimoto
    >>> X = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]])
    >>> Tanimoto()(X, X)
    tensor([[1.0000, 0.3333],
            [0.3333, 1.0000]])
    """

    SCALARS: ClassVar[tuple[str, ...]] = ("variance",)

    variance: Tensor = torch.tensor(1.0, dtype=torch.float64)

    def covariance(self, X: Tensor, Y: Tensor) -> Tensor:
        common = X @ Y.T
        union = X.square().sum(1)[:, None] + Y.square().sum(1) - common
        return self.variance * torch.where(union > 0, common / torch.where(union > 0, union, 1.0), 1.0)

    def diagonal(self, X: Tensor) -> Tensor:
        return self.variance.to(X).expand(len(X))

    def coordinates(self, X: Tensor) -> Tensor:
        """Return x / ‖x‖: points whose directions are close are similar."""
        length = X.norm(dim=1, keepdim=True)
        return X / torch.where(length > 0, length, 1.0)

    def rounding_lengths(self, X: Tensor) -> Tensor:
        """Return √d, the rounding of sums of d terms."""
        return X.new_full((len(X),), X.shape[1] ** 0.5)


class MinMax(Kernel):
    r"""Kernel of counts and other amounts, :math:`\sigma^2 \sum_r \min(x_r, y_r) / \sum_r \max(x_r, y_r)`.

    For vectors of bits it is `Tanimoto`.

    Parameters
    ----------
    variance : k(x, x), in squared units of the function

    References
    ----------
    Ralaivola, Swamidass, Saigo & Baldi (2005), Graph kernels for chemical informatics, Neural Networks 18.

    Examples
    --------
    >>> import torch
    >>> from kernelcg.kernels import MinMax
    >>> X = torch.tensor([[3.0, 1.0], [1.0, 0.0]])
    >>> MinMax()(X, X)
    tensor([[1.0000, 0.2500],
            [0.2500, 1.0000]])
    """

    SCALARS: ClassVar[tuple[str, ...]] = ("variance",)

    variance: Tensor = torch.tensor(1.0, dtype=torch.float64)

    def covariance(self, X: Tensor, Y: Tensor) -> Tensor:
        if bool((X < 0).any()) or bool((Y < 0).any()):
            raise ValueError("MinMax compares amounts, which must not be negative")
        low, high = X.new_zeros(len(X), len(Y)), X.new_zeros(len(X), len(Y))
        for x, y in zip(X.T, Y.T, strict=True):
            low += torch.minimum(x[:, None], y)
            high += torch.maximum(x[:, None], y)
        return self.variance * torch.where(high > 0, low / torch.where(high > 0, high, 1.0), 1.0)

    def diagonal(self, X: Tensor) -> Tensor:
        return self.variance.to(X).expand(len(X))

    def coordinates(self, X: Tensor) -> Tensor:
        """Return x / ‖x‖₁, the share of each feature."""
        total = X.sum(1, keepdim=True)
        return X / torch.where(total > 0, total, 1.0)

    def rounding_lengths(self, X: Tensor) -> Tensor:
        """Return √d, the rounding of sums of d terms."""
        return X.new_full((len(X),), X.shape[1] ** 0.5)
