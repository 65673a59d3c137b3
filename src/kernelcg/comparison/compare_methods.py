"""The comparison on data of one's own: which method and which preconditioner are best for them."""

import csv
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kernelcg import backends
from kernelcg.backends import Backend
from kernelcg.comparison import plotting
from kernelcg.comparison.data import Split, Table, table
from kernelcg.comparison.harness import NO_ROOM, Run, run
from kernelcg.comparison.methods import METHODS, Method, conditioned_by, unsuited
from kernelcg.comparison.tasks import ClassificationTask, RegressionTask, Task
from kernelcg.comparison.trials import Trial, system_of, trials
from kernelcg.errors import SolveFailed
from kernelcg.estimators.classifier import first_latent_kernel
from kernelcg.estimators.cluster_connection import connected
from kernelcg.estimators.settings import check_options, chosen_device, first_process
from kernelcg.estimators.sklearn_kernels import converted
from kernelcg.events import EventKind, Listener, tell, timed
from kernelcg.inference.gaussian.model import Regression
from kernelcg.planning.pricing import pricing_of

DEFAULT = ("kernelcg", "CHOL", "PCG", "CG", "FITC", "PITC", "VAR")

CLOSE = 0.01
"""Nats a test row within which methods are equally good."""

Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Comparison:
    """What every method came to on the same splits, and every preconditioner on one system; print it.

    Attributes
    ----------
    task : "regression" (error is the RMSE in units of the training sd of y) or "classification" (share of wrong labels)
    runs : by method, one for each split
    preconditioners : solves of the system that the best exact method ends with, the quickest first
    rows, features : of the training data
    budget : seconds of training for each method and split
    """

    task: str
    rows: int
    features: int
    budget: float
    runs: dict[str, tuple[Run, ...]]
    preconditioners: tuple[Trial, ...] = ()

    def table(self) -> list[Row]:
        """Return a row for each method, means over the splits, the best first."""
        rows = [self._row(name) for name in self.runs]
        return sorted(rows, key=lambda row: (row["method"] != self.best, _last_if_nan(row["nll"])))

    @property
    def best(self) -> str | None:
        """Return the method of the lowest NLL; of those within 0.01 nats of it, the one that got so far first.

        None if no method came to a result; the statuses in the table say why.
        """
        times = {name: self._seconds_to_best(name) for name in self.runs}
        known = {name: seconds for name, seconds in times.items() if math.isfinite(seconds)}
        return min(known, key=lambda name: known[name]) if known else None

    @property
    def best_preconditioner(self) -> str | None:
        """Return the one that solved the system in the least time, if any was tried and did."""
        return next((trial.preconditioner for trial in self.preconditioners if trial.converged), None)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Return a matplotlib figure of error and NLL against seconds and products; write it to ``path`` if given."""
        plt = plotting.pyplot()
        figure, panels = plt.subplots(2, 2, figsize=(10, 6.5), layout="constrained", sharey="row")
        words = {"error": "RMSE (sd of y)" if self.task == "regression" else "error rate", "nll": "NLL (nats a row)"}
        for row, value in zip(panels, words, strict=True):
            for axes, where in zip(row, ("seconds", "products"), strict=True):
                curves = {name: self._curves(name, where, value) for name in self.runs}
                shown = {name: found for name, found in curves.items() if found}
                plotting.draw_curves(axes, shown, until=self.budget if where == "seconds" else None)
                axes.set_xlabel("seconds: training + conditioning" if where == "seconds" else "products with K")
            row[0].set_ylabel(words[value])
        if panels[0, 0].get_legend_handles_labels()[0]:
            panels[0, 0].legend(frameon=False, fontsize=9)
        figure.suptitle(f"{self.task}, {self.rows} rows, {self.features} features; mean of {self._splits} split(s)")
        if path is not None:
            figure.savefig(path, dpi=150)
        return figure

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the curves: one line for each method, split and evaluation."""
        names = ("step", "training_seconds", "seconds", "products", "error", "nll")
        with Path(path).open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(("method", "split", *names))
            for name, runs in self.runs.items():
                for split, one in enumerate(runs):
                    writer.writerows((name, split, *(getattr(point, part) for part in names)) for point in one.curve)

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        error = "RMSE" if self.task == "regression" else "error"
        lines = [
            f"{self.task}: {self.rows} training rows, {self.features} features, {self._splits} split(s), "
            f"at most {self.budget:g} s of training a method",
            f"{'method':<16}{error:>9}{'NLL':>9}{'seconds':>10}{'to best':>10}{'products':>11}  status",
        ]
        for row in self.table():
            numbers = f"{row['error']:>9.4g}{row['nll']:>9.4g}{row['seconds']:>10.3g}{row['to_best']:>10.3g}"
            lines.append(f"{row['method']:<16}{numbers}{row['products']:>11.4g}  {row['status']}".replace("nan", "  –"))
        if self.preconditioners:
            lines += ["", f"{'preconditioner':<18}{'iterations':>11}{'products':>11}{'seconds':>10}  status"]
        for one in self.preconditioners:
            numbers = f"{one.iterations:>11}{one.products:>11.4g}{one.seconds:>10.3g}".replace("nan", "  –")
            lines.append(f"{one.preconditioner:<18}{numbers}  {one.status[:60]}")
        return "\n".join(lines)

    @property
    def _splits(self) -> int:
        return max(len(runs) for runs in self.runs.values())

    def _row(self, name: str) -> Row:
        runs = self.runs[name]
        last = [one.last for one in runs if one.last]
        mean = {part: _mean([getattr(one, part) for one in last]) for part in ("error", "nll", "seconds", "products")}
        statuses = ", ".join(sorted({one.status for one in runs}))
        steps = _mean([len(one.path) - 1 for one in runs if one.path])
        return {"method": name, **mean, "to_best": self._seconds_to_best(name), "steps": steps, "status": statuses}

    def _seconds_to_best(self, name: str) -> float:
        """Return the mean time at which a method first came within 0.01 nats of the lowest NLL; NaN if it did not."""
        ends = {other: _mean([one.last.nll for one in runs if one.last]) for other, runs in self.runs.items()}
        lowest = min(ends.values(), key=_last_if_nan)
        if not ends[name] <= lowest + CLOSE:
            return math.nan
        where, value = plotting.averaged(self._curves(name, "seconds", "nll"))
        return float(where[np.flatnonzero(value <= lowest + CLOSE)[0]])

    def _curves(self, name: str, where: str, value: str) -> list[plotting.Curve]:
        found: list[plotting.Curve] = []
        for one in self.runs[name]:
            curve = plotting.curve_of((getattr(point, where), getattr(point, value)) for point in one.curve)
            found += [] if curve is None else [curve]
        return found


