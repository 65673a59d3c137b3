"""What a certificate says of a fit, against long double: bounds of the mean, the evidence, the verdict, the words."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from inference import extended
from inference.extended import IS_EXTENDED, REAL, real

from kernelcg import GPGeneralizedRegressor
from kernelcg.errors import ConvergenceWarning
from kernelcg.inference.bounds import recomputed
from kernelcg.inference.bounds.certificate import certificate
from kernelcg.inference.bounds.verdict import Verdict
from kernelcg.inference.gaussian.conditioning import condition
from kernelcg.inference.gaussian.model import GaussianProcess, Regression
from kernelcg.kernels import RBF, Matern
from kernelcg.randomness import seeded
from kernelcg.solvers import Status, Stopping

extended_only = pytest.mark.skipif(not IS_EXTENDED, reason="long double is float64 on this platform")


def problem(noise, *, n=50, d=1, rough=0.0, mean="zero", seed=0, **options):
    """Return a posterior of RBF(1) with this noise, given sines with ``rough`` noise, and the exact one."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (n, d))
    Y = np.sin(X.sum(1, keepdims=True)) + rough * rng.standard_normal((n, 1))
    gp, data = GaussianProcess(RBF(1.0), noise), Regression(torch.from_numpy(X), torch.from_numpy(Y), mean=mean)
    posterior = condition(data, gp, generator=seeded(0), **{"method": "direct", **options})
    H = np.ones((n, int(mean == "constant")), dtype=REAL)
    truth = extended.Posterior("rbf", np.ones(d, dtype=REAL), REAL(1), real(X), real(Y), np.full(n, REAL(noise)), H)
    return posterior, truth


def log_likelihood(truth):
    n, c = truth.Y.shape
    return -(truth.least_quadratic_forms().sum() + c * truth.log_determinant() + n * c * np.log(2 * REAL(np.pi))) / 2


@extended_only
@pytest.mark.parametrize("mean", ["zero", "constant"])
@pytest.mark.parametrize("rough", [0.0, 0.1])
@pytest.mark.parametrize("noise", [1e-2, 1e-6, 1e-10, 1e-12])
def test_the_evidence_lies_in_its_bracket(noise, rough, mean):
    """Rounding counts: with noise 1e-12 and rough data float64 gets the quadratic form wrong by many nats."""
    posterior, truth = problem(noise, rough=rough, mean=mean)
    found, exact = certificate(posterior), log_likelihood(truth)
    assert found.lower <= exact <= found.upper
    assert found.lower <= found.log_marginal_likelihood <= found.upper
    assert found.upper - found.lower <= 1e-2 + 1e-3 * abs(float(exact))


@extended_only
def test_the_evidence_lies_in_its_bracket_without_long_double(monkeypatch):
    """The bracket is wide then, and right."""
    monkeypatch.setattr(recomputed, "LONG_ROUNDOFF", 2.0**-53)
    for rough in (0.0, 0.1):
        posterior, truth = problem(1e-12, rough=rough)
        assert recomputed.LongDouble.of(posterior.A, 1) is None
        found = certificate(posterior)
        assert found.lower <= log_likelihood(truth) <= found.upper


@extended_only
@pytest.mark.parametrize("rtol", [1e-3, 1e-2, 1e-1])
def test_a_rough_solve_has_an_evidence_in_the_middle_of_an_honest_bracket(rtol):
    for seed in range(4):
        options = {"method": "iterative", "preconditioner": None, "stopping": Stopping(rtol=rtol)}
        posterior, truth = problem(1e-2, rough=0.1, n=80, d=2, seed=seed, **options)
        found, exact = certificate(posterior, probes=16), log_likelihood(truth)
        spread = 5 * found.standard_error
        assert found.lower - spread <= exact <= found.upper + spread
        width = found.upper - found.lower
        assert found.log_marginal_likelihood - found.lower >= 0.2 * width
        assert found.upper - found.log_marginal_likelihood >= 0.2 * width


