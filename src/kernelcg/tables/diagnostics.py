"""What a report shows of a fit beside scores: rows that the others did not foresee, and how a solve converged."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_SURPRISES = 12
"""Rows that are kept."""

MOST_ROWS = 10_000
"""Rows up to which all of them are left out in turn; beyond, the solves for it take longer than a page is worth."""


def surprises(model: Any, y: NDArray[np.float64], rows: NDArray[np.int64]) -> dict[str, list[float]]:
    """Return the rows whose values are furthest from what the other rows say, in standard deviations.

    Parameters
    ----------
    model : a `GPRegressor`
    y, rows : values and numbers of the rows of the table, in the order in which the model was conditioned on them
    """
    if len(y) > MOST_ROWS:
        return {}
    found = model.loo()
    scores = found.residuals / found.std
    order = np.argsort(-np.abs(scores))[:MOST_SURPRISES]
    kept = {"row": rows, "observed": y, "predicted": y - found.residuals, "std": found.std, "score": scores}
    return {name: np.asarray(values)[order].tolist() for name, values in kept.items()}


def unforeseen(log_densities: NDArray[np.float64], observed: Any, rows: NDArray[np.int64]) -> dict[str, list[Any]]:
    """Return the rows held out whose classes or counts were the least probable, and how probable they were.

    Parameters
    ----------
    log_densities, observed : log p(y | x) and y of the rows held out
    rows : their numbers in the table
    """
    order = np.argsort(log_densities)[:MOST_SURPRISES]
    kept = {"row": rows, "observed": np.asarray(observed).astype(str), "probability": np.exp(log_densities)}
    return {name: np.asarray(values)[order].tolist() for name, values in kept.items()}


def convergence(report: Any) -> list[float]:
    """Return the largest relative residual of the columns of a solve after each iteration; none of a direct one."""
    if report is None or isinstance(report, tuple) or len(report.residual_norms) < 2:
        return []
    sizes = report.right_hand_norms.clamp_min(1e-300)
    worst = (report.residual_norms / sizes).amax(1)
    return [value for value in worst.tolist() if value > 0 and np.isfinite(value)]
