"""What is maximised: a criterion on data, by the method that suits their number, plus the priors."""

import math
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from kernelcg.backends.base import factorises_fast
from kernelcg.events import Listener
from kernelcg.inference.gaussian.cross_validation import iterative_cross_validation
from kernelcg.inference.gaussian.likelihood_by_cholesky import CRITERIA, direct_estimate
from kernelcg.inference.gaussian.likelihood_by_pcg import Numerics, Trail, iterative_estimate
from kernelcg.inference.gaussian.model import GaussianProcess, Regression
from kernelcg.inference.learning.criterion_value import CriterionValue
from kernelcg.parameters import Parametric

METHODS = ("auto", "direct", "iterative")

DIRECT_ROWS, DIRECT_ROWS_ON_GPU = 2500, 25_000
"""Rows up to which n³ costs about as much as the n² of some twenty products, and is exact. On an H200 an evaluation
with 41,000 rows takes 6.8 s, and learning about as long as by iteration: the limit there is put below that."""

FACTORS = 3
"""Matrices of n² numbers that the direct method needs in the course of one evaluation."""


def direct_rows(problem: Regression) -> int:
    """Return the number of rows up to which the direct method costs less."""
    return DIRECT_ROWS_ON_GPU if factorises_fast(problem.X.device) else DIRECT_ROWS


def most_direct_rows(problem: Regression) -> int:
    """Return the rows up to which what takes several times a factorisation is done, within the memory."""
    return min(DIRECT_ROWS, math.isqrt(int(problem.points.budget() / (FACTORS * 8))))


def chosen_method(problem: Regression, method: str = "auto") -> tuple[str, str]:
    """Return "direct" or "iterative" and the reason: counted, not timed, so that the same data give the same."""
    n, budget = len(problem), problem.points.budget()
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, not {method!r}")
    if method != "auto":
        return method, "as asked"
    if n > direct_rows(problem):
        return "iterative", f"{n} rows: products with K cost less than factorising it"
    if FACTORS * 8 * n * n > budget:
        return (
            "iterative",
            f"a factor of {8 * n * n / 1e6:.3g} MB, three times over, does not fit {budget / 1e6:.3g} MB",
        )
    return "direct", f"{n} rows: factorising K costs no more than iterating, and is exact"


@dataclass(frozen=True, eq=False)
class Objective:
    """A learning criterion on data, "marginal_likelihood", "loo" or "gcv", as a function of the hyperparameters.

    Leave-one-out errors need the diagonal of A⁻¹, whose estimates enter as reciprocals: few probes would bias them, so
    that criterion is always computed exactly, and learned on as many rows as that allows.
    """

    problem: Regression
    criterion: str = "marginal_likelihood"
    method: str = "auto"
    numerics: Numerics = Numerics()
    learns_in_stages: bool = True
    """Whether learning begins with a part of the rows: a subset shows the way at a fraction of the cost."""

    def __post_init__(self) -> None:
        if self.criterion not in CRITERIA:
            raise ValueError(f"the criterion must be one of {', '.join(CRITERIA)}, not {self.criterion!r}")
        if self.criterion != "marginal_likelihood" and self.problem.mean != "zero":
            raise ValueError(f"{self.criterion} is for kernel ridge regression: it takes mean='zero'")
        chosen_method(self.problem, self.method)

    @property
    def is_direct(self) -> bool:
        """Whether it is exact, by Cholesky factorisation."""
        return self.criterion == "loo" or chosen_method(self.problem, self.method)[0] == "direct"

    @property
    def measures_noise(self) -> bool:
        """Whether it has to be: drawn from P ⪯ A, k probes are known to cost p / 2k nats."""
        return False

    @property
    def rows_to_learn_from(self) -> int:
        """Return how many rows learning ends with: all, but for leave-one-out those that can be factorised."""
        n = len(self.problem)
        return n if self.criterion != "loo" else min(n, most_direct_rows(self.problem))

    def on(self, rows: Tensor) -> Self:
        """Return the objective on some of the rows, by the method that suits so few."""
        return replace(self, problem=self.problem.subset(rows), method="auto")

    def seeded(self, seed: int) -> Self:
        """Return the objective with other probes."""
        return replace(self, numerics=replace(self.numerics, seed=seed))

    def lean(self, trail: Trail) -> Trail:
        """Return a trail as it can be stored."""
        return trail.lean()

    def restored(self, trail: Trail, gp: GaussianProcess) -> Trail:
        """Return a stored trail as it was."""
        return trail.restored(self.problem, gp)

    def __call__(
        self,
        gp: GaussianProcess,
        trail: Trail | None = None,
        *,
        value: bool = True,
        errors: bool = False,
        callback: Listener | None = None,
    ) -> tuple[CriterionValue, Trail | None]:
        """Return value and gradient, and what helps the next evaluation; the exact method gives all it can anyway."""
        if self.is_direct:
            return direct_estimate(self.problem, gp, self.criterion), None
        if self.criterion != "marginal_likelihood":
            return iterative_cross_validation(self.problem, gp, self.numerics, trail, callback)
        return iterative_estimate(self.problem, gp, self.numerics, trail, value=value, errors=errors, callback=callback)


def log_prior(gp: Parametric) -> tuple[float, Tensor]:
    """Return Σ log N(log θ; log median, spread²), up to a constant, and its gradient in log θ."""
    theta, restrictions = gp.log_parameters().detach(), gp.restrictions()
    known = torch.tensor([one.median is not None for one in restrictions])
    medians = torch.tensor([math.log(one.median or 1.0) for one in restrictions], dtype=torch.float64)
    spreads = torch.tensor([one.spread for one in restrictions], dtype=torch.float64)
    scores = torch.where(known, (theta - medians) / spreads, 0.0)
    return -0.5 * float(scores.square().sum()), -scores / spreads
