"""Tables from files: CSV and its relatives, Parquet, Feather and NumPy's formats, plain or compressed, or a pipe."""

import csv
import difflib
import gzip
import io
import os
import re
import sys
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from kernelcg.tables.notation import with_numbers

DELIMITERS = ",;\t|"

SAMPLE = 64 * 1024
"""Bytes of a text file from which its delimiter and its decimal sign are told."""

ENCODINGS = ("utf-8-sig", "cp1252", "latin-1")
"""Encodings that are tried in turn; the last one can read everything."""

GZIP = b"\x1f\x8b"

PACKED = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")
"""What spreadsheets and zip archives begin with."""

MEMORY_PER_BYTE = 8
"""Bytes of memory that reading takes for each byte of a text file: 7 were measured for a million rows of numbers."""

DECIMALS = {sign: re.compile(rf"[-+]?\d+[{sign}]\d+") for sign in ",."}
"""Numbers by their decimal sign."""

THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}([,.]\d{3})+")
"""Numbers whose signs may divide thousands as well."""

NUMBER = re.compile(r"[-+]?\d+([.,]\d+)?")

UNNAMED = re.compile(r"Unnamed: (\d+)")
"""What pandas calls a column without a name."""

MOST_NAMED = 20
"""Columns that a message names."""


class TableError(ValueError):
    """A file, a column or a value cannot be used; the message says which and what to do."""


@dataclass(frozen=True, eq=False)
class Table:
    """A table as it was read.

    Attributes
    ----------
    frame : its columns
    name : of its source
    notes : what was decided in reading it
    written : columns of numbers that are not written plainly, such as "10 %", as they are written
    """

    frame: pd.DataFrame
    name: str
    notes: tuple[str, ...] = ()
    written: Mapping[str, pd.Series] = field(default_factory=dict)

    def with_words(self, categories: Iterable[str]) -> pd.DataFrame:
        """Return the columns, those of these names as words: a category of "10 %" is no number."""
        return self.frame.assign(**{name: self.written[name] for name in categories if name in self.written})


def memory_to_read(path: str | os.PathLike[str]) -> int | None:
    """Return about how many bytes of memory reading a file takes; None where the size says nothing."""
    file = Path(path)
    if os.fspath(path) == "-" or not file.is_file():
        return None
    compressed = 5 if file.suffix == ".gz" else 1
    return file.stat().st_size * compressed * (1 if _kind(file) in (".npy", ".npz") else MEMORY_PER_BYTE)


def read_table(path: str | os.PathLike[str], *, delimiter: str | None = None, encoding: str | None = None) -> Table:
    """Return the table in a file; ``-`` reads CSV from the standard input.

    CSV and other delimited text (delimiter, encoding and decimal comma are told from the text unless given), Parquet,
    Feather, ``.npy`` (columns x0, x1, …) and ``.npz`` (one array a column, or a matrix that gives several); text and
    NumPy files may be compressed by gzip.

    Parameters
    ----------
    path : the file, or "-"
    delimiter : of a text file; None means that it is told from the text
    encoding : of a text file; None means UTF-8 or, if it is not that, Western European

    Raises
    ------
    TableError : if there is no such file, or no table can be made of it

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import pandas
    >>> from kernelcg.tables import read_table
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pandas.DataFrame({"area": [50, 80], "price": [100, 150]}).to_csv(Path(folder) / "houses.csv", index=False)
    ...     table = read_table(Path(folder) / "houses.csv")
    >>> table.frame.shape
    (2, 2)
    """
    name = os.fspath(path)
    if name == "-":
        return _from_text(sys.stdin.buffer.read(), "standard input", delimiter, encoding)
    file = Path(path)
    if not file.exists():
        raise TableError(f"there is no file {name}")
    if file.is_dir():
        raise TableError(f"{name} is a directory; name one file in it")
    kind = _kind(file)
    try:
        if kind in (".parquet", ".pq", ".feather", ".arrow"):
            read = pd.read_feather if kind in (".feather", ".arrow") else pd.read_parquet
            return _checked(read(file), file.name)
        content = file.read_bytes()
        content = gzip.decompress(content) if content[:2] == GZIP else content
        if kind in (".npy", ".npz"):
            return _checked(_from_numpy(content, file.name), file.name)
    except (OSError, EOFError, ValueError, zlib.error, zipfile.BadZipFile) as error:
        if isinstance(error, TableError):
            raise
        raise TableError(f"{name} cannot be read: {_reason(error)}") from None
    return _from_text(content, file.name, delimiter, encoding)


