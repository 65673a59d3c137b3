"""Data of one's own for a comparison: arrays, a data frame or a CSV file, checked and divided."""

import csv
import math
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import ShuffleSplit, StratifiedShuffleSplit
from sklearn.utils import check_array, check_consistent_length

from kernelcg.inference.gaussian.drift import spread_of

Floats = NDArray[np.float64]
TASKS = ("regression", "classification")

FEWEST_ROWS = 20
"""Rows below which a comparison says nothing."""


@dataclass(frozen=True, eq=False)
class Split:
    """Standardised training and test rows; labels are 0, …, C − 1."""

    X: Floats
    y: Floats
    X_test: Floats
    y_test: Floats


@dataclass(frozen=True, eq=False)
class Table:
    """Inputs and target, checked; ``classes`` are the labels, none in a regression."""

    X: Floats
    y: Floats
    classes: tuple[Any, ...] = ()

    @property
    def task(self) -> str:
        """Return "regression" or "classification"."""
        return "classification" if self.classes else "regression"

    def splits(self, count: int, test: float, seed: int) -> Iterator[Split]:
        """Yield random divisions, everything in units of the training standard deviation."""
        kind = StratifiedShuffleSplit if self.classes else ShuffleSplit
        for rows, held_out in kind(n_splits=count, test_size=test, random_state=seed).split(self.X, self.y):
            X = standardised(self.X, rows)
            y = self.y if self.classes else standardised(self.y, rows)
            yield Split(X[rows], y[rows], X[held_out], y[held_out])


def table(X: Any, y: Any = None, *, target: str | None = None, task: str | None = None) -> Table:
    """Return checked inputs and target.

    Parameters
    ----------
    X : (n, d) array or data frame, or with ``target`` the name of a CSV file with a header, or a data frame with y
    target : the column that is y
    y : (n,) the target, unless X holds it
    task : "regression" or "classification"; None means classification for two distinct values of y and for words

    Examples
    --------
    >>> import numpy as np
    >>> from kernelcg.comparison import table
    >>> table(np.zeros((20, 2)), ["a", "b"] * 10).task
    'classification'
    """
    if task not in (None, *TASKS):
        raise ValueError(f"task must be one of {', '.join(TASKS)} or None, not {task!r}")
    if isinstance(X, str | os.PathLike):
        X, y = _read(Path(X), y, target)
    elif target is not None:
        X, y = _divided(X, y, target)
    if y is None:
        raise ValueError("y is missing: give y, or target, the name of its column")
    values = _one_column(y)
    _refuse_words(X)
    inputs: Floats = check_array(X, dtype=np.float64, input_name="X")
    check_consistent_length(inputs, values)
    if len(inputs) < FEWEST_ROWS:
        raise ValueError(f"there are {len(inputs)} rows; a comparison needs at least {FEWEST_ROWS}")
    chosen = task or ("classification" if _looks_like_labels(values) else "regression")
    return _labelled(inputs, values) if chosen == "classification" else _measured(inputs, values)


def _one_column(y: Any) -> NDArray[Any]:
    """Return y as a vector, numbers that are kept as objects as numbers."""
    values = np.asarray(y)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise ValueError(f"y must be one column, not of shape {values.shape}")
    if values.dtype.kind != "O":
        return values
    missing = next((i for i, one in enumerate(values) if _is_missing(one)), None)
    if missing is not None:
        raise ValueError(f"y contains NaN or nothing in row {missing} (counted from 0): leave such rows out")
    if any(isinstance(one, str) for one in values):
        return values.astype(str)
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError):
        return values.astype(str)


def _is_missing(one: Any) -> bool:
    return one is None or (isinstance(one, float) and math.isnan(one)) or type(one).__name__ in ("NAType", "NaTType")


def _refuse_words(X: Any) -> None:
    """Raise if a column of a data frame does not hold numbers, with its name."""
    pandas = sys.modules.get("pandas")
    for name in X.columns if pandas and isinstance(X, pandas.DataFrame) else ():
        try:
            X[name].astype(np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"column {name!r} must hold numbers ({error}); encode or drop it") from None


