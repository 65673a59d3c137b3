"""Generated kernel ridge regressions: `KernelRidge` against (K + αI) a = y in higher precision."""

from typing import Any

import numpy as np

from fuzz.data import data, kernel, log_uniform, sizes
from fuzz.gaussian_truth import Process
from fuzz.kernel_truth import described, is_stationary
from fuzz.outcomes import Outcome
from kernelcg import KernelRidge, kernels

MOST_ROWS = 1500
MOST_SELECTED = 200
"""Rows up to which hyperparameters are selected, by a few steps."""

NAMES = ("linear", "rbf", "laplacian", "poly", "cosine")


def judged(seed: int, most: int = MOST_ROWS) -> Outcome:
    """Fit the problem of a seed and compare its predictions with the truth."""
    rng = np.random.default_rng([2, seed])
    selection = str(rng.choice(["gcv", "loo", "marginal_likelihood"])) if rng.random() < 0.3 else None
    n, d = sizes(rng, min(most, MOST_SELECTED) if selection else most)
    made = data(rng, n, d, int(rng.choice([1, 1, 1, 2])))
    named = str(rng.choice(NAMES)) if rng.random() < 0.5 else None
    options: dict[str, Any] = {
        "alpha": log_uniform(rng, 1e-12, 1e2),
        "selection": selection,
        "method": str(rng.choice(["direct", "iterative", "auto"])),
        "rtol": log_uniform(rng, 1e-12, 1e-3),
        "max_iter": 15,
        "gamma": log_uniform(rng, 1e-2, 1e1) / d / float(np.median(np.abs(made.X)) or 1.0) ** 2,
    }
    story = [f"seed={seed}", *made.story, f"{named}", *(f"{name}={value}" for name, value in options.items())]
    options["kernel"] = named or kernel(rng, made.X, story, kernels)
    weights = 10.0 ** rng.uniform(-3, 3, n) if selection is None and rng.random() < 0.2 else None
    outcome = Outcome("ridge", seed, ", ".join([*story, *(["weights"] if weights is not None else [])]))
    done = outcome.fit(lambda: KernelRidge(**options).fit(made.X, made.y, weights))
    if done is None:
        return outcome
    model, flagged = done
    with outcome.watching("predict") as own:
        found = model.predict(made.X_new).reshape(len(made.X_new), -1)
    _judge(outcome, model, _process(model, made.X, made.y, weights), found, made.X_new, flagged or bool(own))
    return outcome


def _process(model: KernelRidge, X: np.ndarray, y: np.ndarray, weights: np.ndarray | None) -> Process:
    """Return the Gaussian process whose mean is the ridge regression."""
    n, d = X.shape
    D = np.full(n, float(model.alpha_))
    if weights is not None:
        alphas = float(model.alpha) / weights
        D = alphas.min() + (alphas - alphas.min())  # as float64 has it
    return Process(described(model.kernel_), X, y.reshape(n, -1), D, np.zeros(d), np.zeros((1 + d, 0)))


def _judge(
    outcome: Outcome, model: KernelRidge, process: Process, found: np.ndarray, X_new: np.ndarray, flagged: bool
) -> None:
    """Judge predictions by 1e-2 of the noise that alpha stands for, or 1e-6 (or rtol) of y, and by the certificate."""
    exact = process.truth(X_new, np.zeros(0, int)).mean
    size = float(np.sqrt(np.mean(process.Y**2)))
    signal = float(np.mean([abs(v) for v in process.prior_variances()]))
    noise = size * float(np.sqrt(process.D.min() / signal)) if signal > 0 else size
    allowed = max(1e-2 * noise, max(1e-6, float(model.rtol)) * size) + 1e-9 * np.abs(exact)
    off = np.abs(found - exact)
    worst = np.unravel_index(np.argmax(off / allowed), off.shape)
    outcome.check("mean", float(off[worst]), float(allowed[worst]), flagged=flagged)
    bound = float(model.certificate_.mean_error)
    if is_stationary(process.kernel):
        outcome.numbers["bound_over_error"] = float(bound / max(float(np.max(off)), 1e-300))
        outcome.numbers["bound_over_noise"] = float(bound / noise) if noise else np.inf
        if not np.all(off <= bound + 4e-16 * np.abs(exact)):
            outcome.violations.append(f"certificate: mean off by {np.max(off):.3g}, bound {bound:.3g}")
