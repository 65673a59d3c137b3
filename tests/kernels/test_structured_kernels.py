"""Kernels on some columns, on the sphere, of categories and sets, waves, sums over features, warped inputs."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.utils._testing import ignore_warnings

from kernelcg import GPClassifier, GPRegressor, KernelRidge, load
from kernelcg.backends import Tiles, bind, default
from kernelcg.kernels import (
    RBF,
    GreatCircle,
    Hamming,
    Linear,
    Matern,
    MinMax,
    OnColumns,
    OnSphere,
    Tanimoto,
    Warped,
    Wave,
    additive,
    spectral_mixture,
)
from kernelcg.kernels.mapped import with_numbered_columns
from kernelcg.randomness import seeded

EARTH = 6371.0088


def numbers(n, d, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))


def places(n, seed=0):
    """Return latitudes and longitudes of points spread evenly over the sphere, poles and both date lines included."""
    generator = np.random.default_rng(seed)
    latitude = np.degrees(np.arcsin(generator.uniform(-1, 1, n)))
    found = np.stack([latitude, generator.uniform(-180, 360, n)], 1)
    fixed = [[90, 0], [-90, 77], [0, 180], [0, -180], [10, 20], [-10, 200]]
    return np.concatenate([fixed, found])[:n]


def chords(X, Y, radius):
    def points(Z):
        a, o = np.radians(Z.T)
        return radius * np.stack([np.cos(a) * np.cos(o), np.cos(a) * np.sin(o), np.sin(a)], 1)

    return np.linalg.norm(points(X)[:, None] - points(Y)[None], axis=2)


def great_circle(X, Y, radius):
    """Return great-circle distances by Vincenty's formula for a sphere, accurate at all distances."""
    (a, o), (b, p) = np.radians(X).T[:, :, None], np.radians(Y).T[:, None]
    east = np.cos(b) * np.sin(o - p)
    north = np.cos(a) * np.sin(b) - np.sin(a) * np.cos(b) * np.cos(o - p)
    return radius * np.arctan2(np.hypot(east, north), np.sin(a) * np.sin(b) + np.cos(a) * np.cos(b) * np.cos(o - p))


def counts(n, d, seed=0):
    return np.random.default_rng(seed).poisson(0.7, (n, d)).astype(float)


def tanimoto(X, Y):
    common = X @ Y.T
    union = (X**2).sum(1)[:, None] + (Y**2).sum(1) - common
    return np.where(union > 0, common / np.where(union > 0, union, 1), 1)


def min_max(X, Y):
    low, high = (f(X[:, None], Y[None]).sum(2) for f in (np.minimum, np.maximum))
    return np.where(high > 0, low / np.where(high > 0, high, 1), 1)


def rbf(X, Y, lengthscale):
    return np.exp(-0.5 * (((X[:, None] - Y[None]) / lengthscale) ** 2).sum(2))


def matern52(r):
    q = math.sqrt(5) * r
    return (1 + q + q**2 / 3) * np.exp(-q)


def bent(X, a, b):
    return 1 - (1 - X**a) ** b


