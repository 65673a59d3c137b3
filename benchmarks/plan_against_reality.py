"""Plans against what happens: is `auto` near the best fixed choice, and are its expectations kept?

Every fit runs in a process of its own: default `GPRegressor`, fit and 50 points predicted with their standard
deviation. Choices: "auto" and each fixed method; a fixed one is stopped at three times the time of "auto", and one that
"auto" took for all rows from beginning to end is the same work and is not run again. Expected seconds and bytes are
those of `GPRegressor.plan` before the fit; bytes are the growth of the process at its largest. Objects of the imported
libraries are kept from Python's garbage collector, which would go through all of them once in a process.

    make bench-plan                                                   all cases; half an hour on two quiet cores
    python benchmarks/plan_against_reality.py --cpu-time --most-rows 5000     on a busy machine

With ``--cpu-time`` one thread works, and seconds are processor time, also those of the profile of the machine, which is
measured anew; the results go to a table of their own. Writes results/plan_against_reality.csv (or ..._cpu_time.csv),
one row a case and choice, and a picture beside it. What is in the table is not run again: an interrupted run goes on
where it ended, and ``--fresh`` begins anew. A fit that exceeds the limit of a case is stopped, and its row says so.
"""

import argparse
import csv
import gc
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
RESULTS = HERE / "results"
FIELDS = (
    "case",
    "choice",
    "n",
    "d",
    "seconds",
    "expected_seconds",
    "bytes",
    "expected_bytes",
    "methods",
    "evaluations",
    "expected_evaluations",
    "revisions",
    "noise",
    "status",
)
CHOICES = ("auto", "direct", "iterative")
STOPPED_AT = 3.0
"""Times of auto after which a fixed choice is stopped."""

LONGEST = 120.0
"""Seconds after which even auto is stopped, and the case says so."""

STARTING = 20.0
"""Seconds that a process may take beside its fit: imports, reading data, 50 predictions."""

LARGEST_DIRECT = 15_000
"""Rows above which a direct fit is not started: one of its evaluations takes a minute, and it needs a dozen."""

Data = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


def synthetic(n: int, d: int, noise: float, wiggles: float = 1.0) -> Callable[[], Data]:
    """Return data of a smooth function of some of the features, with noise of this variance relative to it."""

    def make() -> Data:
        generator = np.random.default_rng(n + 1000 * d)
        X = generator.standard_normal((n, d))
        active = X[:, : min(d, 6)]
        y = np.sin(wiggles * active).sum(1) + 0.5 * np.cos(wiggles * active[:, 0] * active[:, -1])
        return X, y + np.sqrt(noise) * y.std() * generator.standard_normal(n)

    return make


def stored(name: str, rows: int | None = None) -> Callable[[], Data]:
    """Return some of the training rows of a data set, inputs and target standardised."""

    def make() -> Data:
        from kernelcg import datasets

        data = datasets.load(name)
        keep = np.random.default_rng(0).permutation(len(data.y))[:rows]
        X, y = data.X[keep], data.y[keep]
        spread = X.std(0)
        return (X - X.mean(0)) / np.where(spread > 0, spread, 1.0), (y - y.mean()) / y.std()

    return make


def kernel_of(name: str, d: int) -> Any:
    """Return a kernel by name; None is the default of the estimator."""
    import torch

    from kernelcg.kernels import RBF, Kernel
    from kernelcg.kernels.distances import squared_distances

    class Cauchy(Kernel):
        width: torch.Tensor

        def covariance(self, X: torch.Tensor, Y: torch.Tensor) -> torch.Tensor:
            return 1 / (1 + squared_distances(X / self.width, Y / self.width))

    return {"default": None, "rbf": RBF(np.full(d, d**0.5)), "own": Cauchy(d**0.5)}[name]


