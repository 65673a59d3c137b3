"""Gaussian process classification from data to predictive probabilities: kernelcg beside scikit-learn.

    python benchmarks/gp_classification.py --data spambase credit --methods kernelcg "kernelcg direct" --limit 900

Appends to results/gp_classification.csv a row for every data set, fold and method that has none yet (``--again``
measures anew). Every row comes from a process of its own; the seconds exclude imports and loading.

Data, inputs standardised by the training rows. spambase: the verified folds 1–3 of Cutajar et al. (2016), Matérn-3/2
(the paper: RBF). credit: ten folds of a random permutation (seed 0), RBF. eeg: the four rows with gross sensor errors
(0-based 898, 10386, 11509, 13179) left out, then 10 % test rows at random (seed 0), Matérn-3/2. pendigits, letter:
10 % test rows at random (seed 0), Matérn-3/2; "pendigits 500" and the like train on the first so many training rows.

Methods. kernelcg: GPClassifier, its defaults. kernelcg direct: Newton and Cholesky; kernelcg iterative: PCG; kernelcg
15 steps: max_iter=15 on each part of the data. kernelcg one-vs-rest: likelihood="logit". sklearn:
GaussianProcessClassifier, logit, one-vs-rest beyond two classes. All learn one lengthscale per feature and a variance,
from √d and 10; kernelcg the variance with its default prior. kernelcg uncalibrated: calibrated=False.

NLL is the mean, over test rows, of −log p(label); "NLL sum" their sum, as in the paper. "products" counts columns
multiplied with K (with one class of them each) in finding the mode once more at the learned hyperparameters, with the
automatic preconditioner and without one.
"""

import argparse
import csv
import gzip
import json
import math
import os
import platform
import resource
import subprocess
import sys
import time
import warnings
from datetime import UTC, datetime
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
from numpy.typing import NDArray
from table import RESULTS

from kernelcg import datasets

Array = NDArray[np.float64]
Row = dict[str, Any]

FILE = RESULTS / "gp_classification.csv"
OUTLIERS_OF_EEG = (898, 10386, 11509, 13179)
FOLDS = {"spambase": (1, 2, 3), "credit": tuple(range(10))}
RBF_SETS = ("credit",)
COLUMNS = (
    *("data", "fold", "n", "test rows", "d", "classes", "kernel", "method", "status", "fit s", "predict s", "errors"),
    *("error", "NLL", "NLL sum", "log evidence", "standard error", "steps", "reason", "newton steps", "products"),
    *(
        "products without preconditioner",
        "variance",
        "mean factor",
        "covariance factor",
        "left out",
        "peak MB",
        "device",
        "threads",
        "machine",
        "date",
        "note",
    ),
)


def load(name: str, fold: int) -> tuple[Array, NDArray[np.int64], Array, NDArray[np.int64]]:
    """Return standardised training inputs, labels, and the same for the test rows."""
    name, _, rows = name.partition(" ")
    data = datasets.load(name)
    X, y = np.asarray(data.X, dtype=np.float64), np.asarray(data.y).astype(np.int64)
    if name == "eeg":
        keep = np.setdiff1d(np.arange(len(X)), OUTLIERS_OF_EEG)
        X, y = X[keep], y[keep]
    test = test_rows(name, len(X), fold)
    train = np.setdiff1d(np.arange(len(X)), test)
    if name in ("pendigits", "letter"):
        order = np.random.default_rng(0).permutation(len(X))
        train = order[len(test) :][: int(rows) if rows else None]
    spread = X[train].std(0, ddof=1)
    X = (X - X[train].mean(0)) / np.where(spread > 0, spread, 1.0)
    return X[train], y[train], X[test], y[test]


