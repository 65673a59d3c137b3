"""Latent covariances by solves that go on until a rigorous bound of their errors is small enough."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from kernelcg.inference.laplace.explained import Explained, Task, forms
from kernelcg.solvers import Status

GUESSES, TIGHTENINGS = 2, 5
"""Corrections by P⁻¹, and solves after these, until the error is small enough."""


def certified(task: Task) -> Explained:
    """Return what the data explain at all points, in chunks."""
    parts: list[Explained] = []
    for points in torch.arange(len(task.X), device=task.X.device).split(task.columns):
        B = task.right(task.kernel(points))
        parts.append(tightened(task, points, B))
        task.tell_of(parts)
    return Explained.joined(parts)


def tightened(task: Task, points: Tensor, B: Tensor, start: tuple[Tensor, Tensor] | None = None) -> Explained:
    """Solve A V = B until the variances are known to the tolerance, or no better; ``start`` is V and B − A V.

    With ρ = B − A V the form bᵀA⁻¹b is bᵀv + vᵀρ + ρᵀA⁻¹ρ. The last part is at most ρᵀP⁻¹ρ for a known P ⪯ A, or ‖ρ‖²
    since A ⪰ I. P⁻¹ρ is the first correction and the second: often good enough, for one product each.
    """
    system, numerics, C = task.system, task.posterior.numerics, task.classes
    exact, below = system.A.with_precision(torch.float64), system.below()
    stopping, tolerance = replace(numerics.stopping, rtol=0.0, atol=0.0), task.posterior.variance_tolerance
    prior = task.prior[points].repeat_interleave(C)
    enough = (0.1 * tolerance * (prior + task.beside).clamp_min(1e-300)).sqrt()  # of ‖ρ‖, until more is known
    V, residual = (torch.zeros_like(B), B.clone()) if start is None else (start[0].clone(), start[1].clone())
    error = torch.full_like(prior, math.inf)
    open_, status = torch.arange(B.shape[1], device=B.device), Status.CONVERGED
    for attempt in range(TIGHTENINGS):
        left = residual[:, open_]
        if below is not None and attempt < GUESSES:
            V[:, open_] += below.solve(left)
        else:
            solved = system.solve(left, replace(stopping, atol=float(enough[open_].min())))
            V[:, open_] += solved.solution
            status = solved.spent.status
        left = B[:, open_] - exact @ V[:, open_]
        residual[:, open_] = left
        error[open_] = (left * (left if below is None else below.solve(left))).sum(0)
        found = forms(B, V, residual, C)
        excess = error / task.allowed(points, found, error.reshape(-1, C)).reshape(-1)
        excess = torch.where(
            error == 0, 0.0, excess
        )  # 0 is enough where nothing is allowed: at points with k(x, x) = 0
        enough = enough.minimum(0.5 * residual.norm(dim=0) / excess.clamp_min(1.0).sqrt())
        open_ = (~(excess <= 1)).nonzero()[:, 0]
        if len(open_) == 0 or status is not Status.CONVERGED:
            break
    failed = Status.PRECISION_EXHAUSTED if status is Status.CONVERGED else status
    total = error.reshape(-1, C).sum(1) + task.rounding(points, V)
    return Explained(points, found, total, Status.CONVERGED if len(open_) == 0 else failed)
