"""What the bounds of a prediction say when they are printed."""

import pickle

import numpy as np

from kernelcg import GPRegressor
from kernelcg.estimators import Bounds
from kernelcg.kernels import RBF


def fitted(outputs=1, **options):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 2))
    y = np.sin(X[:, 0]) if outputs == 1 else np.column_stack([np.sin(X[:, 0]), 100 * np.cos(X[:, 1])])
    return GPRegressor(RBF(1.0), noise=0.25, optimizer=None, **options).fit(X, y), X


def test_a_small_bound_is_told_in_units_of_y_and_beside_the_noise():
    """The noise counts whether or not the standard deviation includes it, and after pickling."""
    model, X = fitted(normalize_y=False)
    for included in (True, False):
        bounds = model.predict(X[:5], return_std=True, return_bound=True, include_noise=included)[2]
        words = (
            f"the mean is exact to {bounds.mean.max():.1g} (less than 0.001 % of the noise); the standard deviation to"
        )
        assert str(bounds).startswith(words)
        assert repr(bounds) == f"<Bounds: {bounds}>"
        assert bounds.noise == 0.5
        assert str(pickle.loads(pickle.dumps(bounds))) == str(bounds)
    mean, low, high = bounds
    assert low is bounds.std_lower
    assert high is bounds.std_upper
    assert mean is bounds.mean


def test_the_worst_of_several_outputs_is_the_worst_beside_its_own_noise():
    model, X = fitted(outputs=2)
    bounds = model.predict(X[:5], return_bound=True)[1]
    assert bounds.noise.shape == (2,)
    np.testing.assert_allclose(bounds.noise, 0.5 * model.y_scale_)
    worst = np.unravel_index(np.argmax(bounds.mean / bounds.noise), bounds.mean.shape)
    assert str(bounds) == f"the mean is exact to {bounds.mean[worst]:.1g} (less than 0.001 % of the noise)"


def test_bounds_that_say_little():
    bounds = Bounds.beside(0.1, np.array([1e-5, 0.04, 3.0]), np.array([1.0, 1.0, 1.0]), np.array([1.0, 1.0, 3.0]))
    words = "the mean is exact to 3 (30 times the noise) at worst, to 1 % of the noise at 1 of 3 points"
    assert str(bounds) == f"{words}; the standard deviation to 50 %"
    assert str(Bounds.beside(0.1, np.array([0.09]))).startswith(
        "the mean is exact to 0.09 (90 % of the noise) at worst"
    )
    assert str(Bounds(np.array([0.5]))) == "the mean is exact to 0.5"
    assert str(Bounds(np.zeros(0))) == "no points"
