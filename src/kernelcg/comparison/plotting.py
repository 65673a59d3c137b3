"""Curves of error and likelihood over time or products, mean over folds; matplotlib is imported when it is needed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Curve = tuple[Floats, Floats]
"""Places, in ascending order, and the value from each place on."""

GRID = 400


@dataclass(frozen=True)
class Style:
    """How a method is drawn: colours that colour-blind readers can tell apart (Okabe & Ito), and dashes."""

    colour: str
    dashes: str | tuple[int, tuple[float, ...]] = "-"
    width: float = 1.6


STYLES: Mapping[str, Style] = {
    "kernelcg": Style("#D55E00", width=2.6),
    "CHOL": Style("#000000"),
    "CHOL-restarted": Style("#000000", (0, (4, 1.5))),
    "PCG": Style("#0072B2"),
    "CG": Style("#56B4E9", (0, (4, 1.5))),
    "FITC": Style("#009E73"),
    "PITC": Style("#CC79A7", (0, (4, 1.5))),
    "VAR": Style("#B8860B", (0, (1.2, 1.2))),
}


def pyplot() -> Any:
    """Return matplotlib's module, or raise with the remedy."""
    try:
        return import_module("matplotlib.pyplot")
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install 'kernelcg[plot]'") from error


def curve_of(points: Iterable[tuple[float, float]]) -> Curve | None:
    """Return the curve of a path from its points (where, value) in the order of the path; None if none is usable.

    A point that comes no sooner than a later one, because its conditioning took longer, is left out: nobody would have
    waited for it.
    """
    kept: list[tuple[float, float]] = []
    for point in reversed([point for point in points if np.isfinite(point).all() and point[0] > 0]):
        if not kept or point[0] < kept[-1][0]:
            kept.append(point)
    where, value = np.array(kept[::-1]).reshape(-1, 2).T
    return (where, value) if kept else None


def averaged(curves: Sequence[Curve]) -> Curve:
    """Return the mean over folds: each fold's last value is carried forward, from where all of them have one."""
    begins = max(where[0] for where, _ in curves)
    ends = max(where[-1] for where, _ in curves)
    grid = np.unique(np.concatenate([where for where, _ in curves]).clip(min=begins))
    if len(grid) > GRID and begins > 0:
        grid = np.geomspace(begins, ends, GRID)
    values = [value[np.searchsorted(where, grid, side="right") - 1] for where, value in curves]
    return grid, np.mean(values, axis=0)


def draw_curves(axes: Any, methods: Mapping[str, Sequence[Curve]], *, until: float | None = None) -> None:
    """Draw the mean curve of every method, its end marked and carried on to ``until``, on a logarithmic axis."""
    for name, folds in methods.items():
        style = STYLES.get(name, Style("#7F7F7F"))
        where, value = averaged(folds)
        look = {"color": style.colour, "linewidth": style.width, "zorder": 3 if name == "kernelcg" else 2}
        axes.step(where, value, where="post", linestyle=style.dashes, label=name, **look)
        axes.plot(where[-1], value[-1], marker="o", markersize=style.width + 2.5, **look)
        if until is not None and where[-1] < until:
            axes.plot([where[-1], until], [value[-1]] * 2, **{**look, "linewidth": 0.8}, alpha=0.6)
    axes.set_xscale("log")
    if methods:
        axes.set_ylim(*limits([averaged(folds) for folds in methods.values()]))
    else:
        axes.text(0.5, 0.5, "nothing to show", ha="center", transform=axes.transAxes, color="#7F7F7F")
    axes.grid(True, which="major", color="#E5E5E5", linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def limits(curves: Sequence[Curve]) -> tuple[float, float]:
    """Return limits that show how curves end, and the lower half of the way there."""
    ends = np.array([value[-1] for _, value in curves])
    starts = np.array([value[0] for _, value in curves])
    low = min(float(value.min()) for _, value in curves)
    high = max(float(ends.max()), low + 3 * (float(np.median(ends)) - low), 0.5 * (float(starts.max()) + low))
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 0.05
    return low - margin, high + margin