@extended_only
@pytest.mark.parametrize("mean", ["zero", "constant"])
@pytest.mark.parametrize("noise", [1e-2, 1e-6, 1e-10, 1e-12])
def test_errors_of_the_mean(noise, mean):
    """Of a stationary kernel and a constant drift both bounds hold; that at the data is no more than that elsewhere."""
    posterior, truth = problem(noise, n=80, mean=mean, rough=np.sqrt(noise))
    found, X = certificate(posterior), posterior.problem.X
    for points, bound in ((X, found.error_at_data), (X[:20] + 0.05, found.mean_error), (X + 40, found.mean_error)):
        exact, _ = truth.predict(real(points), np.ones((len(points), truth.H.shape[1]), dtype=REAL))
        assert np.all(np.abs(real(posterior.mean(points)) - exact) <= bound)
    assert found.error_at_data <= found.mean_error
    assert found.verdict is Verdict.CERTIFIED
    assert found.error_at_data <= max(1e-3 * np.sqrt(noise), 1e-6)


def some(**changes):
    posterior, _ = problem(0.01, rough=0.1)
    return replace(certificate(posterior), **changes)


def test_verdicts():
    sure = {"mean_error": 1e-5, "error_at_data": 1e-6, "noise": 0.01, "spread": 1.0}
    assert some(**sure).verdict is Verdict.CERTIFIED
    assert some(**{**sure, "mean_error": 0.05}).verdict is Verdict.CERTIFIED
    assert some(**{**sure, "mean_error": 0.05, "error_at_data": 0.02}).verdict is Verdict.UNINFORMATIVE
    assert some(**{**sure, "mean_error": 59e3}).verdict is Verdict.UNINFORMATIVE
    assert some(**{**sure, "noise": 1e-9}).verdict is Verdict.CERTIFIED  # 1e-5 of the spread of y
    assert some(**sure, status=Status.MAX_ITERATIONS).verdict is Verdict.NOT_EXACT
    assert some(**sure, status=Status.PRECISION_EXHAUSTED).verdict is Verdict.CERTIFIED  # the bound holds all the same
    assert some(**{**sure, "mean_error": 59e3}, status=Status.PRECISION_EXHAUSTED).verdict is Verdict.NOT_EXACT


def test_words():
    sure = {"mean_error": 2e-4, "error_at_data": 1e-4, "noise": 0.2, "spread": 1.0, "rounding_floor": 1e-4}
    assert str(some(**sure)).startswith("certified: the mean is exact to 0.0002 (0.1 % of the noise)\n")
    sure = {**sure, "error_at_data": 1e-6}
    partly = str(some(**{**sure, "mean_error": 0.05, "noise": 0.01}))
    assert partly.startswith(
        "certified: at the data the mean is exact to 1e-06 (0.01 % of the noise), elsewhere to 0.05 (5 % of the spread"
    )
    little = str(some(**{**sure, "mean_error": 59e3, "rounding_floor": 59e3}))
    assert little.startswith("solved, but the bound says little: at the data the mean is exact to 1e-06")
    assert "6e+04 (5.9e+04 times the spread of y), because the noise is so small" in little
    assert str(some(**sure, status=Status.MAX_ITERATIONS)).startswith("NOT exact: ")
    assert re.search(r"\n  log marginal likelihood \S+; exact to \S+, by an exact factor$", str(some(**sure)))
    known = replace(some(**sure), standard_error=0.2, lower=-np.inf)
    assert str(known).endswith("standard error 0.2 from the random probes; how exact it is beside that is not known")


def test_no_certificate_where_a_drift_runs_away():
    """The drift tells the zeros from the one: its slope, and the evidence, rise without end."""
    X = np.array([[0.11, 0.52], [0.98, 0.09], [0.63, 0.42]])
    model = GPGeneralizedRegressor(Matern(1.0, nu=0.5), likelihood="poisson", mean="linear", optimizer=None)
    for method in ("direct", "iterative"):
        with pytest.warns(ConvergenceWarning, match="the fit is"):
            model.set_params(method=method).fit(X, [0.0, 1.0, 0.0])
        assert model.certificate_.verdict is not Verdict.CERTIFIED
