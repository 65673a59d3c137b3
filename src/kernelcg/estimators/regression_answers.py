"""What a fitted regressor answers: predictions, draws, leave-one-out residuals, in the units of y; its likelihood."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from kernelcg.arguments import memory_bytes
from kernelcg.backends.memory import default_budget
from kernelcg.errors import ConvergenceWarning, warn_user
from kernelcg.estimators.answers import Component, LeftOut
from kernelcg.estimators.chunked_answers import by_chunks
from kernelcg.estimators.data import as_floats, as_tensor
from kernelcg.estimators.gaussian_estimator import GaussianEstimator, Problem
from kernelcg.estimators.inputs import checked_points
from kernelcg.estimators.prior import Prior
from kernelcg.estimators.relevance import feature_importances
from kernelcg.estimators.session import predicting, tell_of_all
from kernelcg.estimators.settings import (
    LOG_DENSITY,
    check_options,
    generator_from,
    mean_log_density,
    on_own_threads,
    planned_fit,
    quantile_levels,
    require_scoring,
)
from kernelcg.estimators.units_of_y import UnitsOfY
from kernelcg.events import Listener
from kernelcg.inference.bounds.lower_bound import Exact
from kernelcg.inference.gaussian.differentiable import DifferentiablePosterior
from kernelcg.inference.gaussian.leave_one_out import leave_one_out
from kernelcg.inference.gaussian.likelihood_by_pcg import FINEST, Numerics
from kernelcg.inference.gaussian.objective import Objective
from kernelcg.inference.gaussian.parts import drift_part, part
from kernelcg.inference.gaussian.posterior import Posterior
from kernelcg.inference.gaussian.sampling import joint_draws
from kernelcg.inference.learning.given_optimizer import GivenOptimizer
from kernelcg.inference.learning.optimizer import STOCHASTIC
from kernelcg.inference.outputs.model import Outputs
from kernelcg.inference.outputs.objective import OutputsObjective
from kernelcg.inference.outputs.posterior import OutputsPosterior
from kernelcg.kernels.composite import summands
from kernelcg.planning import Method, Plan
from kernelcg.randomness import child, seeded
from kernelcg.solvers import Stopping

Floats = NDArray[np.float64]


class RegressionAnswers(GaussianEstimator):
    """A Gaussian process regressor as those see it who ask a fitted one; how it is fitted is another matter."""

    kernel: Any
    noise: Any
    optimizer: str | GivenOptimizer | None
    probes: int
    log_marginal_likelihood_value_: float
    y_mean_: Floats
    y_scale_: Floats
    noise_: Floats | float

    @property
    def _units(self) -> UnitsOfY:
        return UnitsOfY(self.y_mean_, self.y_scale_, vector=not self._y_shape)

    @by_chunks
    @on_own_threads
    def predict(
        self,
        X: Any,
        return_std: bool = False,
        return_cov: bool = False,
        return_bound: bool = False,
        include_noise: bool = True,
        *,
        quantiles: Any = None,
        callback: Listener | None = None,
    ) -> Any:
        """Return the mean at X, and what else is asked for; or quantiles.

        Before `fit`, a regressor with a kernel answers from its prior, in the units of standardised y if
        ``normalize_y``: mean 0 whatever the drift, and the noise only if one was given.

        Parameters
        ----------
        return_std, return_cov : standard deviation or covariance as well. The variance behind a standard deviation is
            an estimate, off by about 1 % of itself and the noise at most. ``variance_error`` of
            ``posterior_.predict(points, variance=True)`` estimates the error of each; ``return_bound`` brackets it
        return_bound : certified numerical errors as well, a `Bounds`
        include_noise : whether they are those of a new observation, with the learned noise (known variances of the
            training data do not count), or of the function without noise
        quantiles : probabilities q; then quantiles of a new observation, or of the function, are all that is returned,
            with a last axis for them if there are several
        callback : told of every chunk of points; one that returns True ends the work with `StopRequested`
        """
        if return_std and return_cov:
            raise RuntimeError("At most one of return_std or return_cov can be requested.")  # as scikit-learn says it
        if quantiles is not None:
            if return_std or return_cov or return_bound:
                raise ValueError("quantiles are returned alone; ask for return_std, return_cov or return_bound apart")
            normal = ndtri(quantile_levels(quantiles))
            mean, std = self.predict(X, return_std=True, include_noise=include_noise, callback=callback)
            return np.expand_dims(mean, -1) + np.expand_dims(std, -1) * normal if normal.ndim else mean + std * normal
        if not self._is_fitted() and not return_bound:
            return self._prior().answer(self._points_before_fit(X), return_std, return_cov, include_noise)
        check_is_fitted(self)
        points, heard, units = self._points(X), predicting(callback), self._units
        if not (return_std or return_cov or return_bound):
            mean = units.mean(self.posterior_.mean(points))  # needs no factor, even after loading
            tell_of_all(heard, points)
            return mean
        noise = self.noise_ if include_noise else 0.0
        posterior = self._posterior()
        if return_cov and not return_bound:
            return units.mean(posterior.mean(points)), self._covariance(
                posterior, points, noise, latent=not include_noise
            )
        found = posterior.predict(
            points, variance=return_std, bound=return_bound, latent=not include_noise, callback=heard
        )
        self._warn_of(found.status, "the predictive variance", "return_bound=True gives error bounds")
        answer: list[Any] = [units.mean(found.mean)]
        if found.variance is not None:
            answer.append(units.std(found.variance, noise))
        if return_cov:
            answer.append(self._covariance(posterior, points, noise, latent=not include_noise))
        if return_bound:
            answer.append(units.bounds(found, noise, self.noise_))
        return tuple(answer)

    @on_own_threads
    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0, include_noise: bool = True) -> Floats:
        """Return joint draws at the rows of X, (t, n_samples) or (t, c, n_samples).

        Before `fit` they are drawn from the prior, as in `predict`. Beyond a thousand points those without noise still
        have about a thousandth of its variance.

        Parameters
        ----------
        X : (t, d)
        n_samples : number of draws
        random_state : seed, generator or None, as in scikit-learn: the same seed gives the same draws
        include_noise : whether to draw observations, with noise, or the function without it
        """
        check_options({"n_samples": n_samples, "preconditioner": None})
        generator = child(generator_from(random_state), "samples")
        if not self._is_fitted():
            return self._prior().draws(self._points_before_fit(X), n_samples, generator, include_noise).numpy()
        posterior, points = self._posterior(), self._points(X)
        if isinstance(posterior, OutputsPosterior):
            found, status = posterior.draws(points, n_samples, generator, noisy=include_noise)
        else:
            found, status = joint_draws(posterior, points, n_samples, generator, noisy=include_noise)
        self._warn_of(status, "the covariance of the draws")
        return self._units.samples(found)

    def differentiable(self) -> DifferentiablePosterior:
        """Return mean, covariance and sample paths as functions of torch tensors that autograd follows in x."""
        check_is_fitted(self)
        if self._y_shape:
            raise ValueError("only a model of one output is differentiable in x; fit one for each output")
        return DifferentiablePosterior(self._posterior(), float(self.y_scale_[0]), float(self.y_mean_[0]))

    def log_predictive_density(self, X: Any, y: Any) -> Floats:
        """Return log p(y_i | x_i, data), noise included, in the shape of y: how well new observations were foreseen."""
        mean, std = self.predict(X, return_std=True)
        values = as_floats(y, "y")
        if values.shape != mean.shape:
            raise ValueError(f"y must have the shape {mean.shape} of the predictions, not {values.shape}")
        if not np.isfinite(values).all():
            raise ValueError("y must be finite; leave out the rows that are missing")
        with np.errstate(over="ignore"):  # what is that far away has a density of 0
            density: Floats = -0.5 * np.square((values - mean) / std) - np.log(std) - 0.5 * np.log(2 * np.pi)
        return density

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, scoring: str = "r2") -> float:
        """Return R² of the mean or, with ``scoring="log_predictive_density"``, the mean log density of y.

        The latter is a proper score: no other distribution than the right one is expected to have a larger one. For
        scikit-learn's functions: ``scoring=lambda m, X, y: m.score(X, y, scoring="log_predictive_density")``.

        Parameters
        ----------
        X, y : (t, d) and (t,) or (t, c) new observations
        sample_weight : (t,) weights of the rows in the mean; None means equal ones
        scoring : "r2" or "log_predictive_density"
        """
        require_scoring(scoring, "r2")
        if scoring == LOG_DENSITY:
            return mean_log_density(self.log_predictive_density(X, y), sample_weight)
        return float(super().score(X, y, sample_weight))

    @property
    def feature_importances_(self) -> Floats:
        """Return (d,) shares of the variance of the mean that are lost when a feature is averaged out.

        It is computed when it is asked for, from 4 d + 1 predictions for up to 500 training rows; see
        `kernelcg.estimators.relevance.relevances` for the formula.
        """
        check_is_fitted(self)
        return feature_importances(self, self.posterior_.problem.X.cpu().numpy())

    @on_own_threads
    def components(self, X: Any, return_std: bool = False) -> tuple[Component, ...]:
        """Return the summands of the function at X, in the units of y: one for each part of a sum kernel.

        Sums in products are multiplied out. The last one, without a kernel, is the mean function: drift and level.
        The means add up to `predict`; the standard deviations do not, since summands are correlated given the data.

        Parameters
        ----------
        X : (t, d)
        return_std : whether to return standard deviations as well
        """
        check_is_fitted(self)
        if self._y_shape:
            raise ValueError("only the function of one output has components; fit one model for each output")
        posterior, points, units = self._posterior(), self._points(X), self._units
        found, scale = [], float(self.y_scale_[0])
        for kernel in summands(self.kernel_):
            mean, variance, status = part(posterior, kernel, points, variance=return_std)
            self._warn_of(status, "a component", "raise the noise or lower rtol")
            found.append(Component(kernel, scale * mean[:, 0].cpu().numpy(), _std(variance, units)))
        mean, variance = drift_part(posterior, points)
        return (*found, Component(None, units.mean(mean), _std(variance if return_std else None, units)))

    @on_own_threads
    def loo(self, probes: int | None = None) -> LeftOut:
        """Return leave-one-out residuals, standard deviations and log densities of the training data.

        From the factor in the direct method, else from random columns and, for rows of which these say too little, from
        their neighbours; with errors that count rounding. NaN where y was NaN.

        Parameters
        ----------
        probes : so many random columns and no neighbours, which is cheaper for very many rows; standard deviations are
            then off by a few hundredths to a few tenths
        """
        check_is_fitted(self)
        check_options({"preconditioner": None} | ({} if probes is None else {"probes": probes}))
        posterior, generator = self._posterior(), seeded(self.plan_.seed)
        if isinstance(posterior, OutputsPosterior):
            found = posterior.leave_one_out(probes=probes, generator=generator)
        else:
            found = leave_one_out(posterior, probes=probes, generator=generator)
        self._warn_of(found.status, "leave-one-out")
        return self._units.left_out(found)

    @on_own_threads
    def log_marginal_likelihood(self, theta: Any = None, eval_gradient: bool = False) -> Any:
        """Return the log marginal likelihood of the training data at log hyperparameters, and if asked its gradient.

        Exact where a factor was made; else an estimate, with about the standard error in ``certificate_``.

        Parameters
        ----------
        theta : logarithms in the order of ``posterior_.gp.parameter_names()``: those of the kernel, then the noise,
            whatever the order in a scikit-learn kernel was; None means the fitted ones
        eval_gradient : whether to return the gradient in these logarithms as well
        """
        check_is_fitted(self)
        gp, (given, here) = self.posterior_.gp, self._log_parameters(theta)
        if here and not eval_gradient:
            return self.log_marginal_likelihood_value_
        posterior = self._posterior()
        several = posterior.each if isinstance(posterior, OutputsPosterior) else (posterior,)
        method = Method.DIRECT if all(isinstance(one.bound, Exact) for one in several) else Method.ITERATIVE
        work = posterior.problem.workload(in_stages=False)
        plan = planned_fit(self, posterior.problem, work, self.probes, self.plan_.seed, method)
        objective = self._objective(posterior.problem, plan)
        objective = replace(
            objective, numerics=replace(objective.numerics, stopping=Stopping(rtol=max(self.rtol, FINEST)))
        )
        estimate, _ = objective(gp if here else gp.with_log_parameters(given), value=not here)
        self._warn_of(estimate.status, "the log marginal likelihood")
        value = self.log_marginal_likelihood_value_ if here else estimate.value
        return (value, estimate.gradient.numpy()) if eval_gradient else value

    def _is_fitted(self) -> bool:
        return "posterior_" in vars(self)

    def _prior(self) -> Prior:
        return Prior.of(self.kernel, self.noise, memory_bytes(self.memory) or default_budget())

    def _points_before_fit(self, X: Any) -> Tensor:
        with self._leaving_no_trace():  # the number of features is not settled yet
            return as_tensor(checked_points(self, X, reset=True))

    def _covariance(
        self, posterior: Posterior | OutputsPosterior, points: Tensor, noise: Floats | float, *, latent: bool
    ) -> Floats:
        C, status = posterior.joint(points, copies=1 + len(self.y_scale_), latent=latent)
        self._warn_of(status, "the predictive covariance", "return_bound=True gives error bounds")
        if not self._units.squares_fit:
            warn_user(
                "float64 has no numbers for squared units of y: use other units for covariances", ConvergenceWarning
            )
        return self._units.covariance(C, noise)

    def _objective(self, problem: Problem, plan: Plan) -> Any:
        """Return what is maximised: an `Objective`, or an `OutputsObjective`."""
        stochastic = self.optimizer in STOCHASTIC
        numerics = Numerics(self.probes, preconditioner=self.preconditioner, seed=plan.seed, rademacher=stochastic)
        if isinstance(problem, Outputs):
            return OutputsObjective(problem, numerics, plan)
        return Objective(problem, numerics=numerics, plan=plan)


def _std(variance: Tensor | None, units: UnitsOfY) -> Floats | None:
    return None if variance is None else units.std(variance)
