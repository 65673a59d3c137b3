"""Data for every kernel of the library: points, places, categories, amounts and inputs in [0, 1]."""

from typing import Any

import numpy as np

from fuzz.data import Data, data, kernel, log_uniform, new_points, observations

WORLDS = ("points", "points", "points", "places", "categories", "amounts", "unit")


def question_data(rng: np.random.Generator, n: int) -> tuple[str, Data]:
    """Return what the inputs are, and data of n rows."""
    world = str(rng.choice(WORLDS))
    if world == "points":
        return world, data(rng, n, int(log_uniform(rng, 1, 6.999)))
    d = 2 + int(rng.integers(2)) if world == "places" else int(log_uniform(rng, 1, 6.999))
    together = {"places": _places, "categories": _categories, "amounts": _amounts, "unit": _unit}[world](rng, n + 4, d)
    story = [f"n={n}", f"d={d}", world]
    X, further = together[:n].copy(), together[n:]
    if n > 1 and rng.random() < 0.3:
        X[rng.integers(n)] = X[rng.integers(n)]
        story.append("a duplicated row")
    y = observations(rng, X, 1, story)
    points = new_points(rng, X, further)[: len(further) + (7 if world in ("places", "unit") else 3)]
    points = np.clip(points, *LIMITS[world])
    if world == "places":
        points[:, 0] = np.minimum(points[:, 0], 90.0)  # latitudes
    return world, Data(X, y[:, 0], points, None, story)


LIMITS = {"places": (-90, np.inf), "categories": (-np.inf, np.inf), "amounts": (0, np.inf), "unit": (0, 1)}
"""What rounding must not push points beyond."""


def _places(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Return latitudes and longitudes, all over the Earth or of a town, and another feature."""
    X = rng.normal(size=(n, d))
    size = rng.choice([1.0, 1e-2, 1e-5])
    X[:, 0] = np.clip(rng.uniform(-90, 90) * (size < 1) + size * rng.uniform(-90, 90, n), -90, 90)
    X[:, 1] = rng.uniform(-180, 180) * (size < 1) + size * rng.uniform(-180, 180, n)
    if rng.random() < 0.2:
        X[0, 0] = 90.0
    return X


def _categories(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    return rng.integers(0, rng.integers(2, 6), size=(n, d)).astype(np.float64)


def _amounts(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    X = rng.poisson(log_uniform(rng, 0.3, 30), size=(n, d)).astype(np.float64)
    return X * 10.0 ** rng.uniform(-6, 6) if rng.random() < 0.3 else X


def _unit(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    X = rng.beta(*rng.choice([0.3, 1, 3], 2), size=(n, d))
    X[rng.random((n, d)) < 0.05] = rng.choice([0.0, 1.0])
    return X


def question_kernel(rng: np.random.Generator, world: str, X: np.ndarray, story: list[str], kernels: Any) -> Any:
    """Return a kernel, or a sum or product of two, that suits the inputs; ``kernels`` is their module."""
    made = {"points": _of_points, "places": _of_places, "unit": _of_unit}.get(world, _of_counts)
    first = made(rng, X, kernels)
    shape = rng.random()
    if shape < 0.4:
        found = first
    elif shape < 0.7:
        found = first + made(rng, X, kernels)
    elif shape < 0.85:
        found = first * made(rng, X, kernels)
    else:
        found = first * kernels.Constant(log_uniform(rng, 0.1, 10)) + kernels.Constant(log_uniform(rng, 0.1, 10))
    story.append(repr(found))
    return found


def _of_points(rng: np.random.Generator, X: np.ndarray, kernels: Any) -> Any:
    d = X.shape[1]
    spread = np.subtract(*np.percentile(X, [80, 20], axis=0))
    spread = np.where(spread > 1e-100, spread, np.maximum(np.abs(X).max(0), 1e-8))
    own, variance = spread * log_uniform(rng, 0.1, 10), log_uniform(rng, 0.1, 10)
    kind = str(
        rng.choice(["usual", "columns", "polynomial", "wave", "mixture", "additive", "laplacian", "cosine", "power"])
    )
    if kind == "usual":
        return kernel(rng, X, [], kernels)
    if kind == "columns":
        some = [int(one) for one in rng.permutation(d)[: rng.integers(1, d + 1)]]
        return kernels.Matern(own[some], variance, nu=float(rng.choice([0.5, 1.5, 2.5]))).on(some)
    if kind == "polynomial":
        gamma = log_uniform(rng, 0.1, 10) / float(np.square(X).sum(1).max() or 1.0)
        return kernels.Polynomial(gamma, float(rng.choice([0.0, 1.0])), int(rng.integers(1, 4)))
    if kind == "wave":
        return kernels.Wave(own, variance)
    if kind == "mixture":
        return kernels.spectral_mixture([own, own / 3], [10 * own, 3 * own], [variance, variance / 2])
    if kind == "additive":
        return kernels.additive(lambda m: kernels.RBF([float(np.median(own))] * m, variance), d, order=1 + (d < 4))
    if kind == "laplacian":
        return kernels.Laplacian(own, variance)
    return kernels.Cosine(variance) if kind == "cosine" else kernels.Power(kernels.RBF(own, variance), 2)


def _of_places(rng: np.random.Generator, X: np.ndarray, kernels: Any) -> Any:
    width = 111.2 * (np.std(X[:, 0]) or 1.0) * log_uniform(rng, 0.1, 10)  # a degree is 111.2 km
    variance, nu = log_uniform(rng, 0.1, 10), float(rng.choice([0.5, 1.5, 2.5]))
    parts = [
        kernels.OnSphere(kernels.Matern(width, variance, nu=nu)),
        kernels.OnSphere(kernels.RBF(width / 6371, variance), radius=1.0),
        kernels.GreatCircle(width, variance),
    ]
    found = parts[rng.integers(3)]
    return found if X.shape[1] == 2 else found.on([0, 1]) * kernels.RBF(1.0).on(2)


def _of_counts(rng: np.random.Generator, X: np.ndarray, kernels: Any) -> Any:
    variance = log_uniform(rng, 0.1, 10)
    hamming = kernels.Hamming(log_uniform(rng, 0.3, 3) * np.ones(X.shape[1]), variance)
    return (hamming, hamming, kernels.Tanimoto(variance), kernels.MinMax(variance))[rng.integers(4)]


def _of_unit(rng: np.random.Generator, X: np.ndarray, kernels: Any) -> Any:
    d, variance = X.shape[1], log_uniform(rng, 0.1, 10)
    part = (kernels.RBF, kernels.Matern)[rng.integers(2)](log_uniform(rng, 0.1, 3) * np.ones(d), variance)
    return kernels.Warped(part, log_uniform(rng, 0.3, 3) * np.ones(d), log_uniform(rng, 0.3, 3))


def far_rows(rng: np.random.Generator, world: str, X: np.ndarray) -> np.ndarray:
    """Return rows 1e6 to 1e20 away in one or in all features where the kernels of the world take such."""
    rows = X[rng.integers(0, len(X), 2)].copy()
    if world == "unit":
        return rows[:0]
    if world == "places":
        rows[:, 1] = 10.0 ** rng.uniform(6, 20, 2)
        return rows
    rows[0, rng.integers(X.shape[1])] = 10.0 ** rng.uniform(6, 20)
    rows[1] = 10.0 ** rng.uniform(6, 20)
    return rows
