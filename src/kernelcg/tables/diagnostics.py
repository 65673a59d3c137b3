"""What a report shows of a fit beside scores: rows that the others did not foresee, and how a solve converged."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelcg.tables.scores import HeldOut

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


def unforeseen(held: HeldOut, rows: NDArray[np.int64]) -> dict[str, list[Any]]:
    """Return the rows held out whose classes or counts were the least probable, and how probable they were.

    They are classes with a probability below a half, and counts outside of their intervals: at most `MOST_SURPRISES`.

    Parameters
    ----------
    rows : numbers of the rows held out in the table
    """
    if held.ends is None:
        odd = np.exp(held.log_densities) < 0.5
    else:
        odd = np.zeros(len(rows), dtype=bool)
        odd[: held.judged] = (held.observed[: held.judged] < held.ends[0]) | (
            held.observed[: held.judged] > held.ends[1]
        )
    order = np.argsort(np.where(odd, held.log_densities, np.inf))[: min(int(odd.sum()), MOST_SURPRISES)]
    kept = {"row": rows, "observed": np.asarray(held.observed).astype(str), "probability": np.exp(held.log_densities)}
    return {name: np.asarray(values)[order].tolist() for name, values in kept.items()}


def convergence(report: Any) -> list[float]:
    """Return the largest relative residual of the columns of a solve after each iteration; none of a direct one."""
    if report is None or isinstance(report, tuple) or len(report.residual_norms) < 2:
        return []
    sizes = report.right_hand_norms.clamp_min(1e-300)
    worst = (report.residual_norms / sizes).amax(1)
    return [value for value in worst.tolist() if value > 0 and np.isfinite(value)]
