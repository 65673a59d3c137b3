"""Gaussian process regression for counts, proportions, positive amounts and outliers."""

import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted, column_or_1d
from torch import Tensor

from kernelcg.errors import ConvergenceWarning
from kernelcg.estimators.data import as_tensor
from kernelcg.estimators.inputs import checked_data
from kernelcg.estimators.laplace_estimator import Floats, LaplaceEstimator
from kernelcg.estimators.session import Resumable, predicting, tell_of_all
from kernelcg.estimators.settings import (
    LOG_DENSITY,
    START_NOISE,
    first_kernel,
    generator_from,
    mean_log_density,
    quantile_levels,
    require_scoring,
)
from kernelcg.events import Listener
from kernelcg.inference.gaussian.drift import MeanKind, spread_of
from kernelcg.inference.laplace.latent_model import LatentProcess, Observations
from kernelcg.inference.laplace.posterior import LatentPrediction
from kernelcg.inference.learning.given_optimizer import GivenOptimizer
from kernelcg.likelihoods import Binomial, Gamma, Gaussian, Likelihood, NegativeBinomial, Poisson, StudentT
from kernelcg.planning import Plan
from kernelcg.randomness import child

DEGREES = (2.1, 1000.0)
"""Between these the degrees of freedom are learned by default: from where a variance exists to nearly a Gaussian."""

LIKELIHOODS: Mapping[str, Callable[[float], Likelihood]] = {
    "student_t": lambda spread: StudentT(torch.tensor(START_NOISE**0.5 * spread, dtype=torch.float64)).bounded(
        degrees=DEGREES
    ),
    "gaussian": lambda spread: Gaussian(torch.tensor(START_NOISE * spread**2, dtype=torch.float64)),
    "poisson": lambda _: Poisson(),
    "negative_binomial": lambda _: NegativeBinomial(),
    "binomial": lambda _: Binomial(),
    "gamma": lambda _: Gamma(),
}
"""The likelihoods by name, from the spread of y."""

IDENTITY = (Gaussian, StudentT)
"""Likelihoods whose latent value is the centre of y, in its units."""

CONSTANT = "nothing was learned, since y is constant: the hyperparameters are those of the start"

NEGLIGIBLE = 1e-3
"""Error of the latent function, in its standard deviations, that no moment of y can feel."""

LARGEST_EXPONENT = 300.0
"""Exponent of half the largest float64 number, nearly."""

NORMAL_MAD = 1.4826
"""Standard deviation of a Gaussian in units of its median absolute deviation."""


