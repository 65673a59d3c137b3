"""Columns of a table as numbers: one-hot categories, dates, missing values; learned once, applied to every table."""

import re
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kernelcg.estimators.data import LARGEST
from kernelcg.tables import dates
from kernelcg.tables.reading import TableError, no_column

Floats = NDArray[np.float64]

MOST_LEVELS = 50
"""Categories that a column of words may have."""

MOSTLY = 0.5
"""Share of numbers among the values of a column from which words in it are taken for mistakes."""

MISSING_LEVEL = "(missing)"

UNNAMED = re.compile(r"column \d+")
"""The names of columns that have none."""

DAY = 86_400.0
YEAR = 365.2425


class Kind(StrEnum):
    """How a column becomes numbers."""

    NUMBER = "number"
    CATEGORY = "category"
    DATE = "date"
    LEFT_OUT = "left out"


@dataclass(frozen=True)
class Column:
    """How one column becomes numbers.

    Attributes
    ----------
    fill : the number that stands for a missing value: the median of the rows of the fit
    flagged : whether a further feature says that the value is missing
    levels : the categories, one feature each; of two the second alone
    season : whether sine and cosine of the day of the year are added to a date
    written : how dates are written, as strptime has it; empty for ISO's notation
    note : why the column was left out
    missing : share of missing values in the rows of the fit
    """

    name: str
    kind: Kind
    fill: float = 0.0
    flagged: bool = False
    levels: tuple[str, ...] = ()
    season: bool = False
    note: str = ""
    missing: float = 0.0
    written: str = dates.ISO

    def feature_names(self) -> list[str]:
        """Return the names of the features that the column gives."""
        match self.kind:
            case Kind.CATEGORY:
                return [f"{self.name} = {level}" for level in self._shown_levels()]
            case Kind.LEFT_OUT:
                return []
        names = [self.name]
        names += [f"{self.name} (sine of the year)", f"{self.name} (cosine of the year)"] if self.season else []
        return names + ([f"{self.name} is missing"] if self.flagged else [])

    def features(self, values: pd.Series) -> Floats:
        """Return the (n, features) numbers of this column."""
        match self.kind:
            case Kind.LEFT_OUT:
                return np.empty((len(values), 0))
            case Kind.CATEGORY:
                words = _words(values)
                return np.stack([words == level for level in self._shown_levels()], axis=1).astype(np.float64)
        is_date = self.kind is Kind.DATE
        numbers = _days(values, self.name, self.written) if is_date else _numbers(values, self.name)
        missing = np.isnan(numbers)
        filled = np.where(missing, self.fill, numbers)
        parts = [filled]
        if self.season:
            angle = 2 * np.pi * filled / YEAR
            parts += [np.sin(angle), np.cos(angle)]
        return np.stack([*parts, *([missing.astype(np.float64)] if self.flagged else [])], axis=1)

    def unknown_levels(self, values: pd.Series) -> list[str]:
        """Return the categories of a table that the fit has not seen."""
        if self.kind is not Kind.CATEGORY:
            return []
        return sorted(set(_words(values).tolist()) - set(self.levels))

    def newly_missing(self, values: pd.Series) -> int:
        """Return how many values are missing in a table though none was in the rows of the fit."""
        imputed = self.kind in (Kind.NUMBER, Kind.DATE) and not self.flagged
        return int(values.isna().sum()) if imputed else 0

    def _shown_levels(self) -> tuple[str, ...]:
        return self.levels[1:] if len(self.levels) == 2 else self.levels


