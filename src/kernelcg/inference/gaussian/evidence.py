"""The log marginal likelihood of given observations, below the estimators."""

from dataclasses import replace
from typing import Any

from torch import Tensor

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

    Its ``lower`` and ``upper`` ends count rounding; in the iterative method they leave out the standard error. For
    training loops of one's own, `CriterionValue.differentiable` makes a tensor of it.

    Parameters
    ----------
    gp : the process with its hyperparameters
    X : (n, d) inputs
    y : (n,) or (n, c) observations
    noise_variance : (n,) known variances that are added to the noise of ``gp``
    mean : "zero", "constant" or "linear" drift, fitted by generalised least squares
    method : "direct", "iterative" or "auto"
    preconditioner : "auto", the name of a recipe, a recipe, or None for plain CG
    probes, seed : of the iterative method: the same seed gives the same numbers
    rtol : relative residual of the linear solves
    backend : where products run; None means the best one here
    errors : whether standard errors of the gradient are wanted

    Raises
    ------
    TypeError : if gp is no `GaussianProcess`
    ValueError : if X, y or noise_variance require a gradient: there is none but in the hyperparameters

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
    if not isinstance(gp, GaussianProcess):
        raise TypeError(f"gp must be a GaussianProcess(kernel, noise), not {gp!r}")
    _require_constant(X=X, y=y, noise_variance=noise_variance)
    Y = tensor(y, "y")
    problem = Regression(tensor(X, "X"), Y[:, None] if Y.ndim == 1 else Y, noise_variance, mean, backend or default())
    numerics = Numerics(probes, Stopping(rtol=rtol), preconditioner, seed)
    objective = Objective(problem, method=method, numerics=numerics)
    found = objective(gp, value=True, errors=errors)[0]
    return replace(found, lower=found.lower - found.rounding, upper=found.upper + found.rounding)


def _require_constant(**given: Any) -> None:
    """Raise if something wants a gradient that is not computed."""
    for name, value in given.items():
        if isinstance(value, Tensor) and value.requires_grad:
            raise ValueError(f"{name} requires a gradient, but only hyperparameters have one; pass {name}.detach()")
