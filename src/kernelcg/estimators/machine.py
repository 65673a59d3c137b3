"""What the estimators of real numbers with Gaussian noise share: how they are conditioned and what they warn of."""

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import MultiOutputMixin, RegressorMixin
from torch import Generator

from kernelcg.errors import ConvergenceWarning
from kernelcg.estimators.base import ProcessEstimator
from kernelcg.estimators.data import as_tensor
from kernelcg.estimators.settings import chosen_backend, chosen_device, chosen_precision, generator_from
from kernelcg.inference.certificate import Certificate
from kernelcg.inference.conditioning import condition
from kernelcg.inference.model import GaussianProcess, Regression
from kernelcg.inference.posterior import Posterior
from kernelcg.randomness import child
from kernelcg.solvers import Status, Stopping

Floats = NDArray[np.float64]


class KernelMachine(MultiOutputMixin, RegressorMixin, ProcessEstimator):  # type: ignore[misc]  # sklearn is untyped
    """An estimator built on a `Posterior`."""

    posterior_: Posterior
    certificate_: Certificate
    _y_shape: tuple[int, ...]

    def _regression(self, X: Any, Y: Any, known: Any, mean: str) -> Regression:
        """Return the problem on the device, with the backend and the precision that were asked for."""
        device = chosen_device(self.device)
        X, Y, known = (None if value is None else as_tensor(value).to(device) for value in (X, Y, known))
        return Regression(X, Y, known, mean, chosen_backend(self.memory, self.n_jobs), chosen_precision(self.dtype))

    def _conditioned(self, problem: Regression, gp: GaussianProcess, generator: Generator) -> Posterior:
        """Return the process conditioned on the data by the method that was planned."""
        return condition(
            problem,
            gp,
            method=self.plan_.method,
            stopping=Stopping(rtol=self.rtol),
            preconditioner=self.preconditioner,
            generator=child(generator, "posterior"),
        )

    def _posterior(self) -> Posterior:
        """Return the conditioned process with its factors, made again after unpickling or loading."""
        if self.posterior_.is_lean:
            self.posterior_ = self.posterior_.restored(self.plan_.method, generator_from(self.random_state))
        return self.posterior_

    def _shaped(self, values: Floats) -> Floats:
        return values if self._y_shape else values[:, 0]

    def _warn_of_fit(self, *, learned: bool = True, stacklevel: int) -> None:
        """Say in one warning what did not converge and what to do, if anything."""
        learning, problems = self.learning_, []
        if learned and learning.failures:
            problems.append(
                f"{learning.failures} of {learning.evaluations} evaluations while learning did not converge (see "
                "learning_; bound the noise from below, or try another preconditioner or method='direct')"
            )
        if learned and not learning.converged:
            problems.append(
                f"learning ended early: {learning.reason} (see learning_; raise max_iter, or start elsewhere)"
            )
        if not self.certificate_.met:
            problems.append(
                f"the fit is NOT exact: {self.certificate_.status.value} (see certificate_ and report_; "
                "raise the noise or rtol, or try method='direct')"
            )
        if problems:
            warnings.warn("; ".join(problems), ConvergenceWarning, stacklevel=stacklevel)

    def _warn_of(self, status: Status, what: str) -> None:
        if status is not Status.CONVERGED:
            message = f"{what} did not reach its tolerance: {status.value}; return_bound=True gives error bounds"
            warnings.warn(message, ConvergenceWarning, stacklevel=3)
