"""The data of figures 2 and 3: which rows are held out, standardised by the training rows."""

import gzip
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelcg import datasets
from kernelcg.comparison.data import Split, standardised

Array = NDArray[np.float64]
OUTLIERS_OF_EEG = (898, 10386, 11509, 13179)
"""Rows (0-based) with gross sensor errors, left out."""


@dataclass(frozen=True)
class Set:
    """A data set of the experiment.

    Parameters
    ----------
    budget : seconds of training
    folds : those run by default
    batch : steps of L-BFGS between restarts of the paper's CHOL
    verified : name in the file of the paper's verified folds; "" for folds of our own
    """

    name: str
    title: str
    task: str
    budget: float
    folds: tuple[int, ...]
    batch: int = 3
    verified: str = ""


SETS = {
    one.name: one
    for one in (
        Set("concrete", "Concrete", "regression", 30, (1, 2), verified="concrete"),
        Set("powerplant", "Power plant", "regression", 300, (1, 2), verified="powerplant"),
        Set("protein", "Protein", "regression", 1800, (1,), batch=1, verified="protein"),
        Set("credit", "Credit", "classification", 30, (0, 1)),
        Set("spambase", "Spam", "classification", 300, (1, 2), batch=1, verified="spam"),
        Set("eeg", "EEG", "classification", 1800, (0,), batch=1),
        Set("diabetes", "Diabetes", "regression", 1, (0,)),
        Set("breast_cancer", "Breast cancer", "classification", 1, (0,)),
    )
}
PAPER = ("concrete", "powerplant", "protein", "credit", "spambase", "eeg")
BUNDLED = ("diabetes", "breast_cancer")
"""Come with scikit-learn: no data directory is needed."""


RUN_KEY = ("dataset", "kernel", "method", "fold", "device")
"""The columns that tell runs apart, in both tables."""


def load(name: str, fold: int) -> Split:
    """Return one fold; inputs, and the target of a regression, have training mean 0 and sd 1 (n − 1)."""
    X, y = rows_of(name)
    test = np.zeros(len(y), dtype=bool)
    test[held_out(SETS[name], y, fold)] = True
    X = standardised(X, ~test)
    y = standardised(y, ~test) if SETS[name].task == "regression" else (y > 0).astype(np.float64)
    return Split(*map(np.ascontiguousarray, (X[~test], y[~test], X[test], y[test])))


def rows_of(name: str) -> tuple[Array, Array]:
    """Return all rows, raw."""
    if name in BUNDLED:
        import sklearn.datasets

        loaders = {"diabetes": sklearn.datasets.load_diabetes, "breast_cancer": sklearn.datasets.load_breast_cancer}
        found: tuple[Any, Any] = loaders[name](return_X_y=True)
        return found[0].astype(np.float64), found[1].astype(np.float64)
    data = datasets.load(name)
    keep = np.setdiff1d(np.arange(len(data.y)), OUTLIERS_OF_EEG if name == "eeg" else ())
    return data.X[keep], data.y[keep]


def held_out(one: Set, y: Array, fold: int) -> NDArray[np.int64]:
    """Return the test rows: the paper's where they are known, else a tenth of a permutation with seed 0."""
    if one.verified:
        return paper_fold(one, y, fold)
    order, folds = np.random.default_rng(0).permutation(len(y)), 1 if one.name == "eeg" else 10
    if not 0 <= fold < folds:
        raise ValueError(f"{one.name} has the folds 0 to {folds - 1}, not {fold}")
    return order[: len(y) // 10] if one.name == "eeg" else np.array_split(order, folds)[fold]


def paper_fold(one: Set, y: Array, fold: int) -> NDArray[np.int64]:
    """Return the paper's test rows, after comparing their targets with the sum that is stored with them."""
    known = json.loads(gzip.decompress(fold_file().read_bytes()))[one.verified]
    if fold not in known["verified_folds"]:
        raise ValueError(f"fold {fold} of {one.name} is not one of the verified {known['verified_folds']}")
    rows = np.array(known["test_rows"][str(fold)])
    if not math.isclose(y[rows].sum(), known["target_sum_of_fold"][str(fold)], rel_tol=1e-9):
        raise ValueError(f"the targets of fold {fold} of {one.name} do not have the stored sum")
    return rows


def fold_file() -> Path:
    """Return the file of the paper's folds, in the directory ``paper`` beside the data."""
    directory = os.environ.get(datasets.DIRECTORY_VARIABLE)
    if not directory:
        raise FileNotFoundError(
            f"the paper's folds are looked for in ../paper beside the directory {datasets.DIRECTORY_VARIABLE} names; "
            "set it, or use --quick"
        )
    return Path(directory).expanduser().resolve().parent / "paper" / "fold_test_indices.json.gz"