CASES: dict[str, tuple[Callable[[], Data], str]] = {
    **{f"synthetic n={n} d={d} noise={noise:g}": (synthetic(n, d, noise), "default") for n, d, noise in (
        (50, 1, 0.1), (50, 8, 1e-6), (200, 2, 1.0), (200, 20, 0.01), (600, 5, 1e-4), (1_000, 8, 0.1),
        (1_000, 30, 1e-3), (1_000, 57, 0.1), (2_000, 4, 1e-6), (2_000, 8, 0.1), (3_000, 3, 0.1), (3_000, 8, 1e-2),
        (3_000, 20, 1e-5), (5_000, 2, 0.1), (5_000, 8, 1e-3), (5_000, 40, 0.1), (8_000, 8, 0.1), (10_000, 3, 1e-2),
        (16_000, 8, 0.1), (16_000, 2, 1.0), (30_000, 4, 0.1))},
    **{f"rbf n={n} d={d} noise={noise:g}": (synthetic(n, d, noise), "rbf") for n, d, noise in (
        (300, 3, 0.01), (1_500, 8, 0.1), (3_000, 6, 1e-4), (6_000, 9, 0.05))},
    **{f"own kernel n={n} d={d} noise={noise:g}": (synthetic(n, d, noise), "own") for n, d, noise in (
        (400, 3, 0.1), (1_500, 8, 0.01), (4_000, 5, 0.1))},
    "concrete": (stored("concrete"), "default"),
    "airfoil": (stored("uci_airfoil"), "default"),
    "energy": (stored("uci_energy"), "default"),
    "powerplant": (stored("powerplant"), "default"),
    "pol 3,000": (stored("uci_pol", 3_000), "default"),
    "elevators 5,000": (stored("uci_elevators", 5_000), "default"),
    "elevators": (stored("uci_elevators"), "default"),
    "protein 10,000": (stored("uci_protein", 10_000), "default"),
    "protein": (stored("protein"), "default"),
}  # fmt: skip


def one_fit(case: str, choice: str, cpu_time: bool) -> dict[str, object]:
    """Fit and predict in this process; return what was expected and what happened."""
    from kernelcg import GPRegressor

    make, name = CASES[case]
    X, y = make()
    clock = time.process_time if cpu_time else time.perf_counter
    model = GPRegressor(kernel_of(name, X.shape[1]), method=choice, n_jobs=1 if cpu_time else None)
    plan = model.plan(X, y)
    gc.collect()
    gc.freeze()
    before = resident()
    began = clock()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, y)
        fitted = clock() - began
        model.predict(X[:50] + 0.01, return_std=True)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    methods = " ".join(f"{stage.rows}:{stage.method[0]}" for stage in (*model.plan_.stages, model.plan_.conditioning))
    outcome = model.plan_.outcome
    return {
        "case": case,
        "choice": choice,
        "n": len(X),
        "d": X.shape[1],
        "seconds": round(fitted, 4),
        "expected_seconds": round(plan.seconds, 4),
        "bytes": grown,
        "expected_bytes": plan.bytes,
        "methods": methods,
        "evaluations": outcome.evaluations,
        "expected_evaluations": round(sum(stage.evaluations for stage in plan.stages), 1),
        "revisions": "; ".join(revision.partition(":")[0] for revision in outcome.revisions),
        "noise": f"{model.noise_:.1e}",
        "status": model.certificate_.status.name.lower(),
    }


