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
from kernelcg.kernels import Constant, Kernel, Laplacian, Periodic, Product, Stationary, Sum
from kernelcg.kernels.mapped import Mapped
from kernelcg.likelihoods import Gaussian, StudentT
from kernelcg.parameters import FREE, Parametric

ROUNDING_SHARE = 1e-3
"""Part of the standard deviation of the noise by which rounding may move a mean at the far end of the prior."""

SHORTEST, LONGEST = 1e-5, 1e6
"""Lengthscales by default, in units of the spread of their feature without outliers.

At the far end a Matérn-3/2 correlation changes by 1e-10 over ten spreads: nothing that data show, even for dozens of
such features and a k(x, x) of 1e5 times the noise.
"""

SMALLEST_VARIANCE, LARGEST_VARIANCE, LARGEST_NOISE = 1e-8, 1e4, 10.0
"""Between the first two are variances of kernels by default, and up to the third that of the noise, in units of var y.

A nearly linear function asks for a variance without end. From a prior standard deviation of a hundred times that of y
on, this changes the evidence by less than a tenth of a nat.
"""

FELT = 0.01
"""Slope of the prior, in nats for each unit of a log hyperparameter, above which `findings` mention it."""

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

    Lengthscales and variances are uniform on a log scale within wide bounds. With r = k(x, x) / noise, log r is
    uniform up to log R − 1 and falls off like a normal distribution with variance 2 / n beyond:

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
        if math.isinf(self.resolvable) or not isinstance(gp, GaussianProcess | LatentProcess) or self._is_flat(gp):
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

    def _is_flat(self, gp: GaussianProcess | LatentProcess) -> bool:
        """Say whether every k(x, x) / noise is below R / e."""
        return float(self._ratios(gp).detach().max()) < self.resolvable / math.e

    def _ratios(self, gp: GaussianProcess | LatentProcess) -> Tensor:
        """Return k(x, x) / noise of a stationary kernel, one for each learned variance of the noise."""
        origin = torch.zeros(1, len(self.ranges), dtype=torch.float64)
        return gp.kernel.diagonal(origin) / (_learned_noise(gp) + self.known)

    def _felt(self, gp: Parametric) -> Iterator[str]:
        """Say what the evidence would gain with less noise: at the optimum its slope is that of the prior."""
        slopes = self.log_density(gp)[1]
        if isinstance(gp, GaussianProcess | LatentProcess) and float(slopes.abs().max()) > FELT:
            ratio, slope = (
                float(self._ratios(gp).detach().max()),
                -float(slopes[: len(gp.kernel.log_parameters())].sum()),
            )
            yield (
                f"the default prior holds k(x, x) at {ratio:.2g} times the noise, which float64 resolves: the data "
                f"have little noise or are nearly linear (evidence alone: {slope:+.2g} nats for each e-fold of less "
                "noise)"
            )

    def _at_bounds(self, gp: Parametric) -> Iterator[str]:
        theta = gp.log_parameters().detach()
        for name, value, low, high in zip(
            gp.parameter_names(), theta.tolist(), self.lower.tolist(), self.upper.tolist(), strict=True
        ):
            if value <= low or (value >= high and "lengthscale" not in name):  # long ones have no visible effect
                end = "lower" if value <= low else "upper"
                yield f"{name} ended at the {end} end {math.exp(value):.3g} of its default range"

    def _invisible(self, gp: Parametric) -> Iterator[str]:
        """Name the features along which the function hardly changes: 2 (k(0) − k(range)) against the noise."""
        if not isinstance(gp, GaussianProcess | LatentProcess) or not gp.kernel.is_stationary:
            return
        kernel, far = gp.kernel.detached(), torch.diag(self.ranges)
        change = (2 * (kernel.diagonal(far) - kernel(torch.zeros_like(far[:1]), far)[0])).clamp_min(0)
        unseen, constant = (
            change.sqrt() < VISIBLE * math.sqrt(float(_learned_noise(gp).detach().min())),
            self.ranges == 0,
        )
        for which, why in (
            (unseen & constant, "constant"),
            (unseen & ~constant, f"over the data each changes the function by less than {VISIBLE:g} sd of the noise"),
        ):
            if bool(which.any()):
                numbers = ", ".join(map(str, which.nonzero()[:, 0].tolist()))
                yield f"no visible effect of feature {numbers}: {why}"


