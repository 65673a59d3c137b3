"""Generated batches of predictions: what one point is told must not depend on the others."""

import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import kernelcg
from fuzz.data import Data, data, kernel, log_uniform, sizes
from fuzz.outcomes import Outcome
from fuzz.regression import judge_predictions, tolerance, truths
from kernelcg import GPRegressor, kernels

MOST_ROWS = 300

HUGE = 5_000
"""Rows of a large batch."""


def judged(seed: int, most: int = MOST_ROWS) -> Outcome:
    """Fit a model, and ask it for the same points in every way; each answer is judged against the truth."""
    rng = np.random.default_rng([3, seed])
    n, d = sizes(rng, most)
    made = data(rng, n, d)
    options: dict[str, Any] = {
        "method": str(rng.choice(["direct", "iterative", "auto"])),
        "mean": str(rng.choice(["zero", "constant", "linear"])),
        "noise": log_uniform(rng, 1e-8, 1),
        "optimizer": None,
    }
    story = [f"seed={seed}", *made.story, *(f"{name}={value}" for name, value in options.items())]
    options["kernel"] = kernel(rng, made.X, story, kernels)
    first = n if rng.random() < 0.7 else int(rng.integers(1, n + 1))
    story.append("" if first == n else f"{n - first} rows by update")
    outcome = Outcome("batches", seed, ", ".join(story))
    done = outcome.fit(lambda: fitted_in_parts(GPRegressor(**options), made, first))
    if done is None:
        return outcome
    model, flagged = done
    far = _far_rows(rng, made.X)
    made.X_new = np.concatenate([made.X_new, far])
    found = truths(model, made, np.zeros(0, int))
    judge_predictions(outcome, model, made, found, flagged, model.rtol)
    scale, offset = float(model.y_scale_[0]), float(model.y_mean_[0])
    exact = found[0].mean[:, 0] * scale + offset
    exact_std = scale * np.sqrt(np.maximum(found[0].variance, 0) + float(np.ravel(model.noise_)[0]))
    allowed = tolerance(model, made, found[0], 0, model.rtol)
    for name, asked, batch, rows in _batches(rng, model, made.X_new, len(far)):
        with outcome.watching(name) as own:
            mean, std = asked.predict(batch, return_std=True)
            plain = asked.predict(batch)
        excused = flagged or bool(own)
        inside = rows >= 0
        mean, std, plain, rows = mean[inside], std[inside], plain[inside], rows[inside]
        for call, values in (("mean", plain), ("mean beside std", mean)):
            off = np.abs(values - exact[rows])
            worst = np.argmax(off / allowed[rows])
            outcome.check(f"{name}, {call}", float(off[worst]), float(allowed[rows][worst]), flagged=excused)
        outcome.check(f"{name}, std", float(np.max(np.abs(std / exact_std[rows] - 1))), 0.05, flagged=excused)
    return outcome


def fitted_in_parts(model: GPRegressor, made: Data, first: int) -> GPRegressor:
    """Return the model fitted to the first rows and updated by the others."""
    known = made.noise_variance
    model.fit(made.X[:first], made.y[:first], None if known is None else known[:first])
    if first < len(made.X):
        model.update(made.X[first:], made.y[first:], None if known is None else known[first:])
    return model


def _far_rows(rng: np.random.Generator, X: np.ndarray) -> np.ndarray:
    """Return rows 1e6 to 1e20 away in one or in all features."""
    rows = X[rng.integers(0, len(X), 2)].copy()
    rows[0, rng.integers(X.shape[1])] = 10.0 ** rng.uniform(6, 20) * rng.choice([-1, 1])
    rows[1] = 10.0 ** rng.uniform(6, 20)
    return rows


def _batches(
    rng: np.random.Generator, model: GPRegressor, X: np.ndarray, far: int
) -> list[tuple[str, GPRegressor, np.ndarray, np.ndarray]]:
    """Return names, models, batches, and which point of X each row of a batch is."""
    t = len(X)
    every, shuffled, near = np.arange(t), rng.permutation(t), np.arange(t - far)
    one = int(rng.integers(t))
    repeated = rng.integers(0, t, 40)
    huge = np.concatenate([near, np.full(HUGE - t, near[0]), np.arange(t - far, t)])
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model")
        loaded = kernelcg.load(Path(folder) / "model")
    kinds = [
        ("without far rows", model, near),
        ("permuted", model, shuffled),
        ("a single row", model, np.array([one])),
        ("one row many times", model, np.full(7, one)),
        ("repeated rows", model, repeated),
        ("far row first", model, np.array([t - 1, 0, 1])),
        ("a large batch", model, huge),
        ("unpickled", pickle.loads(pickle.dumps(model)), every),
        ("loaded", loaded, shuffled),
    ]
    found = [(name, asked, X[rows], rows) for name, asked, rows in kinds]
    return [*found, ("Fortran order", model, np.asfortranarray(X), every)]
