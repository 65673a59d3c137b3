"""Draws from the posterior, jointly over many points."""

import torch
from torch import Generator, Tensor

from kernelcg.errors import SolveFailed
from kernelcg.inference.bounds.lower_bound import LowerBound
from kernelcg.inference.gaussian.posterior import Posterior
from kernelcg.inference.learning.criterion_value import generalised_least_squares
from kernelcg.operators import KernelPlusDiagonal
from kernelcg.randomness import child, normal
from kernelcg.solvers import SolveReport, Status, sample
from kernelcg.solvers.covariance_root import covariance_root

FACTORISED_POINTS = 1000
"""New points up to which their covariance is computed and factorised."""

NUGGET = 1e-3
"""Variance of the white noise in pathwise draws of the latent process, relative to the noise variance."""

LATENT = 1e-3
"""Smallest noise variance that pathwise draws of the latent process assume, relative to the variance of the process."""

KRYLOV_STEPS = 60
"""Expected steps of a square-root product, each of which keeps a block of n numbers a draw."""

DRAWS_AT_ONCE = 32


def draws(
    posterior: Posterior, X: Tensor, count: int, generator: Generator, *, noisy: bool = False, rtol: float = 1e-3
) -> Tensor:
    """Return (t, c, count) draws of the latent process, or with ``noisy`` of observations, jointly over the rows of X.

    Up to a thousand points by their covariance, more by `pathwise` draws.

    Parameters
    ----------
    posterior : the process given the data
    X : (t, d) new inputs
    count : number of draws
    generator : source of randomness: the same state gives the same numbers
    noisy : whether to draw observations, with noise, instead of the latent process
    rtol : relative error of the products with square roots of matrices

    Raises
    ------
    SolveFailed : if their covariance could not be computed; where rounding keeps it from its tolerance it is used

    Examples
    --------
    >>> import torch
    >>> from kernelcg.inference import GaussianProcess, Regression, condition, draws
    >>> from kernelcg.kernels import RBF
    >>> X = torch.linspace(0, 6, 30).double()[:, None]
    >>> seed = torch.Generator().manual_seed(0)
    >>> posterior = condition(Regression(X, torch.sin(X)), GaussianProcess(RBF(1.0), 0.01), generator=seed)
    >>> draws(posterior, X[:4], 3, seed).shape[0]
    4
    """
    found, status = joint_draws(posterior, X, count, generator, noisy=noisy, rtol=rtol)
    if status not in (Status.CONVERGED, Status.PRECISION_EXHAUSTED):
        raise SolveFailed(f"the covariance of the draws: {status.value}")
    return found


def joint_draws(
    posterior: Posterior, X: Tensor, count: int, generator: Generator, *, noisy: bool = False, rtol: float = 1e-3
) -> tuple[Tensor, Status]:
    """Return the same draws and the status of their covariance, whatever it is."""
    X = posterior.checked_inputs(X)
    if len(X) > FACTORISED_POINTS:
        return pathwise(posterior, X, count, generator, noisy=noisy, rtol=rtol), Status.CONVERGED
    C, status = posterior.joint(X, latent=not noisy)
    if noisy:
        C.diagonal().add_(posterior.gp.noise.variance.item())
    L, c = covariance_root(C), posterior.weights.X.shape[1]
    white = torch.stack([normal(len(X), count, generator, like=X) for _ in range(c)], 1)  # the first as if alone
    found = (L @ white.reshape(len(X), c * count)).reshape(len(X), c, count)
    return posterior.mean(X)[:, :, None] + found, status


def pathwise(
    posterior: Posterior, X: Tensor, count: int, generator: Generator, *, noisy: bool = False, rtol: float = 1e-3
) -> Tensor:
    r"""Return draws by Matheron's rule, without any matrix of new points: O((n + t)²) for each step.

    With a draw (g, g*) of noisy observations at X and of the process at X*, one square-root product with the joint
    matrix, and m(·) the posterior mean as a linear map of the observations, drift included,

    .. math:: f_* = m(y) + g_* - m(g)

    has the posterior's mean and covariance. Draws of the latent process carry white noise, which keeps the joint
    matrix well conditioned: a thousandth of the noise variance or, if that is more but no more than a thousandth of
    what the observations have, a millionth of the variance of the process.

    Parameters
    ----------
    posterior : the process given the data
    X : (t, d) new inputs
    count : number of draws
    generator : source of randomness: the same state gives the same numbers
    noisy : whether to draw observations, with noise, instead of the latent process
    rtol : relative error of the products with square roots of matrices

    References
    ----------
    Wilson et al. (2021), Pathwise conditioning of Gaussian processes.

    Examples
    --------
    >>> import torch
    >>> from kernelcg.inference import GaussianProcess, Regression, condition, pathwise
    >>> from kernelcg.kernels import RBF
    >>> X = torch.linspace(0, 6, 30).double()[:, None]
    >>> seed = torch.Generator().manual_seed(0)
    >>> posterior = condition(Regression(X, torch.sin(X)), GaussianProcess(RBF(1.0), 0.01), generator=seed)
    >>> pathwise(posterior, X[:4], 3, seed).shape[0]
    4
    """
    X = posterior.checked_inputs(X)
    if count < 1:
        raise ValueError(f"the number of draws must be at least 1, not {count}")
    problem, A, c = posterior.problem, posterior.A, posterior.weights.X.shape[1]
    n, t = len(problem), len(X)
    noise = posterior.gp.noise.variance.item()
    visible = max(noise, LATENT * float(A.kernel_diagonal().mean()))
    nugget = noise if noisy else NUGGET * min(visible, float(A.diagonal.mean()))
    diagonal = torch.cat([A.diagonal, A.diagonal.new_full((t,), nugget)])
    joint = KernelPlusDiagonal(A.K.joined(X), diagonal)
    P = LowerBound.of(joint, child(generator, "joint"), sizes=posterior.sizes).P
    size = min(max(int(A.memory_budget() // (4 * 8 * (n + t) * KRYLOV_STEPS)), 1), DRAWS_AT_ONCE)
    mean, parts = posterior.mean(X), []
    for start in range(0, c * count, size):
        columns = min(size, c * count - start)
        report = sample(joint, columns, child(generator, f"draws from {start}"), preconditioner=P, rtol=rtol)
        g, g_new = report.raise_if_failed().value.split([n, t])
        solved: SolveReport = posterior.solved(g, posterior.stopping)
        beta, a = generalised_least_squares(problem.H, solved.raise_if_failed().solution, posterior.drift_weights.X)
        fitted = A.K.cross(X, a, precision=torch.float64) + problem.drift(X) @ beta
        parts.append(g_new - fitted)
    return mean[:, :, None] + torch.cat(parts, dim=1).reshape(t, c, count)
