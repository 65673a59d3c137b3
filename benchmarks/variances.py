"""How long predictive standard deviations take, beside the fit and beside scikit-learn, and how exact they are.

    python benchmarks/variances.py map readme                          # synthetic data, about a minute
    python benchmarks/variances.py uci_protein uci_pol uci_elevators powerplant

Appends to results/variances.csv a row for every case that has none from this machine with this number of threads
(``--again`` measures anew). Every case runs in a process of its own, whose peak memory is in the row.

map: 8,000 points of a grid at n = 2,000, two features, direct method; scikit-learn with the same hyperparameters.
readme: the example of the README, learned with the defaults, at 2,000 new points; scikit-learn as above.
uci_*: standard split 0, all test rows; powerplant: every tenth row is a test row; learned with the defaults.
``--rows`` takes that many training rows and keeps all test rows: a quicker look, marked in the column n.

"fit s" includes learning. "predict s" is ``predict(X, return_std=True)`` of all points; the same by a model that was
saved and loaded, the first time, when it makes again what the file leaves out, and the second time. Errors are those of
the variance relative to itself and the noise, at a sample of points, against brackets that are a thousand times
narrower than the tolerance. "stated" is the largest error that the library estimates for itself, over all points.
CPU seconds ("cpu") are those of all threads: where other programs run, they say more than the clock.
"""

import argparse
import csv
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from table import RESULTS

Array = NDArray[np.float64]
Row = dict[str, Any]

FILE = RESULTS / "variances.csv"
CASES = ("map", "readme", "uci_protein", "uci_pol", "uci_elevators", "powerplant")
KEY = ("case", "n", "threads", "machine")
COLUMNS = (
    *("case", "n", "points", "d", "method", "fit s", "predict s", "predict / fit", "predict cpu s"),
    *("sklearn predict s", "sklearn / kernelcg", "loaded first s", "loaded again s", "loaded / fitted"),
    *("median error", "worst error", "stated", "sample", "peak MB", "threads", "machine", "date"),
)
SAMPLE = 64
"""Points at which variances are compared with exact ones."""

NARROW = 1e-5
"""Relative width of the brackets that stand for exact variances."""


