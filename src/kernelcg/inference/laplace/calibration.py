"""Factors of the latent mean and covariance in predictive averages, chosen by leave-one-out."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from scipy.optimize import minimize_scalar
from torch import Generator, Tensor

from kernelcg.events import Listener
from kernelcg.inference.laplace.posterior import LaplacePosterior, LatentPrediction
from kernelcg.likelihoods import BernoulliLogit, Softmax
from kernelcg.randomness import choose

ROWS, ROWS_OF_CLASSES = 1024, 512
"""Rows that are left out: of two classes, and of more, where each takes as many solves as there are classes.

Two factors that are chosen on m rows cost about 1 / m nats a prediction for their own errors.
"""

LEFT_OUT_TOLERANCE = 0.05
"""Relative error of the latent variances of rows that are left out: the mean over many rows hardly feels it."""

COVARIANCE_FACTORS = (0.0, 1 / 64, 1 / 16, 1 / 4, 1.0)
"""Values of b that are tried. The likelihood is flat in b once a suits it. None is above 1: Laplace's Gaussian is too
wide."""

MEAN_FACTORS = (1 / 8, 8.0)
"""Ends of the interval in which a is looked for."""

ACCURACY = 0.01
"""Accuracy to which log a is determined."""

LINK_VARIANCE = 1.0
"""Variance of the probit itself, a third of the logit's: beside it errors of latent variances are judged."""


@dataclass(frozen=True)
class Calibration:
    """Predictions average over N(a μ, b Σ) in the place of Laplace's N(μ, Σ).

    Laplace's Gaussian has its centre at the mode of a skewed posterior: often the centre is too near 0 and the Gaussian
    too wide, so that probabilities are too cautious. With a = b = 1 nothing is changed; with b = 0 predictions do not
    need covariances.

    Attributes
    ----------
    mean, covariance : a and b
    rows : number of rows that were left out in turn to choose them; 0 if they were not chosen
    before, after : mean over these rows of −log p(y_i | the other rows), without the factors and with them
    """

    mean: float = 1.0
    covariance: float = 1.0
    rows: int = 0
    before: float = 0.0
    after: float = 0.0

    @property
    def changes(self) -> bool:
        """Whether a factor is not 1."""
        return (self.mean, self.covariance) != (1.0, 1.0)

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        if not self.changes:
            return "probabilities average over Laplace's Gaussian as it is"
        return (
            f"probabilities average over {self.mean:.3g} times the latent mean and {self.covariance:.3g} times the "
            f"latent covariance: with {self.rows} rows left out in turn, -log p is {self.after:.3g} in the mean, "
            f"{self.before:.3g} without these factors"
        )


def calibrated(posterior: LaplacePosterior, generator: Generator, callback: Listener | None = None) -> Calibration:
    r"""Return the factors for which rows that are left out are foreseen best.

    The loss of m rows with distributions N(μ_i, V_i) of the latent values without row i, see `left_out`, is

    .. math:: -\sum_i \Big[\log p_i(y_i) + \frac1{m (C - 1)} \sum_{c \ne y_i} \log p_i(c)\Big], \qquad
        p_i(c) = \int p(c \mid f)\, N(f;\, a \mu_i, b V_i)\, df .

    The second part is that of one more observation, at any of the rows and wrong: without it a would grow without end
    where no row is misjudged. As in Akaike's criterion each factor that is not 1 must lower the loss by one nat, and
    by one more a b between 0 and 1, for which covariances are needed.

    References
    ----------
    Platt (1999), Probabilistic outputs for support vector machines, for one more observation.
    Vehtari, Mononen, Tolvanen, Sivula & Winther (2016), Bayesian leave-one-out cross-validation approximations for
    Gaussian latent variable models, section 3.2, for Laplace's leave-one-out.
    """
    problem = posterior.problem
    most = ROWS if problem.classes == 1 else ROWS_OF_CLASSES
    rows = choose(len(problem), min(len(problem), most), generator).to(problem.X.device)
    rough = replace(posterior, variance_tolerance=max(posterior.variance_tolerance, LEFT_OUT_TOLERANCE))
    mean, covariance = left_out(rough, rows, callback)
    if not bool(mean.isfinite().all()) or not bool(covariance.isfinite().all()):
        return Calibration()
    log_probabilities = _averages(posterior, mean, covariance)
    y = problem.y[rows].long()

    def losses(a: float, b: float) -> tuple[float, float]:
        """Return the loss, and the part of it that is due to the observations, divided by m."""
        P = log_probabilities(a, b)
        own = P.gather(1, y[:, None])[:, 0]
        wrong = (P.sum(1) - own).mean() / (P.shape[1] - 1)
        return -float(own.sum() + wrong), -float(own.mean())

    best, (least, before) = (1.0, 1.0), losses(1.0, 1.0)
    after = before
    for b in COVARIANCE_FACTORS:
        a = _best_mean_factor(lambda a, b=b: losses(a, b)[0])  # type: ignore[misc]
        loss, mine = losses(a, b)
        price = {0.0: 2, 1.0: 1}.get(b, 3)
        if loss + price < least:
            best, least, after = (a, b), loss + price, mine
    return Calibration(*best, len(rows), before, after)


