"""Entries of diag A⁻¹ from the neighbours of their rows, where other estimates are too uncertain."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from kernelcg.inference.gaussian.gaps import BELOW_A, UNTRIED, Gap, observed_gap
from kernelcg.inference.gaussian.local_variances import (
    GROUP,
    PILOT_COLUMNS,
    PILOT_GROUPS,
    seconds_of_column,
    seconds_of_group,
)
from kernelcg.inference.gaussian.neighbourhoods import Neighbourhoods, points_within, trial

if TYPE_CHECKING:
    from kernelcg.inference.gaussian.posterior import Posterior

NEIGHBOURS = (64, 128, 256)
"""Rows near each row: more where fewer leave it too uncertain."""

CERTAIN = 3
"""Standard errors within which an estimate by probes is taken to lie: rows where that is too much are refined."""

BLOCKS = 8
"""Blocks of n numbers a column that trials hold at once: columns, trials, residuals, and these preconditioned."""


@dataclass(frozen=True, eq=False)
class Trials:
    """Trial solutions of A v = e_i for some rows i.

    Attributes
    ----------
    rows : (s,) numbers of the rows
    V, R : (n, s) trials and residuals e_i − Av
    least : (s,) 2v_i − vᵀAv, which is [A⁻¹]_ii or less
    energies : (s,) rᵀP⁻¹r
    """

    rows: Tensor
    V: Tensor
    R: Tensor
    least: Tensor
    energies: Tensor

    @classmethod
    def of(cls, posterior: "Posterior", near: Neighbourhoods, groups: list[Tensor], rows: Tensor, q: int) -> Self:
        """Return those for some groups of the ``rows``, each from the q rows nearest to every row of the group."""
        A, own = posterior.A, torch.cat(groups).to(rows.device)
        E = A.X.new_zeros(len(A), len(own), dtype=torch.float64)
        E[rows[own], torch.arange(len(own), device=E.device)] = 1.0
        V, R, least, start = torch.zeros_like(E), torch.empty_like(E), E.new_empty(len(own)), 0
        for group in groups:
            columns = slice(start, start + len(group))
            found = trial(A, near.rows(group, q).to(A.device), E[:, columns])
            V[found.rows, columns], R[:, columns], least[columns] = found.v, found.R, found.explained
            start = columns.stop
        return cls(rows[own], V, R, least, (R * posterior.constant_preconditioner().solve(R)).sum(0))


def refined_by_neighbours(posterior: "Posterior", diagonal: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return diag A⁻¹ and its estimated errors, (n,) both, from given ones and, where these are too much, neighbours.

    For any v, with r = e_i − Av,

    .. math:: [A^{-1}]_{ii} = 2 v_i - v^\top A v + r^\top A^{-1} r

    where v from the rows near row i takes no product with A, and the gap rᵀA⁻¹r is rᵀP⁻¹r up to a factor that is
    observed at a few rows. Where neighbours say less than what was given, that stays, and so it does where they would
    cost more than iterations.

    Parameters
    ----------
    diagonal, error : (n,) estimates and their standard errors
    """
    diagonal, error, gap = diagonal.clone(), error.clone(), None
    wide = CERTAIN * error > posterior.variance_tolerance * diagonal
    columns = posterior.columns_at_once(BLOCKS)
    memory = posterior.sizes.for_columns * posterior.A.memory_budget()
    for q in NEIGHBOURS:
        rows = wide.nonzero()[:, 0]
        size = points_within(memory, min(GROUP, columns), len(posterior.A), q)
        near = Neighbourhoods.of(posterior.A, posterior.A.X[rows].double(), size) if len(rows) and size else None
        if near is None or not _pays(posterior, near, q, size, columns):
            break
        gap = _observed(posterior, near, rows, q) if gap is None else gap
        for groups in near.batches(columns):
            found = Trials.of(posterior, near, groups, rows, q)
            own, off = found.rows, gap.spread * found.energies + _rounded(posterior, found)
            value = torch.minimum(found.least + gap.middle * found.energies, 1 / posterior.A.diagonal[own])
            better = off < error[own]
            diagonal[own[better]], error[own[better]] = value[better], off[better]
        wide &= error > posterior.variance_tolerance * diagonal
    return diagonal, error


def _some(groups: list[Tensor]) -> list[Tensor]:
    """Return a few of the groups, apart from one another."""
    return groups[:: max(len(groups) // PILOT_GROUPS, 1)][:PILOT_GROUPS]


def _pays(posterior: "Posterior", near: Neighbourhoods, q: int, size: int, columns: int) -> bool:
    """Say whether q neighbours of each row, in groups of so many, cost less than iterations for all of them would."""
    some = _some(near.groups)
    rows = sum(len(near.rows(group, q)) for group in some) / len(some)
    return seconds_of_group(posterior, rows, size) <= size * seconds_of_column(posterior, columns)


def _observed(posterior: "Posterior", near: Neighbourhoods, rows: Tensor, q: int) -> Gap:
    """Return how gaps relate to their estimates at rows with wide gaps, which iterations compute."""
    P = posterior.constant_preconditioner()
    untried = BELOW_A if P is posterior.certifier().P else UNTRIED
    found = Trials.of(posterior, near, _some(near.groups), rows, q)
    widest = (found.energies / found.least.clamp_min(1e-300)).argsort(descending=True, stable=True)[:PILOT_COLUMNS]
    return observed_gap(posterior.A, P, found.V[:, widest], found.R[:, widest], untried)


def _rounded(posterior: "Posterior", found: Trials) -> Tensor:
    """Return how far rounding of the entries of A may move [A⁻¹]_ii: by vᵀEv with v ≈ A⁻¹e_i."""
    rounding = posterior.rounding
    sizes = rounding.root.square() + rounding.diagonal
    return rounding.gamma * (sizes[:, None] * found.V.square()).sum(0)
