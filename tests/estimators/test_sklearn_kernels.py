"""scikit-learn's kernels, converted: the same matrix, the same hyperparameters, the same bounds, or a clear refusal."""

import math
import re

import numpy as np
import pytest
import torch
from bound import gradient_of, product_of
from sklearn.gaussian_process import kernels as sk
from sklearn.metrics.pairwise import pairwise_kernels

from kernelcg.backends import Tiles
from kernelcg.estimators.sklearn_kernels import OneFeature, converted, sklearn_pairwise
from kernelcg.kernels import RBF, Constant, Linear, Matern, Periodic, Polynomial, Power, RationalQuadratic
from kernelcg.parameters import FREE, Restriction

X = np.random.default_rng(0).standard_normal((30, 3))
Y = np.random.default_rng(1).standard_normal((20, 3))

C, W = sk.ConstantKernel, sk.WhiteKernel

THREE = {
    "rbf": sk.RBF(0.8),
    "rbf ard": sk.RBF([0.5, 1.0, 2.0]),
    "rbf, one lengthscale in a list": sk.RBF([0.8]),
    "matern 1/2": sk.Matern(1.5, nu=0.5),
    "matern 3/2": sk.Matern([0.5, 1.0, 2.0], nu=1.5),
    "matern 5/2": sk.Matern(1.5, nu=2.5),
    "matern ∞": sk.Matern(1.5, nu=math.inf),
    "rational quadratic": sk.RationalQuadratic(1.3, alpha=0.7),
    "constant": C(2.5),
    "dot product": sk.DotProduct(0.7),
    "dot product, homogeneous": sk.DotProduct(0.0),
    "multiple": C(2.5) * sk.RBF(0.8),
    "multiple from the right": sk.Matern(0.8, nu=2.5) * C(2.5),
    "multiple by a number": 2.5 * sk.RationalQuadratic(0.8),
    "multiple of a multiple": C(2.0) * C(0.3) * sk.RBF(0.8),
    "multiple inside": sk.RBF(2.0) * (sk.Matern(1.5) * C(3.0)),
    "constants alone": C(2.0) * C(0.3),
    "multiple of a dot product": C(0.4) * sk.DotProduct(0.7),
    "multiple of a sum": C(0.4) * (sk.RBF(0.7) + sk.Matern(2.0)),
    "sum": sk.RBF(0.8) + sk.Matern(2.0, nu=0.5) + C(0.3),
    "sum to the right": sk.RBF(0.8) + (C(0.5) * sk.Matern(2.0, nu=0.5) + sk.DotProduct(0.2)),
    "sum with a number": sk.RBF(0.8) + 0.3,
    "product": sk.RBF(0.8) * sk.DotProduct(0.7),
    "product of sums": (sk.RBF(0.8) + C(0.2)) * (sk.DotProduct(0.7) + sk.Matern(1.0)),
    "a kernel times itself": (lambda kernel: C(3.0) * kernel * kernel)(sk.RBF(2.0)),
    "power": sk.DotProduct(0.7) ** 3,
    "power of a sum": C(2.0) * (sk.RBF(0.8) + sk.DotProduct(0.5)) ** 2.0,
}
"""Kernels without noise for three features."""

ONE = {
    "periodic": sk.ExpSineSquared(1.3, periodicity=0.7),
    "multiple of a periodic one": C(2.5) * sk.ExpSineSquared(1.3, periodicity=0.7),
    "fading": sk.RBF(2.0) * sk.ExpSineSquared(0.5, 3.0) + C(0.2),
    "power of a periodic one": sk.ExpSineSquared(1.3, 0.7) ** 2,
}
"""Kernels for one feature."""


def matrix(kernel, A, B):
    return kernel(torch.from_numpy(A), torch.from_numpy(B)).numpy()


def restrictions(record):
    return dict(zip(record.parameter_names(), record.restrictions(), strict=True))


def within(lower, upper):
    return Restriction(lower=lower, upper=upper)


FIXED, DEFAULT = Restriction(fixed=True), within(1e-5, 1e5)


