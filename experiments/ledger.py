"""A table of results that survives interruptions: every row is on disk as soon as it is known."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

Row = dict[str, str]


class Ledger:
    """Rows of a CSV file, found again by the columns of ``key``."""

    def __init__(self, file: Path, columns: Sequence[str], key: Sequence[str]):
        self.file, self.columns, self.key = file, list(columns), list(key)
        self.rows: dict[tuple[str, ...], Row] = {}
        if file.exists():
            self._read()

    def _read(self) -> None:
        """Take in the file; the last line, if an interruption cut it short, is dropped from it."""
        text = self.file.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        reader = csv.DictReader(whole.splitlines())
        if list(reader.fieldnames or ()) != self.columns:
            raise ValueError(f"{self.file} has the columns {reader.fieldnames}, not {self.columns}; move it away")
        for row in reader:
            self.rows[self._key(row)] = row
        if whole != text:
            self.write()

    def _key(self, row: Row) -> tuple[str, ...]:
        return tuple(row[column] for column in self.key)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows.values())

    def find(self, **key: object) -> Row | None:
        """Return the row with these values of the key columns."""
        return self.rows.get(tuple(str(key[column]) for column in self.key))

    def put(self, values: dict[str, object]) -> None:
        """Add a row, or replace the one with the same key; it is on disk when this returns."""
        row = {column: str(values[column]) for column in self.columns}
        known = self._key(row) in self.rows
        self.rows[self._key(row)] = row
        if known or not self.file.exists():
            self.write()
        else:
            with self.file.open("a", newline="", encoding="utf-8") as stream:
                csv.DictWriter(stream, self.columns, lineterminator="\n").writerow(row)

    def discard(self, **values: str) -> None:
        """Remove the rows that have these values."""
        kept = {key: row for key, row in self.rows.items() if any(row[name] != value for name, value in values.items())}
        if len(kept) < len(self.rows):
            self.rows = kept
            self.write()

    def write(self) -> None:
        """Write the whole file anew, complete or not at all."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        partial = self.file.with_name(self.file.name + ".partial")
        with partial.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, self.columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows.values())
        partial.replace(self.file)

    def sort(self, order: dict[str, Sequence[str]]) -> None:
        """Put the rows in the order that these columns' values are listed in, unlisted ones last, and write them."""

        def place(row: Row) -> list[int]:
            return [values.index(row[column]) if row[column] in values else len(values) for column, values in ranks]

        ranks = [(column, list(values)) for column, values in order.items()]
        self.rows = dict(sorted(self.rows.items(), key=lambda item: place(item[1])))
        self.write()
