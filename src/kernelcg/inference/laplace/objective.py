"""What is maximised when the likelihood is not Gaussian: Laplace's log marginal likelihood."""

from dataclasses import dataclass, replace
from typing import Self

from torch import Tensor

from kernelcg.backends.base import factorises_fast
from kernelcg.events import Listener
from kernelcg.inference.gaussian.likelihood_by_pcg import Numerics
from kernelcg.inference.gaussian.objective import METHODS
from kernelcg.inference.laplace.evidence import LaplaceTrail, laplace_estimate
from kernelcg.inference.laplace.latent_model import LatentProcess, Observations
from kernelcg.inference.learning.criterion_value import CriterionValue

DIRECT_VALUES, DIRECT_VALUES_ON_GPU = 1200, 15_000
"""Latent values N up to which the N³ of some ten factorisations cost about as much as iterating, and are exact. On an
H200 they take two thirds of the time at N = 13,500."""

FACTORS = 5
"""Matrices of N² numbers that the direct method needs in the course of one evaluation."""


def chosen_laplace_method(problem: Observations, method: str = "auto") -> tuple[str, str]:
    """Return "direct" or "iterative" and the reason: counted, not timed, so that the same data give the same."""
    N, budget = problem.size, problem.points.budget()
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, not {method!r}")
    if method != "auto":
        return method, "as asked"
    most = DIRECT_VALUES_ON_GPU if factorises_fast(problem.X.device) else DIRECT_VALUES
    if most < N:
        return "iterative", f"{N} latent values: products with K cost less than factorising"
    if budget < FACTORS * 8 * N * N:
        return "iterative", f"{FACTORS} matrices of {8 * N * N / 1e6:.3g} MB do not fit {budget / 1e6:.3g} MB"
    return "direct", f"{N} latent values: factorising costs no more than iterating, and is exact"


@dataclass(frozen=True, eq=False)
class LaplaceObjective:
    """The approximate log marginal likelihood of data as a function of the hyperparameters; as `Objective`."""

    problem: Observations
    method: str = "auto"
    numerics: Numerics = Numerics()
    learns_in_stages: bool = True
    """Whether learning begins with a part of the rows: a subset shows the way at a fraction of the cost."""

    def __post_init__(self) -> None:
        chosen_laplace_method(self.problem, self.method)

    @property
    def is_direct(self) -> bool:
        """Whether it is exact, by Cholesky factorisation."""
        return chosen_laplace_method(self.problem, self.method)[0] == "direct"

    @property
    def measures_noise(self) -> bool:
        """Whether there is any: the noise of probes has no known relation to the information in the data here."""
        return not self.is_direct

    @property
    def rows_to_learn_from(self) -> int:
        """Return how many rows learning ends with: all."""
        return len(self.problem)

    def on(self, rows: Tensor) -> Self:
        """Return the objective on some of the rows, by the method that suits so few."""
        return replace(self, problem=self.problem.subset(rows), method="auto")

    def seeded(self, seed: int) -> Self:
        """Return the objective with other probes."""
        return replace(self, numerics=replace(self.numerics, seed=seed))

    def lean(self, trail: LaplaceTrail) -> LaplaceTrail:
        """Return a trail as it can be stored: it is lean already."""
        return trail

    def restored(self, trail: LaplaceTrail, gp: LatentProcess) -> LaplaceTrail:
        """Return a stored trail as it was."""
        return trail.on(self.problem.X.device)

    def __call__(
        self,
        gp: LatentProcess,
        trail: LaplaceTrail | None = None,
        *,
        value: bool = True,
        errors: bool = False,
        callback: Listener | None = None,
    ) -> tuple[CriterionValue, LaplaceTrail | None]:
        """Return value and gradient, and what helps the next evaluation; the exact method gives all it can anyway."""
        method = "direct" if self.is_direct else "iterative"
        return laplace_estimate(
            self.problem, gp, method, self.numerics, trail, value=value, errors=errors, callback=callback
        )
