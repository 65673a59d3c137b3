"""What a regressor answers beside predictions: records in the units of y."""

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from kernelcg.inference.bounds.certificate import OF_NOISE, per_cent
from kernelcg.kernels import Kernel

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


class Component(NamedTuple):
    """One summand of a function that a model has learned."""

    kernel: Kernel | None
    """Its kernel; None for the mean function: the drift and the level of y."""
    mean: Floats
    std: Floats | None = None
    """Its standard deviation given the data, if that was asked for."""


class _Bounds(NamedTuple):
    mean: Floats
    """Upper bound of |mean − exact mean|."""
    std_lower: Floats | None = None
    std_upper: Floats | None = None
    """A bracket of the exact standard deviation, if that was asked for."""


class Bounds(_Bounds):
    """Certified numerical errors of a prediction, in the units of y; printed, they say what is known in words.

    Attributes
    ----------
    mean : upper bounds of |mean − exact mean|
    std_lower, std_upper : a bracket of the exact standard deviation, if that was asked for
    noise : the standard deviation of the noise, of each output or shared, which the words compare with

    Examples
    --------
    >>> import numpy as np
    >>> from kernelcg import GPRegressor
    >>> X = np.linspace(0, 6, 50)[:, None]
    >>> mean, bounds = GPRegressor().fit(X, np.sin(X[:, 0]) + 0.1 * np.cos(40 * X[:, 0])).predict(X, return_bound=True)
    >>> bool((bounds.mean < 1e-3).all())
    True
    """

    noise: Floats | float = np.nan

    @classmethod
    def beside(cls, noise: Floats | float, mean: Floats, low: Floats | None = None, high: Floats | None = None) -> Self:
        """Return bounds that know the standard deviation of the noise."""
        bounds = cls(mean, low, high)
        bounds.noise = noise
        return bounds

    def __str__(self) -> str:
        if np.size(self.mean) == 0:
            return "no points"
        if not np.all(np.isfinite(self.noise)):
            return f"the mean is exact to {np.max(self.mean):.1g}"
        ratios = self.mean / self.noise
        worst = np.unravel_index(np.argmax(np.nan_to_num(ratios, nan=np.inf)), ratios.shape)
        amount = f"{self.mean[worst]:.1g} ({_times(ratios[worst])} the noise)"
        words = f"the mean is exact to {amount}"
        if not ratios[worst] <= OF_NOISE:
            known = np.sum(ratios <= OF_NOISE)
            words = f"{words} at worst, to {per_cent(OF_NOISE)} of the noise at {known} of {ratios.size} points"
        if self.std_lower is None or self.std_upper is None:
            return words
        middle = np.maximum(0.5 * (self.std_lower + self.std_upper), np.finfo(float).tiny)
        return (
            f"{words}; the standard deviation to {per_cent(np.max(0.5 * (self.std_upper - self.std_lower) / middle))}"
        )

    def __repr__(self) -> str:
        return f"<Bounds: {self}>"


def _times(ratio: float) -> str:
    return f"{per_cent(ratio)} of" if ratio <= 1 else f"{ratio:.2g} times"