@dataclass(frozen=True)
class Encoding:
    """How the columns of a table become the features of a model, in the order of the columns.

    Attributes
    ----------
    columns : of the table, without the target
    """

    columns: tuple[Column, ...]

    @classmethod
    def of(
        cls, frame: pd.DataFrame, *, categorical: tuple[str, ...] = (), left_out: tuple[str, ...] = (), season: bool
    ) -> Self:
        """Return the encoding that suits the rows of a table.

        Parameters
        ----------
        categorical : columns whose numbers are names of categories
        left_out : columns that are not to be used
        season : whether dates also give sine and cosine of the day of the year
        """
        for name in (*categorical, *left_out):
            if name not in frame.columns:
                raise no_column(name, frame.columns)
        columns = [
            Column(name, Kind.LEFT_OUT, note="as asked for")
            if name in left_out
            else _column(frame[name], name, name in categorical, season)
            for name in frame.columns
        ]
        found = cls(tuple(_without_repetitions(frame, columns)))
        if not found.feature_names():
            why = "; ".join(f"{one.name!r}: {one.note}" for one in columns if one.note)
            raise TableError(f"no column can be used to predict the target ({why or 'there is none beside it'})")
        return found

    def feature_names(self) -> list[str]:
        """Return the names of all features."""
        return [name for column in self.columns for name in column.feature_names()]

    def categories(self) -> list[str]:
        """Return the names of the columns that hold words."""
        return [column.name for column in self.columns if column.kind is Kind.CATEGORY]

    def groups(self) -> dict[str, list[int]]:
        """Return for each column in use the numbers of its features."""
        found, start = dict[str, list[int]](), 0
        for column in self.columns:
            count = len(column.feature_names())
            if count:
                found[column.name] = list(range(start, start + count))
            start += count
        return found

    def features(self, frame: pd.DataFrame) -> Floats:
        """Return the (n, d) features of a table.

        Raises
        ------
        TableError : if a column is missing or holds what it must not hold
        """
        used = [column for column in self.columns if column.kind is not Kind.LEFT_OUT]
        missing = [column.name for column in used if column.name not in frame.columns]
        if missing:
            raise TableError(
                f"the table has no column {', '.join(map(repr, missing))}, which the model was fitted with; "
                f"its columns are {', '.join(map(repr, frame.columns))}"
            )
        return np.concatenate([column.features(frame[column.name]) for column in used], axis=1)

    def unseen(self, frame: pd.DataFrame) -> dict[str, list[str]]:
        """Return by column the categories that the fit has not seen: they count as none of the known ones."""
        found = {one.name: one.unknown_levels(frame[one.name]) for one in self.columns if one.name in frame.columns}
        return {name: levels for name, levels in found.items() if levels}

    def newly_missing(self, frame: pd.DataFrame) -> dict[str, int]:
        """Return by column how many values are missing where none was in the fit: they count as its median."""
        found = {one.name: one.newly_missing(frame[one.name]) for one in self.columns if one.name in frame.columns}
        return {name: count for name, count in found.items() if count}

    def to_json(self) -> list[dict[str, Any]]:
        """Return plain values that `from_json` reads."""
        return [{**asdict(column), "levels": list(column.levels)} for column in self.columns]

    @classmethod
    def from_json(cls, described: list[dict[str, Any]]) -> Self:
        """Return the encoding that `to_json` described."""
        return cls(
            tuple(Column(**{**one, "kind": Kind(one["kind"]), "levels": tuple(one["levels"])}) for one in described)
        )


def _column(values: pd.Series, name: str, categorical: bool, season: bool) -> Column:
    missing = float(values.isna().mean())
    if missing == 1:
        return Column(name, Kind.LEFT_OUT, note="it is empty")
    if values.nunique(dropna=False) == 1:
        return Column(name, Kind.LEFT_OUT, note="it is constant")
    if UNNAMED.fullmatch(name) and is_numbering(values):
        return Column(name, Kind.LEFT_OUT, note="it has no name and numbers the rows")
    known, is_category = values.dropna(), categorical or values.dtype == bool
    if not is_category and pd.api.types.is_datetime64_any_dtype(values):
        return _dated(values, name, season, missing, dates.ISO)
    if not is_category and _is_numeric(known, name):
        fill = float(np.nanmedian(_numbers(values, name)))
        return Column(name, Kind.NUMBER, fill, flagged=missing > 0, missing=missing)
    ways = [] if is_category else dates.ways(known)
    if len(ways) > 1:
        note = "its dates may begin with the day or with the month: write them as 2024-05-31"
        return Column(name, Kind.LEFT_OUT, note=note)
    if ways:
        return _dated(values, name, season, missing, ways[0])
    levels = tuple(sorted({str(word) for word in _words(values)}))
    if len(levels) > MOST_LEVELS:
        kind = "every row has another value" if len(levels) == len(values) else f"it has {len(levels)} categories"
        return Column(name, Kind.LEFT_OUT, note=f"{kind}, more than {MOST_LEVELS}")
    return Column(name, Kind.CATEGORY, levels=levels, missing=missing)


