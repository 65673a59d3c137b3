"""Gaussian process regression for counts, proportions, positive amounts and outliers."""

import os
from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from kernelcg.estimators.data import LARGEST_VARIANCE, require_magnitude
from kernelcg.estimators.generalized_answers import IDENTITY, GeneralizedAnswers, checked_exposure
from kernelcg.estimators.inputs import checked_data
from kernelcg.estimators.session import Resumable
from kernelcg.estimators.settings import START_NOISE, first_kernel, on_own_threads
from kernelcg.events import Listener
from kernelcg.inference.gaussian.drift import MeanKind, spread_of
from kernelcg.inference.laplace.latent_model import LatentProcess, Observations
from kernelcg.inference.learning.given_optimizer import GivenOptimizer
from kernelcg.likelihoods import Binomial, Gamma, Gaussian, Likelihood, NegativeBinomial, Poisson, StudentT
from kernelcg.planning import Plan

DEGREES = (2.1, 1000.0)
"""Interval in which the degrees of freedom are learned by default: from where a variance exists to nearly a
Gaussian."""

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

CONSTANT = "nothing was learned, since y is constant: the hyperparameters are those of the start"

NORMAL_MAD = 1.4826
"""Standard deviation of a Gaussian in units of its median absolute deviation."""


class GPGeneralizedRegressor(GeneralizedAnswers):
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

    @on_own_threads
    def plan(self, X: Any, y: Any, exposure: Any = None) -> Plan:
        """Return what `fit` would do with these data, without doing it; as in `GPRegressor.plan`.

        Parameters
        ----------
        X, y, exposure : as in `fit`
        """
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
        """Condition on more observations, from the old mode, at the same hyperparameters unless ``learn`` is True.

        Parameters
        ----------
        X, y, exposure : more observations, as in `fit`
        learn : whether to learn new hyperparameters, starting from the old ones
        callback : as in `GPRegressor.fit`
        """
        check_is_fitted(self)
        X, y = checked_data(self, X, y, reset=False)
        more = self._observations(X, y, None, checked_exposure(exposure, len(X)), mean=self.mean)
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
        problem = self._observations(X, y, plan, checked_exposure(exposure, len(X)), mean=self.mean)
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
        if robust or self.likelihood == "gaussian" or isinstance(self.likelihood, Gaussian):
            require_magnitude(
                y.cpu().numpy(), "y", "use other units of y", least=1 / LARGEST_VARIANCE, most=LARGEST_VARIANCE
            )
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
