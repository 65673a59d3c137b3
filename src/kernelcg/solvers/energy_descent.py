"""Block PCG for quadratic forms: it goes on from solutions whose residuals are known, as far as their user needs."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelcg.dense import inner, multiply, subtract_product
from kernelcg.events import EventKind, Listener, tell
from kernelcg.operators import Invertible, LinearOperator
from kernelcg.solvers.block_pcg import Directions, conjugated, orthonormal_basis, symmetric
from kernelcg.solvers.reading import read
from kernelcg.solvers.report import Progress


@dataclass(frozen=True, eq=False)
class Descent:
    """Columns V ≈ A⁻¹B after some steps, and how far the energies of their errors have fallen.

    Attributes
    ----------
    V, R : (n, k) solutions and their residuals by the recurrence, which float32 products make inexact
    energies : (k,) rᵀP⁻¹r
    gains : (k,) by how much rᵀA⁻¹r is smaller than at the start
    steps : (k,) iterations of each column
    done : (k,) whether nothing more was wanted of the column
    """

    V: Tensor
    R: Tensor
    energies: Tensor
    gains: Tensor
    steps: Tensor
    done: Tensor


WantsMore = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""A function that gets the numbers of the columns that are still iterated, with their R, energies and gains, and tells
which of them are to be iterated further."""


def energy_descent(
    A: LinearOperator,
    P: Invertible,
    V: Tensor,
    R: Tensor,
    wants_more: WantsMore,
    *,
    max_steps: int,
    callback: Listener | None = None,
) -> Descent:
    r"""Lower the energies rᵀA⁻¹r of the residuals R = B − AV by block PCG until no column wants more.

    A step along D, which spans the preconditioned residuals, lowers the energy of a column by :math:`r^\top D
    (D^\top A D)^{-1} D^\top r`. The steps are those of `block_pcg`; its checks are left out: residuals are not
    recomputed, and a step that fails ends the descent. Costs one product with A and one solve with P a step.

    Parameters
    ----------
    P : constant
    max_steps : at most so many
    callback : told of every step, the payload being a `Progress` with (rᵀP⁻¹r)^½ relative to the start
    """
    began = time.perf_counter()
    V, R, k = V.clone(), R.clone(), V.shape[1]
    gains, steps, done = R.new_zeros(k), torch.zeros(k, dtype=torch.int64), torch.zeros(k, dtype=torch.bool)
    energies = first = R.new_zeros(k)
    active, r, z, previous = torch.arange(k, device=R.device), R, P.solve(R), None
    for step in range(max_steps + 1):
        energies[active] = (r * z).sum(0)
        first = energies.clone() if step == 0 else first
        relative = (energies / first.clamp_min(1e-300)).clamp_min(0).sqrt()
        tell(callback, EventKind.ITERATION, Progress(step, relative.cpu(), time.perf_counter() - began), began)
        going = wants_more(active, r, energies[active], gains[active])
        done[active[~going].cpu()] = True
        active, r, z = active[going], r[:, going], z[:, going]
        if not len(active) or step == max_steps:
            break
        moved = _step(A, r, z, previous)
        if moved is None:
            break
        change, r, gain, previous = moved
        V[:, active] += change
        R[:, active], z = r, P.solve(r)
        gains[active] += gain
        steps[active.cpu()] += 1
    return Descent(V, R, energies, gains, steps, done)


def _step(
    A: LinearOperator, r: Tensor, z: Tensor, previous: Directions | None
) -> tuple[Tensor, Tensor, Tensor, Directions] | None:
    """Return the change of the solutions, the new residuals, the gains and the directions; None if there is no step."""
    _, Q, T = conjugated(z, previous)
    [triangle] = read(T)
    D = orthonormal_basis(Q, triangle, least=1)
    AD = A @ D
    G = symmetric(inner(D, AD))
    factor, failed = torch.linalg.cholesky_ex(G)
    if bool(failed) or not bool(factor.isfinite().all()):
        return None
    right = inner(D, r)
    lengths = torch.cholesky_solve(right, factor)
    subtract_product(r, AD, lengths)
    return multiply(D, lengths), r, (right * lengths).sum(0), (D, AD, G)
