"""Mean, variance, covariance, draws and leave-one-out of the conditioned process against dense NumPy."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from inference.gaussian_truth import Truth, drawn, relative_error, toy
from strategies import KERNELS, kernels, points, seeds

from kernelcg import backends, solvers
from kernelcg.errors import MemoryBudgetExceeded
from kernelcg.inference import GaussianProcess, Noise, Regression, condition, draws, leave_one_out
from kernelcg.inference.gaussian import conditioning
from kernelcg.inference.gaussian.add_observations import updated
from kernelcg.kernels import RBF, Matern
from kernelcg.planning import Pricing
from kernelcg.planning.ranks import Sizes
from kernelcg.randomness import seeded
from kernelcg.solvers import CholeskyFactor, Status, Stopping

METHODS = ("direct", "iterative")
MEANS = ("zero", "constant", "linear")

SAMPLE = ("rbf ard", "matern12", "matern32 ard", "matern52", "rational quadratic", "periodic", "sum", "product",
          "multiple of a sum", "sum with linear", "product with linear")  # fmt: skip


def model(truth, **options):
    """Return the same model and data as the package sees them."""
    known = None if np.ndim(truth.known) == 0 else torch.from_numpy(truth.known)
    problem = Regression(torch.from_numpy(truth.X), torch.from_numpy(truth.Y), known, truth.mean, **options)
    return problem, GaussianProcess(truth.kernel, Noise(truth.noise))


def conditioned(truth, method, **options):
    return condition(*model(truth), method=method, generator=seeded(0), **options)


def new_points(X, count, seed=5):
    """Return points among the data, on the data and far from them."""
    generator = np.random.default_rng(seed)
    among = X.mean(0) + X.std(0) * generator.standard_normal((count - 3, X.shape[1]))
    return np.concatenate([among, X[:2], X[:1] + 30.0])


def check_prediction(found, truth, X_new, variance_tolerance=1e-2):
    """Compare mean and variance with the exact ones, by the tolerance promised and by the bounds that came along."""
    variance = np.diag(truth.posterior_covariance(X_new))
    scale = np.abs(truth.Y).max()
    mean_error = np.abs(found.mean.numpy() - truth.posterior_mean(X_new))
    assert mean_error.max() < 1e-5 * scale
    assert np.all(mean_error <= found.mean_bound.numpy() + 1e-10 * scale)
    assert np.all(np.abs(found.variance.numpy() - variance) <= variance_tolerance * (variance + truth.noise))
    slack = 1e-9 * (variance + truth.noise)
    assert np.all(found.variance_lower.numpy() <= variance + slack)
    assert np.all(found.variance_upper.numpy() >= variance - slack)
    assert found.status is Status.CONVERGED


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", SAMPLE)
def test_mean_variance_and_covariance(name, method):
    X, Y = toy(80, 2, 2)
    X_new = new_points(X, 12)
    for mean in MEANS:
        truth = Truth(KERNELS[name](2), X, Y, 0.1, np.linspace(0, 0.3, 80), mean)
        given_data = conditioned(truth, method)
        assert given_data.report.status is Status.CONVERGED
        found = given_data.predict(torch.from_numpy(X_new), variance=True, bound=True)
        check_prediction(found, truth, X_new)
        torch.testing.assert_close(given_data.mean(torch.from_numpy(X_new)), found.mean, rtol=1e-9, atol=1e-9)
        covariance = given_data.covariance(torch.from_numpy(X_new))
        torch.testing.assert_close(covariance, covariance.T, rtol=1e-10, atol=1e-12)
        exact = truth.posterior_covariance(X_new)
        assert relative_error(covariance, exact) < (1e-9 if method == "direct" else 1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_direct_is_exact_and_iterative_as_good_as_asked_for(method):
    X, Y = toy(120, 2, 2)
    X_new = new_points(X, 10)
    truth = Truth(Matern(0.8, 1.0, nu=1.5), X, Y, 0.01, mean="linear")
    found = conditioned(truth, method, stopping=Stopping(rtol=1e-10), variance_tolerance=1e-8)
    prediction = found.predict(torch.from_numpy(X_new), variance=True, bound=True)
    tolerance = 1e-11 if method == "direct" else 1e-8
    assert relative_error(prediction.mean, truth.posterior_mean(X_new)) < tolerance
    assert relative_error(found.weights.X, truth.weights()) < 100 * tolerance
    check_prediction(prediction, truth, X_new, 1e-8)
    residual = truth.Y - truth.basis(truth.X) @ truth.whitened()[3] - truth.system() @ found.weights.X.numpy()
    assert np.linalg.norm(residual) < 1e-9 * np.linalg.norm(truth.Y)


@given(data=st.data(), d=st.integers(1, 3), n=st.integers(1, 30), mean=st.sampled_from(MEANS), seed=seeds)
def test_degenerate_data(data, d, n, mean, seed):
    """Repeated points, ties, constant features, fewer points than drift functions, any kernel, both methods.

    Predictions at the data: elsewhere a drift that the data do not determine is a matter of convention.
    """
    kernel, X = data.draw(kernels(d)), data.draw(points(n, d)).numpy()
    generator = np.random.default_rng(seed)
    truth = Truth(kernel, X, generator.standard_normal((n, 2)), 0.3, generator.random(n), mean)
    variance = np.diag(truth.posterior_covariance(X))
    for method in METHODS:
        found = conditioned(truth, method, stopping=Stopping(rtol=1e-8))
        prediction = found.predict(torch.from_numpy(X), variance=True)
        np.testing.assert_allclose(prediction.mean.numpy(), truth.posterior_mean(X), atol=1e-5)
        assert np.all(np.abs(prediction.variance.numpy() - variance) <= 1e-2 * (variance + 0.3))
        np.testing.assert_allclose(
            found.covariance(torch.from_numpy(X)).numpy(),
            truth.posterior_covariance(X),
            atol=1e-5 * (1 + variance.max()),
        )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("mean", MEANS)
def test_variance_is_never_negative(method, mean):
    """Noise of 1e-10, every row twice, predictions on the data, smooth kernel: rounding alone could do it."""
    generator = np.random.default_rng(0)
    X = np.repeat(generator.standard_normal((40, 1)), 2, axis=0)
    Y = np.sin(X) + 1e-5 * generator.standard_normal((80, 1))
    truth = Truth(RBF(1.0), X, Y, 1e-10, mean=mean)
    found = conditioned(truth, method, stopping=Stopping(max_iterations=300))
    X_new = torch.from_numpy(np.concatenate([X, X + 1e-9, X + 0.1]))
    prediction = found.predict(X_new, variance=True, bound=True)
    for value in (prediction.variance, prediction.variance_lower, prediction.variance_upper):
        assert bool((value >= 0).all())
        assert bool(value.isfinite().all())
    assert bool((prediction.variance_lower <= prediction.variance_upper).all())
    assert bool((prediction.variance < 1.1).all())


def in_blocks(found, columns):
    """Return the posterior with so many columns in one block solve."""
    return replace(found, problem=found.problem.at_price(Pricing(sizes=Sizes(columns=columns))))


@pytest.mark.parametrize("method", METHODS)
def test_chunks_do_not_change_the_result(method):
    X, Y = toy(90, 2, 2)
    X_new = torch.from_numpy(new_points(X, 11))
    truth = Truth(Matern(1.0, nu=2.5), X, Y, 0.05, mean="linear")
    found = conditioned(truth, method, stopping=Stopping(rtol=1e-11), variance_tolerance=1e-9)
    whole = found.predict(X_new, variance=True, bound=True), found.covariance(X_new)
    for size in (1, 4, 11):
        some = in_blocks(found, size)
        parts = some.predict(X_new, variance=True, bound=True), some.covariance(X_new)
        for name in ("mean", "variance", "variance_lower", "variance_upper", "mean_bound"):
            torch.testing.assert_close(getattr(parts[0], name), getattr(whole[0], name), rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(parts[1], whole[1], rtol=1e-7, atol=1e-9)


def test_covariance_takes_both_ways_to_the_same_result():
    """With the block K(X, X*) kept and without, whichever fits."""
    X, Y = toy(60, 2)
    truth = Truth(RBF(1.0), X, Y, 0.1, mean="constant")
    for count in (3, 40):
        X_new = new_points(X, count)
        for columns in (1, 128):
            covariance = in_blocks(conditioned(truth, "direct"), columns).covariance(torch.from_numpy(X_new))
            assert relative_error(covariance, truth.posterior_covariance(X_new)) < 1e-9


def test_covariance_that_does_not_fit_is_refused():
    X, Y = toy(60, 2)
    backend = backends.default(memory=200_000)
    problem = Regression(torch.from_numpy(X), torch.from_numpy(Y), backend=backend)
    found = condition(problem, GaussianProcess(RBF(1.0), Noise(0.1)), generator=seeded(0))
    assert found.covariance(torch.zeros(20, 2)).shape == (20, 20)
    with pytest.raises(MemoryBudgetExceeded, match=r"covariance of 400 points.*0\.0002 GB"):
        found.covariance(torch.zeros(400, 2))
    assert found.predict(torch.zeros(400, 2), variance=True).variance.shape == (400,)
    tiny = Regression(torch.from_numpy(X), torch.from_numpy(Y), backend=backends.default(memory=5000))
    with pytest.raises(MemoryBudgetExceeded, match="5e-06 GB"):
        condition(tiny, GaussianProcess(RBF(1.0), Noise(0.1)), method="direct", generator=seeded(0)).covariance(
            torch.zeros(2, 2)
        )


def test_nothing_is_factorised_twice(monkeypatch):
    """Where the automatic choice is a direct solve, every chunk of a prediction chooses and factorises again."""
    made = []

    class Counted(CholeskyFactor):
        def __init__(self, P):
            made.append(len(P))
            super().__init__(P)

    monkeypatch.setattr(solvers.direct, "CholeskyFactor", Counted)
    truth = Truth(RBF(0.5), *drawn(RBF(0.5), 1600, 2, 0.05), 0.05)
    found = conditioned(truth, "iterative")
    found.predict(torch.from_numpy(truth.X[:300] + 0.1), variance=True)
    assert len(made) <= 1


# leaving one out


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("method", METHODS)
def test_leave_one_out_leaves_one_out(method, mean):
    X, Y = toy(40, 2, 2)
    truth = Truth(Matern(1.0, 1.2, nu=1.5), X, Y, 0.1, np.linspace(0, 0.2, 40), mean)
    found = leave_one_out(conditioned(truth, method, stopping=Stopping(rtol=1e-10)), generator=seeded(1))
    residuals, variances, densities = zip(*(truth.left_out(i) for i in range(40)), strict=True)
    tolerance = 1e-9 if method == "direct" else 1e-6
    assert relative_error(found.residuals, np.array(residuals)) < tolerance
    assert relative_error(found.variances, np.array(variances)) < tolerance
    assert relative_error(found.log_densities, np.array(densities)) < tolerance
    assert found.status is Status.CONVERGED
    if method == "direct":
        assert float(found.relative_errors.max()) < 1e-6


@pytest.mark.parametrize("mean", ["zero", "linear"])
def test_sampled_leave_one_out_keeps_its_standard_errors(mean, monkeypatch):
    """A low-rank part of 10 rows leaves most of diag A⁻¹ to the probes."""
    monkeypatch.setattr(conditioning, "FACTORISED_ROWS", 0)  # else so few rows need no probes
    X, Y = toy(150, 2)
    truth = Truth(Matern(0.7, 1.2, nu=1.5), X, Y, 0.3, mean=mean)
    exact = leave_one_out(conditioned(truth, "direct"), generator=seeded(0))
    problem, gp = model(truth, pricing=Pricing(sizes=Sizes(bound_rank=10, bound_work=0.0)))
    options = {"stopping": Stopping(rtol=1e-8), "preconditioner": "rp_cholesky", "generator": seeded(0)}
    iterative = condition(problem, gp, **options)
    found = leave_one_out(iterative, probes=128, generator=seeded(1))
    errors = found.relative_errors
    assert 0.01 < float(errors.median()) < 0.3
    scores = (exact.variances / found.variances - 1) / errors
    assert float(scores.abs().max()) < 6
    assert 0.7 < float(scores.std()) < 1.4
    torch.testing.assert_close(found.residuals / found.variances[:, None], exact.residuals / exact.variances[:, None])
    fewer = leave_one_out(iterative, probes=32, generator=seeded(1))
    assert float((fewer.relative_errors / errors).median()) == pytest.approx(2, rel=0.2)


# draws by the covariance


@pytest.mark.parametrize("method", METHODS)
def test_draws_have_shape_mean_and_covariance(method):
    X, Y = toy(60, 2, 2)
    X_new = new_points(X, 5)
    truth = Truth(RBF(1.0), X, Y, 0.2, mean="constant")
    found = conditioned(truth, method)
    for noisy in (False, True):
        sampled = draws(found, torch.from_numpy(X_new), 4000, seeded(2), noisy=noisy)
        assert sampled.shape == (5, 2, 4000)
        covariance = truth.posterior_covariance(X_new) + 0.2 * noisy * np.eye(5)
        L = np.linalg.cholesky(covariance + 1e-12 * np.eye(5))
        for c in range(2):
            white = np.linalg.solve(L, sampled[:, c].numpy() - truth.posterior_mean(X_new)[:, c : c + 1])
            assert np.abs(white.mean(1)).max() < 4.5 / np.sqrt(4000)
            assert np.abs(white @ white.T / 4000 - np.eye(5)).max() < 5 * np.sqrt(2 / 4000)
        outputs = (sampled - torch.from_numpy(truth.posterior_mean(X_new))[:, :, None]).numpy()
        correlation = np.mean(outputs[:, 0] * outputs[:, 1], 1) / outputs.std(2).prod(1)
        assert np.abs(correlation).max() < 4.5 / np.sqrt(4000), "outputs are independent"
    assert draws(found, torch.from_numpy(X_new), 0, seeded(2)).shape == (5, 2, 0)
    again = [draws(found, torch.from_numpy(X_new), 3, seeded(7)) for _ in range(2)]
    assert torch.equal(*again)


def test_draws_at_repeated_points_agree():
    truth = Truth(RBF(1.0), *toy(40, 2), 0.1)
    X_new = torch.zeros(3, 2, dtype=torch.float64)
    sampled = draws(conditioned(truth, "direct"), X_new, 10, seeded(0))
    torch.testing.assert_close(sampled[0], sampled[1], rtol=0, atol=1e-4)


# warm starts and more data


@pytest.mark.parametrize("mean", MEANS)
def test_start_at_the_solution_takes_no_iteration(mean):
    X, Y = toy(100, 2, 2)
    truth = Truth(Matern(0.7, nu=1.5), X, Y, 0.01, mean=mean)
    problem, gp = model(truth)
    solution = np.linalg.solve(truth.system(), torch.cat([problem.centred, problem.H], dim=1).numpy())
    cold = condition(problem, gp, preconditioner=None, generator=seeded(0))
    warm = condition(problem, gp, preconditioner=None, start=torch.from_numpy(solution), generator=seeded(0))
    assert int(cold.report.iterations.max()) > 5
    assert int(warm.report.iterations.max()) == 0
    X_new = new_points(X, 6)
    for found in (cold, warm):
        check_prediction(found.predict(torch.from_numpy(X_new), variance=True, bound=True), truth, X_new)


def test_a_bad_start_does_no_harm_and_a_wrong_one_is_refused():
    truth = Truth(RBF(1.0), *toy(60, 2), 0.05, mean="constant")
    X_new = new_points(truth.X, 6)
    for preconditioner in ("auto", "rp_cholesky", None):
        start = 1e3 * torch.randn(60, 2, generator=seeded(3), dtype=torch.float64)
        found = conditioned(truth, "iterative", start=start, preconditioner=preconditioner)
        check_prediction(found.predict(torch.from_numpy(X_new), variance=True, bound=True), truth, X_new)
    with pytest.raises(ValueError, match="start has shape"):
        conditioned(truth, "iterative", start=torch.zeros(60, 5))


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("method", METHODS)
def test_more_observations_are_the_same_as_all_at_once(method, mean):
    X, Y = toy(90, 2, 2)
    known = np.linspace(0, 0.2, 90)
    old = Truth(Matern(1.0, nu=1.5), X[:70], Y[:70], 0.05, known[:70], mean)
    new = Truth(Matern(1.0, nu=1.5), X, Y, 0.05, known, mean)
    found = updated(
        conditioned(old, method),
        *(torch.from_numpy(part[70:]) for part in (X, Y, known)),
        method=method,
        generator=seeded(1),
    )
    X_new = new_points(X, 8)
    check_prediction(found.predict(torch.from_numpy(X_new), variance=True, bound=True), new, X_new)


def test_lean_posteriors_are_restored():
    truth = Truth(RBF(1.0), *toy(50, 2), 0.1, mean="linear")
    X_new = new_points(truth.X, 6)
    for method in METHODS:
        lean = conditioned(truth, method).lean()
        assert lean.is_lean
        assert relative_error(lean.mean(torch.from_numpy(X_new)), truth.posterior_mean(X_new)) < 1e-5
        with pytest.raises(ValueError, match="restored"):
            lean.predict(torch.from_numpy(X_new), variance=True)
        restored = lean.restored(method, seeded(0))
        check_prediction(restored.predict(torch.from_numpy(X_new), variance=True, bound=True), truth, X_new)


# what cannot be done is said


def test_misuse_is_named():
    found = conditioned(Truth(RBF(1.0), *toy(20, 2), 0.1), "direct")
    with pytest.raises(ValueError, match="X has 3 features but the model was fitted to 2"):
        found.predict(torch.zeros(4, 3))
    with pytest.raises(ValueError, match="two dimensions"):
        found.mean(torch.zeros(4))
    with pytest.raises(ValueError, match="no preconditioner 'magic'"):
        conditioned(Truth(RBF(1.0), *toy(20, 2), 0.1), "iterative", preconditioner="magic")


def test_unknown_methods_are_refused():
    with pytest.raises(ValueError, match="method must be"):
        conditioned(Truth(RBF(1.0), *toy(20, 2), 0.1), "cholesky")


def test_unconverged_solves_are_admitted():
    truth = Truth(RBF(1.0), *toy(200, 2), 1e-6)
    found = conditioned(truth, "iterative", preconditioner=None, stopping=Stopping(rtol=1e-10, max_iterations=3))
    residual = truth.Y - truth.system() @ found.weights.X.numpy()
    reached = np.linalg.norm(residual) <= 1e-10 * np.linalg.norm(truth.Y)
    assert (found.report.status is Status.CONVERGED) == reached
