"""Variances from neighbours: bounds on few rows, estimates of their gaps, and iterations where these are too wide."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernelcg.inference.gaussian.brackets import tightened
from kernelcg.inference.gaussian.explained import Explained, Task
from kernelcg.inference.gaussian.gaps import BELOW_A, MOST_STEPS, UNTRIED, Gap, observed_gap
from kernelcg.inference.gaussian.neighbourhoods import Neighbourhoods, points_within, trial
from kernelcg.planning.pricing import costs_of
from kernelcg.solvers.energy_descent import energy_descent

if TYPE_CHECKING:
    from kernelcg.inference.gaussian.posterior import Posterior

GROUP = 32
"""New points whose neighbourhoods are put together, fewer in little memory."""

NEIGHBOURS = (32, 64, 128, 256)
"""Rows near each point among which a pilot chooses."""

FIRST = 64
"""Rows near each point with which the pilot judges the correction."""

PILOT_GROUPS, PILOT_COLUMNS = 2, 16
"""Number of groups in the pilot, and number of their points, those with the widest gaps, whose gaps are computed."""

OF_PRODUCTS = 8
"""Error of an entry of K in products, relative to k(x, x), in units of their rounding: those of a row are alike."""

STEPS = 2
"""Iterations that a trial which is too wide needs, roughly: what the choice of the neighbours goes by."""


def explained_iteratively(task: Task) -> Explained:
    r"""Return what the data explain: from neighbours, or for a kernel without coordinates by iterations from P⁻¹k.

    For any v, with r = k − Av,

    .. math:: k^\top A^{-1} k = 2 k^\top v - v^\top A v + r^\top A^{-1} r.

    The first part is a lower bound, so that the variance is below what it leaves of k(x, x). With v from the rows near
    x it takes no product with K. The gap rᵀA⁻¹r is rᵀP⁻¹r up to the spectrum of P⁻¹A: a pilot sees how far these are
    apart. Points where the gap is not known well enough go on to block PCG from v.
    """
    posterior = task.posterior
    gap = BELOW_A if posterior.constant_preconditioner() is posterior.certifier().P else UNTRIED
    size = _points_of_group(task, FIRST)
    near = Neighbourhoods.of(posterior.A, task.X, size) if size else None
    if near is None:
        return _without_neighbours(task, gap)
    gap, q = _pilot(task, near, gap, size)
    parts: list[Explained] = []
    waiting: list[tuple[Tensor, ...]] = []
    for groups in near.batches(task.columns):
        points, K, V, R, least, energies = _trials(task, near, groups, q)
        wide = _too_wide(task, points, least, energies, gap)
        good = ~wide
        parts.append(_estimate(task, points[good], least[good], energies[good], gap, K[:, good], V[:, good]))
        if sum(len(one[0]) for one in waiting) + int(wide.sum()) > task.columns:
            parts.append(_iterated(task, gap, *_side_by_side(waiting)))
            waiting = []
        if bool(wide.any()):
            waiting.append((points[wide], V[:, wide], R[:, wide], least[wide]))
        task.tell_of(parts)
    if waiting:
        parts.append(_iterated(task, gap, *_side_by_side(waiting)))
        task.tell_of(parts)
    return Explained.joined(parts)


def _too_wide(task: Task, points: Tensor, least: Tensor, energies: Tensor, gap: Gap) -> Tensor:
    """Return for which points the estimate of the gap may be off by more than the tolerance."""
    error = gap.spread * energies
    return error > task.allowed(points, least + gap.middle * energies, error)


def _estimate(task: Task, points: Tensor, least: Tensor, energies: Tensor, gap: Gap, K: Tensor, V: Tensor) -> Explained:
    """Return what the data explain at some points from the lower bounds and the rᵀP⁻¹r of their trials V."""
    rounding, G, prior = task.posterior.rounding, task.posterior.drift_weights, task.prior[points]
    sizes = rounding.root.square() + rounding.diagonal
    relative = rounding.gamma + OF_PRODUCTS * torch.finfo(task.posterior.A.precision).eps
    rounded = relative * (prior + (sizes[:, None] * V.square()).sum(0))
    return Explained(
        points,
        torch.minimum(least + gap.middle * energies, prior),
        gap.spread * energies + rounded,
        K.T @ G.X + V.T @ G.R,
        ((gap.middle + gap.spread) * energies).clamp_min(0).sqrt(),
    )


def _points_of_group(task: Task, q: int) -> int:
    """Return how many points a group may have in memory if it takes the q rows near each of them."""
    A = task.posterior.A
    memory = task.posterior.sizes.for_columns * A.memory_budget()
    return points_within(memory, min(GROUP, task.columns), len(A), q)


def _side_by_side(waiting: list[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    points, V, R, least = zip(*waiting, strict=True)
    return torch.cat(points), torch.cat(V, dim=1), torch.cat(R, dim=1), torch.cat(least)


def _trials(
    task: Task, near: Neighbourhoods, groups: list[Tensor], q: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the points of the groups, and for these K, trials V, residuals R, lower bounds, and rᵀP⁻¹r."""
    A, P = task.posterior.A, task.posterior.constant_preconditioner()
    points = torch.cat(groups).to(task.X.device)
    K = task.kernel(points)
    V, R, least = torch.zeros_like(K), torch.empty_like(K), K.new_empty(K.shape[1])
    start = 0
    for group in groups:
        own = slice(start, start + len(group))
        found = trial(A, near.rows(group, q).to(A.device), K[:, own])
        V[found.rows, own], R[:, own], least[own] = found.v, found.R, found.explained
        start = own.stop
    return points, K, V, R, least, (R * P.solve(R)).sum(0)


