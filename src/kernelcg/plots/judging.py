"""Pictures of how good predictions are: of rows held out, and of rows left out in turn."""

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.stats import binom

from kernelcg.plots.style import ACCENT, GREY, SECOND, thinned

MARGIN = 8
"""Pixels between the outermost dots and the frame."""

LEVELS = np.linspace(0.05, 0.95, 19)
"""Nominal coverages at which calibration is judged."""


def predicted_against_observed(
    observed: ArrayLike,
    mean: ArrayLike,
    std: ArrayLike,
    name: str,
    *,
    interval: tuple[ArrayLike, ArrayLike] | None = None,
) -> Any:
    """Draw predictions of rows held out with their 95 % intervals against what was observed.

    Parameters
    ----------
    observed : what was observed, in the units of the target
    mean : predictions of it, in the same units
    std : standard deviations of a new observation, in the same units
    name : of the target
    interval : lower and upper ends of the 95 % intervals; those of a normal distribution unless given

    Returns
    -------
    Chart : of Altair

    Examples
    --------
    >>> from kernelcg.plots import predicted_against_observed
    >>> chart = predicted_against_observed([1.0, 2.0], [1.1, 1.9], [0.1, 0.1], "price")
    >>> chart.to_dict()["$schema"].startswith("https://vega")
    True
    """
    y, m, s = (np.asarray(part, dtype=float) for part in (observed, mean, std))
    lower, upper = (m - 1.96 * s, m + 1.96 * s) if interval is None else map(np.asarray, interval)
    frame = thinned(pd.DataFrame({"observed": y, "mean": m, "lower": lower, "upper": upper}))
    ends = pd.DataFrame({"at": [min(y.min(), m.min()), max(y.max(), m.max())]})
    axis = alt.Scale(zero=False, padding=MARGIN)
    bars = alt.Chart(frame).mark_rule(opacity=0.5, color=ACCENT)
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

    Parameters
    ----------
    mean : predictions, in the units of the target
    observed : what was observed, in the same units
    std : standard deviations of a new observation, in the same units

    Returns
    -------
    Chart : of Altair

    Examples
    --------
    >>> from kernelcg.plots import residuals
    >>> chart = residuals([1.1, 1.9], [1.0, 2.0], [0.1, 0.1])
    >>> chart.to_dict()["$schema"].startswith("https://vega")
    True
    """
    m, y, s = (np.asarray(part, dtype=float) for part in (mean, observed, std))
    frame = thinned(pd.DataFrame({"mean": m, "residual": (y - m) / s}))
    dots = alt.Chart(frame).mark_circle(size=26, color=ACCENT, opacity=0.8)
    dots = dots.encode(
        alt.X("mean", title="predicted", scale=alt.Scale(zero=False, padding=MARGIN)),
        alt.Y("residual", title="residual / predicted sd"),
        tooltip=["mean", "residual"],
    )
    lines = alt.Chart(pd.DataFrame({"at": [-1.96, 0.0, 1.96]})).mark_rule(color=GREY, strokeDash=[4, 3]).encode(y="at")
    return alt.layer(dots, lines).properties(
        description="Residuals divided by the predicted standard deviation; 95 % should lie between the outer lines."
    )


def calibration(levels: ArrayLike, covered: ArrayLike, rows: int | None = None) -> Any:
    """Draw the share of rows held out within an interval against the share that it promises.

    Parameters
    ----------
    levels : probabilities that intervals promise
    covered : shares of the rows that lie within them
    rows : number of the rows; if it is given, a grey band holds the shares of right intervals with probability 95 %

    Returns
    -------
    Chart : of Altair

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
    words = "Share of rows inside intervals against the share promised; on the dashed line they agree"
    if rows is None:
        return alt.layer(ideal, line).properties(description=f"{words}.")
    promised = np.linspace(0, 1, 101)
    lower, upper = (binom.ppf(end, rows, promised) / rows for end in (0.025, 0.975))
    chance = pd.DataFrame({"promised": promised, "lower": lower.clip(0, 1), "upper": upper.clip(0, 1)})
    band = alt.Chart(chance).mark_area(color=GREY, opacity=0.2).encode(x="promised", y="lower", y2="upper")
    return alt.layer(band, ideal, line).properties(
        description=f"{words}, and in the grey band they differ by no more than chance explains."
    )