def timed(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """Return the seconds by the clock and of all threads that the work takes, and its result."""
    clock, cpu = time.perf_counter(), time.process_time()
    result = work()
    return time.perf_counter() - clock, time.process_time() - cpu, result


def example(n: int, points: int) -> tuple[Array, Array, Array]:
    """Return the data of the README and new points."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 10, size=(n, 2))
    y = np.sin(X[:, 0]) + 0.1 * X[:, 1] + 0.2 * rng.normal(size=n)
    return X, y, rng.uniform(0, 10, size=(points, 2))


def grid() -> Array:
    """Return 8,000 points of a map."""
    return np.stack(np.meshgrid(np.linspace(0, 10, 100), np.linspace(0, 10, 80)), -1).reshape(-1, 2)


def stored_data(name: str, rows: int | None) -> tuple[Array, Array, Array]:
    """Return training inputs, targets and test inputs, standardised by the training rows."""
    from kernelcg import datasets

    data = datasets.load(name, fetch=None)
    test = data.test_mask[:, 0] if data.test_mask is not None else np.arange(len(data.X)) % 10 == 0
    train = np.random.default_rng(0).permutation(np.flatnonzero(~test))[:rows]
    mean, spread = data.X[train].mean(0), data.X[train].std(0)
    X = (data.X - mean) / np.where(spread > 0, spread, 1.0)
    return X[train], data.y[train], X[test]


def sklearn_seconds(model: Any, X: Array, y: Array, new: Array) -> float:
    """Return the seconds of scikit-learn's prediction with the same hyperparameters."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    length = np.broadcast_to(model.kernel_.lengthscale.detach().numpy(), X.shape[1])
    kernel = ConstantKernel(model.kernel_.variance.item()) * Matern(length, nu=1.5) + WhiteKernel(model.noise_)
    other = GaussianProcessRegressor(kernel, optimizer=None, normalize_y=True).fit(X, y)
    return timed(lambda: other.predict(new, return_std=True))[0]


def errors(model: Any, new: Array) -> Row:
    """Return how far variances are off at a sample of the points, and the largest error that is stated for any."""
    import torch

    points = torch.from_numpy(new)
    posterior = model._posterior()
    found = posterior.predict(points, variance=True)
    some = torch.randperm(len(points), generator=torch.Generator().manual_seed(0))[:SAMPLE]
    exact = replace(posterior, variance_tolerance=NARROW).predict(points[some], variance=True, bound=True)
    off = (found.variance[some] - exact.variance).abs() / (exact.variance + model.noise_)
    stated = found.variance_error / (found.variance + model.noise_)
    return {
        "median error": float(off.median()),
        "worst error": float(off.max()),
        "stated": float(stated.max()),
        "sample": len(some),
    }


def loaded_seconds(model: Any, new: Array) -> tuple[float, float]:
    """Return the seconds of the first and of the second prediction of a model that was saved and loaded."""
    from kernelcg import load

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.kcg"
        model.save(path)
        other = load(path)
    first, second = (timed(lambda: other.predict(new, return_std=True))[0] for _ in range(2))
    return first, second


def measure(case: str, rows: int | None) -> Row:
    """Return the row of a case."""
    from kernelcg import GPRegressor
    from kernelcg.kernels import Matern

    warnings.simplefilter("ignore")
    if case == "map":
        X, y, _ = example(2000, 0)
        new = grid()
        model = GPRegressor(Matern([3.0, 10.0], 1.0), noise=0.05, optimizer=None, method="direct")
    elif case == "readme":
        X, y, new = example(5000, 2000)
        model = GPRegressor()
    else:
        X, y, new = stored_data(case, rows)
        model = GPRegressor()
    fit, _, _ = timed(lambda: model.fit(X, y))
    model.predict(new[:2], return_std=True)
    predict, cpu, _ = timed(lambda: model.predict(new, return_std=True))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    first, again = loaded_seconds(model, new)
    row = {
        "case": case,
        "n": len(X),
        "points": len(new),
        "d": X.shape[1],
        "method": str(model.plan_.method.value),
        "fit s": fit,
        "predict s": predict,
        "predict / fit": predict / fit,
        "predict cpu s": cpu,
        "loaded first s": first,
        "loaded again s": again,
        "loaded / fitted": again / predict,
        "peak MB": peak,
        **errors(model, new),
    }
    if case in ("map", "readme"):
        theirs = sklearn_seconds(model, X, y, new)
        row |= {"sklearn predict s": theirs, "sklearn / kernelcg": theirs / predict}
    return row


def machine() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def threads() -> int:
    return int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1))


def in_child(case: str, rows: int | None) -> Row:
    """Return the row that a process of its own reports."""
    command = [sys.executable, __file__, "--one", case, *([] if rows is None else ["--rows", str(rows)])]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    row: Row = json.loads(lines[-1])
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return {**row, "threads": threads(), "machine": machine(), "date": date}


def stored() -> list[Row]:
    if not FILE.exists():
        return []
    with FILE.open(newline="") as file:
        return list(csv.DictReader(file))


def rounded(value: object) -> object:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def write(rows: list[Row]) -> None:
    FILE.parent.mkdir(exist_ok=True)
    with FILE.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=(*CASES, []), help="default: map and readme")
    parser.add_argument("--rows", type=int, help="training rows of stored data sets")
    parser.add_argument("--again", action="store_true", help="measure what is there already, too")
    parser.add_argument("--one", choices=CASES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.rows)))
        return
    for case in options.cases or ("map", "readme"):
        here = [row for row in stored() if row["case"] == case and row["machine"] == machine()]
        here = [row for row in here if row["threads"] == str(threads())]
        if options.rows is not None:
            here = [row for row in here if row["n"] == str(options.rows)]
        if here and not options.again:
            print(f"{case}: measured on {here[-1]['date']}; --again measures anew")
            continue
        row = {name: rounded(value) for name, value in in_child(case, options.rows).items()}
        same = [tuple(str(row[name]) for name in KEY)]
        write([*(old for old in stored() if tuple(old[name] for name in KEY) not in same), row])
        print("\n".join(f"{name}: {row.get(name, '')}" for name in COLUMNS), flush=True)


if __name__ == "__main__":
    main()
