"""Flexible preconditioned conjugate gradients."""

from collections import deque

from torch import Tensor

from kernelcg.solvers.columns import dot, ratio
from kernelcg.solvers.monitor import Monitor

DIRECTIONS_KEPT = 20


def flexible_pcg(monitor: Monitor) -> Tensor:
    r"""Solve :math:`A X = B` when P⁻¹ is itself computed by iterations and differs from call to call.

    Each direction is made A-orthogonal to the last 20 explicitly, and the step searches along it:

    .. math:: d = z - \sum_i \frac{z^\top A d_i}{d_i^\top A d_i}\, d_i, \qquad \alpha = \frac{r^\top d}{d^\top A d}.

    Costs one product with A, one solve with P, and 40 stored blocks of the size of B.

    References
    ----------
    Notay (2000), Flexible conjugate gradients, SIAM J. Sci. Comput. 22(4).
    """
    X, R = monitor.begin()
    Z = monitor.preconditioned(R)
    past: deque[tuple[Tensor, Tensor, Tensor]] = deque(maxlen=DIRECTIONS_KEPT)

    while monitor.wants_more():
        D = Z
        for direction, product, curvature in past:
            D = D - ratio(dot(Z, product), curvature) * direction
        AD = monitor.product(D)
        curvature = dot(D, AD)
        alpha = monitor.step_length(dot(D, R), curvature, dot(D, D))
        X = X + alpha * D
        R = monitor.checked(X, R - alpha * AD)
        Z = monitor.preconditioned(R)
        past.append((D, AD, curvature))
        if monitor.restarts():
            past.clear()

    return X
