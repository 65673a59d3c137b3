"""The same work twice on a GPU gives the same bits, wherever the memory lies: step by step, so that a culprit is named.

Without a GPU a few rows of it run on the device that stands in for one, which refuses what has no order there.
"""

import numpy as np
import pytest
import torch
from cuda_stand_in import CudaStandIn

from kernelcg import GPClassifier, GPRegressor, backends
from kernelcg.backends.triton import Triton
from kernelcg.inference import GaussianProcess, Noise, Regression
from kernelcg.inference.gaussian.likelihood_by_cholesky import direct_estimate, signs_for
from kernelcg.kernels import Matern
from kernelcg.operators import KernelPlusDiagonal
from kernelcg.preconditioners import available, recipe
from kernelcg.solvers import CholeskyFactor

ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
pytestmark = pytest.mark.filterwarnings("ignore::kernelcg.errors.ConvergenceWarning")


@pytest.fixture(params=["stand-in", pytest.param("gpu", marks=ON_GPU)])
def n(request, monkeypatch):
    """Return how many rows are worth while: on a GPU several blocks of a factorisation."""
    if request.param == "gpu":
        yield 5000
        return
    monkeypatch.setattr(Triton, "preference", classmethod(lambda cls, device: None))
    with CudaStandIn():
        yield 40


def normal(n, k, seed):
    return torch.randn(n, k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def of(X):
    return (X[:, :1].sin() + 0.5 * X[:, 1:2] + 0.3 * normal(len(X), 1, 2)).cuda()


def again_and_again(work):
    """Return what the work gave first, after it gave the same in memory that lies elsewhere."""
    found, occupied = [], []
    for count in (0, 1000, 12_345):
        occupied += [torch.ones(count + 1).cuda(), np.ones(count + 2)]
        found.append([one.cpu().numpy() if isinstance(one, torch.Tensor) else np.array(one) for one in work()])
    for other in found[1:]:
        for one, same in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(one, same)
    return found[0]


def estimate(problem, signs):
    found = direct_estimate(problem, GaussianProcess(Matern([1.0, 2.0, 3.0]), Noise(0.1)), signs=signs)
    return [found.value, found.gradient, found.information]


STEPS = {
    "matrix": lambda A, B: [A.dense()],
    "product": lambda A, B: [A @ B, A.with_precision(torch.float32) @ B],
    "gradient": lambda A, B: [A.kernel_gradient(B, B), A.with_precision(torch.float32).kernel_gradient(B, B)],
    "gradient with weights": lambda A, B: [A.K.gradient(B, B, weights=A.dense())],
    "factor": lambda A, B: [CholeskyFactor(A.dense()).L],
    "solve": lambda A, B: [CholeskyFactor(A.dense()).solve(B)],
    "inverse": lambda A, B: [CholeskyFactor(A.dense()).inverse()],
}


@pytest.mark.parametrize("step", STEPS)
def test_a_step(n, step):
    A = KernelPlusDiagonal(backends.default(device="cuda").bind(Matern([1.0, 2.0, 3.0]), normal(n, 3, 0).cuda()), 0.1)
    again_and_again(lambda: STEPS[step](A, normal(n, 4, 1).cuda()))


@pytest.mark.parametrize("columns", [0, 8])
def test_an_exact_evaluation(n, columns):
    X = normal(n, 3, 0).cuda()
    problem = Regression(X, of(X.cpu()), mean="constant", backend=backends.default(device="cuda"))
    again_and_again(lambda: estimate(problem, signs_for(problem, columns, 0) if columns else None))


@pytest.mark.parametrize("name", sorted(available()))
def test_a_preconditioner(n, name):
    X = normal(n, 3, 0).cuda()
    A = KernelPlusDiagonal(backends.default(device="cuda").bind(Matern(1.0), X), X.new_full((n,), 0.1))
    V = normal(n, 3, 1).cuda()
    again_and_again(lambda: [recipe(name).build(A, torch.Generator().manual_seed(0)).solve(V)])


@pytest.mark.parametrize("method", ["direct", "iterative"])
def test_a_fit_that_learns(n, method):
    X = normal(n, 3, 0)

    def fitted():
        model = GPRegressor(device="cuda", random_state=0, method=method, max_iter=3).fit(X.cuda(), of(X)[:, 0])
        steps = [value for step in model.learning_.steps for value in step.log_parameters]
        return [steps, *model.predict(X[:20].cuda(), return_std=True)]

    again_and_again(fitted)


def test_a_classifier(n):
    X = normal(min(n, 1500), 3, 0)

    def fitted():
        model = GPClassifier(device="cuda", random_state=0, max_iter=2).fit(X.cuda(), (of(X)[:, 0] > 0).double())
        return [model.predict_proba(X[:20].cuda())]

    again_and_again(fitted)