@dataclass(frozen=True)
class MethodRun:
    """The end of one run of a comparison.

    Attributes
    ----------
    method : its name
    split, splits : the split of the rows on which it ran, counted from 1, and how many there are
    status : how it ended
    steps : steps of learning
    number, runs : how many runs have ended, this one included, and how many there will be
    """

    method: str
    split: int
    splits: int
    status: str
    steps: int
    number: int
    runs: int

    def __str__(self) -> str:
        return f"{self.method}, split {self.split} of {self.splits}: {self.status}, {self.steps} steps"


def compare(
    X: Any,
    y: Any = None,
    *,
    target: str | None = None,
    task: str | None = None,
    kernel: Any = None,
    methods: Sequence[str] = DEFAULT,
    budget: float = 60.0,
    folds: int = 1,
    test: float = 0.2,
    points: int = 15,
    seed: int = 0,
    device: str = "cpu",
    cluster: Any = None,
    preconditioners: bool = True,
    callback: Listener | None = None,
) -> Comparison:
    """Compare methods for learning a Gaussian process on your data, and preconditioners on the system they end with.

    Parameters
    ----------
    X, y, target, task : arrays, a data frame, or with ``target`` a CSV file; as in `kernelcg.comparison.table`
    kernel : kernelcg or scikit-learn kernel on standardised inputs; None means that of the estimators
    methods : names from `kernelcg.comparison.METHODS`
    budget : seconds of training for each method and split; evaluation comes on top
    folds, test, seed : random splits, the share of rows held out in each, and their seed
    points : places of each path at which predictions are judged
    cluster : None, or where a Dask cluster does the products with K, as in `GPRegressor`
    preconditioners : whether to solve one system with every preconditioner
    callback : told of every event of learning and, with a `MethodRun`, of the end of every run; where it returns True,
        learning by this method ends and the next one begins
    device : "cpu", "cuda" or "auto"

    Returns
    -------
    Comparison : what every method came to; print it or draw it by its method ``plot``

    Examples
    --------
    >>> import numpy as np
    >>> import kernelcg
    >>> X = np.random.default_rng(0).uniform(0, 6, (80, 1))
    >>> result = kernelcg.compare(X, np.sin(X[:, 0]), budget=1.0, points=2, preconditioners=False)
    >>> type(result).__name__
    'Comparison'
    """
    methods = [methods] if isinstance(methods, str) else list(methods)
    unknown = [name for name in methods if name not in METHODS]
    if unknown or not methods:
        raise ValueError(f"methods must be some of {', '.join(METHODS)}, not {', '.join(unknown) or 'none'}")
    _check_numbers(budget, folds, test, points)
    check_options({"cluster": cluster, "preconditioner": None})
    data = table(X, y, target=target, task=task)
    with connected(cluster, None) as client:
        where = chosen_device("cpu" if cluster is not None else device)
        backend = backends.default(device=where.type) if client is None else backends.Dask(client=client)

        def task_of(split: Split) -> Task:
            return task_on(data, split, kernel, where, backend)

        divided = list(data.splits(folds, test, seed))
        return _compared(data, divided, task_of, methods, budget, seed, points, preconditioners, callback)


