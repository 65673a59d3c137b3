"""What a fitted classifier answers: labels, probabilities, latent functions, draws, scores."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import check_is_fitted, column_or_1d
from torch import Generator, Tensor

from kernelcg.estimators.chunked_answers import by_chunks
from kernelcg.estimators.inputs import checked_points
from kernelcg.estimators.laplace_estimator import Floats, LaplaceEstimator
from kernelcg.estimators.session import predicting, tell_of_all
from kernelcg.estimators.settings import LOG_DENSITY, generator_from, mean_log_density, on_own_threads, require_scoring
from kernelcg.events import Listener
from kernelcg.inference.laplace.calibration import LINK_VARIANCE, probability_errors, scaled
from kernelcg.inference.laplace.posterior import LaplacePosterior, LatentPrediction
from kernelcg.likelihoods import Softmax
from kernelcg.randomness import child, seeded

PROBABILITY = "(as a probability)"

CLEAR = 0.5
"""Lead of the largest latent mean beyond which it decides without covariances, whose differences matter less."""


class ClassAnswers(ClassifierMixin, LaplaceEstimator):  # type: ignore[misc]  # sklearn is untyped
    """The methods of a fitted classifier that answer questions; how it is fitted is in the subclasses."""

    classes_: NDArray[Any]
    class_weight_: Floats
    calibration_: Any  # a Calibration, or one for each class against the rest
    estimators_: tuple[Any, ...]

    @by_chunks
    @on_own_threads
    def predict(self, X: Any, *, callback: Listener | None = None) -> NDArray[Any]:
        """Return labels: the most probable of two; of more, that of the largest latent mean where it leads by ½.

        Two classes need the latent mean alone. Of more, points without a clear lead are decided by their probabilities,
        unless these average over the mean alone (see `calibration_`), whose largest decides. With a ``class_weight``
        probabilities decide everywhere.

        Parameters
        ----------
        X : (t, d)
        callback : as in `GPRegressor.predict`
        """
        if self._is_one_against_the_rest() or self._is_weighted():
            return self.classes_[self.predict_proba(X, callback=callback).argmax(axis=1)]
        points, heard = self._points(X), predicting(callback)
        mean = self.posterior_.mean(points)
        tell_of_all(heard, points)
        if mean.shape[1] == 1:
            return self.classes_[(mean[:, 0] > 0).long().cpu().numpy()]
        best = mean.topk(2, dim=1)
        winners, lead = best.indices[:, 0].clone(), -best.values.diff(dim=1)[:, 0]
        open_ = (self.calibration_.mean * lead < CLEAR) & (self.calibration_.covariance > 0)
        if bool(open_.any()):
            winners[open_] = self._softmax_probabilities(points[open_], heard).argmax(1)
        return self.classes_[winners.cpu().numpy()]

    @by_chunks
    @on_own_threads
    def predict_proba(self, X: Any, *, callback: Listener | None = None) -> Floats:
        """Return (t, C) probabilities of the classes, in the order of `classes_`, averaged over the latent values.

        The average is over the latent Gaussian with the factors of `calibration_`: exact for the probit, to 1e-6 for
        the logit, with standard errors below 1e-3 for the softmax. In the iterative method the latent variances under
        it are known to an estimated 0.1 %, those of the softmax to 1 %, beside the variance of the link function itself
        divided by the factor. No covariances are computed where that is 0.
        With a ``class_weight`` the probability of class c is proportional to its weight times that average.

        Parameters
        ----------
        X : (t, d)
        callback : as in `GPRegressor.predict`
        """
        P = self._probabilities(X, predicting(callback))
        if not self._is_weighted():
            return P
        weighted = P * self.class_weight_
        return weighted / weighted.sum(axis=1, keepdims=True)

    def _probabilities(self, X: Any, heard: Listener | None) -> Floats:
        """Return (t, C) probabilities without class weights."""
        if self._is_one_against_the_rest():
            X = checked_points(self, X)
            P = np.stack([machine.predict_proba(X, callback=heard)[:, 1] for machine in self.estimators_], axis=1)
            total = P.sum(axis=1, keepdims=True)
            return np.where(total > 0, P / np.where(total > 0, total, 1.0), 1 / P.shape[1])
        points = self._points(X)
        if self.posterior_.problem.classes > 1:
            return self._softmax_probabilities(points, heard).cpu().numpy()
        return self._two_probabilities(points, heard).cpu().numpy()

    def decision_function(self, X: Any) -> Floats:
        """Return the latent means (t, C); for two classes (t,) the log-odds of the second, which order as it does.

        A latent mean would not: the larger its variance, the less it says. The logarithms of class weights are added.
        """
        check_is_fitted(self)
        if len(self.classes_) > 2:
            mean: Floats = self.latent(X)
            return mean + np.log(self.class_weight_)
        P = np.maximum(self.predict_proba(X), np.finfo(np.float64).tiny)
        odds: Floats = np.log(P[:, 1]) - np.log(P[:, 0])
        return odds

    @on_own_threads
    def latent(self, X: Any, return_std: bool = False) -> Any:
        """Return the mean of the latent functions at X, and if asked for their standard deviation.

        (t,) for two classes with one latent function, else (t, C).

        Parameters
        ----------
        X : (t, d)
        return_std : whether to return standard deviations as well
        """
        if self._is_one_against_the_rest():
            X = checked_points(self, X)
            found = [machine.latent(X, return_std) for machine in self.estimators_]
            if not return_std:
                return np.stack(found, axis=1)
            return tuple(np.stack(values, axis=1) for values in zip(*found, strict=True))
        points = self._points(X)
        if not return_std:
            return self._one_or_many(self.posterior_.mean(points))
        prediction = self._with_covariance(points)
        self._warn_of_latent(prediction)
        return self._one_or_many(prediction.mean), self._one_or_many(prediction.variances.sqrt())

    def log_predictive_density(self, X: Any, y: Any) -> Floats:
        """Return (t,) log P(y_i | x_i, data): how well new labels were foreseen."""
        check_is_fitted(self)
        P, codes = self.predict_proba(X), self._codes(y)
        if len(codes) != len(P):
            raise ValueError(f"X has {len(P)} rows but y has {len(codes)}")
        return np.log(np.maximum(P[np.arange(len(P)), codes], np.finfo(np.float64).tiny))

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, scoring: str = "accuracy") -> float:
        """Return the share of right labels or, with ``scoring="log_predictive_density"``, the mean log probability.

        The latter is minus scikit-learn's ``log_loss``, a proper score.

        Parameters
        ----------
        X, y : (t, d) and (t,) labels
        sample_weight : (t,) weights of the rows in the mean; None means equal ones
        scoring : "accuracy" or "log_predictive_density"
        """
        require_scoring(scoring, "accuracy")
        if scoring == LOG_DENSITY:
            return mean_log_density(self.log_predictive_density(X, y), sample_weight)
        return float(accuracy_score(y, self.predict(X), sample_weight=sample_weight))

    @on_own_threads
    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0, latent: bool = False) -> NDArray[Any]:
        """Return (t, n_samples) joint draws of labels at the rows of X, or of the latent functions.

        The latent functions are drawn from Laplace's Gaussian, (t, n_samples) of one or (t, C, n_samples) of several;
        a label is drawn given their values with the factors of `calibration_`, without class weights.

        Parameters
        ----------
        X : (t, d)
        n_samples : number of draws
        random_state : seed, generator or None, as in scikit-learn: the same seed gives the same draws
        latent : whether to draw the latent functions instead of labels
        """
        check_is_fitted(self)
        generator = child(generator_from(random_state), "samples")
        F = self._latent_draws(X, n_samples, child(generator, "latent"))
        if latent:
            return (F[:, 0] if F.shape[1] == 1 else F).cpu().numpy()
        F = self._with_factors(X, F)
        if isinstance(self.likelihood_, Softmax):
            P = self.likelihood_.probabilities(F)
        else:
            P, _ = self.likelihood_.moments(F)
            P = torch.cat([1 - P, P], 1) if F.shape[1] == 1 else P / P.sum(1, keepdim=True)
        u = torch.rand((len(F), 1, n_samples), generator=child(generator, "labels"), dtype=torch.float64).to(P.device)
        below = torch.stack([P[:, : c + 1].sum(1) for c in range(P.shape[1])], 1)
        codes = (below < u).sum(1).clamp_max(len(self.classes_) - 1)
        return self.classes_[codes.cpu().numpy()]

    def _latent_draws(self, X: Any, n_samples: int, generator: Generator) -> Tensor:
        if not self._is_one_against_the_rest():
            return super()._latent_draws(X, n_samples, generator)
        X = checked_points(self, X)
        each = enumerate(self.estimators_)
        return torch.cat([one._latent_draws(X, n_samples, child(generator, f"class {c}")) for c, one in each], 1)

    def _with_factors(self, X: Any, F: Tensor) -> Tensor:
        """Return draws (t, C, s) of the latent functions as such from N(aμ, bΣ), with the factors of `calibration_`."""
        if self._is_one_against_the_rest():
            X = checked_points(self, X)
            return torch.cat([one._with_factors(X, F[:, c : c + 1]) for c, one in enumerate(self.estimators_)], 1)
        a, b = self.calibration_.mean, self.calibration_.covariance
        mean = self.posterior_.mean(self._points(X))[:, :, None]
        return a * mean + b**0.5 * (F - mean)

    def _training_inputs(self) -> Floats:
        source = self.estimators_[0] if self._is_one_against_the_rest() else self
        X: Floats = source.posterior_.problem.X.cpu().numpy()
        return X

    def _conditioned_once(self) -> LaplacePosterior:
        if self._is_one_against_the_rest():
            raise ValueError("each class has a model of its own here: ask the estimators_ for their components")
        return self._posterior()

    def _codes(self, y: Any) -> NDArray[np.int64]:
        """Return the numbers of labels; raise for one that was not in the fit."""
        labels = column_or_1d(y)
        unknown = labels[~np.isin(labels, self.classes_)]
        if len(unknown):
            label = str(unknown[0])
            raise ValueError(f"y holds the label {label!r}, which was not in the fit; fit again with all labels")
        return np.searchsorted(self.classes_, labels)

    def _is_weighted(self) -> bool:
        return bool((self.class_weight_ != self.class_weight_[0]).any())

    def _averaged_over(self, points: Tensor, callback: Listener | None) -> LatentPrediction:
        """Return the latent values that probabilities average over, with the factors of `calibration_`."""
        b = self.calibration_.covariance
        if b == 0:
            found = scaled(self.posterior_.predict(points), self.calibration_)
            tell_of_all(callback, points)
        else:
            found = scaled(self._with_covariance(points, callback, beside=LINK_VARIANCE / b), self.calibration_)
        self._warn_of_prediction(found, probability_errors(found), PROBABILITY)
        return found

    def _two_probabilities(self, points: Tensor, callback: Listener | None) -> Tensor:
        """Return (t, 2) probabilities of one latent function; small ones keep their digits."""
        found = self._averaged_over(points, callback)
        mean = found.mean[:, 0]
        rarer, _ = self.likelihood_.predict(-mean.abs(), found.variances[:, 0])
        first = torch.where(mean > 0, rarer, 1 - rarer)
        return torch.stack([first, torch.where(mean > 0, 1 - rarer, rarer)], 1)

    def _softmax_probabilities(self, points: Tensor, callback: Listener | None) -> Tensor:
        found = self._averaged_over(points, callback)
        if self.calibration_.covariance == 0:
            return self.likelihood_.probabilities(found.mean)
        values, vectors = torch.linalg.eigh(found.known_covariance())
        root = vectors * values.clamp_min(0).sqrt()[:, None, :]
        generator = child(seeded(self.posterior_.numerics.seed), "probabilities")
        probabilities, _ = self.likelihood_.predictive_probabilities(found.mean, root, generator)
        return probabilities / probabilities.sum(1, keepdim=True)

    def _is_one_against_the_rest(self) -> bool:
        check_is_fitted(self)
        return len(self.classes_) > 2 and not isinstance(self.likelihood_, Softmax)

    def _one_or_many(self, values: Tensor) -> Floats:
        return values[:, 0].cpu().numpy() if values.shape[1] == 1 else values.cpu().numpy()
