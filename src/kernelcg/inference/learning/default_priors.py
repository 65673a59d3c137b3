"""Weak priors in the units of the data, for hyperparameters about which nothing was said.

Without them hyperparameters run away where the evidence is flat: the lengthscale of a feature that does not matter, or
variance and lengthscales together where a function is nearly linear. And where data are nearly free of noise the
evidence asks for so little of it that rounding in float64 exceeds it. Both leave error bounds that say nothing.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kernelcg.inference.bounds.rounding import ENTRY_ERROR, UNIT_ROUNDOFF
from kernelcg.inference.gaussian.drift import central_spread_of, spread_of
from kernelcg.inference.gaussian.model import GaussianProcess, Regression
from kernelcg.inference.laplace.latent_model import LatentProcess, Observations
from kernelcg.kernels import Kernel, Laplacian, Stationary
from kernelcg.likelihoods import Gaussian, StudentT
from kernelcg.parameters import FREE, Parametric

ROUNDING_SHARE = 1e-3
"""Part of the standard deviation of the noise by which rounding may move a mean at the far end of the prior."""

SHORTEST, LONGEST = 1e-5, 1e4
"""Lengthscales by default, in units of the spread of their feature without outliers.

At the far end a Matérn-3/2 correlation changes by less than 1e-6 over a dozen spreads.
"""

VISIBLE = 0.1
"""Standard deviation of what the function does along a feature, in units of that of the noise, that can be seen."""


class Priors(Protocol):
    """What learning supposes of hyperparameters about which the user said nothing."""

    @property
    def lower(self) -> Tensor:
        """Return (p,) lower bounds of the log hyperparameters; −∞ where there is none."""

    @property
    def upper(self) -> Tensor:
        """Return (p,) upper bounds of the log hyperparameters; ∞ where there is none."""

    def log_density(self, gp: Parametric) -> tuple[float, Tensor]:
        """Return the log density, 0 where it is flat, and its gradient in the log hyperparameters."""

    def findings(self, gp: Parametric) -> tuple[str, ...]:
        """Return in words where it decided."""


@dataclass(frozen=True, eq=False)
class DefaultPriors:
    r"""What is supposed of hyperparameters that carry neither bounds nor priors, from all of the data.

    Lengthscales are uniform on a log scale within wide bounds. With r = k(x, x) / noise, log r is uniform up to
    log R − 1 and falls off like a normal distribution with variance 2 / n beyond:

    .. math:: \log p(r) = -\tfrac n4 \max(0, \log(r / R) + 1)^2 .

    The log marginal likelihood never rises by more than n / 2 for each e-fold by which the noise falls, which is the
    slope of this prior at r = R: where their sum is largest, r ≤ R. Below R / e the prior costs nothing.

    Attributes
    ----------
    lower, upper : (p,) bounds of the log hyperparameters; infinite where there are none
    ranges : (d,) largest less smallest value of each feature
    observations : n, the number of observed values
    resolvable : R; infinite where nothing is supposed of the noise
    known : variance of the noise that every observation has beside the learned one
    """

    lower: Tensor
    upper: Tensor
    ranges: Tensor
    observations: int = 0
    resolvable: float = math.inf
    known: float = 0.0

    def log_density(self, gp: Parametric) -> tuple[float, Tensor]:
        """Return log p(r), 0 where it is flat, and its gradient in the log hyperparameters."""
        theta = gp.log_parameters().detach()
        if not isinstance(gp, GaussianProcess) or math.isinf(self.resolvable):
            return 0.0, torch.zeros_like(theta)
        with torch.enable_grad():
            theta.requires_grad_()
            at = gp.with_log_parameters(theta)
            beyond = (self._ratios(at).log() - math.log(self.resolvable) + 1).clamp_min(0)
            density = -0.25 * self.observations * beyond.square().mean()
            (gradient,) = torch.autograd.grad(density, theta)
        return float(density.detach()) + 0.0, gradient

    def findings(self, gp: Parametric) -> tuple[str, ...]:
        """Return in words where these priors decided, and which features the learned function does not depend on."""
        return (*self._felt(gp), *self._at_bounds(gp), *self._invisible(gp))

    def _ratios(self, gp: GaussianProcess) -> Tensor:
        """Return k(x, x) / noise of a stationary kernel, one for each learned variance of the noise."""
        origin = torch.zeros(1, len(self.ranges), dtype=torch.float64)
        return gp.kernel.diagonal(origin) / (gp.noise.variance.reshape(-1) + self.known)

    def _felt(self, gp: Parametric) -> Iterator[str]:
        density, gradient = self.log_density(gp)
        if density < 0 and isinstance(gp, GaussianProcess):
            ratio, slope = float(self._ratios(gp).detach().max()), float(gradient[-gp.noise.variance.numel() :].sum())
            yield (
                f"nearly free of noise: the default prior holds k(x, x) at {ratio:.2g} times the noise, which float64 "
                f"resolves; the evidence alone would rise by about {slope:.2g} nats for each e-fold of less noise"
            )

    def _at_bounds(self, gp: Parametric) -> Iterator[str]:
        theta = gp.log_parameters().detach()
        for name, value, low, high in zip(
            gp.parameter_names(), theta.tolist(), self.lower.tolist(), self.upper.tolist(), strict=True
        ):
            if value <= low or value >= high:
                end = "lower" if value <= low else "upper"
                yield f"{name} ended at the {end} end {math.exp(value):.3g} of its default range"

    def _invisible(self, gp: Parametric) -> Iterator[str]:
        """Say for each feature whether the function hardly changes along it: 2 (k(0) − k(range)) against the noise."""
        if not isinstance(gp, GaussianProcess | LatentProcess) or not gp.kernel.is_stationary:
            return
        kernel, far = gp.kernel.detached(), torch.diag(self.ranges)
        change = (2 * (kernel.diagonal(far) - kernel(torch.zeros_like(far[:1]), far)[0])).clamp_min(0)
        unseen = change.sqrt() < VISIBLE * math.sqrt(_noise_level(gp))
        for feature in unseen.nonzero()[:, 0].tolist():
            why = "it is constant" if self.ranges[feature] == 0 else f"over the data it changes y by {WITHIN}"
            yield f"feature {feature}: no visible effect ({why})"


WITHIN = f"less than {VISIBLE:g} sd of the noise"


def default_priors(gp: GaussianProcess | LatentProcess, problem: Regression | Observations) -> DefaultPriors:
    """Return the priors for what the user left open, in the units of these data."""
    X = problem.X.cpu()
    bounds = _lengthscale_bounds(gp.kernel, X, "kernel")
    ranges = X.amax(0) - X.amin(0)
    if not isinstance(gp, GaussianProcess) or not isinstance(problem, Regression):
        return DefaultPriors(*_vectors(gp, bounds), ranges)
    resolvable = largest_ratio(len(X))
    known = 0.0 if problem.noise_variance is None else float(problem.noise_variance.min())
    if problem.noise_variance is None:
        power = float(spread_of(problem.Y).square().mean()) or 1.0
        bounds |= {f"noise.{name}": (power / resolvable, math.inf) for name in gp.noise.parameter_names()}
    if not gp.kernel.is_stationary or any(one != FREE for one in gp.noise.restrictions()):
        resolvable = math.inf
    return DefaultPriors(*_vectors(gp, bounds), ranges, problem.Y.numel(), resolvable, known)


def largest_ratio(n: int) -> float:
    r"""Return R, the ratio of k(x, x) to the noise that float64 resolves with n rows: (η / 32 u n)^⅔.

    With weights a ≈ residual / noise, rounding moves A a by about 32 u σ² ‖a‖ = 32 u σ² √n / σ_noise in each row, and
    so, in units of σ_noise, a mean by up to 32 u n (σ² / σ_noise²)^{3/2}, which η bounds.
    """
    return (ROUNDING_SHARE / (ENTRY_ERROR * UNIT_ROUNDOFF * n)) ** (2 / 3)


def _lengthscale_bounds(part: Kernel, X: Tensor, prefix: str) -> dict[str, tuple[float, float]]:
    """Return bounds of the lengthscales of all kernels of this one that divide distances by them, by name."""
    if isinstance(part, Stationary | Laplacian):
        spread = central_spread_of(X)
        scale = torch.where(spread > 0, spread, 1.0)
        if part.lengthscale.numel() == 1:
            ends = {name: (float(scale.min()), float(scale.max())) for name in part.parameter_names()}
            return {f"{prefix}.{name}": _range(*pair) for name, pair in ends.items() if name.startswith("lengthscale")}
        return {f"{prefix}.lengthscale[{r}]": _range(one, one) for r, one in enumerate(scale.tolist())}
    found: dict[str, tuple[float, float]] = {}
    for name, inner in part._parts():
        if isinstance(inner, Kernel):
            found |= _lengthscale_bounds(inner, X, f"{prefix}.{name}")
    return found


def _range(least: float, most: float) -> tuple[float, float]:
    return SHORTEST * least, LONGEST * most


def _vectors(gp: Parametric, bounds: dict[str, tuple[float, float]]) -> tuple[Tensor, Tensor]:
    """Return (p,) bounds of the log hyperparameters that are free, wide enough for their start."""
    lower, upper = [], []
    for name, start, known in zip(
        gp.parameter_names(), gp.log_parameters().detach().tolist(), gp.restrictions(), strict=True
    ):
        low, high = bounds.get(name, (0.0, math.inf)) if known == FREE else (0.0, math.inf)
        lower.append(min(math.log(low), start) if low > 0 else -math.inf)
        upper.append(max(math.log(high), start) if high < math.inf else math.inf)
    return torch.tensor(lower, dtype=torch.float64), torch.tensor(upper, dtype=torch.float64)


def _noise_level(gp: GaussianProcess | LatentProcess) -> float:
    """Return the variance of an observation given the function; 1 where that is in units of its own, as log-odds."""
    if isinstance(gp, GaussianProcess):
        return float(gp.noise.variance.detach().min())
    if isinstance(gp.likelihood, Gaussian):
        return float(gp.likelihood.variance.detach())
    return float(gp.likelihood.scale.detach()) ** 2 if isinstance(gp.likelihood, StudentT) else 1.0
