"""Generated problems of Laplace's approximation: classifiers and generalised regressors against higher precision."""

import itertools
import math
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np
from scipy.integrate import quad
from scipy.special import expit, ndtr

from fuzz.data import far_row, inputs, kernel, log_uniform, new_points, sizes
from fuzz.kernel_truth import described
from fuzz.laplace_truth import LIKELIHOODS, Process, Truth
from fuzz.outcomes import Outcome
from kernelcg import GPClassifier, GPGeneralizedRegressor, kernels, likelihoods

MOST_ROWS = 150
MOST_LATENT = 120
"""Latent values of a softmax: rows times classes."""

STANDARD_ERRORS = 6
DRAWS = 100_000

FAMILIES = ("probit", "logit", "softmax", "poisson", "binomial", "negative_binomial", "gamma", "student_t")
CLASSES = ("probit", "logit", "softmax")


@dataclass
class Problem:
    """Data and the options of an estimator."""

    family: str
    X: np.ndarray
    y: np.ndarray
    exposure: np.ndarray
    X_new: np.ndarray
    options: dict[str, Any]
    story: str

    def fitted(self) -> Any:
        """Return the estimator, fitted."""
        if self.family in CLASSES:
            return GPClassifier(**self.options).fit(self.X, self.y)
        return GPGeneralizedRegressor(**self.options).fit(self.X, self.y, self.exposure)


def latent_function(rng: np.random.Generator, X: np.ndarray) -> np.ndarray:
    """Return (n,) a smooth function of the standardised inputs, of some size."""
    spread = np.median(np.abs(X - np.median(X, 0)), 0)
    Z = np.clip((X - np.median(X, 0)) / np.where(spread > 0, spread, 1), -1e2, 1e2)
    return log_uniform(rng, 0.1, 5) * np.sin(Z @ rng.normal(size=X.shape[1]) / math.sqrt(X.shape[1]))


def labels(rng: np.random.Generator, f: np.ndarray, classes: int, story: list[str]) -> np.ndarray:
    """Return class numbers: noisy, separable, or one class with a single row; every class occurs."""
    n, kind = len(f), str(rng.choice(["noisy", "separable", "one row", "random"]))
    story.append(f"{kind} labels")
    if kind == "one row":
        y = rng.integers(0, max(classes - 1, 1), n)
        y[rng.integers(n)] = classes - 1
    elif kind == "random":
        y = rng.integers(0, classes, n)
    else:
        noisy = f + (rng.normal(size=n) if kind == "noisy" else 0)
        y = np.digitize(noisy, np.quantile(noisy, np.arange(1, classes) / classes))
    y[:classes] = np.arange(classes)[: len(y)]
    return y


