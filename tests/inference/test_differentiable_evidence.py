"""The log marginal likelihood in autograd: what has no gradient is refused, not silently constant."""

import pytest
import torch

from kernelcg.inference import GaussianProcess, evidence
from kernelcg.kernels import RBF

GENERATOR = torch.Generator().manual_seed(0)
X = torch.rand(20, 2, generator=GENERATOR, dtype=torch.float64)
Y = torch.sin(3 * X[:, 0])
GP = GaussianProcess(RBF(1.0), 0.1)


def log_evidence(theta):
    """Return the log marginal likelihood as a tensor that depends on θ."""
    gp = GP.with_log_parameters(theta)
    return evidence(gp, X, Y, errors=False).differentiable(gp)


@pytest.mark.parametrize("name", ["X", "y", "noise_variance"])
def test_inputs_that_require_a_gradient_are_refused(name):
    given = {"X": X, "y": Y, "noise_variance": torch.full((20,), 0.1, dtype=torch.float64)}
    given[name] = given[name].clone().requires_grad_()
    with pytest.raises(ValueError, match=rf"{name} requires a gradient.*{name}\.detach\(\)"):
        evidence(GP, **given)


def test_a_kernel_in_place_of_a_process_is_refused_by_name():
    with pytest.raises(TypeError, match=r"gp must be a GaussianProcess\(kernel, noise\), not RBF"):
        evidence(RBF(1.0), X, Y)


def test_a_second_derivative_is_refused():
    theta = GP.log_parameters().requires_grad_()
    value = log_evidence(theta)
    (gradient,) = torch.autograd.grad(value.square(), theta, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_the_gradient_follows_what_is_done_with_the_value():
    theta = GP.log_parameters().requires_grad_()
    value = log_evidence(theta)
    (plain,) = torch.autograd.grad(value, theta, retain_graph=True)
    (twice,) = torch.autograd.grad(-2 * value, theta)
    torch.testing.assert_close(twice, -2 * plain)
    with torch.no_grad():
        step = torch.tensor([1e-6, 0.0, 0.0], dtype=torch.float64)
        ends = [log_evidence(theta + s * step) for s in (1, -1)]
    assert float(ends[0] - ends[1]) / 2e-6 == pytest.approx(float(plain[0]), rel=1e-5)
