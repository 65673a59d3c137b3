"""Pictures of what a model has learned: relevance of columns, curves along them, maps and boundaries of classes."""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from kernelcg.plots.style import ACCENT, BAND, GREY, SECOND, thinned

OVERLAP = 1.06
"""Size of the cells of a map relative to their distance, so that no gaps show between them."""

MOST_BARS, THICKEST, ROOM = 15, 26, 210
"""Columns whose relevance is drawn, the thickest bar, and how much all of them take, in pixels."""

PARTS = {
    "prediction": ACCENT,
    "95 % credible band": BAND,
    "average over the rows": GREY,
    "numerical error band": SECOND,
}
"""Colours of the parts of `dependence`."""


def relevance(shares: Mapping[str, float]) -> Any:
    """Draw how much of the variation of the predictions is lost when a column is averaged out.

    Parameters
    ----------
    shares : by the name of the column, between 0 and 1; of many columns those that matter most are drawn

    Returns
    -------
    Chart : of Altair

    Examples
    --------
    >>> from kernelcg.plots import relevance
    >>> chart = relevance({"area": 0.8, "age": 0.2})
    >>> chart.to_dict()["$schema"].startswith("https://vega")
    True
    """
    first = sorted(shares.items(), key=lambda item: -item[1])[:MOST_BARS]
    frame = pd.DataFrame(first, columns=["column", "share"])
    return (
        alt.Chart(frame)
        .mark_bar(color=ACCENT, size=min(THICKEST, ROOM // max(len(first), 1)))
        .encode(
            alt.X("share", title="share of the variation that is lost without it"),
            alt.Y("column:N", sort="-x", title=None),
            tooltip=["column", "share"],
        )
        .properties(description="Relevance of each column, the most important first.")
    )


def dependence(
    at: ArrayLike,
    mean: ArrayLike,
    band: tuple[ArrayLike, ArrayLike],
    names: Sequence[str],
    *,
    exact: tuple[ArrayLike, ArrayLike] | None = None,
    average: ArrayLike | None = None,
) -> Any:
    """Draw the prediction along one column, the others at typical values, with what is not known of it.

    Parameters
    ----------
    at : values of the column, in its units, or dates
    mean : predictions there, in the units of the target
    band : lower and upper ends of the 95 % credible band of the function, in the same units
    names : of the column and of the target
    exact : lower and upper ends of the numerical error band, within which exact arithmetic has the mean
    average : mean of the predictions over the rows of the table with this column set to each value: the partial
        dependence

    Returns
    -------
    Chart : of Altair

    Examples
    --------
    >>> from kernelcg.plots import dependence
    >>> chart = dependence([0.0, 1.0], [2.0, 3.0], ([1.5, 2.5], [2.5, 3.5]), ["area", "price"], average=[1.9, 2.8])
    >>> chart.to_dict()["$schema"].startswith("https://vega")
    True
    """
    known = {"mean": mean, "lower": band[0], "upper": band[1]}
    known |= {} if average is None else {"average": average}
    known |= {} if exact is None else {"exact from": exact[0], "exact to": exact[1]}
    numbers = {name: np.asarray(values, dtype=float) for name, values in known.items()}
    frame = pd.DataFrame({"at": np.asarray(at), **numbers})
    x, y = (alt.X("at", title=names[0], scale=alt.Scale(zero=False)), alt.Y("mean", scale=alt.Scale(zero=False)))
    parts = {"95 % credible band": alt.Chart(frame).mark_area(opacity=0.5).encode(x, alt.Y("lower"), alt.Y2("upper"))}
    if average is not None:
        dashed = alt.Chart(frame).mark_line(strokeDash=[5, 3])
        parts["average over the rows"] = dashed.encode(x, alt.Y("average"))
    if exact is not None:
        area = alt.Chart(frame).mark_area(opacity=0.8)
        parts["numerical error band"] = area.encode(x, alt.Y("exact from"), alt.Y2("exact to"))
    parts["prediction"] = alt.Chart(frame).mark_line().encode(x, y.title(names[1]), tooltip=list(frame))
    scale = alt.Scale(domain=list(parts), range=[PARTS[name] for name in parts])
    legend = alt.Legend(title=None, orient="bottom", columns=2, symbolOpacity=1)
    layers = [
        part.transform_calculate(part=f"'{name}'").encode(alt.Color("part:N", scale=scale, legend=legend))
        for name, part in parts.items()
    ]
    words = f"Prediction of {names[1]} along {names[0]}, the other columns at typical values, with its 95 % band"
    ending = "" if exact is None else " and the band within which the numbers are exact"
    return alt.layer(*layers).properties(description=f"{words}{ending}.")


def class_dependence(
    at: ArrayLike, classes: Mapping[str, tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike]], name: str
) -> Any:
    """Draw the probabilities of several classes along one column, the others at typical values.

    Parameters
    ----------
    at : values of the column, in its units, or dates
    classes : for each class its probabilities there, the lower and upper ends of their 95 % credible band, and the mean
        of the probabilities over the rows of the table with this column set to each value: the partial dependence
    name : of the column

    Returns
    -------
    Chart : of Altair

    Examples
    --------
    >>> from kernelcg.plots import class_dependence
    >>> short = [0.9, 0.2], [0.8, 0.1], [1.0, 0.4], [0.6, 0.5]
    >>> long = [0.1, 0.8], [0.0, 0.6], [0.2, 0.9], [0.4, 0.5]
    >>> chart = class_dependence([0.0, 1.0], {"short": short, "long": long}, "length")
    >>> chart.to_dict()["$schema"].startswith("https://vega")
    True
    """
    fields = ("probability", "lower", "upper", "average")
    frame = pd.concat(
        [
            pd.DataFrame({"at": at, "class": label, **dict(zip(fields, curves, strict=True))})
            for label, curves in classes.items()
        ]
    )
    base = alt.Chart(frame).encode(
        alt.X("at", title=name, scale=alt.Scale(zero=False)),
        alt.Color(
            "class:N", title="class", sort=list(classes), legend=alt.Legend(orient="bottom", columns=3, symbolOpacity=1)
        ),
    )
    scale = alt.Scale(domain=[0, 1])
    bands = base.mark_area(opacity=0.2).encode(alt.Y("lower", scale=scale, title="probability"), alt.Y2("upper"))
    averages = base.mark_line(strokeDash=[5, 3], opacity=0.7).encode(alt.Y("average", scale=scale))
    lines = base.mark_line().encode(alt.Y("probability", scale=scale), tooltip=list(frame))
    words = f"Probabilities of the classes along {name}, the other columns at typical values, with their 95 % bands"
    return alt.layer(bands, averages, lines).properties(description=f"{words}; dashed: averages over the rows.")


def map_of(x: ArrayLike, y: ArrayLike, value: ArrayLike, names: Sequence[str]) -> Any:
    """Draw predictions over two columns as a map.

    Parameters
    ----------
    x, y : corners of the cells of a regular grid, in the units of the two columns, or dates
    value : predictions there, in the units of the target
    names : of the two columns and of the target

    Returns
    -------
    Chart : of Altair

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


def boundaries(
    x: ArrayLike,
    y: ArrayLike,
    classes: Sequence[str],
    certainty: ArrayLike,
    names: Sequence[str],
    *,
    rows: tuple[ArrayLike, ArrayLike, Sequence[str]] | None = None,
) -> Any:
    """Draw the most probable class over two columns, the fainter the less certain, and rows of the table on it.

    Parameters
    ----------
    x, y : corners of the cells of a regular grid, in the units of the two columns, or dates
    classes : the most probable class of each cell
    certainty : its probability
    names : of the two columns
    rows : x, y and class of rows to draw as dots

    Returns
    -------
    Chart : of Altair

    Examples
    --------
    >>> from kernelcg.plots import boundaries
    >>> rows = [0.2, 0.7], [0.1, 0.9], ["a", "b"]
    >>> chart = boundaries([0, 1], [0, 1], ["a", "b"], [0.9, 0.8], ["x", "y"], rows=rows)
    >>> chart.to_dict()["$schema"].startswith("https://vega")
    True
    """
    frame = _cells(x, y).assign(**{"class": list(classes), "probability": np.asarray(certainty, dtype=float)})
    scale = alt.Scale(zero=False, nice=False)
    legend = alt.Legend(title="probability", symbolFillColor=GREY, symbolStrokeColor=GREY)
    cells = (
        alt.Chart(frame)
        .mark_rect()
        .encode(
            alt.X("x", title=names[0], scale=scale),
            alt.X2("x2"),
            alt.Y("y", title=names[1], scale=scale),
            alt.Y2("y2"),
            alt.Color("class:N", title="class"),
            alt.Opacity("probability", scale=alt.Scale(domain=[0, 1], range=[0, 1]), legend=legend),
            tooltip=["x", "y", "class", "probability"],
        )
    )
    words = f"The most probable class over {names[0]} and {names[1]}, fainter where less certain"
    if rows is None:
        return cells.properties(description=f"{words}.")
    seen = thinned(pd.DataFrame({"x": rows[0], "y": rows[1], "class": list(rows[2])}))
    dots = alt.Chart(seen).mark_circle(size=36, stroke="white", strokeWidth=0.8, opacity=1.0)
    dots = dots.encode(alt.X("x"), alt.Y("y"), alt.Color("class:N"), tooltip=["x", "y", "class"])
    return alt.layer(cells, dots).properties(description=f"{words}; dots are rows of the table.")


def _cells(x: ArrayLike, y: ArrayLike) -> pd.DataFrame:
    """Return the cells of a regular grid with these corners."""
    frame = pd.DataFrame({"x": np.asarray(x), "y": np.asarray(y)})
    return frame.assign(x2=frame.x + _cell(frame.x), y2=frame.y + _cell(frame.y))


def _cell(corners: pd.Series) -> Any:
    """Return how long a cell is in one direction: a little more than the distance of the corners."""
    distances = np.diff(np.unique(corners.to_numpy()))
    return OVERLAP * (distances.mean() if len(distances) else np.ones(1, dtype=distances.dtype)[0])
