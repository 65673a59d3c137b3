"""Set our counts of figure 1 beside the counts that the authors stored, cell by cell.

Counts are made as the authors made theirs: steps − 1 for CG and PCG, steps for SKI, outer steps plus inner ones − 1
for the regularised recipe and for SKI_inner. A cell is off if it differs by more than 30 % and by more than one step.
Writes results/figure1_against_stored.csv. The stored file (columns dataset, preconditioner, log10_lengthscale,
log10_noise, pcg_iterations, recomputed_iterations; .csv or .csv.gz) is not part of this project.
"""

import argparse
import csv
import gzip
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from protocol import CAPS

HERE = Path(__file__).parent
NAMES = {
    "none": "cg",
    "BlockJacobi": "block_jacobi",
    "PITC": "pitc",
    "FITC": "fitc",
    "Nystrom": "nystrom",
    "Spectral": "spectral",
    "RandomizedSVD": "randomized_svd",
    "Regularized": "regularized",
    "SKI": "ski",
    "SKI_inner": "ski",
}
COUNTS_INNER = ("Regularized", "SKI_inner")
STEPS_THEMSELVES = (*COUNTS_INNER, "SKI")
STORED_CAP = 10_000
"""The authors' caps: 10,000 or 15,000 steps."""

TOLERANCE = 1.3
COLUMNS = (
    "dataset",
    "preconditioner",
    "log10_lengthscale",
    "log10_noise",
    "ours",
    "stored",
    "recomputed",
    "ratio",
    "ratio_to_recomputed",
    "verdict",
)
AGREES, RECOMPUTED = "agrees", "agrees with the recomputation, not with the stored count"
BOTH_CAPPED, STORED_CAPPED = "both beyond the cap", "stored run capped"
OUTER_ONLY = "not comparable: our cap counts inner steps, theirs did not"
OURS_CAPPED, OFF = "OFF: ours capped", "OFF"

Row = Mapping[str, str]


def rows_of(file: Path) -> list[Row]:
    """Return the rows of a CSV file, packed or not."""
    content = file.read_bytes()
    text = (gzip.decompress(content) if file.suffix == ".gz" else content).decode("utf-8")
    return list(csv.DictReader(text.splitlines()))


def paper_count(row: Row, preconditioner: str) -> int | None:
    """Return the count as the authors would have made it; None if our run was capped.

    Each of our inner solves, one per step, has one product more than it has steps, its check; theirs count one less.
    """
    if row["converged"] != "1":
        return None
    steps = int(row["iterations"])
    if preconditioner in COUNTS_INNER:
        return steps + max(int(row["inner_products"]) - 2 * steps, 0)
    return steps if preconditioner in STEPS_THEMSELVES else steps - 1


def is_near(ours: int, other: float) -> bool:
    """Say whether two counts differ by at most 30 % or one step."""
    return abs(ours - other) <= 1 or max(ours, 1) / TOLERANCE <= other <= max(ours, 1) * TOLERANCE


def verdict(ours: int | None, stored: float, recomputed: float | None, cap: int, outer_only: bool = False) -> str:
    """Say how our count compares; ``cap`` is ours, in products, and ``outer_only`` that theirs left inner steps out."""
    if ours is None and outer_only:
        return OUTER_ONLY
    if ours is None:
        return BOTH_CAPPED if stored * TOLERANCE >= cap else OURS_CAPPED
    if is_near(ours, stored):
        return AGREES
    if recomputed is not None and is_near(ours, recomputed):
        return RECOMPUTED
    return STORED_CAPPED if stored >= STORED_CAP else OFF


def compare(results: Sequence[Row], stored: Sequence[Row]) -> list[dict[str, object]]:
    """Return one row for every stored cell that we have run."""
    key = ("dataset", "method", "log10_lengthscale", "log10_noise")
    ours = {tuple(row[column] for column in key): row for row in results}
    table = []
    for cell in stored:
        name, place = cell["preconditioner"], (cell["log10_lengthscale"], cell["log10_noise"])
        row = ours.get((cell["dataset"], NAMES.get(name, name), *place))
        if row is None:
            continue
        count, wanted = paper_count(row, name), float(cell["pcg_iterations"])
        again = float(cell["recomputed_iterations"]) if cell["recomputed_iterations"] else None
        found = (
            cell["dataset"],
            name,
            *place,
            "" if count is None else count,
            f"{wanted:g}",
            "" if again is None else f"{again:g}",
            quotient(count, wanted),
            quotient(count, again),
            verdict(count, wanted, again, CAPS[cell["dataset"]], outer_only=name == "SKI"),
        )
        table.append(dict(zip(COLUMNS, found, strict=True)))
    return table


def quotient(ours: int | None, other: float | None) -> str:
    """Return our count over another, empty if there is none."""
    return "" if ours is None or not other else f"{ours / other:.3f}"


def report(table: Sequence[Mapping[str, object]]) -> str:
    """Return the number of cells of every verdict by data set and recipe, then the cells that are off."""
    kinds = (AGREES, RECOMPUTED, BOTH_CAPPED, STORED_CAPPED, OUTER_ONLY, OURS_CAPPED, OFF)
    counts = Counter((row["dataset"], row["preconditioner"], row["verdict"]) for row in table)
    groups = dict.fromkeys((row["dataset"], row["preconditioner"]) for row in table)
    titles = ("agree", "recomputed", "both capped", "stored capped", "incomparable", "ours capped", "off")
    lines = [f"{'':<26}" + "".join(f"{title:>15}" for title in titles)]
    for dataset, name in groups:
        numbers = [counts[dataset, name, kind] or "" for kind in kinds]
        lines.append(f"{dataset:<12}{name:<14}" + "".join(f"{number:>15}" for number in numbers))
    for row in table:
        if str(row["verdict"]).startswith(OFF):
            lines.append(
                f"{row['verdict']}: {row['dataset']} {row['preconditioner']} l=1e{row['log10_lengthscale']} "
                f"λ=1e{row['log10_noise']}: ours {row['ours'] or 'capped'}, stored {row['stored']}"
                + (f", recomputed {row['recomputed']}" if row["recomputed"] else "")
            )
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> None:
    """Compare, write the table and print a summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stored", type=Path, required=True, help="the authors' counts")
    parser.add_argument("--results", type=Path, default=HERE / "results" / "figure1.csv", help="ours")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "figure1_against_stored.csv")
    options = parser.parse_args(words)
    table = compare(rows_of(options.results), rows_of(options.stored))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)
    print(report(table))
    print(f"{len(table)} cells in {options.out}")


if __name__ == "__main__":
    main()
