"""The process given the data: mean, variance and covariance at new points, with error bounds."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from numpy.linalg import LinAlgError
from torch import Generator, Tensor

from kernelcg import planning
from kernelcg.arguments import matrix
from kernelcg.backends.memory import FOR_COLUMNS, require_memory
from kernelcg.events import Chunk, EventKind, Listener, tell
from kernelcg.inference.bounds.lower_bound import Exact, LowerBound
from kernelcg.inference.bounds.rounding import (
    UNIT_ROUNDOFF,
    Certified,
    DriftBounds,
    EnergyBound,
    Rounding,
    certified,
    error_of_drift,
)
from kernelcg.inference.gaussian.model import GaussianProcess, Regression
from kernelcg.operators import Invertible, KernelPlusDiagonal
from kernelcg.planning import Kept
from kernelcg.randomness import child
from kernelcg.solvers import CholeskyFactor, SolveReport, Status, Stopping, solve

COLUMNS_AT_ONCE = 128

BLOCKS_AT_ONCE = 16
"""Blocks of n numbers a column that a solve, its check and its bound hold at once."""

TIGHTENINGS = 5


@dataclass(frozen=True, eq=False)
class Prediction:
    """What is known about the latent process at new points, drift included; everything in the units of Y.

    Attributes
    ----------
    mean : (t, c)
    mean_bound : (t, c) upper bound of its numerical error, or None
    variance : (t,) of the latent value, never negative, or None
    variance_lower, variance_upper : (t,) a bracket of the exact variance
    status : of the linear solves
    """

    mean: Tensor
    mean_bound: Tensor | None = None
    variance: Tensor | None = None
    variance_lower: Tensor | None = None
    variance_upper: Tensor | None = None
    status: Status = Status.CONVERGED


@dataclass(frozen=True, eq=False)
class Posterior:
    """A conditioned process: the weights a = A⁻¹(Y − Hβ), the drift's coefficients, and what solves further systems."""

    gp: GaussianProcess
    problem: Regression
    beta: Tensor  # (b, c)
    weights: Certified  # of A a = Y − Hβ
    drift_weights: Certified  # of A G = H
    report: SolveReport
    bound: EnergyBound | None
    rounding: Rounding
    P: Invertible | None
    kept: Kept | None
    stopping: Stopping
    variance_tolerance: float

    @property
    def A(self) -> KernelPlusDiagonal:
        """Return the matrix of the system, with products in the precision chosen for it."""
        return self.problem.fast_system(self.gp)

    # without its factors

    @property
    def is_lean(self) -> bool:
        """Whether it holds nothing but O(n d) numbers: the mean is at hand, everything else needs `restored`."""
        return self.bound is None

    def lean(self) -> "Posterior":
        """Return it without factors and preconditioners, to be stored."""
        return replace(self, bound=None, P=None, kept=None)

    def restored(self, method: str, generator: Generator) -> "Posterior":
        """Return it with a bound and, in the direct method, the factor; a preconditioner is chosen when needed."""
        A = self.problem.system(self.gp)
        if method == "direct":
            try:
                factor = CholeskyFactor(A.dense())
            except LinAlgError:
                pass
            else:
                return replace(self, bound=Exact(A, factor), P=factor)
        return replace(self, bound=LowerBound.of(A, child(generator, "bound")))

    def _certifier(self) -> EnergyBound:
        if self.bound is None:
            raise ValueError("this posterior was stored without its factors: call restored() first")
        return self.bound

    # prediction

    def mean(self, X: Tensor) -> Tensor:
        """Return h(x)ᵀβ + k(x, X) a, (t, c): one product."""
        X = self.checked_inputs(X)
        return self.problem.system(self.gp).K.cross(X, self.weights.X) + self.problem.drift(X) @ self.beta

    def predict(
        self,
        X: Tensor,
        *,
        variance: bool = False,
        bound: bool = False,
        latent: bool = False,
        callback: Listener | None = None,
    ) -> Prediction:
        """Return the mean, and if asked for its error bound and the variance with its bracket, in chunks.

        The variance is that of the latent value, known to a tolerance relative to itself plus the noise, or with
        ``latent`` to itself alone. A callback is told of every chunk and of the iterations of its solves.
        """
        X, began = self.checked_inputs(X), time.perf_counter()
        if not variance and not bound:
            return Prediction(self.mean(X))
        parts, done = [], 0
        for some in X.split(self._columns_at_once()):
            parts.append(self._predicted(some, variance, latent, callback))
            done += len(some)
            tell(callback, EventKind.CHUNK, Chunk(done, len(X)), began)
        failed = [part.status for part in parts if part.status is not Status.CONVERGED]

        def joined(name: str) -> Tensor | None:
            values = [getattr(part, name) for part in parts]
            return None if values[0] is None else torch.cat(values)

        names = ("mean_bound", "variance", "variance_lower", "variance_upper")
        return Prediction(
            torch.cat([part.mean for part in parts]),
            **{name: joined(name) for name in names},
            status=failed[0] if failed else Status.CONVERGED,
        )

    def covariance(self, X: Tensor) -> Tensor:
        """Return the (t, t) covariance of the latent values, if it fits the memory; `joint` adds the status."""
        return self.joint(X)[0]

    def joint(self, X: Tensor, *, copies: int = 1) -> tuple[Tensor, Status]:
        """Return the (t, t) covariance of the latent values, if ``copies`` of it fit the memory, and the status.

        With V ≈ A⁻¹K* and R = K* − AV, K*ᵀA⁻¹K* is K*ᵀV + VᵀR up to the product of their errors, as accurate as the
        variance; the drift adds R*ᵀS⁻¹R*.
        """
        X, A = self.checked_inputs(X), self.A
        t, n = len(X), len(self.problem)
        needed = 8 * ((3 + copies) * t * t + 3 * n * t)
        require_memory(needed, A.memory_budget(), f"the covariance of {t} points (use return_std for the diagonal)")
        K = A.K.cross_block(X, precision=torch.float64).T.contiguous()
        prior = A.kernel.diagonal(X).detach().clamp_min(0)
        V, R, status = torch.empty_like(K), torch.empty_like(K), Status.CONVERGED
        for some in self._chunks(t):
            columns = K[:, some].contiguous()
            first = self.solved(columns, self.stopping).solution
            solved, found = self._tightened(columns, prior[some], latent=True, start=first)
            V[:, some], R[:, some] = solved.X, solved.R
            status = found if status is Status.CONVERGED else status
        explained = K.T @ V + V.T @ R
        C = A.backend.bind(A.kernel, X).block(precision=torch.float64) - 0.5 * (explained + explained.T)
        if self.problem.H.shape[1]:
            left = self.problem.drift(X) - K.T @ self.drift_weights.X - V.T @ self.drift_weights.R
            C = C + left @ torch.linalg.solve(self.drift_information(), left.T)
        C.diagonal().clamp_min_(0.0)
        return C, status

    # one chunk

    def _predicted(self, X: Tensor, variance: bool, latent: bool, callback: Listener | None) -> Prediction:
        """Return the prediction for one chunk of points.

        With β̂ and â for the drift and the weights, ρ = h − HᵀA⁻¹k and e = A⁻¹(Y − Hβ̂) − â, the mean is off by
        ρᵀ(β̂ − β) − kᵀe. The first part is at most ‖ρ‖_{S⁻¹} ‖β̂ − β‖_S, the second (kᵀA⁻¹k)^½ ‖e‖_A or, with v ≈ A⁻¹k,
        |vᵀ(Y − Hβ̂ − Aâ)| + ‖v − A⁻¹k‖_A ‖e‖_A. What rounding may do is added to each.
        """
        A, rounding, drift = self.A, self.rounding, self._drift_bounds()
        K = A.K.cross_block(X, precision=torch.float64).T.contiguous()  # (n, t)
        prior = A.kernel.diagonal(X).detach().clamp_min(0)
        root, h, h_error = prior.sqrt(), self.problem.drift(X), error_of_drift(self.problem.drift, X)
        mean = K.T @ self.weights.X + h @ self.beta
        evaluation = rounding.of_mean(root, self.weights.X) + h_error @ self.beta.abs()
        floor, error = self.weights.floor + drift.right, self.weights.error + drift.right
        most = (1 + rounding.gamma) * root  # ≥ (kᵀA⁻¹k)^½
        h_error = h_error + rounding.of_mean(root, self.drift_weights.X)
        if not variance:
            rounded = rounding.norm_of_residual_error(torch.zeros_like(K), root)
            explained = torch.minimum(most, self._certifier().energy(K).sqrt() + rounded)
            h_left = h - K.T @ self.drift_weights.X
            high = drift.leverage(h_left, h_error + explained[:, None] * drift.error)[2]
            bound = explained[:, None] * error + high[:, None] * drift.coefficients + evaluation
            return Prediction(mean, bound)
        V, status = self._tightened(K, prior, latent=latent, callback=callback)
        least = (K * V.X + V.X * V.R).sum(0)  # 2 kᵀv − vᵀAv ≤ kᵀA⁻¹k ≤ the same + error²
        rounded = rounding.of_products(root, V.X) + rounding.gamma * prior
        explained = torch.minimum(most, (least + V.error.square() + rounded).clamp_min(0).sqrt())
        length = (explained + V.error)[:, None]  # ≥ ‖v‖_A
        h_left = h - K.T @ self.drift_weights.X - V.X.T @ self.drift_weights.R
        h_error = h_error + length * drift.floor + V.error[:, None] * drift.error
        drift_low, drift_middle, drift_high = drift.leverage(h_left, h_error)
        by_solution = (V.X.T @ self.weights.R).abs() + V.error[:, None] * error + length * floor
        bound = torch.minimum(by_solution, explained[:, None] * error)
        bound = bound + drift_high[:, None] * drift.coefficients + evaluation
        left = (prior - least).clamp_min(0.0)
        low = (prior - least - V.error.square() - rounded).clamp_min(0.0) + drift_low.square()
        high = (prior - least + rounded).clamp_min(0.0) + drift_high.square()
        return Prediction(mean, bound, left + drift_middle.square(), low, high, status)

    def _drift_bounds(self) -> DriftBounds:
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

    def _tightened(
        self,
        K: Tensor,
        prior: Tensor,
        *,
        latent: bool,
        start: Tensor | None = None,
        callback: Listener | None = None,
    ) -> tuple[Certified, Status]:
        """Solve A V = K until the variance is known to the relative tolerance, noise included or not, or no better.

        Since ρᵀA⁻¹ρ ≤ ‖ρ‖²/λ, λ the smallest noise, residuals of λ √tolerance are small enough.
        """
        A = self.problem.system(self.gp)
        noise = 1e-12 * prior if latent else self.gp.noise.variance.item()
        stopping = replace(self.stopping, rtol=0.0, atol=A.spectrum_floor() * math.sqrt(self.variance_tolerance))
        for _ in range(TIGHTENINGS):
            report = self.solved(K, stopping, start, callback)
            V = certified(A, K, report.solution, self._certifier(), self.rounding, prior.clamp_min(0).sqrt())
            least = (K * V.X + V.X * V.R).sum(0)
            known = (prior - least - V.error.square()).clamp_min(0.0) + noise
            excess = float((V.error.square() / known.clamp_min(1e-300)).max()) / self.variance_tolerance
            if excess <= 1:
                return V, Status.CONVERGED
            if report.status is not Status.CONVERGED or float(V.floor.max()) > 0.5 * float(V.error.max()):
                break
            start, stopping = report.solution, replace(stopping, atol=0.5 * stopping.atol / math.sqrt(excess))
        return V, report.status if report.status is not Status.CONVERGED else Status.PRECISION_EXHAUSTED

    def solved(
        self, B: Tensor, stopping: Stopping, start: Tensor | None = None, callback: Listener | None = None
    ) -> SolveReport:
        """Return A⁻¹B and its record."""
        if self.P is None:
            return planning.solve_automatically(self.A, B, start, stopping, callback, pricing=self.problem.pricing)[0]
        first = self.P.solve(B) if start is None else start
        report = solve(self.A, B, preconditioner=self.P, start=first, stopping=stopping, callback=callback)
        if report.status is Status.CONVERGED:
            return report
        return planning.solve_automatically(
            self.A, B, report.solution, stopping, callback, pricing=self.problem.pricing
        )[0]

    def _columns_at_once(self) -> int:
        budget = int(FOR_COLUMNS * self.problem.points.budget())
        each = 8 * len(self.problem) * BLOCKS_AT_ONCE
        require_memory(each, budget, f"solving for one more column of {len(self.problem)} numbers")
        return int(min(budget // each, COLUMNS_AT_ONCE))

    def _chunks(self, count: int) -> Iterator[slice]:
        size = self._columns_at_once()
        return (slice(start, min(start + size, count)) for start in range(0, count, size))

    def checked_inputs(self, X: Tensor) -> Tensor:
        X = matrix(X, "X").detach().double().to(self.problem.X.device)
        if X.shape[1] != self.problem.X.shape[1]:
            raise ValueError(f"X has {X.shape[1]} features but the model was fitted to {self.problem.X.shape[1]}")
        return X
