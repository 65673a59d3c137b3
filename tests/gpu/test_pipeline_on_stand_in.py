"""Whole fits and predictions on a stand-in for CUDA: nothing mixes devices, and the numbers are those of the CPU."""

import numpy as np
import pytest
import torch
from cuda_stand_in import CudaStandIn

from kernelcg import GPClassifier, GPGeneralizedRegressor, GPRegressor, KernelRidge, backends, load
from kernelcg.backends import Tiles
from kernelcg.backends.triton import Triton, is_interpreted
from kernelcg.kernels import Linear, Matern, Periodic, RationalQuadratic
from kernelcg.operators import KernelPlusDiagonal
from kernelcg.preconditioners import available, recipe

pytestmark = pytest.mark.filterwarnings("ignore::kernelcg.errors.ConvergenceWarning")

N, T = 40, 4
DATA = np.random.default_rng(0)
X, Z = DATA.uniform(0, 3, (N, 2)), DATA.uniform(0, 3, (T, 2))
SIGNAL = np.sin(2 * X[:, 0]) + X[:, 1]
Y = SIGNAL + 0.1 * DATA.normal(size=N)
TWO = np.stack([Y, np.cos(X[:, 1]) + 0.1 * DATA.normal(size=N)], 1)
CLASSES = np.digitize(SIGNAL, [1.0, 2.5])
COUNTS = DATA.poisson(np.exp(SIGNAL / 3)).astype(float)

GIVEN = {"kernel": Matern(1.0), "noise": 0.01, "optimizer": None}
LATENT = {"kernel": Matern(1.0), "optimizer": None}
TOLERANCE = 1e-3
"""Answers differ by rounding and, where iterations end at a tolerance, by what it allows."""


@pytest.fixture
def device(monkeypatch):
    """Give torch a device on which torch tiles serve, though Triton's interpreter could."""
    monkeypatch.setattr(Triton, "preference", classmethod(lambda cls, device: None))
    with CudaStandIn() as found:
        yield found


def there(values):
    return torch.from_numpy(values).cuda()


def same_answers(estimator, y, ask, **options):
    """Assert that a fit on the device answers as one on the CPU does, and return the former."""
    here = estimator(device="cpu", random_state=0, **options).fit(X, y)
    moved = estimator(device="cuda", random_state=0, **options).fit(there(X), there(y))
    assert moved.plan_.device.startswith("cuda")
    for found, expected in zip(ask(moved, there(Z)), ask(here, Z), strict=True):
        np.testing.assert_allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE)
    return moved


def of_regression(model, points):
    _, covariance = model.predict(points, return_cov=True)
    return *model.predict(points, return_std=True), covariance, model.sample_y(points, 2, random_state=0)


def of_classes(model, points):
    return model.predict_proba(points), model.decision_function(points), model.log_marginal_likelihood()


@pytest.mark.parametrize("method", ["direct", "iterative"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_learning(device, method, dtype):
    model = same_answers(GPRegressor, Y, of_regression, method=method, dtype=dtype, max_iter=1)
    assert model.plan_.backend == "tiles"
    assert "certified" in str(model.certificate_)


@pytest.mark.parametrize("method", ["direct", "iterative"])
@pytest.mark.parametrize("mean", ["linear", "zero"])
def test_drift(device, method, mean):
    same_answers(GPRegressor, Y, of_regression, method=method, mean=mean, **GIVEN)


@pytest.mark.parametrize("options", [{"kernel_per_output": True, "optimizer": "lbfgs", "max_iter": 1}, GIVEN])
def test_several_outputs(device, options):
    same_answers(GPRegressor, TWO, lambda model, points: model.predict(points, return_std=True), **options)


@pytest.mark.parametrize("name", sorted(available()))
def test_every_preconditioner(device, name):
    """The same seed gives the same P on both sides."""
    found = []
    for points in (torch.from_numpy(X), there(X)):
        A = KernelPlusDiagonal(Tiles().bind(Matern(1.0), points), points.new_full((N,), 0.1))
        P = recipe(name).build(A, torch.Generator().manual_seed(0))
        V = torch.randn(N, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(points.device)
        parts = [P.solve(V), P.dense()]
        if P.is_constant:
            parts += [P.log_determinant(), P.sample(torch.Generator().manual_seed(2), 2)]
        assert all(part.device == points.device for part in parts)
        found.append(parts)
    for here, moved in zip(*found, strict=True):
        torch.testing.assert_close(moved.cpu(), here, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kernel", [RationalQuadratic(1.0), Periodic(1.0, 2.0) * Matern(2.0) + Linear([1.0, 1.0])])
def test_kernels_that_only_tiles_have(device, kernel):
    same_answers(GPRegressor, Y, of_regression, kernel=kernel, noise=0.01, max_iter=1)


def test_everything_else_that_a_regression_is_asked(device, tmp_path):
    def ask(model, points):
        file = tmp_path / f"{model.device}, {model.method}"
        model.save(file)
        left_out = model.loo()
        value, gradient = model.log_marginal_likelihood(eval_gradient=True)
        parts = [load(file).predict(points), left_out.residuals, left_out.std, value, gradient]
        parts += [model.log_predictive_density(points, np.zeros(T)), model.score(X, Y), model.feature_importances_]
        return [*parts, model.update(X[:4] + 0.01, Y[:4]).predict(points)]

    for method in ("direct", "iterative"):
        same_answers(GPRegressor, Y, ask, method=method, **GIVEN)


def test_functions_that_autograd_follows(device):
    def ask(model, points):
        function = model.differentiable()
        points = torch.as_tensor(points).clone().requires_grad_()
        mean, covariance = function.mean(points), function.covariance(points)
        slope = torch.autograd.grad(mean.sum() + covariance.sum(), points)[0]
        drawn = function.paths(2, torch.Generator().manual_seed(0))(points)
        return [one.detach().cpu() for one in (mean, covariance, slope, drawn)]

    same_answers(GPRegressor, Y, ask, **GIVEN)


@pytest.mark.parametrize("method", ["direct", "iterative"])
@pytest.mark.parametrize("classes", [2, 3])
def test_classes(device, method, classes):
    same_answers(GPClassifier, CLASSES.clip(max=classes - 1), of_classes, method=method, **LATENT)


def test_a_classifier_learns(device):
    same_answers(GPClassifier, CLASSES.clip(max=1), of_classes, max_iter=1)


@pytest.mark.parametrize("likelihood", ["student_t", "negative_binomial", "gamma"])
def test_other_likelihoods_learn(device, likelihood):
    def ask(model, points):
        return *model.predict(points, return_std=True), model.log_predictive_density(points, np.ones(T))

    y = {"student_t": Y, "negative_binomial": COUNTS, "gamma": np.exp(Y)}[likelihood]
    same_answers(GPGeneralizedRegressor, y, ask, likelihood=likelihood, max_iter=1)


@pytest.mark.parametrize("method", ["direct", "iterative"])
def test_kernel_ridge(device, method):
    same_answers(KernelRidge, Y, lambda model, points: [model.predict(points)], kernel="rbf", method=method, alpha=0.1)


def test_fused_kernels_serve_a_whole_fit():
    """The interpreter runs them below the device, on the tensors that it holds."""
    if not (is_interpreted() and backends.available()["triton"].usable):
        pytest.skip("Triton's interpreter does not run here")
    with CudaStandIn():
        for method in ("direct", "iterative"):
            options = {**GIVEN, "method": method, "n_jobs": 1}  # the interpreter runs in one thread
            model = same_answers(
                GPRegressor, Y, lambda model, points: model.predict(points, return_std=True), **options
            )
            assert model.plan_.backend == "triton"