def _kind(file: Path) -> str:
    """Return the ending that tells the format, without that of a compressed file."""
    return Path(file.stem).suffix.lower() if file.suffix == ".gz" else file.suffix.lower()


def _reason(error: Exception) -> str:
    if isinstance(error, PermissionError):
        return "you have no permission to read it"
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _from_text(content: bytes, name: str, delimiter: str | None, encoding: str | None) -> Table:
    if content.startswith(PACKED):
        raise TableError(f"{name} is a spreadsheet or an archive: save its table as CSV, or unpack it")
    text, used = _decoded(content, name, encoding)
    if not text.strip():
        raise TableError(f"{name} is empty")
    if "\x00" in text[:SAMPLE]:
        raise TableError(
            f"{name} is not text, or in an encoding that must be named, such as --encoding utf-16-le; a binary table "
            "needs the ending of its format (.parquet, .feather, .npy, .npz)"
        )
    try:
        sep = delimiter or _delimiter(text[:SAMPLE])
        _check_header(text, sep, name)
        decimal = _decimal(text[:SAMPLE], sep)
    except csv.Error as error:
        raise TableError(
            f"{name} cannot be read as a table: {_reason(error)}; is a quotation mark not closed?"
        ) from None
    try:
        frame = pd.read_csv(io.StringIO(text), sep=sep, decimal=decimal, skipinitialspace=True, low_memory=False)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, OverflowError) as error:
        raise TableError(f"{name} cannot be read as a table with the delimiter {sep!r}: {_reason(error)}") from None
    notes = [] if used == ENCODINGS[0] or encoding else [f"not UTF-8, read as {used}"]
    notes += [f"delimiter {sep!r}"] if sep != "," and not delimiter else []
    notes += ["decimal comma"] if decimal == "," else []
    return _checked(frame, name, tuple(notes), decimal=decimal)


def _decoded(content: bytes, name: str, encoding: str | None) -> tuple[str, str]:
    """Return the text and the encoding by which it was read."""
    if content[:2] in (b"\xff\xfe", b"\xfe\xff") and encoding is None:
        encoding = "utf-16"
    for one in (encoding,) if encoding else ENCODINGS:
        try:
            return content.decode(one), one
        except UnicodeDecodeError:
            continue
        except LookupError:
            raise TableError(f"there is no encoding {one!r}") from None
    raise TableError(f"{name} is not encoded in {encoding}")


def _delimiter(sample: str) -> str:
    """Return the delimiter that divides the first lines into the same number of cells, the more the better."""
    lines = sample.splitlines()[:50]

    def score(sep: str) -> tuple[float, int]:
        counts = [len(row) for row in csv.reader(lines, delimiter=sep) if row]
        width, agreeing = Counter(counts).most_common(1)[0]
        return (agreeing / len(counts) if width > 1 else 0.0, width)

    return max(DELIMITERS, key=score)


def _decimal(sample: str, sep: str) -> str:
    """Return the decimal sign of most numbers; "1,234" alone is 1.234 between semicolons, and 1234 elsewhere."""
    if sep == ",":
        return "."
    rows = csv.reader(sample.splitlines()[1:50], delimiter=sep)
    cells = [cell.strip() for row in rows for cell in row]
    numbers = [(sign, cell) for cell in cells for sign, written in DECIMALS.items() if written.fullmatch(cell)]
    sure = Counter(sign for sign, cell in numbers if not THOUSANDS.fullmatch(cell))
    if sure:
        return max(",.", key=sure.__getitem__)
    return "," if sep == ";" and any(sign == "," for sign, _ in numbers) else "."


