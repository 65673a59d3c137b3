"""What is to be predicted: a number, a class or a count, told from the values of the target."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import pandas as pd

from kernelcg.estimators.data import LARGEST
from kernelcg.tables.columns import as_word, row_of
from kernelcg.tables.reading import TableError, no_column

FEW_CODES = 10
"""Distinct whole numbers up to which they may be codes of classes."""

TYPICAL_COUNT = 30
"""A target of whole numbers from 0 on is taken for counts if its median is no larger."""

LARGEST_COUNT = 1e9
"""And if its largest value is no larger: 1e308 is whole, too, but a mistake rather than a count."""

RARE = 0.2
"""Frequency of the largest value relative to the commonest below which 0, 1, …, C − 1 are counts, not classes."""

MOST_CLASSES, FEWEST_LABELS = 0.5, 20
"""Classes relative to the rows beyond which words are no classes, in tables with more than so many rows."""


class Task(StrEnum):
    """Kinds of targets; the value is what users type."""

    REGRESSION = "regression"
    CLASSIFICATION = "classification"
    COUNTS = "counts"


def task_named(name: str | None) -> Task | None:
    """Return the task of this name; None for None."""
    if name is not None and name not in tuple(Task):
        raise TableError(f"the task must be one of {', '.join(Task)}, not {name!r}")
    return None if name is None else Task(name)


@dataclass(frozen=True, eq=False)
class Target:
    """The target of a table: its task with the reason, its values, and the rows in which it is present."""

    name: str
    task: Task
    reason: str
    values: Any
    present: np.ndarray[Any, np.dtype[np.bool_]]


def target_of(frame: pd.DataFrame, name: str, task: Task | None = None) -> Target:
    """Return the target column, as numbers for a regression or counts and as labels for a classification.

    Raises
    ------
    TableError : if there is no such column, nothing to learn in it, or it does not suit the task
    """
    if name not in frame.columns:
        raise no_column(name, frame.columns)
    column = frame[name]
    present = column.notna().to_numpy(dtype=bool)
    if not present.any():
        raise TableError(f"the target {name!r} is empty")
    values = column[present]
    numbers = pd.to_numeric(values, errors="coerce").to_numpy(dtype=np.float64)
    if values.dtype == bool:
        numbers = np.full(len(values), np.nan)
    chosen, reason = (task, "as asked for") if task else _detected(numbers, truths=values.dtype == bool)
    if chosen is Task.CLASSIFICATION:
        labels = np.array([as_word(value) for value in values], dtype=object)
        if len(np.unique(labels)) < 2:
            raise TableError(f"the target {name!r} has one class only, {labels[0]!r}: there is nothing to learn")
        _require_repeated(name, labels)
        return Target(name, chosen, reason, labels, present)
    _require_numbers(name, values, numbers)
    if len(numbers) > 1 and (numbers == numbers[0]).all():
        raise TableError(f"the target {name!r} is {numbers[0]:.6g} in every row: there is nothing to learn")
    if chosen is Task.COUNTS and ((numbers < 0) | (numbers != np.floor(numbers))).any():
        raise TableError(f"the target {name!r} does not hold counts: use --task regression")
    if chosen is Task.COUNTS and numbers.max() > LARGEST_COUNT:
        row = int(values.index[numbers.argmax()]) + 1
        raise TableError(
            f"the target {name!r} holds {numbers.max():.6g} in row {row}, too large for a count: mend it, or use "
            "--task regression"
        )
    return Target(name, chosen, reason, numbers, present)


def _require_repeated(name: str, labels: np.ndarray[Any, Any]) -> None:
    """Raise if most rows have a class of their own: then nothing can be learned from the others."""
    classes = len(np.unique(labels))
    if classes > MOST_CLASSES * len(labels) and len(labels) > FEWEST_LABELS:
        raise TableError(
            f"the target {name!r} has {classes:,} different values in {len(labels):,} rows, so that nearly every row "
            "would be a class of its own; name another column, or mend the values so that they are numbers"
        )


def _require_numbers(name: str, values: pd.Series, numbers: np.ndarray[Any, Any]) -> None:
    wrong = np.flatnonzero(~np.isfinite(numbers))
    if len(wrong):
        row, shown = row_of(values, wrong[0])
        raise TableError(
            f"the target {name!r} holds {shown} in row {row}, which is not a finite number; mend it, leave it "
            "empty, or use --task classification"
        )
    large = np.flatnonzero(np.abs(numbers) > LARGEST)
    if len(large):
        row, shown = row_of(values, large[0])
        raise TableError(
            f"the target {name!r} holds {shown} in row {row}, too large to compute with; mend it, leave it empty, or "
            "use other units"
        )


def _detected(numbers: np.ndarray[Any, Any], *, truths: bool = False) -> tuple[Task, str]:
    """Return the task and the reason why."""
    if truths:
        return Task.CLASSIFICATION, "its values are true or false"
    if np.isnan(numbers).mean() > 0.5:
        return Task.CLASSIFICATION, "its values are words"
    known = numbers[~np.isnan(numbers)]
    distinct, frequency = np.unique(known, return_counts=True)
    if len(distinct) == 2:
        return Task.CLASSIFICATION, "it has two values"
    whole = bool((known == np.floor(known)).all()) and len(distinct) > 1
    if whole and distinct[0] == 0:
        codes = len(distinct) <= FEW_CODES and distinct[-1] == len(distinct) - 1
        if codes and frequency[-1] >= RARE * frequency.max():
            return Task.CLASSIFICATION, f"its values are 0 to {len(distinct) - 1}, each of them common"
        if np.median(known) <= TYPICAL_COUNT and distinct[-1] <= LARGEST_COUNT:
            return Task.COUNTS, "its values are whole numbers from 0 on"
    return Task.REGRESSION, "its values are numbers"