def resident() -> int:
    """Return the memory that this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def one_thread_profile() -> Path:
    """Measure this machine with one thread in processor time, and store its profile."""
    import torch

    from kernelcg import backends
    from kernelcg.planning.profile import calibrated

    torch.set_num_threads(1)
    one_thread = backends.named(backends.default().name(), threads=1)
    profile = calibrated(one_thread, torch.device("cpu"), clock=time.process_time)
    path = Path(tempfile.mkdtemp()) / "profile_of_one_thread.json"
    path.write_text(profile.to_json())
    return path


def measured(case: str, choice: str, limit: float, cpu_time: bool) -> dict[str, object]:
    """Run one fit in a process of its own, stopped at the limit: of processor time, if that is what counts."""
    command = [sys.executable, __file__, "--one", case, choice, *(["--cpu-time"] if cpu_time else [])]
    slower = 4 if cpu_time else 1  # others may have the processor meanwhile
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=slower * (limit + STARTING), check=False)
    except subprocess.TimeoutExpired:
        return {"case": case, "choice": choice, "seconds": round(limit, 4), "status": "stopped"}
    if done.returncode:
        return {"case": case, "choice": choice, "status": done.stderr.strip().splitlines()[-1][:120]}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def missing(known: dict[tuple[str, str], dict[str, Any]], cases: list[str]) -> Iterator[tuple[str, str, float]]:
    """Yield what is still to be run, with its limit; auto comes first."""
    for case in cases:
        for choice in CHOICES:
            if (case, choice) in known:
                continue
            auto = float(known.get((case, "auto"), {}).get("seconds") or LONGEST)
            yield case, choice, LONGEST if choice == "auto" else min(max(STOPPED_AT * auto, 1.0), LONGEST)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=2, metavar=("CASE", "CHOICE"))
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--most-rows", type=int, default=10**9, help="leave out synthetic cases with more")
    parser.add_argument("--cpu-time", action="store_true", help="one thread, processor time: on a busy machine")
    parser.add_argument("--fresh", action="store_true", help="forget what is in the table")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one_fit(*options.one, options.cpu_time)))
        return
    table = RESULTS / f"plan_against_reality{'_cpu_time' if options.cpu_time else ''}.csv"
    if options.cpu_time:
        os.environ.update(OMP_NUM_THREADS="1", KERNELCG_PROFILE=str(one_thread_profile()))
    cases = [case for case in options.cases if rows_of(case) <= options.most_rows]
    known = {} if options.fresh else {(row["case"], row["choice"]): row for row in read(table)}
    while (work := next(missing(known, cases), None)) is not None:
        case, choice, limit = work
        auto = known.get((case, "auto"), {})
        if choice != "auto" and is_same_work(auto, choice):
            known[case, choice] = {**auto, "choice": choice}
        elif choice == "direct" and int(auto.get("n") or 0) > LARGEST_DIRECT:
            known[case, choice] = {"case": case, "choice": choice, "status": "not started"}
        else:
            known[case, choice] = measured(case, choice, limit, options.cpu_time)
        write(table, known)
        print(known[case, choice], flush=True)
    summary(list(known.values()), table)


def is_same_work(auto: dict[str, Any], choice: str) -> bool:
    """Whether auto learned from all rows and conditioned on them by this method, without a change of its plan."""
    methods = str(auto.get("methods") or "").split()
    return not auto.get("revisions") and all(one.endswith(choice[0]) for one in methods[-2:]) and len(methods) > 1


def rows_of(case: str) -> int:
    """Return the rows that the name of a case says; 0 if it says none."""
    number = case.partition("n=")[2].partition(" ")[0]
    return int(number) if number else 0


def read(table: Path) -> list[dict[str, Any]]:
    if not table.exists():
        return []
    with table.open(newline="") as stream:
        return list(csv.DictReader(stream))


def write(table: Path, known: dict[tuple[str, str], dict[str, Any]]) -> None:
    table.parent.mkdir(exist_ok=True)
    with table.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, FIELDS, restval="")
        writer.writeheader()
        writer.writerows(known.values())


def summary(rows: list[dict[str, Any]], table: Path) -> None:
    """Print how often auto is near the best fixed choice and expectations are kept, and draw it."""
    autos = [row for row in rows if row["choice"] == "auto" and row.get("expected_seconds")]
    unfinished = [row["case"] for row in rows if row["choice"] == "auto" and not row.get("expected_seconds")]
    fixed = {
        row["case"]: min(
            (float(one["seconds"]) for one in rows if one["case"] == row["case"] and usable(one)), default=float("inf")
        )
        for row in autos
    }
    ratio = np.array([float(row["seconds"]) / min(fixed[row["case"]], float(row["seconds"])) for row in autos])
    seconds = np.array([float(row["seconds"]) / float(row["expected_seconds"]) for row in autos])
    space = np.array([float(row["bytes"]) / float(row["expected_bytes"]) for row in autos])
    print(f"{len(autos)} cases; auto within 1.3 of the best fixed choice: {np.mean(ratio <= 1.3):.0%}, ", end="")
    print(f"worst {ratio.max():.2f}")
    print(f"seconds within a factor 2: {np.mean((seconds >= 0.5) & (seconds <= 2)):.0%}")
    if unfinished:
        print(f"not finished within {LONGEST:.0f} s: {', '.join(unfinished)}")
    print(f"bytes within 25 % and no more than 10 % too low: {np.mean((space <= 1.1) & (space >= 0.75)):.0%}")
    draw(autos, seconds, space, ratio, table)


def usable(row: dict[str, Any]) -> bool:
    return row["choice"] != "auto" and bool(row.get("seconds")) and row["status"] != "stopped"


def draw(autos: list[dict[str, Any]], seconds: Any, space: Any, ratio: Any, table: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    n = np.array([float(row["n"]) for row in autos])
    figure, panels = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
    titles = ("auto / best fixed choice", "seconds: happened / expected", "peak bytes: happened / expected")
    limits = ((1, 1.3), (0.5, 2), (0.75, 1.1))
    for axes, values, title, (low, high) in zip(panels, (ratio, seconds, space), titles, limits, strict=True):
        axes.axhspan(low, high, color="tab:green", alpha=0.15)
        axes.loglog(n, values, "o", color="tab:blue", alpha=0.8)
        axes.set_xlabel("rows")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:.3g}")
        axes.set_title(title)
    figure.savefig(table.with_suffix(".png"), dpi=120)
    print(f"wrote {table} and its picture")


if __name__ == "__main__":
    main()
