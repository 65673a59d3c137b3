"""What a notebook shows of a fitted model and of the records below it: words, not tensors."""

import numpy as np
import pytest
import torch

from kernelcg import GPClassifier, GPRegressor, backends
from kernelcg.kernels import RBF, Linear, Tanimoto
from kernelcg.operators import DenseMatrix, KernelPlusDiagonal
from kernelcg.planning import solve

X = np.random.default_rng(0).normal(size=(60, 2))
Y = np.stack([np.sin(X[:, 0]), X[:, 1]], axis=1) + 0.1 * np.random.default_rng(1).normal(size=(60, 2))


def assert_words(record, *words):
    shown = repr(record)
    assert "tensor(" not in shown
    assert "array(" not in shown
    assert len(shown) < 1_500, shown
    for word in words:
        assert word in shown


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(lambda: GPRegressor().fit(X, Y[:, 0]), id="one output"),
        pytest.param(lambda: GPRegressor(method="iterative", optimizer=None).fit(X, Y[:, 0]), id="iterative"),
        pytest.param(
            lambda: GPRegressor(max_iter=3).fit(X, Y), id="two outputs", marks=pytest.mark.filterwarnings("ignore")
        ),
        pytest.param(lambda: GPClassifier().fit(X, Y[:, 0] > 0), id="two classes"),
    ],
)
def test_the_records_of_a_fit_show_themselves_in_words(model):
    fitted = model()
    for name in ("certificate_", "learning_", "plan_", "posterior_"):
        assert_words(getattr(fitted, name))
    assert repr(fitted.certificate_) == str(fitted.certificate_)
    assert_words(fitted.posterior_, "Posterior", repr(fitted.posterior_.gp))
    assert_words(fitted.posterior_.problem, "60 rows", "2 features")
    for report in fitted.report_ if isinstance(fitted.report_, tuple) else (fitted.report_,):
        assert repr(report) == str(report)
    if isinstance(fitted, GPClassifier):
        assert repr(fitted.calibration_) == str(fitted.calibration_)


@pytest.mark.parametrize(
    "kernel", [RBF(1.0), RBF(1.0) + Linear(0.5), 2.0 * RBF(1.0), RBF(1.0).on(0), RBF(1.0) * Linear(1.0), Tanimoto(1.0)]
)
def test_kernel_matrices_and_operators_show_their_size_and_formula(kernel):
    points = torch.from_numpy((X > 0).astype(float))
    for K in (backends.bind(kernel, points), backends.Tiles().bind(kernel, points)):
        assert_words(K, "60 rows and 2 features", repr(kernel), K.backend.name(), "on cpu")
        assert_words(K.stored(), "stored")
        A = KernelPlusDiagonal(K, 0.25)
        assert_words(A, "A = K + D", "D = 0.25")
        assert A.shape == (60, 60)
    assert_words(KernelPlusDiagonal(K, torch.arange(1.0, 61.0), torch.ones(60)), "S K S", "1 to 60")


def test_operators_have_a_shape():
    A = DenseMatrix(2 * torch.eye(3, dtype=torch.float64))
    assert A.shape == (3, 3)
    report = solve(A, torch.ones(3, 1, dtype=torch.float64), preconditioner=None)
    assert_words(report, "converged")


@pytest.mark.parametrize("preconditioner", ["auto", "jacobi"])
def test_matrices_without_a_kernel_are_refused_with_what_would_do(preconditioner):
    A, b = DenseMatrix(2 * torch.eye(3, dtype=torch.float64)), torch.ones(3, 1, dtype=torch.float64)
    with pytest.raises(TypeError, match="KernelPlusDiagonal, not a DenseMatrix; give preconditioner=None"):
        solve(A, b, preconditioner=preconditioner)
