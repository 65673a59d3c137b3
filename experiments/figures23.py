"""Run figures 2 and 3 of Cutajar et al. (2016): error and negative log-likelihood against time, method by method.

Every finished run is a row of results/figures23_runs.csv, its curve in results/figures23_curves.csv; a second call does
what is missing and no more. See README.md.
"""

import argparse
import json
import math
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import splits
import torch
from figure1 import version
from ledger import Ledger
from splits import BUNDLED, PAPER, RUN_KEY, SETS

from kernelcg.comparison import harness
from kernelcg.comparison.data import Split
from kernelcg.comparison.methods import METHODS, Method
from kernelcg.comparison.tasks import KERNELS, ClassificationTask, RegressionTask, Task, first_rbf

RESULTS = Path(__file__).parent / "results"
RUN_COLUMNS = (
    *("dataset", "n", "d", "test_rows", "kernel", "method", "fold", "device", "settings", "start", "budget", "points"),
    *("seed", "status", "reason", "steps", "training_seconds", "seconds", "products", "error", "nll", "nll_sum"),
    *("log_parameters", "peak_mb", "gpu_peak_mb", "threads", "machine", "versions", "date"),
)
CURVE_COLUMNS = (*RUN_KEY, "step", "training_seconds", "seconds", "products", "error", "nll")
RESULT = "RESULT "
FAILED, OVER = "failed", "over the limit"
QUICK_POINTS = 6
Row = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """One run, as words and numbers."""

    dataset: str
    kernel: str
    method: str
    fold: int
    device: str
    budget: float
    points: int
    seed: int

    @property
    def key(self) -> Row:
        """Return what finds it in the tables."""
        return {name: getattr(self, name) for name in RUN_KEY}

    def how(self) -> Method:
        """Return the method with the settings for this data set."""
        method = METHODS[self.method]
        return replace(method, batch=SETS[self.dataset].batch) if method.batch else method


# one run


def task_of(job: Job, split: Split) -> Task:
    """Return the training rows as a task, with the kernel and the start of the paper's latest code."""
    X, y = (torch.from_numpy(part).to(job.device) for part in (split.X, split.y))
    kernel = first_rbf(job.kernel, X.shape[1])
    if SETS[job.dataset].task == "regression":
        return RegressionTask.of(X, y, kernel)
    return ClassificationTask.of(X, y, kernel)


def performed(job: Job) -> tuple[Row, list[Row]]:
    """Return a run as the values of its row, and its curve."""
    split = splits.load(job.dataset, job.fold)
    task = task_of(job, split)
    X_test, y_test = (torch.from_numpy(part).to(job.device) for part in (split.X_test, split.y_test))
    found = harness.run(job.how(), task, X_test, y_test, budget=job.budget, seed=job.seed, points=job.points)
    row: Row = {"n": len(split.y), "d": split.X.shape[1], "test_rows": len(split.y_test)}
    row |= {"status": found.status, "reason": found.reason, "steps": max(len(found.path) - 1, 0)}
    row["start"] = words(task.start.log_parameters().tolist())
    if found.last:
        last = asdict(found.last)
        row |= {name: f"{last[name]:.10g}" for name in ("training_seconds", "seconds", "products", "error", "nll")}
        row["nll_sum"] = f"{found.last.nll * len(split.y_test):.10g}"
        row["log_parameters"] = words(found.path[-1].log_parameters)
    if job.device != "cpu":
        row["gpu_peak_mb"] = f"{torch.cuda.max_memory_allocated() / 2**20:.0f}"
    curve = [{name: f"{value:.10g}" for name, value in asdict(point).items()} for point in found.curve]
    return row | {"threads": torch.get_num_threads(), "versions": versions()}, curve


def words(numbers: Sequence[float]) -> str:
    """Return numbers in a cell."""
    return " ".join(f"{number:.10g}" for number in numbers)