CASES = {
    "on columns": (
        RBF([0.7, 1.9], 1.3).on([3, 1]),
        lambda n, s: numbers(n, 4, s),
        lambda X, Y: 1.3 * rbf(X[:, [3, 1]], Y[:, [3, 1]], np.array([0.7, 1.9])),
    ),
    "sum on columns": (
        RBF(0.8).on(0) + Linear([0.5, 2.0]).on([1, 2]) * Matern(1.1, nu=2.5).on([2]),
        lambda n, s: numbers(n, 3, s),
        lambda X, Y: (
            rbf(X[:, :1], Y[:, :1], 0.8)
            + (X[:, 1:3] * [0.5, 2.0]) @ Y[:, 1:3].T * matern52(np.abs(X[:, 2:3] - Y[:, 2]) / 1.1)
        ),
    ),
    "on the sphere": (
        OnSphere(Matern(1500.0, 0.8, nu=2.5)),
        places,
        lambda X, Y: 0.8 * matern52(chords(X, Y, EARTH) / 1500),
    ),
    "on the sphere, some columns": (
        OnSphere(RBF(0.6), radius=1.0).on([2, 0]),
        lambda n, s: np.stack([places(n, s)[:, 1], numbers(n, 1, s)[:, 0], places(n, s)[:, 0]], 1),
        lambda X, Y: np.exp(-0.5 * (chords(X[:, [2, 0]], Y[:, [2, 0]], 1.0) / 0.6) ** 2),
    ),
    "great circle": (
        GreatCircle(3000.0, 1.4),
        places,
        lambda X, Y: 1.4 * np.exp(-great_circle(X, Y, EARTH) / 3000),
    ),
    "hamming": (
        Hamming([0.5, 1.0, 3.0], 2.0),
        lambda n, s: np.random.default_rng(s).integers(0, 3, (n, 3)).astype(float),
        lambda X, Y: 2 * np.exp(-((X[:, None] != Y[None]) / np.array([0.5, 1.0, 3.0])).sum(2)),
    ),
    "tanimoto": (Tanimoto(1.5), lambda n, s: counts(n, 6, s), lambda X, Y: 1.5 * tanimoto(X, Y)),
    "min max": (MinMax(0.7), lambda n, s: counts(n, 5, s), lambda X, Y: 0.7 * min_max(X, Y)),
    "wave": (
        Wave([2.0, 5.0], 1.2),
        lambda n, s: numbers(n, 2, s),
        lambda X, Y: 1.2 * np.cos(2 * np.pi * ((X[:, None] - Y[None]) / [2.0, 5.0]).sum(2)),
    ),
    "spectral mixture": (
        spectral_mixture([1.5, 4.0], [2.0, 3.0], [0.6, 1.1]),
        lambda n, s: numbers(n, 1, s),
        lambda X, Y: sum(
            w * rbf(X, Y, scale) * np.cos(2 * np.pi * (X - Y.T) / p)
            for p, scale, w in ((1.5, 2.0, 0.6), (4.0, 3.0, 1.1))
        ),
    ),
    "additive": (
        additive(lambda d: RBF([0.9] * d, 0.5), 3, order=2),
        lambda n, s: numbers(n, 3, s),
        lambda X, Y: sum(0.5 * rbf(X[:, g], Y[:, g], 0.9) for g in ([0], [1], [2], [0, 1], [0, 2], [1, 2])),
    ),
    "warped": (
        Warped(RBF(0.3), a=[0.5, 2.0], b=[1.5, 0.7]),
        lambda n, s: np.random.default_rng(s).uniform(0.01, 0.99, (n, 2)),
        lambda X, Y: rbf(bent(X, [0.5, 2.0], [1.5, 0.7]), bent(Y, [0.5, 2.0], [1.5, 0.7]), 0.3),
    ),
}


@pytest.fixture(params=CASES)
def case(request):
    kernel, data, formula = CASES[request.param]
    return kernel, data(37, 0), data(11, 1), formula


