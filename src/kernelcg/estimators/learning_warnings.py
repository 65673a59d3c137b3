"""Whether there is anything to learn from, and what a user should know of how learning ended."""

import math

from torch import Tensor

from kernelcg.inference.gaussian.drift import MeanKind
from kernelcg.inference.gaussian.model import GaussianProcess, Regression
from kernelcg.inference.learning.learn import WIDEST, Learned
from kernelcg.inference.outputs.model import OutputProcesses, Outputs, is_explained
from kernelcg.parameters import Parametric

REACHED = 1e-9
"""Distance of a log hyperparameter from a bound that is rounding."""

NOTHING_LEFT = {
    MeanKind.ZERO: "y is zero or constant",
    MeanKind.CONSTANT: "y is constant",
    MeanKind.LINEAR: "y is linear in X",
}


def unlearned(problem: Regression | Outputs, gp: GaussianProcess | OutputProcesses) -> Learned | None:
    """Return the start as the end if the drift explains all of Y: the likelihood then rises for ever as A shrinks."""
    several = problem.each if isinstance(problem, Outputs) else (problem,)
    explained = all(one is None or is_explained(one) for one in several)
    if not explained or all(one.fixed for one in gp.restrictions()):
        return None
    why = NOTHING_LEFT[MeanKind(problem.mean)]
    reason = f"nothing was learned, since {why}: the hyperparameters are those of the start"
    return Learned(gp, (), 0, False, reason, 0.0)


def early_end(learning: Learned, advice: str) -> str:
    """Return why learning did not converge, and what can be done about it."""
    if learning.stopped:
        return f"learning ended early: {learning.reason} (see learning_; the hyperparameters are the best so far)"
    if learning.evaluations == 0:
        return learning.reason
    return f"learning ended early: {learning.reason} (see learning_; {advice})"


def runaways(start: Parametric, found: Parametric) -> list[str]:
    """Return a sentence for each hyperparameter without bounds that wanted to go further from its start than it may.

    A variance that falls or a lengthscale that rises says that something does not matter, which is a result; the
    opposite says that the start was in other units than the data.
    """
    change: Tensor = (found.log_parameters() - start.log_parameters()).detach()
    values, sentences = found.log_parameters().detach().exp().tolist(), []
    for name, value, moved, known in zip(
        found.parameter_names(), values, change.tolist(), found.restrictions(), strict=True
    ):
        in_vain = (
            "variance" in name and known.upper == math.inf if moved > 0 else "lengthscale" in name and not known.lower
        )
        if in_vain and abs(abs(moved) - WIDEST) < 1e-6:
            sentences.append(
                f"{name} ended at {value:.3g}, five orders of magnitude from its start, and would go on (start closer, "
                "scale the data, or bound it)"
            )
    return sentences


def at_given_bounds(found: Parametric, ours: tuple[str, ...] = ()) -> list[str]:
    """Return a sentence for each hyperparameter that ended at a bound that the user has set.

    The bounds of the parts named in ``ours`` are defaults of the library: to end there is no reason for a warning.
    """
    sentences = []
    for name, value, known in zip(
        found.parameter_names(), found.log_parameters().detach().tolist(), found.restrictions(), strict=True
    ):
        if known.fixed or name.startswith(ours):
            continue
        lowest = math.log(known.lower) if known.lower > 0 else -math.inf
        for end, bound, reached in (
            ("lower", known.lower, value <= lowest + REACHED),
            ("upper", known.upper, value >= math.log(known.upper) - REACHED),
        ):
            if reached:
                sentences.append(f"{name} ended at its {end} bound {bound:.6g} (other bounds may fit better)")
    return sentences
