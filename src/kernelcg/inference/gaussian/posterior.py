"""The process given the data: mean, variance and covariance at new points, with error bounds."""

import math
import time
from dataclasses import dataclass, replace

import torch
from numpy.linalg import LinAlgError
from torch import Generator, Tensor

from kernelcg import planning
from kernelcg.arguments import matrix
from kernelcg.backends.memory import require_memory
from kernelcg.events import Chunk, EventKind, Listener, tell, timed
from kernelcg.inference.bounds.lower_bound import Exact, LowerBound
from kernelcg.inference.bounds.rounding import (
    UNIT_ROUNDOFF,
    Certified,
    DriftBounds,
    Rounding,
    error_of_drift,
)
from kernelcg.inference.gaussian.brackets import (
    bounded_mean,
    bracketed,
    evaluated,
)
from kernelcg.inference.gaussian.covariances import joint_covariance
from kernelcg.inference.gaussian.model import GaussianProcess, Regression
from kernelcg.inference.gaussian.prediction import Prediction
from kernelcg.inference.gaussian.variances import estimated
from kernelcg.operators import ConstantInvertible, Invertible, KernelPlusDiagonal
from kernelcg.planning import Kept
from kernelcg.planning.plan import Method, definite_method
from kernelcg.planning.ranks import Sizes
from kernelcg.preconditioners import Preconditioner, recipe
from kernelcg.preconditioners.rounded_low_rank import RoundedLowRank
from kernelcg.preconditioners.shapes import Diagonal, LowRankPlus
from kernelcg.randomness import child, seeded
from kernelcg.solvers import Approach, CholeskyFactor, SolveReport, Status, Stopping, solve

BLOCKS_AT_ONCE = 16
"""Blocks of n numbers a column that a solve, its check and its bound hold at once."""

VISIBLE_BESIDE_NOISE, VISIBLE_BESIDE_Y = 1e-2, 1e-6
"""Errors of a mean, in standard deviations of the noise and of Y, up to which it is not recomputed in long double."""


