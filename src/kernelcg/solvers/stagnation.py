"""Detection of a solve that makes no progress any more."""

import numpy as np

from kernelcg.solvers.reading import Flags, Floats


class Stagnation:
    """Counts the iterations in which neither the residual nor the energy xᵀb − ½xᵀAx, which CG maximises, moves.

    A residual moves if it falls below 99 % of the best one so far, the energy if it has gained 1 % since it last did.
    """

    def __init__(self, k: int):
        self.best = np.full(k, np.inf)
        self.gain, self.recent_gain = np.zeros(k), np.zeros(k)
        self.idle = 0

    def add_gain(self, gain: Floats) -> None:
        """Take note of what one step added to the energy of every column."""
        self.recent_gain = self.recent_gain + gain

    def forget(self, columns: Flags, norms: Floats | float) -> None:
        """Start to count anew, with these norms as the best ones of these columns."""
        self.best, self.idle = np.where(columns, norms, self.best), 0

    def add_norms(self, norms: Floats, active: Flags) -> None:
        """Take note of ‖r‖ of every column after an iteration; only active columns count."""
        closer = active & (norms < 0.99 * self.best)
        self.best = np.where(closer, norms, self.best)
        higher = active & (self.recent_gain > 0.01 * self.gain)
        self.gain = np.where(higher, self.gain + self.recent_gain, self.gain)
        self.recent_gain = np.where(higher, 0.0, self.recent_gain)
        self.idle = 0 if (closer | higher).any() else self.idle + 1
