"""X and y as users hand them in: checked and dense; what cannot be used is named with its column and a remedy."""

import datetime
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.utils.validation import _get_feature_names, validate_data

from kernelcg.arguments import memory_bytes
from kernelcg.backends.memory import default_budget
from kernelcg.errors import MemoryBudgetExceeded
from kernelcg.estimators.data import on_host
from kernelcg.planning.plan import in_bytes

Floats = NDArray[np.float64]

DENSE_COPIES = 2
"""Copies of X that exist at once while a sparse one becomes a tensor."""

DATES = (datetime.date, datetime.timedelta, np.datetime64, np.timedelta64)

ENCODE = "encode it by numbers, for example by sklearn.preprocessing.OneHotEncoder, or leave it out"
AS_NUMBER = "turn it into a number, for example days since the first one"
NUMBERS = "every entry must be a number"
IMPUTE = "remove or impute such rows, for example by sklearn.impute.SimpleImputer"


def checked_points(estimator: Any, X: Any, *, reset: bool = False) -> Floats:
    """Return points that an estimator is asked about, as a dense float64 matrix within its ``memory``.

    They must have the features of the training data, unless ``reset`` says that there are none yet.
    """
    X = on_host(X)
    with _explained(X, None):
        points = validate_data(estimator, X, dtype=np.float64, accept_sparse="csr", reset=reset)
    return _dense(points, estimator.memory)


def checked_data(
    estimator: Any,
    X: Any,
    y: Any,
    *,
    multi_output: bool = False,
    y_numeric: bool = True,
    reset: bool = True,
) -> tuple[Floats, Any]:
    """Return training data: X as a dense float64 matrix with finite entries, and y as scikit-learn checks it.

    Raises
    ------
    TypeError, ValueError : naming the column and the first row with a word, a date, a missing or an infinite value
    MemoryBudgetExceeded : if X is sparse and would not fit its ``memory`` as a dense matrix
    """
    X, y = on_host(X), on_host(y)
    with _explained(X, y if y_numeric else None):
        X, y = validate_data(
            estimator,
            X,
            y,
            dtype=np.float64,
            accept_sparse="csr",
            multi_output=multi_output,
            y_numeric=y_numeric,
            reset=reset,
        )
        if y_numeric:
            y = np.asarray(y, dtype=np.float64)  # scikit-learn leaves objects among several outputs as they are
            if not np.isfinite(y).all():
                raise ValueError("Input y contains NaN or infinity.")
    return _dense(X, estimator.memory), y


def _dense(X: Any, memory: int | str | None) -> Floats:
    """Return X as a dense matrix; refuse a sparse one that would not fit."""
    if not issparse(X):
        return X
    needed, budget = DENSE_COPIES * 8 * math.prod(X.shape), memory_bytes(memory) or default_budget()
    if needed > budget:
        raise MemoryBudgetExceeded(
            f"X is sparse; as the dense matrix that kernels need, {X.shape[0]} rows and {X.shape[1]} columns take "
            f"{in_bytes(needed)}, but the memory is {in_bytes(budget)}; raise memory, or reduce the columns, for "
            "example by sklearn.decomposition.TruncatedSVD"
        )
    return X.toarray()


# what is wrong with them


@contextmanager
def _explained(X: Any, y: Any) -> Iterator[None]:
    """Say which column is at fault, and what to do about it, where a check fails; refuse dates, which NumPy converts.

    The words of the check follow in parentheses.
    """
    if (dates := _dates(X)) is not None:
        raise TypeError(dates)
    try:
        yield
    except (TypeError, ValueError, OverflowError) as error:
        found = _fault(X, "X") or (None if y is None else _fault(y, "y"))
        if found is None:
            raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{found} ({str(error).splitlines()[0]:.100})") from error


def _dates(X: Any) -> str | None:
    table = _table(X)
    if table is None or table.dtype.kind not in "mM" or table.size == 0:
        return None
    return _sentence("X", _column_names(X), (0, 0), *_told(table[0, 0]))


def _fault(data: Any, name: str) -> str | None:
    """Return what is wrong with the first entry that is no finite number, if there is one."""
    table = _table(data)
    if table is None:
        return None
    names = _column_names(data)
    if table.dtype.kind == "f":
        wrong = np.argwhere(~np.isfinite(table))
        return _sentence(name, names, tuple(wrong[0]), *_told(table[tuple(wrong[0])])) if len(wrong) else None
    if table.dtype.kind not in "OUS":
        return None
    for column, values in enumerate(table.T):
        for row, value in enumerate(values):
            if told := _told(value):
                return _sentence(name, names, (row, column), *told)
    return None


def _told(value: Any) -> tuple[str, str] | tuple[()]:
    """Return a value that is no finite number in words, and the remedy; nothing for a finite number."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return "NaN", IMPUTE
    if isinstance(value, DATES):
        return f"the date or time {value}", AS_NUMBER
    try:
        number = float(value)
    except OverflowError:
        return f"an integer of {len(str(value))} digits", "use other units"
    except (TypeError, ValueError):
        return (f"{str(value)!r:.60}", ENCODE) if isinstance(value, str) else (f"{value!r:.60}", NUMBERS)
    if math.isnan(number):
        return "NaN", IMPUTE
    return () if math.isfinite(number) else ("infinity" if number > 0 else "-infinity", IMPUTE)


def _sentence(name: str, names: list[str], place: tuple[int, ...], shown: str, remedy: str) -> str:
    if name == "y":
        remedy = "remove such rows" if remedy is IMPUTE else "y must hold numbers; for labels there is GPClassifier"
        return f"y holds {shown} in row {place[0]}; {remedy}"
    column = names[place[1]] if names else str(place[1])
    return f"column {column} of X holds {shown} in row {place[0]}; {remedy}"


def _table(data: Any) -> NDArray[Any] | None:
    """Return data as an array with two dimensions, or None where they have no such form."""
    if issparse(data) or isinstance(data, str | dict) or data is None:
        return None
    try:
        table = np.asarray(data)
    except (TypeError, ValueError, RuntimeError):
        return None
    if table.ndim == 1 and table.dtype.kind != "V":
        table = table[:, None]
    return table if table.ndim == 2 else None


def _column_names(data: Any) -> list[str]:
    """Return the names of the columns of a table that has any."""
    try:
        names = _get_feature_names(data)
    except TypeError:
        return []
    return [] if names is None else [repr(str(name)) for name in names]
