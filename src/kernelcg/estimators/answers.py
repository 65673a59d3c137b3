"""What a regressor answers beside predictions: records in the units of y."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class LeftOut(NamedTuple):
    """For every observation, what the others say about it; in the units of y."""

    residuals: Floats
    """y_i minus its mean given the others."""
    std: Floats
    """Predictive standard deviation given the others, noise included."""
    log_densities: Floats
    """log p(y_i | the others)."""
    relative_errors: Floats
    """e such that variances are off by up to e of themselves, and residuals by up to e of themselves plus e std.

    They count rounding and the solves, and in the iterative method a standard error of the probes.
    """


class Bounds(NamedTuple):
    """Certified numerical errors of a prediction, in the units of y."""

    mean: Floats
    """Upper bound of |mean − exact mean|."""
    std_lower: Floats | None = None
    std_upper: Floats | None = None
    """A bracket of the exact standard deviation, if that was asked for."""