# the same function


@pytest.mark.parametrize("name", THREE)
def test_a_converted_kernel_has_the_same_matrix(name):
    kernel, noise = converted(THREE[name])
    assert noise is None
    np.testing.assert_allclose(matrix(kernel, X, Y), THREE[name](X, Y), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(matrix(kernel, X, X), THREE[name](X), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(kernel.diagonal(torch.from_numpy(X)), THREE[name].diag(X), rtol=1e-12)


@pytest.mark.parametrize("name", ONE)
def test_a_converted_kernel_of_one_feature_has_the_same_matrix(name):
    kernel, noise = converted(ONE[name])
    assert noise is None
    np.testing.assert_allclose(matrix(kernel, X[:, :1], Y[:, :1]), ONE[name](X[:, :1], Y[:, :1]), rtol=1e-12)
    np.testing.assert_allclose(kernel.diagonal(torch.from_numpy(X[:, :1])), ONE[name].diag(X[:, :1]), rtol=1e-12)


@pytest.mark.parametrize("name", THREE)
def test_noise_beside_it_changes_nothing_but_the_noise(name):
    for theirs in (THREE[name] + W(0.2), W(0.2) + THREE[name]):
        kernel, noise = converted(theirs)
        assert noise.variance.item() == 0.2
        np.testing.assert_allclose(matrix(kernel, X, X), theirs(X) - 0.2 * np.eye(30), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", THREE)
def test_what_is_learned_is_what_scikit_learn_learns_or_fewer(name):
    """Products of constants are one; σ₀ of a dot product is learned as σ₀²; a σ₀ of 0 stays."""
    kernel, _ = converted(THREE[name])
    free = sum(not restriction.fixed for restriction in kernel.restrictions())
    merged = {"multiple of a multiple": 1, "constants alone": 1, "dot product, homogeneous": 1}
    assert free == len(THREE[name].bounds) - merged.get(name, 0)


@pytest.mark.parametrize("name", ["multiple", "sum to the right", "power of a sum", "product of sums"])
def test_a_converted_kernel_runs_on_tiles(name):
    kernel, V = converted(THREE[name])[0], torch.from_numpy(Y)
    product = product_of(Tiles(), kernel, torch.from_numpy(X), V, V)
    np.testing.assert_allclose(product, THREE[name](X, Y) @ Y, rtol=1e-11, atol=1e-11)
    gradient = gradient_of(Tiles(), kernel, torch.from_numpy(X), V, torch.from_numpy(X), V)
    assert gradient.shape == kernel.log_parameters().shape
    assert gradient.isfinite().all()


# the same form


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (sk.RBF(0.8), RBF),
        (sk.Matern(0.8, nu=math.inf), RBF),
        (sk.Matern(0.8, nu=2.5), Matern),
        (sk.RationalQuadratic(0.8), RationalQuadratic),
    ],
)
def test_a_constant_becomes_the_variance(theirs, ours):
    for product in (C(2.5) * theirs, theirs * C(2.5), C(5.0) * (theirs * 0.5)):
        kernel, _ = converted(product)
        assert type(kernel) is ours
        assert kernel.variance.item() == 2.5
        assert not restrictions(kernel)["variance"].fixed
    assert restrictions(converted(theirs)[0])["variance"] == FIXED


def test_the_first_factor_with_a_variance_takes_the_constant():
    kernel, _ = converted(sk.DotProduct() * sk.RBF(1.0) * C(2.5) * sk.Matern(1.0))
    assert [name for name, r in restrictions(kernel).items() if not r.fixed] == [
        "left.left.left.variance",
        "left.right.lengthscale",
        "left.right.variance",
        "right.lengthscale",
    ]
    assert kernel.left.right.variance.item() == 2.5


def test_a_periodic_kernel_takes_the_constant_too():
    kernel, _ = converted(C(2.5) * sk.ExpSineSquared(1.3, 0.7))
    assert type(kernel) is OneFeature
    assert type(kernel.kernel) is Periodic
    assert kernel.kernel.variance.item() == 2.5


def test_a_dot_product_is_a_constant_and_a_linear_kernel_of_variance_1():
    kernel, _ = converted(sk.DotProduct(0.5, (0.1, 10.0)))
    assert (type(kernel.left), type(kernel.right)) == (Constant, Linear)
    assert restrictions(kernel) == {
        "left.variance": within(0.1 * 0.1, 100.0),
        "right.variance": FIXED,
    }
    assert type(converted(sk.DotProduct(0.0))[0]) is Linear


def test_kernels_of_the_library_pass_unchanged():
    kernel = RBF(1.0).fixed() + Linear(2.0)
    assert converted(kernel) == (kernel, None)


# bounds


def test_bounds_are_kept():
    theirs = C(2.0, (0.5, 8.0)) * sk.RationalQuadratic(1.0, 0.3, (0.1, 10.0), "fixed") + W(0.1, (1e-6, 1.0))
    kernel, noise = converted(theirs)
    assert restrictions(kernel) == {
        "lengthscale": within(0.1, 10.0),
        "variance": within(0.5, 8.0),
        "alpha": FIXED,
    }
    assert noise.restrictions() == [within(1e-6, 1.0)]


def test_default_bounds_are_those_of_scikit_learn():
    kernel, noise = converted(C() * sk.Matern([1.0, 2.0, 3.0]) + W())
    assert kernel.restrictions() == [DEFAULT] * 4
    assert noise.restrictions() == [DEFAULT]


def test_fixed_is_fixed():
    kernel, noise = converted(C(2.0, "fixed") * sk.RBF([1.0, 2.0], "fixed") + W(0.1, "fixed"))
    assert kernel.restrictions() == [FIXED] * 3
    assert noise.restrictions() == [FIXED]
    periodic, _ = converted(sk.ExpSineSquared(1.0, 2.0, (0.1, 1.0), "fixed"))
    assert restrictions(periodic) == {
        "kernel.lengthscale": within(0.1, 1.0),
        "kernel.period": FIXED,
        "kernel.variance": FIXED,
    }


def test_bounds_of_all_features_may_be_given_one_by_one_if_they_are_equal():
    kernel, _ = converted(sk.RBF([1.0, 2.0], [(0.1, 10.0), (0.1, 10.0)]))
    assert kernel.restrictions()[:2] == [within(0.1, 10.0)] * 2
    with pytest.raises(ValueError, match=r"length_scale_bounds .* differ between features"):
        converted(sk.RBF([1.0, 2.0], [(0.1, 10.0), (0.2, 10.0)]))


@pytest.mark.parametrize("bounds", [(2.0, 1.0), (1.0, 1.0)])
def test_bounds_that_do_not_increase_are_refused(bounds):
    for kernel in (sk.RBF(1.0, bounds), C(1.0, bounds) * sk.RBF(), sk.RBF() + W(1.0, bounds)):
        with pytest.raises(ValueError, match=r"_bounds of .* must increase"):
            converted(kernel)


def test_constants_that_become_one_multiply_their_bounds():
    kernel, _ = converted(C(2.0, (1.0, 4.0)) * C(3.0, "fixed") * sk.RBF())
    assert kernel.variance.item() == 6.0
    assert restrictions(kernel)["variance"] == within(3.0, 12.0)


# noise


def test_several_white_summands_are_one_noise():
    theirs = W(0.1, (0.01, 1.0)) + (sk.RBF() + (C(2.0, "fixed") * W(0.2, (0.1, 0.3)) + sk.Matern())) + W(0.3, "fixed")
    kernel, noise = converted(theirs)
    assert noise.variance.item() == pytest.approx(0.8)
    (restriction,) = noise.restrictions()
    assert (restriction.lower, restriction.upper) == pytest.approx((0.51, 1.9))
    np.testing.assert_allclose(matrix(kernel, X, X) + 0.8 * np.eye(30), theirs(X), rtol=1e-12)


def test_the_noise_is_fixed_if_all_of_it_is():
    _, noise = converted(sk.RBF() + W(0.1, "fixed") + W(0.3, "fixed") * C(2.0, "fixed"))
    assert noise.variance.item() == pytest.approx(0.7)
    assert noise.restrictions() == [FIXED]


@pytest.mark.parametrize("kernel", [sk.RBF() * W(), C() * sk.RBF() * W() + sk.RBF(), W() * (sk.RBF() + C())])
def test_noise_times_a_kernel_is_refused(kernel):
    with pytest.raises(ValueError, match="a WhiteKernel is multiplied by"):
        converted(kernel)


@pytest.mark.parametrize(
    "kernel",
    [C() * (sk.RBF() + W()), (sk.RBF() + W()) * sk.Matern(), (sk.RBF() + W()) ** 2, sk.RBF() + W() ** 2],
    ids=str,
)
def test_noise_inside_a_product_or_power_is_refused_with_the_remedy(kernel):
    with pytest.raises(ValueError, match=r"write kernel \+ WhiteKernel"):
        converted(kernel)


@pytest.mark.parametrize("kernel", [W(), W(0.1) + W(0.2), C() * W()])
def test_noise_alone_is_refused(kernel):
    with pytest.raises(ValueError, match="noise alone"):
        converted(kernel)


# refusals


class Twice(sk.RBF):
    """A subclass with another formula."""

    def __call__(self, X, Y=None, eval_gradient=False):
        return 2 * super().__call__(X, Y)


UNKNOWN = [
    sk.PairwiseKernel(metric="rbf"),
    Twice(),
    sk.RBF() + sk.PairwiseKernel(),
    C() * Twice(),
    sk.CompoundKernel([sk.RBF()]) ** 2,
]


def test_several_kernels_are_not_one():
    with pytest.raises(ValueError, match="kernel cannot be a CompoundKernel, which is several; give one of them"):
        converted(sk.CompoundKernel([sk.RBF(), sk.Matern()]))


@pytest.mark.parametrize("kernel", UNKNOWN, ids=lambda kernel: type(kernel).__name__)
def test_unknown_kinds_are_refused(kernel):
    with pytest.raises(TypeError, match="kernelcg does not know; of scikit-learn's kernels it knows RBF, Matern"):
        converted(kernel)


@pytest.mark.parametrize("value", [None, "rbf", sk.RBF, RBF, 1.0, np.eye(3), lambda x, y: 1.0])
def test_what_is_no_kernel_is_refused(value):
    with pytest.raises(TypeError, match="kernel must be a kernelcg kernel or one of scikit-learn's"):
        converted(value)


@pytest.mark.parametrize("kind", [RBF, sk.RBF])
def test_a_class_in_place_of_a_kernel_is_told_what_to_write(kind):
    with pytest.raises(TypeError, match=r"not the class RBF; write RBF\(\.\.\.\)"):
        converted(kind)


@pytest.mark.parametrize("nu", [1.0, 3.5, 0.3])
def test_other_smoothnesses_are_refused(nu):
    with pytest.raises(ValueError, match=r"choose 0\.5, 1\.5, 2\.5 or inf"):
        converted(sk.RBF() + sk.Matern(nu=nu))


@pytest.mark.parametrize("exponent", [0.5, 0, -1, 1.5])
def test_other_powers_are_refused(exponent):
    with pytest.raises(ValueError, match=r"Power\.exponent must be a whole number"):
        converted(sk.RBF() ** exponent)


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        (C(0.0) * sk.RBF(), "ConstantKernel.constant_value"),
        (sk.RBF() + C(-1.0), "ConstantKernel.constant_value"),
        (sk.RBF() + W(0.0), "WhiteKernel.noise_level"),
        (sk.RBF(0.0), "RBF.lengthscale"),
    ],
)
def test_values_that_are_not_positive_are_refused_by_name(kernel, name):
    with pytest.raises(ValueError, match=re.escape(name)):
        converted(kernel)


