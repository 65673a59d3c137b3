"""Estimates of condition numbers from numbers that a Krylov method computes in any case."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.linalg import eigvalsh_tridiagonal
from torch import Tensor

from kernelcg.dense import eigh, eigvalsh
from kernelcg.solvers.reading import Floats, read

LARGEST_PENCIL = 600
"""Rows of the small eigenproblem for block Ritz values; the first and the last steps are kept."""

FIRST_ROWS = 16
"""Block steps for which there is room at first; it is doubled when it is used up."""

HostBlock = tuple[Floats, Floats, Floats, Floats | None]
"""The matrices S, C, G and H of one block step."""


@dataclass(frozen=True)
class BlockStep:
    """Where the matrices S, C, G and H of a block step are kept: a row of numbers, one shape after the other."""

    row: int
    shapes: tuple[tuple[int, ...], ...]

    def without_last(self) -> "BlockStep":
        """Return the step as after a restart, without H."""
        return BlockStep(self.row, self.shapes[:3])

    def matrices(self, rows: Floats) -> HostBlock:
        """Return S, C, G and H, which is None after a restart."""
        ends = np.cumsum([math.prod(shape) for shape in self.shapes])
        parts = np.split(rows[self.row], ends)
        found = [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=False)]
        return found[0], found[1], found[2], found[3] if len(found) > 3 else None


class Spectrum:
    """Collects Rayleigh quotients of A and the recurrence of P⁻¹A.

    All numbers collected lie inside the respective spectrum (up to rounding), so the condition numbers are
    estimates from below, sharp once the iteration has converged.
    """

    def __init__(self) -> None:
        self.enabled = True
        self.low, self.high = math.inf, 0.0
        self.steps: list[tuple[Tensor, Tensor]] = []
        self.blocks: list[BlockStep] = []
        self.rows = torch.empty(0, 0)
        """The numbers of all block steps in one tensor: a few small tensors an iteration would stay between the large
        ones that come and go, and the memory between them could not be used again."""

    def add_rayleigh_quotients(self, values: Floats) -> None:
        """Take note of values dᵀAd / dᵀd."""
        if len(values):
            self.low = min(self.low, float(values.min()))
            self.high = max(self.high, float(values.max()))

    def add_step(self, alpha: Tensor, beta: Tensor) -> None:
        """Take note of the step lengths and conjugation factors of one PCG iteration."""
        self.steps.append((alpha, beta))

    def add_block(
        self, Z: Tensor, R: Tensor, D: Tensor, G: Tensor, previous: tuple[Tensor, ...] | None, H: Tensor | None
    ) -> None:
        """Take note of one block step: S = ZᵀR, Z = D C + D₋ H, G = DᵀAD; H is None after a restart."""
        C = D.T @ (Z if previous is None or H is None else Z - previous[0] @ H)
        matrices = [Z.T @ R, C, G] if H is None else [Z.T @ R, C, G, H]
        self.blocks.append(BlockStep(self._stored(matrices), tuple(tuple(M.shape) for M in matrices)))
        kept = max(1, LARGEST_PENCIL // (2 * Z.shape[1]))
        if len(self.blocks) > 2 * kept:
            del self.blocks[kept]
            self.blocks[kept] = self.blocks[kept].without_last()

    def _stored(self, matrices: list[Tensor]) -> int:
        """Return the row that now holds the numbers of some matrices."""
        numbers = torch.cat([M.reshape(-1) for M in matrices])
        used = {block.row for block in self.blocks}
        row = next(i for i in range(len(self.blocks) + 1) if i not in used)
        (count, width), most = self.rows.shape, 4 * matrices[0].numel()
        if row >= count or len(numbers) > width:
            larger = numbers.new_zeros(max(count, 2 * row, FIRST_ROWS), max(width, most, len(numbers)))
            larger[:count, :width] = self.rows
            self.rows = larger
        self.rows[row, : len(numbers)] = numbers
        return row

    def condition_numbers(self, unpreconditioned: bool) -> tuple[float, float]:
        """Return lower estimates of κ(A) and κ(P⁻¹A), NaN where nothing is known."""
        if not self.enabled:
            return math.nan, math.nan
        operator = self.high / self.low if 0 < self.low <= self.high else math.nan
        values = self._step_values() if self.steps else self._block_values()
        values = values[values > 0]
        preconditioned = float(values.max() / values.min()) if len(values) else math.nan
        return preconditioned if unpreconditioned and len(values) else operator, preconditioned

    def _step_values(self) -> Floats:
        """Return the eigenvalues of the Lanczos matrix of the column that ran longest.

        T_jj = 1/α_j + β_{j−1}/α_{j−1} and T_{j,j+1} = √β_j / α_j (Saad 2003, equation 6.82).
        """
        alphas, betas = read(*(torch.stack(column) for column in zip(*self.steps, strict=True)))
        column = int((alphas > 0).sum(0).argmax())
        used = alphas[:, column] > 0
        alpha, beta = alphas[used, column], betas[used, column]
        if not len(alpha):
            return np.zeros(0)
        main = 1 / alpha
        main[1:] += beta[:-1] / alpha[:-1]
        off = np.sqrt(beta[:-1].clip(0)) / alpha[:-1]
        return eigvalsh_tridiagonal(main, off) if len(main) > 1 else main

    def _block_values(self) -> Floats:
        """Return the eigenvalues of P⁻¹A on the span of the preconditioned residuals Z.

        Block residuals are P⁻¹-orthogonal and block directions A-orthogonal, so with S = ZᵀR the pencil is
        block tridiagonal: ZᵀAZ = CᵀGC + H₋ᵀG₋H₋ on the diagonal, C₋ᵀG₋H beside it, and S.
        """
        if not self.blocks:
            return np.zeros(0)
        [rows] = read(self.rows)
        blocks = [block.matrices(rows) for block in self.blocks]
        ends = np.cumsum([0, *(len(S) for S, _, _, _ in blocks)])
        T = np.zeros((ends[-1], ends[-1]))
        before: HostBlock | None = None
        for j, (S, C, G, H) in enumerate(blocks):
            here = slice(ends[j], ends[j + 1])
            W = _inverse_square_root(S)
            T[here, here] = W.T @ C.T @ G @ C @ W
            if before is not None and H is not None:
                S_before, C_before, G_before, _ = before
                there = slice(ends[j - 1], ends[j])
                T[here, here] += W.T @ H.T @ G_before @ H @ W
                T[there, here] = _inverse_square_root(S_before).T @ C_before.T @ G_before @ H @ W
                T[here, there] = T[there, here].T
            before = (S, C, G, H)
        values = eigvalsh(T)
        return values[values > 1e-14 * values.max()]


def _inverse_square_root(S: Floats) -> Floats:
    """Return W with WᵀSW = I on the range of S and zero elsewhere."""
    scale = S.diagonal().clip(np.finfo(np.float64).tiny) ** -0.5
    values, vectors = eigh(scale[:, None] * (S + S.T) / 2 * scale)
    kept = values > 1e-10 * values[-1]
    root: Floats = scale[:, None] * (vectors * np.where(kept, values.clip(1e-300) ** -0.5, 0.0))
    return root
