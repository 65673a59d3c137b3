"""What the data have to explain of latent values at new points, and what they do."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from kernelcg.events import Chunk, EventKind, Listener, tell
from kernelcg.inference.bounds.rounding import UNIT_ROUNDOFF
from kernelcg.inference.laplace.newton_system import NewtonSystem
from kernelcg.solvers import Status

if TYPE_CHECKING:
    from kernelcg.inference.laplace.posterior import LaplacePosterior


@dataclass(frozen=True, eq=False)
class Task:
    """New points at which latent covariances are wanted.

    Attributes
    ----------
    X : (t, d) the points
    prior : (t,) k(x, x)
    system : A of the mode
    beside : what the tolerance counts beside the variances
    columns : points that may be worked on at once
    """

    posterior: "LaplacePosterior"
    X: Tensor
    prior: Tensor
    system: NewtonSystem
    beside: float
    columns: int
    callback: Listener | None
    began: float = field(default_factory=time.perf_counter)

    @property
    def classes(self) -> int:
        """Return C."""
        return self.posterior.problem.classes

    def kernel(self, points: Tensor) -> Tensor:
        """Return (n, s) the columns k of some points."""
        K = self.posterior.problem.matrix(self.posterior.gp.kernel)
        return K.cross_block(self.X[points], precision=torch.float64).T.contiguous()

    def right(self, K: Tensor) -> Tensor:
        """Return B = Sᵀ(k ⊗ e_c) for the columns k of K (n, s) and every class c: (N, sC)."""
        return self.right_on(torch.arange(len(K), device=K.device), K)

    def right_on(self, rows: Tensor, K: Tensor) -> Tensor:
        """Return the entries (jC, sC) of B at some rows, from those of the columns k (j, s)."""
        S = self.posterior.mode.expansion.half_blocks(rows)
        return (S.mT[:, :, None, :] * K[:, None, :, None]).reshape(-1, K.shape[1] * self.classes)

    def informed(self, points: Tensor, form: Tensor) -> Tensor:
        """Return (s, C) variances that errors are measured by; for classes, of f_c minus the mean over the classes.

        ``form`` (s, C, C) is what the data explain. The softmax sees differences alone: what all classes share may have
        a variance that is a thousand times larger.
        """
        if self.classes == 1:
            return self.prior[points, None] - form[:, :, 0]
        eye = torch.eye(self.classes, dtype=form.dtype, device=form.device)
        return differences(self.prior[points, None, None] * eye - form)

    def allowed(self, points: Tensor, form: Tensor, error: Tensor) -> Tensor:
        """Return (s, C) the errors of variances that are allowed where ``form`` is known up to ``error`` (s, C)."""
        floor = 1e-12 * self.prior[points, None]
        known = (self.informed(points, form) - error).clamp_min(floor)
        return self.posterior.variance_tolerance * (known + self.beside)

    def rounding(self, points: Tensor, V: Tensor) -> Tensor:
        """Return (s,) how far k** − bᵀv − vᵀ(b − Av), b = Sᵀk, may be off by rounding, V (N, sC).

        With y = Sv the entries of k contribute twice the rounding of kᵀy and the residual that of yᵀKy.
        """
        n, C, s, X = len(self.posterior.problem), self.classes, len(points), self.X[points]
        rounding = self.posterior.rounding()
        Y = self.posterior.mode.expansion.half(V).reshape(n, C, s, C)
        sizes = Y.abs().sum(1).amax(-1)  # (n, s)
        entries, residual = rounding.of_forms(X, sizes), (sizes * rounding.of_product(sizes)).sum(0)
        own = self.prior[points] + V.square().sum(0).reshape(s, C).amax(1)
        return 2 * entries + residual + 8 * UNIT_ROUNDOFF * own

    def tell_of(self, parts: Sequence["Explained"]) -> None:
        """Tell the callback how many points are done."""
        done = sum(len(part.points) for part in parts)
        tell(self.callback, EventKind.CHUNK, Chunk(done, len(self.X)), self.began)


@dataclass(frozen=True, eq=False)
class Explained:
    """What the data explain of the covariances of the latent values at some of the new points.

    Attributes
    ----------
    points : (s,) numbers of the points
    form : (s, C, C) BᵀA⁻¹B
    error : (s,) how far the sum of its diagonal may be off
    status : of the solves
    """

    points: Tensor
    form: Tensor
    error: Tensor
    status: Status = Status.CONVERGED

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return one record of all points, in their order, from parts that have every point once."""
        order = torch.cat([part.points for part in parts]).argsort()
        failed = [part.status for part in parts if part.status is not Status.CONVERGED]
        names = ("points", "form", "error")
        fields = {name: torch.cat([getattr(part, name) for part in parts])[order] for name in names}
        return cls(**fields, status=failed[0] if failed else Status.CONVERGED)


def forms(B: Tensor, V: Tensor, residual: Tensor, classes: int) -> Tensor:
    """Return (s, C, C) the symmetric part of BᵀV + VᵀR at each point: BᵀA⁻¹B, less what R = B − AV leaves of it."""
    left, right, rest = (block.reshape(len(block), -1, classes) for block in (B, V, residual))
    found = torch.einsum("ita,itb->tab", left, right) + torch.einsum("ita,itb->tab", right, rest)
    return 0.5 * (found + found.mT)


def differences(covariance: Tensor) -> Tensor:
    """Return (t, C) the variances of f_c minus the mean over the classes, from covariances (t, C, C)."""
    own, mean = covariance.diagonal(dim1=1, dim2=2), 0.5 * (covariance + covariance.mT).mean(2)
    return own - 2 * mean + mean.mean(1, keepdim=True)
