"""Fit one data set and predict its test rows, in this process: ``python benchmarks/gpu_fits.py uci_protein``.

Prints one line of JSON. `gpu.py` calls it for every row of its table, each in a process of its own. Errors of
regression are in units of the standard deviation of the training targets; sets come from where `kernelcg.datasets`
finds them.
"""

import argparse
import hashlib
import json
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kernelcg import GPClassifier, GPRegressor, datasets
from kernelcg.events import Event, EventKind

Floats = NDArray[np.float64]
MOST_TESTED = 10_000
LARGE = 200_000
"""Rows from which on learning is ended after `LEARNING` seconds, so that a row of the table ends in time."""

LEARNING = 240.0


@dataclass(frozen=True)
class Split:
    """Training and test rows."""

    X: Floats
    y: Floats
    X_test: Floats
    y_test: Floats


def split_at_random(X: Floats, y: Floats, most: int | None) -> Split:
    """Hold out a tenth of the rows, at most `MOST_TESTED`, and keep at most so many others."""
    order = np.random.default_rng(0).permutation(len(X))
    held = min(len(X) // 10, MOST_TESTED)
    test, train = order[:held], order[held:][:most]
    return Split(X[train], y[train], X[test], y[test])


def standard_split(name: str, most: int | None) -> Split:
    """Return the first of the standard splits of a set, or one at random."""
    data = datasets.load(name)
    if data.test_mask is None:
        return split_at_random(data.X, data.y, most)
    test = data.test_mask[:, 0]
    return Split(data.X[~test][:most], data.y[~test][:most], data.X[test], data.y[test])


def on_the_sphere(name: str, most: int | None) -> Split:
    """Return a set of longitudes and latitudes with its places as points in space."""
    data = datasets.load(name)
    longitude, latitude = np.radians(data.X.T)
    around = np.cos(latitude)
    points = np.stack([around * np.cos(longitude), around * np.sin(longitude), np.sin(latitude)], 1)
    return split_at_random(points, data.y, most)


def elevation(name: str, most: int | None) -> Split:
    """Predict the first column of covtype, its elevation, from the other 53 features."""
    X = datasets.load(name).X
    return split_at_random(X[:, 1:], X[:, 0], most)


def second_class(name: str, most: int | None) -> Split:
    """Tell class 2 of covtype, which is 1 here, from the rest, on at most 110,000 rows."""
    data = datasets.load(name)
    return split_at_random(data.X, (data.y == 1).astype(float), min(most or 110_000, 110_000))


def synthetic(n: int, d: int, most: int | None) -> Split:
    """Return a random smooth function of normal points with noise of a tenth of its variance."""
    random = np.random.default_rng(0)
    n = min(n, most or n)
    held = min(MOST_TESTED, n)
    X, W, phase = random.normal(size=(n + held, d)), random.normal(size=(d, 200)) / 2, random.uniform(0, 2 * np.pi, 200)
    y = np.zeros(n + held)
    for start in range(0, n + held, 50_000):
        rows = slice(start, start + 50_000)
        y[rows] = np.cos(X[rows] @ W + phase).sum(1) * math.sqrt(2 / 200)
    y += math.sqrt(0.1) * random.normal(size=n + held)
    return Split(X[:n], y[:n], X[n:], y[n:])


REGRESSION: dict[str, Callable[[int | None], Split]] = {
    **{
        name: lambda most, name=name: standard_split(name, most) for name in ("uci_protein", "uci_pol", "uci_elevators")
    },
    **{f"synthetic_{n}": lambda most, n=n: synthetic(n, 8, most) for n in (50_000, 250_000, 1_000_000)},
    "nycflights13": lambda most: standard_split("nycflights13", most),
    "levitus_temp": lambda most: standard_split("levitus_temp", most),
    "covtype_elevation": lambda most: elevation("covtype", most),
    "egm96_sphere": lambda most: on_the_sphere("egm96", most),
}
CLASSIFICATION: dict[str, Callable[[int | None], Split]] = {
    "eeg": lambda most: standard_split("eeg", most),
    "covtype_class_2": lambda most: second_class("covtype", most),
    "letter": lambda most: standard_split("letter", most),
}
CASES = {**REGRESSION, **CLASSIFICATION}


def measured(name: str, device: str, most: int | None = None, **options: Any) -> dict[str, object]:
    """Return what a fit and the predictions of the test rows cost, and how good they are."""
    split, on_gpu = CASES[name](most), device.startswith("cuda")
    estimator = GPRegressor if name in REGRESSION else GPClassifier
    if len(split.X) >= LARGE:
        options = {"max_seconds": LEARNING, **options}
    model = estimator(device=device, random_state=0, **options)
    if on_gpu:
        torch.zeros(1, device=device)
        torch.cuda.reset_peak_memory_stats()
    began, stages = time.perf_counter(), Stages()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model.fit(split.X, split.y, callback=stages)
        fitted = time.perf_counter()
        scores = (regression if name in REGRESSION else classification)(model, split)
    ended = time.perf_counter()
    plan, certificate = model.plan_, str(getattr(model, "certificate_", "")).splitlines()
    remarks = [plan.backend, str(plan.method), *certificate[:1], *(str(one.message).splitlines()[0] for one in told)]
    return {
        "rows": len(split.X),
        "features": split.X.shape[1],
        "seconds": f"{fitted - began:.4g}",
        "predict_seconds": f"{ended - fitted:.4g}",
        "peak_gb": f"{torch.cuda.max_memory_allocated() / 1e9:.3g}" if on_gpu else "",
        **scores,
        "iterations": iterations_of(getattr(model, "report_", None)),
        "learning_steps": model.n_iter_,
        "remark": "; ".join(remarks),
        "stages": str(stages),
    }


class Stages:
    """A listener that counts the evaluations of every stage of learning, and their seconds."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[int, float]] = {}
        self.last = 0.0

    def __call__(self, event: Event) -> None:
        if event.kind is EventKind.EVALUATION:
            stage = f"{event.payload.rows} rows {event.payload.method}"
            count, seconds = self.found.get(stage, (0, 0.0))
            self.found[stage] = count + 1, seconds + event.seconds - self.last
            self.last = event.seconds

    def __str__(self) -> str:
        return "; ".join(f"{stage} {count} in {seconds:.3g} s" for stage, (count, seconds) in self.found.items())


def digest(*answers: Floats) -> str:
    """Return what tells whether two processes answered the same to the last bit."""
    return hashlib.blake2b(b"".join(one.tobytes() for one in answers), digest_size=6).hexdigest()


def regression(model: GPRegressor, split: Split) -> dict[str, object]:
    """Return root mean squared error and negative log density per point of new observations."""
    unit = split.y.std()
    mean, std = model.predict(split.X_test, return_std=True)
    off, std = (split.y_test - mean) / unit, std / unit
    nlpd = np.mean(0.5 * np.square(off / std) + np.log(std)) + 0.5 * math.log(2 * math.pi)
    return {"rmse": f"{np.sqrt(np.mean(off**2)):.4f}", "nlpd": f"{nlpd:.4f}", "numbers": digest(mean, std)}


def classification(model: GPClassifier, split: Split) -> dict[str, object]:
    """Return the share of wrong classes and the negative log probability of the right ones."""
    probabilities = model.predict_proba(split.X_test)
    right = probabilities[np.arange(len(split.y_test)), np.searchsorted(model.classes_, split.y_test)]
    wrong = np.mean(model.classes_[probabilities.argmax(1)] != split.y_test)
    nlpd = -np.mean(np.log(np.maximum(right, 1e-300)))
    return {"error": f"{wrong:.4f}", "nlpd": f"{nlpd:.4f}", "numbers": digest(probabilities)}


def iterations_of(report: Any) -> object:
    """Return the most iterations that a column of the last solve took, if there is one."""
    reports = report if isinstance(report, tuple) else (report,)
    found = [int(one.iterations.max()) for one in reports if one is not None]
    return max(found, default="")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=CASES)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows", type=int, help="train on at most so many rows")
    options = parser.parse_args()
    print(json.dumps(measured(options.name, options.device, options.rows)))


if __name__ == "__main__":
    main()
