"""What the estimators with other likelihoods than Gaussian noise share: plan, learning, conditioning, warnings."""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Generator, Tensor

from kernelcg.errors import ConvergenceWarning, warn_user
from kernelcg.estimators.answers import Component
from kernelcg.estimators.base import ProcessEstimator
from kernelcg.estimators.data import as_tensor, require_magnitude
from kernelcg.estimators.kernel_check import require_covariance
from kernelcg.estimators.learning_warnings import at_given_bounds, early_end, runaways
from kernelcg.estimators.relevance import feature_importances
from kernelcg.estimators.session import Session
from kernelcg.estimators.settings import (
    check_options,
    chosen_precision,
    learned_count,
    most_steps,
    on_own_threads,
)
from kernelcg.estimators.sklearn_kernels import converted
from kernelcg.events import EventKind, Listener
from kernelcg.inference.bounds.laplace_certificate import LaplaceCertificate, laplace_certificate, words
from kernelcg.inference.bounds.verdict import Verdict
from kernelcg.inference.gaussian.likelihood_by_pcg import FINEST, Numerics
from kernelcg.inference.laplace.evidence import NO_FACTOR, laplace_estimate
from kernelcg.inference.laplace.joint import latent_draws, latent_drift, latent_part
from kernelcg.inference.laplace.latent_model import LatentProcess, Observations
from kernelcg.inference.laplace.objective import LaplaceObjective
from kernelcg.inference.laplace.posterior import LaplacePosterior, LatentPrediction, condition_laplace
from kernelcg.inference.learning.default_priors import default_priors
from kernelcg.inference.learning.given_optimizer import GivenOptimizer
from kernelcg.inference.learning.learn import learn
from kernelcg.inference.learning.optimizer import STOCHASTIC, Optimizer
from kernelcg.kernels import Kernel
from kernelcg.kernels.composite import summands
from kernelcg.planning import Method, Plan
from kernelcg.planning.planner import BLOCKS
from kernelcg.randomness import child, seeded
from kernelcg.solvers import SolveReport, Status, Stopping

Floats = NDArray[np.float64]

PROBES, FEW_PROBES = 64, 8
"""Random columns where nothing else is asked for: of one latent function; of several, or with fresh ones every step.

The search for a mode takes hundreds of products with one column, so that probes in a block cost little beside it. With
eight the noise of the gradient ends learning 200 nats too early on EEG.
"""

VARIANCE_TOLERANCE, CLASS_VARIANCE_TOLERANCE = 1e-3, 1e-2
"""Certified relative errors of latent variances. Those of classes cost C solves a point."""

OTHER_WAYS = ", or try another preconditioner or method='direct'"

PREDICTION_TOLERANCE = 0.02
"""Bound of the error of a prediction beyond which a warning says so: in units of probability, or in standard deviations
of y or of the latent function, whatever was asked for."""

PROBE_SHARE = 0.25
"""Part of the memory that the probes, and all that is computed with them, may take."""


