"""The log marginal likelihood as a differentiable function."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernelcg.arguments import tensor
from kernelcg.backends import Backend, default
from kernelcg.inference.gaussian.likelihood_by_pcg import Numerics
from kernelcg.inference.gaussian.model import GaussianProcess, Regression
from kernelcg.inference.gaussian.objective import Objective
from kernelcg.inference.learning.criterion_value import CriterionValue
from kernelcg.planning.plan import Method
from kernelcg.solvers import Stopping


def evidence(
    gp: GaussianProcess,
    X: Any,
    y: Any,
    *,
    noise_variance: Any = None,
    mean: str = "zero",
    method: str = Method.AUTO,
    preconditioner: Any = "auto",
    probes: int = 8,
    rtol: float = 1e-4,
    seed: int = 0,
    backend: Backend | None = None,
    errors: bool = True,
) -> CriterionValue:
    """Return the log marginal likelihood of observations y at X, its gradient, and their standard errors.

    Its ``lower`` and ``upper`` ends count rounding; in the iterative method they leave out the standard error.

    Parameters
    ----------
    gp : the process with its hyperparameters
    X : (n, d) inputs
    preconditioner : "auto", the name of a recipe, a recipe, or None for plain CG
    rtol : relative residual of the linear solves
    backend : where products run; None means the best one here
    y : (n,) or (n, c)
    noise_variance : (n,) known variances that are added to the noise of ``gp``
    mean : "zero", "constant" or "linear" drift, fitted by generalised least squares
    method : "direct", "iterative" or "auto"
    probes, seed : of the iterative method: the same seed gives the same numbers
    errors : whether standard errors of the gradient are wanted

    Examples
    --------
    >>> import numpy as np
    >>> from kernelcg.inference import GaussianProcess, evidence
    >>> from kernelcg.kernels import RBF
    >>> X = np.linspace(0, 6, 30)[:, None]
    >>> found = evidence(GaussianProcess(RBF(1.0), 0.01), X, np.sin(X[:, 0]))
    >>> found.gradient.shape  # in log lengthscale, log variance and log noise
    torch.Size([3])
    """
    Y = tensor(y, "y")
    problem = Regression(tensor(X, "X"), Y[:, None] if Y.ndim == 1 else Y, noise_variance, mean, backend or default())
    numerics = Numerics(probes, Stopping(rtol=rtol), preconditioner, seed)
    objective = Objective(problem, method=method, numerics=numerics)
    found = objective(gp, value=True, errors=errors)[0]
    return replace(found, lower=found.lower - found.rounding, upper=found.upper + found.rounding)


def log_marginal_likelihood(
    gp: GaussianProcess,
    X: Any,
    y: Any,
    *,
    noise_variance: Any = None,
    mean: str = "zero",
    method: str = Method.AUTO,
    preconditioner: Any = "auto",
    probes: int = 8,
    rtol: float = 1e-4,
    seed: int = 0,
    backend: Backend | None = None,
) -> Tensor:
    """Return the log marginal likelihood as a scalar tensor, for training loops of one's own.

    Its ``backward()`` reaches the tensors that the hyperparameters of ``gp`` were made of, such as

    >>> from kernelcg.kernels import RBF
    >>> gp, X, y = GaussianProcess(RBF(1.0), 0.1), torch.zeros(4, 1).double(), torch.ones(4, 1).double()
    >>> theta = torch.zeros(3, requires_grad=True, dtype=torch.float64)
    >>> loss = -log_marginal_likelihood(gp.with_log_parameters(theta), X, y)
    >>> loss.backward()
    >>> theta.grad.shape
    torch.Size([3])

    and is the gradient that was computed along with the value. The options are those of `evidence`, which also gives
    standard errors.

    Parameters
    ----------
    gp : the process with its hyperparameters
    X, y : (n, d) inputs and (n,) or (n, c) observations
    noise_variance, mean, method, preconditioner, probes, rtol, seed, backend : as in `evidence`

    Raises
    ------
    SolveFailed : if A cannot be solved with
    ValueError : if X, y or noise_variance require a gradient: there is none but in the hyperparameters
    RuntimeError : in a second derivative
    """
    _require_constant(X=X, y=y, noise_variance=noise_variance)
    estimate = evidence(
        gp,
        X,
        y,
        noise_variance=noise_variance,
        mean=mean,
        method=method,
        preconditioner=preconditioner,
        probes=probes,
        rtol=rtol,
        seed=seed,
        backend=backend,
        errors=False,
    ).raise_if_failed()
    value: Tensor = _Value.apply(gp.log_parameters(), estimate.value, estimate.gradient)  # type: ignore[no-untyped-call]
    return value


class _Value(torch.autograd.Function):
    """A number whose gradient is known; another derivative is refused, since it would be taken for 0."""

    @staticmethod
    def forward(ctx: Any, theta: Tensor, value: float, gradient: Tensor) -> Tensor:
        ctx.gradient = gradient
        return theta.new_tensor(value)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None]:
        return outer[0] * ctx.gradient, None, None


def _require_constant(**given: Any) -> None:
    """Raise if something wants a gradient that is not computed."""
    for name, value in given.items():
        if isinstance(value, Tensor) and value.requires_grad:
            raise ValueError(f"{name} requires a gradient, but only hyperparameters have one; pass {name}.detach()")
