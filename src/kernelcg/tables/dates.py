"""How people write dates."""

import itertools

import numpy as np
import pandas as pd
from numpy.typing import NDArray

ISO = ""
"""Stands for dates such as 2024-05-31 or 2024-05-31 12:00, with a time zone or without."""

DAYS = (
    "%d.%m.%Y",
    "%d.%m.%y",
    "%d/%m/%Y",
    "%m/%d/%Y",
    "%d/%m/%y",
    "%m/%d/%y",
    "%d-%m-%Y",
    "%m-%d-%Y",
    "%Y/%m/%d",
    "%Y.%m.%d",
    "%d %b %Y",
    "%d-%b-%Y",
    "%d %B %Y",
    "%b %d %Y",
    "%b %d, %Y",
    "%B %d, %Y",
    "%Y-%m",
)
"""Days as strptime has them; of two that both suit, neither is chosen."""

TIMES = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")

LOOKED_AT = 100
"""Cells of a column that are tried before all of them are."""

MOSTLY = 0.5
"""Share of the cells of a column from which on the others are taken for mistakes."""


def ways(cells: pd.Series) -> list[str]:
    """Return the ways in which most of some cells may be read as dates: formats, `ISO` among them; mostly one or none.

    There are several where days and months cannot be told apart.
    """
    words = cells.astype(str).str.strip()
    first = words.iloc[:: max(len(words) // LOOKED_AT, 1)]
    formats = [ISO, *map("".join, itertools.product(DAYS, TIMES))]
    promising = [one for one in formats if _read(first, one).notna().mean() >= MOSTLY / 2]
    readings = {one: _read(words, one) for one in promising}
    best = max((found.notna().mean() for found in readings.values()), default=0.0)
    kept = dict[str, pd.Series]()
    for one, found in readings.items():
        if found.notna().mean() == best > MOSTLY and not any(found.equals(other) for other in kept.values()):
            kept[one] = found
    return list(kept)


def times_of(cells: pd.Series, way: str) -> pd.Series:
    """Return cells as times in UTC: those that can be read in a way, others in ISO's notation, and NaT."""
    if pd.api.types.is_datetime64_any_dtype(cells):
        return pd.to_datetime(cells, utc=True)
    words = cells.astype(str).str.strip().where(cells.notna())
    found = _read(words, way)
    return found if way == ISO else found.fillna(_read(words, ISO))


def times(days: NDArray[np.float64]) -> NDArray[np.datetime64]:
    """Return the times that are so many days after the beginning of 1970, to the second."""
    return np.datetime64("1970-01-01", "s") + np.round(86_400 * days).astype("timedelta64[s]")


def example(way: str) -> str:
    """Return a date written in a way."""
    return pd.Timestamp("2024-05-31 18:30").strftime(way or "%Y-%m-%d")


def _read(words: pd.Series, way: str) -> pd.Series:
    if way != ISO:
        return pd.to_datetime(words, format=way, errors="coerce", utc=True)
    suits = words.str.match(r"^\d{4}-\d{1,2}-\d{1,2}(?!\d)").fillna(False).astype(bool)
    return pd.to_datetime(words.where(suits), format="ISO8601", errors="coerce", utc=True)
