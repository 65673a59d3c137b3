"""Generated regression problems: `GPRegressor` against the posterior in higher precision."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fuzz.data import Data, data, kernel, log_uniform, sizes
from fuzz.gaussian_truth import Process, Truth
from fuzz.kernel_truth import described
from fuzz.outcomes import Outcome
from kernelcg import GPRegressor, kernels

MOST_ROWS = 1500
MOST_LEARNED = 300
"""Rows up to which hyperparameters are learned, by a few steps."""

LEARNED_TO_THE_END = 60
"""Rows up to which learning is not cut short."""

LEFT_OUT = 6
"""Rows whose leave-one-out residual is compared."""

STANDARD_ERRORS = 6
"""How many standard errors an estimate may be off."""


@dataclass
class Problem:
    """Data and the options of a regressor."""

    data: Data
    options: dict[str, Any]
    left_out: np.ndarray
    story: str

    def fitted(self) -> GPRegressor:
        """Return the regressor, fitted."""
        return GPRegressor(**self.options).fit(self.data.X, self.data.y, self.data.noise_variance)


def problem(seed: int, most: int = MOST_ROWS) -> Problem:
    """Return the problem of a seed."""
    rng = np.random.default_rng([1, seed])
    learns = rng.random() < 0.4
    n, d = sizes(rng, min(most, MOST_LEARNED) if learns else most)
    outputs = int(rng.choice([1, 1, 1, 1, 2, 3]))
    made = data(rng, n, d, outputs)
    story = [f"seed={seed}", *made.story, f"outputs={outputs}"]
    options: dict[str, Any] = {
        "method": str(rng.choice(["direct", "iterative", "auto"])),
        "rtol": log_uniform(rng, 1e-10, 1e-2),
        "mean": str(rng.choice(["zero", "constant", "linear"])),
        "normalize_y": bool(rng.random() < 0.85),
    }
    default = learns and rng.random() < 0.5
    options["kernel"] = None if default else kernel(rng, made.X, story, kernels)
    options["noise"] = None if default else log_uniform(rng, 1e-12, 10)
    options["optimizer"] = "lbfgs" if learns else None
    options["max_iter"] = None if n <= LEARNED_TO_THE_END else 15
    story += [f"{name}={value}" for name, value in options.items() if name != "kernel"]
    left_out = rng.permutation(n)[:LEFT_OUT]
    return Problem(made, options, left_out, ", ".join(story))


def process(model: GPRegressor, made: Data, column: int) -> Process:
    """Return the process that a fitted model stands for, for one of its outputs, in units of standardised y."""
    Y = made.y.reshape(len(made.y), -1)
    scale, offset = float(model.y_scale_[column]), float(model.y_mean_[column])
    noise = float(np.broadcast_to(model.noise_, model.y_scale_.shape)[column])
    D = np.full(len(Y), noise)
    if made.noise_variance is not None:
        D = D + made.noise_variance / scale / scale
    kernel_ = model.kernel_[column] if isinstance(model.kernel_, list | tuple) else model.kernel_
    drift = drift_functions(model, made.X.shape[1], column)
    return Process(described(kernel_), made.X, Y[:, [column]], D, *drift, (offset,), (scale,))


def drift_functions(model: GPRegressor, d: int, column: int) -> tuple[np.ndarray, np.ndarray]:
    """Return centre and T of the drift [1, x − centre] T of one output.

    All linear functions are the same space in whatever basis. Where the model dropped directions in which the inputs do
    not vary, or has no more rows than features, the functions it kept are a choice of its own, like its kernel.
    """
    problem = model.posterior_.problem
    drift = (problem.output(column) if type(problem).__name__ == "Outputs" else problem).drift  # 0.1 has no such class
    T = drift.T.numpy()
    return drift.centre.numpy(), np.eye(1 + d) if T.shape[1] == 1 + d else T


def truths(model: GPRegressor, made: Data, left_out: np.ndarray) -> list[Truth]:
    """Return the truth of each output; outputs with the same noise share one factorisation."""
    own = [process(model, made, j) for j in range(len(model.y_scale_))]
    if all(np.array_equal(one.D, own[0].D) and str(one.kernel) == str(own[0].kernel) for one in own):
        offset, scale = (tuple(getattr(one, name)[0] for one in own) for name in ("offset", "scale"))
        together = replace(own[0], Y=np.concatenate([one.Y for one in own], 1), offset=offset, scale=scale)
        found = together.truth(made.X_new, left_out)
        return [found.column(j) for j in range(len(own))]
    return [one.truth(made.X_new, left_out) for one in own]


def judged(seed: int, most: int = MOST_ROWS) -> Outcome:
    """Fit the problem of a seed, ask everything, and compare with the truth."""
    case = problem(seed, most)
    outcome = Outcome("regression", seed, case.story)
    done = outcome.fit(case.fitted)
    if done is None:
        return outcome
    model, flagged = done
    found = truths(model, case.data, case.left_out)
    judge_predictions(outcome, model, case.data, found, flagged, float(case.options["rtol"]))
    judge_likelihood(outcome, model, found, flagged)
    judge_left_out(outcome, model, case.left_out, found, flagged)
    return outcome


def tolerance(model: GPRegressor, made: Data, truth: Truth, column: int, rtol: float) -> np.ndarray:
    """Return (t,) what a mean may be off: 1e-2 noise sd or 1e-6 (or rtol) of the sd of y, whichever is larger.

    Far from the data, where the standard deviation without noise is beyond 10 sd of y, 1e-2 of that; and
    everywhere 1e-9 of the mean.
    """
    y = made.y.reshape(len(made.y), -1)[:, column]
    scale = float(model.y_scale_[column])
    noise = scale * float(np.sqrt(np.broadcast_to(model.noise_, model.y_scale_.shape)[column]))
    spread = float(np.std(y)) or scale
    std = scale * np.sqrt(np.maximum(truth.variance, 0))
    far = np.where(std > 10 * spread, 1e-2 * std, 0.0) + 1e-9 * scale * np.abs(truth.mean[:, 0])
    return max(1e-2 * noise, max(1e-6, rtol) * spread) + far + 1e-13 * abs(float(model.y_mean_[column]))


def judge_predictions(
    outcome: Outcome, model: GPRegressor, made: Data, found: list[Truth], flagged: bool, rtol: float
) -> None:
    """Judge the plain mean, the standard deviation, the bounds and the covariance at the new points."""
    X, t = made.X_new, len(made.X_new)
    with outcome.watching("predict") as own:
        plain = model.predict(X).reshape(t, -1)
    with outcome.watching("predict std") as std_flags:
        mean, std = (a.reshape(t, -1) for a in model.predict(X, return_std=True))
    with outcome.watching("predict bound"):
        bounded, _, bounds = model.predict(X, return_std=True, return_bound=True)
    with outcome.watching("predict latent bound"):
        *_, latent_bounds = model.predict(X, return_std=True, return_bound=True, include_noise=False)
    with outcome.watching("predict mean bound"):
        alone, alone_bounds = model.predict(X, return_bound=True)
    with outcome.watching("predict cov") as cov_flags:
        covariance = model.predict(X, return_cov=True)[1].reshape(t, t, -1)
    for j, truth in enumerate(found):
        scale, offset = float(model.y_scale_[j]), float(model.y_mean_[j])
        noise = float(np.broadcast_to(model.noise_, model.y_scale_.shape)[j])
        exact, exact_std = truth.mean[:, 0] * scale + offset, np.sqrt(np.maximum(truth.variance, 0) + noise) * scale
        allowed = tolerance(model, made, truth, j, rtol)
        for call, values, warned in (("mean", plain, own), ("mean beside std", mean, std_flags)):
            worst = np.argmax(np.abs(values[:, j] - exact) / allowed)
            outcome.check(call, abs(values[worst, j] - exact[worst]), allowed[worst], flagged=flagged or bool(warned))
        off = float(np.max(np.abs(std[:, j] / exact_std - 1)))
        outcome.check("std", off, 0.05, flagged=flagged or bool(std_flags))
        exact_cov = truth.covariance * scale**2 + noise * scale**2 * np.eye(t)
        off = float(np.max(np.abs(covariance[:, :, j] - exact_cov) / np.outer(exact_std, exact_std)))
        outcome.check("cov", off, 0.1, flagged=flagged or bool(cov_flags))
        column = [
            np.asarray(a).reshape(t, -1)[:, j] for a in (bounded, bounds.mean, bounds.std_lower, bounds.std_upper)
        ]
        _judge_bounds(outcome, "bound", exact, exact_std, *column)
        column = [
            np.asarray(a).reshape(t, -1)[:, j]
            for a in (latent_bounds.mean, latent_bounds.std_lower, latent_bounds.std_upper)
        ]
        exact_latent = np.sqrt(np.maximum(truth.variance, 0)) * scale
        _judge_bounds(outcome, "latent bound", exact, exact_latent, np.asarray(bounded).reshape(t, -1)[:, j], *column)
        column = [np.asarray(a).reshape(t, -1)[:, j] for a in (alone, alone_bounds.mean)]
        _judge_bounds(outcome, "mean bound alone", exact, exact_std, *column)
        if j == 0:
            _describe_bounds(
                outcome, np.asarray(bounded).reshape(t, -1)[:, 0] - exact, column[1], scale * np.sqrt(noise)
            )


def _judge_bounds(
    outcome: Outcome,
    call: str,
    exact: np.ndarray,
    exact_std: np.ndarray,
    mean: np.ndarray,
    bound: np.ndarray,
    low: np.ndarray | None = None,
    high: np.ndarray | None = None,
) -> None:
    """Record every promise about the mean and the standard deviation that the truth contradicts."""
    rounding = 4e-16 * np.abs(exact)  # of the truth on its way into float64
    broken = ~(np.abs(mean - exact) <= bound + rounding)
    if broken.any():
        i = int(np.argmax(broken))
        outcome.violations.append(f"{call}: mean off by {abs(mean[i] - exact[i]):.3g}, bound {bound[i]:.3g}")
    if low is None or high is None:
        return
    broken = ~((low * (1 - 1e-15) <= exact_std) & (exact_std <= high * (1 + 1e-15)))
    if broken.any():
        i = int(np.argmax(broken))
        outcome.violations.append(f"{call}: std {exact_std[i]:.17g} outside [{low[i]:.17g}, {high[i]:.17g}]")


def _describe_bounds(outcome: Outcome, off: np.ndarray, bound: np.ndarray, noise: float) -> None:
    with np.errstate(divide="ignore", invalid="ignore"):
        outcome.numbers["bound_over_error"] = float(np.median(bound / np.abs(off)))
        outcome.numbers["bound_over_noise"] = float(np.median(bound / noise))


def judge_likelihood(outcome: Outcome, model: GPRegressor, found: list[Truth], flagged: bool) -> None:
    """Judge the log marginal likelihood: its bracket with standard errors, and the value where there is none."""
    exact = float(sum(truth.log_likelihood[0] for truth in found))
    certificate, value = model.certificate_, float(model.log_marginal_likelihood_value_)
    if np.isnan(value) and flagged:
        return
    spread = STANDARD_ERRORS * certificate.standard_error
    rounding = 1e-15 * abs(exact)
    if not certificate.lower - spread - rounding <= exact <= certificate.upper + spread + rounding:
        outcome.violations.append(
            f"evidence: {exact:.12g} outside [{certificate.lower:.12g}, {certificate.upper:.12g}] ± {spread:.3g}"
        )
    allowed = 0.1 + 1e-3 * abs(exact) + spread
    outcome.check("evidence", abs(value - exact), allowed, flagged=flagged)


def judge_left_out(outcome: Outcome, model: GPRegressor, rows: np.ndarray, found: list[Truth], flagged: bool) -> None:
    """Judge leave-one-out residuals and standard deviations of a few rows."""
    if len(model.posterior_.problem.X) < 2:
        return
    with outcome.watching("loo") as own:
        left_out = model.loo()
    n = len(left_out.relative_errors)
    residuals, stds = (np.asarray(a).reshape(n, -1)[rows] for a in (left_out.residuals, left_out.std))
    errors = np.asarray(left_out.relative_errors).reshape(n, -1)[rows]
    factor, floor = (1.01, 1e-12) if model.plan_.method == "direct" else (STANDARD_ERRORS, 1e-6)
    for j, truth in enumerate(found):
        scale = float(model.y_scale_[j])
        exact, exact_std = truth.left_out_residuals[:, 0] * scale, np.sqrt(truth.left_out_variances) * scale
        own_errors = factor * errors[:, min(j, errors.shape[1] - 1)]
        known = np.isfinite(exact) & np.isfinite(own_errors)
        if not known.any():
            continue
        off = np.abs(residuals[:, j] - exact)[known]
        allowed = ((own_errors + max(floor, 1e-9)) * (np.abs(exact) + exact_std))[known]
        std_off = np.abs(stds[:, j] / exact_std - 1)[known]
        std_allowed = (own_errors + floor)[known]
        if not (off <= allowed).all() or not (std_off <= std_allowed).all():
            worst = f"{np.max(off / exact_std[known]):.3g} std, std {np.max(std_off):.3g}"
            outcome.violations.append(f"loo: off by {worst}, claimed {np.max(own_errors[known]):.3g}")
        excused = flagged or bool(own)
        outcome.check("loo", float(np.max((off - allowed) / exact_std[known])), 0.05, flagged=excused)
        outcome.check("loo std", float(np.max(std_off - std_allowed)), 0.05, flagged=excused)
