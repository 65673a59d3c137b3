"""How people write numbers: thousands separators, decimal commas, currencies, per cent."""

import re

import numpy as np
import pandas as pd

SIGNS = r"(?:[$€£¥₹%]|EUR|USD|GBP|CHF|JPY)"
"""What may stand before or behind a number, once, if it is the same in all cells of a column."""

GAP = r"[ '’\u00a0\u202f]"
"""What divides thousands whatever the decimal sign is: a space, also one that does not break, or an apostrophe."""

WORDS = {".": "decimal point", ",": "decimal comma"}

MOSTLY = 0.5
"""Share of the cells of a column that must be numbers in one way of writing for that to be the way."""

LOOKED_AT = 1000
"""Cells of a column that are tried before all of them are."""


def _pattern(point: str, comma: str) -> str:
    """Return a pattern of numbers with ``point`` as decimal sign, whose thousands ``comma`` may divide."""
    whole = rf"(?:[1-9]\d{{0,2}}(?:(?:{comma}|{GAP})\d{{3}})+|\d+)"
    number = rf"(?P<number>(?:{whole}(?:{point}\d*)?|{point}\d+)(?:[eE][-+]?\d+)?)"
    return rf"^(?P<minus>[-+\u2212]?)\s*(?P<before>{SIGNS}?)\s*{number}\s*(?P<behind>{SIGNS}?)$"


PATTERNS = {".": _pattern(r"\.", ","), ",": _pattern(",", r"\.")}
"""Patterns of numbers by their decimal sign."""


def with_numbers(column: pd.Series, decimal: str = ".") -> tuple[pd.Series, str]:
    """Return a column with the numbers among its words as numbers, and in words how they are written.

    A column is left as it is, and nothing is said, if its words are plain numbers or mostly no numbers. Cells that
    cannot be read stay words, so that they can be named where numbers are needed.

    Parameters
    ----------
    column : of a table, as it was read
    decimal : the decimal sign of the rest of the file, by which "1.234" is understood
    """
    if not (pd.api.types.is_object_dtype(column) or pd.api.types.is_string_dtype(column)):
        return column, ""
    cells = column[column.notna()].astype(str).str.strip()
    if len(cells) > LOOKED_AT and _way(cells.iloc[:: len(cells) // LOOKED_AT], decimal)[2].empty:
        return column, ""
    sign, mark, numbers = _way(cells, decimal)
    grouped = cells[numbers.index].str.contains(f"[{'.,'.replace(sign, '')}]|\\d{GAP}\\d", regex=True).any()
    words = [WORDS[sign]] if sign != decimal else []
    words += ["thousands separators"] if grouped else []
    words += [f"without the sign {mark}"] if mark else []
    is_plain = decimal == sign == "." and not words
    if is_plain or not len(numbers):
        return column, ""
    changed = column.astype(object)
    changed[numbers.index] = numbers
    whole = len(numbers) == len(cells)
    return changed.astype(np.float64) if whole else changed, ", ".join(words)


def _way(cells: pd.Series, decimal: str) -> tuple[str, str, pd.Series]:
    """Return the decimal sign by which most cells can be read, the sign beside the numbers, and the numbers.

    There are no numbers if at most `MOSTLY` of the cells can be read.
    """
    other = "," if decimal == "." else "."
    found = [(sign, *_read(cells, sign)) for sign in (decimal, other)]
    best = max(found, key=lambda one: len(one[2]))  # of equals the first
    return best if len(best[2]) > MOSTLY * len(cells) else (decimal, "", best[2].iloc[:0])


def _read(cells: pd.Series, decimal: str) -> tuple[str, pd.Series]:
    """Return the sign that the numbers among some cells carry, and the numbers; none if they carry different signs."""
    parts = cells.str.extract(PATTERNS[decimal])
    read = parts[parts["number"].notna()].fillna("")
    marks = sorted(set(read["before"] + read["behind"]) - {""})
    if len(marks) > 1:
        return "", pd.Series(dtype=np.float64)
    digits = read["number"].str.replace(f"{GAP}|{re.escape(',' if decimal == '.' else '.')}", "", regex=True)
    numbers = digits.str.replace(decimal, ".", regex=False).astype(np.float64)
    return "".join(marks), numbers * np.where(read["minus"].isin(["-", "\u2212"]), -1.0, 1.0)