def test_a_kernel_is_its_formula(case):
    kernel, X, Y, formula = case
    found = kernel(torch.from_numpy(X), torch.from_numpy(Y)).detach().numpy()
    np.testing.assert_allclose(found, formula(X, Y), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(kernel.diagonal(torch.from_numpy(X)).detach(), np.diag(formula(X, X)), rtol=1e-12)


def test_a_kernel_is_positive_semi_definite(case):
    kernel, X, _, _ = case
    values = np.linalg.eigvalsh(kernel(*[torch.from_numpy(X)] * 2).detach().numpy())
    assert values.min() > -1e-12 * values.max()


@pytest.mark.parametrize("backend", [Tiles(), default()], ids=["tiles", "default"])
@pytest.mark.parametrize("precision", [torch.float64, torch.float32])
def test_every_backend_computes_it(case, backend, precision):
    kernel, X, Y, formula = case
    K, V = bind(kernel, torch.from_numpy(X), backend), torch.from_numpy(numbers(len(X), 2, 5))
    tolerance = 1e-11 if precision is torch.float64 else 2e-5
    size = np.abs(formula(X, X)) @ np.abs(V.numpy())
    assert (np.abs(K.product(V, precision=precision).numpy() - formula(X, X) @ V.numpy()) <= tolerance * size).all()
    crossed = K.cross(torch.from_numpy(Y), V, precision=precision).numpy()
    size = np.abs(formula(Y, X)) @ np.abs(V.numpy())
    assert (np.abs(crossed - formula(Y, X) @ V.numpy()) <= tolerance * size + 1e-12).all()
    rows = torch.tensor([3, 0, 7])
    np.testing.assert_allclose(K.block(rows, precision=precision), formula(X[rows], X), rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(K.diagonal(), np.diag(formula(X, X)), rtol=1e-12)


@pytest.mark.parametrize("backend", [Tiles(), default()], ids=["tiles", "default"])
def test_gradients_are_those_of_finite_differences(case, backend):
    kernel, X, _, _ = case
    left, right = (torch.from_numpy(numbers(len(X), 2, seed)) for seed in (7, 8))
    inputs, theta, h = torch.from_numpy(X), kernel.log_parameters().detach(), 1e-6

    def value(at):
        return float((left * (kernel.with_log_parameters(at)(inputs, inputs) @ right)).sum().detach())

    steps = h * torch.eye(len(theta), dtype=torch.float64)
    expected = [(value(theta + step) - value(theta - step)) / (2 * h) for step in steps]
    found = bind(kernel, inputs, backend).gradient(left, right)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_local_factors_and_neighbours_are_those_of_the_mapped_data():
    X = torch.from_numpy(places(40))
    kernel = OnSphere(Matern(2000.0))
    order = torch.arange(40)
    K = bind(kernel, X)
    neighbours = K.neighbours(order, 3)
    distance = chords(X.numpy(), X.numpy(), 1.0)
    for i in range(5, 40):
        expected = np.sort(distance[i, :i])[:3]
        np.testing.assert_allclose(np.sort(distance[i, neighbours[i]]), expected, rtol=1e-9, atol=1e-9)
    D = torch.full((40,), 0.1, dtype=torch.float64)
    inner = bind(kernel.part, kernel.inputs(X))
    torch.testing.assert_close(
        K.local_factors(neighbours, None, None, D), inner.local_factors(neighbours, None, None, D)
    )


@pytest.mark.parametrize("lengthscale", [100.0, 6000.0, 60_000.0, 1e6])
@pytest.mark.parametrize(
    "make", [GreatCircle, *(lambda s, nu=nu: OnSphere(Matern(s, nu=nu)) for nu in (0.5, 1.5, 2.5))]
)
def test_kernels_on_the_sphere_are_covariances_at_every_lengthscale(make, lengthscale):
    X = torch.from_numpy(places(200))
    values = np.linalg.eigvalsh(make(lengthscale)(X, X).detach().numpy())
    assert values.min() > -1e-11 * values.max()


def test_smoother_great_circle_kernels_are_no_covariances_and_are_refused():
    """Matérn-5/2 of the great-circle distance has eigenvalues far below rounding: that is why it is refused."""
    X = places(200)
    values = np.linalg.eigvalsh(matern52(great_circle(X, X, EARTH) / 20_000))
    assert values.min() < -1e-6 * values.max()
    with pytest.raises(ValueError, match="OnSphere"):
        GreatCircle(1000.0, nu=2.5)


def test_tanimoto_counts_common_bits():
    A, B = {1, 4, 5, 9}, {1, 5, 7}
    bits = [[float(i in one) for i in range(10)] for one in (A, B)]
    found = Tanimoto()(*torch.tensor(bits).double()[:, None]).item()
    assert found == pytest.approx(len(A & B) / len(A | B), rel=1e-15)
    assert MinMax()(*torch.tensor(bits).double()[:, None]).item() == pytest.approx(2 / 5)


def test_frequencies_of_some_columns():
    kernel = RBF(0.5).on([2])
    frequencies = kernel.sample_frequencies(3, 4000, seeded(0))
    assert (frequencies[:, :2] == 0).all()
    assert frequencies[:, 2].std().item() == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: RBF(1.0).on([]), "one or more different columns"),
        (lambda: RBF(1.0).on([1, 1]), "one or more different columns"),
        (lambda: RBF(1.0).on([-1]), "counted from 0"),
        (lambda: RBF(1.0).on([5])(torch.zeros(2, 3), torch.zeros(2, 3)), "needs column 5, but X has 3"),
        (lambda: RBF(1.0).on(["x"])(torch.zeros(2, 3), torch.zeros(2, 3)), "column 'x' has no number"),
        (lambda: OnSphere(RBF(1.0))(torch.zeros(2, 3), torch.zeros(2, 3)), "latitude and longitude"),
        (lambda: OnSphere(RBF(1.0))(torch.full((2, 2), 91.0), torch.zeros(2, 2)), "between −90 and 90"),
        (lambda: OnSphere(RBF(1.0), radius=0.0), "radius"),
        (lambda: MinMax()(-torch.ones(1, 2), torch.ones(1, 2)), "negative"),
        (lambda: Warped(RBF(1.0))(2 * torch.ones(1, 2), torch.ones(1, 2)), "between 0 and 1"),
        (lambda: spectral_mixture([1.0], [1.0, 2.0], [1.0]), "as many periods"),
        (lambda: additive(RBF, 3, order=3), "order 1 or 2"),
    ],
)
def test_misuse_is_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_kernels_print_as_formulas():
    assert repr((RBF(1.0) + Linear(2.0)).on(["x", "y"])) == (
        "(RBF(lengthscale=1, variance=1) + Linear(variance=2)).on(['x', 'y'])"
    )


