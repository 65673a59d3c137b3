"""How much each feature matters to a model: the part of its variation that is lost when it is averaged out."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

ROWS = 500
"""Rows at which a model is evaluated."""

SHUFFLES = 4
"""Other values of a feature that are put in at each row."""

INVISIBLE = 1e-3
"""Relevance below which a feature has no visible effect."""


def relevances(model: Any, X: Floats, groups: dict[str, list[int]], seed: int = 0) -> dict[str, float]:
    r"""Return for each group of features the share of the variance of the mean m(x) that is lost without it.

    .. math:: T_j = \frac{E \operatorname{Var}(m(x) \mid x_{-j})}{\operatorname{Var} m(x)}
        = \frac{E (m(x) - m(x'))^2}{E (m(x) - m(x''))^2},

    where x'' is another row, drawn at random, and x' is x with its features j taken from it: 0 if the feature does
    not matter, and 1 if no other one does. Shares add up to more than 1 where features act together. Of several latent
    functions the squares are added.

    References
    ----------
    Jansen (1999), Analysis of variance designs for model output, Computer Physics Communications 117.
    """
    generator = np.random.default_rng(seed)
    rows = generator.permutation(len(X))[:ROWS]
    base = _means(model, X[rows])
    donors = [np.roll(np.arange(len(rows)), step) for step in _steps(len(rows), generator)]
    total = sum(_squares(base[other], base) for other in donors)
    if not total > 0:
        return dict.fromkeys(groups, 0.0)
    found = {}
    for name, features in groups.items():
        changed = 0.0
        for other in donors:
            mixed = X[rows].copy()
            mixed[:, features] = X[rows][other][:, features]
            changed += _squares(_means(model, mixed), base)
        found[name] = changed / total
    return found


def _steps(rows: int, generator: np.random.Generator) -> list[int]:
    """Return by how many rows values are moved: never back to where they were."""
    found: list[int] = (1 + generator.permutation(max(rows - 1, 0))[:SHUFFLES]).tolist()
    return found


def _squares(one: Floats, other: Floats) -> float:
    return float(np.square(one - other).sum())


def feature_importances(model: Any, X: Floats) -> Floats:
    """Return (d,) the relevance of each feature to a fitted model, X its training inputs."""
    found = relevances(model, X, {str(j): [j] for j in range(X.shape[1])})
    return np.array(list(found.values()))


def _means(model: Any, X: Floats) -> Floats:
    """Return (n, c) the mean of the function that a model has learned: the latent one if there is one."""
    values = model.predict(X) if not _is_latent(model) else model.latent(X)
    return np.asarray(values, dtype=np.float64).reshape(len(X), -1)


def _is_latent(model: Any) -> bool:
    from kernelcg.estimators.laplace_estimator import LaplaceEstimator

    return isinstance(model, LaplaceEstimator)
