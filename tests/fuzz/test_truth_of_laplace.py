"""The truth of generated Laplace problems against float64 formulas that share nothing with it."""

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flint", reason="python-flint is not installed")
sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1] / "inference"))

from fuzz.kernel_truth import described
from fuzz.laplace_truth import Process
from laplace_cases import LIKELIHOOD, case, softmax_case

NEW = np.random.default_rng(99).normal(size=(3, 2))


@pytest.mark.parametrize("mean", ["zero", "constant", "linear"])
@pytest.mark.parametrize("name", [*LIKELIHOOD, "softmax"])
def test_mode_variances_and_evidence(name, mean):
    if name == "softmax" and mean != "zero":
        pytest.skip("classes have no drift")
    one = softmax_case(3, n=8) if name == "softmax" else case(name, mean, n=12)
    dense = one.truth()
    start = dense.solution if name != "softmax" else (dense.A.ravel(), np.zeros(0))
    T = {"zero": np.zeros((3, 0)), "constant": np.eye(3)[:, :1], "linear": np.eye(3)}[mean]
    phi = [] if name == "softmax" else np.exp(one.likelihood.log_parameters().numpy()).tolist()
    kind = "Softmax" if name == "softmax" else type(one.likelihood).__name__
    exposure = np.broadcast_to(np.asarray(one.exposure, dtype=float), len(one.y))
    found = Process(
        described(one.kernel), kind, phi, one.X, one.y, exposure, one.classes, np.zeros(2), T, (start[0], start[1])
    ).truth(NEW)
    mean_, covariance = one.latent(dense, NEW)
    assert found.evidence == pytest.approx(dense.log_evidence, abs=1e-8)
    np.testing.assert_allclose(found.mean, mean_, atol=1e-8)
    np.testing.assert_allclose(found.covariance, covariance, atol=1e-8)
