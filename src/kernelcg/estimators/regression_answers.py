"""What a fitted regressor answers: predictions, draws, and leave-one-out residuals, in the units of y."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from kernelcg.arguments import memory_bytes
from kernelcg.backends.memory import default_budget
from kernelcg.estimators.answers import LeftOut
from kernelcg.estimators.data import as_tensor
from kernelcg.estimators.gaussian_estimator import GaussianEstimator
from kernelcg.estimators.inputs import checked_points
from kernelcg.estimators.prior import Prior
from kernelcg.estimators.session import predicting, tell_of_all
from kernelcg.estimators.settings import check_options, generator_from
from kernelcg.estimators.units_of_y import UnitsOfY
from kernelcg.events import Listener
from kernelcg.inference.gaussian.differentiable import DifferentiablePosterior
from kernelcg.inference.gaussian.leave_one_out import leave_one_out
from kernelcg.inference.gaussian.posterior import Posterior
from kernelcg.inference.gaussian.sampling import draws
from kernelcg.randomness import child, seeded

Floats = NDArray[np.float64]


class RegressionAnswers(GaussianEstimator):
    """A Gaussian process regressor as those see it who ask a fitted one; how it is fitted is another matter."""

    kernel: Any
    noise: Any
    y_mean_: Floats
    y_scale_: Floats
    noise_: float

    @property
    def _units(self) -> UnitsOfY:
        return UnitsOfY(self.y_mean_, self.y_scale_, vector=not self._y_shape)

    def predict(
        self,
        X: Any,
        return_std: bool = False,
        return_cov: bool = False,
        return_bound: bool = False,
        include_noise: bool = True,
        *,
        callback: Listener | None = None,
    ) -> Any:
        """Return the mean at X, and what else is asked for.

        Before `fit`, a regressor with a kernel answers from its prior, in the units of standardised y if
        ``normalize_y``: mean 0 whatever the drift, and the noise only if one was given.

        Parameters
        ----------
        return_std, return_cov : standard deviation or covariance as well
        return_bound : certified numerical errors as well, a `Bounds`
        include_noise : whether they are those of a new observation, with the learned noise (known variances of the
            training data do not count), or of the function without noise
        callback : told of every chunk of points; one that returns True ends the work with `StopRequested`
        """
        if return_std and return_cov:
            raise RuntimeError("At most one of return_std or return_cov can be requested.")  # as scikit-learn says it
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
            return units.mean(posterior.mean(points)), self._covariance(posterior, points, noise)
        found = posterior.predict(
            points, variance=return_std, bound=return_bound, latent=not include_noise, callback=heard
        )
        self._warn_of(found.status, "the predictive variance", "return_bound=True gives error bounds")
        answer: list[Any] = [units.mean(found.mean)]
        if found.variance is not None:
            answer.append(units.std(found.variance + noise))
        if return_cov:
            answer.append(self._covariance(posterior, points, noise))
        if return_bound:
            answer.append(units.bounds(found, noise))
        return tuple(answer)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0, include_noise: bool = True) -> Floats:
        """Return joint draws at the rows of X, (t, n_samples) or (t, c, n_samples).

        Before `fit` they are drawn from the prior, as in `predict`. Beyond a thousand points those without noise still
        have about a thousandth of its variance.
        """
        check_options({"n_samples": n_samples, "preconditioner": None})
        generator = child(generator_from(random_state), "samples")
        if not self._is_fitted():
            return self._prior().draws(self._points_before_fit(X), n_samples, generator, include_noise).numpy()
        return self._units.samples(draws(self._posterior(), self._points(X), n_samples, generator, noisy=include_noise))

    def differentiable(self) -> DifferentiablePosterior:
        """Return mean, covariance and sample paths as functions of torch tensors that autograd follows in x."""
        check_is_fitted(self)
        if self._y_shape:
            raise ValueError("only a model of one output is differentiable in x; fit one for each output")
        return DifferentiablePosterior(self._posterior(), float(self.y_scale_[0]), float(self.y_mean_[0]))

    def log_predictive_density(self, X: Any, y: Any) -> Floats:
        """Return log p(y_i | x_i, data), noise included, in the shape of y: how well new observations were foreseen."""
        mean, std = self.predict(X, return_std=True)
        values = np.asarray(y, dtype=np.float64)
        if values.shape != mean.shape:
            raise ValueError(f"y must have the shape {mean.shape} of the predictions, not {values.shape}")
        density: Floats = -0.5 * np.square((values - mean) / std) - np.log(std) - 0.5 * np.log(2 * np.pi)
        return density

    def loo(self, probes: int = 64) -> LeftOut:
        """Return leave-one-out residuals, standard deviations and log densities of the training data.

        From the factor in the direct method, else from ``probes`` random columns; with errors that count rounding.
        """
        check_is_fitted(self)
        check_options({"probes": probes, "preconditioner": None})
        found = leave_one_out(self._posterior(), probes=probes, generator=seeded(self.plan_.seed))
        self._warn_of(found.status, "leave-one-out")
        return self._units.left_out(found)

    def _is_fitted(self) -> bool:
        return "posterior_" in vars(self)

    def _prior(self) -> Prior:
        return Prior.of(self.kernel, self.noise, memory_bytes(self.memory) or default_budget())

    def _points_before_fit(self, X: Any) -> Tensor:
        with self._leaving_no_trace():  # the number of features is not settled yet
            return as_tensor(checked_points(self, X, reset=True))

    def _covariance(self, posterior: Posterior, points: Tensor, noise: float) -> Floats:
        C, status = posterior.joint(points, copies=1 + len(self.y_scale_))
        self._warn_of(status, "the predictive covariance", "return_bound=True gives error bounds")
        C.diagonal().add_(noise)
        return self._units.covariance(C)
