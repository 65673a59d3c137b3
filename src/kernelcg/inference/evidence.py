"""The log marginal likelihood as a differentiable function."""

from typing import Any

from torch import Tensor

from kernelcg.arguments import tensor
from kernelcg.backends import Backend, default
from kernelcg.inference.estimate import Estimate
from kernelcg.inference.iterative import Numerics
from kernelcg.inference.model import GaussianProcess, Regression
from kernelcg.inference.objective import Objective
from kernelcg.solvers import Stopping


def evidence(
    gp: GaussianProcess,
    X: Any,
    y: Any,
    *,
    noise_variance: Any = None,
    mean: str = "zero",
    method: str = "auto",
    preconditioner: Any = "auto",
    probes: int = 8,
    rtol: float = 1e-4,
    seed: int = 0,
    backend: Backend | None = None,
    errors: bool = True,
) -> Estimate:
    """Return the log marginal likelihood of observations y at X, its gradient, and their standard errors.

    Parameters
    ----------
    y : (n,) or (n, c)
    noise_variance : (n,) known variances that are added to the noise of ``gp``
    mean : "zero", "constant" or "linear" drift, fitted by generalised least squares
    method : "direct", "iterative" or "auto"
    probes, seed : of the iterative method: the same seed gives the same numbers
    errors : whether standard errors of the gradient are wanted
    """
    Y = tensor(y, "y")
    problem = Regression(tensor(X, "X"), Y[:, None] if Y.ndim == 1 else Y, noise_variance, mean, backend or default())
    numerics = Numerics(probes, Stopping(rtol=rtol), preconditioner, seed)
    objective = Objective(problem, method=method, numerics=numerics)
    return objective(gp, value=True, errors=errors)[0]


def log_marginal_likelihood(
    gp: GaussianProcess,
    X: Any,
    y: Any,
    *,
    noise_variance: Any = None,
    mean: str = "zero",
    method: str = "auto",
    preconditioner: Any = "auto",
    probes: int = 8,
    rtol: float = 1e-4,
    seed: int = 0,
    backend: Backend | None = None,
) -> Tensor:
    """Return the log marginal likelihood as a scalar tensor, for training loops of one's own.

    Its ``backward()`` reaches the tensors that the hyperparameters of ``gp`` were made of, such as

    >>> theta = torch.zeros(3, requires_grad=True, dtype=torch.float64)
    >>> loss = -log_marginal_likelihood(gp.with_log_parameters(theta), X, y)

    and is the gradient that was computed along with the value: first derivatives only, none in X or y. The options
    are those of `evidence`, which also gives standard errors. Raises `SolveFailed` if A cannot be solved with.
    """
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
    theta = gp.log_parameters()
    return estimate.value + (theta - theta.detach()) @ estimate.gradient
