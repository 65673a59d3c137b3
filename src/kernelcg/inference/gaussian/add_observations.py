"""More observations for a conditioned process, from its old solution and with its old kind of preconditioner."""

from dataclasses import replace

import torch
from torch import Generator, Tensor

from kernelcg.events import Listener
from kernelcg.inference.bounds.lower_bound import LowerBound
from kernelcg.inference.gaussian.conditioning import condition
from kernelcg.inference.gaussian.drift import MeanKind
from kernelcg.inference.gaussian.model import Regression
from kernelcg.inference.gaussian.posterior import Posterior
from kernelcg.planning.plan import Method
from kernelcg.preconditioners import Preconditioner
from kernelcg.preconditioners.low_rank_remainder import DiagonalRemainder, LowRankAndRemainder, sparse_remainder
from kernelcg.randomness import child


def updated(
    posterior: Posterior,
    X: Tensor,
    Y: Tensor,
    noise_variance: Tensor | None,
    *,
    method: str = Method.ITERATIVE,
    preconditioner: str | Preconditioner | None = "auto",
    generator: Generator,
    callback: Listener | None = None,
) -> Posterior:
    """Return the process conditioned on further observations Y at X, at the same hyperparameters.

    The solve starts from the old weights, 0 for the new rows. The preconditioner has the rank, the pivots and the
    number of neighbours that were chosen before: nothing is tried again unless it fails.
    """
    problem = joined_observations(posterior.problem, X, Y, noise_variance)
    G, a = posterior.drift_weights.X, posterior.weights.X
    if problem.mean == MeanKind.LINEAR:  # other drift functions, fitted to other inputs
        weights = torch.cat([a, a.new_zeros(len(a), problem.H.shape[1])], dim=1)
    else:
        weights = torch.cat([a + G @ (posterior.beta - problem.ordinary), G], dim=1)
    start = torch.cat([weights, weights.new_zeros(len(X), weights.shape[1])])
    return condition(
        problem,
        posterior.gp,
        method=method,
        stopping=posterior.stopping,
        preconditioner=preconditioner,
        variance_tolerance=posterior.variance_tolerance,
        start=start,
        prepared=_like(posterior, replace(posterior, problem=problem), generator),
        generator=generator,
        callback=callback,
    )


def joined_observations(old: Regression, X: Tensor, Y: Tensor, noise_variance: Tensor | None) -> Regression:
    """Return the problem with further observations after those that it has."""
    known = _joined(old.noise_variance, noise_variance, len(old), len(X))
    return replace(old, X=torch.cat([old.X, X]), Y=torch.cat([old.Y, Y]), noise_variance=known)


def _joined(old: Tensor | None, new: Tensor | None, n: int, m: int) -> Tensor | None:
    if old is None and new is None:
        return None
    like = old if old is not None else new
    zeros = torch.zeros(n + m, dtype=torch.float64, device=None if like is None else like.device)
    first = zeros[:n] if old is None else old
    return torch.cat([first, zeros[:m] if new is None else new])


def _like(posterior: Posterior, larger: Posterior, generator: Generator) -> LowRankAndRemainder | None:
    """Return the preconditioner that was chosen for the old data, made for the new ones."""
    prepared = None if posterior.kept is None else posterior.kept.prepared
    if not isinstance(prepared, LowRankAndRemainder) or not isinstance(posterior.bound, LowerBound):
        return None
    A = larger.problem.system(larger.gp)
    F = LowerBound.at(A, posterior.bound.pivots[: prepared.rank]).F if prepared.rank else None
    if prepared.neighbours:
        remainder = sparse_remainder(A.K, child(generator, "order"), prepared.neighbours, F)
        return LowRankAndRemainder(F, remainder)
    return LowRankAndRemainder(F, DiagonalRemainder())