def versions() -> str:
    """Return the versions that results depend on."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    told = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    python = platform.python_version()
    return f"kernelcg {version()} {told} torch {torch.__version__} python {python}".replace("  ", " ")


def machine(device: str) -> str:
    """Return what the runs are done on."""
    if device != "cpu":
        return torch.cuda.get_device_name()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    return f"{model}, {os.cpu_count()} cores"


# in a process of its own


def report(job: Job) -> None:
    """Do one run and print it, with the peak memory of this process."""
    row, curve = performed(job)
    row["peak_mb"] = f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f}"
    print(RESULT + json.dumps([row, curve]), flush=True)


def in_child(job: Job, limit: float) -> tuple[Row, list[Row]]:
    """Return what a process of its own reports, or how it ended."""
    command = [sys.executable, __file__, "--job", json.dumps(asdict(job))]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {"status": OVER, "reason": f"{limit:g} s for training and evaluation"}, []
    for line in ended.stdout.splitlines():
        if line.startswith(RESULT):
            row, curve = json.loads(line.removeprefix(RESULT))
            return row, curve
    last = (ended.stderr.strip().splitlines() or [f"exit status {ended.returncode}"])[-1]
    return {"status": FAILED, "reason": last[:300]}, []


# all of them


def jobs(options: argparse.Namespace) -> Iterator[Job]:
    """Return the runs that are asked for."""
    for name in options.sets:
        for fold in options.folds or SETS[name].folds:
            for kernel in options.kernels:
                for method in options.methods:
                    budget = options.budget or SETS[name].budget
                    yield Job(name, kernel, method, fold, options.device, budget, options.points, options.seed)


def is_finished(ledger: Ledger, job: Job) -> bool:
    """Say whether this run is in the table, however finely its path was looked at; one that failed is not."""
    known = ledger.find(**job.key)
    if known is None or known["status"] == FAILED:
        return False
    wanted = (job.how().settings, f"{job.budget:g}", str(job.seed))
    return (known["settings"], known["budget"], known["seed"]) == wanted


def record(job: Job, row: Row, curve: list[Row], runs: Ledger, curves: Ledger) -> None:
    """Put the curve on disk, then the run: an interruption in between leaves it unfinished."""
    key = {name: str(value) for name, value in job.key.items()}
    runs.discard(**key)
    curves.discard(**key)
    for point in curve:
        curves.put({**job.key, **point})
    about = {"settings": job.how().settings, "budget": f"{job.budget:g}", "points": job.points, "seed": job.seed}
    made = {"machine": machine(job.device), "date": datetime.now(UTC).isoformat(timespec="seconds")}
    runs.put({**dict.fromkeys(RUN_COLUMNS, ""), **job.key, **about, **made, **row})


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line, with what --quick means filled in."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=SETS, help="data sets; default those of the paper")
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=list(KERNELS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--folds", nargs="+", type=int, help="default: two of the paper's, one of the large sets")
    parser.add_argument("--budget", type=float, help="seconds of training; default by data set")
    parser.add_argument("--points", type=int, help="places of a path to evaluate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--limit", type=float, help="seconds of a run in all; default 10 budgets and 10 minutes")
    parser.add_argument("--out", type=Path, default=RESULTS, help="directory of the tables")
    parser.add_argument("--quick", action="store_true", help="data that come with scikit-learn, one second each")
    parser.add_argument("--together", action="store_true", help="all runs in this process; no peak memory")
    parser.add_argument("--again", action="store_true", help="do finished runs, too")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args(given)
    options.sets = options.sets or list(BUNDLED if options.quick else PAPER)
    options.points = options.points or (QUICK_POINTS if options.quick else harness.POINTS)
    options.together |= options.quick
    return options


def tables(directory: Path, quick: bool) -> tuple[Ledger, Ledger]:
    """Return the tables of runs and of curves."""
    name = "figures23_quick" if quick else "figures23"
    runs = Ledger(directory / f"{name}_runs.csv", RUN_COLUMNS, RUN_KEY)
    return runs, Ledger(directory / f"{name}_curves.csv", CURVE_COLUMNS, (*RUN_KEY, "step"))


def main(given: Sequence[str] | None = None) -> int:
    """Do what is missing; return 1 if a run failed."""
    options = arguments(given)
    if options.job:
        report(Job(**json.loads(options.job)))
        return 0
    runs, curves = tables(options.out, options.quick)
    failures = 0
    for job in jobs(options):
        if is_finished(runs, job) and not options.again:
            continue
        limit = options.limit or 10 * job.budget + 600
        row, curve = performed(job) if options.together else in_child(job, limit)
        if row["status"] != FAILED or runs.find(**job.key) is None:
            record(job, row, curve, runs, curves)
        failures += row["status"] == FAILED
        print(told(job, row), flush=True)
    print(f"{len(runs.rows)} runs in {runs.file}; {failures} failed")
    return int(failures > 0)


def told(job: Job, row: Row) -> str:
    """Return a line about a run."""
    numbers = {name: float(row.get(name) or math.nan) for name in ("error", "nll", "seconds", "products")}
    shown = "  ".join(f"{name} {value:<9.4g}" for name, value in numbers.items())
    where = f"{job.dataset:<13} {job.kernel:<3} fold {job.fold}  {job.method:<14}"
    return f"{where} {shown} {row['status']}" + (f": {row['reason']}" if row["status"] in (FAILED, OVER) else "")


if __name__ == "__main__":
    sys.exit(main())