@dataclass(frozen=True, eq=False)
class Posterior:
    """A conditioned process: the weights a = A⁻¹(Y − Hβ), the drift's coefficients, and what solves further systems.

    Attributes
    ----------
    gp : the process with its hyperparameters
    problem : the data
    beta : (b, c) coefficients of the drift
    weights : a, with its residual and a bound of its error
    drift_weights : A⁻¹H, likewise
    report : of the solve for both
    bound : what bounds the errors of solves; None where it was left out of a file
    rounding : how far rounding moves products
    P : preconditioner of further solves; None means the automatic choice
    kept : what that was built from
    stopping : tolerance and limits of further solves
    variance_tolerance : relative error of predictive variances that is aimed at
    """

    gp: GaussianProcess
    problem: Regression
    beta: Tensor  # (b, c)
    weights: Certified  # of A a = Y − Hβ
    drift_weights: Certified  # of A G = H
    report: SolveReport
    bound: LowerBound | Exact | None
    rounding: Rounding
    P: Invertible | None
    kept: Kept | None
    stopping: Stopping
    variance_tolerance: float
    pivots: Tensor | None = None
    """Rows of the bound, where that is left out."""
    seed: int = 0
    """Of preconditioners that are still to be chosen, where those at hand do not suffice."""

    def __repr__(self) -> str:
        return f"<Posterior of {len(self.problem)} rows: {self.gp}>"

    @property
    def A(self) -> KernelPlusDiagonal:
        """Return the matrix of the system, with products in the precision chosen for it."""
        return self.problem.fast_system(self.gp)

    @property
    def sizes(self) -> Sizes:
        """Return the ranks, block sizes and shares of the memory of the plan."""
        return self.problem.pricing.sizes

    # without its factors

    @property
    def is_lean(self) -> bool:
        """Whether it holds nothing but O(n d) numbers: the mean is at hand, everything else needs `restored`."""
        return self.bound is None

    def lean(self) -> "Posterior":
        """Return the posterior without factors and preconditioners, which can be made again from what it keeps."""
        pivots = self.bound.pivots if isinstance(self.bound, LowerBound) else self.pivots
        kept = None if self.kept is None or self.kept.how is None else self.kept.lean()
        return replace(self, bound=None, P=None, kept=kept, pivots=pivots)

    def restored(
        self, method: str, generator: Generator, preconditioner: str | Preconditioner | None = "auto"
    ) -> "Posterior":
        """Return the posterior with its factor, or its bound and preconditioner, made as they were where that is known.

        Parameters
        ----------
        method, preconditioner, generator : as it was conditioned with
        """
        A = self.problem.system(self.gp)
        if definite_method(method) is Method.DIRECT or any(
            one.approach is Approach.DIRECT for one in self.report.attempts
        ):
            try:
                factor = CholeskyFactor(A.dense())
            except LinAlgError:
                pass
            else:
                return replace(self, bound=Exact(A, factor), P=factor, seed=generator.initial_seed())
        rows = self.pivots
        if rows is None:
            bound = LowerBound.of(A, child(generator, "bound"), sizes=self.sizes)
        else:
            bound = LowerBound.at(A, rows)
        kept, P = self._rebuilt(preconditioner, child(generator, "P"))
        return replace(self, bound=bound, P=P, kept=kept, seed=generator.initial_seed())

    def _rebuilt(
        self, choice: str | Preconditioner | None, generator: Generator
    ) -> tuple[Kept | None, Invertible | None]:
        """Return the preconditioner: built as it was, or by its name, or chosen anew if one had been chosen."""
        A, kept = self.A, self.kept
        if kept is not None and kept.how is not None:
            kept = kept.restored(A)
        elif choice is not None and choice != "auto":
            recipe_named = recipe(choice) if isinstance(choice, str) else choice
            return None, recipe_named.prepare(A.K, generator).factor(A.scale, A.diagonal)
        elif any(one.approach is not Approach.PLAIN for one in self.report.attempts):
            kept = planning.solve_automatically(
                A, self.problem.centred, None, self.stopping, None, generator, pricing=self.problem.pricing
            )[1]
        if kept is None or kept.prepared is None:
            return kept, None
        return kept, kept.prepared.factor(A.scale, A.diagonal)

    def certifier(self) -> LowerBound | Exact:
        """Return the factor or the low-rank bound from which errors of solves are bounded; raise if it was left out."""
        if self.bound is None:
            raise ValueError("this posterior was stored without its factors: call restored() first")
        return self.bound

    def constant_preconditioner(self) -> ConstantInvertible:
        """Return what preconditions solves with A: P, or the P of the bound where that has more rank and no less else.

        The bound's stands in for a P that is missing or changes between calls, too.
        """
        P, bound = self.P, self.certifier()
        if not isinstance(P, ConstantInvertible) or not P.is_constant:
            return bound.P
        rank = P.T.shape[1] if isinstance(P, LowRankPlus) and isinstance(P.base, Diagonal) else None
        rank = P.rank if isinstance(P, RoundedLowRank) else rank
        if rank is not None and isinstance(bound, LowerBound) and rank < len(bound.pivots):
            return bound.P
        return P

    # prediction

    def mean(self, X: Tensor) -> Tensor:
        """Return h(x)ᵀβ + k(x, X) a, (t, c): one product, in long double where rounding in float64 might be visible."""
        return evaluated(self, self.checked_inputs(X), self.weights, self.beta, self.visible_error())[0]

    def visible_error(self) -> float:
        """Return the error of a mean from which on it could be seen beside the noise, or beside Y."""
        noise, spread = math.sqrt(self.problem.system(self.gp).spectrum_floor()), self.problem.Y.std(0, correction=0)
        return max(VISIBLE_BESIDE_NOISE * noise, VISIBLE_BESIDE_Y * float(spread.min()))

    def predict(
        self,
        X: Tensor,
        *,
        variance: bool = False,
        bound: bool = False,
        latent: bool = False,
        callback: Listener | None = None,
    ) -> Prediction:
        """Return the mean and, if asked for, the variance and bounds, in chunks.

        The variance is that of the latent value, known to a tolerance relative to itself plus the noise, or with
        ``latent`` to itself alone. It comes with an estimate of its error; with ``bound`` it comes with a rigorous
        bracket instead, and the mean with a rigorous bound, for which more work is done. A callback is told of every
        chunk and of the iterations of its solves.
        """
        X, began = self.checked_inputs(X), time.perf_counter()
        if not variance and not bound:
            return Prediction(self.mean(X))
        drift = self.drift_bounds()
        if not bound:
            return estimated(self, X, drift, latent=latent, callback=timed(callback, began))
        parts, done = [], 0
        for some in X.split(self.columns_at_once()):
            one = bracketed(self, some, drift, latent=latent, callback=callback) if variance else None
            parts.append(one or bounded_mean(self, some, drift))
            done += len(some)
            tell(callback, EventKind.CHUNK, Chunk(done, len(X)), began)
        return Prediction.joined(parts)

    def covariance(self, X: Tensor) -> Tensor:
        """Return the (t, t) covariance of the latent values, if it fits the memory; `joint` adds the status."""
        return self.joint(X)[0]

    def joint(self, X: Tensor, *, copies: int = 1, latent: bool = True) -> tuple[Tensor, Status]:
        """Return the (t, t) covariance of the latent values, if ``copies`` of it fit the memory, and the status.

        It is known to a tolerance relative to the variances, or without ``latent`` to these plus the noise.
        """
        return joint_covariance(self, self.checked_inputs(X), copies, latent)

    def drift_bounds(self) -> DriftBounds:
        """Return what is known about the coefficients of the drift."""
        problem = self.problem
        H_error = error_of_drift(problem.drift, problem.X)
        sizes = self.beta.abs() + problem.ordinary.abs()  # Y − Hβ is computed by way of ordinary least squares
        right = self.rounding.norm(UNIT_ROUNDOFF * problem.Y.abs() + H_error @ sizes)
        return DriftBounds.of(problem.H, H_error, self.weights, right, self.drift_weights, self.rounding)

    def drift_information(self) -> Tensor:
        """Return the lower bound HᵀG + GᵀR of S = HᵀA⁻¹H, R = H − AG."""
        G, R = self.drift_weights.X, self.drift_weights.R
        S = self.problem.H.T @ G + G.T @ R
        return 0.5 * (S + S.T)

    def visible_noise(self, prior: Tensor, latent: bool) -> Tensor:
        """Return what tolerances add to a predicted variance: that of the noise, or for latent values almost 0."""
        return 1e-12 * prior if latent else torch.full_like(prior, self.gp.noise.variance.item())

    def solved(
        self, B: Tensor, stopping: Stopping, start: Tensor | None = None, callback: Listener | None = None
    ) -> SolveReport:
        """Return A⁻¹B and its record."""
        if self.P is not None:
            first = self.P.solve(B) if start is None else start
            report = solve(self.A, B, preconditioner=self.P, start=first, stopping=stopping, callback=callback)
            if report.status is Status.CONVERGED:
                return report
            start = report.solution
        generator, pricing = child(seeded(self.seed), "further solves"), self.problem.pricing
        return planning.solve_automatically(self.A, B, start, stopping, callback, generator, pricing=pricing)[0]

    def columns_at_once(self, blocks: int = BLOCKS_AT_ONCE, groups: int = 1) -> int:
        """Return how many columns fit the memory, if each needs so many blocks of n numbers.

        They are at most so many ``groups`` of the columns that the plan allows at once.
        """
        budget = int(self.sizes.for_columns * self.problem.points.budget())
        each = 8 * len(self.problem) * blocks
        require_memory(each, budget, f"solving for one more column of {len(self.problem)} numbers")
        return int(min(budget // each, groups * self.sizes.columns))

    def checked_inputs(self, X: Tensor) -> Tensor:
        X = matrix(X, "X").detach().double().to(self.problem.X.device)
        if X.shape[1] != self.problem.X.shape[1]:
            raise ValueError(f"X has {X.shape[1]} features but the model was fitted to {self.problem.X.shape[1]}")
        return X