def test_names_of_a_data_frame_become_numbers():
    kernel = RBF(1.0).bounded(lengthscale=(0.1, 9.0)).on(["b"]) + 2.0 * Linear(1.0).on(["c", 0])
    found = with_numbered_columns(kernel, ["a", "b", "c"])
    assert found.left.columns == (1,)
    assert found.right.left.columns == (2, 0)
    assert found.restrictions()[0].upper == 9.0
    with pytest.raises(ValueError, match=r"names column 'z'; the columns are 'a'"):
        with_numbered_columns(RBF(1.0).on("z"), ["a"])


@ignore_warnings()
def test_estimators_take_names_and_files_keep_them(tmp_path):
    X = pd.DataFrame(numbers(40, 3), columns=["a", "b", "c"])
    y = np.sin(X.b) + 0.5 * X.c
    kernel = RBF(1.0).on("b") + Linear(1.0).on(["c"])
    model = GPRegressor(kernel, noise=0.01, method="direct").fit(X, y)
    assert isinstance(model.kernel_.left, OnColumns)
    assert model.kernel_.left.columns == (1,)
    assert model.score(X, y) > 0.99
    changed = X.assign(a=7.0)
    np.testing.assert_allclose(model.predict(changed), model.predict(X), rtol=1e-10)
    model.save(tmp_path / "m.kcg")
    np.testing.assert_array_equal(load(tmp_path / "m.kcg").predict(X), model.predict(X))
    assert KernelRidge(kernel=kernel, alpha=0.1).fit(X, y).score(X, y) > 0.9
    assert GPClassifier(RBF(1.0).on("b"), optimizer=None).fit(X, y > 0).score(X, y > 0) > 0.7
    with pytest.raises(ValueError, match="names column 'b'"):
        GPRegressor(kernel).fit(X.to_numpy(), y)


def test_iterative_and_direct_agree_on_columns():
    X = numbers(300, 3)
    y = np.sin(2 * X[:, 0]) + X[:, 2] + 0.1 * numbers(300, 1, 3)[:, 0]
    options = {"kernel": Matern([0.8, 0.9]).on([0, 1]) + RBF(2.0).on(2), "noise": 0.05, "optimizer": None}
    direct, iterative = (GPRegressor(method=method, **options).fit(X, y) for method in ("direct", "iterative"))
    mean, std = direct.predict(X[:9] + 0.1, return_std=True)
    other, other_std = iterative.predict(X[:9] + 0.1, return_std=True)
    np.testing.assert_allclose(other, mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(other_std, std, rtol=0.01)