class GPGeneralizedRegressor(RegressorMixin, LaplaceEstimator):  # type: ignore[misc]  # sklearn is untyped
    """Gaussian process regression with a likelihood of its own: counts, proportions, positive amounts, heavy tails.

    The latent function is what a `GPRegressor` has; y given its value follows the likelihood, which is reached by
    Laplace's approximation and preconditioned conjugate gradients. It is a sibling of `GPRegressor` rather than an
    option: there y is standardised, may have several columns and known variances, and drift and noise are integrated
    exactly. Nothing of that carries over to a count.

    Parameters
    ----------
    kernel : kernelcg or scikit-learn kernel of the latent function; None means Matérn-3/2 with one lengthscale per
        feature and a variance. The latent function is log E[y] for "poisson", "negative_binomial" and "gamma", the
        log-odds for "binomial", and in the units of y for "student_t" and "gaussian". There is no noise: a
        WhiteKernel is refused
    likelihood : "student_t", robust against outliers; "poisson" or, where counts vary more than that,
        "negative_binomial"; "binomial", y successes among ``exposure`` trials; "gamma", positive amounts;
        "gaussian", for comparison; or a `kernelcg.likelihoods.Likelihood`, whose hyperparameters may be fixed, bounded
        or given a prior, one of your own included. Its hyperparameters are learned with those of the kernel
    mean : "constant", "zero" or "linear" drift of the latent function, fitted with its mode
    priors, method, preconditioner, optimizer, max_iter, max_seconds, step_size, probes, n_restarts, rtol, device, \
    dtype, memory, n_jobs, cluster, random_state, verbose : as in `GPClassifier`

    Attributes
    ----------
    kernel_, likelihood_ : as learned
    log_marginal_likelihood_value_ : Laplace's approximation of it at the learned hyperparameters
    certificate_ : residual and steps of Newton's method, error bounds and standard errors of the fit; print it
    learning_, n_iter_ : the steps taken, why they ended, their number
    report_ : the last linear solve; None in the direct method
    plan_ : method and memory, decided before the work started
    posterior_ : the conditioned latent process, for use with torch

    Examples
    --------
    >>> import numpy as np
    >>> from kernelcg import GPGeneralizedRegressor
    >>> X = np.linspace(0, 10, 60)[:, None]
    >>> from kernelcg.likelihoods import Poisson
    >>> counts = np.round(np.exp(1 + np.sin(X[:, 0])))
    >>> model = GPGeneralizedRegressor(likelihood=Poisson(), random_state=0).fit(X, counts)
    >>> bool((model.predict(X) > 0).all())
    True
    """

    def __init__(
        self,
        kernel: Any = None,
        *,
        likelihood: Any = "student_t",
        mean: str = "constant",
        priors: str | None = "weak",
        method: str = "auto",
        preconditioner: Any = "auto",
        optimizer: str | GivenOptimizer | None = "lbfgs",
        max_iter: int | None = None,
        max_seconds: float | None = None,
        step_size: float | None = None,
        probes: int | None = None,
        n_restarts: int = 0,
        rtol: float = 1e-6,
        device: str = "auto",
        dtype: str = "auto",
        memory: int | str | None = None,
        n_jobs: int | None = None,
        cluster: Any = None,
        random_state: Any = 0,
        verbose: int = 0,
    ):
        self.kernel = kernel
        self.likelihood = likelihood
        self.mean = mean
        self.priors = priors
        self.method = method
        self.preconditioner = preconditioner
        self.optimizer = optimizer
        self.max_iter = max_iter
        self.max_seconds = max_seconds
        self.step_size = step_size
        self.probes = probes
        self.n_restarts = n_restarts
        self.rtol = rtol
        self.device = device
        self.dtype = dtype
        self.memory = memory
        self.n_jobs = n_jobs
        self.cluster = cluster
        self.random_state = random_state
        self.verbose = verbose

    # learning

    def plan(self, X: Any, y: Any, exposure: Any = None) -> Plan:
        """Return what `fit` would do with these data, without doing it; as in `GPRegressor.plan`."""
        with self._leaving_no_trace():
            return self._prepared(X, y, exposure, None)[2]

    def fit(
        self,
        X: Any,
        y: Any,
        exposure: Any = None,
        *,
        plan: Plan | None = None,
        callback: Listener | None = None,
        resume: Resumable = None,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Learn the hyperparameters and condition the latent function on the data.

        Parameters
        ----------
        X : (n, d)
        y : (n,) what the likelihood allows: numbers, counts, positive amounts
        exposure : (n,) or one number: the time or area behind each count ("poisson", "negative_binomial"), the number
            of trials ("binomial"); None means 1. The other likelihoods ignore it
        plan, callback, resume, checkpoint : as in `GPRegressor.fit`
        """
        with self._fitting(callback, resume, checkpoint) as session:
            problem, gp, plan = self._prepared(X, y, exposure, plan, session.earlier)
            constant = isinstance(gp.likelihood, IDENTITY) and float(spread_of(problem.y[:, None])) == 0
            problems = self._learn_and_condition(
                problem, gp, plan, session, self.optimizer, CONSTANT if constant else ""
            )
        self._warn_of_fit(problems, session)
        return self

    def update(
        self,
        X: Any,
        y: Any,
        exposure: Any = None,
        *,
        learn: bool = False,
        callback: Listener | None = None,
    ) -> Self:
        """Condition on more observations, from the old mode, at the same hyperparameters unless ``learn`` is True."""
        check_is_fitted(self)
        X, y = checked_data(self, X, y, reset=False)
        more = self._observations(X, y, None, _checked_exposure(exposure, len(X)), mean=self.mean)
        self.likelihood_.check(more.y, more.exposure)
        with self._fitting(callback) as session:
            problems = self._updated(more, session, learns=learn)
        self._warn_of_fit(problems, session)
        return self

    def _prepared(
        self, X: Any, y: Any, exposure: Any, plan: Plan | None, earlier: Plan | None = None
    ) -> tuple[Observations, LatentProcess, Plan]:
        """Return the checked data, the process from which learning starts, and the plan."""
        self._check_options()
        X, y = checked_data(self, X, y)
        problem = self._observations(X, y, plan, _checked_exposure(exposure, len(X)), mean=self.mean)
        likelihood, variance = self._first_likelihood(problem.y)
        likelihood.check(problem.y, problem.exposure)
        if self.mean != MeanKind.ZERO:
            _require_level(likelihood, problem.y, problem.exposure)
        kernel = self._first_kernel(problem.X, lambda name: first_kernel(problem.X, variance, name))
        gp = LatentProcess(kernel, likelihood)
        problem, made = self._planned_laplace(problem, gp, plan, earlier)
        return problem, gp, made

    def _first_likelihood(self, y: Tensor) -> tuple[Likelihood, float]:
        """Return the likelihood from which learning starts, and a variance that suits its latent function."""
        robust = self.likelihood == "student_t" or isinstance(self.likelihood, StudentT)
        spread = _robust_spread(y) if robust else float(spread_of(y[:, None])) or 1.0
        if isinstance(self.likelihood, Likelihood):
            found = self.likelihood
        elif isinstance(self.likelihood, str) and self.likelihood in LIKELIHOODS:
            found = LIKELIHOODS[self.likelihood](spread)
        else:
            raise ValueError(
                f"likelihood must be one of {', '.join(LIKELIHOODS)} or a kernelcg.likelihoods.Likelihood, not "
                f"{self.likelihood!r}"
            )
        return found, spread**2 if isinstance(found, IDENTITY) else 1.0

    def _calibrate(self, callback: Listener | None) -> None:
        """Choose nothing: moments of y average over Laplace's Gaussian as it is."""

    # prediction

    def predict(
        self,
        X: Any,
        exposure: Any = None,
        return_std: bool = False,
        *,
        quantiles: Any = None,
        callback: Listener | None = None,
    ) -> Any:
        """Return the predictive mean of y at X, and if asked for its standard deviation; or quantiles.

        Both average over the latent value; the standard deviation is that of a new observation. For "student_t" the
        mean is the centre, and the standard deviation is infinite where the learned degrees of freedom are at most 2.

        Parameters
        ----------
        exposure : (t,) or one number: as in `fit`; None means 1
        quantiles : probabilities q; then quantiles of a new observation are all that is returned, (t,) or (t, q): the
            least y that is not exceeded with probability q, over the likelihood and the latent value
        callback : as in `GPRegressor.predict`
        """
        check_is_fitted(self)
        points, heard = self._points(X), predicting(callback)
        amounts = self._exposure(exposure, points)
        if quantiles is not None:
            if return_std:
                raise ValueError("quantiles are returned alone; ask for return_std apart")
            return self._quantiles(quantile_levels(quantiles), points, amounts, heard)
        if not return_std and isinstance(self.likelihood_, IDENTITY):
            mean = self.posterior_.mean(points)
            tell_of_all(heard, points)
            return mean[:, 0].cpu().numpy()
        found = self._with_covariance(points, heard)
        mean, std = self._moments(found, amounts)
        self._warn_of_prediction(found, self._errors(found, amounts, mean, std), "standard deviations of y")
        _warn_of_overflow(mean, std, found)
        return (mean.cpu().numpy(), std.cpu().numpy()) if return_std else mean.cpu().numpy()

    def _quantiles(self, levels: Floats, points: Tensor, amounts: Tensor, heard: Listener | None) -> Floats:
        found = self._with_covariance(points, heard)
        self._warn_of_latent(found)
        mean, variance = found.mean[:, 0], found.variances[:, 0]
        each = [self.likelihood_.quantile(float(level), mean, variance, amounts) for level in levels.ravel()]
        columns: Floats = torch.stack(each, 1).cpu().numpy()
        return columns.reshape(len(points), *levels.shape)

    def sample_y(
        self, X: Any, n_samples: int = 1, random_state: Any = 0, exposure: Any = None, latent: bool = False
    ) -> Floats:
        """Return (t, n_samples) joint draws of new observations at the rows of X, or of the latent function.

        The latent function is drawn from Laplace's Gaussian, an observation from the likelihood given its value.
        """
        check_is_fitted(self)
        generator = child(generator_from(random_state), "samples")
        F = self._latent_draws(X, n_samples, child(generator, "latent"))[:, 0]
        if latent:
            return F.cpu().numpy()
        amounts = self._exposure(exposure, F)
        return self.likelihood_.draw(F, amounts[:, None], child(generator, "y")).cpu().numpy()

    def _moments(self, found: LatentPrediction, amounts: Tensor, share: float = 0.0) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of y, with this share of the latent errors added."""
        latent = found.mean[:, 0] + share * found.mean_bound
        variance = found.variances[:, 0] + share * found.variance_error
        mean, spread = self.likelihood_.predict(latent, variance.clamp_min(0.0), amounts)
        return mean, spread.sqrt()

    def _errors(self, found: LatentPrediction, amounts: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        """Return (t,) how far mean and standard deviation of y may be off, in units of the latter."""
        variance = found.variances[:, 0]
        small = torch.maximum(found.mean_bound / variance.sqrt(), found.variance_error / variance)
        if bool((small <= NEGLIGIBLE).all()) or not bool(found.mean_bound.isfinite().all()):
            return torch.where(variance > 0, small, 0.0).nan_to_num(nan=0.0)
        ends = [self._moments(found, amounts, share) for share in (-1.0, 1.0)]
        off = torch.stack(
            [(value - centre).abs() for end in ends for value, centre in zip(end, (mean, std), strict=True)]
        )
        return torch.where(std.isfinite(), off.amax(0) / std.clamp_min(1e-300), 0.0)

    def latent(self, X: Any, return_std: bool = False) -> Any:
        """Return the mean (t,) of the latent function at X, drift included, and if asked for its standard deviation."""
        check_is_fitted(self)
        points = self._points(X)
        if not return_std:
            return self.posterior_.mean(points)[:, 0].cpu().numpy()
        found = self._with_covariance(points)
        self._warn_of_latent(found)
        return found.mean[:, 0].cpu().numpy(), found.variances[:, 0].sqrt().cpu().numpy()

    def log_predictive_density(self, X: Any, y: Any, exposure: Any = None) -> Floats:
        """Return (t,) log p(y | x, data), averaged over the latent values: how well new observations were foreseen."""
        check_is_fitted(self)
        points = self._points(X)
        y, amounts = self._observed(y, points), self._exposure(exposure, points)
        self.likelihood_.check(y, amounts)
        found = self._with_covariance(points)
        self._warn_of_latent(found)
        mean, variance = found.mean[:, 0], found.variances[:, 0]
        return self.likelihood_.log_predictive(y, mean, variance, amounts).cpu().numpy()

    def score(self, X: Any, y: Any, exposure: Any = None, sample_weight: Any = None, *, scoring: str = "r2") -> float:
        """Return R² of the predictive mean or, with ``scoring="log_predictive_density"``, the mean log density of y."""
        check_is_fitted(self)
        require_scoring(scoring, "r2")
        if exposure is None and bool((self.posterior_.problem.exposure != 1).any()):
            raise ValueError("the model was fitted with exposures other than 1: score needs those of X")
        if scoring == LOG_DENSITY:
            return mean_log_density(self.log_predictive_density(X, y, exposure), sample_weight)
        return float(r2_score(y, self.predict(X, exposure), sample_weight=sample_weight))

    def _exposure(self, exposure: Any, points: Tensor) -> Tensor:
        amounts = as_tensor(_checked_exposure(exposure, len(points))).to(points.device)
        if not bool(((amounts > 0) & amounts.isfinite()).all()):
            raise ValueError("exposure must be positive and finite")
        if isinstance(self.likelihood_, Binomial):
            self.likelihood_.check(torch.zeros_like(amounts), amounts)
        return amounts

    def _observed(self, y: Any, points: Tensor) -> Tensor:
        values = as_tensor(column_or_1d(y)).to(points.device)
        if len(values) != len(points):
            raise ValueError(f"X has {len(points)} rows but y has {len(values)}")
        return values


def _checked_exposure(exposure: Any, n: int) -> Floats:
    """Return (n,) exposures."""
    values = np.asarray(1.0 if exposure is None else exposure, dtype=np.float64)
    if values.shape not in ((), (n,)):
        raise ValueError(f"exposure must be one number or {n} of them, not of shape {values.shape}")
    return np.broadcast_to(values, (n,)).copy()


def _warn_of_overflow(mean: Tensor, std: Tensor, found: LatentPrediction) -> None:
    """Warn if E y or its standard deviation is more than float64 can hold because an exponential is."""
    variance = found.variances[:, 0]
    beyond = ~(mean.isfinite() & std.isfinite()) & variance.isfinite() & found.mean[:, 0].isfinite()
    beyond = beyond & ((found.mean[:, 0] + 2 * variance).abs() > LARGEST_EXPONENT)
    if bool(beyond.any()):
        worst = int(torch.where(beyond, variance, -1.0).argmax())
        message = (
            f"the mean or the standard deviation of y at {int(beyond.sum())} of {len(mean)} points is more than 1e308, "
            f"the largest float64 number, and given as inf: it is an exponential of the latent function, there with "
            f"mean {float(found.mean[worst, 0]):.3g} and variance {float(variance[worst]):.3g}. Use latent(), bound "
            "the variance of the kernel, or take mean='constant' away from the data"
        )
        warnings.warn(message, ConvergenceWarning, stacklevel=3)


def _require_level(likelihood: Likelihood, y: Tensor, exposure: Tensor) -> None:
    """Raise if the best level of the latent function is infinite."""
    none = bool((y == 0).all()) and isinstance(likelihood, Poisson | NegativeBinomial | Binomial)
    every = bool((y == exposure).all()) and isinstance(likelihood, Binomial)
    if none or every:
        raise ValueError(
            f"every y is {'0' if none else 'the number of trials'}: no finite level suits them best; use mean='zero'"
        )


def _robust_spread(y: Tensor) -> float:
    """Return a standard deviation that a few outliers do not change; 1 if all y are the same."""
    deviation = NORMAL_MAD * float((y - y.median()).abs().median())
    return deviation or float(spread_of(y[:, None])) or 1.0