def observations(
    rng: np.random.Generator, family: str, f: np.ndarray, story: list[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Return y and exposures."""
    n, exposure = len(f), np.ones(len(f))
    if family in ("poisson", "negative_binomial", "binomial") and rng.random() < 0.6:
        top = log_uniform(rng, 2, 1e9)
        exposure = np.maximum(np.round(top * rng.random(n)), 1.0)
        story.append(f"exposures up to {top:.0e}")
    if family == "poisson":
        level = log_uniform(rng, 1e-2, 1e6) / (1 if exposure.max() == 1 else exposure.max())
        story.append(f"level {level:.0e}")
        return rng.poisson(np.minimum(level * exposure * np.exp(f), 1e15)).astype(float), exposure
    if family == "negative_binomial":
        mu = np.minimum(exposure * np.exp(f), 1e12) * rng.gamma(2.0, 0.5, n)
        return rng.poisson(mu).astype(float), exposure
    if family == "binomial":
        return rng.binomial(exposure.astype(np.int64), expit(f)).astype(float), exposure
    scale = log_uniform(rng, 1e-8, 1e8) if rng.random() < 0.5 else 1.0
    story.append(f"y scaled {scale:.0e}")
    if family == "gamma":
        return scale * np.exp(f) * rng.gamma(2.0, 0.5, n) + 1e-300, exposure
    y = f + 0.1 * rng.standard_t(3, n)
    if rng.random() < 0.5:
        y[rng.integers(n)] += 10.0 ** rng.uniform(1, 6)
        story.append("outlier")
    return scale * y, exposure


def likelihood_of(rng: np.random.Generator, family: str, y: np.ndarray) -> Any:
    """Return the likelihood of a generalised regressor, by name or with fixed hyperparameters."""
    if rng.random() < 0.4:
        return family
    spread = float(np.median(np.abs(y - np.median(y)))) or 1.0
    return {
        "poisson": lambda: likelihoods.Poisson(),
        "binomial": lambda: likelihoods.Binomial(),
        "negative_binomial": lambda: likelihoods.NegativeBinomial(log_uniform(rng, 1e-3, 10)),
        "gamma": lambda: likelihoods.Gamma(log_uniform(rng, 0.3, 100)),
        "student_t": lambda: likelihoods.StudentT(spread * log_uniform(rng, 1e-2, 1), log_uniform(rng, 2.1, 30)),
    }[family]()


def problem(seed: int, most: int = MOST_ROWS) -> Problem:
    """Return the problem of a seed."""
    rng = np.random.default_rng([3, seed])
    family = FAMILIES[int(rng.integers(len(FAMILIES)))]
    C = int(rng.integers(3, 5)) if family == "softmax" else 2
    n, d = sizes(rng, min(most, MOST_LATENT // C) if family == "softmax" else most)
    n, d = max(n, C) if family in CLASSES else n, min(d, 12)
    story = [f"seed={seed}", family, f"n={n}", f"d={d}"]
    together = inputs(rng, n + 4, d, story)
    X, further = together[:n].copy(), together[n:]
    if rng.random() < 0.1:
        far_row(rng, X, story)
    X_new = new_points(rng, X, further)
    f = latent_function(rng, X)
    exposure = np.ones(n)
    if family in CLASSES:
        y = labels(rng, f, C, story)
    else:
        y, exposure = observations(rng, family, f, story)
    learns = rng.random() < 0.2
    options: dict[str, Any] = {
        "kernel": kernel(rng, X, story, kernels),
        "method": str(rng.choice(["direct", "iterative", "auto"])),
        "rtol": log_uniform(rng, 1e-10, 1e-2),
        "optimizer": "lbfgs" if learns else None,
        "max_iter": 8,
        "likelihood": family if family in CLASSES else likelihood_of(rng, family, y),
    }
    if family not in CLASSES:
        options["mean"] = str(rng.choice(["zero", "constant", "linear"]))
    if family == "student_t" and rng.random() < 0.7:
        options["kernel"] = None
    story += [f"{name}={value}" for name, value in options.items() if name != "kernel"]
    return Problem(family, X, y, exposure, X_new, options, ", ".join(story))


def truth(model: Any, case: Problem) -> Truth | None:
    """Return the truth about the process that a fitted model stands for; None if it has no mode near the model's."""
    posterior = model.posterior_
    name = type(model.likelihood_).__name__
    phi = [float(getattr(model.likelihood_, one)) for one in LIKELIHOODS[name][1]] if name in LIKELIHOODS else []
    drift, d = posterior.problem.drift, case.X.shape[1]
    T = drift.T.numpy()
    T = np.eye(1 + d) if T.shape[1] == 1 + d else T
    beta = posterior.mode.beta.numpy()[:, 0]
    if T.shape[1]:
        beta = np.linalg.lstsq(T, drift.T.numpy() @ beta, rcond=None)[0]
    codes = np.unique(case.y, return_inverse=True)[1] if case.family in CLASSES else case.y
    process = Process(
        described(model.kernel_),
        name,
        phi,
        case.X,
        codes,
        case.exposure,
        posterior.problem.classes,
        drift.centre.numpy(),
        T,
        (posterior.mode.a.numpy()[:, 0], beta),
    )
    try:
        return process.truth(case.X_new)
    except ZeroDivisionError:  # the drift is not determined by the data
        return None


def judged(seed: int, most: int = MOST_ROWS) -> Outcome:
    """Fit the problem of a seed, ask everything, and compare with the truth."""
    case = problem(seed, most)
    outcome = Outcome("laplace", seed, case.story)
    done = outcome.fit(case.fitted)
    if done is None:
        return outcome
    model, flagged = done
    exact = truth(model, case)
    if exact is None or not exact.is_maximum:
        with outcome.watching("latent std") as own:
            model.latent(case.X_new, return_std=True)
        if not flagged and not own:
            outcome.failures.append("the fit is called exact, but there is no mode next to it")
        return outcome
    judge_evidence(outcome, model, exact, flagged)
    judge_latent(outcome, model, case, exact, flagged)
    if case.family in CLASSES:
        judge_probabilities(outcome, model, case, exact, flagged)
    else:
        judge_moments(outcome, model, case, exact, flagged)
    return outcome


def judge_evidence(outcome: Outcome, model: Any, exact: Truth, flagged: bool) -> None:
    """Judge the bracket of the log marginal likelihood, and its value."""
    certificate, value = model.certificate_, float(model.log_marginal_likelihood_value_)
    spread, rounding = STANDARD_ERRORS * certificate.standard_error, 1e-15 * abs(exact.evidence)
    if not certificate.lower - spread - rounding <= exact.evidence <= certificate.upper + spread + rounding:
        said = f"[{certificate.lower:.12g}, {certificate.upper:.12g}] ± {spread:.3g}"
        # without a promise a bracket may be anything
        (outcome.violations if not flagged else outcome.flags).append(f"evidence: {exact.evidence:.12g} outside {said}")
    allowed = 0.1 + 1e-3 * abs(exact.evidence) + spread
    outcome.check("evidence", abs(value - exact.evidence), allowed, flagged=flagged)


def judge_latent(outcome: Outcome, model: Any, case: Problem, exact: Truth, flagged: bool) -> None:
    """Judge latent means and standard deviations, and the bounds that go with them."""
    with outcome.watching("latent std") as own:
        mean, std = (np.asarray(a).reshape(len(case.X_new), -1) for a in model.latent(case.X_new, return_std=True))
    exact_std = np.sqrt(np.maximum(exact.variances, 0.0))
    size = np.maximum(exact_std, 1e-300)
    off = float(np.max(np.abs(mean - exact.mean) / (size + 1e-6 * np.abs(exact.mean))))
    outcome.check("latent mean in sd", off, 0.05, flagged=flagged or bool(own))
    outcome.check("latent std", float(np.max(np.abs(std / size - 1))), 0.05, flagged=flagged or bool(own))
    found, error = with_bounds(model, model._points(case.X_new))
    bound = found.mean_bound.numpy()
    worst = np.abs(mean - exact.mean).max(1) - bound - 4e-16 * np.abs(exact.mean).max(1)
    if not (worst <= 0).all() and not flagged:
        i = int(np.argmax(worst))
        outcome.violations.append(f"latent mean off by {worst[i] + bound[i]:.3g}, bound {bound[i]:.3g}")
    variances = np.diagonal(found.covariance.numpy(), axis1=1, axis2=2)
    worst = np.abs(variances - exact.variances).max(1) - error - 1e-15 * exact.variances.max(1)
    if not (worst <= 0).all() and not flagged:
        i = int(np.argmax(worst))
        outcome.violations.append(f"latent variance off by {worst[i] + error[i]:.3g}, bound {error[i]:.3g}")
    with np.errstate(divide="ignore", invalid="ignore"):
        outcome.numbers["bound_over_error"] = float(np.median(bound[:, None] / np.abs(mean - exact.mean)))
        outcome.numbers["bound_over_sd"] = float(np.median(bound[:, None] / size))
        outcome.numbers["variance_bound"] = float(np.median(error[:, None] / size**2))


def with_bounds(model: Any, points: Any) -> tuple[Any, np.ndarray]:
    """Return latent means and covariances with bounds, and those of the variances; version 0.1 knew no others."""
    predict = model._posterior().predict
    if "bound" in signature(predict).parameters:
        found = predict(points, covariance=True, bound=True)
        return found, found.variance_error.numpy()
    found = predict(points, covariance=True)
    return found, found.covariance_error.numpy()


def judge_probabilities(outcome: Outcome, model: Any, case: Problem, exact: Truth, flagged: bool) -> None:
    """Judge probabilities and, where they are clear, labels."""
    with outcome.watching("predict_proba") as own:
        P = model.predict_proba(case.X_new)
    with outcome.watching("predict"):
        found = model.predict(case.X_new)
    factors = getattr(model, "calibration_", None)  # version 0.1 did not calibrate
    a, b = (1.0, 1.0) if factors is None else (factors.mean, factors.covariance)
    pairs = zip(a * exact.mean, b * exact.covariance, strict=True)
    expected = np.array([probabilities(case.family, *pair) for pair in pairs])
    outcome.check("probability", float(np.abs(P - expected).max()), 0.02, flagged=flagged or bool(own))
    ordered = np.sort(expected, axis=1)
    clear = ordered[:, -1] - ordered[:, -2] > 0.05
    wrong = clear & (found != model.classes_[expected.argmax(1)]) & (case.family != "softmax")
    if wrong.any() and not flagged:
        outcome.failures.append(f"{wrong.sum()} labels are wrong")


def probabilities(family: str, mean: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Return the averages of the class probabilities over the latent values of one point."""
    if family == "softmax":
        values, V = np.linalg.eigh(covariance)
        draws = np.random.default_rng(0).standard_normal((DRAWS, len(mean)))
        F = mean + (draws * np.sqrt(np.maximum(values, 0))) @ V.T
        weights = np.exp(F - F.max(1, keepdims=True))
        return (weights / weights.sum(1, keepdims=True)).mean(0)
    m, v = float(mean[0]), max(float(covariance[0, 0]), 0.0)
    p = float(ndtr(m / math.sqrt(1 + v))) if family == "probit" else average(expit, m, v)
    return np.array([1 - p, p])


def average(function: Any, m: float, v: float) -> float:
    """Return E function(f), f ~ N(m, v), for a bounded function with its structure around 0."""
    sd = math.sqrt(v)
    if sd < 1e-8:
        return float(function(m))
    nodes = np.unique(np.clip([0, -40, 40, -5, 5, *(m + sd * np.arange(-10, 11, 2))], m - 10 * sd, m + 10 * sd))
    pieces = itertools.pairwise(nodes)
    total = sum(
        quad(lambda f: function(f) * math.exp(-(((f - m) / sd) ** 2) / 2), *piece, limit=200)[0] for piece in pieces
    )
    return float(total / (sd * math.sqrt(2 * math.pi)))


def judge_moments(outcome: Outcome, model: Any, case: Problem, exact: Truth, flagged: bool) -> None:
    """Judge mean and standard deviation of y at the new points, in units of the latter."""
    with outcome.watching("predict std") as own:
        mean, std = model.predict(case.X_new, return_std=True)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = [
            moments(model.likelihood_, m, v) for m, v in zip(exact.mean[:, 0], exact.variances[:, 0], strict=True)
        ]
        exact_mean, exact_std = np.array(expected).T
        finite = np.isfinite(exact_mean) & np.isfinite(exact_std)
        if not np.isfinite(mean[finite]).all() and not own:
            outcome.failures.append("a mean is not finite, without a word")
        if not finite.all() and not own and not np.isposinf(std[~finite]).all():
            outcome.failures.append("a standard deviation should be infinite")
        size = np.maximum(exact_std, 1e-300)
        off = np.abs(mean - exact_mean) / (size + 1e-6 * np.abs(exact_mean))
        outcome.check("mean of y in sd", float(np.max(off[finite], initial=0)), 0.05, flagged=flagged or bool(own))
        off = np.abs(std / size - 1)
        outcome.check("std of y", float(np.max(off[finite], initial=0)), 0.05, flagged=flagged or bool(own))


def moments(likelihood: Any, m: float, v: float) -> tuple[float, float]:
    """Return mean and standard deviation of y with exposure 1, f ~ N(m, v)."""
    name, v = type(likelihood).__name__, max(v, 0.0)
    if name == "Binomial":
        p = average(expit, m, v)
        return p, math.sqrt(max(p * (1 - p), 0.0))
    if name == "StudentT":
        scale, nu = float(likelihood.scale), float(likelihood.degrees)
        return m, math.sqrt(v + scale**2 * nu / (nu - 2)) if nu > 2 else math.inf
    a, b = {
        "Poisson": lambda: (1.0, 0.0),
        "NegativeBinomial": lambda: (1.0, float(likelihood.dispersion)),
        "Gamma": lambda: (0.0, 1 / float(likelihood.shape)),
    }[name]()
    M = np.exp(np.float64(m + v / 2))
    return float(M), float(np.sqrt(a * M + M * M * (np.expm1(v) + b * np.exp(v))))