def _without_neighbours(task: Task, gap: Gap) -> Explained:
    """Return what the data explain, by iterations from P⁻¹k."""
    P, parts = task.posterior.constant_preconditioner(), list[Explained]()
    for points in torch.arange(len(task.X), device=task.X.device).split(task.columns):
        K = task.kernel(points)
        V = P.solve(K)
        R = K - task.posterior.A @ V
        parts.append(_iterated(task, gap, points, V, R, (K * V + V * R).sum(0)))
        task.tell_of(parts)
    return Explained.joined(parts)


def _iterated(task: Task, gap: Gap, points: Tensor, V: Tensor, R: Tensor, least: Tensor) -> Explained:
    """Return what the data explain at some points, by iterations from V with residuals R; by solves if these fail."""
    posterior = task.posterior

    def wants_more(columns: Tensor, _: Tensor, energies: Tensor, gains: Tensor) -> Tensor:
        return _too_wide(task, points[columns], least[columns] + gains, energies, gap)

    P = posterior.constant_preconditioner()
    found = energy_descent(posterior.A, P, V, R, wants_more, max_steps=MOST_STEPS, callback=task.callback)
    K, done = task.kernel(points), found.done.to(points.device)
    lower, energies = least + found.gains, found.energies
    if posterior.A.precision is not torch.float64:  # the residuals of the iterations have drifted from the true ones
        R = K - posterior.A.with_precision(torch.float64) @ found.V
        lower, energies = (K * found.V + found.V * R).sum(0), (R * P.solve(R)).sum(0)
        done = done & ~_too_wide(task, points, lower, energies, gap)
    part = _estimate(task, points[done], lower[done], energies[done], gap, K[:, done], found.V[:, done])
    if bool(done.all()):
        return part
    return Explained.joined([part, _solved(task, points[~done], K[:, ~done], found.V[:, ~done])])


def _solved(task: Task, points: Tensor, K: Tensor, V: Tensor) -> Explained:
    """Return what the data explain at some points, by solves that end with rigorous bounds or with a reason."""
    posterior, G = task.posterior, task.posterior.drift_weights
    solved, status = tightened(
        posterior, K, task.prior[points], noise=task.noise[points], start=V, callback=task.callback
    )
    error = solved.error.square() + solved.quadratic_error
    drift = K.T @ G.X + solved.X.T @ G.R
    return Explained(points, solved.quadratic, error, drift, solved.error, status)


# the pilot


def _pilot(task: Task, near: Neighbourhoods, gap: Gap, size: int) -> tuple[Gap, int]:
    """Return how gaps relate to their estimates, and how many neighbours cost least with the iterations they leave.

    Groups have ``size`` points at most; only neighbours are tried of which the matrices of so many fit the memory.
    """
    if len(near.groups) < 2 * PILOT_GROUPS:
        return gap, FIRST
    groups = near.groups[len(near.groups) // 4 :: len(near.groups) // PILOT_GROUPS][:PILOT_GROUPS]
    gap = _observed_gap(task, near, groups, gap)
    best, least_seconds = FIRST, float("inf")
    for q in (q for q in NEIGHBOURS if _points_of_group(task, q) >= size):
        points, _, _, _, least, energies = _trials(task, near, groups, q)
        share = float(_too_wide(task, points, least, energies, gap).double().mean())
        rows = sum(len(near.rows(group, q)) for group in groups) / len(groups)
        seconds = seconds_of_group(task.posterior, rows, size)
        seconds += share * size * seconds_of_column(task.posterior, task.columns)
        if seconds >= least_seconds:
            break
        best, least_seconds = q, seconds
    return gap, best


def _observed_gap(task: Task, near: Neighbourhoods, groups: list[Tensor], untried: Gap) -> Gap:
    """Return how gaps relate to their estimates at the points of the widest gaps."""
    posterior = task.posterior
    points, _, V, R, least, energies = _trials(task, near, groups, FIRST)
    relative = energies / (task.prior[points] - least + task.noise[points]).clamp_min(1e-300)
    widest = relative.argsort(descending=True, stable=True)[:PILOT_COLUMNS]
    P = posterior.constant_preconditioner()
    return observed_gap(posterior.A, P, V[:, widest], R[:, widest], untried, callback=task.callback)


def seconds_of_group(posterior: "Posterior", rows: float, size: int) -> float:
    """Return the expected time of the trials of a group of so many points on so many rows."""
    A, costs = posterior.A, costs_of(posterior.problem.pricing, posterior.A, size)
    return costs.product * rows / len(A) + rows**3 / 3 / costs.flops


def seconds_of_column(posterior: "Posterior", columns: int) -> float:
    """Return the expected time of the iterations of one column in a block of so many."""
    costs = costs_of(posterior.problem.pricing, posterior.A, columns)
    return STEPS * costs.product / columns