def _labelled(X: Floats, y: NDArray[Any]) -> Table:
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        raise ValueError("y contains NaN or infinity: leave those rows out")
    classes, codes = np.unique(y, return_inverse=True)
    counts = np.bincount(codes)
    if len(classes) < 2:
        raise ValueError(f"y holds only one class, {classes[0]}; there is nothing to learn")
    if counts.min() < 2:
        rare = classes[counts.argmin()]
        raise ValueError(f"class {rare} has one row; every class needs two, one to learn from and one to test")
    return Table(X, codes.astype(np.float64), tuple(classes.tolist()))


def _measured(X: Floats, y: NDArray[Any]) -> Table:
    try:
        numbers = y.astype(np.float64)
    except (TypeError, ValueError):
        raise ValueError("y holds words, not numbers; use task='classification'") from None
    if not np.isfinite(numbers).all():
        raise ValueError("y contains NaN or infinity: leave those rows out")
    if np.ptp(numbers) == 0:
        raise ValueError(f"y is constant, {numbers[0]:g}; there is nothing to learn")
    return Table(X, numbers)


def _looks_like_labels(y: NDArray[Any]) -> bool:
    return y.dtype.kind not in "iuf" or len(np.unique(y)) == 2


def standardised(values: Floats, training: NDArray[Any]) -> Floats:
    """Return columns in units of the standard deviation (n − 1) of the training rows, their mean taken off.

    One that is constant there, but for rounding, is only centred.
    """
    rows = values[training]
    spread = spread_of(torch.from_numpy(rows)).numpy() * math.sqrt(len(rows) / max(len(rows) - 1, 1))
    return (values - rows.mean(0)) / np.where(spread > 0, spread, 1.0)


def _divided(X: Any, y: Any, target: str) -> tuple[Any, Any]:
    """Return a data frame without the target, and the target."""
    pandas = sys.modules.get("pandas")
    if y is not None or pandas is None or not isinstance(X, pandas.DataFrame):
        raise TypeError("target names a column of a CSV file or of a pandas DataFrame; give it without y")
    if target not in X.columns:
        raise ValueError(f"there is no column {target!r}; the columns are {', '.join(map(str, X.columns))}")
    return X.drop(columns=target), X[target]


def _read(file: Path, y: Any, target: str | None) -> tuple[Floats, NDArray[Any]]:
    """Return inputs and target of a CSV file; the target may be words, everything else must be numbers."""
    if y is not None or target is None:
        raise ValueError("a file goes with target, the name of the column to be predicted, and without y")
    with file.open(newline="", encoding="utf-8-sig") as stream:
        header, *rows = [row for row in csv.reader(stream) if row] or [[]]
    if target not in header:
        raise ValueError(f"{file.name} has no column {target!r}; its header is {', '.join(header)}")
    wrong = next((i for i, row in enumerate(rows, 2) if len(row) != len(header)), None)
    if wrong:
        raise ValueError(f"{file.name}: row {wrong} has not {len(header)} columns, as the header has")
    own = header.index(target)
    if len(header) < 2:
        raise ValueError(f"{file.name} has no column beside {target!r}")
    empty = next((i for i, row in enumerate(rows, 2) if not row[own].strip()), None)
    if empty:
        raise ValueError(f"{file.name}: {target!r} is empty in row {empty}; leave such rows out")
    columns = [_numbers([row[i] for row in rows], header[i], file) for i in range(len(header)) if i != own]
    words = np.array([row[own] for row in rows])
    try:
        return np.stack(columns, axis=1), words.astype(np.float64)
    except ValueError:
        return np.stack(columns, axis=1), words


def _numbers(words: list[str], name: str, file: Path) -> Floats:
    try:
        return np.array([float(word) if word.strip() else np.nan for word in words])
    except ValueError as error:
        raise ValueError(f"{file.name}: column {name!r} must hold numbers ({error}); encode or drop it") from None