def probability_integral(values: ArrayLike) -> Any:
    """Draw where observations fall in their predictive distributions: flat if the distributions are right.

    A grey band holds each bar with probability 95 % if they are.

    Parameters
    ----------
    values : P(Y ≤ y) of each observation y by its predictive distribution

    Returns
    -------
    Chart : of Altair

    Examples
    --------
    >>> from kernelcg.plots import probability_integral
    >>> chart = probability_integral([0.1, 0.4, 0.9])
    >>> chart.to_dict()["$schema"].startswith("https://vega")
    True
    """
    counts, edges = np.histogram(np.asarray(values, dtype=float), bins=10, range=(0, 1))
    frame = pd.DataFrame({"from": edges[:-1], "to": edges[1:], "rows": counts})
    rows = int(counts.sum())
    chance = pd.DataFrame({"lower": [binom.ppf(0.025, rows, 0.1)], "upper": [binom.ppf(0.975, rows, 0.1)]})
    bars = alt.Chart(frame).mark_bar(color=ACCENT)
    bars = bars.encode(
        alt.X("from", title="place in the predictive distribution", bin="binned"),
        alt.X2("to"),
        alt.Y("rows", title="rows"),
    )
    band = alt.Chart(chance).mark_rect(color=GREY, opacity=0.25)
    band = band.encode(alt.Y("lower", title="rows"), alt.Y2("upper"))
    words = (
        "Histogram of the places of observations in their predictive distributions; bars in the grey band are level."
    )
    return alt.layer(band, bars).properties(description=words)


def confusion(observed: Sequence[Any], predicted: Sequence[Any]) -> Any:
    """Draw how often each class was taken for each other.

    Parameters
    ----------
    observed : the class of each row
    predicted : its most probable class

    Returns
    -------
    Chart : of Altair

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


def reliability(certainty: ArrayLike, right: ArrayLike) -> Any:
    """Draw how often the most probable class was the right one, against its probability.

    Parameters
    ----------
    certainty : probability of the most probable class, of each row
    right : whether it was the class of the row

    Returns
    -------
    Chart : of Altair

    Examples
    --------
    >>> from kernelcg.plots import reliability
    >>> chart = reliability([0.6, 0.9, 0.95], [False, True, True])
    >>> chart.to_dict()["$schema"].startswith("https://vega")
    True
    """
    frame = pd.DataFrame({"promised": certainty, "right": np.asarray(right, dtype=float)})
    groups = frame.groupby(np.minimum((10 * frame["promised"]).astype(int), 9))
    means = groups.mean().assign(rows=groups.size())
    scale, percent = alt.Scale(domain=[0, 1]), alt.Axis(format="%")
    dots = alt.Chart(means).mark_circle(color=ACCENT, opacity=0.9)
    dots = dots.encode(
        alt.X("promised", title="probability of the most probable class", scale=scale, axis=percent),
        alt.Y("right", title="share of rows of that class", scale=scale, axis=percent),
        alt.Size("rows", title="rows"),
        tooltip=["promised", "right", "rows"],
    )
    ideal = alt.Chart(pd.DataFrame({"at": [0.0, 1.0]})).mark_line(color=GREY, strokeDash=[4, 3]).encode(x="at", y="at")
    return alt.layer(ideal, dots).properties(
        description="How often the most probable class was right against its probability; the dashed line is equality."
    )


def surprises(rows: ArrayLike, observed: ArrayLike, predicted: ArrayLike, std: ArrayLike, name: str) -> Any:
    """Draw rows that are far from what the others say: their values, and 95 % intervals from the other rows.

    Parameters
    ----------
    rows : numbers of the rows in the table
    observed : their values, in the units of the target
    predicted : means from the other rows, in the same units
    std : standard deviations from the other rows, in the same units
    name : of the target

    Returns
    -------
    Chart : of Altair

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
    scale = alt.Scale(zero=False, padding=MARGIN)
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


def unforeseen(rows: ArrayLike, observed: Sequence[str], probability: ArrayLike) -> Any:
    """Draw how probable the classes or counts of rows were that the model did not expect.

    Parameters
    ----------
    rows : numbers of the rows in the table
    observed : their classes or counts
    probability : of what was observed, by the model

    Returns
    -------
    Chart : of Altair

    Examples
    --------
    >>> from kernelcg.plots import unforeseen
    >>> chart = unforeseen([3, 7], ["yes", "no"], [0.02, 0.1])
    >>> chart.to_dict()["$schema"].startswith("https://vega")
    True
    """
    names = [f"row {row:,}: {value}" for row, value in zip(np.asarray(rows), observed, strict=True)]
    frame = pd.DataFrame({"row": names, "probability": np.asarray(probability, dtype=float)})
    return (
        alt.Chart(frame)
        .mark_bar(color=SECOND)
        .encode(
            alt.X("probability", title="probability of what was observed", axis=alt.Axis(format="%")),
            alt.Y("row:N", sort=None, title=None),
            tooltip=["row", "probability"],
        )
        .properties(description="Rows held out whose classes or counts were the least probable by the model.")
    )
