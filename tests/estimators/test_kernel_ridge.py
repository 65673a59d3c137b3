"""KernelRidge: scikit-learn's answers on scikit-learn's parameters, and hyperparameters chosen by three criteria."""

import pickle

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF as SkRBF
from sklearn.gaussian_process.kernels import WhiteKernel
from sklearn.kernel_ridge import KernelRidge as Reference
from sklearn.metrics.pairwise import pairwise_kernels
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.utils.estimator_checks import check_estimator

from kernelcg import KernelRidge
from kernelcg.inference.bounds.verdict import Verdict
from kernelcg.kernels import Matern


def data(n=150, d=3, outputs=0, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.1 * rng.normal(size=n)
    return X, (np.column_stack([y * (k + 1) + k for k in range(outputs)]) if outputs else y)


def test_scikit_learn_contract():
    check_estimator(KernelRidge(), on_skip=None)


@pytest.mark.parametrize("method", ["direct", "iterative"])
@pytest.mark.parametrize("outputs", [0, 2])
@pytest.mark.parametrize(
    "options",
    [
        {"kernel": "linear"},
        {"kernel": "rbf", "gamma": 0.7},
        {"kernel": "rbf"},
        {"kernel": "laplacian", "gamma": 0.3},
        {"kernel": "poly", "degree": 2, "coef0": 0.5, "gamma": 0.2},
        {"kernel": "polynomial"},
        {"kernel": "cosine"},
    ],
    ids=str,
)
def test_same_predictions_as_scikit_learn(options, outputs, method):
    X, y = data(outputs=outputs)
    X_new, _ = data(40, seed=1)
    ours = KernelRidge(alpha=0.2, method=method, rtol=1e-10, **options).fit(X, y)
    theirs = Reference(alpha=0.2, **options).fit(X, y)
    assert ours.certificate_.met
    assert ours.dual_coef_.shape == theirs.dual_coef_.shape
    scale = np.abs(theirs.predict(X_new)).max()
    assert np.allclose(ours.predict(X_new), theirs.predict(X_new), rtol=0, atol=1e-7 * scale)


def test_weights_are_scikit_learns_and_zero_leaves_a_row_out():
    X, y = data()
    weights = np.abs(np.random.default_rng(3).normal(size=len(y)))
    weights[:20] = 0.0
    ours = KernelRidge(alpha=0.2, kernel="rbf").fit(X, y, sample_weight=weights)
    theirs = Reference(alpha=0.2, kernel="rbf").fit(X, y, sample_weight=weights)
    assert np.allclose(ours.predict(X), theirs.predict(X), atol=1e-9)
    assert len(ours.X_fit_) == len(y) - 20


def test_a_white_kernel_is_added_to_alpha():
    X, y = data()
    ours = KernelRidge(alpha=0.1, kernel=SkRBF(1.5) + WhiteKernel(0.2)).fit(X, y)
    theirs = Reference(alpha=0.3, kernel="rbf", gamma=1 / (2 * 1.5**2)).fit(X, y)
    assert np.allclose(ours.predict(X), theirs.predict(X), atol=1e-9)


def leave_one_out_error(gamma, alpha, X, y):
    """The literal one: n fits."""
    errors = []
    for i in range(len(y)):
        rest = np.arange(len(y)) != i
        errors.append(y[i] - Reference(alpha=alpha, kernel="rbf", gamma=gamma).fit(X[rest], y[rest]).predict(X[[i]])[0])
    return np.mean(np.square(errors))


def gcv_error(gamma, alpha, X, y):
    K = np.exp(-gamma * ((X[:, None] - X) ** 2).sum(-1))
    left = np.eye(len(y)) - K @ np.linalg.inv(K + alpha * np.eye(len(y)))
    return np.mean(np.square(left @ y)) / (np.trace(left) / len(y)) ** 2


@pytest.mark.parametrize(("selection", "error"), [("loo", leave_one_out_error), ("gcv", gcv_error)])
def test_selection_finds_a_minimum_of_the_criterion(selection, error):
    X, y = data(60, 2)
    model = KernelRidge(kernel="rbf", selection=selection).fit(X, y)
    gamma, alpha = 1 / (2 * model.kernel_.lengthscale.item() ** 2), model.alpha_
    best = error(gamma, alpha, X, y)
    for factor in (0.8, 1.25):
        assert error(gamma * factor, alpha, X, y) > best
        assert error(gamma, alpha * factor, X, y) > best


@pytest.mark.parametrize("selection", ["loo", "gcv", "marginal_likelihood"])
def test_iterative_selection_is_as_good_as_the_direct_one(selection):
    X, y = data(900)
    X_new, y_new = data(400, seed=1)
    errors = {}
    for method in ("direct", "iterative"):
        model = KernelRidge(kernel="rbf", selection=selection, method=method).fit(X, y)
        assert model.learning_.converged
        errors[method] = np.mean(np.square(model.predict(X_new) - y_new))
    assert errors["iterative"] < 1.1 * errors["direct"]


def test_grid_search():
    X, y = data(80)
    search = GridSearchCV(KernelRidge(kernel="rbf"), {"alpha": [1e-2, 1.0], "gamma": [0.1, 1.0]}, n_jobs=2, cv=3)
    assert search.fit(X, y).best_score_ > 0.5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"alpha": -1.0}, "alpha must be positive, or 0 for interpolation"),
        ({"alpha": np.nan}, "alpha must be positive"),
        ({"alpha": [1.0, 2.0]}, "alpha must be one number"),
        ({"kernel": "sigmoid"}, "sigmoid"),
        ({"kernel": "precomputed"}, "which is square, not 20 x 3"),
        ({"selection": "aic"}, "selection must be"),
        ({"method": "fast"}, "method must be"),
        ({"dtype": "float16"}, "dtype must be"),
    ],
    ids=str,
)
def test_wrong_options_are_named(options, words):
    X, y = data(20)
    with pytest.raises(ValueError, match=words):
        KernelRidge(**options).fit(X, y)