def test_rows(name: str, n: int, fold: int) -> NDArray[np.int64]:
    if name == "spambase":
        directory = Path(os.environ.get(datasets.DIRECTORY_VARIABLE, "")).expanduser().resolve().parent / "paper"
        known = json.loads(gzip.decompress((directory / "fold_test_indices.json.gz").read_bytes()))["spam"]
        return np.array(known["test_rows"][str(fold)])
    order = np.random.default_rng(0).permutation(n)
    if name == "credit":
        return np.sort(np.array_split(order, 10)[fold])
    return order[: n // 10]


def fit(job: Row) -> Row:
    """Return what a method makes of a fold."""
    X, y, X_test, y_test = load(job["data"], job["fold"])
    rbf = job["data"] in RBF_SETS
    row: Row = {
        **job,
        "n": len(X),
        "test rows": len(y_test),
        "d": X.shape[1],
        "classes": len(np.unique(y)),
        "kernel": "RBF" if rbf else "Matern-3/2",
    }
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = METHODS[job["method"]](X, y, rbf)
        row["fit s"] = time.perf_counter() - began
        began = time.perf_counter()
        probabilities = model.predict_proba(X_test)
        row["predict s"] = time.perf_counter() - began
    row["note"] = "; ".join(sorted({shorten(str(one.message), 150) for one in caught}))
    own = np.searchsorted(model.classes_, y_test)
    errors = int((model.predict(X_test) != y_test).sum())
    losses = -np.log(np.maximum(probabilities[np.arange(len(own)), own], 1e-300))
    row |= {"errors": errors, "error": errors / len(own), "NLL": losses.mean(), "NLL sum": losses.sum()}
    row["log evidence"] = model.log_marginal_likelihood_value_
    if hasattr(model, "certificate_"):
        row |= facts(model)
    return row | {"status": "done"}


def facts(model: Any) -> Row:
    from dataclasses import replace

    from kernelcg.inference.laplace.posterior import condition_laplace

    found = model.certificate_
    row: Row = {"standard error": found.standard_error, "steps": model.n_iter_, "reason": model.learning_.reason}
    row["newton steps"] = found.steps
    posterior, factors = model.posterior_, model.calibration_
    row["variance"] = float(posterior.gp.kernel.variance)
    row |= {"mean factor": factors.mean, "covariance factor": factors.covariance, "left out": factors.after}
    if posterior.method == "iterative":
        for column, choice in (("products", "auto"), ("products without preconditioner", None)):
            numerics = replace(posterior.numerics, preconditioner=choice)
            again = condition_laplace(posterior.problem, posterior.gp, numerics=numerics)
            row[column] = again.spent.products
    row["device"] = str(posterior.problem.X.device)
    return row


def kernelcg(X: Array, y: Array, rbf: bool, **options: Any) -> Any:
    from kernelcg import GPClassifier
    from kernelcg.estimators.classifier import LEAST_VARIANCE, MOST_VARIANCE, VARIANCE_SPREAD
    from kernelcg.kernels import RBF, Matern

    lengthscales = [math.sqrt(X.shape[1])] * X.shape[1]
    kernel = RBF(lengthscales, 10.0) if rbf else Matern(lengthscales, 10.0, nu=1.5)
    kernel = kernel.bounded(variance=(LEAST_VARIANCE, MOST_VARIANCE)).with_prior(variance=(10.0, VARIANCE_SPREAD))
    return GPClassifier(kernel, **options).fit(X, y)


def sklearn(X: Array, y: Array, rbf: bool) -> Any:
    from sklearn.gaussian_process import GaussianProcessClassifier
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern

    lengthscales = np.full(X.shape[1], math.sqrt(X.shape[1]))
    kernel = ConstantKernel(10.0) * (RBF(lengthscales) if rbf else Matern(lengthscales, nu=1.5))
    return GaussianProcessClassifier(kernel).fit(X, y)


METHODS = {
    "kernelcg": kernelcg,
    "kernelcg direct": lambda X, y, rbf: kernelcg(X, y, rbf, method="direct"),
    "kernelcg iterative": lambda X, y, rbf: kernelcg(X, y, rbf, method="iterative"),
    "kernelcg 15 steps": lambda X, y, rbf: kernelcg(X, y, rbf, max_iter=15),
    "kernelcg uncalibrated": lambda X, y, rbf: kernelcg(X, y, rbf, calibrated=False),
    "kernelcg one-vs-rest": lambda X, y, rbf: kernelcg(X, y, rbf, likelihood="logit"),
    "sklearn": sklearn,
}


def in_child(job: Row, limit: float) -> Row:
    """Return the row that a process of its own reports, or how it ended."""
    command = [sys.executable, __file__, "--job", json.dumps(job)]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {**job, "status": f"over the limit of {limit:g} s"}
    lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    last = (ended.stderr.strip().splitlines() or [""])[-1]
    return json.loads(lines[-1]) if lines else {**job, "status": "failed", "note": last[:300]}


def stored() -> list[Row]:
    if not FILE.exists():
        return []
    with FILE.open(newline="") as file:
        return list(csv.DictReader(file))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["spambase", "credit", "eeg", "pendigits"])
    parser.add_argument("--folds", nargs="+", type=int)
    parser.add_argument("--methods", nargs="+", default=["kernelcg"], choices=METHODS)
    parser.add_argument("--limit", type=float, default=1800)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        row = fit(json.loads(options.job))
        row["peak MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(row, default=float))
        return
    rows = stored()
    about = {
        "threads": os.environ.get("OMP_NUM_THREADS", os.cpu_count()),
        "machine": platform.processor() or platform.machine(),
    }
    for name in options.data:
        for fold in options.folds or FOLDS.get(name, (0,)):
            for method in options.methods:
                key = {"data": name, "fold": fold, "method": method}
                same = [row for row in rows if all(str(row[part]) == str(key[part]) for part in key)]
                if same and not options.again:
                    continue
                row = in_child(key, options.limit) | about | {"date": datetime.now(UTC).isoformat(timespec="seconds")}
                rows = [old for old in rows if old not in same] + [row]
                shown = ("data", "fold", "method", "status", "fit s", "predict s", "errors", "NLL", "NLL sum", "note")
                print(
                    " | ".join(f"{part} {row[part]}" for part in shown if row.get(part) not in (None, "")), flush=True
                )
                with FILE.open("w", newline="") as file:
                    writer = csv.DictWriter(file, COLUMNS, restval="", extrasaction="ignore")
                    writer.writeheader()
                    writer.writerows(rows)


if __name__ == "__main__":
    main()