def default_priors(gp: GaussianProcess | LatentProcess, problem: Regression | Observations) -> DefaultPriors:
    """Return the priors for what the user left open, in the units of these data."""
    X = problem.X.cpu()
    ranges = X.amax(0) - X.amin(0)
    resolvable = largest_ratio(len(X))
    if not isinstance(gp, GaussianProcess) or not isinstance(problem, Regression):
        free = isinstance(gp, LatentProcess) and gp.kernel.is_stationary and _has_free_scale(gp)
        ends = _vectors(gp, _kernel_bounds(gp.kernel, X, None, "kernel"))
        return DefaultPriors(*ends, ranges, len(X), resolvable if free else math.inf)
    known = 0.0 if problem.noise_variance is None else float(problem.noise_variance.min())
    powers = spread_of(problem.Y).square().cpu()
    power = float(powers.mean()) or 1.0
    bounds = _kernel_bounds(gp.kernel, X, power, "kernel")
    least = 0.0 if known > 0 else power / resolvable
    bounds |= {f"noise.{name}": (least, LARGEST_NOISE * power) for name in gp.noise.parameter_names()}
    if not gp.kernel.is_stationary or any(one != FREE for one in gp.noise.restrictions()):
        resolvable = math.inf
    return DefaultPriors(*_vectors(gp, bounds), ranges, problem.Y.numel(), resolvable, known)


def _learned_noise(gp: GaussianProcess | LatentProcess) -> Tensor:
    """Return the variances of observations given the function, differentiable; 1 for likelihoods in other units."""
    if isinstance(gp, GaussianProcess):
        return gp.noise.variance.reshape(-1)
    if isinstance(gp.likelihood, Gaussian):
        return gp.likelihood.variance.reshape(1)
    return gp.likelihood.scale.square().reshape(1) if isinstance(gp.likelihood, StudentT) else torch.ones(1).double()


def _has_free_scale(gp: LatentProcess) -> bool:
    """Say whether the likelihood has errors in the units of y, about whose size the user said nothing."""
    likelihood = gp.likelihood
    if isinstance(likelihood, StudentT):
        return likelihood._restriction("scale") == FREE
    return isinstance(likelihood, Gaussian) and likelihood._restriction("variance") == FREE


def largest_ratio(n: int) -> float:
    r"""Return R, the ratio of k(x, x) to the noise that float64 resolves with n rows: (η / 32 u n)^⅔.

    With weights a ≈ residual / noise, rounding moves A a by about 32 u σ² ‖a‖ = 32 u σ² √n / σ_noise in each row, and
    so, in units of σ_noise, a mean by up to 32 u n (σ² / σ_noise²)^{3/2}, which η bounds.
    """
    return (ROUNDING_SHARE / (ENTRY_ERROR * UNIT_ROUNDOFF * n)) ** (2 / 3)


def _kernel_bounds(part: Kernel, X: Tensor, power: float | None, prefix: str) -> dict[str, tuple[float, float]]:
    """Return bounds, by name, of lengthscales that divide distances, and of variances if that of y is given.

    Of the variances of factors only the product has units, so that they have no bounds.
    """
    found: dict[str, tuple[float, float]] = {}
    if isinstance(part, Stationary | Laplacian):
        found |= {f"{prefix}.{name}": ends for name, ends in _lengthscale_bounds(part.lengthscale, X).items()}
    if isinstance(part, Stationary | Laplacian | Periodic | Constant) and power is not None:
        found[f"{prefix}.variance"] = (SMALLEST_VARIANCE * power, LARGEST_VARIANCE * power)
    if isinstance(part, Sum | Product):
        own = power if isinstance(part, Sum) else None
        found |= _kernel_bounds(part.left, X, own, f"{prefix}.left")
        found |= _kernel_bounds(part.right, X, own, f"{prefix}.right")
    if isinstance(part, Mapped):
        found |= _kernel_bounds(part.part, part.inputs(X), power, f"{prefix}.part")
    return found


def _lengthscale_bounds(lengthscale: Tensor, X: Tensor) -> dict[str, tuple[float, float]]:
    """Return bounds of one lengthscale for all features, or of one for each."""
    spread = central_spread_of(X)
    scale = torch.where(spread > 0, spread, 1.0)
    if lengthscale.ndim == 0:
        return {"lengthscale": (SHORTEST * float(scale.min()), LONGEST * float(scale.max()))}
    own = scale.tolist() if len(lengthscale) == len(scale) else []
    return {f"lengthscale[{r}]": (SHORTEST * one, LONGEST * one) for r, one in enumerate(own)}


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
