"""Learning by an optimizer that the caller gives, with the signature of those that scikit-learn takes."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from kernelcg.events import EventKind, tell
from kernelcg.inference.learning.criterion import Evaluation, Search, method_of
from kernelcg.inference.learning.state import Outcome, Step
from kernelcg.randomness import child
from kernelcg.solvers import Status

Floats = NDArray[np.float64]

GivenOptimizer = Callable[[Callable[..., Any], Floats, Floats], tuple[Any, float]]
"""``optimizer(obj_func, initial_theta, bounds)``, which returns the θ with the least value that it found and the value.

``obj_func(theta, eval_gradient=True)`` returns what is minimised and its gradient, or with ``eval_gradient=False`` the
former alone; θ holds the logarithms of the hyperparameters that are not fixed, ``bounds`` a row (lower, upper) each.
"""


@dataclass(eq=False)
class Evaluations:
    """The function that the optimizer is given, minus the criterion and its log prior, and what it was asked so far."""

    search: Search
    count: int = 0
    failures: int = 0
    steps: list[Step] = field(default_factory=list)
    """Evaluations that were better than all before."""
    best: Tensor | None = None

    @property
    def free(self) -> Tensor:
        """Return which hyperparameters are learned."""
        return self.search.lower < self.search.upper

    def __call__(self, theta: Any, eval_gradient: bool = True) -> Any:
        """Return the value at θ, and the gradient if that is wanted."""
        at = self.full(theta)
        value, gradient = self.evaluated(at)
        return (-value, -gradient.numpy()) if eval_gradient else -value

    def full(self, theta: Any) -> Tensor:
        """Return all log hyperparameters for those that are learned."""
        given = np.asarray(theta, dtype=np.float64)
        p = int(self.free.sum())
        if given.shape != (p,) or not np.isfinite(given).all():
            raise ValueError(
                f"the optimizer must evaluate and return {p} finite log hyperparameters, not {theta!r:.80}; it returns "
                "the best theta and its value"
            )
        at = self.search.start.clone()
        at[self.free] = torch.from_numpy(given.copy())
        return at

    def evaluated(self, at: Tensor) -> tuple[float, Tensor]:
        """Return criterion plus log prior at all log hyperparameters, −∞ where there is none, and the free slopes."""
        search, objective = self.search, self.search.objective
        gp = search.gp.with_log_parameters(at)
        estimate, _ = objective(gp, value=True, callback=search.callback)
        prior, slope = search.log_prior(gp)
        value = -math.inf if math.isnan(estimate.value) else estimate.value + prior
        rows, method = len(objective.problem), method_of(objective)
        self.count += 1
        self.failures += estimate.status is not Status.CONVERGED
        if not self.steps or value > self.steps[-1].value:
            self.steps.append(Step(rows, method, value, search.seconds, tuple(at.tolist())))
            self.best = at
        seen = Evaluation(rows, method, value, estimate.status, tuple(at.tolist()))
        tell(search.callback, EventKind.EVALUATION, seen, search.began)
        return value, (estimate.gradient + slope)[self.free]


def minimised(evaluations: Evaluations, optimizer: GivenOptimizer, restarts: int, generator: Generator) -> Outcome:
    """Return where the optimizer ends, the best of its ends from the start and from so many random ones."""
    search, free = evaluations.search, evaluations.free
    source, ends = child(generator, "restarts"), []
    bounds = torch.stack([search.lower, search.upper], 1)[free].numpy()
    for number in range(1 + restarts):
        drawn = torch.randn(len(free), generator=source, dtype=torch.float64) if number else torch.zeros(len(free))
        start = search.clamped(search.start + drawn)[free].numpy()
        found = optimizer(evaluations, start, bounds.copy())
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise ValueError(f"the optimizer must return the best theta and its value, not {found!r:.80}")
        end = search.clamped(evaluations.full(found[0]))
        ends.append((evaluations.evaluated(end)[0], number, end))
    return Outcome(max(ends, key=lambda one: (one[0], -one[1]))[2], True, "the given optimizer ended")