def test_a_periodic_kernel_of_the_euclidean_distance_is_for_one_feature():
    kernel, T = converted(sk.RBF() + sk.ExpSineSquared())[0], torch.from_numpy(X)
    calls = (
        lambda: kernel(T, T),
        lambda: kernel.diagonal(T),
        lambda: kernel.coordinates(T),
        lambda: kernel.sample_frequencies(3, 5, torch.Generator()),
    )
    for call in calls:
        with pytest.raises(
            ValueError, match=r"X has 3 features, but .*ExpSineSquared.*; use kernelcg.kernels.Periodic"
        ):
            call()


def test_and_indeed_it_is_no_covariance_of_two():
    """The reason for the refusal, seen in scikit-learn's own matrix."""
    grid = np.stack(np.meshgrid(np.linspace(0, 2, 12), np.linspace(0, 2, 12)), 2).reshape(-1, 2)
    assert np.linalg.eigvalsh(sk.ExpSineSquared(0.5, 1.0)(grid)).min() < -0.1


def test_one_feature_has_a_spectrum_and_coordinates():
    kernel, _ = converted(sk.ExpSineSquared(1.3, 0.7))
    assert kernel.is_stationary
    assert not kernel.rounds_well
    assert kernel.coordinates(torch.from_numpy(X[:, :1])).shape == (30, 2)
    assert kernel.sample_frequencies(1, 5, torch.Generator().manual_seed(0)).shape == (5, 1)


