"""Several outputs with noise of their own and holes in Y, against dense matrices written from the formulas."""

import numpy as np
import pytest
import torch

from kernelcg.inference.gaussian.likelihood_by_pcg import Numerics
from kernelcg.inference.gaussian.model import Noise
from kernelcg.inference.outputs.certificate import certificate_of_outputs
from kernelcg.inference.outputs.model import OutputProcesses, Outputs
from kernelcg.inference.outputs.objective import OutputsObjective
from kernelcg.inference.outputs.posterior import condition_outputs, updated_outputs
from kernelcg.kernels import RBF
from kernelcg.planning.plan import Method
from kernelcg.planning.planner import Options, Resources, planned
from kernelcg.randomness import seeded
from kernelcg.solvers import Stopping

NOISES = (0.01, 0.1, 1.0)
LENGTHSCALES = (0.7, 1.1, 0.5)


def data(n=40, holes=True, known=False, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 2))
    Y = np.c_[np.sin(X[:, 0]), np.cos(X[:, 1]), X[:, 0]] + np.sqrt(NOISES) * rng.standard_normal((n, 3))
    if holes:
        Y[: n // 4, 0] = np.nan
        Y[n // 8 : n // 2, 2] = np.nan
    return X, Y, rng.uniform(0, 0.3, (n, 3)) if known else None


def outputs(X, Y, known=None, mean="constant"):
    X, Y, known = (None if value is None else torch.from_numpy(value) for value in (X, Y, known))
    return Outputs(X, Y, known, mean)


def processes(kernel_each=False):
    kernel = tuple(RBF(ell, 1.5) for ell in LENGTHSCALES) if kernel_each else RBF(LENGTHSCALES[0], 1.5)
    return OutputProcesses(kernel, tuple(Noise(noise) for noise in NOISES))


def objective(problem, method, probes=8):
    options = Options(Method(method), probes=probes)
    resources = Resources.of(problem.backend, problem.X.device, problem.pricing)
    plan = planned(problem.workload(in_stages=False), options, resources)
    return OutputsObjective(problem, Numerics(probes, Stopping(rtol=1e-8)), plan)


class Truth:
    """One output: A = K + D of the rows that are there, the drift by generalised least squares."""

    def __init__(self, X, y, lengthscale, variance, noise, known=None, constant=True):
        there = ~np.isnan(y)
        self.X, self.y = X[there], y[there]
        self.kernel = lambda A, B: variance * np.exp(-((A[:, None] - B) ** 2).sum(2) / (2 * lengthscale**2))
        D = noise + (0.0 if known is None else known[there])
        self.A = self.kernel(self.X, self.X) + np.diag(np.broadcast_to(D, len(self.y)))
        self.H = np.ones((len(self.y), int(constant)))
        solved = np.linalg.solve(self.A, np.c_[self.y, self.H])
        self.S = self.H.T @ solved[:, 1:]
        self.beta = np.linalg.solve(self.S, self.H.T @ solved[:, 0])
        self.a = solved[:, 0] - solved[:, 1:] @ self.beta
        self.variance = variance

    def evidence(self):
        r = self.y - self.H @ self.beta
        return -0.5 * (r @ self.a + np.linalg.slogdet(self.A)[1] + len(r) * np.log(2 * np.pi))

    def mean(self, new):
        return self.kernel(new, self.X) @ self.a + self.beta.sum()

    def covariance(self, new):
        K = self.kernel(self.X, new)
        left = np.ones((len(new), self.H.shape[1])) - K.T @ np.linalg.solve(self.A, self.H)
        explained = K.T @ np.linalg.solve(self.A, K)
        return self.kernel(new, new) - explained + left @ np.linalg.solve(self.S, left.T)


def truths(X, Y, known, theta, kernel_each):
    """Return the truth of each output at log hyperparameters in the order of the library."""
    values = np.exp(theta)
    for j in range(3):
        lengthscale, variance = values[2 * j * kernel_each :][:2]
        yield Truth(X, Y[:, j], lengthscale, variance, values[-3 + j], None if known is None else known[:, j])


def evidence(X, Y, known, theta, kernel_each):
    return sum(one.evidence() for one in truths(X, Y, known, theta, kernel_each))


@pytest.mark.parametrize("kernel_each", [False, True])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("holes", [False, True])
def test_the_evidence_is_the_sum_and_its_gradient_that_of_differences(holes, known, kernel_each):
    X, Y, variances = data(holes=holes, known=known)
    gp, problem = processes(kernel_each), outputs(X, Y, variances)
    theta = gp.log_parameters().numpy()
    found, _ = objective(problem, "direct")(gp)
    assert found.value == pytest.approx(evidence(X, Y, variances, theta, kernel_each), rel=1e-10)
    for i, step in enumerate(1e-5 * np.eye(len(theta))):
        ends = [evidence(X, Y, variances, theta + sign * step, kernel_each) for sign in (1, -1)]
        assert found.gradient[i].item() == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("kernel_each", [False, True])
def test_the_iterative_gradient_is_unbiased(kernel_each):
    X, Y, _ = data(60)
    gp, problem = processes(kernel_each), outputs(X, Y)
    exact, _ = objective(problem, "direct")(gp)
    iterated = objective(problem, "iterative")
    found = [iterated.seeded(seed)(gp)[0] for seed in range(40)]
    for name in ("gradient", "value"):
        draws = torch.stack([torch.as_tensor(getattr(one, name), dtype=torch.float64) for one in found])
        error = draws.std(0) / len(found) ** 0.5 + 1e-6 * abs(exact.value)
        assert bool(((draws.mean(0) - getattr(exact, name)).abs() < 4.5 * error).all()), name


def test_an_output_without_observations_on_these_rows_adds_nothing():
    X, Y, _ = data(holes=False)
    gp = processes()
    Y[10:, 1] = np.nan
    part = objective(outputs(X, Y), "direct").on(torch.arange(10, 40))
    found, _ = part(gp)
    expected = [Truth(X[10:], Y[10:, j], LENGTHSCALES[0], 1.5, NOISES[j]).evidence() for j in (0, 2)]
    assert found.value == pytest.approx(sum(expected), rel=1e-10)
    assert found.gradient[3].item() == 0.0


def test_an_impossible_output_makes_the_sum_impossible():
    X, Y, _ = data(holes=False)
    X[1] = X[0]
    gp = OutputProcesses(RBF(1.0, 1e12), (Noise(1e-12), Noise(0.1), Noise(1.0)))
    for method in ("direct", "iterative"):
        found, _ = objective(outputs(np.repeat(X, 2, 0), np.repeat(Y, 2, 0)), method)(gp, value=False)
        assert found.value == -np.inf or found.status.name != "CONVERGED"


@pytest.mark.parametrize("method", ["direct", "iterative"])
@pytest.mark.parametrize("kernel_each", [False, True])
def test_predictions_are_those_of_the_dense_truth_within_their_bounds(kernel_each, method):
    X, Y, known = data(known=True)
    gp = processes(kernel_each)
    posterior = condition_outputs(
        outputs(X, Y, known), gp, method=method, stopping=Stopping(rtol=1e-10), generator=seeded(0)
    )
    new = np.random.default_rng(1).uniform(-2, 2, (7, 2))
    points = torch.from_numpy(new)
    found = posterior.predict(points, variance=True, bound=True)
    covariances, status = posterior.joint(points)
    assert status.name == "CONVERGED"
    assert found.variance.shape == found.mean.shape == found.variance_lower.shape == (7, 3)
    assert covariances.shape == (7, 7, 3)
    for j, truth in enumerate(truths(X, Y, known, gp.log_parameters().numpy(), kernel_each)):
        covariance = truth.covariance(new)
        error = np.abs(found.mean[:, j].numpy() - truth.mean(new))
        assert (error <= found.mean_bound[:, j].numpy() + 1e-12).all()
        np.testing.assert_allclose(posterior.mean(points)[:, j], truth.mean(new), rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(covariances[:, :, j], covariance, atol=1e-6)
        assert (found.variance_lower[:, j].numpy() <= np.diag(covariance) * (1 + 1e-9)).all()
        assert (np.diag(covariance) <= found.variance_upper[:, j].numpy() * (1 + 1e-9)).all()


def test_leaving_one_out_is_leaving_one_out():
    X, Y, _ = data(20)
    gp = processes()
    posterior = condition_outputs(outputs(X, Y), gp, method="direct", generator=seeded(0))
    found = posterior.leave_one_out(generator=seeded(0))
    assert np.array_equal(found.residuals.isnan(), np.isnan(Y))
    for i, j in [(0, 1), (7, 2 if not np.isnan(Y[7, 2]) else 0), (19, 0)]:
        without = Y.copy()
        without[i, j] = np.nan
        truth = list(truths(X, without, None, gp.log_parameters().numpy(), False))[j]
        assert found.residuals[i, j].item() == pytest.approx(Y[i, j] - truth.mean(X[i : i + 1])[0], rel=1e-7)
        variance = truth.covariance(X[i : i + 1])[0, 0] + NOISES[j]
        assert found.variances[i, j].item() == pytest.approx(variance, rel=1e-7)


def test_draws_have_the_moments_of_each_output():
    X, Y, _ = data()
    gp = processes()
    posterior = condition_outputs(outputs(X, Y), gp, method="direct", generator=seeded(0))
    new = np.random.default_rng(1).uniform(-2, 2, (3, 2))
    drawn = posterior.draws(torch.from_numpy(new), 4000, seeded(1), noisy=True)[0].numpy()
    assert drawn.shape == (3, 3, 4000)
    for j, truth in enumerate(truths(X, Y, None, gp.log_parameters().numpy(), False)):
        covariance = truth.covariance(new) + NOISES[j] * np.eye(3)
        spread = np.sqrt(np.diag(covariance))
        assert (np.abs(drawn[:, j].mean(1) - truth.mean(new)) < 4.5 * spread / np.sqrt(4000)).all()
        np.testing.assert_allclose(np.cov(drawn[:, j]), covariance, atol=4.5 * spread.max() ** 2 * np.sqrt(2 / 4000))
    across = np.corrcoef(drawn[0])
    assert np.abs(across - np.eye(3)).max() < 4.5 / np.sqrt(4000), "outputs are independent"


@pytest.mark.parametrize("method", ["direct", "iterative"])
def test_further_observations_are_a_fit_to_all(method):
    X, Y, known = data(known=True)
    Y[30:, 1] = np.nan  # nothing new for this output
    gp = processes()
    first = condition_outputs(outputs(X[:30], Y[:30], known[:30]), gp, method=method, generator=seeded(0))
    later = [torch.from_numpy(value[30:]) for value in (X, Y, known)]
    found = updated_outputs(first, *later, method=method, generator=seeded(0))
    for j, truth in enumerate(truths(X, Y, known, gp.log_parameters().numpy(), False)):
        np.testing.assert_allclose(found.mean(torch.from_numpy(X))[:, j], truth.mean(X), atol=1e-5)
    assert torch.equal(found.problem.Y.isnan(), torch.from_numpy(np.isnan(Y)))
    assert len(found.problem) == 40


def test_the_certificate_tells_of_the_worst_and_sums_the_evidence():
    X, Y, _ = data()
    gp = processes()
    posterior = condition_outputs(outputs(X, Y), gp, method="direct", generator=seeded(0))
    found = certificate_of_outputs(posterior, probes=4, seed=0, units=[1.0, 1e6, 1.0], offsets=[0.0, 0.0, 0.0])
    assert found.met
    assert found.log_marginal_likelihood == pytest.approx(
        evidence(X, Y, None, gp.log_parameters().numpy(), False), rel=1e-9
    )
    assert found.worst == 0, "errors are compared beside the noise of each output: the least is hardest"
    assert found.mean_error == found.each[0].mean_error < found.each[1].mean_error
    assert "output 0" in str(found)
    assert found.lower <= found.log_marginal_likelihood <= found.upper


def test_constant_outputs_have_no_say():
    X, Y, _ = data(holes=False)
    Y[:, 2] = 4.0
    problem = outputs(X, Y)
    assert problem.informative().each[2] is None
    assert problem.informative().each[0] is not None
    assert outputs(*data(holes=False)[:2]).informative().each[2] is not None


def test_names_and_parts_of_the_processes():
    gp = processes()
    assert gp.parameter_names() == [
        "kernel.lengthscale",
        "kernel.variance",
        *(f"noise[{j}].variance" for j in range(3)),
    ]
    each = processes(kernel_each=True)
    assert each.parameter_names()[:2] == ["kernel[0].lengthscale", "kernel[0].variance"]
    moved = each.with_log_parameters(each.log_parameters() + 1.0)
    for j in range(3):
        assert torch.equal(moved.output(j).log_parameters(), moved.log_parameters()[moved.positions(j)])
        assert moved.output(j).noise.variance.item() == pytest.approx(np.e * NOISES[j])
    assert [one.fixed for one in gp.fixed("noise[1]").restrictions()] == [False, False, False, True, False]
    with pytest.raises(ValueError, match="2 kernels for 3 outputs"):
        OutputProcesses((RBF(1.0), RBF(1.0)), tuple(Noise(one) for one in NOISES))
    with pytest.raises(TypeError, match="one Noise for each output"):
        OutputProcesses(RBF(1.0), ())


def test_data_that_make_no_sense_are_refused():
    X, Y, _ = data(holes=False)
    with pytest.raises(ValueError, match="shape"):
        outputs(X, Y, np.ones((40, 2)))
    with pytest.raises(ValueError, match="infinite"):
        outputs(X, np.where(Y > 0, np.inf, Y))
