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
        = \frac{E (m(x) - m(x'))^2}{2 \operatorname{Var} m(x)},

    where x' is x with its features j taken from another row, drawn at random: 0 if the feature does not matter. Shares
    add up to more than 1 where features act together. Of several latent functions the variances are added.

    References
    ----------
    Jansen (1999), Analysis of variance designs for model output, Computer Physics Communications 117.
    """
    generator = np.random.default_rng(seed)
    rows = generator.permutation(len(X))[:ROWS]
    base = _means(model, X[rows])
    variance = base.var(axis=0).sum()
    if not variance > 0:
        return dict.fromkeys(groups, 0.0)
    found = {}
    for name, features in groups.items():
        changes = []
        for _ in range(SHUFFLES):
            other = X[rows].copy()
            other[:, features] = X[generator.permutation(len(X))[: len(rows)]][:, features]
            changes.append(np.square(_means(model, other) - base).sum(axis=1).mean())
        found[name] = float(np.mean(changes) / (2 * variance))
    return found


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