# names


@pytest.mark.parametrize("gamma", [None, 0.3, 2])
@pytest.mark.parametrize("name", ["linear", "rbf", "laplacian", "poly", "polynomial", "cosine"])
def test_a_name_means_what_it_means_to_scikit_learn(name, gamma):
    degree, coef0 = 2, 0.7
    truth = pairwise_kernels(X, Y, metric=name, filter_params=True, gamma=gamma, degree=degree, coef0=coef0)
    kernel = sklearn_pairwise(name, gamma, degree, coef0, 3)
    np.testing.assert_allclose(matrix(kernel, X, Y), truth, rtol=1e-12, atol=1e-13)


def test_only_gamma_is_a_hyperparameter():
    names = {
        name: [n for n, r in restrictions(sklearn_pairwise(name, None, 3, 1, 3)).items() if r == FREE]
        for name in ("linear", "rbf", "laplacian", "poly", "cosine")
    }
    assert names == {
        "linear": [],
        "rbf": ["lengthscale"],
        "laplacian": ["lengthscale"],
        "poly": ["gamma"],
        "cosine": [],
    }


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("sigmoid", "positive semidefinite.*use 'rbf' or 'poly'"),
        ("additive_chi2", "positive semidefinite.*AdditiveChi2Sampler"),
        ("chi2", "AdditiveChi2Sampler"),
        ("gaussian", "must be one of linear, poly, polynomial, rbf, laplacian, cosine"),
        ("RBF", "must be one of"),
        (None, "must be one of"),
    ],
)
def test_other_names_are_refused_with_reason_and_remedy(name, reason):
    with pytest.raises(ValueError, match=reason):
        sklearn_pairwise(name, None, 3, 1, 3)


@pytest.mark.parametrize("gamma", [0.0, -1.0, math.nan])
@pytest.mark.parametrize("name", ["rbf", "laplacian", "poly"])
def test_gamma_must_be_positive(name, gamma):
    with pytest.raises(ValueError, match="gamma must be positive"):
        sklearn_pairwise(name, gamma, 3, 1, 3)


def test_polynomials_are_checked():
    assert type(sklearn_pairwise("poly", None, 3.0, 1, 3)) is Polynomial
    with pytest.raises(ValueError, match="degree"):
        sklearn_pairwise("poly", None, 2.5, 1, 3)
    with pytest.raises(ValueError, match="coef0"):
        sklearn_pairwise("poly", None, 2, -1, 3)


def test_a_power_is_learned_as_one():
    kernel, _ = converted(sk.RBF(0.8) ** 2)
    assert type(kernel) is Power
    assert kernel.parameter_names() == ["kernel.lengthscale", "kernel.variance"]
