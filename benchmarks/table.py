"""A table that is printed row by row and kept as CSV."""

import csv
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


class Table:
    """Collects rows with the same columns; prints each as it comes."""

    def __init__(self) -> None:
        self.rows: list[dict[str, object]] = []

    def add(self, row: dict[str, object]) -> None:
        if not self.rows:
            print(" | ".join(row))
        self.rows.append(row)
        print(" | ".join(str(value).rjust(len(name)) for name, value in row.items()), flush=True)

    def save(self, name: str) -> None:
        RESULTS.mkdir(exist_ok=True)
        with (RESULTS / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, self.rows[0])
            writer.writeheader()
            writer.writerows(self.rows)
        print(f"wrote {RESULTS / name}")
