"""What the estimators of real numbers with Gaussian noise share: how they are conditioned and what they warn of."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import MultiOutputMixin, RegressorMixin
from torch import Tensor

from kernelcg.backends import Backend
from kernelcg.errors import ConvergenceWarning, warn_user
from kernelcg.estimators.base import ProcessEstimator
from kernelcg.estimators.data import as_tensor, require_magnitude
from kernelcg.estimators.learning_warnings import at_given_bounds, early_end, runaways
from kernelcg.estimators.session import Session
from kernelcg.estimators.settings import chosen_precision
from kernelcg.events import EventKind
from kernelcg.inference.bounds.certificate import Certificate
from kernelcg.inference.bounds.verdict import Verdict
from kernelcg.inference.gaussian.conditioning import condition
from kernelcg.inference.gaussian.model import GaussianProcess, Regression
from kernelcg.inference.outputs.certificate import OutputsCertificate
from kernelcg.inference.outputs.model import OutputProcesses, Outputs
from kernelcg.inference.outputs.posterior import condition_outputs
from kernelcg.planning.plan import Method, Plan
from kernelcg.randomness import child, seeded
from kernelcg.solvers import Approach, Status, Stopping

Floats = NDArray[np.float64]

Problem = Regression | Outputs
Process = GaussianProcess | OutputProcesses
"""Data and process of one system, or of several outputs with systems of their own."""

Placed = tuple[Tensor, Tensor, Tensor | None, str, Backend, torch.dtype | None]
"""The first fields of a problem: X, Y, known variances, drift, backend, precision."""


class GaussianEstimator(MultiOutputMixin, RegressorMixin, ProcessEstimator):  # type: ignore[misc]  # sklearn is untyped
    """An estimator built on a `Posterior`."""

    posterior_: Any
    """A `Posterior`, or the `OutputsPosterior` of outputs with systems of their own."""
    certificate_: Certificate | OutputsCertificate
    _y_shape: tuple[int, ...]

    def _regression(
        self, X: Any, Y: Any, known: Any, mean: str, plan: Plan | None = None, *, relative: bool = False
    ) -> Regression:
        """Return the problem on the device, with the backend and the precision that were asked for."""
        return Regression(*self._placed(X, Y, known, mean, plan), relative=relative)

    def _outputs(self, X: Any, Y: Any, known: Any, mean: str, plan: Plan | None = None) -> Outputs:
        """Return the same for several outputs with systems of their own."""
        return Outputs(*self._placed(X, Y, known, mean, plan))

    def _placed(self, X: Any, Y: Any, known: Any, mean: str, plan: Plan | None) -> Placed:
        """Return the fields of a problem."""
        remedy = "scale the features, for example by sklearn.preprocessing.StandardScaler"
        require_magnitude(X, "X", remedy)
        device = self._device()
        backend = self._backend(X, device, plan)
        X, Y, known = (None if value is None else as_tensor(value).to(device) for value in (X, Y, known))
        return X, Y, known, mean, backend, chosen_precision(self.dtype)

    def _conditioned(self, problem: Problem, gp: Process, plan: Plan, session: Session) -> Any:
        """Return the process, or that of each output, conditioned on the data as planned."""
        if plan.method is Method.ITERATIVE:
            problem = problem.storing(plan.conditioning.storage)
        conditioned: Callable[..., Any] = condition_outputs if isinstance(problem, Outputs) else condition
        return conditioned(
            problem,
            gp,
            method=plan.method,
            stopping=Stopping(rtol=self.rtol),
            preconditioner=self.preconditioner,
            generator=child(seeded(plan.seed), "posterior"),
            callback=session.onlooker,
        )

    def _posterior(self) -> Any:
        """Return the conditioned process with its factors, made again after unpickling or loading.

        Threads that need it at once may each make it: all are the same, and each works with its own.
        """
        posterior = self.posterior_
        if posterior.is_lean:
            generator = child(seeded(self.plan_.seed), "posterior")
            posterior = posterior.restored(self.plan_.method, generator, self.preconditioner)
            self.posterior_ = posterior
        return posterior

    def _shaped(self, values: Floats) -> Floats:
        return values if self._y_shape else values[:, 0]

    def _warn_of_fit(self, start: Process | None, session: Session) -> None:
        """Say in one warning what went wrong and what to do, if anything; nothing was learned without a ``start``."""
        learning, problems = self.learning_, []
        if start is not None and learning.failures:
            problems.append(
                f"{learning.failures} of {learning.evaluations} evaluations while learning did not converge (see "
                f"learning_; bound the noise from below{self._or_directly()})"
            )
        if start is not None and not learning.converged:
            problems.append(early_end(learning, "raise max_iter, or start elsewhere"))
        if start is not None:
            problems += runaways(start, learning.gp)
        if start is not None and learning.evaluations and not learning.stopped:
            problems += at_given_bounds(learning.gp)
        if self.certificate_.verdict is Verdict.NOT_EXACT:
            problems.append(
                f"the fit is NOT exact: {self.certificate_.reason} (see certificate_ and report_; raise the "
                f"noise, scale the data{self._or_directly()})"
            )
        if self.certificate_.verdict is Verdict.UNINFORMATIVE:
            problems.append(
                f"the mean may be off by up to {self.certificate_.mean_error:.1g}: {self.certificate_.reason} (see "
                "certificate_; bound the noise from below)"
            )
        if problems:
            session.tell(EventKind.WARNING, "; ".join(problems))
            warn_user("; ".join(problems), ConvergenceWarning)

    def _or_directly(self) -> str:
        """Return the advice to factorise, unless that was done."""
        found = self.posterior_.report
        reports = found if isinstance(found, tuple) else (found,)
        tried = {attempt.approach for report in reports for attempt in report.attempts}
        done = self.plan_.method is Method.DIRECT or Approach.DIRECT in tried
        return "" if done else ", or try method='direct'"

    def _warn_of(self, status: Status, what: str, advice: str = "raise the noise or rtol") -> None:
        if status is not Status.CONVERGED:
            message = f"{what} did not reach its tolerance: {_event(status)}; {advice}"
            warn_user(message, ConvergenceWarning)


def _event(status: Status) -> str:
    """Return what happened, without the advice for those who call a solver themselves."""
    return status.value.partition(";")[0]
