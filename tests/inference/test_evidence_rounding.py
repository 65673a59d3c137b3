"""The ends of `evidence` hold the exact log marginal likelihood where rounding in float64 is visible."""

import numpy as np
import pytest

from kernelcg.inference.gaussian.evidence import evidence
from kernelcg.inference.gaussian.model import GaussianProcess
from kernelcg.kernels import RBF

mpmath = pytest.importorskip("mpmath")


def exact_evidence(X, y, noise):
    with mpmath.workdps(60):
        points = [mpmath.mpf(float(x)) for x in X[:, 0]]
        A = mpmath.matrix([[mpmath.exp(-((s - t) ** 2) / 2) for t in points] for s in points])
        for i in range(len(points)):
            A[i, i] += mpmath.mpf(float(noise))
        L = mpmath.cholesky(A)
        z = mpmath.lu_solve(L, mpmath.matrix([float(v) for v in y]))
        determinant = 2 * sum(mpmath.log(L[i, i]) for i in range(len(points)))
        return float(-(sum(v * v for v in z) + determinant + len(points) * mpmath.log(2 * mpmath.pi)) / 2)


@pytest.mark.parametrize("method", ["direct", "iterative"])
@pytest.mark.parametrize("noise", [1e-2, 1e-8, 1e-12])
def test_bracket_counts_rounding(method, noise):
    """40 points, RBF(1): at noise 1e-12, the exact value is tens of nats from that of float64."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (40, 1))
    y = np.sin(3 * X[:, 0]) + np.sqrt(noise) * rng.standard_normal(40)
    gp = GaussianProcess(RBF(1.0), noise)
    found, exact = evidence(gp, X, y, method=method), exact_evidence(X, y, gp.noise.variance.item())
    assert found.lower - 6 * found.value_error <= exact <= found.upper + 6 * found.value_error
    assert found.lower <= found.value <= found.upper
    if noise == 1e-2 and method == "direct":
        assert found.upper - found.lower < 1e-6  # it says something where there is something to say