def scaled(found: LatentPrediction, factors: Calibration) -> LatentPrediction:
    """Return the latent values, with their errors, times the factors; covariances are 0 where there are none."""
    a, b = factors.mean, factors.covariance
    t, C = found.mean.shape
    none = found.mean.new_zeros(t, C, C), found.mean.new_zeros(t)
    covariance, error = none if found.covariance is None else (b * found.covariance, b * found.solve_error)
    return replace(
        found, mean=a * found.mean, mean_bound=a * found.mean_bound, covariance=covariance, covariance_error=error
    )


CURVATURE = 0.242
"""No second derivative of a probability is larger along a unit vector: φ'(1) of probit, 0.1 of logit. For classes it is
p (1 − p) ((1 − 2p) g² − s²) with p that of the class, g the difference of the class to the mean of the others, and s²
the variance among these, of which g² ≤ 2 and (2p − 1) g² + s² ≤ 3p − 1 for p ≥ ½, so that it is at most 0.235."""


def probability_errors(found: LatentPrediction) -> Tensor:
    """Return (t,) how far probabilities may be off because the latent means and variances are.

    E of a function between 0 and 1 changes by no more than the Gaussians do in total variation, where means that differ
    by δ and covariances that differ by E, tr |E| = e, count as 0.4 ‖δ‖ / √λ and 0.25 e / λ, λ the least eigenvalue of
    the covariance: of differences of classes, which decide. It also changes by no more than ½ max |δ_c| and, by the
    second derivatives of a probability, than `CURVATURE` e / 2.
    """
    C, e = found.mean.shape[1], found.solve_error
    least = (_least_of_differences(found) - e).clamp_min(1e-300)
    of_mean = torch.clamp(0.4 * C**0.5 / least.sqrt(), max=0.5) * found.mean_bound
    of_covariance = torch.clamp(0.25 / least, max=0.5 * CURVATURE) * e
    return of_mean + of_covariance + 0.25 * C * found.relative_error


def _least_of_differences(found: LatentPrediction) -> Tensor:
    """Return (t,) the least eigenvalue of the covariance of a latent value, or of those of the classes but for 1."""
    covariance = found.covariance
    if covariance is None:
        raise ValueError("this prediction was made without covariances: ask for them")
    C = covariance.shape[1]
    if C == 1:
        return covariance[:, 0, 0]
    centring = torch.eye(C, dtype=covariance.dtype, device=covariance.device) - 1 / C
    return torch.linalg.eigvalsh(centring @ covariance @ centring)[:, 1]


def left_out(posterior: LaplacePosterior, rows: Tensor, callback: Listener | None = None) -> tuple[Tensor, Tensor]:
    r"""Return means (m, C) and covariances (m, C, C) of the latent values of some rows, each given the other rows.

    Laplace's approximation has a Gaussian in the place of each row of the likelihood. Without that of row i, with
    Σ = Σ_ii and W = S Sᵀ its curvature and g its gradient,

    .. math:: V = (\Sigma^{-1} - W)^{-1} = \Sigma + \Sigma S (I - S^\top \Sigma S)^{-1} S^\top \Sigma, \qquad
        \mu = \hat f - V g .

    I − SᵀΣS is a diagonal block of A⁻¹, and so at least 1 / (1 + k tr W): estimates of Σ that say less are mended.
    """
    problem, expansion = posterior.problem, posterior.mode.expansion
    found = posterior.predict(problem.X[rows], covariance=True, beside=LINK_VARIANCE, callback=callback)
    Sigma, S = found.known_covariance(), expansion.half_blocks(rows)
    least = 1 / (1 + posterior.gp.kernel.diagonal(problem.X[rows]).detach() * expansion.trace()[rows])
    eye = torch.eye(S.shape[1], dtype=S.dtype, device=S.device)
    values, vectors = torch.linalg.eigh(eye - S.mT @ Sigma @ S)
    half = Sigma @ S @ (vectors / torch.maximum(values, least[:, None]).sqrt()[:, None, :])
    V = Sigma + half @ half.mT
    C = problem.classes
    f, g = (value.reshape(-1, C)[rows] for value in (posterior.mode.f, expansion.gradient))
    return f - (V @ g[:, :, None])[:, :, 0], V


def _averages(posterior: LaplacePosterior, mean: Tensor, covariance: Tensor) -> Callable[[float, float], Tensor]:
    """Return a function of a and b with the logarithms (m, C) of the probabilities of all classes."""
    likelihood = posterior.gp.likelihood
    if isinstance(likelihood, Softmax | BernoulliLogit):
        values, vectors = torch.linalg.eigh(covariance)
        root = vectors * values.clamp_min(0).sqrt()[:, None, :]
        if isinstance(likelihood, BernoulliLogit):  # the softmax of 0 and f
            mean, root = (torch.cat([torch.zeros_like(part), part], 1) for part in (mean, root))
        return lambda a, b: Softmax().log_averages(a * mean, b**0.5 * root)

    def of_two(a: float, b: float) -> Tensor:
        m, v = a * mean[:, 0], b * covariance[:, 0, 0]
        ends = (torch.zeros_like(m), torch.ones_like(m))
        return torch.stack([likelihood.log_predictive(y, m, v) for y in ends], 1)

    return of_two


def _best_mean_factor(loss: Callable[[float], float]) -> float:
    """Return the a of the least loss."""
    found = minimize_scalar(
        lambda log_a: loss(math.exp(log_a)),
        bounds=tuple(math.log(end) for end in MEAN_FACTORS),
        method="bounded",
        options={"xatol": ACCURACY},
    )
    return math.exp(found.x)
