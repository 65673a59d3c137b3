"""What a person should know of a table before trusting a model of it: columns that give the target away, mistakes."""

import numpy as np
import pandas as pd
from scipy.stats import binom

from kernelcg.tables.columns import Column, Encoding, Kind, is_numbering
from kernelcg.tables.scores import COVERED, HeldOut
from kernelcg.tables.task import Target, Task

SAME = 1 - 1e-12
"""Correlation with the target from which on a column is the target in other units."""

FAR = 1e4
"""Distance from the median, in interquartile ranges, from which on a value is taken for a mistake."""

FEWEST = 10
"""Rows below which neither columns nor predictions are judged."""

UNLIKELY = 1e-3
"""Probability, if the intervals were right, below which it is said that they are not."""


def of_columns(frame: pd.DataFrame, encoding: Encoding, target: Target) -> list[str]:
    """Return what is odd about the columns in use, in sentences.

    Parameters
    ----------
    frame : the rows in which the target is present
    """
    used = [column for column in encoding.columns if column.kind is not Kind.LEFT_OUT]
    found = list[str]()
    for column in used if len(frame) >= FEWEST else []:
        values, leave_out = frame[column.name], f"leave it out (--leave-out {column.name!r})"
        if _gives_away(values, column, target):
            found.append(f"{column.name!r} gives {target.name!r} away; {leave_out} unless it is known beforehand")
        elif len(used) > 1 and is_numbering(values):
            found.append(f"{column.name!r} numbers the rows; {leave_out} unless their order matters")
        elif column.kind is Kind.NUMBER:
            found += _far(values, column.name)
        elif column.kind is Kind.CATEGORY:
            found += _alike(column)
    return found


def of_predictions(held: HeldOut) -> list[str]:
    """Return in sentences what is wrong with the predictions of rows held out, if it is more than chance."""
    rows, scores = len(held.observed), held.scores()
    if rows < FEWEST:
        return []
    if held.task is Task.CLASSIFICATION:
        frequent = np.unique(held.observed.astype(str), return_counts=True)[1].max() / rows
        useless = scores["error"] >= 1 - frequent and scores["error"] > 0
        return ["always guessing the most frequent class would have been right as often"] if useless else []
    found = []
    if scores.get("r2", 1.0) <= 0:
        found.append("the mean of the target would have predicted the rows held out as well: these columns tell little")
    share = scores.get("coverage", 1.0)
    judged = held.judged
    if binom.cdf(round(share * judged), judged, COVERED) < UNLIKELY:
        found.append(
            f"the intervals are too narrow: {share:.0%} of {judged} rows instead of {COVERED:.0%} lie inside; there "
            "are too few rows for so many columns, or rows that belong together (try --leave-out)"
        )
    return found


def _gives_away(values: pd.Series, column: Column, target: Target) -> bool:
    """Say whether a column is the target in other units, or has other names for its classes."""
    if target.task is not Task.CLASSIFICATION:
        numbers = column.features(values)[:, 0] if column.kind is Kind.NUMBER else np.zeros(0)
        spread = len(numbers) > 0 and numbers.std() > 0
        return bool(spread and abs(np.corrcoef(numbers, target.values)[0, 1]) >= SAME)
    pairs = pd.DataFrame({"value": values.astype(str).to_numpy(), "class": target.values}).drop_duplicates()
    return len(pairs) == pairs["value"].nunique() == pairs["class"].nunique()


def _alike(column: Column) -> list[str]:
    """Return a sentence about categories that differ in capital letters alone, if there are any."""
    seen = dict[str, str]()
    pairs = [(seen.setdefault(level.lower(), level), level) for level in column.levels]
    alike = [f"{first!r} and {level!r}" for first, level in pairs if first != level]
    return [f"{column.name!r} has categories that may be the same: {', '.join(alike[:3])}"] if alike else []


def _far(values: pd.Series, name: str) -> list[str]:
    """Return a sentence about the value furthest from the others, if it is far."""
    numbers = pd.to_numeric(values, errors="coerce").to_numpy(dtype=np.float64)
    low, middle, high = np.nanquantile(numbers, [0.25, 0.5, 0.75])
    position = int(np.nanargmax(np.abs(numbers - middle)))
    if not abs(numbers[position] - middle) > FAR * (high - low) > 0:
        return []
    row = int(values.index[position]) + 1
    return [f"{name!r} holds {numbers[position]:.6g} in row {row}, far from all others: mend it if it is a mistake"]
