"""From the standardised units in which a regressor computes to the units of y."""

from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kernelcg.estimators.answers import Bounds, LeftOut
from kernelcg.inference.bounds.rounding import UNIT_ROUNDOFF
from kernelcg.inference.gaussian.leave_one_out import LeaveOneOut
from kernelcg.inference.gaussian.prediction import Prediction

Floats = NDArray[np.float64]

Noise = Floats | float
"""Noise variances of the outputs, or the one that they share."""

RESCALED = 4 * UNIT_ROUNDOFF
"""Relative rounding of a mean or a standard deviation on its way into the units of y."""

SMALLEST_SQUARE = 1e-290
"""A squared unit of y below which, or above the inverse of which, covariances may have no numbers in float64."""


@dataclass(frozen=True, eq=False)
class UnitsOfY:
    """y = offset + scale · standardised y, for each of c outputs.

    Attributes
    ----------
    offset, scale : (c,)
    vector : whether y was given as a vector, so that answers have no axis for the outputs
    """

    offset: Floats
    scale: Floats
    vector: bool

    def shaped(self, values: Floats) -> Floats:
        """Return (t, c) or (t, c, s) values without the axis of the outputs if y was a vector."""
        return values[:, 0] if self.vector else values

    def mean(self, mean: Tensor) -> Floats:
        """Return (t, c) means."""
        return self.shaped(mean.cpu().numpy() * self.scale + self.offset)

    def std(self, variance: Tensor, noise: Noise = 0.0) -> Floats:
        """Return the (t, c) standard deviations from variances, (t, c) or shared (t,), and noise, (c,) or shared."""
        values = variance.cpu().numpy()
        columns = values[:, None] if values.ndim == 1 else values
        return self.shaped(np.sqrt(columns + noise) * self.scale)

    @property
    def squares_fit(self) -> bool:
        """Whether variances in squared units of y are numbers of float64, neither 0 nor infinite for their size."""
        with np.errstate(over="ignore", under="ignore"):
            squares = self.scale**2
        return bool(((squares > SMALLEST_SQUARE) & (squares < 1 / SMALLEST_SQUARE)).all())

    @np.errstate(over="ignore", under="ignore", invalid="ignore")
    def covariance(self, covariance: Tensor, noise: Noise = 0.0) -> Floats:
        """Return (t, t, c) covariances from such ones, or one that is shared, and noise, (c,) or shared."""
        each = covariance.cpu().numpy()
        values: Floats = (each[:, :, None] if each.ndim == 2 else each) * self.scale**2
        np.einsum("iij->ij", values)[:] += noise * self.scale**2
        return values[:, :, 0] if self.vector else values

    def samples(self, samples: Tensor) -> Floats:
        """Return (t, c, s) draws."""
        return self.shaped(samples.cpu().numpy() * self.scale[:, None] + self.offset[:, None])

    def bounds(self, found: Prediction, noise: Noise, beside: Noise) -> Bounds:
        """Return error bounds of the mean, and of the standard deviation with this noise variance if there are any.

        They allow for the rounding of scale · mean + offset and of the roots. In words they are compared with the noise
        ``beside``, whether or not the standard deviation includes it.
        """
        noise_std = np.sqrt(beside) * self.scale
        noise_std = noise_std[0] if self.vector else noise_std
        mean, bound = (value.cpu().numpy() * self.scale for value in (found.mean, cast(Tensor, found.mean_bound)))
        wide = self.shaped(bound + RESCALED * (np.abs(mean) + np.abs(self.offset) + bound))
        if found.variance_lower is None or found.variance_upper is None:
            return Bounds.beside(noise_std, wide)
        low, high = (self.std(variance, noise) for variance in (found.variance_lower, found.variance_upper))
        return Bounds.beside(noise_std, wide, low * (1 - RESCALED), high * (1 + RESCALED))

    def left_out(self, found: LeaveOneOut) -> LeftOut:
        """Return leave-one-out residuals, standard deviations and log densities."""
        return LeftOut(
            self.shaped(found.residuals.cpu().numpy() * self.scale),
            self.std(found.variances),
            self.shaped(found.log_densities.cpu().numpy() - np.log(self.scale)),
            found.relative_errors.cpu().numpy(),  # (n,), or (n, c) of outputs with noise of their own
        )
