"""Inputs and observations that are hard on purpose; each a pure function of a random generator."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass
class Data:
    """Training rows, new points made by the same rules, observations, and a few words on what was done to them."""

    X: np.ndarray
    y: np.ndarray
    X_new: np.ndarray
    noise_variance: np.ndarray | None
    story: list[str]


def log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    """Return a number whose logarithm is uniform."""
    return float(math.exp(rng.uniform(math.log(low), math.log(high))))


def sizes(rng: np.random.Generator, most: int) -> tuple[int, int]:
    """Return the numbers of rows, 1 to ``most``, and of features, 1 to 30, both log-uniform."""
    return int(log_uniform(rng, 1, most + 0.999)), int(log_uniform(rng, 1, 30.999))


def inputs(rng: np.random.Generator, n: int, d: int, story: list[str]) -> np.ndarray:
    """Return (n, d) inputs: a plain design, then each misfortune with some probability."""
    design = rng.choice(["normal", "uniform", "grid", "clusters"])
    X = {
        "normal": lambda: rng.normal(size=(n, d)),
        "uniform": lambda: rng.uniform(-1, 1, size=(n, d)),
        "grid": lambda: rng.integers(0, max(2, round(n ** (1 / d))), size=(n, d)).astype(np.float64),
        "clusters": lambda: rng.normal(size=(3, d))[rng.integers(0, 3, n)] + 1e-3 * rng.normal(size=(n, d)),
    }[design]()
    story.append(str(design))
    if d > 1 and rng.random() < 0.2:
        X[:, rng.integers(d)] = rng.choice([0.0, 1.0, -3.3])
        story.append("constant column")
    if d > 1 and rng.random() < 0.2:
        to, *others = rng.permutation(d)[: rng.integers(2, 4)]
        X[:, to] = X[:, others] @ rng.normal(size=len(others))
        story.append("collinear columns")
    if rng.random() < 0.3:
        scale = 10.0 ** rng.uniform(-8, 8, size=d if rng.random() < 0.5 else 1)
        X = X * scale
        story.append(f"scaled by {scale.min():.0e}…{scale.max():.0e}")
    if rng.random() < 0.25:
        offset = 10.0 ** rng.uniform(-8, 8) * np.abs(X).max() * rng.choice([-1, 1])
        X = X + offset
        story.append(f"offset {offset:.0e}")
    if n > 1 and rng.random() < 0.3:
        rows = rng.integers(0, n, size=max(1, n // 5))
        X[rng.integers(0, n, size=len(rows))] = X[rows]
        story.append("duplicated rows")
    if n > 1 and rng.random() < 0.3:
        rows, size = rng.integers(0, n, size=max(1, n // 5)), 10.0 ** rng.uniform(-14, -4)
        X[rng.integers(0, n, size=len(rows))] = X[rows] * (1 + size * rng.normal(size=(len(rows), d)))
        story.append(f"rows nearly duplicated, {size:.0e}")
    return X


def far_row(rng: np.random.Generator, X: np.ndarray, story: list[str]) -> None:
    """Move one row far away."""
    distance = 10.0 ** rng.uniform(2, 20)
    X[rng.integers(len(X))] *= distance
    story.append(f"a row {distance:.0e} times as far")


def observations(rng: np.random.Generator, X: np.ndarray, outputs: int, story: list[str]) -> np.ndarray:
    """Return (n, outputs) observations: smooth functions of the standardised inputs, noise, scale, offset, outliers."""
    n, d = X.shape
    spread = np.median(np.abs(X - np.median(X, 0)), 0)
    Z = np.clip((X - np.median(X, 0)) / np.where(spread > 0, spread, 1), -1e3, 1e3)
    Y = np.sin(Z @ rng.normal(size=(d, outputs)) / math.sqrt(d)) + 0.3 * Z @ rng.normal(size=(d, outputs)) / d
    noise = log_uniform(rng, 1e-12, 10)
    Y = Y + noise * rng.normal(size=Y.shape)
    story.append(f"noise {noise:.0e}")
    if rng.random() < 0.1:
        Y[rng.integers(n)] += 10.0 ** rng.uniform(2, 8)
        story.append("outlier in y")
    if rng.random() < 0.05:
        Y = np.full_like(Y, rng.normal())
        story.append("constant y")
    if rng.random() < 0.4:
        scale, offset = 10.0 ** rng.uniform(-8, 8, outputs), 10.0 ** rng.uniform(-8, 8) * rng.choice([0, 0, 1, -1])
        Y = scale * Y + offset
        story.append(f"y scaled {scale.min():.0e}…{scale.max():.0e}, offset {offset:.0e}")
    return Y


def new_points(rng: np.random.Generator, X: np.ndarray, further: np.ndarray) -> np.ndarray:
    """Return points of the same kind, training rows, points close to those and between them, and some far away."""
    n = len(X)
    some = X[rng.integers(0, n, 8)]
    others = X[rng.integers(0, n, 8)]
    centre = np.median(X, 0)
    return np.concatenate(
        [
            further,
            some[:3],
            some[3:5] * (1 + 1e-9 * rng.normal(size=(2, X.shape[1]))),
            (some[5:7] + others[5:7]) / 2,
            centre + 10 * (some[7:] - centre),
        ]
    )


def data(rng: np.random.Generator, n: int, d: int, outputs: int = 1) -> Data:
    """Return a data set with its new points."""
    story: list[str] = [f"n={n}", f"d={d}"]
    together = inputs(rng, n + 4, d, story)
    X, further = together[:n].copy(), together[n:]
    if rng.random() < 0.1:
        far_row(rng, X, story)
    y = observations(rng, X, outputs, story)
    known = None
    if rng.random() < 0.15:
        known = np.mean(np.var(y, 0)) * 10.0 ** rng.uniform(-6, 1, n) if n > 1 else 10.0 ** rng.uniform(-3, 0, n)
        story.append("noise per row")
    return Data(X, y[:, 0] if outputs == 1 else y, new_points(rng, X, further), known, story)


def kernel(rng: np.random.Generator, X: np.ndarray, story: list[str], kernels: Any) -> Any:
    """Return a kernel whose lengthscales fit the inputs more or less; ``kernels`` is their module."""
    kind = str(rng.choice(["RBF", "Matern", "Matern", "Matern", "Sum", "RationalQuadratic", "Linear", "Periodic"]))
    spread = np.subtract(*np.percentile(X, [80, 20], axis=0))
    spread = np.where(spread > 1e-100, spread, np.abs(X).max(0))
    spread = np.where(spread > 1e-100, spread, 1.0)
    own = spread * math.sqrt(X.shape[1]) * log_uniform(rng, 0.05, 30)
    lengthscale = own if rng.random() < 0.8 else float(np.median(own))
    variance = log_uniform(rng, 1e-2, 1e2)
    nu = float(rng.choice([0.5, 1.5, 2.5]))
    story.append(f"{kind}{f' {nu}' if kind == 'Matern' else ''}")
    if kind == "RBF":
        return kernels.RBF(lengthscale, variance)
    if kind == "Matern":
        return kernels.Matern(lengthscale, variance, nu=nu)
    if kind == "Sum":
        return kernels.RBF(lengthscale, variance) + kernels.Matern(own / 10, variance / 10, nu=nu)
    if kind == "RationalQuadratic":
        return kernels.RationalQuadratic(lengthscale, variance, alpha=log_uniform(rng, 0.1, 10))
    if kind == "Linear":
        return kernels.Linear(variance / np.square(spread)) + kernels.Constant(1.0)
    width, period = log_uniform(rng, 0.3, 3) * math.sqrt(X.shape[1]), spread * log_uniform(rng, 0.3, 10)
    return kernels.Periodic(width, period, variance)
