"""The pictures of a report: which ones suit a model, with their titles and captions."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from kernelcg import plots
from kernelcg.estimators.relevance import INVISIBLE
from kernelcg.plots.functions import MOST_BARS
from kernelcg.plots.judging import LEVELS
from kernelcg.reports.slices import Slice, centres_at, slices_at
from kernelcg.tables.columns import Kind
from kernelcg.tables.dates import times
from kernelcg.tables.model import TableModel
from kernelcg.tables.scores import COVERAGES
from kernelcg.tables.task import Task

Floats = NDArray[np.float64]

CURVES = 4
"""Columns along which predictions are drawn."""

GRID = 60
"""Points of a curve."""

AVERAGED, COARSE = 50, 15
"""Rows over which predictions are averaged for a partial dependence, and points of the curve at which that is done."""

CLASSES = 6
"""Classes whose probabilities are drawn along a column."""

DOTS = 300
"""Rows that a picture of classes shows."""

OTHERS = "The other columns are at their medians or commonest categories"

BY_CHANCE = "What lies in the grey band differs by chance alone"

CELLS = 28
"""Points of a map in each direction."""


@dataclass(frozen=True, eq=False)
class Picture:
    """A chart, what it is called, and what it shows in a sentence."""

    title: str
    caption: str
    chart: Any


def pictures(model: TableModel) -> Iterator[Picture]:
    """Yield the pictures that suit a model."""
    yield from _of_held_out(model)
    shares = dict(model.facts.get("relevance", {}))
    if shares:
        words = "The share of the variation of the predictions that is lost when a column is averaged out."
        rest = len(shares) - MOST_BARS
        left_out = f" {rest} columns that matter less are left out." if rest > 0 else ""
        yield Picture("What matters", f"{words}{left_out}", plots.relevance(shares))
    yield from _along_columns(model, shares)
    yield from _of_surprises(model)
    yield from _of_unforeseen(model)
    yield from _of_learning(model)
    residuals = model.facts.get("solve", [])
    if residuals:
        yield Picture(
            "Convergence",
            "The solve for the weights, after learning: preconditioned conjugate gradients.",
            plots.convergence(residuals),
        )


def _of_held_out(model: TableModel) -> Iterator[Picture]:
    held = model.facts.get("held_out")
    if not held:
        return
    if model.task is Task.CLASSIFICATION:
        yield Picture(
            "Classes of rows held out",
            "Rows that were not learned from, by their class and the most probable one.",
            plots.confusion(held["observed"], held["predicted"]),
        )
        if "certainty" in held:
            right = [one == other for one, other in zip(held["observed"], held["predicted"], strict=True)]
            yield Picture(
                "Reliability",
                "Of rows whose class has probability p, a share of p should be of that class.",
                plots.reliability(held["certainty"], right),
            )
        return
    y, mean, std = (np.array(held[name], dtype=float) for name in ("observed", "mean", "std"))
    rows = len(held.get("lower", y))  # intervals of counts are known of the first rows
    interval = (held["lower"], held["upper"]) if "lower" in held else None
    yield Picture(
        "Predicted against observed",
        f"{rows:,} rows that were not learned from; bars are 95 % intervals of a new observation.",
        plots.predicted_against_observed(y[:rows], mean[:rows], std[:rows], model.target, interval=interval),
    )
    yield Picture("Residuals", "A cloud without a pattern is what one hopes for.", plots.residuals(mean, y, std))
    if model.task is Task.REGRESSION:
        places = norm.cdf((y - mean) / std)
        covered = [float((np.abs(places - 0.5) <= level / 2).mean()) for level in LEVELS]
        yield Picture(
            "Calibration",
            f"Intervals that promise p should hold p of the rows. {BY_CHANCE} with {rows:,} rows.",
            plots.calibration(LEVELS, covered, rows),
        )
        yield Picture(
            "Places in the predictive distribution",
            "Level bars mean that the uncertainties are right; a hill means too cautious, a valley too sure. "
            f"{BY_CHANCE}.",
            plots.probability_integral(places),
        )
    elif held.get("covered"):
        yield Picture(
            "Calibration",
            "Intervals that promise p should hold at least p of the rows: counts are whole, so that some hold more. "
            f"{BY_CHANCE} with {rows:,} rows.",
            plots.calibration(COVERAGES, held["covered"], rows),
        )


def _of_surprises(model: TableModel) -> Iterator[Picture]:
    found = model.facts.get("surprises")
    if found and found["row"]:
        rows = int(model.facts["rows"])
        yield Picture(
            "Rows to look at",
            "Their values (dots) are furthest from what the others say (bars, 95 %): errors, or something to learn. By "
            f"chance about {0.05 * rows:,.0f} of {rows:,} rows lie outside of their bars.",
            plots.surprises(found["row"], found["observed"], found["predicted"], found["std"], model.target),
        )


def _of_unforeseen(model: TableModel) -> Iterator[Picture]:
    found = model.facts.get("unforeseen")
    if found and found["row"]:
        which = "whose class was" if model.task is Task.CLASSIFICATION else "outside of their 95 % intervals, and"
        yield Picture(
            "Rows to look at",
            f"Rows held out {which} the least probable by what the others say: errors, or something to learn.",
            plots.unforeseen(found["row"], found["observed"], found["probability"]),
        )


def _of_learning(model: TableModel) -> Iterator[Picture]:
    learning = model.estimator.learning_
    if isinstance(learning, tuple) or len(learning.steps) < 2:
        return
    values = np.array([step.value for step in learning.steps])
    if np.isfinite(values).sum() > 1:
        seconds, rows = ([getattr(step, name) for step in learning.steps] for name in ("seconds", "rows"))
        yield Picture(
            "Learning",
            "The log evidence of the hyperparameters after each step, over the seconds; growing parts of the rows.",
            plots.learning_curve(seconds, values, rows),
        )


def _along_columns(model: TableModel, shares: dict[str, float]) -> Iterator[Picture]:
    """Yield curves along the numeric columns that matter most, and a map over two of them."""
    groups, X = model.encoding.groups(), inputs_of(model)
    numeric = [column.name for column in model.encoding.columns if column.kind in (Kind.NUMBER, Kind.DATE)]
    ordered = sorted(numeric, key=lambda name: -shares.get(name, 0.0))
    chosen = [name for name in ordered if shares.get(name, 0.0) >= INVISIBLE][:CURVES] or ordered[:1]
    typical = _typical(model, X)
    for name in chosen:
        yield _along(model, X, typical, name, groups[name][0])
    if len(chosen) >= 2:
        yield _map(model, X, typical, chosen[:2], [groups[name][0] for name in chosen[:2]])


def _along(model: TableModel, X: Floats, typical: Floats, name: str, feature: int) -> Picture:
    """Return the curve along a column, or for more than two classes a curve for each of the most probable ones."""
    grid = _range(X[:, feature], GRID)
    points = np.tile(typical, (GRID, 1))
    points[:, feature] = grid
    found, averages = slices_at(model, points), _averages(model, X, feature, grid)
    if len(found) == 1:
        (one,) = found
        names = [name, one.label]
        chart = plots.dependence(
            _shown(model, name, grid), one.level, one.credible, names, exact=one.exact, average=averages[:, 0]
        )
        return Picture(f"Along {name}", f"{OTHERS}.{_exactness(found)}", chart)
    shown = sorted(np.argsort([-one.level.max() for one in found], kind="stable")[:CLASSES])
    chart = plots.class_dependence(
        _shown(model, name, grid),
        {str(model.estimator.classes_[c]): (found[c].level, *found[c].credible, averages[:, c]) for c in shown},
        name,
    )
    left_out = len(found) - len(shown)
    rest = f" {left_out} classes that are less probable are left out." if left_out else ""
    return Picture(f"Along {name}", f"Probabilities of the classes. {OTHERS}.{rest}{_exactness(found)}", chart)


def _averages(model: TableModel, X: Floats, feature: int, grid: Floats) -> Floats:
    """Return (t, s) the partial dependences: curves as `slices_at` gives for some of the rows as they are, averaged.

    They are computed at some points of the grid and drawn as straight lines between them: probabilities take long.
    """
    rows = X[np.linspace(0, len(X) - 1, min(AVERAGED, len(X))).astype(int)]
    coarse = np.linspace(grid[0], grid[-1], COARSE)
    points = np.repeat(rows[None], COARSE, axis=0)
    points[:, :, feature] = coarse[:, None]
    levels = centres_at(model, points.reshape(-1, X.shape[1])).reshape(COARSE, len(rows), -1).mean(axis=1)
    return np.stack([np.interp(grid, coarse, level) for level in levels.T], axis=1)


def _exactness(found: list[Slice]) -> str:
    """Say how wide the band of the numerical error is."""
    ends = [np.abs(end - one.level).max() for one in found if one.exact is not None for end in one.exact]
    return f" The numbers are exact to {max(ends):.1g}." if ends else ""


def _map(model: TableModel, X: Floats, typical: Floats, names: list[str], features: list[int]) -> Picture:
    ends = [_range(X[:, one], CELLS) for one in features]
    x, y = (grid.ravel() for grid in np.meshgrid(*ends))
    points = np.tile(typical, (len(x), 1))
    points[:, features[0]], points[:, features[1]] = x, y
    x, y = _shown(model, names[0], x), _shown(model, names[1], y)
    if model.task is Task.CLASSIFICATION:
        P = model.estimator.predict_proba(points)
        return Picture(
            f"Classes over {names[0]} and {names[1]}",
            f"The most probable class, fainter where in doubt, and rows of the table as dots. {OTHERS}.",
            plots.boundaries(x, y, _named(model, P.argmax(1)), P.max(1), names, rows=_dots(model, X, names, features)),
        )
    return Picture(
        f"{names[0]} and {names[1]}",
        f"Predictions over the two numeric columns that matter most. {OTHERS}.",
        plots.map_of(x, y, model.estimator.predict(points), [*names, model.target]),
    )


def _named(model: TableModel, codes: NDArray[np.int64]) -> list[str]:
    return [str(label) for label in model.estimator.classes_[codes]]


def _shown(model: TableModel, name: str, values: Floats) -> NDArray[Any]:
    """Return the values of a column as they are drawn: those of dates as dates."""
    is_date = any(column.name == name and column.kind is Kind.DATE for column in model.encoding.columns)
    return times(values) if is_date else values


def _dots(
    model: TableModel, X: Floats, names: list[str], features: list[int]
) -> tuple[NDArray[Any], NDArray[Any], list[str]]:
    """Return two features and the classes of some rows that lie within what is drawn."""
    ends = [_range(X[:, one], 2) for one in features]
    inside = [(X[:, one] >= low) & (X[:, one] <= high) for one, (low, high) in zip(features, ends, strict=True)]
    rows = np.flatnonzero(np.logical_and(*inside))
    rows = rows[:: -(-len(rows) // DOTS) or 1]
    x, y = (_shown(model, name, X[rows, one]) for name, one in zip(names, features, strict=True))
    return x, y, _named(model, _codes(model)[rows])


def _codes(model: TableModel) -> NDArray[np.int64]:
    """Return the numbers of the classes of the rows that a classifier was fitted to."""
    estimator = model.estimator
    if isinstance(estimator.certificate_, tuple):  # one model for each class against the rest
        each = [one.posterior_.problem.y.cpu().numpy() for one in estimator.estimators_]
        return np.stack(each).argmax(axis=0)
    problem = estimator.posterior_.problem
    codes: NDArray[np.int64] = (problem.y if problem.classes > 1 else (problem.y > 0).long()).cpu().numpy()
    return codes


def _typical(model: TableModel, X: Floats) -> Floats:
    """Return the median of every number and the commonest category of every other column."""
    found, groups = np.median(X, axis=0), model.encoding.groups()
    for column in model.encoding.columns:
        if column.kind is Kind.CATEGORY:
            rows, counts = np.unique(X[:, groups[column.name]], axis=0, return_counts=True)
            found[groups[column.name]] = rows[counts.argmax()]
    typical: Floats = found
    return typical


def _range(values: Floats, count: int) -> Floats:
    """Return evenly spaced points over the range of a feature without its outermost per cents."""
    low, high = np.quantile(values, [0.01, 0.99])
    return np.linspace(float(low), float(high), count)


def inputs_of(model: TableModel) -> Floats:
    """Return the (n, d) encoded rows that a model was conditioned on."""
    estimator = model.estimator
    source = estimator.estimators_[0] if isinstance(estimator.certificate_, tuple) else estimator
    inputs: Floats = source.posterior_.problem.X.cpu().numpy()
    return inputs
