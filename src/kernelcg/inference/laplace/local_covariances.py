"""Latent covariances from neighbours: bounds on few rows, estimates of their gaps, and iterations where needed."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernelcg.inference.gaussian.gaps import BELOW_A, MOST_STEPS, UNTRIED, Gap, observed_gap
from kernelcg.inference.gaussian.neighbourhoods import Neighbourhoods, points_within
from kernelcg.inference.laplace.certified_covariances import tightened
from kernelcg.inference.laplace.explained import Explained, Task, forms
from kernelcg.inference.laplace.local_weights import local_weights
from kernelcg.inference.laplace.softmax_system import SoftmaxLowRank
from kernelcg.operators import Invertible, KernelPlusDiagonal
from kernelcg.solvers.energy_descent import energy_descent

GROUP, NEIGHBOURS, ROWS_OF_CLASSES = 32, 64, 512
"""New points whose neighbourhoods are put together, rows near each of them, and for classes rows of a group at most."""

MATRICES = 4
"""Matrices as large as the kernel matrix of a neighbourhood that a trial holds at once, for each class."""

PILOT_POINTS, PILOT_COLUMNS = 32, 16
"""Points of the pilot, and those columns among theirs, of the widest gaps, whose gaps are computed."""

LEAST_SPREAD = 0.01
"""How far gaps relative to their estimates are supposed to vary at least, where P ⪯ A: then they are below them."""

OF_PRODUCTS = 8
"""Error of a form after iterations, relative to k(x, x), in units of the rounding of their products."""


@dataclass(frozen=True, eq=False)
class _Trial:
    """Trial solutions V of A V = B for the C columns of some points, and what they leave.

    Attributes
    ----------
    points : (s,) numbers of the points
    V, R : (N, sC) solutions and residuals
    form : (s, C, C) BᵀV + VᵀR, which is BᵀA⁻¹B or less
    energies : (s, C, C) RᵀP⁻¹R
    """

    points: Tensor
    V: Tensor
    R: Tensor
    form: Tensor
    energies: Tensor

    def some(self, these: Tensor, classes: int) -> "_Trial":
        """Return the part of some points."""
        columns = these.repeat_interleave(classes)
        return _Trial(
            self.points[these], self.V[:, columns], self.R[:, columns], self.form[these], self.energies[these]
        )

    def errors(self, task: Task, gap: Gap) -> Tensor:
        """Return (s, C) how far the diagonals of the estimated forms may be off."""
        rounded = OF_PRODUCTS * torch.finfo(task.system.A.precision).eps * task.prior[self.points, None]
        return gap.spread * self.energies.diagonal(dim1=1, dim2=2) + rounded

    def too_wide(self, task: Task, gap: Gap) -> Tensor:
        """Return (s,) whether a variance of the point may be off by more than the tolerance."""
        error = self.errors(task, gap)
        allowed = task.allowed(self.points, self.form + gap.middle * self.energies, error)
        return ~(error <= allowed).all(1)

    def explained(self, task: Task, gap: Gap) -> Explained:
        """Return the estimate of what the data explain."""
        error = self.errors(task, gap).sum(1) + task.rounding(self.points, self.V)
        return Explained(self.points, self.form + gap.middle * self.energies, error)


def estimated(task: Task, P: Invertible) -> Explained:
    r"""Return what the data explain at all points, and estimates of the errors.

    For any V, with R = B − AV,

    .. math:: B^\top A^{-1} B = B^\top V + V^\top R + R^\top A^{-1} R .

    Without its last part this is a lower bound, so that covariances are below what it leaves of the prior's. With V
    from the rows near x it takes no product with K. The gap RᵀA⁻¹R is RᵀP⁻¹R up to the spectrum of P⁻¹A: a pilot sees
    how far these are apart. Points where the gap is not known well enough go on to block PCG from V, and those where
    that fails to solves with rigorous bounds.
    """
    size = min(GROUP, task.columns)
    q = NEIGHBOURS if task.classes == 1 else min(NEIGHBOURS, max(1, ROWS_OF_CLASSES // size))
    near = _neighbourhoods(task, size, q)
    groups = torch.arange(len(task.X)).split(size) if near is None else tuple(near.groups)
    gap = _pilot(task, P, near, groups, q)
    parts: list[Explained] = []
    waiting: list[_Trial] = []
    for group in groups:
        trial = _trial(task, P, near, group, q)
        wide = trial.too_wide(task, gap)
        parts.append(trial.some(~wide, task.classes).explained(task, gap))
        if sum(len(one.points) for one in waiting) + int(wide.sum()) > task.columns:
            parts.append(_iterated(task, P, gap, _side_by_side(waiting)))
            waiting = []
        waiting += [trial.some(wide, task.classes)] if bool(wide.any()) else []
        task.tell_of(parts)
    if waiting:
        parts.append(_iterated(task, P, gap, _side_by_side(waiting)))
        task.tell_of(parts)
    return Explained.joined(parts)


def _neighbourhoods(task: Task, size: int, q: int) -> Neighbourhoods | None:
    """Return the q rows near points in groups of ``size``, fewer in little memory, or None without coordinates."""
    problem = task.posterior.problem
    memory = problem.pricing.sizes.for_columns * problem.points.budget()
    size = points_within(memory, size, problem.size, q, MATRICES * task.classes)
    if not size:
        return None
    one = torch.ones(len(problem), dtype=torch.float64, device=problem.X.device)
    return Neighbourhoods.of(KernelPlusDiagonal(problem.matrix(task.posterior.gp.kernel), one), task.X, size)


def _energies(P: Invertible, R: Tensor, classes: int) -> Tensor:
    """Return (s, C, C) RᵀP⁻¹R at each point, for classes in float32."""
    if isinstance(P, SoftmaxLowRank):
        inner = P.in_single().captured(R)
        return _products(R, R, classes) - _products(inner, inner, classes)
    found = _products(R, P.solve(R), classes)
    return 0.5 * (found + found.mT)


def _products(left: Tensor, right: Tensor, classes: int) -> Tensor:
    """Return (s, C, C) the products of the columns of each point."""
    one, other = (block.reshape(len(block), -1, classes) for block in (left, right))
    return torch.einsum("ita,itb->tab", one, other)


def _trial(task: Task, P: Invertible, near: Neighbourhoods | None, group: Tensor, q: int) -> _Trial:
    """Return V from the q rows near each point of the group, put together; 0 without neighbours.

    With Y = (K + W⁻¹)⁻¹k on the rows J, V is Sᵀ(k − KY) there and 0 elsewhere. R = Sᵀ(k − KSV) − V is that of this V,
    however well Y = SV has been solved for; where rounding made it worse than 0, as is seen by a form below that of
    V = 0, V is 0. Iterations from there would end with the rounding of its huge residual.
    """
    posterior, C, points = task.posterior, task.classes, group.to(task.X.device)
    problem, expansion = posterior.problem, posterior.mode.expansion
    matrix, k = problem.matrix(posterior.gp.kernel), task.kernel(points)
    rows = None if near is None else near.rows(group, q).to(task.X.device)
    K = None if rows is None else matrix.block(rows, rows, precision=torch.float64)
    Y = None if rows is None or K is None else local_weights(expansion, rows, K, k[rows])
    if rows is None or K is None or Y is None:
        B = task.right(k)
        return _Trial(points, torch.zeros_like(B), B, k.new_zeros(len(points), C, C), _energies(P, B, C))
    j, g = len(rows), len(points)
    left = -(K @ Y.reshape(j, -1)).reshape(j, C, g, C)
    left.diagonal(dim1=1, dim2=3).add_(k[rows][:, :, None])
    S = expansion.half_blocks(rows)
    own = S.mT @ left.reshape(j, C, g * C)
    KSV = matrix.product_of_columns(rows, (S @ own).reshape(j, -1), precision=torch.float64)
    left = KSV.neg_().reshape(problem.size // C, C, g, C)
    left.diagonal(dim1=1, dim2=3).add_(k[:, :, None])
    R = expansion.half_transposed(left.reshape(problem.size, g * C))
    V, by_row = torch.zeros_like(R), R.reshape(-1, C, g * C)
    V.reshape(-1, C, g * C)[rows] = own
    by_row[rows] -= own
    form = forms(task.right_on(rows, k[rows]), own.reshape(-1, g * C), by_row[rows].reshape(-1, g * C), C)
    helps = (form.diagonal(dim1=1, dim2=2) >= 0).all(1)
    if not bool(helps.all()):
        columns, form = helps.repeat_interleave(C), torch.where(helps[:, None, None], form, 0.0)
        V, R = torch.where(columns, V, 0.0), torch.where(columns, R, task.right(k))
    return _Trial(points, V, R, form, _energies(P, R, C))


def _side_by_side(trials: list[_Trial]) -> _Trial:
    V, R = (torch.cat([getattr(one, name) for one in trials], dim=1) for name in ("V", "R"))
    points, form, energies = (
        torch.cat([getattr(one, name) for one in trials]) for name in ("points", "form", "energies")
    )
    return _Trial(points, V, R, form, energies)


def _pilot(task: Task, P: Invertible, near: Neighbourhoods | None, groups: tuple[Tensor, ...], q: int) -> Gap:
    """Return how gaps relate to their estimates, as seen in the columns of the widest gaps at some points."""
    is_below = task.system.below() is P
    untried = BELOW_A if is_below else UNTRIED
    count = -(-PILOT_POINTS // len(groups[0]))
    if len(groups) < 2 * count:
        return untried
    trial = _side_by_side([_trial(task, P, near, group, q) for group in groups[len(groups) // 4 :][:count]])
    known = task.informed(trial.points, trial.form).clamp_min(1e-300) + task.beside
    relative = (trial.energies.diagonal(dim1=1, dim2=2) / known).reshape(-1)
    widest = relative.argsort(descending=True, stable=True)[:PILOT_COLUMNS]
    V, R = trial.V[:, widest], trial.R[:, widest]
    if not is_below:
        return observed_gap(task.system.A, P, V, R, untried, callback=task.callback)
    return observed_gap(task.system.A, P, V, R, untried, least_spread=LEAST_SPREAD, callback=task.callback)


def _iterated(task: Task, P: Invertible, gap: Gap, trial: _Trial) -> Explained:
    """Return what the data explain at points whose trials are too wide: by block PCG, and if that fails by solves."""
    C = task.classes
    error = trial.errors(task, gap)
    allowed = task.allowed(trial.points, trial.form + gap.middle * trial.energies, error).reshape(-1)

    def wants_more(columns: Tensor, _: Tensor, energies: Tensor, gains: Tensor) -> Tensor:
        return ~(gap.spread * energies <= 0.9 * allowed[columns])

    found = energy_descent(task.system.A, P, trial.V, trial.R, wants_more, max_steps=MOST_STEPS, callback=task.callback)
    B, V, R = task.right(task.kernel(trial.points)), found.V, found.R
    if task.system.A.precision is not torch.float64:  # the residuals of the iterations have drifted from the true ones
        R = B - task.system.A.with_precision(torch.float64) @ V
    closer = _Trial(trial.points, V, R, forms(B, V, R, C), _energies(P, R, C))
    wide = closer.too_wide(task, gap)
    good = closer.some(~wide, C).explained(task, gap)
    if not bool(wide.any()):
        return good
    columns, rest = wide.repeat_interleave(C), closer.some(wide, C)
    return Explained.joined([good, tightened(task, rest.points, B[:, columns], (rest.V, rest.R))])
