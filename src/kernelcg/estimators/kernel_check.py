"""Whether a kernel that a user wrote is a covariance function: tried on a few dozen rows before it is used on all."""

from typing import NoReturn

import torch
from torch import Tensor

from kernelcg.estimators.precomputed import Precomputed
from kernelcg.kernels import Kernel
from kernelcg.randomness import child, normal, seeded

TRIED_ROWS = 40
"""Rows on which a kernel is tried."""

CLOSE = 1e-6
"""How far two computations of the same entry may differ, and an eigenvalue may be below 0, relative to the largest."""

STEP, SLOPE_CLOSE = 1e-4, 1e-2
"""Step in the log hyperparameters with which slopes are measured, and the largest error of those of autograd."""


@torch.enable_grad()
def require_covariance(kernel: Kernel, X: Tensor, *, learned: bool) -> None:
    """Raise unless a kernel is finite, symmetric, positive semi-definite and, if it is learned, differentiable.

    Kernels of the library are not tried. Costs a few evaluations on 40 rows, spread evenly over the data.

    Raises
    ------
    ValueError : saying which property is missing, with the offending value
    """
    if _is_built_in(kernel):
        return
    rows = X[torch.linspace(0, len(X) - 1, min(TRIED_ROWS, len(X)), device=X.device).long()]
    K = _evaluated(kernel, rows)
    _require_finite(kernel, K)
    _require_symmetric(kernel, K)
    _require_entrywise(kernel, rows, K)
    _require_diagonal(kernel, rows, K)
    _require_semidefinite(kernel, K)
    if learned and not all(one.fixed for one in kernel.restrictions()):
        _require_slopes(kernel, rows)


def _is_built_in(kernel: Kernel) -> bool:
    own = type(kernel).__module__.startswith("kernelcg.") and not isinstance(kernel, Precomputed)
    return own and all(_is_built_in(part) for _, part in kernel._parts() if isinstance(part, Kernel))


def _fail(kernel: Kernel, problem: str, remedy: str) -> NoReturn:
    raise ValueError(f"the kernel {type(kernel).__name__} {problem} (tried on rows of X); {remedy}")


def _evaluated(kernel: Kernel, rows: Tensor) -> Tensor:
    try:
        K = kernel(rows, rows)
    except Exception as error:
        raise ValueError(
            f"the kernel {type(kernel).__name__} fails on {len(rows)} rows of X: {error!r:.200}; mend its covariance"
        ) from error
    remedy = "covariance(X, Y) must return a tensor with a row for each row of X and a column for each row of Y"
    if not isinstance(K, Tensor):
        _fail(kernel, f"returns a {type(K).__name__}", remedy)
    if K.shape != (len(rows), len(rows)):
        _fail(kernel, f"returns shape {tuple(K.shape)} for {len(rows)} and {len(rows)} rows", remedy)
    if K.dtype != rows.dtype:
        _fail(kernel, f"returns {K.dtype}", f"it must return the dtype of X, {rows.dtype}")
    return K.detach().double()


def _require_finite(kernel: Kernel, K: Tensor) -> None:
    wrong = (~K.isfinite()).nonzero()
    if len(wrong):
        i, j = wrong[0].tolist()
        _fail(kernel, f"is {K[i, j].item()} at the pair ({i}, {j})", "it must be finite everywhere")


def _require_symmetric(kernel: Kernel, K: Tensor) -> None:
    gap = (K - K.T).abs()
    if bool((gap > CLOSE * K.abs().max()).any()):
        i, j = divmod(int(gap.argmax()), len(K))
        _fail(kernel, f"is not symmetric: k(x, y) = {K[i, j]:.6g} but k(y, x) = {K[j, i]:.6g}", "mend its formula")


def _require_entrywise(kernel: Kernel, rows: Tensor, K: Tensor) -> None:
    """Raise unless an entry is the same whatever other rows are asked about at the same time."""
    few = min(3, len(rows))
    block = kernel(rows[:few], rows).detach().double()
    if block.shape != (few, len(rows)):
        remedy = "covariance(X, Y) must take X and Y with different numbers of rows"
        _fail(kernel, f"returns shape {tuple(block.shape)} for {few} and {len(rows)} rows", remedy)
    gap = (block - K[:few]).abs()
    if not bool((gap <= CLOSE * K.abs().max()).all()):
        i, j = divmod(int(gap.nan_to_num(torch.inf).argmax()), len(rows))
        problem = f"gives {block[i, j]:.6g} and {K[i, j]:.6g} for the same pair beside other rows"
        _fail(kernel, problem, "an entry must depend on its two rows alone")


def _require_diagonal(kernel: Kernel, rows: Tensor, K: Tensor) -> None:
    diagonal, own = kernel.diagonal(rows).detach().double(), K.diagonal()
    if diagonal.shape != own.shape:
        _fail(kernel, f"has a diagonal of shape {tuple(diagonal.shape)} for {len(rows)} rows", "mend its diagonal(X)")
    if bool((own < 0).any()):
        _fail(kernel, f"has the negative variance {own.min():.6g}", "k(x, x) must not be negative")
    gap = (diagonal - own).abs()
    if not bool((gap <= CLOSE * K.abs().max()).all()):
        i = int(gap.nan_to_num(torch.inf).argmax())
        problem = f"has diagonal(X) = {diagonal[i]:.6g} where covariance(X, X) has {own[i]:.6g}"
        _fail(kernel, problem, "mend its diagonal(X), or leave that method out")


def _require_semidefinite(kernel: Kernel, K: Tensor) -> None:
    values = torch.linalg.eigvalsh((K + K.T) / 2)
    if float(values[0]) < -CLOSE * float(values[-1].clamp_min(0)):
        problem = f"is not positive semi-definite: the matrix of {len(K)} rows has the eigenvalue {values[0]:.6g}"
        _fail(kernel, f"{problem}, its largest is {values[-1]:.6g}", "it is no covariance function; mend its formula")


def _require_slopes(kernel: Kernel, rows: Tensor) -> None:
    """Raise unless autograd's derivative in a random direction is the measured one."""
    source, theta = child(seeded(0), "slopes"), kernel.log_parameters().detach()
    weights = normal(len(rows), len(rows), source, like=rows)
    free = torch.tensor([not one.fixed for one in kernel.restrictions()])
    direction = torch.where(free, normal(len(theta), 1, source, like=theta)[:, 0], 0.0)
    remedy = "compute with torch alone, without detach() or item(), or fix its hyperparameters by .fixed()"

    def value(at: Tensor) -> Tensor:
        return (weights * kernel.with_log_parameters(at)(rows, rows)).sum()

    leaf = theta.clone().requires_grad_()
    try:
        (gradient,) = torch.autograd.grad(value(leaf), leaf)
    except RuntimeError as error:
        _fail(kernel, f"is not differentiable in its hyperparameters ({str(error).splitlines()[0]:.80})", remedy)
    slope = float(gradient @ direction)
    measured = float(value(theta + STEP * direction) - value(theta - STEP * direction)) / (2 * STEP)
    size = float((weights * kernel(rows, rows)).detach().abs().sum()) * float(direction.norm())
    if not abs(slope - measured) <= SLOPE_CLOSE * max(abs(measured), 1e-4 * size):
        problem = f"has the derivative {slope:.6g} by autograd where differences give {measured:.6g}"
        _fail(kernel, problem, remedy)
