"""What is predicted at new points, in one record."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from kernelcg.solvers import Status


@dataclass(frozen=True, eq=False)
class Prediction:
    """What is known about the latent process at new points, drift included; everything in the units of Y.

    Attributes
    ----------
    mean : (t, c)
    mean_bound : (t, c) upper bound of its numerical error, or None
    variance : (t,) of the latent value, never negative, or None
    variance_error : (t,) estimated numerical error of the variance, or its distance from the farther end of its bracket
    variance_lower, variance_upper : (t,) a bracket of the exact variance, or None
    status : whether the variance reached its tolerance, and if not, why
    """

    mean: Tensor
    mean_bound: Tensor | None = None
    variance: Tensor | None = None
    variance_error: Tensor | None = None
    variance_lower: Tensor | None = None
    variance_upper: Tensor | None = None
    status: Status = Status.CONVERGED

    def known_variance(self) -> tuple[Tensor, Tensor]:
        """Return the variance and its error; `ValueError` where they were not asked for."""
        if self.variance is None or self.variance_error is None:
            raise ValueError("this prediction was made without variances: ask for them")
        return self.variance, self.variance_error

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return one prediction for the points of all parts, which know the same things about them."""
        failed = [part.status for part in parts if part.status is not Status.CONVERGED]

        def together(name: str) -> Tensor | None:
            values = [getattr(part, name) for part in parts]
            return None if values[0] is None else torch.cat(values)

        names = ("mean_bound", "variance", "variance_error", "variance_lower", "variance_upper")
        return cls(
            torch.cat([part.mean for part in parts]),
            **{name: together(name) for name in names},
            status=failed[0] if failed else Status.CONVERGED,
        )