def _compared(
    data: Table,
    divided: list[Split],
    task_of: Callable[[Split], Task],
    methods: Sequence[str],
    budget: float,
    seed: int,
    points: int,
    preconditioners: bool,
    callback: Listener | None,
) -> Comparison:
    """Return what comes of every method on every split; each begins with a task of its own."""
    began = time.perf_counter()
    heard, runs = timed(callback, began), dict[str, list[Run]]()
    first = task_of(divided[0])
    if all(unsuited(METHODS[name], first) for name in methods):
        raise ValueError(f"{', '.join(methods)}: {unsuited(METHODS[methods[0]], first)}")
    for number, split in enumerate(divided):
        for name in methods:
            job = task_of(split)
            X_test, y_test = (torch.from_numpy(part).to(job.problem.X.device) for part in (split.X_test, split.y_test))
            one = run(METHODS[name], job, X_test, y_test, budget=budget, seed=seed, points=points, callback=heard)
            runs.setdefault(name, []).append(one)
            steps, counted = max(len(one.path) - 1, 0), sum(map(len, runs.values()))
            ended = MethodRun(name, number + 1, len(divided), one.status, steps, counted, len(divided) * len(methods))
            tell(heard, EventKind.METHOD, ended, began)
    kept = {name: tuple(found) for name, found in runs.items()}
    found = Comparison(data.task, len(divided[0].X), data.X.shape[1], budget, kept)
    if preconditioners:
        found = replace(found, preconditioners=_trials(found, first, seed))
    tell(heard, EventKind.END, found, began)
    return found


def task_on(data: Table, split: Split, kernel: Any, device: torch.device, backend: Backend) -> Task:
    """Return the training rows of a split as a task, with the start and the prices that the estimators have."""
    X, y = (torch.from_numpy(part).to(device) for part in (split.X, split.y))
    if data.task == "regression":
        problem = Regression(X, y[:, None], backend=backend.counting(len(X)))
        start = first_process(kernel, None, problem.X, problem.Y)
        return RegressionTask(problem.at_price(pricing_of(start.kernel, problem.X, problem.backend)), start)
    own, white = converted(first_latent_kernel(X) if kernel is None else kernel)
    if white is not None:
        raise ValueError("the kernel has a WhiteKernel, but labels have no Gaussian noise; leave it out")
    task = ClassificationTask.of(X, y, own, len(data.classes), backend)
    return replace(task, problem=task.problem.at_price(pricing_of(own, task.problem.X, task.problem.backend)))


def _trials(found: Comparison, task: Task, seed: int) -> tuple[Trial, ...]:
    """Return every preconditioner on the system at the hyperparameters of the exact method that did best."""
    exact = [row["method"] for row in found.table() if found.runs[row["method"]][0].path and is_exact(row["method"])]
    if not exact:
        return ()
    try:
        system = system_of(conditioned_by(METHODS["kernelcg"], task, found.runs[exact[0]][0].gp, seed=seed))
        return () if system is None else trials(*system, seconds=min(found.budget, 30.0))
    except (SolveFailed, *NO_ROOM):
        return ()


def is_exact(name: str) -> bool:
    """Say whether a method learns and predicts with the exact process."""
    method: Method = METHODS[name]
    return method.sparse is None


def _check_numbers(budget: float, folds: int, test: float, points: int) -> None:
    if not (isinstance(budget, Real) and budget > 0):
        raise ValueError(f"budget must be a positive number of seconds, not {budget!r}")
    if not (isinstance(folds, Integral) and folds >= 1):
        raise ValueError(f"folds must be a whole number, at least 1, not {folds!r}")
    if not (isinstance(test, Real) and 0 < test < 1):
        raise ValueError(f"test must be the share of rows held out, between 0 and 1, not {test!r}")
    if not (isinstance(points, Integral) and points >= 2):
        raise ValueError(f"points must be a whole number, at least 2, not {points!r}")


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def _last_if_nan(value: float) -> float:
    return math.inf if math.isnan(value) else value
