"""Leave-one-out by leaving one out: for the few observations of which nothing is left once the drift is taken out."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from kernelcg.backends.rounding import centre_of
from kernelcg.errors import SolveFailed
from kernelcg.inference.bounds.rounding import UNIT_ROUNDOFF
from kernelcg.inference.gaussian.conditioning import condition
from kernelcg.inference.gaussian.drift import Drift
from kernelcg.inference.gaussian.indispensable import indispensable
from kernelcg.inference.gaussian.model import Regression
from kernelcg.inference.gaussian.posterior import Posterior
from kernelcg.planning.plan import Method

MOST = 8
"""Observations that are left out one after another, each for a factorisation of the others, at most."""


@dataclass(frozen=True, eq=False)
class LeftOutRow:
    """What the others say about one observation, and e as in `LeaveOneOut.relative_errors`."""

    row: int
    residual: Tensor  # (c,)
    variance: float
    relative_error: float


def really_left_out(posterior: Posterior, rows: Tensor, generator: Generator) -> Iterator[LeftOutRow]:
    """Condition on all but one of the observations, for each of some; those that stay unknown are left out."""
    for row in rows.tolist()[:MOST]:
        found = _without(posterior, row, generator)
        if found is not None:
            yield found


def _without(posterior: Posterior, row: int, generator: Generator) -> LeftOutRow | None:
    problem = posterior.problem
    if len(problem) <= problem.H.shape[1]:  # the others are fewer than the functions of the drift
        return None
    others = torch.arange(len(problem), device=problem.X.device) != row
    rest = problem.subset(others)
    functions = restated(problem.drift, rest.X)
    if functions is None:
        return None
    rest = rest.with_drift(functions)
    try:
        given = condition(
            rest, posterior.gp, method=Method.DIRECT, stopping=posterior.stopping, generator=generator
        ).predict(problem.X[row : row + 1], variance=True, bound=True)
    except SolveFailed:
        return None
    if given.variance is None or given.variance_lower is None or given.variance_upper is None:
        return None
    noise = posterior.A.diagonal[row]
    variance = float(given.variance[0] + noise)
    width = float(given.variance_upper[0] - given.variance_lower[0])
    off = float(given.mean_bound.max()) if given.mean_bound is not None else math.inf
    error = max(width / variance, off / math.sqrt(variance))
    return LeftOutRow(row, problem.Y[row] - given.mean[0], variance, error) if math.isfinite(error) else None


def restated(drift: Drift, X: Tensor) -> Drift | None:
    """Return the same functions in a basis whose rounding is small at these inputs; None if they are dependent there.

    The centre becomes the median. A basis of all linear functions is made orthogonal; one of some is scaled by powers
    of two, so that these functions stay the same to the last bit.
    """
    n, V = len(X), drift.T[1:, 1:]
    centre = centre_of(X)
    Z = (X - centre) @ V
    size = Z.abs().amax(0)
    if not bool((size > 0).all()):
        return None
    scale = torch.exp2(torch.round(torch.log2(size)))
    Z, V = Z / scale, V / scale
    rounded = (4 + X.shape[1]) * UNIT_ROUNDOFF * ((X - centre).abs() @ V.abs()).norm()
    H = torch.cat([Z.new_ones(n, 1), Z], dim=1)
    if not bool(torch.linalg.svdvals(H)[-1] > rounded + n * UNIT_ROUNDOFF * H.norm()):
        return None
    if V.shape[0] == V.shape[1]:
        R = torch.linalg.qr(Z - Z.mean(0)).R / math.sqrt(n)
        V = torch.linalg.solve_triangular(R, V, upper=True, left=False)
    T = X.new_zeros(drift.T.shape)
    T[0, 0] = 1.0
    T[1:, 1:] = V
    return Drift(centre, T)


def surely_unknown(problem: Regression) -> Tensor:
    """Return (n,) flags of the observations without which the drift is not determined, in exact arithmetic.

    Where the drift has only some of the linear functions that these inputs tell apart, that is not known of any.
    """
    rank, needed = indispensable(problem.X) if problem.H.shape[1] > 1 else (1, torch.tensor([len(problem) == 1]))
    known = rank == problem.H.shape[1]
    return (needed if known else torch.zeros_like(needed)).to(problem.X.device).expand(len(problem))
