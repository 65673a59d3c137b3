"""Squared Euclidean distances without cancellation."""

from typing import Any

import torch
from torch import Tensor

LARGEST = {torch.float64: 1e300, torch.float32: 1e30}
"""Largest distance and squared distance in each precision; larger ones are set to it, so that no formula meets ∞ · 0.

In float64 every correlation of the library is 0 at this distance. In float32 a rational quadratic one may fall so
slowly that it is not yet 0.
"""


class _SquaredDistances(torch.autograd.Function):
    """Σ_r (x_ir − y_jr)², feature by feature, forwards and backwards.

    The usual |x|² + |y|² − 2xᵀy is faster but loses digits where they matter most: between close points.
    One (n, m) scratch tile is used whatever the number of features, and none is kept for the backward pass.
    """

    @staticmethod
    def forward(ctx: Any, X: Tensor, Y: Tensor) -> Tensor:
        ctx.save_for_backward(X, Y)
        total = X.new_zeros(len(X), len(Y))
        difference = torch.empty_like(total)
        for x, y in zip(X.T, Y.T, strict=True):
            torch.sub(x[:, None], y, out=difference)
            total.addcmul_(difference, difference)
        return total.clamp_(max=LARGEST[total.dtype])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        (weights,) = gradients
        X, Y = ctx.saved_tensors
        by_X, by_Y = [], []
        for x, y in zip(X.T, Y.T, strict=True):
            pull = 2 * weights * (x[:, None] - y)
            by_X.append(pull.sum(1))
            by_Y.append(-pull.sum(0))
        return torch.stack(by_X, 1), torch.stack(by_Y, 1)


def squared_distances(X: Tensor, Y: Tensor) -> Tensor:
    """Return Σ_r (x_ir − y_jr)² as an (n, m) tensor by direct differences, exactly 0 between equal points.

    Costs O(n m d) time and two (n, m) tiles of memory. Differentiable once.

    Parameters
    ----------
    X, Y : (n, d) and (m, d) points

    Examples
    --------
    >>> import torch
    >>> from kernelcg.kernels import squared_distances
    >>> squared_distances(torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]]))
    tensor([[25.]])
    """
    if X.shape[1] != Y.shape[1]:
        raise ValueError(f"X has {X.shape[1]} features but Y has {Y.shape[1]}; they must be equal")
    result: Tensor = _SquaredDistances.apply(X, Y)  # type: ignore[no-untyped-call]
    return result


def distances(squared: Tensor) -> Tensor:
    """Return √s, with derivative 0 where s = 0.

    That is the right limit for every kernel that is flat at distance 0 or has a kink there.

    Parameters
    ----------
    squared : squared distances s of any shape

    Examples
    --------
    >>> import torch
    >>> from kernelcg.kernels import distances
    >>> distances(torch.tensor([0.0, 25.0]))
    tensor([0., 5.])
    """
    return squared.clamp_min(torch.finfo(squared.dtype).tiny).sqrt() * (squared > 0)
