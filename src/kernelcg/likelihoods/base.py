"""The likelihood interface."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from kernelcg.likelihoods.quadrature import expectation, log_expectation
from kernelcg.likelihoods.quantiles import inverse
from kernelcg.parameters import Parametric

ONE = torch.tensor(1.0, dtype=torch.float64)
"""The exposure of an ordinary observation."""

SAMPLED_STEPS = 8
"""Places on each side of f at which the range of an unknown W is looked at."""


@dataclass(frozen=True)
class Derivatives:
    """log p and its derivatives in f, one entry for each observation.

    Attributes
    ----------
    log_density : log p(y | f), in nats
    """

    log_density: Tensor
    gradient: Tensor
    """∂log p / ∂f"""
    curvature: Tensor
    """W = −∂²log p / ∂f²"""
    slope: Tensor
    """∂W / ∂f = −∂³log p / ∂f³"""


@dataclass(frozen=True)
class ParameterDerivatives:
    """Derivatives in the p log hyperparameters, one row for each observation.

    Attributes
    ----------
    log_density : (n, p) of log p
    gradient : (n, p) of ∂log p / ∂f
    curvature : (n, p) of W
    """

    log_density: Tensor
    gradient: Tensor
    curvature: Tensor


class Likelihood(Parametric, ABC):
    r"""p(y | f) of one observation given its latent value; the observations are independent given f.

    Only the formula has to be written; fields annotated ``Tensor`` are positive hyperparameters, learned with those
    of the kernel:

    >>> class HyperbolicSecant(Likelihood):
    ...     SCALARS = ("width",)
    ...     width: Tensor
    ...     def log_density(self, y, f, exposure):
    ...         z = (y - f) / self.width
    ...         return math.log(2 / math.pi) - z + torch.nn.functional.logsigmoid(2 * z) - self.width.log()

    This one is log(2/π) − log(eᶻ + e⁻ᶻ), written so that autograd keeps its derivatives finite at every f: those of
    ``torch.logaddexp`` are NaN far from 0.

    It must be smooth and curved in f: where its second derivative is zero, as that of −\|y − f\|, Newton's method has
    nothing to work with. Predicting y, other than its density, needs `moments` too.
    """

    log_concave: ClassVar[bool] = False
    """Whether W ≥ 0 for all y and f. False is always safe."""

    counts: ClassVar[bool] = False
    """Whether y is a whole number."""

    least: ClassVar[float] = -torch.inf
    """The least y that is possible."""

    @abstractmethod
    def log_density(self, y: Tensor, f: Tensor, exposure: Tensor) -> Tensor:
        """Return log p(y | f), entry by entry and broadcasting, differentiable in f and the hyperparameters.

        ``exposure`` is the amount observed: the time or area behind a count, the number of trials of a binomial.
        Most likelihoods ignore it.
        """

    def derivatives(self, y: Tensor, f: Tensor, exposure: Tensor = ONE) -> Derivatives:
        """Return log p and its first three derivatives in f; they carry a graph only to hyperparameters with one."""
        learns = self.log_parameters().requires_grad
        with torch.enable_grad():
            f = f.detach().requires_grad_()
            values = [self.log_density(y, f, exposure)]
            for last in (False, False, True):
                values.append(_derivative(values[-1], f, create_graph=learns or not last))
        value, first, second, third = values if learns else [tensor.detach() for tensor in values]
        return Derivatives(value, first, -second, -third)

    def curvature_extremes(self, y: Tensor, exposure: Tensor = ONE) -> tuple[Tensor, ...] | None:
        """Return the values of f at which W, as a function of f, has its extremes: between them it rises or falls.

        () if it rises or falls everywhere. None, the default, means that they are not known: error bounds that need
        the range of W are then estimates.
        """
        return None

    def curvature_range(self, y: Tensor, f: Tensor, radius: Tensor, exposure: Tensor = ONE) -> tuple[Tensor, Tensor]:
        """Return the least and the largest W at distances up to the radius from f, entry by entry.

        Exact where `curvature_extremes` are known, otherwise from a few places in between.
        """
        left, right = f - radius, f + radius
        extremes = self.curvature_extremes(y, exposure)
        if extremes is None:
            places = [f + (step / SAMPLED_STEPS) * radius for step in range(-SAMPLED_STEPS, SAMPLED_STEPS + 1)]
        else:
            places = [left, f, right, *(place.expand_as(f).clamp(left, right) for place in extremes)]
        values = torch.stack([self.derivatives(y, place, exposure).curvature.detach() for place in places])
        return values.amin(0), values.amax(0)

    def parameter_derivatives(self, y: Tensor, f: Tensor, exposure: Tensor = ONE) -> ParameterDerivatives:
        """Return ∂/∂log φ_i of log p, ∂log p / ∂f and W, for each hyperparameter φ_i."""
        with torch.enable_grad():
            theta = self.log_parameters().detach().requires_grad_()
            own = self.with_log_parameters(theta).derivatives(y, f, exposure)
            return ParameterDerivatives(
                _columns(own.log_density, theta), _columns(own.gradient, theta), _columns(own.curvature, theta)
            )

    def check(self, y: Tensor, exposure: Tensor = ONE) -> None:
        """Raise if an observation or an exposure is impossible, naming the first such value."""
        require(y.isfinite(), y, "y must be finite")
        require((exposure > 0) & exposure.isfinite(), exposure, "exposure must be positive and finite")

    def start(self, y: Tensor, exposure: Tensor = ONE) -> float:
        """Return the constant latent value that suits the data best."""
        return 0.0

    def moments(self, f: Tensor, exposure: Tensor = ONE) -> tuple[Tensor, Tensor]:
        """Return mean and variance of y given f."""
        raise NotImplementedError(
            f"{type(self).__name__} has no mean and variance of y given f; write the method moments(f, exposure)"
        )

    def cumulative(self, y: Tensor, f: Tensor, exposure: Tensor = ONE) -> Tensor:
        """Return P(Y ≤ y | f), entry by entry and broadcasting: what quantiles and draws of y need."""
        raise NotImplementedError(
            f"{type(self).__name__} has no distribution function; write the method cumulative(y, f, exposure), which "
            "returns P(Y ≤ y | f)"
        )

    @torch.no_grad()
    def predict(self, mean: Tensor, variance: Tensor, exposure: Tensor = ONE) -> tuple[Tensor, Tensor]:
        """Return mean and variance of y when f ~ N(mean, variance), (n,) each.

        By quadrature of E[y] = E μ(f) and Var[y] = E Var(y | f) + E (μ(f) − c)² − (E μ(f) − c)², c = μ(mean).
        """
        exposure = exposure.to(mean).expand_as(mean)
        centre, _ = self.moments(mean, exposure)

        def integrand(rows: Tensor, f: Tensor) -> Tensor:
            mu, spread = self.moments(f, exposure[rows, None])
            shift = mu - centre[rows, None]
            return torch.stack([shift, shift.square() + spread], -1)

        shift, square = expectation(integrand, mean, variance).unbind(-1)
        return centre + shift, square - shift.square()

    @torch.no_grad()
    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor, exposure: Tensor = ONE) -> Tensor:
        """Return log ∫ p(y | f) N(f; mean, variance) df, (n,)."""
        exposure = exposure.to(mean).expand_as(mean)

        def integrand(rows: Tensor, f: Tensor) -> Tensor:
            return self.log_density(y[rows, None], f, exposure[rows, None])

        return log_expectation(integrand, mean, variance, log_concave=self.log_concave)

    @torch.no_grad()
    def quantile(self, level: float, mean: Tensor, variance: Tensor, exposure: Tensor = ONE) -> Tensor:
        """Return the least y with P(Y ≤ y) ≥ level when f ~ N(mean, variance), (n,).

        P is an expectation over f by quadrature, to 1e-6.
        """
        exposure = exposure.to(mean).expand_as(mean)

        def cumulative(y: Tensor) -> Tensor:
            def integrand(rows: Tensor, f: Tensor) -> Tensor:
                return self.cumulative(y[rows, None], f, exposure[rows, None])[..., None]

            return expectation(integrand, mean, variance)[:, 0]

        return self._inverse(cumulative, torch.full_like(mean, level), mean, exposure)

    @torch.no_grad()
    def draw(self, f: Tensor, exposure: Tensor, generator: Generator) -> Tensor:
        """Return one y for each f, by inverting the distribution function at uniform numbers."""
        u = torch.rand(f.shape, generator=generator, dtype=torch.float64).to(f.device)
        exposure = exposure.to(f).expand_as(f)
        return self._inverse(lambda y: self.cumulative(y, f, exposure), u, f, exposure)

    def _inverse(self, cumulative: Callable[[Tensor], Tensor], level: Tensor, f: Tensor, exposure: Tensor) -> Tensor:
        """Return quantiles, which are first looked for around the mean of y given f."""
        centre, variance = self.moments(f, exposure)
        width = torch.where(variance.isfinite(), variance, 1.0).sqrt().clamp_min(1e-300)
        return inverse(cumulative, level, centre, width, counts=self.counts, least=self.least)


def require(right: Tensor, value: Tensor, rule: str) -> None:
    """Raise unless all is right, with the rule and the first value that breaks it."""
    if not bool(right.all()):
        value, wrong = value.expand(right.shape), (~right).reshape(-1)
        index = int(wrong.nonzero()[0])
        raise ValueError(f"{rule}, not {value.reshape(-1)[index].item():g} (row {index})")


def _derivative(value: Tensor, f: Tensor, *, create_graph: bool) -> Tensor:
    """Return ∂value_i / ∂f_i, for values that depend on their own f only."""
    if not value.requires_grad:
        return torch.zeros_like(f)
    (result,) = torch.autograd.grad(
        value.sum(), f, create_graph=create_graph, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    return result


def _columns(value: Tensor, theta: Tensor) -> Tensor:
    """Return the Jacobian ∂value_i / ∂theta_j by differentiating ∇_theta Σ_i w_i value_i in the weights w."""
    w = torch.ones_like(value, requires_grad=True)
    (gradient,) = torch.autograd.grad(
        (w * value).sum(), theta, create_graph=True, allow_unused=True, materialize_grads=True
    )
    columns = [_derivative(entry, w, create_graph=False) for entry in gradient]
    return torch.stack(columns, -1) if columns else value.new_zeros(*value.shape, 0)
