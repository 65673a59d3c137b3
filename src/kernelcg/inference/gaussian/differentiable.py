"""The process given the data as functions of x that autograd follows: mean, covariance, sample paths."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from kernelcg.backends.rounding import origin_of
from kernelcg.errors import SolveFailed
from kernelcg.inference.gaussian.brackets import prior_at, tightened
from kernelcg.inference.gaussian.posterior import Posterior
from kernelcg.inference.learning.criterion_value import drift_coefficients, generalised_least_squares
from kernelcg.randomness import child, normal
from kernelcg.solvers import Status

FEATURES = 2048
"""Random frequencies of a sample path; its prior covariance is off by about k(x, x) / √2048 = 2 %."""

RESIDUAL_OF_SLOPES = 1e-6
"""Largest relative residual of A⁻¹k: of a covariance the error is the square of that of A⁻¹k, but not of its slope."""

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class DifferentiablePosterior:
    r"""Mean, covariance and sample paths of one output at X (..., t, d), in the units of y: differentiable once in X.

    With V = A⁻¹k(X, x) held fixed and R = k − AV, the covariance is k(x, x') − kᵀV − Vᵀk + VᵀAV. Its value is that of
    the exact solution up to the square of the error of V, and since it is stationary in V, its derivative in x
    is the right one though V is not differentiated.

    Attributes
    ----------
    scale, shift : y is scale times the standardised y plus shift
    """

    posterior: Posterior
    scale: float = 1.0
    shift: float = 0.0

    def __post_init__(self) -> None:
        if self.posterior.problem.Y.shape[1] != 1:
            raise ValueError("only a model of one output is differentiable in x; fit one for each output")

    def mean(self, X: Tensor) -> Tensor:
        """Return (..., t) the mean."""
        flat = self._flat(X)
        value = self._cross(flat) @ self.posterior.weights.X + self.posterior.problem.drift(flat) @ self.posterior.beta
        return (self.scale * value[:, 0] + self.shift).reshape(X.shape[:-1])

    def variance(self, X: Tensor, *, noisy: bool = False) -> Tensor:
        """Return (..., t) the variance of the latent value or, with ``noisy``, of a new observation."""
        return self.covariance(X[..., None, :], noisy=noisy)[..., 0, 0]

    def covariance(self, X: Tensor, *, noisy: bool = False) -> Tensor:
        """Return (..., t, t) the covariance of the latent values or, with ``noisy``, of new observations."""
        flat, t = self._flat(X), X.shape[-2]
        K = self._cross(flat)  # (b t, n)
        V, R = self._solved(flat, K)
        prior = self._prior(flat.reshape(-1, t, X.shape[-1]))  # (b, t, t)
        K_b, V_b, R_b = (M.reshape(-1, t, M.shape[1]) for M in (K, V, R))
        explained = K_b @ V_b.mT
        # VᵀAV = Vᵀ(k − R), of which k is not differentiated
        C = prior - explained - explained.mT + V_b @ (K_b.detach() - R_b).mT
        C = C + self._of_drift(flat, K, V, t)
        if noisy:
            C = C + self.posterior.gp.noise.variance.detach().to(C) * torch.eye(t).to(C)
        return self.scale**2 * C.reshape(*X.shape[:-2], t, t)

    def paths(self, count: int, generator: Generator) -> Function:
        r"""Return a function that evaluates ``count`` draws of the posterior: X (..., t, d) → (..., t, count).

        Matheron's rule with a prior draw g from random frequencies: f = g + m(y − g(X) − ε), m the posterior mean as a
        linear map. The same function can be evaluated again and again. The prior is approximate, see `FEATURES`.

        References
        ----------
        Wilson et al. (2021), Pathwise conditioning of Gaussian processes.
        """
        problem, A = self.posterior.problem, self.posterior.A
        draw = self._prior_paths(count, child(generator, "prior"))
        noise = A.diagonal.sqrt()[:, None] * normal(len(problem), count, child(generator, "noise"), like=problem.X)
        rest = problem.Y - draw(problem.X) - noise
        beta, a = generalised_least_squares(problem.H, self._inverse(rest), self.posterior.drift_weights.X)

        def paths(X: Tensor) -> Tensor:
            flat = self._flat(X)
            value = draw(flat) + self._cross(flat) @ a + problem.drift(flat) @ beta
            return (self.scale * value + self.shift).reshape(*X.shape[:-1], count)

        return paths

    # parts

    def _flat(self, X: Tensor) -> Tensor:
        d = self.posterior.problem.X.shape[1]
        if X.ndim < 2 or X.shape[-1] != d:
            raise ValueError(f"X must be of shape (..., t, {d}), not {tuple(X.shape)}")
        return X.reshape(-1, d).to(self.posterior.problem.X)

    def _seen(self, X: Tensor) -> Tensor:
        """Return inputs as the formula of the kernel should see them."""
        problem = self.posterior.problem
        return X - origin_of(self.posterior.gp.kernel, problem.X, problem.points.centre)

    def _cross(self, X: Tensor) -> Tensor:
        """Return k(x_i, X), (t, n)."""
        kernel = self.posterior.gp.kernel.detached()
        return kernel(self._seen(X), self._seen(self.posterior.problem.X))

    def _prior(self, X: Tensor) -> Tensor:
        """Return k(x, x') within each of b groups of t points, (b, t, t)."""
        kernel = self.posterior.gp.kernel.detached()
        if X.shape[1] == 1:
            return kernel.diagonal(X[:, 0])[:, None, None]
        return torch.stack([kernel(self._seen(group), self._seen(group)) for group in X])

    def _solved(self, X: Tensor, K: Tensor) -> tuple[Tensor, Tensor]:
        """Return V = A⁻¹k and k − AV for each row of K, not differentiated, as exact as variances of `predict` are."""
        posterior = self.posterior
        with torch.no_grad():
            B, prior = K.detach().T.contiguous(), prior_at(posterior, X.detach())
            noise = posterior.visible_noise(prior, latent=True)
            found, status = tightened(posterior, B, prior, noise=noise, start=self._inverse(B))
        if status not in (Status.CONVERGED, Status.PRECISION_EXHAUSTED):
            raise SolveFailed(f"the covariance at {len(X)} points: {status.value}")
        return found.X.T, found.R.T

    def _inverse(self, B: Tensor) -> Tensor:
        """Return A⁻¹B, up to the tolerance or up to rounding, or raise `SolveFailed`."""
        stopping = self.posterior.stopping
        report = self.posterior.solved(B, replace(stopping, rtol=min(stopping.rtol, RESIDUAL_OF_SLOPES)))
        return (report if report.status is Status.PRECISION_EXHAUSTED else report.raise_if_failed()).solution

    def _of_drift(self, X: Tensor, K: Tensor, V: Tensor, t: int) -> Tensor:
        """Return what the uncertainty of the drift adds: ρᵀS⁻¹ρ with ρ = h(x) − HᵀA⁻¹k."""
        H = self.posterior.problem.H
        if not H.shape[1]:
            return K.new_zeros(())
        rho = (self.posterior.problem.drift(X) - K @ self.posterior.drift_weights.X).reshape(-1, t, H.shape[1])
        return rho @ drift_coefficients(self.posterior.drift_information(), rho.mT)

    def _prior_paths(self, count: int, generator: Generator) -> Function:
        """Return draws of the process without data: σ √(2/m) Σ_j w_j cos(ω_jᵀx + b_j)."""
        kernel, X = self.posterior.gp.kernel.detached(), self.posterior.problem.X
        omega = kernel.sample_frequencies(X.shape[1], FEATURES, child(generator, "frequencies")).to(X)
        turn = torch.rand(FEATURES, generator=child(generator, "phases"), dtype=torch.float64).to(X)
        weights = normal(FEATURES, count, child(generator, "weights"), like=X)
        size = math.sqrt(2 * float(kernel.diagonal(X[:1])[0]) / FEATURES)
        return lambda Z: size * torch.cos(self._seen(Z) @ omega.T + 2 * math.pi * turn) @ weights
