"""Pictures of the computation: steps of learning, iterations of a solve; and files of all pictures."""

import os
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from kernelcg.plots.style import ACCENT


def learning_curve(seconds: ArrayLike, values: ArrayLike, rows: ArrayLike) -> Any:
    """Draw the criterion over the steps of learning, in nats a row so that parts of the data compare.

    Parameters
    ----------
    seconds : time of each step since learning began, in seconds
    values : the criterion there, in nats; NaN where it is not known
    rows : the number of rows that each step learned from

    Returns
    -------
    Chart : of Altair

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


def convergence(residuals: ArrayLike) -> Any:
    """Draw the largest relative residual of a solve after each iteration.

    Parameters
    ----------
    residuals : ‖b − Ax‖ / ‖b‖ after each iteration, of the worst column

    Returns
    -------
    Chart : of Altair

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

    Parameters
    ----------
    chart : one that a function of `kernelcg.plots` has drawn
    path : the file, with the ending .png, .svg or .json

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