def is_numbering(values: pd.Series) -> bool:
    """Say whether a column counts the rows: 0, 1, 2, … or from another whole number on."""
    if len(values) < 3 or not pd.api.types.is_integer_dtype(values) or values.isna().any():
        return False
    return bool((np.diff(values.to_numpy()) == 1).all())


def _dated(values: pd.Series, name: str, season: bool, missing: float, written: str) -> Column:
    fill = float(np.nanmedian(_days(values, name, written)))
    return Column(name, Kind.DATE, fill, missing > 0, season=season, missing=missing, written=written)


def _is_numeric(known: pd.Series, name: str) -> bool:
    """Say whether the values are numbers; raise if most of them are."""
    numbers = pd.to_numeric(known, errors="coerce")
    wrong = numbers.isna().to_numpy()
    if not wrong.any():
        return True
    if wrong.mean() < 1 - MOSTLY:
        at = int(np.flatnonzero(wrong)[0])
        raise TableError(
            f"column {name!r} holds numbers, but {known.iloc[at]!r} in row {int(known.index[at]) + 1}; mend it, leave "
            f"it empty, or say --categorical {name!r} if its numbers are names"
        )
    return False


def _numbers(values: pd.Series, name: str) -> Floats:
    numbers = pd.to_numeric(values, errors="coerce").to_numpy(dtype=np.float64)
    wrong = np.flatnonzero(np.isnan(numbers) & values.notna().to_numpy())
    if len(wrong):
        at, shown = row_of(values, wrong[0])
        raise TableError(f"column {name!r} must hold numbers, but has {shown} in row {at}; mend it or leave it empty")
    large = np.flatnonzero(np.abs(numbers) > LARGEST)
    if len(large):
        at, shown = row_of(values, large[0])
        size = "is infinite" if np.isinf(numbers[large[0]]) else f"holds {shown}, too large to compute with,"
        raise TableError(f"column {name!r} {size} in row {at}; mend it or leave it empty")
    return numbers


def row_of(values: pd.Series, position: int) -> tuple[int, str]:
    """Return the number of a row in its table, from 1 on, and the value there in a form that is shown."""
    value = values.iloc[position]
    return int(values.index[position]) + 1, repr(value.item() if isinstance(value, np.generic) else value)


def _words(values: pd.Series) -> NDArray[Any]:
    return np.array(
        [MISSING_LEVEL if missing else as_word(one) for one, missing in zip(values, values.isna(), strict=True)]
    )


def as_word(value: Any) -> str:
    """Return the name of a category: 2.0 is "2", since whole numbers are read as floats where one is missing."""
    is_whole = isinstance(value, float | np.floating) and value.is_integer()
    return str(int(value)) if is_whole else str(value).strip()


def _days(values: pd.Series, name: str, written: str) -> Floats:
    """Return days since 1970 as numbers, NaN for missing ones."""
    times = dates.times_of(values, written)
    wrong = np.flatnonzero(times.isna().to_numpy() & values.notna().to_numpy())
    if len(wrong):
        at, shown = row_of(values, wrong[0])
        raise TableError(
            f"column {name!r} must hold dates such as {dates.example(written)}, but has {shown} in row {at}; mend it "
            "or leave it empty"
        )
    seconds = (times - pd.Timestamp("1970-01-01", tz="UTC")).dt.total_seconds()
    return seconds.to_numpy(dtype=np.float64) / DAY


def _without_repetitions(frame: pd.DataFrame, columns: list[Column]) -> list[Column]:
    """Return the columns with those left out that repeat an earlier one."""
    seen, kept = dict[bytes, str](), list[Column]()
    for column in columns:
        if column.kind is Kind.LEFT_OUT:
            kept.append(column)
            continue
        content = column.features(frame[column.name]).tobytes()
        first = seen.setdefault(content, column.name)
        repeated = Column(column.name, Kind.LEFT_OUT, note=f"it repeats {first!r}")
        kept.append(column if first == column.name else repeated)
    return kept
