"""What a fitted model of counts, proportions or amounts answers: means, quantiles, draws, latent functions, scores."""

from typing import Any

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted, column_or_1d
from torch import Tensor

from kernelcg.errors import ConvergenceWarning, warn_user
from kernelcg.estimators.chunked_answers import by_chunks
from kernelcg.estimators.data import as_floats, as_tensor
from kernelcg.estimators.laplace_estimator import Floats, LaplaceEstimator
from kernelcg.estimators.session import predicting, tell_of_all
from kernelcg.estimators.settings import (
    LOG_DENSITY,
    generator_from,
    mean_log_density,
    on_own_threads,
    quantile_levels,
    require_scoring,
)
from kernelcg.events import Listener
from kernelcg.inference.laplace.posterior import LatentPrediction
from kernelcg.likelihoods import Binomial, Gaussian, StudentT
from kernelcg.randomness import child

IDENTITY = (Gaussian, StudentT)
"""Likelihoods whose latent value is the centre of y, in its units."""

NEGLIGIBLE = 1e-3
"""Error of the latent function, in its standard deviations, that no moment of y can feel."""

LARGEST_EXPONENT = 300.0
"""Exponent of half the largest float64 number, nearly."""


class GeneralizedAnswers(RegressorMixin, LaplaceEstimator):  # type: ignore[misc]  # sklearn is untyped
    """A model with a likelihood of its own as those see it who ask a fitted one; how it is fitted is another matter."""

    @by_chunks
    @on_own_threads
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
        return_std : whether to return standard deviations as well
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

    @on_own_threads
    def sample_y(
        self, X: Any, n_samples: int = 1, random_state: Any = 0, exposure: Any = None, latent: bool = False
    ) -> Floats:
        """Return (t, n_samples) joint draws of new observations at the rows of X, or of the latent function.

        The latent function is drawn from Laplace's Gaussian, an observation from the likelihood given its value.

        Parameters
        ----------
        X : (t, d)
        n_samples : number of draws
        random_state : seed, generator or None, as in scikit-learn: the same seed gives the same draws
        exposure : (t,) or one number: as in `fit`; None means 1
        latent : whether to draw the latent function instead
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
        latent, variance = found.mean[:, 0], found.variances[:, 0]
        if share:  # the errors may be infinite
            latent, variance = latent + share * found.mean_bound, variance + share * found.variance_error
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

    @on_own_threads
    def latent(self, X: Any, return_std: bool = False) -> Any:
        """Return the mean (t,) of the latent function at X, drift included, and if asked for its standard deviation.

        Parameters
        ----------
        X : (t, d)
        return_std : whether to return standard deviations as well
        """
        check_is_fitted(self)
        points = self._points(X)
        if not return_std:
            return self.posterior_.mean(points)[:, 0].cpu().numpy()
        found = self._with_covariance(points)
        self._warn_of_latent(found)
        return found.mean[:, 0].cpu().numpy(), found.variances[:, 0].sqrt().cpu().numpy()

    @on_own_threads
    def log_predictive_density(self, X: Any, y: Any, exposure: Any = None) -> Floats:
        """Return (t,) log p(y | x, data), averaged over the latent values: how well new observations were foreseen.

        Parameters
        ----------
        X, y : (t, d) and (t,) new observations
        exposure : (t,) or one number: as in `fit`; None means 1
        """
        check_is_fitted(self)
        points = self._points(X)
        y, amounts = self._observed(y, points), self._exposure(exposure, points)
        self.likelihood_.check(y, amounts)
        found = self._with_covariance(points)
        self._warn_of_latent(found)
        mean, variance = found.mean[:, 0], found.variances[:, 0]
        return self.likelihood_.log_predictive(y, mean, variance, amounts).cpu().numpy()

    def score(self, X: Any, y: Any, exposure: Any = None, sample_weight: Any = None, *, scoring: str = "r2") -> float:
        """Return R² of the predictive mean or, with ``scoring="log_predictive_density"``, the mean log density of y.

        Parameters
        ----------
        X, y : (t, d) and (t,) new observations
        exposure : (t,) or one number: as in `fit`; None means 1
        sample_weight : (t,) weights of the rows in the mean; None means equal ones
        scoring : "r2" or "log_predictive_density"
        """
        check_is_fitted(self)
        require_scoring(scoring, "r2")
        if exposure is None and bool((self.posterior_.problem.exposure != 1).any()):
            raise ValueError("the model was fitted with exposures other than 1: score needs those of X")
        if scoring == LOG_DENSITY:
            return mean_log_density(self.log_predictive_density(X, y, exposure), sample_weight)
        return float(r2_score(y, self.predict(X, exposure), sample_weight=sample_weight))

    def _exposure(self, exposure: Any, points: Tensor) -> Tensor:
        amounts = as_tensor(checked_exposure(exposure, len(points))).to(points.device)
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


def checked_exposure(exposure: Any, n: int) -> Floats:
    """Return (n,) exposures."""
    values = as_floats(1.0 if exposure is None else exposure, "exposure")
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
        warn_user(message, ConvergenceWarning)
