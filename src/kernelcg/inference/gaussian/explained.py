"""What the data have to explain at new points, and what they do."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from kernelcg.events import Chunk, EventKind, Listener, tell
from kernelcg.solvers import Status

if TYPE_CHECKING:
    from kernelcg.inference.gaussian.posterior import Posterior


@dataclass(frozen=True, eq=False)
class Task:
    """New points at which the variance is wanted, within a tolerance relative to itself and the noise.

    Attributes
    ----------
    X : (t, d) the points
    prior : (t,) k(x, x)
    noise : (t,) what the tolerance counts beside the variance
    columns : points that may be worked on at once
    """

    posterior: "Posterior"
    X: Tensor
    prior: Tensor
    noise: Tensor
    columns: int
    callback: Listener | None
    began: float = field(default_factory=time.perf_counter)

    def kernel(self, points: Tensor) -> Tensor:
        """Return (n, s) the columns k of some points."""
        return self.posterior.A.K.cross_block(self.X[points], precision=torch.float64).T.contiguous()

    def allowed(self, points: Tensor, energy: Tensor, error: Tensor) -> Tensor:
        """Return the error that is allowed at some points where kᵀA⁻¹k is known up to ``error``."""
        variance = (self.prior[points] - energy - error).clamp_min(0.0)
        return self.posterior.variance_tolerance * (variance + self.noise[points])

    def tell_of(self, parts: Sequence["Explained"]) -> None:
        """Tell the callback how many points are done."""
        done = sum(len(part.points) for part in parts)
        tell(self.callback, EventKind.CHUNK, Chunk(done, len(self.X)), self.began)


@dataclass(frozen=True, eq=False)
class Explained:
    """Estimates of kᵀA⁻¹k and HᵀA⁻¹k at some of the new points, from v ≈ A⁻¹k.

    Attributes
    ----------
    points : (s,) numbers of the points
    energy : (s,) kᵀA⁻¹k
    error : (s,) estimated error of that
    drift : (s, b) HᵀA⁻¹k
    distance : (s,) estimate of ‖v − A⁻¹k‖_A, which times ‖G − A⁻¹H‖_A is the error of ``drift``
    status : of the iterations
    """

    points: Tensor
    energy: Tensor
    error: Tensor
    drift: Tensor
    distance: Tensor
    status: Status = Status.CONVERGED

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return one record of all points, in their order, from parts that have every point once."""
        order = torch.cat([part.points for part in parts]).argsort()
        failed = [part.status for part in parts if part.status is not Status.CONVERGED]

        def together(name: str) -> Tensor:
            return torch.cat([getattr(part, name) for part in parts])[order]

        names = ("points", "energy", "error", "drift", "distance")
        fields = {name: together(name) for name in names}
        return cls(**fields, status=failed[0] if failed else Status.CONVERGED)
