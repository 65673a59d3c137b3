"""What the automatic choice costs beside the best of the paper's eight, cell by cell, from results/figure1.csv.

The eight are charged their products (set-up and inner ones included, build time not); `auto` everything it did, pilot
and build included, as wall-clock time in units of one product with one column on the same machine. The limit is
1.25 × the best of the eight + 15 passes. Writes results/auto_against_the_eight.csv and prints it.
"""

import csv
from pathlib import Path

from protocol import PAPER

RESULTS = Path(__file__).parent / "results"
EIGHT = {method.name for method in PAPER}
Row = dict[str, str]


def cells(rows: list[Row]) -> dict[tuple[str, int, int], dict[str, Row]]:
    """Return the rows of each cell by method."""
    found: dict[tuple[str, int, int], dict[str, Row]] = {}
    for row in rows:
        key = row["dataset"], int(row["log10_lengthscale"]), int(row["log10_noise"])
        found.setdefault(key, {})[row["method"]] = row
    return found


def compared(key: tuple[str, int, int], methods: dict[str, Row]) -> dict[str, object]:
    """Return one line of the table."""
    auto, cg = methods["auto"], methods["cg"]
    solved = {name: row for name, row in methods.items() if name in EIGHT and row["converged"] == "1"}
    eight = {name: int(row["total_products"]) for name, row in solved.items()}
    best = min(eight, key=eight.__getitem__, default="none")
    allowed = 1.25 * eight.get(best, int(cg["cap"])) + 15
    seconds = float(auto["seconds_build"]) + float(auto["seconds_solve"])
    passes = seconds / float(auto["seconds_product"])
    plain = int(cg["iterations"])
    no_gain = all(count >= int(cg["total_products"]) for count in eight.values())
    return {
        "dataset": key[0],
        "log10_lengthscale": key[1],
        "log10_noise": key[2],
        "cg": f"{plain}{'' if cg['converged'] == '1' else '+'}",
        "best_of_eight": best,
        "its_products": eight.get(best, ""),
        "auto_iterations": auto["iterations"],
        "auto_products": auto["products"],
        "auto_passes": round(passes, 1),
        "limit": round(allowed, 1),
        "within": "NOT CONVERGED"
        if auto["converged"] != "1"
        else "direct"
        if auto["solver"] == "direct"
        else "yes"
        if passes <= allowed
        else "NO",
        "within_by_products": "yes" if int(auto["products"]) <= allowed else "NO",
        "eight_fail_to_gain": "yes" if no_gain else "",
        "tenth_of_cg": tenth_of_cg(auto, plain) if no_gain and plain > 100 else "",
        "seconds": round(seconds, 2),
        "device": auto["device"],
        "what": auto["notes"],
    }


def tenth_of_cg(auto: Row, plain: int) -> str:
    """Say whether `auto` took a tenth of the iterations of CG, if it iterated at all."""
    if auto["solver"] == "direct":
        return "direct"
    return "yes" if 10 * int(auto["iterations"]) <= plain else "NO"


def main() -> None:
    """Compare every cell that `auto` has solved."""
    with (RESULTS / "figure1.csv").open(newline="", encoding="utf-8") as file:
        found = cells(list(csv.DictReader(file)))
    lines = [compared(key, methods) for key, methods in found.items() if "auto" in methods]
    with (RESULTS / "auto_against_the_eight.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, lines[0])
        writer.writeheader()
        writer.writerows(lines)
    for line in lines:
        print(" ".join(str(value).rjust(6) for name, value in line.items() if name not in ("what", "device")))
    for answer in ("yes", "direct", "NO", "NOT CONVERGED"):
        print(f"{answer}: {sum(line['within'] == answer for line in lines)} of {len(lines)} cells")


if __name__ == "__main__":
    main()
