"""When will this solve end? A forecast from the residuals so far."""

import math

from torch import Tensor

from kernelcg.solvers import Progress


class Forecast:
    """Extrapolates the distance of the slowest column to its threshold.

    The logarithm of the best residual so far is taken to go on falling as it did over the second half of the
    iterations; before ``patience`` iterations nothing is said. ``per_iteration`` is what one takes, in seconds:
    expected, not measured, so that what follows from it is the same in every run.
    """

    def __init__(self, thresholds: Tensor, patience: int, per_iteration: float):
        self.thresholds, self.patience = thresholds.cpu().clamp_min(1e-300), patience
        self.per_iteration = per_iteration
        self.distances: list[float] = []

    def add(self, progress: Progress) -> None:
        """Take note of one iteration."""
        ratios = progress.relative_residuals / self.thresholds
        ratio = float(ratios[ratios.isfinite()].max()) if bool(ratios.isfinite().any()) else 0.0
        distance = math.log(ratio) if ratio > 0 else -math.inf
        self.distances.append(min(distance, self.distances[-1]) if self.distances else distance)

    @property
    def iterations(self) -> int:
        """Return how many iterations were seen."""
        return max(len(self.distances) - 1, 0)

    def remaining(self) -> float:
        """Return the number of iterations still needed; 0 before there is anything to extrapolate."""
        if self.iterations < self.patience or self.distances[-1] <= 0:
            return 0.0
        window = max(self.patience - 1, self.iterations // 2)
        fall = self.distances[-1 - window] - self.distances[-1]
        return self.distances[-1] * window / fall if fall > 0 else math.inf

    def remaining_seconds(self) -> float:
        """Return the same in seconds."""
        return self.remaining() * self.per_iteration
