"""Predictions along one column of a table: a curve, its credible band, and the band of its numerical error."""

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kernelcg.inference.laplace.calibration import probability_errors, scaled
from kernelcg.likelihoods import Softmax
from kernelcg.likelihoods.softmax import STANDARD_ERROR
from kernelcg.tables.model import TableModel
from kernelcg.tables.task import Task

Floats = NDArray[np.float64]
Band = tuple[Floats, Floats]

Z = NormalDist().inv_cdf(0.975)
"""Standard deviations on each side of a normal distribution that hold 95 % of it."""

TAILS = (0.025, 0.975)

DRAWS = 500
"""Draws of latent functions whose probabilities are ranked: the ends of a 95 % band lie 12 from the outermost."""


@dataclass(frozen=True, eq=False)
class Slice:
    """Predictions at some points, as they are drawn.

    Attributes
    ----------
    level : (t,) the prediction: a mean, a median rate of counts, or the probability of a class
    label : what that is
    credible : (t,) ends of a band that holds the function with probability 95 % or more, and the prediction
    exact : (t,) ends of the band that holds what exact arithmetic gives; None where it is unknown
    """

    level: Floats
    label: str
    credible: Band
    exact: Band | None = None


def slices_at(model: TableModel, points: Floats) -> list[Slice]:
    """Return the predictions at (t, d) encoded points, without noise: one, or of more than two classes one for each."""
    if model.task is Task.REGRESSION:
        mean, std = model.estimator.predict(points, return_std=True, include_noise=False)
        bound = model.estimator.predict(points, return_bound=True, include_noise=False)[1].mean
        return [Slice(mean, model.target, (mean - Z * std, mean + Z * std), (mean - bound, mean + bound))]
    return [_of_counts(model, points)] if model.task is Task.COUNTS else _of_classes(model, points)


def centres_at(model: TableModel, points: Floats) -> Floats:
    """Return (t, s) the ``level`` of each of the `slices_at` some points, alone."""
    if model.task is Task.CLASSIFICATION:
        P: Floats = model.estimator.predict_proba(points)
        return P[:, 1:] if P.shape[1] == 2 else P
    if model.task is Task.COUNTS:
        return np.exp(model.estimator.latent(points)).reshape(-1, 1)
    return np.reshape(model.estimator.predict(points), (-1, 1))


def _of_counts(model: TableModel, points: Floats) -> Slice:
    """Return the median rate, which rises with the latent mean."""
    mean, std = model.estimator.latent(points, return_std=True)
    bound = model.estimator.posterior_.mean_bound(torch.from_numpy(points), torch.from_numpy(std**2)).cpu().numpy()
    credible, exact = (np.exp(mean - Z * std), np.exp(mean + Z * std)), (np.exp(mean - bound), np.exp(mean + bound))
    return Slice(np.exp(mean), f"{model.target} (median rate)", credible, exact)


def _of_classes(model: TableModel, points: Floats) -> list[Slice]:
    """Return the probability of every class; of two classes that of the second alone.

    A probability is averaged over a skewed distribution and may lie outside of 95 % of it: the band reaches as far.
    """
    estimator = model.estimator
    P, two = estimator.predict_proba(points), len(estimator.classes_) == 2
    lower, upper = _exact_probabilities(estimator, points, P)
    if two:
        low, high = _credible_of_two(estimator, points)
    else:
        low, high = np.quantile(_drawn_probabilities(estimator, points), TAILS, axis=2)
    low, high = np.minimum(low, P), np.maximum(high, P)
    names = [f"P({label})" for label in estimator.classes_]
    bands = zip(low.T, high.T, strict=True), zip(lower.T, upper.T, strict=True)
    found = [Slice(*parts) for parts in zip(P.T, names, *bands, strict=True)]
    return found[1:] if two else found


def _weighted(P: Floats, weights: Floats) -> Floats:
    """Return (t, C, ...) probabilities with class weights."""
    product: Floats = P * weights.reshape(-1, *[1] * (P.ndim - 2))
    return product / product.sum(axis=1, keepdims=True)


def _credible_of_two(estimator: Any, points: Floats) -> Band:
    """Return (t, 2) ends of the band of both probabilities: they rise and fall with the one latent function."""
    factors, (mean, std) = estimator.calibration_, estimator.latent(points, return_std=True)
    ends = []
    for side in (-Z, Z):
        latent = torch.from_numpy(factors.mean * mean + side * factors.covariance**0.5 * std)[:, None]
        P = estimator.likelihood_.moments(latent)[0].numpy()
        ends.append(_weighted(np.hstack([1 - P, P]), estimator.class_weight_))
    return np.minimum(*ends), np.maximum(*ends)


def _exact_probabilities(estimator: Any, points: Floats, P: Floats) -> Band:
    """Return (t, C) ends between which exact arithmetic has the probabilities."""
    weights = estimator.class_weight_
    if isinstance(estimator.certificate_, tuple):  # one model for each class against the rest, and then their shares
        each = [(one.predict_proba(points)[:, 1], _errors(one, points)) for one in estimator.estimators_]
        alone, off = (np.stack(part, axis=1) for part in zip(*each, strict=True))
    else:
        unweighted = P / weights
        alone, off = unweighted / unweighted.sum(axis=1, keepdims=True), _errors(estimator, points)[:, None]
    least, most = np.clip(alone - off, 0, 1) * weights, np.clip(alone + off, 0, 1) * weights
    return _share(least, most), _share(most, least)


def _share(own: Floats, others: Floats) -> Floats:
    """Return the share of each column in the sum of itself and the others' columns; between 0 and 1 also at 0."""
    rest = others.sum(axis=1, keepdims=True) - others
    total = own + rest
    return np.where(total > 0, own / np.where(total > 0, total, 1.0), 0.0)


def _errors(estimator: Any, points: Floats) -> Floats:
    """Return (t,) how far probabilities may be off: means, variances, and three standard errors of their averages."""
    factors, X = estimator.calibration_, torch.from_numpy(points)
    found = scaled(estimator.posterior_.restored().predict(X, covariance=factors.covariance > 0), factors)
    averaged = isinstance(estimator.likelihood_, Softmax) and factors.covariance > 0
    errors: Floats = probability_errors(found).cpu().numpy() + (3 * STANDARD_ERROR if averaged else 0.0)
    return errors


def _drawn_probabilities(estimator: Any, points: Floats) -> Floats:
    """Return (t, C, draws) the probabilities of more than two classes that draws of the latent functions have."""
    F, mean = estimator.sample_y(points, DRAWS, latent=True), estimator.latent(points)[:, :, None]
    machines = estimator.estimators_ if isinstance(estimator.certificate_, tuple) else (estimator,)
    a = np.array([one.calibration_.mean for one in machines])[:, None]
    b = np.array([one.calibration_.covariance for one in machines])[:, None]
    latent = torch.from_numpy(a * mean + np.sqrt(b) * (F - mean))
    if isinstance(estimator.likelihood_, Softmax):
        P = estimator.likelihood_.probabilities(latent)
    else:
        P = estimator.likelihood_.moments(latent)[0]
        P = P / P.sum(1, keepdim=True)
    return _weighted(P.cpu().numpy(), estimator.class_weight_)
