"""Conjugate gradients, with and without a constant preconditioner."""

import torch
from torch import Tensor

from kernelcg.solvers.columns import dot, ratio
from kernelcg.solvers.monitor import Monitor


def pcg(monitor: Monitor) -> Tensor:
    r"""Solve :math:`A X = B`, every column of B on its own, for positive definite A and constant P.

    Column by column, with :math:`z = P^{-1} r`, the iteration is

    .. math:: x \gets x + \alpha d, \quad r \gets r - \alpha A d, \quad d \gets z + \beta d, \qquad
        \alpha = \frac{r^\top z}{d^\top A d}, \quad
        \beta = \frac{(r^\top z)_{\text{new}}}{(r^\top z)_{\text{old}}}.

    Each iteration costs one product with A and one solve with P.

    References
    ----------
    Saad (2003), Iterative Methods for Sparse Linear Systems, algorithm 9.1. Algorithm 1 of Cutajar et al.
    (2016) has four misprints here, see ``tests/paper/test_errata.py``.
    """
    X, R = monitor.begin()
    Z = monitor.preconditioned(R)
    D = Z

    while monitor.wants_more():
        AD = monitor.product(D)
        rz, curvature = dot(R, Z), dot(D, AD)
        alpha = monitor.step_length(dot(R, D), curvature, dot(D, D))
        X = X + alpha * D
        R = monitor.checked(X, R - alpha * AD)
        Z = monitor.preconditioned(R)
        beta = torch.where(monitor.replaced, -ratio(dot(Z, AD), curvature), ratio(dot(R, Z), rz))
        fresh = monitor.restarts()
        D = Z if fresh else Z + beta * D
        monitor.spectrum.add_step(alpha, torch.where(monitor.replaced | fresh, 0.0, beta))

    return X
