"""Predictions along one column of a table: a curve, its credible band, and the band of its numerical error."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernelcg.tables.model import TableModel
from kernelcg.tables.task import Task

Floats = NDArray[np.float64]
Band = tuple[Floats, Floats]

Z = NormalDist().inv_cdf(0.975)
"""Standard deviations on each side of a normal distribution that hold 95 % of it."""


@dataclass(frozen=True, eq=False)
class Slice:
    """Predictions at some points, as they are drawn.

    Attributes
    ----------
    level : (t,) the prediction: a mean, a median rate of counts, or the probability of the last class
    label : what that is
    credible : (t,) ends of the band that holds the function with probability 95 %; ``level`` itself where unknown
    exact : (t,) ends of the band that holds what exact arithmetic gives; None where it is unknown
    """

    level: Floats
    label: str
    credible: Band
    exact: Band | None = None


def slice_at(model: TableModel, points: Floats) -> Slice:
    """Return the predictions at (t, d) encoded points, of the function without noise."""
    if model.task is Task.REGRESSION:
        mean, std = model.estimator.predict(points, return_std=True, include_noise=False)
        bound = model.estimator.predict(points, return_bound=True, include_noise=False)[1].mean
        return Slice(mean, model.target, (mean - Z * std, mean + Z * std), (mean - bound, mean + bound))
    if model.task is Task.COUNTS:
        return _of_latent(model, points, lambda mean, variance: mean.exp(), f"{model.target} (median rate)")
    if len(model.estimator.classes_) == 2:
        return _of_two_classes(model, points)
    level, label = level_at(model, points)
    return Slice(level, label, (level, level))


def level_at(model: TableModel, points: Floats) -> tuple[Floats, str]:
    """Return what is drawn of a prediction, and its name: for classes the probability of the last one."""
    if model.task is Task.CLASSIFICATION:
        return model.estimator.predict_proba(points)[:, -1], f"P({model.estimator.classes_[-1]})"
    return model.estimator.predict(points), model.target


def centre_at(model: TableModel, points: Floats) -> Floats:
    """Return the ``level`` that `slice_at` has at some points, alone."""
    if model.task is Task.COUNTS:
        return np.exp(model.estimator.latent(points))
    return level_at(model, points)[0]


def _of_two_classes(model: TableModel, points: Floats) -> Slice:
    """Return the probability of the second class, with the factors of the calibration and the weights of classes."""
    estimator = model.estimator
    factors, (first, second) = estimator.calibration_, estimator.class_weight_

    def probability(mean: Tensor, variance: Tensor) -> Tensor:
        P, _ = estimator.likelihood_.predict(factors.mean * mean, factors.covariance * variance)
        return second * P / (second * P + first * (1 - P))

    return _of_latent(model, points, probability, f"P({estimator.classes_[-1]})")


def _of_latent(model: TableModel, points: Floats, answer: Callable[[Tensor, Tensor], Tensor], label: str) -> Slice:
    """Return the answers that follow from the mean and the variance of one latent function; they rise with the mean."""
    mean, std = (torch.from_numpy(part) for part in model.estimator.latent(points, return_std=True))
    bound = model.estimator.posterior_.mean_bound(torch.from_numpy(points), std.square()).cpu()
    none = torch.zeros_like(std)

    def answers(at: Tensor, variance: Tensor) -> Floats:
        found: Floats = answer(at, variance).numpy()
        return found

    credible = answers(mean - Z * std, none), answers(mean + Z * std, none)
    exact = answers(mean - bound, std.square()), answers(mean + bound, std.square())
    return Slice(answers(mean, std.square()), label, credible, exact)
