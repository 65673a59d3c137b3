"""How good predictions are on rows that were not learned from."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from kernelcg.tables.task import Task

Floats = NDArray[np.float64]

MOST_KEPT = 1000
"""Predictions that are kept with a model for its report."""

COVERAGES = (0.2, 0.4, 0.6, 0.8, 0.95)
"""Probabilities of the intervals by which predictions of counts are judged."""

COVERED = 0.95
"""Probability of the intervals whose coverage is a score."""

MOST_INTERVALS = 300
"""Rows at which intervals of counts are computed: each needs a search by quadrature."""


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Predictions for rows that were not learned from, beside what was observed.

    Attributes
    ----------
    predicted : means, or the most probable classes
    std : standard deviations of new observations; none of classes
    log_densities : log p(y | x) of what was observed
    certainty : probability of the most probable class; none of numbers
    covered : share of the rows within central intervals of the probabilities `COVERAGES`; of counts alone
    ends : of the intervals of probability `COVERED` at those rows; of counts alone
    """

    task: Task
    observed: Any
    predicted: Any
    std: Floats | None
    log_densities: Floats
    certainty: Floats | None = None
    covered: tuple[float, ...] = ()
    ends: tuple[Floats, Floats] | None = None

    @property
    def judged(self) -> int:
        """Return the number of rows whose intervals are known."""
        return len(self.observed) if self.ends is None else len(self.ends[0])

    @classmethod
    def of(cls, task: Task, model: Any, X: Floats, y: Any) -> "HeldOut":
        """Return the predictions of a model for rows that it has not seen."""
        if task is Task.CLASSIFICATION:
            P = model.predict_proba(X)
            column = {label: i for i, label in enumerate(model.classes_)}
            chosen = np.array([P[i, column[label]] if label in column else 0.0 for i, label in enumerate(y)])
            densities = np.log(np.maximum(chosen, np.finfo(np.float64).tiny))
            return cls(task, y, model.classes_[P.argmax(axis=1)], None, densities, certainty=P.max(axis=1))
        mean, std = model.predict(X, return_std=True)
        if task is Task.COUNTS:
            covered, ends = _covered(model, X[:MOST_INTERVALS], y[:MOST_INTERVALS])
            return cls(task, y, mean, std, model.log_predictive_density(X, y), covered=covered, ends=ends)
        return cls(task, y, mean, std, norm.logpdf(y, mean, std))

    def scores(self) -> dict[str, float]:
        """Return the scores by name.

        ``nlpd`` is the mean negative log density of an observation (of a class: the log loss), lower is better;
        ``coverage`` the share of rows within their 95 % interval.
        """
        common = {"rows": len(self.observed), "nlpd": float(-self.log_densities.mean())}
        if self.std is None:
            return {"error": float((self.predicted != self.observed).mean()), **common}
        errors = self.observed - self.predicted
        found = {"rmse": math.sqrt(np.square(errors).mean()), "r2": _explained(errors, self.observed), **common}
        if self.task is Task.REGRESSION:
            found["coverage"] = float((np.abs(errors) <= norm.ppf(0.5 + COVERED / 2) * self.std).mean())
        elif self.covered:
            found["coverage"] = self.covered[COVERAGES.index(COVERED)]
        return {name: value for name, value in found.items() if math.isfinite(value)}

    def to_json(self) -> dict[str, list[Any]]:
        """Return the first predictions as plain values, for pictures."""
        names = {"observed": self.observed, "predicted" if self.std is None else "mean": self.predicted}
        names |= {} if self.std is None else {"std": self.std}
        names |= {} if self.certainty is None else {"certainty": self.certainty}
        names |= {} if self.ends is None else {"lower": self.ends[0], "upper": self.ends[1]}
        kept = {name: np.asarray(values)[:MOST_KEPT].tolist() for name, values in names.items()}
        return {**kept, "covered": list(self.covered)}


def _covered(model: Any, X: Floats, y: Floats) -> tuple[tuple[float, ...], tuple[Floats, Floats]]:
    """Return the shares of counts within central intervals of the `COVERAGES`, and the ends of those of `COVERED`."""
    halves, wanted = np.array(COVERAGES) / 2, COVERAGES.index(COVERED)
    lower, upper = (model.predict(X, quantiles=ends) for ends in (0.5 - halves, 0.5 + halves))
    inside = (y[:, None] >= lower) & (y[:, None] <= upper)
    return tuple(inside.mean(axis=0).tolist()), (lower[:, wanted], upper[:, wanted])


def _explained(errors: Floats, y: Floats) -> float:
    """Return R²; NaN if y is constant."""
    spread = np.square(y - y.mean()).sum()
    return float(1 - np.square(errors).sum() / spread) if spread > 0 else math.nan
