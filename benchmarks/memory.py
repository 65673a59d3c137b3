"""Does ``memory`` hold? The largest size of a process that fits and predicts, above what it held before.

Every case runs in a process of its own: `GPRegressor` with the default kernel, learning included, then means and
standard deviations of some points. The size is what the system measured (VmHWM of Linux), reset before each step.

    make bench-memory                                   60,000 rows within 1 GB; about half an hour on two quiet cores
    python benchmarks/memory.py --cases small           20,000 rows within 500 MB, hyperparameters given: a minute

Writes results/memory.csv, one row a case. What is in the table is not run again; ``--fresh`` begins anew.
"""

import argparse
import csv
import json
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results"
FIELDS = (
    "case",
    "rows",
    "features",
    "points",
    "memory",
    "planned_fit",
    "grown_in_fit",
    "planned_predict",
    "grown_in_predict",
    "kept",
    "seconds_of_fit",
    "seconds_of_predict",
    "evaluations",
    "method",
    "status",
)


@dataclass(frozen=True)
class Case:
    """Rows and points of one fit and prediction, and the bytes they may take; ``steps`` of learning on each part."""

    rows: int
    memory: int
    points: int
    steps: int
    features: int = 4


CASES = {
    "small": Case(20_000, 500_000_000, 200, 0),
    "learned": Case(20_000, 500_000_000, 1_000, 5),
    "large, hyperparameters given": Case(60_000, 1_000_000_000, 1_000, 0),
    "large": Case(60_000, 1_000_000_000, 1_000, 5),
}


def held(name: str) -> int:
    """Return VmRSS or VmHWM of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def grown(work: Any) -> tuple[int, float]:
    """Return by how much this process grew at its largest while it did some work, and the seconds."""
    Path("/proc/self/clear_refs").write_text("5")  # the largest size so far becomes the present one
    before, began = held("VmRSS"), time.perf_counter()
    work()
    return held("VmHWM") - before, time.perf_counter() - began


def one(name: str) -> dict[str, object]:
    """Fit and predict in this process."""
    from kernelcg import GPRegressor

    case = CASES[name]
    generator = np.random.default_rng(0)
    X, points = generator.uniform(size=(case.rows, case.features)), generator.uniform(size=(case.points, case.features))
    y = np.sin(6 * X[:, 0]) + X[:, 1] * np.cos(5 * X[:, 2]) + 0.3 * generator.normal(size=case.rows)
    model = GPRegressor(
        memory=case.memory, optimizer="lbfgs" if case.steps else None, max_iter=case.steps or None, noise=0.1
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # learning ends after a few steps, as it should here
        fit, seconds_of_fit = grown(lambda: model.fit(X, y))
        predict, seconds_of_predict = grown(lambda: model.predict(points, return_std=True))
    plan = model.plan_
    return {
        "case": name,
        "rows": case.rows,
        "features": case.features,
        "points": case.points,
        "memory": case.memory,
        "planned_fit": plan.bytes,
        "grown_in_fit": fit,
        "planned_predict": plan.prediction(case.points).bytes,
        "grown_in_predict": predict,
        "kept": max(fit, predict) <= case.memory,
        "seconds_of_fit": round(seconds_of_fit, 2),
        "seconds_of_predict": round(seconds_of_predict, 2),
        "evaluations": plan.outcome.evaluations,
        "method": str(plan.method),
        "status": model.certificate_.status.name.lower(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", choices=CASES)
    parser.add_argument("--cases", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--fresh", action="store_true", help="forget what is in the table")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options.one)))
        return
    table = RESULTS / "memory.csv"
    known: dict[str, dict[str, Any]] = {}
    if table.exists() and not options.fresh:
        with table.open(newline="") as stream:
            known = {row["case"]: row for row in csv.DictReader(stream)}
    for name in options.cases:
        if name not in known:
            done = subprocess.run(
                [sys.executable, __file__, "--one", name], stdout=subprocess.PIPE, text=True, check=True
            )
            known[name] = dict(json.loads(done.stdout.splitlines()[-1]))
            write(table, known)
        print(in_words(known[name]))


def in_words(row: dict[str, Any]) -> str:
    """Return a row of the table as a sentence."""
    numbers = ("memory", "grown_in_fit", "planned_fit", "grown_in_predict", "planned_predict")
    memory, fit, planned_fit, predict, planned_predict = (f"{int(row[name]) / 1e6:.0f} MB" for name in numbers)
    return (
        f"{row['case']}: {row['rows']} rows within {memory}: the fit grew by {fit} ({planned_fit} planned), the "
        f"prediction by {predict} ({planned_predict} planned); kept: {row['kept']}"
    )


def write(table: Path, known: dict[str, dict[str, Any]]) -> None:
    table.parent.mkdir(exist_ok=True)
    with table.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, FIELDS)
        writer.writeheader()
        writer.writerows(known.values())


if __name__ == "__main__":
    main()