def _check_header(text: str, sep: str, name: str) -> None:
    """Raise if columns have the same name, or if the first row has more cells than there are names."""
    rows = csv.reader(io.StringIO(text), delimiter=sep)
    header, first = next(rows, []), next(rows, [])
    _refuse_repeated_names([_proper(cell) for cell in header], name)
    if len(first) > len(header):
        raise TableError(f"{name}: its rows have more cells than its header; is {sep!r} the delimiter?")


def _refuse_repeated_names(names: Sequence[str], name: str) -> None:
    repeated = [one for one, count in Counter(names).items() if count > 1 and one]
    if repeated:
        raise TableError(
            f"{name} has several columns named {', '.join(map(repr, repeated))}; give each its own name"
            f"{_headless(names)}"
        )


def no_column(name: str, columns: Iterable[str]) -> TableError:
    """Return the error that there is no column of this name: it says which one may be meant, and which there are."""
    names = list(columns)
    close = [one for one in names if one.lower() == name.lower()] or difflib.get_close_matches(name, names, 1)
    meant = f"did you mean {close[0]!r}? The" if close else "the"
    rest = f" and {len(names) - MOST_NAMED} others" if len(names) > MOST_NAMED else ""
    known = ", ".join(map(repr, names[:MOST_NAMED])) + rest
    return TableError(f"there is no column {name!r}; {meant} columns are {known}{_headless(names)}")


def _headless(names: Sequence[str]) -> str:
    """Say that there may be no header, if all names are numbers."""
    numbers = names and all(NUMBER.fullmatch(one) for one in names)
    return " (if these are values, the file has no header: add a line with the names of the columns)" if numbers else ""


def _from_numpy(content: bytes, name: str) -> pd.DataFrame:
    """Return the columns of NumPy's files; objects in them are refused, since reading them could run code."""
    found: Any = np.load(io.BytesIO(content), allow_pickle=False)
    if isinstance(found, np.ndarray):
        if found.dtype.names:
            return pd.DataFrame({field: found[field] for field in found.dtype.names})
        return pd.DataFrame(_columns(found, "x", name))
    columns: dict[str, Any] = {}
    for key in found.files:
        columns.update(_columns(found[key], key, name, alone=key))
    if len({len(values) for values in columns.values()}) > 1:
        sizes = ", ".join(f"{key} {len(values)}" for key, values in columns.items())
        raise TableError(f"the arrays in {name} have different numbers of rows: {sizes}")
    return pd.DataFrame(columns)


def _columns(values: Any, prefix: str, name: str, alone: str | None = None) -> dict[str, Any]:
    if values.ndim == 1:
        return {alone or f"{prefix}0": values}
    if values.ndim != 2:
        raise TableError(f"{name} holds an array of {values.ndim} dimensions; a table has two")
    if alone and values.shape[1] == 1:
        return {alone: values[:, 0]}
    return {f"{prefix}{i}": values[:, i] for i in range(values.shape[1])}


def _checked(frame: pd.DataFrame, name: str, notes: tuple[str, ...] = (), *, decimal: str = ".") -> Table:
    """Return a table with proper names, and its words that are numbers as numbers."""
    labels = frame.index
    is_column = labels.names != [None] or isinstance(labels, pd.DatetimeIndex)
    frame = frame.reset_index(drop=not is_column)
    frame.columns = [_proper(str(column)) for column in frame.columns]
    if not len(frame.columns):
        raise TableError(f"{name} has no columns")
    if not len(frame):
        raise TableError(f"{name} has a header but no rows")
    _refuse_repeated_names(list(frame.columns), name)
    read = {column: with_numbers(frame[column], decimal) for column in frame.columns}
    notes += tuple(f"{column!r} is read as numbers: {how}" for column, (_, how) in read.items() if how)
    written = {column: frame[column] for column, (_, how) in read.items() if how}
    return Table(frame.assign(**{column: read[column][0] for column in written}), name, notes, written)


def _proper(name: str) -> str:
    """Return the name of a column in one line, without characters that cannot be seen."""
    unnamed = UNNAMED.fullmatch(name)
    words = f"column {int(unnamed[1]) + 1}" if unnamed else " ".join(name.split())
    return "".join(letter for letter in words if letter.isprintable())
