"""Generated regressions with every kernel of the library, and everything that a fitted model can be asked."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import ndtri

import kernelcg
from fuzz.batches import fitted_in_parts
from fuzz.data import Data, log_uniform
from fuzz.gaussian_truth import Truth
from fuzz.kernel_truth import described
from fuzz.outcomes import Outcome
from fuzz.question_data import far_rows, question_data, question_kernel
from fuzz.question_truth import component, slopes, with_digits
from fuzz.regression import judge_left_out, judge_likelihood, judge_predictions, process, tolerance, truths
from kernelcg import GPRegressor, kernels

MOST_ROWS = 120

DRAWS = 20_000
"""Draws of which mean and covariance are compared."""

STANDARD_ERRORS = 9
"""How many standard errors they may be off: once in 1e18 comparisons by chance."""

LEVELS = (0.01, 0.5, 0.975)

SMOOTH = ("points", "places", "unit")
"""Inputs in which kernels have derivatives."""


def judged(seed: int, most: int = MOST_ROWS) -> Outcome:
    """Fit a model, ask it everything, and compare the answers with the truth."""
    rng = np.random.default_rng([5, seed])
    n = int(log_uniform(rng, 1, most + 0.999))
    world, made = question_data(rng, n)
    options: dict[str, Any] = {
        "method": str(rng.choice(["direct", "iterative", "auto"])),
        "mean": str(rng.choice(["zero", "constant", "linear"])),
        "noise": log_uniform(rng, 1e-9, 1),
        "rtol": float(rng.choice([1e-6, 1e-8, 1e-3])),
        "optimizer": None if rng.random() < 0.85 else "lbfgs",
        "max_iter": 4,
    }
    story = [f"seed={seed}", *made.story, *(f"{name}={value}" for name, value in options.items())]
    options["kernel"] = question_kernel(rng, world, made.X, story, kernels)
    first = n if rng.random() < 0.6 or options["optimizer"] else int(rng.integers(1, n + 1))
    story.append("" if first == n else f"{n - first} rows by update")
    outcome = Outcome("questions", seed, ", ".join(story))
    done = outcome.fit(lambda: fitted_in_parts(GPRegressor(**options), made, first))
    if done is None:
        return outcome
    model, flagged = done
    near = made.X_new
    made.X_new = np.concatenate([near, far_rows(rng, world, made.X)])
    left_out = rng.permutation(n)[:6]
    found = truths(model, made, left_out)
    judge_predictions(outcome, model, made, found, flagged, model.rtol)
    judge_likelihood(outcome, model, found, flagged)
    judge_left_out(outcome, model, left_out, found, flagged)
    judge_left_out_densities(outcome, model, left_out, found[0], flagged)
    judge_distributions(outcome, model, made, found[0], flagged, rng)
    judge_draws(outcome, model, made, found[0], flagged, seed)
    judge_file(outcome, model, made.X_new)
    smooth = near[:4] if world in SMOOTH else near[:0]
    with_digits(process(model, made, 0), lambda given: judge_parts(outcome, model, made, given, flagged, smooth))
    return outcome


def exact(model: GPRegressor, truth: Truth) -> tuple[np.ndarray, np.ndarray]:
    """Return means and standard deviations, noise included, in the units of y."""
    scale, noise = float(model.y_scale_[0]), float(np.ravel(model.noise_)[0])
    std = scale * np.sqrt(np.maximum(truth.variance, 0) + noise)
    return truth.mean[:, 0] * scale + float(model.y_mean_[0]), std


def compare(outcome: Outcome, call: str, off: np.ndarray, allowed: np.ndarray, *, flagged: bool) -> None:
    """Record a failure at the entry that is furthest off."""
    if off.size:
        ratios = np.nan_to_num(off / allowed, nan=np.inf)
        worst = np.unravel_index(np.argmax(ratios), off.shape)
        outcome.check(f"{call} at {tuple(map(int, worst))}", float(off[worst]), float(allowed[worst]), flagged=flagged)


def judge_left_out_densities(
    outcome: Outcome, model: GPRegressor, rows: np.ndarray, truth: Truth, flagged: bool
) -> None:
    """Judge leave-one-out log densities, and that numbers which are finite in truth are finite or flagged."""
    if len(model.posterior_.problem.X) < 2:
        return
    with outcome.watching("loo densities") as own:
        left_out = model.loo()
    scale, known = float(model.y_scale_[0]), np.isfinite(truth.left_out_variances)
    std, residuals = np.sqrt(truth.left_out_variances) * scale, truth.left_out_residuals[:, 0] * scale
    squares = np.square(residuals / std)
    density = -0.5 * squares - np.log(std) - 0.5 * np.log(2 * np.pi)
    errors = np.ravel(left_out.relative_errors)[rows]
    finite = np.isfinite(left_out.std[rows]) & np.isfinite(left_out.residuals[rows])
    excused = flagged or bool(own)
    outcome.check("loo, rows that are not finite", float(np.sum(known & ~finite)), 0.0, flagged=excused)
    known &= finite & (errors < 0.05)
    # five per cent of the std in residuals and of the std itself, and nine standard errors
    part = 0.05 + (0 if model.plan_.method == "direct" else STANDARD_ERRORS) * errors
    off, allowed = np.abs(left_out.log_densities[rows] - density), 3 * part * (1 + squares)
    compare(outcome, "loo density", off[known], allowed[known], flagged=excused)


def judge_distributions(
    outcome: Outcome, model: GPRegressor, made: Data, truth: Truth, flagged: bool, rng: np.random.Generator
) -> None:
    """Judge quantiles and log densities of new observations."""
    mean, std = exact(model, truth)
    allowed = tolerance(model, made, truth, 0, model.rtol) + 0.05 * std
    with outcome.watching("quantiles") as own:
        quantiles = model.predict(made.X_new, quantiles=list(LEVELS))
    normal = ndtri(np.array(LEVELS))
    off = np.abs(quantiles - (mean[:, None] + std[:, None] * normal))
    compare(outcome, "quantiles", off, allowed[:, None] * (1 + np.abs(normal)), flagged=flagged or bool(own))
    y = mean + std * rng.normal(size=len(mean)) * rng.choice([1, 10])
    with outcome.watching("log density") as own:
        density = model.log_predictive_density(made.X_new, y)
    z = np.abs(y - mean) / std
    right = -0.5 * z**2 - np.log(std) - 0.5 * np.log(2 * np.pi)
    compare(
        outcome, "log density", np.abs(density - right), 3 * allowed / std * (1 + z) ** 2, flagged=flagged or bool(own)
    )


def judge_draws(outcome: Outcome, model: GPRegressor, made: Data, truth: Truth, flagged: bool, seed: int) -> None:
    """Judge the mean and the covariance of many draws, with noise."""
    mean, std = exact(model, truth)
    with outcome.watching("sample_y") as own:
        draws = model.sample_y(made.X_new, DRAWS, random_state=seed)
    excused, errors = flagged or bool(own), STANDARD_ERRORS / DRAWS**0.5
    centred = (draws - mean[:, None]) / std[:, None]
    allowed = tolerance(model, made, truth, 0, model.rtol) / std + 1.05 * errors
    compare(outcome, "mean of draws", np.abs(centred.mean(1)), allowed, flagged=excused)
    noise = float(np.ravel(model.noise_)[0]) * np.eye(len(mean))
    correlation = (truth.covariance + noise) * float(model.y_scale_[0]) ** 2 / np.outer(std, std)
    off = np.abs(np.cov(centred) - correlation)
    compare(outcome, "covariance of draws", off, 0.1 + errors * np.sqrt(1 + correlation**2), flagged=excused)


def judge_file(outcome: Outcome, model: GPRegressor, X: np.ndarray) -> None:
    """Judge that a model which was written and read predicts the same numbers."""
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model")
        loaded = kernelcg.load(Path(folder) / "model")
    with outcome.watching("saved"):
        answers = [(one.predict(X), *one.predict(X, return_std=True)) for one in (model, loaded)]
    for name, before, after in zip(("mean", "mean beside std", "std"), *answers, strict=True):
        allowed = 1e-9 * np.abs(before) if name == "std" else np.zeros(len(X))
        with np.errstate(divide="ignore", invalid="ignore"):
            off = np.abs(np.asarray(after) - np.asarray(before))
        if not (off <= allowed).all():
            outcome.failures.append(f"{name} of a loaded model is another one, by {np.max(off):.3g}")


def judge_parts(
    outcome: Outcome, model: GPRegressor, made: Data, given: Any, flagged: bool, smooth: np.ndarray
) -> None:
    """Judge components, and derivatives in x at some points."""
    scale, noise = float(model.y_scale_[0]), float(np.ravel(model.noise_)[0])
    spread = float(np.std(made.y)) or scale
    allowed = max(1e-2 * scale * noise**0.5, max(1e-6, model.rtol) * spread)
    with outcome.watching("components") as own:
        parts = model.components(made.X_new, return_std=True)
    for number, part in enumerate(parts):
        mean, variance = component(given, None if part.kernel is None else described(part.kernel), made.X_new)
        level = float(model.y_mean_[0]) if part.kernel is None else 0.0
        latent = scale * np.sqrt(np.maximum(variance, 0))
        most = (
            allowed
            + 1e-9 * np.abs(scale * mean)
            + 1e-13 * abs(level)
            + np.where(latent > 10 * spread, 1e-2 * latent, 0)
        )
        excused = flagged or bool(own)
        compare(outcome, f"component {number}", np.abs(part.mean - scale * mean - level), most, flagged=excused)
        std = scale * np.sqrt(np.maximum(variance, 0) + noise)
        off = np.abs(np.sqrt(np.square(part.std) + noise * scale**2) / std - 1)
        compare(outcome, f"std of component {number}", off, np.full(len(std), 0.05), flagged=excused)
    if len(smooth):
        judge_slopes(outcome, model, made, given, flagged, smooth, allowed)


def judge_slopes(
    outcome: Outcome, model: GPRegressor, made: Data, given: Any, flagged: bool, X: np.ndarray, allowed: float
) -> None:
    """Judge derivatives of mean and standard deviation, noise included, at points that are no training rows."""
    inside = np.abs(X[:, None] - made.X).max(2).min(1) > 0
    inside &= ((X > 0) & (X < 1)).all(1) if "Warped" in repr(model.kernel_) else True
    X = X[inside]
    if not len(X):
        return
    unit = np.maximum(np.subtract(*np.percentile(made.X, [80, 20], axis=0)), 1e-12 * np.abs(made.X).max(0))
    unit = np.where(unit > 0, unit, 1e-3)
    truth = slopes(given, X, unit * 1e-6)
    scale, noise = float(model.y_scale_[0]), float(np.ravel(model.noise_)[0])
    differentiable, points = model.differentiable(), torch.from_numpy(X.copy()).requires_grad_()
    with outcome.watching("derivatives") as own:
        (by_mean,) = torch.autograd.grad(differentiable.mean(points).sum(), points)
        std = differentiable.variance(points, noisy=True).sqrt()
        (by_std,) = torch.autograd.grad(std.sum(), points)
    _, latent = given.at(given.process.kernel, X, drift=True)
    exact_std = scale * np.sqrt(np.maximum([float(v) for v in latent], 0) + noise)[:, None]
    floor, excused = 1e-9 * scale / unit, flagged or bool(own)
    off = np.abs(by_mean.numpy() - scale * truth.mean)
    most = 10 * allowed * truth.correlation + 1e-3 * np.abs(scale * truth.mean) + floor
    compare(outcome, "slope of the mean", off, most, flagged=excused)
    right = scale**2 * truth.variance / (2 * exact_std)
    most = 0.05 * exact_std * truth.correlation + 0.05 * np.abs(right) + floor
    compare(outcome, "slope of the std", np.abs(by_std.numpy() - right), most, flagged=excused)