def test_selection_with_weights_is_refused():
    X, y = data(20)
    with pytest.raises(ValueError, match="sample_weight"):
        KernelRidge(kernel=Matern(1.0), selection="loo").fit(X, y, sample_weight=np.ones(20))


# without regularisation


def test_alpha_zero_is_least_squares_where_the_kernel_is_singular():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 5))
    y = X @ np.arange(5.0) + rng.normal(size=80)  # most of y is outside the range of K
    model = KernelRidge(alpha=0, kernel="linear").fit(X, y)
    expected = X @ np.linalg.lstsq(X, y, rcond=None)[0]
    np.testing.assert_allclose(model.predict(X), expected, atol=1e-6)
    assert model.alpha_ == pytest.approx(1e-8 * (X**2).sum(1).mean())


def test_alpha_zero_interpolates_where_the_kernel_is_not():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(50, 3)), rng.normal(size=50)
    for name in ("laplacian", "rbf"):
        model = KernelRidge(alpha=0, kernel=name, gamma=1.0).fit(X, y)
        np.testing.assert_allclose(model.predict(X), y, atol=1e-5)


# precomputed


@pytest.mark.parametrize("outputs", [None, 1, 2])
@pytest.mark.parametrize("method", ["direct", "iterative"])
def test_a_precomputed_kernel_gives_the_predictions_of_scikit_learn(method, outputs):
    rng = np.random.default_rng(0)
    X, new = rng.normal(size=(40, 3)), rng.normal(size=(7, 3))
    y = rng.normal(size=(40,) if outputs is None else (40, outputs))
    K, K_new = pairwise_kernels(X, metric="rbf"), pairwise_kernels(new, X, metric="rbf")
    weights = np.r_[0.0, 0.0, rng.random(38)]  # rows of no weight are left out
    for sample_weight in (None, weights):
        before = K.copy()
        ours = KernelRidge(0.1, kernel="precomputed", method=method).fit(K, y, sample_weight)
        theirs = Reference(0.1, kernel="precomputed").fit(K, y, sample_weight)
        np.testing.assert_array_equal(K, before)
        assert ours.predict(K_new).shape == theirs.predict(K_new).shape
        np.testing.assert_allclose(ours.predict(K_new), theirs.predict(K_new), atol=1e-6)
    assert ours.n_features_in_ == 40


def test_cross_validation_takes_both_sides_of_a_precomputed_kernel():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    K, y = pairwise_kernels(X, metric="rbf"), np.sin(X[:, 0])
    ours, theirs = (cross_val_score(model(0.1, kernel="precomputed"), K, y, cv=3) for model in (KernelRidge, Reference))
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_what_is_no_kernel_matrix_is_refused():
    rng = np.random.default_rng(0)
    K = rng.normal(size=(20, 20))
    with pytest.raises(ValueError, match=r"X is no kernel matrix: X\[\d+, \d+\] is .* but"):
        KernelRidge(kernel="precomputed").fit(K, np.ones(20))
    with pytest.raises(ValueError, match="is not positive semi-definite"):
        KernelRidge(kernel="precomputed").fit(np.ones((20, 20)) - 0.5 * np.eye(20), np.ones(20))


def test_a_precomputed_model_is_pickled_but_not_saved(tmp_path):
    X = np.random.default_rng(0).normal(size=(20, 2))
    K = X @ X.T
    model = KernelRidge(kernel="precomputed").fit(K, X[:, 0])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(K), model.predict(K))
    with pytest.raises(TypeError, match="pickle it instead"):
        model.save(tmp_path / "model.kcg")


@pytest.mark.parametrize("method", ["direct", "iterative"])
def test_errors_count_beside_the_size_of_y(method):
    """No mean is taken out of y: where y is constant its size is what errors are seen beside, not its spread of 0."""
    X = np.random.default_rng(0).standard_normal((30, 2))
    model = KernelRidge(1e-9, kernel="rbf", gamma=0.5, method=method, rtol=1e-4).fit(X, np.full(30, -2e3))
    assert model.certificate_.spread == pytest.approx(2e3)
    assert model.certificate_.verdict is Verdict.CERTIFIED


@pytest.mark.parametrize("method", ["direct", "iterative"])
@pytest.mark.parametrize("factor", [2.0**-40, 2.0**40])
def test_multiples_of_y_have_multiples_of_everything(method, factor):
    X, y = data()
    options = {"alpha": 1e-6, "kernel": "rbf", "method": method, "rtol": 1e-4}
    one, other = (KernelRidge(**options).fit(X, scale * y) for scale in (1.0, factor))
    np.testing.assert_array_equal(other.predict(X), factor * one.predict(X))
    of_one, of_other = one.certificate_, other.certificate_
    assert of_other.verdict is of_one.verdict
    for name in ("mean_error", "error_at_data", "noise", "spread"):
        assert getattr(of_other, name) == pytest.approx(factor * getattr(of_one, name), rel=1e-9)
    assert of_one.noise == pytest.approx(1e-3 * np.sqrt(np.mean(y**2)))  # √(alpha / k(x, x)) of y
