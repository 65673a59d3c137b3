"""Kernels that users write are tried before they are used, kernels of the library are not; kernels may be named."""

import numpy as np
import pytest
import torch
from torch import Tensor

from kernelcg import GPClassifier, GPGeneralizedRegressor, GPRegressor, KernelRidge, load
from kernelcg.estimators import kernel_check
from kernelcg.kernels import RBF, Kernel, Laplacian, Linear, Matern, RationalQuadratic, squared_distances


def data(n=50):
    X = np.random.default_rng(0).normal(size=(n, 2))
    return X, np.sin(X[:, 0])


class Good(Kernel):
    width: Tensor

    def covariance(self, X, Y):
        return 1 / (1 + squared_distances(X / self.width, Y / self.width))


def bad(formula, diagonal=None):
    """Return a kernel of this formula."""
    members = {"__annotations__": {"width": Tensor}, "covariance": formula}
    if diagonal is not None:
        members["diagonal"] = diagonal
    return type("Mine", (Kernel,), members)(1.0)


def good(self, X, Y):
    return 1 / (1 + squared_distances(X / self.width, Y / self.width))


BAD = {
    "fails": (bad(lambda self, X, Y: X @ Y), r"fails on 40 rows of X: RuntimeError.*mend its covariance"),
    "no tensor": (bad(lambda self, X, Y: good(self, X, Y).detach().numpy()), "returns a ndarray"),
    "no matrix": (bad(lambda self, X, Y: good(self, X, Y)[:, 0]), r"returns shape \(40,\) for 40 and 40 rows"),
    "whole numbers": (bad(lambda self, X, Y: torch.ones(len(X), len(Y), dtype=torch.int64)), "returns torch.int64"),
    "single precision": (bad(lambda self, X, Y: good(self, X, Y).float()), "returns torch.float32.*dtype of X"),
    "NaN": (bad(lambda self, X, Y: (1 - squared_distances(X, Y)).sqrt()), r"is nan at the pair \(\d+, \d+\)"),
    "infinite": (bad(lambda self, X, Y: 1 / squared_distances(X, Y)), "is inf at the pair"),
    "not symmetric": (bad(lambda self, X, Y: good(self, X, Y) + X[:, :1]), r"is not symmetric: k\(x, y\) = .* but"),
    "square only": (
        bad(lambda self, X, Y: good(self, X, X)),
        r"returns shape \(3, 3\) for 3 and 40 rows.*different numbers of rows",
    ),
    "depends on others": (
        bad(lambda self, X, Y: good(self, X, Y) * len(X)),
        "for the same pair beside other rows.*two rows alone",
    ),
    "negative variance": (bad(lambda self, X, Y: -good(self, X, Y)), "has the negative variance -1"),
    "wrong diagonal": (
        bad(good, lambda self, X: 2 * torch.ones(len(X), dtype=X.dtype)),
        r"has diagonal\(X\) = 2 where covariance\(X, X\) has 1",
    ),
    "indefinite": (
        bad(lambda self, X, Y: (-squared_distances(X / self.width, Y / self.width)).tanh() + 1),
        r"is not positive semi-definite: the matrix of 40 rows has the eigenvalue -",
    ),
    "detached": (bad(lambda self, X, Y: good(self, X, Y).detach()), "is not differentiable.*without detach"),
    "half detached": (
        bad(lambda self, X, Y: self.width * (good(self, X, Y) / self.width).detach()),
        "by autograd where differences give",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_covariance_is_refused_with_the_offending_value(name):
    kernel, words = BAD[name]
    with pytest.raises(ValueError, match=f"the kernel Mine .*{words}"):
        GPRegressor(kernel).fit(*data())


def test_every_estimator_tries_kernels():
    X, y = data()
    kernel = BAD["not symmetric"][0]
    for model in (KernelRidge(kernel=kernel), GPGeneralizedRegressor(kernel, likelihood="gaussian")):
        with pytest.raises(ValueError, match="Mine is not symmetric"):
            model.fit(X, y)
    for part in (kernel, RBF(1.0) + kernel * 2.0):
        with pytest.raises(ValueError, match="is not symmetric"):
            GPClassifier(part).fit(X, y > 0)


def test_derivatives_matter_only_where_something_is_learned():
    kernel = BAD["detached"][0]
    with pytest.raises(ValueError, match="not differentiable"):
        GPRegressor(kernel).fit(*data())
    for model in (GPRegressor(kernel, optimizer=None), GPRegressor(kernel.fixed())):
        assert np.isfinite(model.fit(*data()).predict(data()[0])).all()


def test_good_kernels_pass_and_one_row_suffices():
    for kernel in (Good(2.0), Good([1.0, 2.0]) + RBF(1.0), Good(1.0) * Linear(1.0)):
        for X in (data()[0], data(1)[0], np.zeros((5, 2)), 1e8 + data()[0]):
            assert kernel_check.require_covariance(kernel, torch.from_numpy(X), learned=True) is None


def test_kernels_of_the_library_are_not_tried(monkeypatch):
    def tried(kernel, rows):
        raise AssertionError(f"{kernel} was tried")

    monkeypatch.setattr(kernel_check, "_evaluated", tried)
    GPRegressor(RBF(1.0) + Linear(1.0) * 2.0, optimizer=None).fit(*data())
    with pytest.raises(AssertionError, match="was tried"):
        GPRegressor(RBF(1.0) + Good(1.0), optimizer=None).fit(*data())


# names


@pytest.mark.parametrize(
    ("name", "kind", "nu"),
    [
        ("rbf", RBF, None),
        ("matern", Matern, 1.5),
        ("matern12", Matern, 0.5),
        ("matern32", Matern, 1.5),
        ("matern52", Matern, 2.5),
        ("rational_quadratic", RationalQuadratic, None),
        ("laplacian", Laplacian, None),
        ("linear", Linear, None),
    ],
)
def test_kernels_may_be_named(name, kind, nu, tmp_path):
    X, y = data()
    models = [
        GPRegressor(name, optimizer=None),
        GPClassifier(name, optimizer=None),
        GPGeneralizedRegressor(name, likelihood="gaussian", optimizer=None),
    ]
    for model in models:
        model.fit(X, y > 0 if isinstance(model, GPClassifier) else y)
        assert type(model.kernel_) is kind
        assert nu is None or model.kernel_.nu == nu
        assert len(model.kernel_.log_parameters()) >= 2  # one for each feature
        model.save(tmp_path / "model.kcg")
        assert load(tmp_path / "model.kcg").kernel == name


def test_the_default_is_the_matern_kernel_by_its_name():
    X, y = data()
    np.testing.assert_array_equal(GPRegressor("matern32").fit(X, y).predict(X), GPRegressor().fit(X, y).predict(X))


def test_a_name_that_no_kernel_has_is_answered_with_those_that_there_are():
    X, y = data()
    for model in (GPRegressor("rbff"), GPGeneralizedRegressor("rbff"), GPClassifier("rbff")):
        with pytest.raises(ValueError, match=r"kernel must be a kernel object or one of rbf, .*not 'rbff'"):
            model.fit(X, (y > 0).astype(int))
