"""The pictures, one function each: numbers in, an Altair chart with a description for those who cannot see it out."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

ACCENT, SECOND, GREY = "#4c78a8", "#e45756", "#8a8f98"

MOST_POINTS = 2000
"""Points that a picture shows; more are thinned out evenly."""

OVERLAP = 1.06
"""Size of the cells of a map relative to their distance, so that no gaps show between them."""

LEVELS = np.linspace(0.05, 0.95, 19)
"""Nominal coverages at which calibration is judged."""


def _thinned(frame: pd.DataFrame) -> pd.DataFrame:
    step = -(-len(frame) // MOST_POINTS)
    return frame.iloc[::step]


def learning_curve(seconds: ArrayLike, values: ArrayLike, rows: ArrayLike) -> Any:
    """Draw the criterion over the steps of learning, in nats a row so that parts of the data compare.

    Examples
    --------
    >>> from kernelcg.plots import learning_curve
    >>> chart = learning_curve([0.1, 0.2], [-3.0, -1.0], [100, 100])
    >>> chart.to_dict()["$schema"].startswith("https://vega")
    True
    """
    frame = pd.DataFrame({"seconds": seconds, "value": values, "rows": rows}).dropna()
    frame["value"] = frame["value"] / frame["rows"]
    frame["rows"] = [f"{int(count):,}" for count in frame["rows"]]
    return (
        alt.Chart(frame)
        .mark_line(point=True)
        .encode(
            alt.X("seconds", title="seconds"),
            alt.Y("value", title="log evidence a row", scale=alt.Scale(zero=False)),
            alt.Color("rows:N", title="rows", sort=None),
            tooltip=["seconds", "value", "rows"],
        )
        .properties(description="Log evidence a row against seconds of learning, one line for each part of the data.")
    )


def predicted_against_observed(observed: ArrayLike, mean: ArrayLike, std: ArrayLike, name: str) -> Any:
    """Draw predictions of rows held out with their 95 % intervals against what was observed.

    Examples
    --------
    >>> from kernelcg.plots import predicted_against_observed
    >>> chart = predicted_against_observed([1.0, 2.0], [1.1, 1.9], [0.1, 0.1], "price")
    >>> chart.to_dict()["$schema"].startswith("https://vega")
    True
    """
    y, m, s = (np.asarray(part, dtype=float) for part in (observed, mean, std))
    frame = _thinned(pd.DataFrame({"observed": y, "mean": m, "lower": m - 1.96 * s, "upper": m + 1.96 * s}))
    ends = pd.DataFrame({"at": [min(y.min(), m.min()), max(y.max(), m.max())]})
    axis = alt.Scale(zero=False)
    bars = alt.Chart(frame).mark_rule(opacity=0.25, color=ACCENT)
    bars = bars.encode(alt.X("observed", scale=axis), alt.Y("lower", scale=axis), alt.Y2("upper"))
    dots = alt.Chart(frame).mark_circle(size=26, color=ACCENT, opacity=0.8)
    dots = dots.encode(
        alt.X("observed", title=f"{name}, observed", scale=axis),
        alt.Y("mean", title=f"{name}, predicted", scale=axis),
        tooltip=["observed", "mean", "lower", "upper"],
    )
    diagonal = alt.Chart(ends).mark_line(color=GREY, strokeDash=[4, 3]).encode(x="at", y="at")
    words = "Predictions of rows held out, with 95 % intervals, against observations; the dashed line is equality."
    return alt.layer(bars, dots, diagonal).properties(description=words)


def residuals(mean: ArrayLike, observed: ArrayLike, std: ArrayLike) -> Any:
    """Draw standardised residuals of rows held out against predictions.

    Examples
    --------
    >>> from kernelcg.plots import residuals
    >>> chart = residuals([1.1, 1.9], [1.0, 2.0], [0.1, 0.1])
    >>> chart.to_dict()["$schema"].startswith("https://vega")
    True
    """
    m, y, s = (np.asarray(part, dtype=float) for part in (mean, observed, std))
    frame = _thinned(pd.DataFrame({"mean": m, "residual": (y - m) / s}))
    dots = alt.Chart(frame).mark_circle(size=26, color=ACCENT, opacity=0.8)
    dots = dots.encode(
        alt.X("mean", title="predicted", scale=alt.Scale(zero=False)),
        alt.Y("residual", title="residual / predicted sd"),
        tooltip=["mean", "residual"],
    )
    lines = alt.Chart(pd.DataFrame({"at": [-1.96, 0.0, 1.96]})).mark_rule(color=GREY, strokeDash=[4, 3]).encode(y="at")
    return alt.layer(dots, lines).properties(
        description="Residuals divided by the predicted standard deviation; 95 % should lie between the outer lines."
    )


def calibration(levels: ArrayLike, covered: ArrayLike) -> Any:
    """Draw the share of rows held out within an interval against the share that it promises.

    Examples
    --------
    >>> from kernelcg.plots import calibration
    >>> chart = calibration([0.5, 0.9], [0.48, 0.93])
    >>> chart.to_dict()["$schema"].startswith("https://vega")
    True
    """
    frame = pd.DataFrame({"promised": levels, "covered": covered})
    scale = alt.Scale(domain=[0, 1])
    line = alt.Chart(frame).mark_line(point=True, color=ACCENT)
    line = line.encode(
        alt.X("promised", title="promised coverage", scale=scale, axis=alt.Axis(format="%")),
        alt.Y("covered", title="share of rows inside", scale=scale, axis=alt.Axis(format="%")),
        tooltip=["promised", "covered"],
    )
    ideal = alt.Chart(pd.DataFrame({"at": [0.0, 1.0]})).mark_line(color=GREY, strokeDash=[4, 3]).encode(x="at", y="at")
    return alt.layer(ideal, line).properties(
        description="Share of rows inside intervals against the share promised; on the dashed line they agree."
    )


def probability_integral(values: ArrayLike) -> Any:
    """Draw where observations fall in their predictive distributions: flat if the distributions are right.

    Examples
    --------
    >>> from kernelcg.plots import probability_integral
    >>> chart = probability_integral([0.1, 0.4, 0.9])
    >>> chart.to_dict()["$schema"].startswith("https://vega")
    True
    """
    counts, edges = np.histogram(np.asarray(values, dtype=float), bins=10, range=(0, 1))
    frame = pd.DataFrame({"from": edges[:-1], "to": edges[1:], "rows": counts})
    return (
        alt.Chart(frame)
        .mark_bar(color=ACCENT)
        .encode(alt.X("from", title="place in the predictive distribution", bin="binned"), alt.X2("to"), alt.Y("rows"))
        .properties(description="Histogram of the places of observations in their predictive distributions.")
    )


def relevance(shares: Mapping[str, float]) -> Any:
    """Draw how much of the variation of the predictions is lost when a column is averaged out.

    Examples
    --------
    >>> from kernelcg.plots import relevance
    >>> chart = relevance({"area": 0.8, "age": 0.2})
    >>> chart.to_dict()["$schema"].startswith("https://vega")
    True
    """
    frame = pd.DataFrame({"column": list(shares), "share": list(shares.values())})
    return (
        alt.Chart(frame)
        .mark_bar(color=ACCENT)
        .encode(
            alt.X("share", title="share of the variation that is lost without it"),
            alt.Y("column:N", sort="-x", title=None),
            tooltip=["column", "share"],
        )
        .properties(description="Relevance of each column, the most important first.")
    )


def dependence(at: ArrayLike, mean: ArrayLike, lower: ArrayLike, upper: ArrayLike, name: str, target: str) -> Any:
    """Draw the prediction along one column, the others at their medians, with a 95 % band of the function.

    Examples
    --------
    >>> from kernelcg.plots import dependence
    >>> chart = dependence([0.0, 1.0], [2.0, 3.0], [1.5, 2.5], [2.5, 3.5], "area", "price")
    >>> chart.to_dict()["$schema"].startswith("https://vega")
    True
    """
    frame = pd.DataFrame({"at": at, "mean": mean, "lower": lower, "upper": upper})
    x = alt.X("at", title=name, scale=alt.Scale(zero=False))
    band = alt.Chart(frame).mark_area(opacity=0.25, color=ACCENT).encode(x, alt.Y("lower"), alt.Y2("upper"))
    line = alt.Chart(frame).mark_line(color=ACCENT)
    line = line.encode(
        x, alt.Y("mean", title=target, scale=alt.Scale(zero=False)), tooltip=["at", "mean", "lower", "upper"]
    )
    return alt.layer(band, line).properties(
        description=f"Prediction of {target} along {name}, the other columns at typical values, with its 95 % band."
    )


def _cells(x: ArrayLike, y: ArrayLike) -> pd.DataFrame:
    """Return the cells of a regular grid with these corners."""
    xs, ys = np.unique(np.asarray(x, dtype=float)), np.unique(np.asarray(y, dtype=float))
    wide, high = (float(np.diff(values).mean()) if len(values) > 1 else 1.0 for values in (xs, ys))
    frame = pd.DataFrame({"x": x, "y": y})
    return frame.assign(x2=frame.x + OVERLAP * wide, y2=frame.y + OVERLAP * high)


def map_of(x: ArrayLike, y: ArrayLike, value: ArrayLike, names: Sequence[str]) -> Any:
    """Draw predictions over two columns as a map; ``names`` are those of x, y and the target.

    Examples
    --------
    >>> from kernelcg.plots import map_of
    >>> chart = map_of([0.0, 1.0], [0.0, 1.0], [2.0, 3.0], ["x", "y", "price"])
    >>> chart.to_dict()["$schema"].startswith("https://vega")
    True
    """
    frame = _cells(x, y).assign(value=np.asarray(value, dtype=float))
    return (
        alt.Chart(frame)
        .mark_rect()
        .encode(
            alt.X("x", title=names[0], scale=alt.Scale(zero=False, nice=False)),
            alt.X2("x2"),
            alt.Y("y", title=names[1], scale=alt.Scale(zero=False, nice=False)),
            alt.Y2("y2"),
            alt.Color("value", title=names[2], scale=alt.Scale(scheme="viridis")),
            tooltip=["x", "y", "value"],
        )
        .properties(description=f"Map of the predicted {names[2]} over {names[0]} and {names[1]}.")
    )


def confusion(observed: Sequence[Any], predicted: Sequence[Any]) -> Any:
    """Draw how often each class was taken for each other.

    Examples
    --------
    >>> from kernelcg.plots import confusion
    >>> chart = confusion(["a", "b"], ["a", "a"])
    >>> chart.to_dict()["$schema"].startswith("https://vega")
    True
    """
    counts = pd.crosstab(pd.Series(observed, name="observed"), pd.Series(predicted, name="predicted"))
    frame = counts.stack().rename("rows").reset_index().astype({"observed": str, "predicted": str})
    base = alt.Chart(frame).encode(alt.X("predicted:N", title="predicted"), alt.Y("observed:N", title="observed"))
    cells = base.mark_rect().encode(alt.Color("rows", title="rows", scale=alt.Scale(scheme="blues")))
    half = int(frame["rows"].max()) / 2
    words = base.mark_text().encode(
        text="rows", color=alt.condition(f"datum.rows > {half}", alt.value("white"), alt.value("black"))
    )
    return alt.layer(cells, words).properties(description="Number of rows held out by observed and predicted class.")


def boundaries(x: ArrayLike, y: ArrayLike, classes: Sequence[str], certainty: ArrayLike, names: Sequence[str]) -> Any:
    """Draw the most probable class over two columns, the paler the less certain; ``names`` are those of x and y.

    Examples
    --------
    >>> from kernelcg.plots import boundaries
    >>> chart = boundaries([0.0, 1.0], [0.0, 1.0], ["a", "b"], [0.9, 0.8], ["x", "y"])
    >>> chart.to_dict()["$schema"].startswith("https://vega")
    True
    """
    frame = _cells(x, y).assign(**{"class": list(classes), "probability": np.asarray(certainty, dtype=float)})
    return (
        alt.Chart(frame)
        .mark_rect()
        .encode(
            alt.X("x", title=names[0], scale=alt.Scale(zero=False, nice=False)),
            alt.X2("x2"),
            alt.Y("y", title=names[1], scale=alt.Scale(zero=False, nice=False)),
            alt.Y2("y2"),
            alt.Color("class:N", title="class"),
            alt.Opacity("probability", title="probability", scale=alt.Scale(domain=[0, 1], range=[0, 1])),
            tooltip=["x", "y", "class", "probability"],
        )
        .properties(description=f"The most probable class over {names[0]} and {names[1]}, paler where less certain.")
    )


def surprises(rows: ArrayLike, observed: ArrayLike, predicted: ArrayLike, std: ArrayLike, name: str) -> Any:
    """Draw rows that are far from what the others say: their values, and 95 % intervals from the other rows.

    Examples
    --------
    >>> from kernelcg.plots import surprises
    >>> chart = surprises([3, 7], [1.0, 9.0], [1.1, 2.0], [0.1, 0.1], "price")
    >>> chart.to_dict()["$schema"].startswith("https://vega")
    True
    """
    y, m, s = (np.asarray(part, dtype=float) for part in (observed, predicted, std))
    frame = pd.DataFrame({"row": [f"row {row:,}" for row in np.asarray(rows)], "observed": y, "predicted": m})
    frame = frame.assign(lower=m - 1.96 * s, upper=m + 1.96 * s, deviations=(y - m) / s)
    scale = alt.Scale(zero=False)
    base = alt.Chart(frame).encode(alt.Y("row:N", sort=None, title=None))
    bars = base.mark_rule(strokeWidth=6, opacity=0.35, color=ACCENT).encode(
        alt.X("lower", title=name, scale=scale), alt.X2("upper")
    )
    dots = base.mark_circle(size=60, color=SECOND).encode(
        alt.X("observed", scale=scale), tooltip=["row", "observed", "predicted", "lower", "upper", "deviations"]
    )
    return alt.layer(bars, dots).properties(
        description="Rows furthest from what the others say; bars are 95 % intervals from the others, dots the values."
    )


def convergence(residuals: ArrayLike) -> Any:
    """Draw the largest relative residual of a solve after each iteration.

    Examples
    --------
    >>> from kernelcg.plots import convergence
    >>> chart = convergence([1.0, 0.1, 0.001])
    >>> chart.to_dict()["$schema"].startswith("https://vega")
    True
    """
    values = np.asarray(residuals, dtype=float)
    frame = pd.DataFrame({"iteration": np.arange(len(values)), "residual": values})
    return (
        alt.Chart(frame)
        .mark_line(point=True, color=ACCENT)
        .encode(
            alt.X("iteration", title="iteration"),
            alt.Y("residual", title="relative residual", scale=alt.Scale(type="log"), axis=alt.Axis(format="~e")),
            tooltip=["iteration", "residual"],
        )
        .properties(description="Relative residual of the linear solve after each iteration, on a logarithmic scale.")
    )


def save_picture(chart: Any, path: str | os.PathLike[str]) -> None:
    """Write a chart as PNG, SVG or JSON, told by the ending; no browser and no network are needed.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from kernelcg.plots import convergence, save_picture
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_picture(convergence([1.0, 0.1]), Path(folder) / "solve.svg")
    ...     (Path(folder) / "solve.svg").stat().st_size > 0
    True
    """
    if Path(path).suffix.lower() not in (".png", ".svg", ".json"):
        raise ValueError(f"pictures are written as .png, .svg or .json, not {os.fspath(path)!r}")
    sized = chart.properties(width=420, height=300)
    sized.save(os.fspath(path), **({"scale_factor": 2} if Path(path).suffix.lower() == ".png" else {}))