class LaplaceEstimator(ProcessEstimator):
    """An estimator built on a `LaplacePosterior`."""

    kernel: Any
    likelihood: Any
    priors: str | None
    optimizer: str | GivenOptimizer | None
    max_iter: int | None
    step_size: float | None
    probes: int | None
    n_restarts: int
    posterior_: LaplacePosterior
    certificate_: LaplaceCertificate
    report_: SolveReport | None
    kernel_: Any
    likelihood_: Any
    n_iter_: int

    @on_own_threads
    def log_marginal_likelihood(self, theta: Any = None, eval_gradient: bool = False) -> Any:
        """Return Laplace's log marginal likelihood of the training data, and if asked for its gradient.

        Exact in the direct method; else an estimate, with about the standard error in ``certificate_``.

        Parameters
        ----------
        theta : logarithms in the order of ``posterior_.gp.parameter_names()``: those of the kernel, then those of the
            likelihood; None means the fitted ones
        eval_gradient : whether to return the gradient in these logarithms as well
        """
        check_is_fitted(self)
        posterior, (given, here) = self.posterior_, self._log_parameters(theta)
        if here and not eval_gradient:
            return self.log_marginal_likelihood_value_
        rtol = max(self.rtol, FINEST)
        numerics = replace(posterior.numerics, stopping=Stopping(rtol=rtol))
        gp = posterior.gp.with_log_parameters(given)
        estimate, _ = laplace_estimate(
            posterior.problem, gp, posterior.method, numerics, value=not here, mode_rtol=rtol
        )
        self._warn_of(estimate.status, "the log marginal likelihood")
        value = self.log_marginal_likelihood_value_ if here else estimate.value
        return (value, estimate.gradient.numpy()) if eval_gradient else value

    # steps of a fit

    def _observations(
        self, X: Any, y: Any, plan: Plan | None, exposure: Any = 1.0, *, mean: str = "zero", classes: int = 1
    ) -> Observations:
        """Return the problem on the device, with the backend and the precision that were asked for."""
        require_magnitude(X, "X", "scale the features, for example by sklearn.preprocessing.StandardScaler")
        device = self._device()
        backend, precision = self._backend(X, device, plan), chosen_precision(self.dtype)
        X, y, exposure = (as_tensor(value).to(device) for value in (X, y, exposure))
        problem = Observations(X, y, exposure, mean, classes, backend, precision)
        return self._within_memory(problem, self._probes(problem), learns=self.optimizer is not None)

    def _first_kernel(self, X: Tensor, named: Callable[[str], Kernel]) -> Kernel:
        """Return the kernel from which learning starts; ``named`` makes one of a name, as does None of its own."""
        name = "matern32" if self.kernel is None else self.kernel
        own, white = converted(named(name) if isinstance(name, str) else self._with_numbered_columns(name))
        if white is not None:
            raise ValueError("the kernel has a WhiteKernel, but this likelihood has no Gaussian noise; leave it out")
        require_covariance(own, X, learned=self.optimizer is not None)
        return own

    def _check_options(self) -> None:
        options = self.get_params(deep=False)
        check_options({name: value for name, value in options.items() if (name, value) != ("probes", None)})

    def _probes(self, problem: Observations) -> int:
        """Return how many random columns an iterative evaluation has."""
        if self.probes is not None:
            return self.probes
        return FEW_PROBES if self.optimizer in STOCHASTIC else affordable_probes(problem)

    def _numerics(self, plan: Plan) -> Numerics:
        signs = self.optimizer in STOCHASTIC
        return Numerics(plan.probes, preconditioner=self.preconditioner, seed=plan.seed, rademacher=signs)

    def _planned_laplace(
        self, problem: Observations, gp: LatentProcess, plan: Plan | None, earlier: Plan | None
    ) -> tuple[Observations, Plan]:
        """Return the problem with its prices, and the plan of a fit."""
        count = learned_count(gp, self.optimizer is not None)
        work = problem.workload(parameters=count, in_stages=self.optimizer == Optimizer.LBFGS)
        return self._planned(problem, gp.kernel, work, self._probes(problem), plan, earlier)

    def _learn_and_condition(
        self,
        problem: Observations,
        gp: LatentProcess,
        plan: Plan,
        session: Session,
        optimizer: str | GivenOptimizer | None,
        unlearnable: str = "",
    ) -> list[str]:
        """Do what a fit does; return what went wrong. Nothing is learned if a reason against it is given."""
        numerics = self._numerics(plan)
        session.tell(EventKind.PLAN, plan)
        with session.learning() as callback:
            self.learning_ = learn(
                LaplaceObjective(problem, numerics=numerics, plan=plan),
                gp,
                optimizer=None if unlearnable else optimizer,
                max_steps=self.max_iter if self.max_iter is not None else most_steps(optimizer),
                step_size=self.step_size,
                restarts=self.n_restarts,
                generator=child(seeded(plan.seed), "learning"),
                callback=callback,
                resume=session.resume,
                priors=None if self.priors is None else default_priors(gp, problem),
            )
        if unlearnable and optimizer is not None:
            self.learning_ = replace(self.learning_, converged=False, reason=unlearnable)
        self._condition(problem, plan, session)
        return self._problems(gp)

    def _condition(self, problem: Observations, plan: Plan, session: Session, start: Tensor | None = None) -> None:
        """Condition the process on the data with what was learned, from f of a mode nearby, and keep what comes out."""
        done, numerics = self.learning_.revised(plan), self._numerics(plan)
        try:
            self.posterior_ = condition_laplace(
                problem.storing(done.conditioning.storage),
                self.learning_.gp,
                method=done.method,
                rtol=self.rtol,
                numerics=numerics,
                variance_tolerance=CLASS_VARIANCE_TOLERANCE if problem.classes > 1 else VARIANCE_TOLERANCE,
                start=start,
                callback=session.onlooker,
            )
            self.certificate_ = laplace_certificate(self.posterior_, tolerance=self.rtol)
        except NO_FACTOR as error:
            raise ValueError(_too_large_for_float64(self.learning_.gp.kernel, problem.X)) from error
        self._calibrate(session.onlooker)
        self.plan_ = session.outcome(plan, done, self.learning_)
        self.report_ = self.posterior_.spent.report
        self.n_iter_ = max(len(self.learning_.steps), 1)
        self._name_results()
        session.tell(EventKind.END, self.certificate_)

    def _updated(self, more: Observations, session: Session, *, learns: bool) -> list[str]:
        """Condition on further observations, from the old mode and what it predicts there; return what went wrong."""
        old = self.posterior_
        problem, gp = old.problem.joined(more), old.gp
        work = problem.workload(parameters=learned_count(gp, learns), in_stages=self.optimizer == Optimizer.LBFGS)
        problem, plan = self._planned(problem, gp.kernel, work, self._probes(problem), None, self.plan_)
        if learns:
            return self._learn_and_condition(problem, gp, plan, session, self.optimizer or Optimizer.LBFGS)
        session.tell(EventKind.PLAN, plan)
        self.learning_ = replace(self.learning_, gp=gp, plan=None)
        self._condition(problem, plan, session, torch.cat([old.mode.f, old.mean(more.X).reshape(-1, 1)]))
        return self._problems(None)

    @abstractmethod
    def _calibrate(self, callback: Listener | None) -> None:
        """Choose what predictive averages need beside the posterior."""

    def _name_results(self) -> None:
        """Make attributes of what users look for first."""
        self.kernel_, self.likelihood_ = self.posterior_.gp.kernel, self.posterior_.gp.likelihood
        self.log_marginal_likelihood_value_ = self.certificate_.log_marginal_likelihood

    # what went wrong

    def _problems(self, start: LatentProcess | None) -> list[str]:
        """Return in plain words what did not converge and what to do, if anything; learned from a ``start`` or not."""
        return [*([] if start is None else self._problems_of_learning(start)), *self._problems_of_the_mode()]

    def _problems_of_learning(self, start: LatentProcess) -> list[str]:
        learning, found = self.learning_, []
        if learning.failures:
            found.append(
                f"{learning.failures} of {learning.evaluations} evaluations while learning did not converge (see "
                f"learning_; bound the hyperparameters{OTHER_WAYS if self.plan_.method is Method.ITERATIVE else ''})"
            )
        if not learning.converged:
            found.append(early_end(learning, "raise max_iter or probes, or start elsewhere"))
        found += runaways(start, learning.gp)
        if learning.evaluations and not learning.stopped:
            by_default = {"kernel.": self.kernel is None, "likelihood.": isinstance(self.likelihood, str)}
            found += at_given_bounds(learning.gp, tuple(part for part, ours in by_default.items() if ours))
        return found

    def _problems_of_the_mode(self) -> list[str]:
        certificate, found = self.certificate_, []
        if certificate.verdict is not Verdict.CERTIFIED:
            verdict = "NOT exact" if certificate.verdict is Verdict.NOT_EXACT else "not certified"
            advice = "raise rtol" if certificate.verdict is Verdict.NOT_EXACT else "scale the features"
            found.append(
                f"the fit is {verdict}: {certificate.reason} (see certificate_; {advice}, bound the variance of the "
                f"kernel{OTHER_WAYS if self.plan_.method is Method.ITERATIVE else ''})"
            )
        return found

    def _warn_of_fit(self, problems: list[str], session: Session) -> None:
        if problems:
            session.tell(EventKind.WARNING, "; ".join(problems))
            warn_user("; ".join(problems), ConvergenceWarning)

    def _warn_of(self, status: Status, what: str) -> None:
        if status is not Status.CONVERGED:
            message = f"{what} did not reach its tolerance: {words(status)}; try method='direct' or a larger memory"
            warn_user(message, ConvergenceWarning)

    # prediction

    @property
    def feature_importances_(self) -> Floats:
        """Return (d,) shares of the variance of the latent mean that are lost when a feature is averaged out.

        It is computed when it is asked for; see `kernelcg.estimators.relevance.relevances` for the formula.
        """
        check_is_fitted(self)
        return feature_importances(self, self._training_inputs())

    @on_own_threads
    def components(self, X: Any, return_std: bool = False) -> tuple[Component, ...]:
        """Return the summands of the latent function at X: one for each part of a sum kernel, and the drift if any.

        Sums in products are multiplied out. The means add up to that of `latent`; the standard deviations do not, since
        summands are correlated given the data. (t,), or (t, C) of several latent functions.

        Parameters
        ----------
        X : (t, d)
        return_std : whether to return standard deviations as well
        """
        check_is_fitted(self)
        posterior, points, found = self._conditioned_once(), self._points(X), []
        for kernel in summands(posterior.gp.kernel):
            mean, variance, status = latent_part(posterior, kernel, points)
            self._warn_of(status, "the variance of a component")
            found.append(_component(kernel, mean, variance, return_std))
        if posterior.problem.H.shape[1]:
            found.append(_component(None, *latent_drift(posterior, points), return_std))
        return tuple(found)

    def _training_inputs(self) -> Floats:
        X: Floats = self.posterior_.problem.X.cpu().numpy()
        return X

    def _conditioned_once(self) -> LaplacePosterior:
        """Return the conditioned process where there is one."""
        return self._posterior()

    def _latent_draws(self, X: Any, n_samples: int, generator: Generator) -> Tensor:
        """Return (t, C, n_samples) joint draws of the latent functions."""
        check_options({"n_samples": n_samples, "preconditioner": None})
        F, status = latent_draws(self._posterior(), self._points(X), n_samples, generator)
        self._warn_of(status, "the covariance of the draws")
        return F

    def _posterior(self) -> LaplacePosterior:
        """Return the conditioned process with what covariances need, made here where it is not at hand.

        Threads that need it at once may each make it: all are the same, and each works with its own.
        """
        posterior = self.posterior_.restored()
        self.posterior_ = posterior
        return posterior

    def _with_covariance(
        self, points: Tensor, callback: Listener | None = None, *, beside: float = 0.0
    ) -> LatentPrediction:
        """Return the latent values, with variances to the tolerance relative to themselves plus ``beside``."""
        return self._posterior().predict(points, covariance=True, beside=beside, callback=callback)

    def _warn_of_prediction(self, found: LatentPrediction, off: Tensor, what: str) -> None:
        """Warn once if a solve missed its tolerance, or if an answer may be ``off`` (t,) by too much, in its unit."""
        self._warn_of(found.status, "the latent variance")
        wrong = ~(off <= PREDICTION_TOLERANCE)
        if found.status is Status.CONVERGED and bool(wrong.any()):
            largest = float(off[wrong].nan_to_num(nan=math.inf).max())
            message = (
                f"predictions at {int(wrong.sum())} of {len(off)} points may be off by up to {largest:.2g} {what}: the "
                "mode is not known better, or rounding of the inputs is amplified (see certificate_; scale the "
                "features, bound the variance of the kernel, or lower rtol)"
            )
            warn_user(message, ConvergenceWarning)

    def _warn_of_latent(self, found: LatentPrediction) -> None:
        """Warn if a latent mean or standard deviation may be off by too much of that standard deviation."""
        variance = found.variances.amin(1)
        off = torch.maximum(found.mean_bound / variance.sqrt(), 0.5 * found.variance_error / variance)
        self._warn_of_prediction(found, torch.where(variance > 0, off, 0.0), "latent standard deviations")


def _component(kernel: Kernel | None, mean: Tensor, variance: Tensor, return_std: bool) -> Component:
    mean, std = (values[:, 0] if values.shape[1] == 1 else values for values in (mean, variance.sqrt()))
    return Component(kernel, mean.cpu().numpy(), std.cpu().numpy() if return_std else None)


def _too_large_for_float64(kernel: Kernel, X: Tensor) -> str:
    """Say why no system of a Newton step can be solved, and what helps."""
    largest = float(kernel.diagonal(X).detach().max())
    return (
        f"the kernel matrix is not positive definite in float64: k(x, x) reaches {largest:.3g} for {kernel!r}, and its "
        "rounding is larger than what tells the rows apart; subtract the mean of the features and scale them, for "
        "example by sklearn.preprocessing.StandardScaler, or give the kernel a smaller variance"
    )


def affordable_probes(problem: Observations) -> int:
    """Return how many random columns to take: many for one latent function, as far as the memory allows."""
    fitting = int(PROBE_SHARE * problem.points.budget() / (BLOCKS * 8 * problem.size))
    return FEW_PROBES if problem.classes > 1 else max(FEW_PROBES, min(PROBES, fitting))
