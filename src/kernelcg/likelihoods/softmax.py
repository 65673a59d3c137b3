r"""Several classes: C latent values a point.

With π the probabilities of a point, W = diag(π) − ππᵀ = S Sᵀ, S = diag(√π) (I − √π √πᵀ). S is not symmetric. Products
with W, S and Sᵀ take a block V (n, C, k) and cost O(nCk); no C×C block is formed.
"""

import math

import torch
from torch import Generator, Tensor
from torch.quasirandom import SobolEngine

from kernelcg.likelihoods.base import require
from kernelcg.parameters import Parametric

STANDARD_ERROR = 1e-3
"""Largest standard error of a predictive probability."""
SCRAMBLINGS = 16
FIRST_POINTS, MOST_POINTS = 32, 2**17
"""Points of one scrambled sequence at first and at most. With the most even plain Monte Carlo would reach the standard
error."""
NUMBERS_AT_ONCE = 500_000
POINTS_OF_LOGARITHMS = 128
"""Points of `log_averages`."""
HALF_A_CELL = 2.0**-31
"""By so much a point is moved, to the centre of its cell and so away from 0; points of the sequences have 30 bits."""


class Softmax(Parametric):
    """P(y = c) = e^(f_c) / Σ_b e^(f_b), y is a class number 0, …, C − 1.

    Examples
    --------
    >>> import torch
    >>> from kernelcg.likelihoods import Softmax
    >>> Softmax().probabilities(torch.zeros(1, 4))
    tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
    """

    def log_density(self, y: Tensor, F: Tensor) -> Tensor:
        """Return log p(y_i | f_i) for y (n,) and F (n, C)."""
        return F.log_softmax(1).gather(1, y[:, None])[:, 0]

    def probabilities(self, F: Tensor) -> Tensor:
        """Return π, (n, C)."""
        return F.softmax(1)

    def gradient(self, y: Tensor, F: Tensor) -> Tensor:
        """Return ∂log p / ∂F = onehot(y) − π, (n, C)."""
        return torch.zeros_like(F).scatter_(1, y[:, None], 1.0) - F.softmax(1)

    def curvature(self, pi: Tensor, V: Tensor) -> Tensor:
        """Return W V."""
        return pi[..., None] * (V - _average(pi, V))

    def half(self, pi: Tensor, V: Tensor) -> Tensor:
        """Return S V."""
        root = pi.sqrt()
        return root[..., None] * V - pi[..., None] * _average(root, V)

    def half_transposed(self, pi: Tensor, V: Tensor) -> Tensor:
        """Return Sᵀ V."""
        return pi.sqrt()[..., None] * (V - _average(pi, V))

    def slope(self, pi: Tensor, left: Tensor, right: Tensor) -> Tensor:
        r"""Return u (n, C), :math:`u_c = \frac1k \sum_k \sum_{ab} L_{ak} R_{bk}\, \partial W_{ab} / \partial f_c`.

        As ∂π_a/∂f_c = π_a (δ_ac − π_c), u = π mean_k (q − Eq − (L − EL) ER − EL (R − ER)) with q = LR, E = Σ_a π_a.
        """
        root = pi.sqrt()[..., None]
        return self.scaled_slope(pi, root * left, root * right)

    def scaled_slope(self, pi: Tensor, left: Tensor, right: Tensor) -> Tensor:
        """Return `slope` at left / √π and right / √π, without dividing."""
        p, root = pi[..., None], pi.sqrt()[..., None]
        q, EL, ER = left * right, _average(pi.sqrt(), left), _average(pi.sqrt(), right)
        u = q - p * q.sum(-2, keepdim=True) - (root * left - p * EL) * ER - EL * (root * right - p * ER)
        return u.mean(-1)

    def check(self, y: Tensor, classes: int) -> None:
        """Raise unless y holds class numbers from 0 to C − 1."""
        if y.is_floating_point() or y.dtype == torch.bool:
            raise TypeError(f"y must hold class numbers as integers, not {y.dtype}")
        require((y >= 0) & (y < classes), y, f"y must be a class number from 0 to {classes - 1}")

    def predictive_probabilities(self, mean: Tensor, root: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """Return E π (n, C) for f_i ~ N(mean_i, root_i root_iᵀ), root (n, C, r), and its standard errors, ≤ 1e-3.

        By randomised quasi-Monte Carlo: independently scrambled Sobol' sequences are doubled in length, for the rows
        that need it, until the spread of their averages says that the error is small enough. O(nCr) for each point.

        References
        ----------
        Owen (1998), Scrambling Sobol' and Niederreiter–Xing points.
        """
        seeds = torch.randint(2**62, (SCRAMBLINGS,), generator=generator).tolist()
        rows = max(1, NUMBERS_AT_ONCE // (mean.shape[1] * max(SCRAMBLINGS, root.shape[2])))
        parts = [_expected_softmax(m, R, seeds) for m, R in zip(mean.split(rows), root.split(rows), strict=True)]
        return torch.cat([value for value, _ in parts]), torch.cat([error for _, error in parts])

    def log_averages(self, mean: Tensor, root: Tensor) -> Tensor:
        """Return log E π (n, C) for f_i ~ N(mean_i, root_i root_iᵀ), root (n, C, r), from few points.

        All rows have the same points. Less exact than `predictive_probabilities`, but smooth in mean and root, and
        exact where the root is 0.
        """
        if not bool(root.any()):
            return mean.log_softmax(1)
        engine, count = SobolEngine(root.shape[2], scramble=True, seed=0), POINTS_OF_LOGARITHMS
        Z = torch.special.ndtri(engine.draw(count, dtype=torch.float64) + HALF_A_CELL).to(mean)  # (count, r)
        rows = max(1, NUMBERS_AT_ONCE // (mean.shape[1] * count))
        parts = [
            (m[:, :, None] + R @ Z.T).log_softmax(1).logsumexp(2) - math.log(count)
            for m, R in zip(mean.split(rows), root.split(rows), strict=True)
        ]
        return torch.cat(parts)

    def log_predictive(self, y: Tensor, mean: Tensor, root: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """Return log E π_y (n,) and its standard errors, those of E π_y over E π_y."""
        probabilities, errors = self.predictive_probabilities(mean, root, generator)
        p = probabilities.gather(1, y[:, None])[:, 0].clamp_min(torch.finfo(mean.dtype).tiny)
        return p.log(), errors.gather(1, y[:, None])[:, 0] / p


def _expected_softmax(mean: Tensor, root: Tensor, seeds: list[int]) -> tuple[Tensor, Tensor]:
    n, C, r = root.shape
    engines = [SobolEngine(r, scramble=True, seed=seed) for seed in seeds]
    sums = mean.new_zeros(len(seeds), n, C)
    result, error = torch.empty_like(mean), torch.empty_like(mean)
    open_rows, drawn = torch.arange(n, device=mean.device), 0
    while len(open_rows) > 0 and drawn < MOST_POINTS:
        new = max(drawn, FIRST_POINTS)
        drawn += new
        m, R, points_at_once = mean[open_rows, :, None], root[open_rows], NUMBERS_AT_ONCE // (len(open_rows) * C)
        for s, engine in enumerate(engines):
            for count in _portions(new, max(1, points_at_once)):
                Z = torch.special.ndtri(engine.draw(count, dtype=torch.float64) + HALF_A_CELL).to(mean)  # (count, r)
                sums[s, open_rows] += (m + R @ Z.T).softmax(1).sum(2)
        averages = sums[:, open_rows] / drawn
        result[open_rows] = averages.mean(0)
        error[open_rows] = averages.std(0) / math.sqrt(len(seeds))
        open_rows = open_rows[(error[open_rows] > STANDARD_ERROR).any(1)]
    return result, error


def _portions(total: int, most: int) -> list[int]:
    """Return numbers that add up to the total, none above the most."""
    whole, rest = divmod(total, most)
    return [most] * whole + [rest] * (rest > 0)


def _average(weights: Tensor, V: Tensor) -> Tensor:
    """Return Σ_a weights_a V_a, (n, 1, k)."""
    return (weights[..., None] * V).sum(-2, keepdim=True)
