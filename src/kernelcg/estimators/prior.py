"""What a regressor says before it has seen data: its prior."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import NotFittedError
from torch import Generator, Tensor

from kernelcg.backends.memory import require_memory
from kernelcg.estimators.sklearn_kernels import converted
from kernelcg.inference.gaussian.model import Noise
from kernelcg.kernels import Kernel
from kernelcg.randomness import normal
from kernelcg.solvers.covariance_root import covariance_root

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Prior:
    """f ~ GP(0, kernel), observed with a noise variance; in the units of y, or of standardised y."""

    kernel: Kernel
    noise: float
    budget: int
    """Bytes that a covariance may take."""

    @classmethod
    def of(cls, kernel: Any, noise: Any, budget: int) -> "Prior":
        """Return the prior that the parameters of a regressor say, with the noise only if one was given.

        Raises
        ------
        NotFittedError : if there is no kernel yet, since the default and the named ones are scaled by the data, or a
            noise for each output
        """
        if kernel is None or isinstance(kernel, str):
            raise NotFittedError(
                f"this regressor is not fitted yet, and with kernel={kernel!r} the kernel depends on the data: call "
                "fit first, or give a kernel object to see its prior"
            )
        if isinstance(noise, list | tuple) or np.ndim(noise) > 0:
            raise NotFittedError(
                "this regressor is not fitted yet, and its prior with a noise for each output is not known"
            )
        own, white = converted(kernel)
        if noise is None:
            return cls(own, 0.0 if white is None else white.variance.item(), budget)
        return cls(own, noise.variance.item() if isinstance(noise, Noise) else float(noise), budget)

    def variance(self, points: Tensor, noisy: bool) -> Tensor:
        """Return (t,) variances."""
        return self.kernel.diagonal(points).detach() + self._added(noisy)

    def covariance(self, points: Tensor, noisy: bool) -> Tensor:
        """Return the (t, t) covariance."""
        require_memory(2 * 8 * len(points) ** 2, self.budget, f"the prior covariance of {len(points)} points")
        C = self.kernel(points, points).detach()
        C.diagonal().add_(self._added(noisy))
        return C

    def draws(self, points: Tensor, count: int, generator: Generator, noisy: bool) -> Tensor:
        """Return (t, count) joint draws."""
        return covariance_root(self.covariance(points, noisy)) @ normal(len(points), count, generator, like=points)

    def _added(self, noisy: bool) -> float:
        return self.noise if noisy else 0.0

    def answer(self, points: Tensor, return_std: bool, return_cov: bool, noisy: bool) -> Any:
        """Return what ``predict`` returns: the mean 0, and the standard deviation or covariance if asked for."""
        mean: Floats = torch.zeros(len(points), dtype=torch.float64).numpy()
        if return_std:
            return mean, self.variance(points, noisy).sqrt().numpy()
        return (mean, self.covariance(points, noisy).numpy()) if return_cov else mean
